"""Cutting a byte stream into frames: ``u32 length`` and that many bytes (compatibility.md §1.1).

The receive buffer is written by the socket directly (``recv_into``) and cut without copying: what a
:class:`Frames` refers to stays valid after the next receive, since a buffer that was handed out is
never written again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.codes import DEFAULT_MAX_FRAME_BYTES
from bk_spark.protocol.errors import WireFormatError

LENGTH_BYTES: Final = 4
_U32: Final = struct.Struct(">I")
#: From this many equal frames in a row on, looking ahead with numpy beats stepping one by one.
_UNIFORM_RUN: Final = 8


@dataclass(frozen=True, slots=True)
class Frames:
    """Complete frames in ``data``: frame ``i`` is ``data[starts[i] : starts[i] + lengths[i]]``,
    its length prefix lies in the four bytes before. Arrays are int64 and of equal size."""

    data: memoryview
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[memoryview]:
        for start, length in zip(self.starts.tolist(), self.lengths.tolist(), strict=True):
            yield self.data[start : start + length]


class ReceiveBuffer:
    """Receives bytes, gives frames. Bounded by ``max_frame_bytes`` plus one chunk.

    Use as asyncio.BufferedProtocol does: write into :meth:`get_buffer`, then call :meth:`received`.
    With ``reuse`` the frames given stay valid only until the next :meth:`get_buffer`, which saves a server
    that copies what it keeps from allocating a buffer per receive.
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
        #: What was received and not given out as frames.
        self._start = self._end = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that has not arrived whole."""
        return self._end - self._start

    @property
    def capacity_bytes(self) -> int:
        """Size of the buffer: one chunk, or a whole frame that is larger."""
        return len(self._buffer)

    def get_buffer(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._reuse and self._start:
            rest = self._end - self._start
            self._buffer[:rest] = self._buffer[self._start : self._end]
            self._start, self._end = 0, rest
        return self._buffer[self._end :]

    def received(self, size_bytes: int) -> Frames | None:
        """Account for ``size_bytes`` written to the buffer; the frames that are complete, or None.

        Raises WireFormatError for a frame longer than the limit, before anything is allocated for it.
        """
        self._end += size_bytes
        starts, lengths, consumed = self._cut()
        buffer = self._buffer
        self._start = consumed
        self._make_room()
        return None if starts is None or lengths is None else Frames(buffer, starts, lengths)

    def _make_room(self) -> None:
        """Go on in another buffer where this one is used up, or too small for the frame that has begun."""
        rest, size = self._end - self._start, len(self._buffer)
        needed = LENGTH_BYTES
        if rest >= LENGTH_BYTES:
            needed += int(_U32.unpack_from(self._buffer, self._start)[0])
        if self._reuse:
            # Moved to the front by get_buffer; what a large frame took is given back.
            good = size == max(needed, self._chunk_bytes)
        else:
            room = size - self._end
            # A frame that has begun is not moved without need, but nothing else is received in driblets.
            good = room >= needed - rest and (room >= self._chunk_bytes // 4 or rest >= LENGTH_BYTES)
        if not good:
            buffer = _new_buffer(max(needed, self._chunk_bytes))
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
                raise WireFormatError(
                    f"frame of {length} bytes exceeds nettyMaxFrameSizeBytes, {self._max_frame_bytes}"
                )
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
    """Not zeroed: pages that nothing was received into take no memory."""
    return np.empty(size_bytes, np.uint8).data


def _count_equal(buffer: memoryview, position: int, end: int, length: int) -> int:
    """How many complete frames of ``length`` bytes follow one another from ``position``."""
    stride = length + LENGTH_BYTES
    most = (end - position) // stride
    if most == 0:
        return 0
    rows = np.frombuffer(buffer, np.uint8, most * stride, position).reshape(most, stride)
    prefixes = rows[:, :LENGTH_BYTES].copy().view(">u4")[:, 0]
    different = np.flatnonzero(prefixes != length)
    return int(different[0]) if len(different) else most


def frame(body: bytes) -> bytes:
    """One frame around ``body``."""
    return _U32.pack(len(body)) + body
