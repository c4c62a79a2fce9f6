"""Bounds the memory for frames larger than the common buffer, over all connections.

A frame of megabytes needs a buffer of its size until it is whole. What a peer announces costs nothing: the buffer is
given in steps, and each step at most doubles what has come. The total is bounded. At the bound:

* The oldest of these frames gets its steps nevertheless: one frame is always on its way.
* Any other gets a further step only if as much as it has already is free then. So a few that stall near their ends
  leave room for newcomers, and the more there are the less each may have.
* Connections with other frames are not read until there is room for their step, in the order in which they came. A
  small step may pass a large one. Where even the beginnings are too many, the next one is closed.
* While a frame waits, connections that were given room and send almost nothing are closed.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, Protocol

#: The first step, beside what has come already.
_FIRST_STEP_BYTES: Final = 128 * 1024
#: Frames that are looked at when there is room again.
_SERVED_AT_ONCE: Final = 64
#: Below this within the timeout a peer counts as stalled, unless the bookie itself holds it up.
_STALLED_BYTES: Final = 64 * 1024


class Receiver(Protocol):
    """A connection, as seen from here."""

    @property
    def paused(self) -> bool:
        """Whether the bookie itself does not read from it."""

    def hold_frame(self) -> None:
        """Read no more until there is room."""

    def give_room(self, size_bytes: int) -> None:
        """The first ``size_bytes`` of the frame may be received."""

    def abort_stalled(self) -> None:
        """Close at once: others wait for the room."""


class _Frame:
    __slots__ = ("given", "has", "moved_at", "moved_has", "needed", "waits")

    def __init__(self, needed: int) -> None:
        self.needed = needed
        self.has = self.given = 0
        self.waits = False
        #: Since when hardly anything came (None: not known yet), and how much was here then.
        self.moved_at: float | None = None
        self.moved_has = 0

    def note(self, now: float, *, held_up: bool) -> None:
        if self.moved_at is None or held_up or self.has - self.moved_has >= _STALLED_BYTES:
            self.moved_at, self.moved_has = now, self.has


class LargeFrames:
    """Who may receive how much of a large frame, and who waits. Times are the event loop's, in seconds."""

    def __init__(self, limit_bytes: int, stalled_timeout_s: float) -> None:
        self._limit_bytes = limit_bytes
        self._stalled_timeout_s = stalled_timeout_s
        #: Bytes of buffers that were given.
        self.bytes = 0
        #: Beginnings of frames that wait for their first step.
        self._waiting_bytes = 0
        #: In the order in which the frames began.
        self._frames: dict[Receiver, _Frame] = {}
        #: In the order in which they began to wait.
        self._waiting: dict[Receiver, _Frame] = {}

    def progress(self, receiver: Receiver, has_bytes: int, needed_bytes: int, now: float) -> None:
        """``has_bytes`` of a frame of ``needed_bytes`` are here, which is not whole yet; holds the receiver where there
        is no room for more."""
        frame = self._frames.get(receiver)
        if frame is None:
            frame = self._frames[receiver] = _Frame(needed_bytes)
        frame.has = has_bytes
        frame.note(now, held_up=frame.waits)
        if has_bytes < frame.given or frame.waits:
            return
        if self._try_to_give(receiver, frame):
            return
        frame.waits = True
        self._waiting[receiver] = frame
        if not frame.given:
            self._waiting_bytes += has_bytes
        receiver.hold_frame()
        if self._waiting_bytes > self._limit_bytes:
            self._close(receiver)
        self.look(now)

    def end(self, receiver: Receiver) -> None:
        """The frame is whole, or the connection gone."""
        frame = self._frames.pop(receiver, None)
        if frame is None:
            return
        self.bytes -= frame.given
        if self._waiting.pop(receiver, None) is not None and not frame.given:
            self._waiting_bytes -= frame.has
        if self._waiting:
            self._serve_waiting()

    def look(self, now: float) -> None:
        """Close who has stalled, if others wait for room. To be called now and then."""
        stalled = []
        for receiver, frame in self._frames.items():
            frame.note(now, held_up=frame.waits or receiver.paused)
            assert frame.moved_at is not None
            if now - frame.moved_at >= self._stalled_timeout_s:
                stalled.append(receiver)
        for receiver in stalled:
            if not self._waiting:
                return
            self._close(receiver)

    def _close(self, receiver: Receiver) -> None:
        receiver.abort_stalled()
        self.end(receiver)

    def _try_to_give(self, receiver: Receiver, frame: _Frame) -> bool:
        """Give the next step, if there is room or it is the oldest frame."""
        wanted = min(frame.needed, max(2 * frame.has, frame.has + _FIRST_STEP_BYTES))
        more = wanted - frame.given
        if self.bytes + more + frame.given > self._limit_bytes and receiver is not next(iter(self._frames)):
            return False
        self.bytes += more
        frame.given = wanted
        if frame.waits:
            frame.waits, frame.moved_at = False, None  # its time begins anew
            del self._waiting[receiver]
        receiver.give_room(wanted)
        return True

    def _serve_waiting(self) -> None:
        oldest = next(iter(self._frames))
        order = list(islice(self._waiting, _SERVED_AT_ONCE))
        for receiver in [oldest, *order] if oldest in self._waiting else order:
            frame = self._waiting.get(receiver)
            if frame is None:  # it was the oldest
                continue
            had_room = frame.given > 0
            if self._try_to_give(receiver, frame) and not had_room:
                self._waiting_bytes -= frame.has
