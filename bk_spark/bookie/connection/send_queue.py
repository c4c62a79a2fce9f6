"""What a connection sends, in pieces that suit asyncio's transports. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from bk_spark.protocol.entries.digest import Buffer

#: Size of a piece for the transport. It copies bytes that the socket does not take, so pieces stay small.
_SEND_BYTES: Final = 256 * 1024


class SendQueue:
    """Buffers that wait, in order. They are not copied, unless small ones are joined."""

    def __init__(self) -> None:
        self._buffers: deque[memoryview] = deque()

    def __bool__(self) -> bool:
        return bool(self._buffers)

    def extend(self, buffers: Iterable[Buffer]) -> None:
        """Add buffers, which must not change afterwards."""
        self._buffers.extend(memoryview(buffer) for buffer in buffers)

    def clear(self) -> None:
        """Drop everything."""
        self._buffers.clear()

    def next_piece(self) -> memoryview:
        """Take the next piece to write. The queue must not be empty."""
        buffers = self._buffers
        piece = buffers.popleft()
        if len(piece) > _SEND_BYTES:
            buffers.appendleft(piece[_SEND_BYTES:])
            return piece[:_SEND_BYTES]
        if buffers and len(piece) + len(buffers[0]) <= _SEND_BYTES:
            size, small = len(piece), [piece]
            while buffers and size + len(buffers[0]) <= _SEND_BYTES:
                size += len(buffers[0])
                small.append(buffers.popleft())
            return memoryview(b"".join(small))
        return piece
