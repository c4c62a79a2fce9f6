"""Bounds the memory for frames larger than the common buffer, over all connections.

A frame of megabytes needs a buffer of its size until it is complete. An announced size costs nothing: the buffer grows
in steps, and each step at most doubles the bytes that have arrived. The total is bounded. At the bound:

* The oldest of these frames still gets its steps, so one frame always makes progress.
* Any other frame gets a step only if as much as it already holds stays free afterwards. So frames that stall near their
  ends leave room for new ones, and the more frames there are, the less each may hold.
* The other connections are not read until there is room for their next step, in their order of arrival. A small step
  may overtake a large one. If even the first bytes of waiting frames need too much memory, the next such connection is
  closed.
* While a frame waits, connections that have room and send almost nothing are closed.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, Protocol

#: The first step, in addition to the bytes that have arrived.
_FIRST_STEP_BYTES: Final = 128 * 1024
#: Number of frames examined when there is room again.
_SERVED_AT_ONCE: Final = 64
#: Below this within the timeout a peer counts as stalled, unless the bookie itself does not read from it.
_STALLED_BYTES: Final = 64 * 1024


class Receiver(Protocol):
    """A connection, as seen from here."""

    @property
    def paused(self) -> bool:
        """Whether the bookie does not read from it now."""

    def hold_frame(self) -> None:
        """Stop reading until there is room."""

    def give_room(self, size_bytes: int) -> None:
        """The first ``size_bytes`` of the frame may be received."""

    def abort_stalled(self) -> None:
        """Close at once, because others wait for its memory."""


class _Frame:
    __slots__ = ("given", "has", "moved_at", "moved_has", "needed", "waits")

    def __init__(self, needed: int) -> None:
        self.needed = needed
        self.has = self.given = 0
        self.waits = False
        #: Since when hardly anything has arrived (None: not known yet), and how many bytes there were then.
        self.moved_at: float | None = None
        self.moved_has = 0

    def note(self, now: float, *, held_up: bool) -> None:
        if self.moved_at is None or held_up or self.has - self.moved_has >= _STALLED_BYTES:
            self.moved_at, self.moved_has = now, self.has


class LargeFrames:
    """Decides which connection may receive how much of a large frame. Times are the event loop's, in seconds."""

    def __init__(self, limit_bytes: int, stalled_timeout_s: float) -> None:
        self._limit_bytes = limit_bytes
        self._stalled_timeout_s = stalled_timeout_s
        #: Total size of the buffers.
        self.bytes = 0
        #: Bytes of the frames that wait for their first step.
        self._waiting_bytes = 0
        #: Oldest frame first.
        self._frames: dict[Receiver, _Frame] = {}
        #: Longest waiting first.
        self._waiting: dict[Receiver, _Frame] = {}

    def progress(self, receiver: Receiver, has_bytes: int, needed_bytes: int, now: float) -> None:
        """``has_bytes`` of an incomplete frame of ``needed_bytes`` have arrived. Holds the receiver if there is no room
        for more."""
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
        """The frame is complete, or the connection is lost."""
        frame = self._frames.pop(receiver, None)
        if frame is None:
            return
        self.bytes -= frame.given
        if self._waiting.pop(receiver, None) is not None and not frame.given:
            self._waiting_bytes -= frame.has
        if self._waiting:
            self._serve_waiting()

    def look(self, now: float) -> None:
        """Close stalled connections if others wait for room. Call this regularly."""
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
        """Give the next step if there is room, or if this is the oldest frame."""
        wanted = min(frame.needed, max(2 * frame.has, frame.has + _FIRST_STEP_BYTES))
        more = wanted - frame.given
        if self.bytes + more + frame.given > self._limit_bytes and receiver is not next(iter(self._frames)):
            return False
        self.bytes += more
        frame.given = wanted
        if frame.waits:
            frame.waits, frame.moved_at = False, None  # measure from now on
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
