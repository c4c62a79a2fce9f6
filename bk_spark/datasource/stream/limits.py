"""Decides how many waiting entries a micro-batch takes. Pure.

Limits count entries and bytes of payload. Logs share them in proportion to their waiting entries. In each batch one
log, in turn, first gets a single entry. This guarantees progress, and a small log does not starve beside a larger one.
Only that entry may exceed the byte limit, if it alone is larger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bk_spark.protocol.arrays import Int64s


def _none() -> Int64s:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Backlog:
    """Unread entries ``[start, end)`` of one log.

    ``segment_entries`` and ``segment_bytes`` describe the first of them by segment. The caller chooses how many
    segments, but with a byte limit they must cover that many bytes. Entries of a segment count as equally large.
    """

    start: int
    end: int
    segment_entries: Int64s = field(default_factory=_none)
    segment_bytes: Int64s = field(default_factory=_none)

    @property
    def entries(self) -> int:
        """The number of unread entries."""
        return self.end - self.start

    def size_bytes(self) -> int:
        """Estimate the bytes of all entries from the known segments."""
        known = int(self.segment_entries.sum())
        return int(self.segment_bytes.sum()) * self.entries // known if known else 0

    def bytes_of(self, entries: int) -> int:
        """Return the bytes of the first ``entries``, rounded up."""
        whole, in_next = self._segment_at(entries)
        size = int(self.segment_bytes[:whole].sum())
        if in_next and whole < len(self.segment_entries):
            size += -(-int(self.segment_bytes[whole]) * in_next // int(self.segment_entries[whole]))
        return size

    def entries_within(self, size_bytes: int) -> int:
        """Return the largest number of entries that fit in ``size_bytes``."""
        sums = np.cumsum(self.segment_bytes)
        whole = int(np.searchsorted(sums, size_bytes, side="right"))
        entries = int(self.segment_entries[:whole].sum())
        if whole < len(sums):
            left = size_bytes - int(sums[whole - 1] if whole else 0)
            entries += left * int(self.segment_entries[whole]) // int(self.segment_bytes[whole])
        return min(entries, self.entries)

    def _segment_at(self, entries: int) -> tuple[int, int]:
        """Return how many whole segments ``entries`` cover, and how many entries of the next segment."""
        sums = np.cumsum(self.segment_entries)
        whole = int(np.searchsorted(sums, entries, side="right"))
        return whole, entries - int(sums[whole - 1] if whole else 0)


def ends_within(
    backlogs: Mapping[str, Backlog], *, max_entries: int | None, max_bytes: int | None, turn: int
) -> dict[str, int]:
    """Return where the batch ends in each log. ``turn`` counts batches and selects the log whose turn it is."""
    names = sorted(name for name, backlog in backlogs.items() if backlog.entries)
    taken = [backlogs[name].entries for name in names]
    if names:
        waiting = [backlogs[name] for name in names]
        first = turn % len(names)
        if max_entries is not None:
            taken = _share(taken, max_entries, first)
        if max_bytes is not None:
            taken = [min(pair) for pair in zip(taken, _share_bytes(waiting, max_bytes, first), strict=True)]
    ends = {name: backlog.start for name, backlog in backlogs.items()}
    ends.update((name, backlogs[name].start + count) for name, count in zip(names, taken, strict=True))
    return ends


def _share(entries: Sequence[int], limit: int, first: int) -> list[int]:
    """Return how many of ``entries`` each log gets. ``limit`` is 1 or more. ``first`` is the log whose turn it is."""
    if sum(entries) <= limit:
        return list(entries)
    rest = [count - (index == first) for index, count in enumerate(entries)]
    to_share = limit - 1
    all_rest = sum(rest)
    shares = [to_share * count // all_rest for count in rest]
    left = to_share - sum(shares)
    shares[first] += 1
    # Rounding leaves less than one entry per log: give them to logs with nothing first, then to the others.
    order = _from(first, len(entries))
    for index in sorted(order, key=lambda index: shares[index] > 0):
        if left and shares[index] < entries[index]:
            shares[index] += 1
            left -= 1
    return shares


def _share_bytes(waiting: Sequence[Backlog], limit: int, first: int) -> list[int]:
    """Return how many entries each log gets, by their bytes."""
    sizes = [backlog.size_bytes() for backlog in waiting]
    if sum(sizes) <= limit:
        return [backlog.entries for backlog in waiting]
    of_first = waiting[first].bytes_of(1)
    to_share = max(0, limit - of_first)
    all_rest = max(1, sum(sizes) - of_first)
    taken = []
    for index, (backlog, size) in enumerate(zip(waiting, sizes, strict=True)):
        if index == first:
            share = to_share * max(0, size - of_first) // all_rest
            taken.append(max(1, backlog.entries_within(of_first + share)))
        else:
            taken.append(backlog.entries_within(to_share * size // all_rest))
    left = limit - sum(backlog.bytes_of(count) for backlog, count in zip(waiting, taken, strict=True))
    for index in _from(first, len(waiting)):
        size = waiting[index].bytes_of(1)
        if not taken[index] and size <= left:
            taken[index] = 1
            left -= size
    return taken


def _from(first: int, count: int) -> list[int]:
    """Return all indexes in cyclic order, starting after ``first`` and ending with it."""
    return [(first + step) % count for step in range(1, count + 1)]


class MinEntriesGate:
    """Delays a batch until ``min_entries`` wait or ``max_delay_ms`` passed since the previous batch. Never delays the
    first batch."""

    def __init__(self, min_entries: int, max_delay_ms: int) -> None:
        self._min_entries = min_entries
        self._max_delay_ms = max_delay_ms
        self._opened_ms: float | None = None

    def opens(self, waiting_entries: int, now_ms: float) -> bool:
        """Whether a batch may start now. If so, it becomes the previous batch. ``now_ms`` is of a monotonic clock."""
        if not waiting_entries:
            return False
        due = self._opened_ms is None or now_ms - self._opened_ms >= self._max_delay_ms
        if waiting_entries < self._min_entries and not due:
            return False
        self._opened_ms = now_ms
        return True
