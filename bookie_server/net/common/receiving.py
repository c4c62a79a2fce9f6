"""Receives the bytes of many connections into one buffer.

The event loop receives for one connection at a time, and the bytes are handled before the next receive. So all
connections share one buffer. A connection itself keeps only an incomplete frame, and nothing when it is idle. A frame
that does not fit into the common buffer gets its own buffer once some of it has arrived. That buffer grows in steps
(large_frames.py), so a size that a peer announces costs nothing.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.wire.framing import LENGTH_BYTES, Frames, ReceiveBuffer, frame_bytes

_COMMON_BYTES: Final = 256 * 1024
#: This much of a large frame is received into the common buffer, and kept like any other incomplete frame.
_LARGE_FROM_BYTES: Final = 64 * 1024
#: Then this much is received at a time. The memory is fresh, which costs more than copying the bytes.
_LARGE_RECEIVE_BYTES: Final = 128 * 1024


class CommonBuffer(ReceiveBuffer):
    """The buffer that connections share. Empty between receives."""

    def __init__(self, max_frame_bytes: int, size_bytes: int = _COMMON_BYTES) -> None:
        super().__init__(max_frame_bytes, size_bytes, reuse=True)

    def begin(self, rest: bytes) -> memoryview:
        """Return the space for the bytes after ``rest``."""
        self._start = self._end = 0
        self._buffer[: len(rest)] = rest
        return self._buffer[len(rest) :]

    def take_rest(self) -> memoryview:
        """Return the bytes of the incomplete frame. Valid until the next :meth:`begin`."""
        return self._buffer[self._start : self._end]

    def _make_room(self) -> None:
        """Nothing to do: the rest is taken out, so there is always room."""


class Receiving:
    """The received bytes of one connection that were not returned as frames."""

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
            self._large = np.empty(
                self.large_frame_bytes, np.uint8
            ).data  # not zeroed, so it takes memory only as it fills
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
        frames = self._common.received(before + size_bytes)
        rest = self._common.take_rest()
        if len(rest) >= self._large_from_bytes:
            needed = frame_bytes(rest)
            if needed > self._common.capacity_bytes:
                self.large_frame_bytes = needed
        self._rest = bytes(rest)
        return frames

    def clear(self) -> None:
        self._rest, self._large, self.large_frame_bytes = b"", None, 0


def part(frames: Frames, first: int, last: int) -> Frames:
    """Return frames ``first`` … ``last`` - 1, over the same bytes."""
    return Frames(frames.data, frames.starts[first:last], frames.lengths[first:last])


def detached(frames: Frames) -> Frames:
    """Return the same frames in a new buffer."""
    first = int(frames.starts[0]) - LENGTH_BYTES
    end = int(frames.starts[-1] + frames.lengths[-1])
    data = np.frombuffer(frames.data, np.uint8)[first:end].copy()
    return Frames(data.data, frames.starts - first, frames.lengths)


def check_not_empty(frames: Frames) -> None:
    """Raises WireFormatError for a frame without a body."""
    if frames.shortest_bytes < 1:
        raise WireFormatError("empty frame")
