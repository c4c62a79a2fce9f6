"""Receiving over many connections into one buffer.

The event loop receives for one connection at a time, and what came is handled before the next receive. So all
connections share one buffer; a connection of its own keeps only the beginning of a frame that is not whole yet.
An idle connection keeps nothing. A frame that does not fit into the common buffer gets one of its own once some of it
is here, in steps (large_frames.py): what a peer announces and does not send costs nothing.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.wire.framing import LENGTH_BYTES, Frames, ReceiveBuffer

_COMMON_BYTES: Final = 256 * 1024
#: So much of a large frame is received into the common buffer, and kept as any other beginning.
_LARGE_FROM_BYTES: Final = 64 * 1024
#: So much of it is received at a time: the memory is fresh, and costs more than what is copied into it.
_LARGE_RECEIVE_BYTES: Final = 128 * 1024


class CommonBuffer(ReceiveBuffer):
    """The buffer that connections share. Empty between receives."""

    def __init__(self, max_frame_bytes: int, size_bytes: int = _COMMON_BYTES) -> None:
        super().__init__(max_frame_bytes, size_bytes, reuse=True)

    def begin(self, rest: bytes) -> memoryview:
        """Where to receive what follows ``rest``."""
        self._start = self._end = 0
        self._buffer[: len(rest)] = rest
        return self._buffer[len(rest) :]

    def take_rest(self) -> memoryview:
        """What was received and is no whole frame; valid until the next :meth:`begin`."""
        return self._buffer[self._start : self._end]

    def _make_room(self) -> None:
        """The rest is taken out, so there is always room."""


class Receiving:
    """What one connection has received and not handed out."""

    def __init__(self, common: CommonBuffer) -> None:
        self._common = common
        self._large_from_bytes = min(_LARGE_FROM_BYTES, common.capacity_bytes // 4)
        self._rest = b""
        self._large: memoryview | None = None
        self._filled = self._room = 0
        #: Size of a large frame of which enough is here; 0 where there is none.
        self.large_frame_bytes = 0

    @property
    def half_frame_bytes(self) -> int:
        """Bytes kept of a frame that is not whole and not known as a large one."""
        return 0 if self.large_frame_bytes else len(self._rest)

    @property
    def large_frame_has_bytes(self) -> int:
        """How much of the large frame is here."""
        return len(self._rest) if self._large is None else self._filled

    def give_room(self, size_bytes: int) -> None:
        """Receive the first ``size_bytes`` of the large frame. Needed whenever all that was given is filled."""
        if self._large is None:
            self._large = np.empty(self.large_frame_bytes, np.uint8).data  # not zeroed: takes memory as it fills
            self._filled = len(self._rest)
            self._large[: self._filled] = self._rest
            self._rest = b""
        self._room = size_bytes

    def get_buffer(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._large is not None:
            return self._large[self._filled : min(self._room, self._filled + _LARGE_RECEIVE_BYTES)]
        return self._common.begin(self._rest)

    def received(self, size_bytes: int) -> Frames | None:
        """The frames that are whole now; valid until the next receive of any connection.

        Raises WireFormatError for a frame longer than the limit, before anything is allocated for it.
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
            needed = LENGTH_BYTES + int.from_bytes(rest[:LENGTH_BYTES], "big")
            if needed > self._common.capacity_bytes:
                self.large_frame_bytes = needed
        self._rest = bytes(rest)
        return frames

    def clear(self) -> None:
        self._rest, self._large, self.large_frame_bytes = b"", None, 0


def part(frames: Frames, first: int, last: int) -> Frames:
    """Frames ``first`` up to ``last``, over the same bytes."""
    return Frames(frames.data, frames.starts[first:last], frames.lengths[first:last])


def detached(frames: Frames) -> Frames:
    """The same frames in a buffer of their own."""
    first = int(frames.starts[0]) - LENGTH_BYTES
    end = int(frames.starts[-1] + frames.lengths[-1])
    data = np.frombuffer(frames.data, np.uint8)[first:end].copy()
    return Frames(data.data, frames.starts - first, frames.lengths)


def check_not_empty(frames: Frames) -> None:
    """Raises WireFormatError for a frame without a body."""
    if int(frames.lengths.min()) < 1:
        raise WireFormatError("empty frame")
