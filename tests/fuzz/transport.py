"""The transport of a connection whose bytes come from a test."""

from __future__ import annotations

import asyncio
from typing import Any


class Transport(asyncio.Transport):
    """A connection without a socket. Takes what is written, and notes whether it was closed."""

    def __init__(self, *, has_socket: bool = False) -> None:
        super().__init__()
        self._has_socket = has_socket
        self.ended = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return _Socket() if name == "socket" and self._has_socket else default

    def write(self, data: Any) -> None:
        assert len(data)

    def is_closing(self) -> bool:
        return self.ended

    def abort(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0


class _Socket:
    def setsockopt(self, *_: Any) -> None:
        pass
