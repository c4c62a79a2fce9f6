"""Payloads of many entries: one buffer and the offsets of its parts.

All layers pass batches in this form, so no step needs an object per entry. Arrow's binary columns have it too. Before
a writer's machine gets what callers append, payloads that are too large are refused, single ones are gathered to be
sent together, and large calls are cut into pieces.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.errors import InvalidArgumentError

#: Entries are packaged and sent in pieces of about this size, so that sending, syncing and acknowledging overlap.
PIECE_BYTES: Final = 1024 * 1024
PIECE_ENTRIES: Final = 2_000


@dataclass(frozen=True, slots=True)
class Payloads:
    """The payloads of many entries: one buffer, and where each payload begins. A sequence of ``memoryview``.

    Payload ``i`` is ``data[offsets[i] : offsets[i + 1]]``. Arrow's binary columns have the same layout.

    Parameters
    ----------
    data
        The bytes of all payloads.
    offsets
        An int64 array with one element more than there are payloads, ascending. It need not begin at 0.
    """

    data: memoryview
    offsets: npt.NDArray[np.int64]

    @classmethod
    def of(cls, buffers: Sequence[Buffer]) -> Payloads:
        """Join separate buffers. A single buffer is not copied.

        Parameters
        ----------
        buffers
            The payloads.

        Returns
        -------
        Payloads
            The same payloads in one buffer.

        Raises
        ------
        InvalidArgumentError
            If a buffer is a memoryview of items larger than a byte.
        """
        offsets = cls.offsets_of(buffers)
        data = memoryview(buffers[0]).cast("B") if len(buffers) == 1 else memoryview(b"".join(buffers))
        cls.check_joined(data, int(offsets[-1]))
        return cls(data, offsets)

    @staticmethod
    def check_joined(data: memoryview, expected_bytes: int) -> None:
        """Check the size of joined buffers. Raises InvalidArgumentError if it differs from the sum of their lengths."""
        if len(data) != expected_bytes:
            raise InvalidArgumentError(
                f"buffers of length {expected_bytes} in all have {len(data)} bytes: a memoryview of items larger than "
                "a byte must be cast to bytes first, memoryview.cast('B')"
            )

    @staticmethod
    def offsets_of(buffers: Sequence[Buffer]) -> npt.NDArray[np.int64]:
        """Return the ``offsets`` of :meth:`of`."""
        offsets = np.zeros(len(buffers) + 1, np.int64)
        np.cumsum([len(buffer) for buffer in buffers], out=offsets[1:])
        return offsets

    @classmethod
    def joined(cls, parts: Sequence[Payloads]) -> Payloads:
        """Join ``parts`` in one buffer. A single part is not copied."""
        if len(parts) == 1:
            return parts[0]
        starts = np.cumsum([0, *(part.size_bytes for part in parts)])
        offsets = [part.offsets[1:] - part.offsets[0] + start for part, start in zip(parts, starts, strict=False)]
        data = b"".join(part.data[int(part.offsets[0]) : int(part.offsets[-1])] for part in parts)
        return cls(memoryview(data), np.concatenate([np.zeros(1, np.int64), *offsets]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> memoryview:
        return self.data[int(self.offsets[index]) : int(self.offsets[index + 1])]

    def __iter__(self) -> Iterator[memoryview]:
        bounds = self.offsets.tolist()
        for start, end in itertools.pairwise(bounds):
            yield self.data[start:end]

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """The size of each payload in bytes, as an int64 array."""
        return np.diff(self.offsets)

    @property
    def size_bytes(self) -> int:
        """The size of all payloads together in bytes."""
        return int(self.offsets[-1] - self.offsets[0])

    def part(self, first: int, last: int) -> Payloads:
        """Take consecutive payloads without copying them.

        Parameters
        ----------
        first
            The index of the first payload.
        last
            The index after the last one.

        Returns
        -------
        Payloads
            These payloads, in the same buffer.
        """
        return Payloads(self.data, self.offsets[first : last + 1])

    def copy(self) -> Payloads:
        """Copy the payloads into a buffer of their own.

        Returns
        -------
        Payloads
            The same payloads.
        """
        start = int(self.offsets[0])
        return Payloads(memoryview(bytes(self.data[start : int(self.offsets[-1])])), self.offsets - start)


class PayloadLimit:
    """Refuses payloads of one ledger that a bookie's frame limit has no room for. Raises InvalidArgumentError."""

    def __init__(self, ledger_id: int, max_payload_bytes: int) -> None:
        self._ledger_id = ledger_id
        self._max_payload_bytes = max_payload_bytes

    def check(self, size_bytes: int) -> None:
        """Check one entry."""
        if size_bytes > self._max_payload_bytes:
            self.check_all(np.array([0, size_bytes]))

    def check_all(self, offsets: Int64s) -> None:
        """Check the entries between ``offsets``."""
        sizes, limit = np.diff(offsets), self._max_payload_bytes
        if len(sizes) and int(sizes.max()) > limit:
            index = int(np.argmax(sizes > limit))
            raise InvalidArgumentError(
                f"entry of {int(sizes[index])} bytes (number {index} of this batch) is larger than a bookie's frame "
                f"limit allows: at most {limit} bytes of payload; split it, or raise nettyMaxFrameSizeBytes on bookies "
                "and client",
                ledger_id=self._ledger_id,
            )


class EntryGatherer:
    """Entries of single calls, in order, not yet sent. Not thread-safe.

    Parameters
    ----------
    max_bytes, max_entries
        The gatherer is full at either limit.
    """

    def __init__(self, max_bytes: int = PIECE_BYTES, max_entries: int = PIECE_ENTRIES) -> None:
        self.size_bytes = 0
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._entries: list[bytes] = []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def is_full(self) -> bool:
        """Whether the entries should be sent before more are added."""
        return self.size_bytes >= self._max_bytes or len(self._entries) >= self._max_entries

    def has_room(self, size_bytes: int) -> bool:
        """Whether an entry of this size fits within the limits."""
        return self.size_bytes + size_bytes <= self._max_bytes and len(self._entries) < self._max_entries

    def add(self, entry: bytes, size_bytes: int) -> None:
        """Add an entry. ``size_bytes`` counts against the limit, and may include the frame."""
        self._entries.append(entry)
        self.size_bytes += size_bytes

    def take(self) -> list[bytes]:
        """Remove and return all entries."""
        entries, self._entries, self.size_bytes = self._entries, [], 0
        return entries


def pieces(offsets: Int64s, max_entries: int = PIECE_ENTRIES) -> Iterator[tuple[int, int]]:
    """Yield half-open ranges of entries to send together. ``offsets`` are those of :class:`Payloads`."""
    first, count = 0, len(offsets) - 1
    while first < count:
        last = int(np.searchsorted(offsets, offsets[first] + PIECE_BYTES, side="right")) - 1
        end = min(max(last, first + 1), first + max_entries, count)
        yield first, end
        first = end
