"""Which ranges are read together, and how their order comes about again."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import EntryUnknownError, NoSuchLedgerError
from bk_spark.protocol.ledger.reading.range_windows import (
    MAX_SPANS,
    SMALL_BYTES,
    WINDOW_BYTES,
    EntryRange,
    EntryRanges,
    ReadAhead,
    Window,
    Windows,
)

pytestmark = pytest.mark.unit


def _windows(ranges: list[EntryRange] | EntryRanges) -> list[Window]:
    windows = Windows(ranges if isinstance(ranges, EntryRanges) else EntryRanges.of(ranges))
    found = []
    while begun := windows.begin():
        for window in begun:
            found.append(window)
            assert not windows.end(window.entries, 0)
    return found


def _entries(ranges: list[EntryRange]) -> list[tuple[int, int]]:
    return [(one.ledger_id, entry) for one in ranges for entry in range(one.first, one.last + 1)]


def _in_order(window: Window) -> list[tuple[int, int]]:
    """Entries of the window, put together from its spans."""
    there = [(span.ledger_id, entry) for span in window.spans for entry in range(span.first, span.last + 1)]
    gathered = window.gathered([span.last - span.first + 1 for span in window.spans])
    assert gathered.missing_span is None
    return [there[position] for position in gathered.positions.tolist()]


def _some(rng: random.Random) -> list[EntryRange]:
    """Ranges of a few ledgers, which mostly go on where they ended; some begin later, or once more."""
    ranges: list[EntryRange] = []
    ends = [0] * rng.randint(1, 5)
    for _ in range(rng.randint(1, 60)):
        ledger_id = rng.randrange(len(ends))
        first = ends[ledger_id] + rng.choice([0, 0, 0, 0, 2, -1]) if ends[ledger_id] else 3
        count, size = rng.choice([1, 1, 2, 5]), rng.choice([1, 1, 100, SMALL_BYTES, SMALL_BYTES + 1])
        ranges.append(EntryRange(ledger_id, first, first + count - 1, size))
        ends[ledger_id] = first + count
    return ranges


@pytest.mark.parametrize("seed", range(100))
def test_windows_have_all_entries_in_order(seed: int) -> None:
    ranges = _some(random.Random(seed))
    windows = _windows(ranges)
    assert [entry for window in windows for entry in _in_order(window)] == _entries(ranges)
    for window in windows:
        assert window.entries == len(_in_order(window))
        assert window.size_bytes <= WINDOW_BYTES
        if window.is_large:
            assert [span.size_bytes > SMALL_BYTES for span in window.spans] == [True]
    large = sum(one.size_bytes > SMALL_BYTES for one in ranges)
    assert sum(window.is_large for window in windows) == large


@pytest.mark.parametrize("seed", range(100))
def test_what_lies_before_a_missing_entry_is_known(seed: int) -> None:
    rng = random.Random(seed)
    for window in _windows(_some(rng)):
        there = [rng.randint(0, span.last - span.first + 1) for span in window.spans]
        have = [
            (span.ledger_id, span.first + entry)
            for span, count in zip(window.spans, there, strict=True)
            for entry in range(count)
        ]
        whole, gathered = _in_order(window), window.gathered(there)
        found = [have[position] for position in gathered.positions.tolist()]
        assert found == whole[: len(found)]
        if gathered.missing_span is None:
            assert found == whole
        else:
            span, (ledger_id, entry) = window.spans[gathered.missing_span], whole[len(found)]
            assert (span.ledger_id, entry) == (ledger_id, span.first + there[gathered.missing_span])


@pytest.mark.parametrize("seed", range(50))
def test_what_is_left_after_some_entries(seed: int) -> None:
    rng = random.Random(seed)
    ranges = _some(rng)
    whole = _entries(ranges)
    done = rng.randint(0, len(whole) - 1)
    left = EntryRanges.of(ranges).after(done)
    assert [entry for window in _windows(left) for entry in _in_order(window)] == whole[done:]
    larger = left.scaled(1000)
    assert (larger.entries == left.entries).all()
    assert (larger.size_bytes >= 1000 * left.size_bytes).all()


def test_neighbours_of_one_ledger_are_one_span() -> None:
    ranges = [EntryRange(ledger, batch, batch, 100) for batch in range(100) for ledger in range(8)]
    (window,) = _windows(ranges)
    assert [(span.ledger_id, span.first, span.last) for span in window.spans] == [(n, 0, 99) for n in range(8)]
    assert [span.size_bytes for span in window.spans] == [10_000] * 8


def test_a_window_has_a_bounded_number_of_spans() -> None:
    windows = _windows([EntryRange(ledger, 0, 0, 1) for ledger in range(3 * MAX_SPANS + 5)])
    assert [len(window.spans) for window in windows] == [MAX_SPANS] * 3 + [5]
    assert _windows([]) == []


def test_so_many_windows_are_begun_ahead_and_no_more() -> None:
    large = Windows(EntryRanges.of([EntryRange(n, 0, 9, SMALL_BYTES + 1) for n in range(40)]))
    begun = [*large.begin()]
    assert (len(begun), large.begin()) == (16, [])
    for _ in range(24):
        assert not large.end(10, 0)
        (window,) = large.begin()
        begun.append(window)
    assert [window.spans[0].ledger_id for window in begun] == list(range(40))
    small = Windows(EntryRanges.of([EntryRange(n, 0, 0, SMALL_BYTES) for n in range(40)]))
    # Seven ranges fit into 2 MiB; begun windows exceed 4 MiB by less than one.
    assert [len(window.spans) for window in small.begin()] == [7, 7, 7]
    assert not small.end(7, 7 * SMALL_BYTES)
    assert [len(window.spans) for window in small.begin()] == [7]


@pytest.mark.parametrize("seed", range(50))
def test_windows_that_overflow_are_cut_anew_after_what_was_given(seed: int) -> None:
    """Entries have a hundred times the bytes that the list says. None is left out or given twice."""
    rng = random.Random(seed)
    ranges = _some(rng)
    windows, found = Windows(EntryRanges.of(ranges)), []
    begun = windows.begin()
    while begun:
        window = begun.pop(0)
        entries = _in_order(window)
        given = rng.randint(1, len(entries)) if not window.is_large and rng.random() < 0.5 else len(entries)
        found += entries[:given]
        if windows.end(given, 100 * window.size_bytes):
            assert given < len(entries)
            begun = []
        begun += windows.begin()
    assert found == _entries(ranges)


def test_the_next_windows_are_smaller_by_as_much_as_entries_are_larger() -> None:
    windows = Windows(EntryRanges.of([EntryRange(n, 0, 0, 10_000) for n in range(400)]))
    before = [window.entries for window in windows.begin()]
    assert windows.end(5, 10 * before[0] * 10_000)
    after = windows.begin()
    assert after[0].spans[0].ledger_id == 5
    assert {window.entries for window in after} <= {before[0] // 10, before[0] // 10 + 1}


def _payloads(*sizes: int) -> Payloads:
    return Payloads.of([bytes(size) for size in sizes])


def test_reading_ahead_stops_when_entries_are_far_larger_than_expected() -> None:
    (window,) = _windows([EntryRange(ledger, entry, entry, 1) for entry in range(9) for ledger in range(3)])
    ahead = ReadAhead(window)
    assert [ahead.wants(span) for span in range(3)] == [True] * 3
    assert ahead.add(2, _payloads(1, 2 * WINDOW_BYTES - 1))
    assert not ahead.add(1, _payloads(1))
    # The first span always is read. Otherwise the caller would never get on.
    assert [ahead.wants(span) for span in range(3)] == [True, False, False]
    assert not ahead.add(0, _payloads(7, 8))
    assert ahead.found_bytes == 2 * WINDOW_BYTES + 16
    parts, gathered = ahead.take()
    assert [part.sizes.tolist() for part in parts] == [[7, 8], [1], [1, 2 * WINDOW_BYTES - 1]]
    # Entry 0 of each ledger, and entry 1 of the first one. Entry 1 of the second is missing.
    assert gathered.positions.tolist() == [0, 2, 3, 1]
    ahead.check(gathered.missing_span)
    assert gathered.missing_span == 1


def test_an_error_counts_when_the_caller_gets_to_its_entry() -> None:
    (window,) = _windows([EntryRange(ledger, entry, entry, 1) for entry in range(2) for ledger in range(3)])
    ahead = ReadAhead(window)
    ahead.add(0, _payloads(1, 1))
    ahead.add(1, _payloads(1))
    ahead.fail(1, EntryUnknownError("entry 1"))
    ahead.fail(2, NoSuchLedgerError("ledger 2"))
    _, gathered = ahead.take()
    assert gathered.positions.tolist() == [0, 2]
    with pytest.raises(NoSuchLedgerError, match="ledger 2"):
        ahead.check(gathered.missing_span)
    ahead.check(0)
    ahead.check(None)


def test_of_a_large_range_nothing_is_read_ahead() -> None:
    (window,) = _windows([EntryRange(1, 0, 9, SMALL_BYTES + 1)])
    assert not ReadAhead(window).wants(0)


def test_a_million_ranges_are_cut_soon() -> None:
    count = 1_000_000
    numbers = np.arange(count)
    ranges = EntryRanges(numbers % 8, numbers // 8, np.ones(count, np.int64), np.full(count, 100))
    began = time.process_time()
    assert sum(window.entries for window in _windows(ranges)) == count
    assert time.process_time() - began < 3
