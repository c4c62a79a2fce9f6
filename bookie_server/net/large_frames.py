"""Bounds the memory for frames larger than a connection's ordinary buffer, over all connections.

A frame of megabytes needs a buffer of its size until it is whole. Only so many bytes of such buffers are filled
at a time; further connections are not read meanwhile. A frame that does not become whole in time loses its
connection, or a peer that sends half of one and stops would keep the room for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

_LIMIT_BYTES: Final = 48 * 1024 * 1024
_TIMEOUT_S: Final = 60.0


class Receiver(Protocol):
    """A connection, as seen from here."""

    def hold_frame(self) -> None:
        """Read no more until :meth:`go_on`."""

    def go_on(self) -> None: ...

    def abort(self) -> None: ...


class LargeFrames:
    """Who may fill a large buffer now, and who waits, first come first served."""

    def __init__(self, limit_bytes: int = _LIMIT_BYTES, timeout_s: float = _TIMEOUT_S) -> None:
        self._limit_bytes = limit_bytes
        self._timeout_s = timeout_s
        self._used_bytes = 0
        self._active: dict[Receiver, tuple[int, asyncio.TimerHandle]] = {}
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
        active = self._active.pop(receiver, None)
        if active is None:
            self._waiting = deque(item for item in self._waiting if item[0] is not receiver)
            return
        size_bytes, timer = active
        timer.cancel()
        self._used_bytes -= size_bytes
        while self._waiting and self._fits(self._waiting[0][1]):
            following, size_bytes = self._waiting.popleft()
            self._activate(following, size_bytes)
            following.go_on()

    def _fits(self, size_bytes: int) -> bool:
        return not self._active or self._used_bytes + size_bytes <= self._limit_bytes

    def _activate(self, receiver: Receiver, size_bytes: int) -> None:
        self._used_bytes += size_bytes
        timer = asyncio.get_running_loop().call_later(self._timeout_s, receiver.abort)
        self._active[receiver] = (size_bytes, timer)
