"""Cuts a byte stream into frames: ``u32 length`` and that many bytes (compatibility.md §1.1).

The socket writes directly into the receive buffer (``recv_into``), which is cut without copying. The data of a
:class:`Frames` stay valid after the next receive, because a buffer that was handed out is never written again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.codes import DEFAULT_MAX_FRAME_BYTES
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.errors import WireFormatError

LENGTH_BYTES: Final = 4
_U32: Final = struct.Struct(">I")
#: From this many equal frames in a row, looking ahead with numpy is faster than stepping one by one.
_UNIFORM_RUN: Final = 8
#: A frame of up to so many chunks is expected to be followed by one of about its size. Of a larger one, the chunk that
#: is moved is a small part.
_MOST_EXPECTED_CHUNKS: Final = 8
#: By how much the next one may be larger: this part of it.
_EXPECTED_MORE: Final = 8
#: The first half of a frame's length, if it is the beginning of TLS (RFC 8446, section 5.1).
_TLS_HANDSHAKE: Final = 0x1603


@dataclass(frozen=True, slots=True)
class Frames:
    """Complete frames in ``data``. Frame ``i`` is ``data[starts[i] : starts[i] + lengths[i]]``. Its length prefix is in
    the four bytes before. Arrays are int64 and of equal size."""

    data: memoryview
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def shortest_bytes(self) -> int:
        """Length of the shortest frame, of at least one."""
        return int(self.lengths[0] if len(self.lengths) == 1 else self.lengths.min())

    def __iter__(self) -> Iterator[memoryview]:
        for start, length in zip(self.starts.tolist(), self.lengths.tolist(), strict=True):
            yield self.data[start : start + length]


def _too_large(length: int, most: int) -> WireFormatError:
    text = f"frame of {length} bytes exceeds nettyMaxFrameSizeBytes, {most}"
    if length >> 16 == _TLS_HANDSHAKE:
        text = "the peer began TLS without START_TLS: use a client of BookKeeper, with tlsProviderFactoryClass"
    return WireFormatError(text)


class ReceiveBuffer:
    """Turns received bytes into frames. Bounded by ``max_frame_bytes`` plus one chunk.

    After a large frame the buffer has room for another of about its size, so that such frames are not moved within
    memory.

    Use it as asyncio.BufferedProtocol does: write into :meth:`get_buffer`, then call :meth:`received`. With ``reuse``
    the frames stay valid only until the next :meth:`get_buffer`. So a server that copies what it keeps need not
    allocate a buffer for each receive.
    """

    def __init__(
        self,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        chunk_bytes: int = 256 * 1024,
        *,
        reuse: bool = False,
    ) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._chunk_bytes = chunk_bytes
        self._reuse = reuse
        self._buffer = _new_buffer(chunk_bytes)
        #: The received bytes that were not returned as frames.
        self._start = self._end = 0
        #: Room for the next frame, if the last one was larger than a chunk. Else 0.
        self._expected_bytes = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes received of an incomplete frame."""
        return self._end - self._start

    @property
    def capacity_bytes(self) -> int:
        """Size of the buffer: one chunk, or one larger frame."""
        return len(self._buffer)

    def get_buffer(self) -> memoryview:
        """Return the space for the next bytes. It is never empty."""
        if self._reuse and self._start:
            rest = self._end - self._start
            self._buffer[:rest] = self._buffer[self._start : self._end]
            self._start, self._end = 0, rest
        if not self._reuse and self._end - self._start >= LENGTH_BYTES:
            size = frame_bytes(self._buffer, self._start)
            if size > self._chunk_bytes:
                # Not beyond the end of a large frame: the next one then begins in a buffer with room for it.
                return self._buffer[self._end : self._start + size]
        return self._buffer[self._end :]

    def received(self, size_bytes: int) -> Frames | None:
        """Record ``size_bytes`` written to the buffer. Return the frames that are complete, or None.

        Raises WireFormatError for a frame longer than the limit, before allocating memory for it.
        """
        self._end += size_bytes
        starts, lengths, consumed = self._cut()
        buffer = self._buffer
        self._start = consumed
        if lengths is not None:
            size = LENGTH_BYTES + int(lengths[-1])
            is_large = self._chunk_bytes < size <= _MOST_EXPECTED_CHUNKS * self._chunk_bytes
            self._expected_bytes = min(size + size // _EXPECTED_MORE, self._max_frame_bytes) if is_large else 0
        self._make_room()
        return None if starts is None or lengths is None else Frames(buffer, starts, lengths)

    def _make_room(self) -> None:
        """Switch to another buffer if this one is full, or too small for the frame that has begun."""
        rest, size = self._end - self._start, len(self._buffer)
        needed = frame_bytes(self._buffer, self._start) if rest >= LENGTH_BYTES else LENGTH_BYTES
        if self._reuse:
            # get_buffer moved the rest to the front. The memory of a large frame is released.
            good = size == max(needed, self._chunk_bytes)
        else:
            room = size - self._end
            # A frame that has begun is moved only if necessary. Otherwise switch early, to avoid tiny receives.
            least = needed - rest
            if rest < LENGTH_BYTES:
                least = max(least, self._chunk_bytes // 4, self._expected_bytes - rest)
            good = room >= least
        if not good:
            expected = 0 if self._reuse else self._expected_bytes
            buffer = _new_buffer(max(needed, expected, self._chunk_bytes))
            buffer[:rest] = self._buffer[self._start : self._end]
            self._buffer, self._start, self._end = buffer, 0, rest

    def _cut(self) -> tuple[npt.NDArray[np.int64] | None, npt.NDArray[np.int64] | None, int]:
        starts: list[npt.NDArray[np.int64]] = []
        lengths: list[npt.NDArray[np.int64]] = []
        position, end, buffer = self._start, self._end, self._buffer
        singles: list[int] = []
        single_lengths: list[int] = []
        previous = -1
        equal = 0
        while end - position >= LENGTH_BYTES:
            (length,) = _U32.unpack_from(buffer, position)
            if length + LENGTH_BYTES > self._max_frame_bytes:
                raise _too_large(length, self._max_frame_bytes)
            equal = equal + 1 if length == previous else 0
            previous = length
            if equal >= _UNIFORM_RUN:
                count = _count_equal(buffer, position, end, length)
                if singles:
                    starts.append(np.array(singles, np.int64))
                    lengths.append(np.array(single_lengths, np.int64))
                    singles, single_lengths = [], []
                stride = length + LENGTH_BYTES
                if count:
                    starts.append(position + LENGTH_BYTES + stride * np.arange(count, dtype=np.int64))
                    lengths.append(np.full(count, length, np.int64))
                    position += count * stride
                    equal = 0
                    continue
            if end - position < LENGTH_BYTES + length:
                break
            singles.append(position + LENGTH_BYTES)
            single_lengths.append(length)
            position += LENGTH_BYTES + length
        if singles:
            starts.append(np.array(singles, np.int64))
            lengths.append(np.array(single_lengths, np.int64))
        if not starts:
            return None, None, position
        if len(starts) == 1:
            return starts[0], lengths[0], position
        return np.concatenate(starts), np.concatenate(lengths), position


def _new_buffer(size_bytes: int) -> memoryview:
    """Return a new buffer. It is not zeroed, so unused pages take no memory."""
    return np.empty(size_bytes, np.uint8).data


def _count_equal(buffer: memoryview, position: int, end: int, length: int) -> int:
    """Count the consecutive complete frames of ``length`` bytes from ``position`` on."""
    stride = length + LENGTH_BYTES
    most = (end - position) // stride
    if most == 0:
        return 0
    rows = np.frombuffer(buffer, np.uint8, most * stride, position).reshape(most, stride)
    prefixes = rows[:, :LENGTH_BYTES].copy().view(">u4")[:, 0]
    different = np.flatnonzero(prefixes != length)
    return int(different[0]) if len(different) else most


def frame_bytes(beginning: Buffer, at: int = 0) -> int:
    """Return the size of a whole frame, of which at least the length prefix is at ``at`` in ``beginning``."""
    return LENGTH_BYTES + int(_U32.unpack_from(beginning, at)[0])


def frame(body: bytes) -> bytes:
    """Return ``body`` as one frame."""
    return _U32.pack(len(body)) + body
