"""Gathering single entries, and cutting large calls into pieces."""

from __future__ import annotations

import numpy as np

from bk_spark.protocol.entries.payloads import PIECE_BYTES, PIECE_ENTRIES, EntryGatherer, pieces


def test_what_was_gathered_is_taken_once_and_in_order() -> None:
    gatherer = EntryGatherer()
    for entry in (b"a", b"bb"):
        gatherer.add(entry, len(entry) + 10)
    assert (len(gatherer), gatherer.size_bytes) == (2, 23)
    assert gatherer.take() == [b"a", b"bb"]
    assert (len(gatherer), gatherer.size_bytes, gatherer.take()) == (0, 0, [])


def test_it_is_full_by_bytes_or_by_entries() -> None:
    by_bytes, by_entries = EntryGatherer(max_bytes=10), EntryGatherer(max_entries=2)
    by_bytes.add(b"", 9)
    by_entries.add(b"", 9)
    before = (by_bytes.is_full, by_entries.is_full)
    by_bytes.add(b"", 1)
    by_entries.add(b"", 1)
    assert (before, by_bytes.is_full, by_entries.is_full) == ((False, False), True, True)


def offsets(*sizes: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([0, *np.cumsum(sizes)], np.int64)


def test_pieces_are_bounded_and_leave_nothing_out() -> None:
    assert list(pieces(offsets())) == []
    assert list(pieces(offsets(1))) == [(0, 1)]
    # One that is larger than a piece is a piece of its own.
    assert list(pieces(offsets(10, 2 * PIECE_BYTES, 10))) == [(0, 1), (1, 2), (2, 3)]
    assert list(pieces(offsets(PIECE_BYTES // 2, PIECE_BYTES // 2, 1))) == [(0, 2), (2, 3)]
    assert list(pieces(offsets(*[1] * (PIECE_ENTRIES + 1)))) == [(0, PIECE_ENTRIES), (PIECE_ENTRIES, PIECE_ENTRIES + 1)]
    assert list(pieces(np.arange(9_001) * 50, 4_000)) == [(0, 4000), (4000, 8000), (8000, 9000)]
