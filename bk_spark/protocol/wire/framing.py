"""Cuts a byte stream into frames: ``u32 length`` and that many bytes (compatibility.md §1.1).

The socket writes directly into a receive buffer (``recv_into``), which is cut without copying. A client's connection
has a :class:`ReceiveBuffer`: the data of its :class:`Frames` stay valid, because what was handed out is never written
again. The connections of a server share a :class:`CommonBuffer`. Its event loop receives for one connection at a time,
and the bytes are handled before the next receive. So a connection itself (:class:`Receiving`) keeps only an incomplete
frame, and nothing when it is idle. A frame that does not fit into the common buffer gets a buffer of its own once some
of it has arrived. That buffer grows in steps, so a size that a peer announces costs nothing.

The first byte of a frame tells the protocol. A body of v3 begins with 0x0A (protobuf's field 1, the header), one of v2
with its version (0, 1 or 2). Apache's codec (4.18) may put fields out of order, and one with a two-byte tag first.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from bk_spark.protocol.arrays import Bools, Int64s
from bk_spark.protocol.codes import DEFAULT_MAX_FRAME_BYTES
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.errors import WireFormatError

LENGTH_BYTES: Final = 4
_U32: Final = struct.Struct(">I")
#: From this many equal frames in a row, looking ahead with numpy is faster than stepping one by one.
_UNIFORM_RUN: Final = 8
#: After a frame of up to this many chunks, another one of about its size is expected. When a larger frame begins,
#: moving its first chunk costs little compared with the rest.
_MOST_EXPECTED_CHUNKS: Final = 10
#: The next one may be larger by one part in this many.
_EXPECTED_MORE: Final = 8
_COMMON_BYTES: Final = 256 * 1024
#: This much of a large frame is received into the common buffer, and kept like any other incomplete frame.
_LARGE_FROM_BYTES: Final = 64 * 1024
#: Then this much is received at a time. The memory is fresh, which costs more than copying the bytes.
_LARGE_RECEIVE_BYTES: Final = 128 * 1024
#: From this size on numpy asks for huge pages.
_HUGE_PAGES_FROM_BYTES: Final = 4 * 1024 * 1024
#: The first byte of a body of v3, and the second bytes of the two-byte tags of fields that may come before the header.
_V3_BYTE: Final = 0x0A
_V3_LATE_HEADER_BYTES: Final = (0x06, 0x0C)
#: The first half of a frame's length, if it is the beginning of TLS (RFC 8446, section 5.1).
_TLS_HANDSHAKE: Final = 0x1603


@dataclass(frozen=True, slots=True)
class Frames:
    """Complete frames in ``data``. Frame ``i`` is ``data[starts[i] : starts[i] + lengths[i]]``. Its length prefix is in
    the four bytes before. Arrays are int64 and of equal size."""

    data: memoryview
    starts: Int64s
    lengths: Int64s

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def shortest_bytes(self) -> int:
        """Length of the shortest frame, of at least one."""
        return int(self.lengths[0] if len(self.lengths) == 1 else self.lengths.min())

    @property
    def longest_bytes(self) -> int:
        """Length of the longest frame, of at least one."""
        return int(self.lengths[0] if len(self.lengths) == 1 else self.lengths.max())

    def __iter__(self) -> Iterator[memoryview]:
        for start, length in zip(self.starts.tolist(), self.lengths.tolist(), strict=True):
            yield self.data[start : start + length]

    def check_bodies(self) -> None:
        """Raises WireFormatError for a frame without a body."""
        if self.shortest_bytes < 1:
            raise WireFormatError("empty frame")

    def part(self, first: int, last: int) -> Frames:
        """Return frames ``first`` up to but not including ``last``, over the same bytes."""
        return Frames(self.data, self.starts[first:last], self.lengths[first:last])

    def detached(self) -> Frames:
        """Return the same frames in a new buffer."""
        first = int(self.starts[0]) - LENGTH_BYTES
        end = int(self.starts[-1] + self.lengths[-1])
        data = np.frombuffer(self.data, np.uint8)[first:end].copy()
        return Frames(data.data, self.starts - first, self.lengths)


def is_v3(body: Buffer) -> bool:
    """Return whether a frame's body can only be v3 (else it is v2, or empty)."""
    if not body:
        return False
    first = body[0]
    return first == _V3_BYTE or (first >= 0x80 and len(body) > 1 and body[1] in _V3_LATE_HEADER_BYTES)


def are_v3(frames: Frames) -> Bools:
    """Return which frames, none of them empty, can only be v3, as :func:`is_v3` does."""
    data = np.frombuffer(frames.data, np.uint8)
    first = data[frames.starts]
    are: Bools = first == _V3_BYTE
    if not are.all() and (first >= 0x80).any():
        long_enough = frames.lengths > 1
        second = data[np.where(long_enough, frames.starts + 1, 0)]
        are |= (first >= 0x80) & long_enough & (np.isin(second, _V3_LATE_HEADER_BYTES))
    return are


def _too_large(length: int, most: int) -> WireFormatError:
    text = f"frame of {length} bytes exceeds nettyMaxFrameSizeBytes, {most}"
    if length >> 16 == _TLS_HANDSHAKE:
        text = "the peer began TLS without START_TLS: use a client of BookKeeper, with tlsProviderFactoryClass"
    return WireFormatError(text)


class ReceiveBuffer:
    """The received bytes of a client's connection. Bounded by ``max_frame_bytes`` plus one chunk.

    After a large frame the buffer has room for another of about its size, so that such frames are not moved within
    memory.

    Use it as asyncio.BufferedProtocol does: write into :meth:`get_buffer`, then call :meth:`received`.
    """

    def __init__(self, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES, chunk_bytes: int = 256 * 1024) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._chunk_bytes = chunk_bytes
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
        if self._end - self._start >= LENGTH_BYTES:
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
        frames, self._start = _cut(self._buffer, self._start, self._end, self._max_frame_bytes)
        if frames is not None:
            size = LENGTH_BYTES + int(frames.lengths[-1])
            is_large = self._chunk_bytes < size <= _MOST_EXPECTED_CHUNKS * self._chunk_bytes
            self._expected_bytes = min(size + size // _EXPECTED_MORE, self._max_frame_bytes) if is_large else 0
        self._make_room()
        return frames

    def _make_room(self) -> None:
        """Switch to another buffer if this one is full, or too small for the frame that has begun."""
        rest = self._end - self._start
        needed = frame_bytes(self._buffer, self._start) if rest >= LENGTH_BYTES else LENGTH_BYTES
        # A frame that has begun is moved only if necessary. Otherwise switch early, to avoid tiny receives.
        least = needed - rest
        if rest < LENGTH_BYTES:
            least = max(least, self._chunk_bytes // 4, self._expected_bytes - rest)
        if len(self._buffer) - self._end < least:
            buffer = _new_buffer(max(needed, self._expected_bytes, self._chunk_bytes))
            buffer[:rest] = self._buffer[self._start : self._end]
            self._buffer, self._start, self._end = buffer, 0, rest


class CommonBuffer:
    """The buffer that the connections of a server share. Empty between receives."""

    def __init__(self, max_frame_bytes: int, size_bytes: int = _COMMON_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._buffer = _new_buffer(size_bytes)

    @property
    def capacity_bytes(self) -> int:
        """Its size."""
        return len(self._buffer)

    def begin(self, rest: bytes) -> memoryview:
        """Return the space for the bytes after ``rest``."""
        self._buffer[: len(rest)] = rest
        return self._buffer[len(rest) :]

    def cut(self, size_bytes: int) -> tuple[Frames | None, memoryview]:
        """Return the complete frames in the first ``size_bytes``, and the incomplete one. Valid until the next
        :meth:`begin`. Raises WireFormatError."""
        frames, end = _cut(self._buffer, 0, size_bytes, self._max_frame_bytes)
        return frames, self._buffer[end:size_bytes]


class Receiving:
    """The received bytes of one connection of a server that were not returned as frames."""

    def __init__(self, common: CommonBuffer) -> None:
        self._common = common
        self._large_from_bytes = min(_LARGE_FROM_BYTES, common.capacity_bytes // 4)
        self._rest = b""
        self._large: memoryview | None = None
        self._filled = self._room = 0
        #: Size of the large frame of which enough has arrived. 0 if there is none.
        self.large_frame_bytes = 0

    @property
    def half_frame_bytes(self) -> int:
        """Bytes kept of an incomplete frame that is not known to be a large one."""
        return 0 if self.large_frame_bytes else len(self._rest)

    @property
    def large_frame_has_bytes(self) -> int:
        """How many bytes of the large frame have arrived."""
        return len(self._rest) if self._large is None else self._filled

    def give_room(self, size_bytes: int) -> None:
        """Allow the first ``size_bytes`` of the large frame. Call this whenever the allowed part is full."""
        if self._large is None:
            self._large = _buffer_of_small_pages(self.large_frame_bytes)
            self._filled = len(self._rest)
            self._large[: self._filled] = self._rest
            self._rest = b""
        self._room = size_bytes

    def get_buffer(self) -> memoryview:
        """Return the space for the next bytes. It is never empty."""
        if self._large is not None:
            return self._large[self._filled : min(self._room, self._filled + _LARGE_RECEIVE_BYTES)]
        return self._common.begin(self._rest)

    def received(self, size_bytes: int) -> Frames | None:
        """Return the frames that are complete now. They are valid until the next receive of any connection.

        Raises WireFormatError for a frame longer than the limit, before allocating memory for it.
        """
        if self._large is not None:
            self._filled += size_bytes
            if self._filled < len(self._large):
                return None
            data, self._large, self.large_frame_bytes = self._large, None, 0
            return Frames(data, np.array([LENGTH_BYTES]), np.array([len(data) - LENGTH_BYTES]))
        before, self._rest = len(self._rest), b""
        frames, rest = self._common.cut(before + size_bytes)
        if len(rest) >= self._large_from_bytes:
            needed = frame_bytes(rest)
            if needed > self._common.capacity_bytes:
                self.large_frame_bytes = needed
        self._rest = bytes(rest)
        return frames

    def clear(self) -> None:
        """Drop what was received, because the connection ends. Its memory is free then."""
        self._rest, self._large, self.large_frame_bytes = b"", None, 0


def _cut(buffer: memoryview, position: int, end: int, max_frame_bytes: int) -> tuple[Frames | None, int]:
    """Return the complete frames from ``position`` up to ``end``, and where the incomplete one begins."""
    starts: list[Int64s] = []
    lengths: list[Int64s] = []
    singles: list[int] = []
    single_lengths: list[int] = []
    previous = -1
    equal = 0
    while end - position >= LENGTH_BYTES:
        (length,) = _U32.unpack_from(buffer, position)
        if length + LENGTH_BYTES > max_frame_bytes:
            raise _too_large(length, max_frame_bytes)
        equal = equal + 1 if length == previous else 0
        previous = length
        if equal >= _UNIFORM_RUN:
            count = _count_equal(buffer, position, end, length)
            stride = length + LENGTH_BYTES
            if count:
                # With those that were stepped over. Mostly nothing is left before them, and nothing has to be joined.
                stepped = min(equal, len(singles))
                del singles[len(singles) - stepped :], single_lengths[len(single_lengths) - stepped :]
                if singles:
                    starts.append(np.array(singles, np.int64))
                    lengths.append(np.array(single_lengths, np.int64))
                    singles, single_lengths = [], []
                first, position = position - stepped * stride + LENGTH_BYTES, position + count * stride
                starts.append(np.arange(first, position + LENGTH_BYTES, stride))
                lengths.append(np.full(count + stepped, length, np.int64))
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
        return None, position
    if len(starts) == 1:
        return Frames(buffer, starts[0], lengths[0]), position
    return Frames(buffer, np.concatenate(starts), np.concatenate(lengths)), position


def _new_buffer(size_bytes: int) -> memoryview:
    """Return a new buffer. It is not zeroed, so unused pages take no memory."""
    return np.empty(size_bytes, np.uint8).data


def _buffer_of_small_pages(size_bytes: int) -> memoryview:
    """As :func:`_new_buffer`, for a server that receives a little at a time. From 4 MiB on numpy asks for huge pages,
    and the first byte of a huge page may take 5 ms. Below, memory that was freed is used again, which takes a third of
    the time of fresh memory."""
    if size_bytes < _HUGE_PAGES_FROM_BYTES:
        return _new_buffer(size_bytes)
    return memoryview(mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def _count_equal(buffer: memoryview, position: int, end: int, length: int) -> int:
    """Count the consecutive complete frames of ``length`` bytes from ``position`` on."""
    stride = length + LENGTH_BYTES
    most = (end - position) // stride
    if most == 0:
        return 0
    prefixes = np.ndarray((most,), "<u4", buffer, position, (stride,))
    equal = prefixes == int.from_bytes(_U32.pack(length), "little")
    return most if equal.all() else int(np.argmin(equal))


def frame_bytes(beginning: Buffer, at: int = 0) -> int:
    """Return the size of a whole frame, of which at least the length prefix is at ``at`` in ``beginning``."""
    return LENGTH_BYTES + int(_U32.unpack_from(beginning, at)[0])


def frame(body: bytes) -> bytes:
    """Return ``body`` as one frame."""
    return _U32.pack(len(body)) + body
