"""The entries of a ledger that one bookie holds: the answer to GET_LIST_OF_ENTRIES_OF_LEDGER.

Source: compatibility.md §1.8 (AvailabilityOfEntriesOfLedger.java). All integers are big-endian:

====== ==== ======================================================================================
offset size field
====== ==== ======================================================================================
0      4    version, 0
4      4    number of groups
8      56   zeros
64     24   per group: ``first start i64``, ``last start i64``, ``sequence size i32``, ``period i32``
====== ==== ======================================================================================

A group is a series of equal runs: ``sequence size`` consecutive ids from each of ``first start``, + period, …,
``last start``. A single run has period 0. A group may stand for billions of ids, so it is never expanded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.errors import WireFormatError

_HEADER: Final = struct.Struct(">ii56x")
_HEADER_BYTES: Final = _HEADER.size
_VERSION: Final = 0
_GROUP_DTYPE: Final = np.dtype([("first", ">i8"), ("last", ">i8"), ("size", ">i4"), ("period", ">i4")])
_GROUP_BYTES: Final = _GROUP_DTYPE.itemsize
_COMPARED_AT_ONCE: Final = 1 << 16
_MAX_INT32: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class EntryAvailability:
    """Ids in ascending groups that do not interleave. Element ``i`` of each array belongs to group ``i``."""

    first_starts: Int64s
    last_starts: Int64s
    sizes: Int64s
    periods: Int64s

    @property
    def count(self) -> int:
        """Return the number of entries. It may exceed the range of ``len``."""
        runs = (self.last_starts - self.first_starts) // np.maximum(self.periods, 1) + 1
        return sum(count * size for count, size in zip(runs.tolist(), self.sizes.tolist(), strict=True))

    def __contains__(self, entry_id: int) -> bool:
        group = int(np.searchsorted(self.first_starts, entry_id, side="right")) - 1
        if group < 0:
            return False
        first, last, size, period = self._group(group)
        offset = entry_id - first
        if period and offset <= last - first:
            offset %= period
        elif period:
            offset = entry_id - last
        return offset < size

    def ranges(self) -> Iterator[range]:
        """Yield runs of consecutive ids in order. There may be many."""
        for group in range(len(self.first_starts)):
            first, last, size, period = self._group(group)
            for start in range(first, last + 1, period or 1):
                yield range(start, start + size)

    def lacking(self, entry_ids: range) -> Iterator[int]:
        """Yield those of ``entry_ids`` (ascending) that are not here. Compares many at a time."""
        for start in range(0, len(entry_ids), _COMPARED_AT_ONCE):
            part = entry_ids[start : start + _COMPARED_AT_ONCE]
            ids = np.arange(part.start, part.stop, part.step)
            if not len(self.first_starts):
                yield from ids.tolist()
                continue
            found = np.searchsorted(self.first_starts, ids, side="right") - 1
            group = np.maximum(found, 0)
            offset, span, period = ids - self.first_starts[group], self.last_starts[group], self.periods[group]
            span = span - self.first_starts[group]
            within = np.where(offset <= span, offset % np.maximum(period, 1), offset - span)
            here = (found >= 0) & (np.where(period > 0, within, offset) < self.sizes[group])
            yield from ids[~here].tolist()

    def _group(self, group: int) -> tuple[int, int, int, int]:
        return (
            int(self.first_starts[group]),
            int(self.last_starts[group]),
            int(self.sizes[group]),
            int(self.periods[group]),
        )


def decode_availability(data: Buffer) -> EntryAvailability:
    """Parse a list of entries. Raises WireFormatError for an unknown version, and for invalid or unordered groups."""
    if len(data) < _HEADER_BYTES:
        raise WireFormatError(f"list of entries of {len(data)} bytes is shorter than its header")
    version, count = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise WireFormatError(f"list of entries has version {version}, this release knows {_VERSION}")
    if count < 0 or len(data) != _HEADER_BYTES + count * _GROUP_BYTES:
        raise WireFormatError(f"list of entries of {len(data)} bytes cannot hold {count} groups")
    groups = np.frombuffer(data, _GROUP_DTYPE, count, _HEADER_BYTES)
    return checked_groups(*(groups[name].astype(np.int64) for name in ("first", "last", "size", "period")))


def checked_groups(first: Int64s, last: Int64s, size: Int64s, period: Int64s) -> EntryAvailability:
    """Return the list that these groups stand for. Raises WireFormatError for invalid or unordered groups."""
    right = (first >= 0) & (size > 0) & (last <= np.iinfo(np.int64).max - size)
    right &= np.where(period > 0, (last > first) & (period > size), (period == 0) & (last == first))
    # If a sum or difference overflowed, its group was already found wrong.
    right &= (last - first) % np.maximum(period, 1) == 0
    if not right.all() or not (first[1:] >= (last + size)[:-1]).all():
        raise WireFormatError("list of entries has groups that are wrong or out of order")
    return EntryAvailability(first, last, size, period)


def encode_availability(entry_ids: Int64s) -> bytes:
    """Encode the list of ``entry_ids``, which ascend strictly and are not negative.

    Runs of equal size at equal distances, as striping makes them, become one group.
    """
    groups = _groups(entry_ids)
    return _HEADER.pack(_VERSION, len(groups)) + groups.tobytes()


def _groups(entry_ids: Int64s) -> npt.NDArray[np.void]:
    """Group the runs. A group takes the next runs while they have the size and distance of its first two."""
    if not len(entry_ids):
        return np.empty(0, _GROUP_DTYPE)
    cuts = np.flatnonzero(np.diff(entry_ids) != 1) + 1
    starts = entry_ids[np.concatenate(([0], cuts))]
    sizes = np.diff(np.concatenate(([0], cuts, [len(entry_ids)])))
    # Step i leads from run i to run i + 1. If they cannot be in one group, its distance counts as 0.
    distances = np.diff(starts)
    distances[(sizes[1:] != sizes[:-1]) | (distances > _MAX_INT32)] = 0
    firsts = np.concatenate(([0], np.flatnonzero(_breaks(distances)) + 1))
    lasts = np.append(firsts[1:] - 1, len(starts) - 1)
    groups = np.zeros(len(firsts), _GROUP_DTYPE)
    groups["first"], groups["last"], groups["size"] = starts[firsts], starts[lasts], sizes[firsts]
    several = lasts > firsts
    groups["period"][several] = distances[firsts[several]]
    return groups


def _breaks(distances: Int64s) -> npt.NDArray[np.bool_]:
    """Return the steps after which a new group begins: those of distance 0, and those that differ from the group's.

    Steps of equal distance are a stretch. A group breaks at the first step of the stretch after its own. The next group
    takes the rest of that stretch, and its distance. If there is no rest, it takes the distance of the stretch after
    that. So the start of a stretch depends on the last stretch with more than one step, and on the number of stretches
    since.
    """
    breaks: npt.NDArray[np.bool_] = distances == 0
    if not len(distances):
        return breaks
    heads = np.concatenate(([0], np.flatnonzero(np.diff(distances)) + 1))
    nothing = breaks[heads]
    single = (np.diff(np.append(heads, len(distances))) == 1) & ~nothing
    numbers = np.arange(len(heads))
    last = np.maximum.accumulate(np.where(single, -1, numbers))
    has_distance_there = np.where(last < 0, False, ~nothing[last])
    has_distance_behind = has_distance_there ^ ((numbers - last) % 2 == 1)
    has_distance_before = np.concatenate(([False], has_distance_behind[:-1]))
    breaks[heads[has_distance_before]] = True
    return breaks
