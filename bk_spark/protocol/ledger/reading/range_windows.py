"""Decides which ranges of ledgers are read together, and how far ahead of the caller.

Micro-batches leave tiny ranges, and the ranges of different ledgers alternate. So small ranges are grouped into
*windows* of limited size. Within a window, adjacent ranges of one ledger form one *span*, which is read as a whole. The
order of the ranges is then restored from the entries of the spans. A large range is a window of its own.

There may be a million ranges. They are kept in columns, and no Python code runs for each range.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import BookKeeperError

#: The approximate bytes of a window, and its maximum number of spans.
WINDOW_BYTES: Final = 2 * 1024 * 1024
MAX_SPANS: Final = 512
#: A range with more bytes is a window of its own.
SMALL_BYTES: Final = 256 * 1024
#: A window with more bytes than this shows that the known sizes are wrong.
_MOST_BYTES: Final = 2 * WINDOW_BYTES
#: Spans read at the same time.
SPANS_AT_ONCE: Final = 16
#: The number of windows begun ahead, and the bytes of those that are read ahead.
_AHEAD: Final = 16
_AHEAD_BYTES: Final = 4 * 1024 * 1024
#: The memory, roughly, that an entry and a range take besides payloads.
_ENTRY_BYTES: Final = 64
_RANGE_BYTES: Final = 128


@dataclass(frozen=True, slots=True)
class EntryRange:
    """Entries ``first`` to ``last`` (inclusive) of a ledger, about ``size_bytes`` in all. They are known to exist."""

    ledger_id: int
    first: int
    last: int
    size_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class EntryRanges:
    """Ranges in columns of int64 of equal length. Each range has at least one entry."""

    ledger_id: Int64s
    first: Int64s
    entries: Int64s
    size_bytes: Int64s

    @classmethod
    def of(cls, ranges: Iterable[EntryRange]) -> EntryRanges:
        """Return the ranges as columns. Their order stays."""
        values = [(one.ledger_id, one.first, one.last - one.first + 1, one.size_bytes) for one in ranges]
        return cls(*np.array(values, dtype=np.int64).reshape(-1, 4).T)

    def __len__(self) -> int:
        return len(self.entries)

    def part(self, start: int, end: int) -> EntryRanges:
        """Return the ranges from ``start`` up to but not including ``end``."""
        return EntryRanges(
            self.ledger_id[start:end], self.first[start:end], self.entries[start:end], self.size_bytes[start:end]
        )

    def after(self, entries: int) -> EntryRanges:
        """Return the ranges without their first ``entries`` entries, counted over all ranges."""
        ends = np.cumsum(self.entries)
        at = int(np.searchsorted(ends, entries, side="right"))
        rest = self.part(at, len(self))
        done = entries - (int(ends[at - 1]) if at else 0)
        if not done:
            return rest
        first, count, size_bytes = rest.first.copy(), rest.entries.copy(), rest.size_bytes.copy()
        size_bytes[0] -= size_bytes[0] // count[0] * done
        first[0] += done
        count[0] -= done
        return EntryRanges(rest.ledger_id, first, count, size_bytes)

    def scaled(self, factor: int) -> EntryRanges:
        """Return the same ranges with ``factor`` times the expected bytes."""
        most = np.iinfo(np.int64).max // factor
        return EntryRanges(
            self.ledger_id, self.first, self.entries, factor * np.clip(self.size_bytes, 1, most).astype(np.int64)
        )


@dataclass(frozen=True, slots=True)
class Span:
    """Entries ``first`` to ``last`` (inclusive) of a ledger."""

    ledger_id: int
    first: int
    last: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Gathered:
    """How far the order of a window can be restored from the entries found.

    Parameters
    ----------
    positions
        For each entry in order, its position among the entries found, span after span. int64.
    missing_span
        The span that lacks the next entry. None if the window is complete.
    """

    positions: Int64s
    missing_span: int | None


class Window:
    """Neighbouring ranges and their spans. Spans are in the order of their first ranges."""

    def __init__(self, ranges: EntryRanges, *, is_large: bool = False) -> None:
        self.is_large = is_large
        #: The approximate memory of its read-ahead.
        self.size_bytes = 0 if is_large else int(_costs(ranges).sum())
        self.entries = int(ranges.entries.sum())
        by_ledger = np.argsort(ranges.ledger_id, kind="stable")
        ledger_id, first, entries = (c[by_ledger] for c in (ranges.ledger_id, ranges.first, ranges.entries))
        begins = np.ones(len(ranges), np.bool_)
        begins[1:] = (ledger_id[1:] != ledger_id[:-1]) | (first[1:] != first[:-1] + entries[:-1])
        heads = np.flatnonzero(begins)
        # The sort is stable, so the first range of a span here is also its first range in order.
        order = np.argsort(by_ledger[heads], kind="stable")
        number = np.empty(len(heads), np.int64)
        number[order] = np.arange(len(heads))
        in_span = np.cumsum(begins) - 1
        self._entries = ranges.entries
        self._span = np.empty(len(ranges), np.int64)
        self._span[by_ledger] = number[in_span]
        #: For each range, the entries of its span that precede it.
        self._within = np.empty(len(ranges), np.int64)
        self._within[by_ledger] = first - first[heads][in_span]
        counts, sizes = (np.add.reduceat(c, heads) for c in (entries, ranges.size_bytes[by_ledger]))
        self.spans = [
            Span(*values)
            for values in zip(
                ledger_id[heads][order].tolist(),
                first[heads][order].tolist(),
                (first[heads] + counts - 1)[order].tolist(),
                sizes[order].tolist(),
                strict=True,
            )
        ]

    def ranges_with(self, spans: int) -> int:
        """Return how many of the first ranges belong only to the first ``spans`` spans."""
        beyond = self._span >= spans
        return int(np.argmax(beyond)) if beyond.any() else len(beyond)

    def gathered(self, found_entries: Sequence[int]) -> Gathered:
        """Return the order of the entries found. ``found_entries`` has the number of leading entries found of each
        span."""
        found = np.array(found_entries, np.int64)
        starts = np.cumsum(found) - found
        there = np.clip(found[self._span] - self._within, 0, self._entries)
        short = there < self._entries
        ranges, missing = len(there), None
        if short.any():
            at = int(np.argmax(short))
            ranges, missing = at + 1, int(self._span[at])
        counts = there[:ranges]
        ends = np.cumsum(counts)
        shifts = starts[self._span[:ranges]] + self._within[:ranges] - (ends - counts)
        return Gathered(np.repeat(shifts, counts) + np.arange(int(ends[-1])), missing)


class ReadAhead:
    """The entries of a window that were read ahead, and what follows from them. For a large window, only the ledger is
    opened ahead."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._found: list[list[Payloads]] = [[] for _ in window.spans]
        self._errors: dict[int, BookKeeperError] = {}
        self.found_bytes = 0

    def wants(self, span: int) -> bool:
        """Return whether to read a span. The first one always is, so that the caller makes progress. The others are
        not once entries are far larger than expected."""
        return not self._window.is_large and (span == 0 or self.found_bytes <= _MOST_BYTES)

    def add(self, span: int, payloads: Payloads) -> bool:
        """Record the next entries of a span. Return whether to read more of it."""
        self._found[span].append(payloads)
        self.found_bytes += payloads.size_bytes
        return self.found_bytes <= _MOST_BYTES

    def fail(self, span: int, error: BookKeeperError) -> None:
        """Record that the rest of a span, or the ledger, cannot be read."""
        self._errors[span] = error

    def check(self, span: int | None) -> None:
        """Raise the error of a span, if it has one. Do nothing for None."""
        if span in self._errors:
            raise self._errors[span]

    def take(self) -> tuple[list[Payloads], Gathered]:
        """Take what was found, span after span. Return it with its order."""
        found, self._found = self._found, []
        counts = [sum(map(len, parts)) for parts in found]
        return [part for parts in found for part in parts], self._window.gathered(counts)


class Windows:
    """Cuts ranges into windows. The caller begins them in order, and ends each when it received its entries."""

    def __init__(self, ranges: EntryRanges) -> None:
        self._cut(ranges)

    def _cut(self, ranges: EntryRanges) -> None:
        #: The number of entries of ``ranges`` that the caller received.
        self._given_entries = 0
        self._begun: deque[Window] = deque()
        self._begun_bytes = 0
        self._ranges = ranges
        self._at = 0
        self._costs = np.concatenate((np.zeros(1, np.int64), np.cumsum(_costs(ranges))))
        self._large = np.flatnonzero(ranges.size_bytes > SMALL_BYTES)

    def begin(self) -> list[Window]:
        """Return the windows to begin now. Empty if enough are begun, or all."""
        begun = []
        while len(self._begun) < _AHEAD and self._begun_bytes < _AHEAD_BYTES:
            window = self._next()
            if window is None:
                break
            begun.append(window)
            self._begun.append(window)
            self._begun_bytes += window.size_bytes
        return begun

    def end(self, given_entries: int, found_bytes: int) -> bool:
        """End the first window that is begun. The caller received ``given_entries`` of its entries.

        Return False if that is all of them. Otherwise entries are larger than expected: those that were read ahead have
        ``found_bytes``. Then all windows that are begun must be dropped. The next ones are smaller and begin after the
        last entry received.
        """
        window = self._begun.popleft()
        self._begun_bytes -= window.size_bytes
        self._given_entries += given_entries
        if given_entries == window.entries:
            return False
        times_larger = max(2, -(-found_bytes // max(1, window.size_bytes)))
        self._cut(self._ranges.after(self._given_entries).scaled(times_larger))
        return True

    def _next(self) -> Window | None:
        start, large = self._at, self._large
        if start == len(self._ranges):
            return None
        at = int(np.searchsorted(large, start))
        next_large = int(large[at]) if at < len(large) else len(self._ranges)
        if next_large == start:
            self._at += 1
            return Window(self._ranges.part(start, start + 1), is_large=True)
        most = int(np.searchsorted(self._costs, self._costs[start] + WINDOW_BYTES, side="right")) - 1
        end = min(max(most, start + 1), next_large)
        window = Window(self._ranges.part(start, end))
        if len(window.spans) > MAX_SPANS:
            end = start + window.ranges_with(MAX_SPANS)
            window = Window(self._ranges.part(start, end))
        self._at = end
        return window


def _costs(ranges: EntryRanges) -> Int64s:
    costs: Int64s = np.minimum(ranges.size_bytes, SMALL_BYTES) + _RANGE_BYTES + _ENTRY_BYTES * ranges.entries
    return costs
