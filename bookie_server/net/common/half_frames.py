"""Bounds the incomplete frames of all connections, in bytes and in time.

A normal peer completes a frame at once, so the oldest incomplete frame belongs to the slowest peer. Its connection is
closed when incomplete frames need too much memory. A connection that does not complete its frame in time is closed too.
"""

from __future__ import annotations

from typing import Protocol


class Half(Protocol):
    """A connection, as seen from here."""

    @property
    def paused(self) -> bool:
        """Whether the bookie does not read from it now."""

    def abort(self) -> None:
        """Close at once."""


class HalfFrames:
    """The connections with an incomplete frame, when each began it, and how many bytes of it are kept. Times are the
    event loop's, in seconds."""

    def __init__(self, max_bytes: int, timeout_s: float) -> None:
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        #: Oldest first.
        self._since: dict[Half, tuple[float, int]] = {}
        self.bytes = 0
        #: Connections that were closed here.
        self.closed = 0

    def __len__(self) -> int:
        return len(self._since)

    def begin(self, connection: Half, size_bytes: int, now: float) -> None:
        """``connection`` has begun a frame, of which ``size_bytes`` are kept. Its previous frame is complete."""
        self.end(connection)
        self._since[connection] = now, size_bytes
        self.bytes += size_bytes
        if self.bytes > self._max_bytes:
            self._make_room()

    def grow(self, connection: Half, size_bytes: int, now: float) -> None:
        """More of the same frame has arrived: now ``size_bytes`` are kept."""
        since, before = self._since.get(connection, (now, 0))
        self._since[connection] = since, size_bytes
        self.bytes += size_bytes - before
        if self.bytes > self._max_bytes:
            self._make_room()

    def end(self, connection: Half) -> None:
        """The frame is complete, or the connection is lost."""
        item = self._since.pop(connection, None)
        if item is not None:
            self.bytes -= item[1]

    def expire(self, now: float) -> None:
        """Close connections that have not completed their frame in time. Time without reading does not count."""
        while self._since:
            connection, (since, size_bytes) = next(iter(self._since.items()))
            if now - since < self._timeout_s:
                return
            if connection.paused:
                del self._since[connection]
                self._since[connection] = now, size_bytes
            else:
                self._close(connection)

    def _make_room(self) -> None:
        while self.bytes > self._max_bytes and self._since:
            oldest = next((one for one in self._since if not one.paused), None) or next(iter(self._since))
            self._close(oldest)

    def _close(self, connection: Half) -> None:
        self.closed += 1
        self.end(connection)
        connection.abort()
