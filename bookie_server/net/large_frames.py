"""Bounds the memory for frames larger than the common buffer, over all connections.

A frame of megabytes needs a buffer of its size until it is whole. Only so many bytes of such buffers are filled
at a time; further connections are not read meanwhile. Who does not finish in time is found by half_frames.py.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol


class Receiver(Protocol):
    """A connection, as seen from here."""

    def hold_frame(self) -> None:
        """Read no more until :meth:`go_on`."""

    def go_on(self) -> None: ...


class LargeFrames:
    """Who may fill a large buffer now, and who waits, first come first served."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._active: dict[Receiver, int] = {}
        self._waiting: deque[tuple[Receiver, int]] = deque()

    def begin(self, receiver: Receiver, size_bytes: int) -> None:
        """``receiver`` has begun with a frame of ``size_bytes``; holds it where there is no room."""
        if self._waiting or not self._fits(size_bytes):
            receiver.hold_frame()
            self._waiting.append((receiver, size_bytes))
        else:
            self._activate(receiver, size_bytes)

    def end(self, receiver: Receiver) -> None:
        """The frame is whole, or the connection gone."""
        size_bytes = self._active.pop(receiver, None)
        if size_bytes is None:
            self._waiting = deque(item for item in self._waiting if item[0] is not receiver)
        else:
            self._used_bytes -= size_bytes
        while self._waiting and self._fits(self._waiting[0][1]):
            following, size_bytes = self._waiting.popleft()
            self._activate(following, size_bytes)
            following.go_on()

    def _fits(self, size_bytes: int) -> bool:
        return not self._active or self._used_bytes + size_bytes <= self._limit_bytes

    def _activate(self, receiver: Receiver, size_bytes: int) -> None:
        self._used_bytes += size_bytes
        self._active[receiver] = size_bytes
