"""Beginnings of frames, over all connections: bounded in bytes and in time.

A normal peer finishes a frame at once, so the oldest beginning belongs to the slowest peer. Its connection is closed
when there are too many beginnings. A connection that does not finish its frame in time is closed, too.
"""

from __future__ import annotations

from typing import Protocol


class Half(Protocol):
    """A connection, as seen from here."""

    @property
    def paused(self) -> bool:
        """Whether the bookie itself does not read from it."""

    def abort(self) -> None: ...


class HalfFrames:
    """The connections with an unfinished frame: since when, and how many bytes are kept. Times are the event loop's, in
    seconds."""

    def __init__(self, max_bytes: int, timeout_s: float) -> None:
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        #: In order of the times.
        self._since: dict[Half, tuple[float, int]] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._since)

    def begin(self, connection: Half, size_bytes: int, now: float) -> None:
        """``connection`` has begun a frame of which ``size_bytes`` are kept; one before it is whole."""
        self.end(connection)
        self._since[connection] = now, size_bytes
        self.bytes += size_bytes
        if self.bytes > self._max_bytes:
            self._make_room()

    def grow(self, connection: Half, size_bytes: int, now: float) -> None:
        """More of the same frame has come: ``size_bytes`` now."""
        since, before = self._since.get(connection, (now, 0))
        self._since[connection] = since, size_bytes
        self.bytes += size_bytes - before
        if self.bytes > self._max_bytes:
            self._make_room()

    def end(self, connection: Half) -> None:
        """The frame is whole, or the connection gone."""
        item = self._since.pop(connection, None)
        if item is not None:
            self.bytes -= item[1]

    def expire(self, now: float) -> None:
        """Abort connections that have not finished in time. Time in which the bookie did not read does not count."""
        while self._since:
            connection, (since, size_bytes) = next(iter(self._since.items()))
            if now - since < self._timeout_s:
                return
            if connection.paused:
                del self._since[connection]
                self._since[connection] = now, size_bytes
            else:
                self.end(connection)
                connection.abort()

    def _make_room(self) -> None:
        while self.bytes > self._max_bytes and self._since:
            oldest = next((one for one in self._since if not one.paused), None) or next(iter(self._since))
            self.end(oldest)
            oldest.abort()
