"""Cutting reads into tasks: every entry once, in order, in parts of like size."""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from bk_spark.log.entries.pieces import PIECE_BYTES, Piece, Pieces, cut_splits
from bk_spark.log.formats.segment import Segment, SegmentTable
from bk_spark.protocol.entries.entry import ENTRY_HEADER_BYTES
from bk_spark.protocol.errors import InvalidArgumentError

MIB = 1 << 20


def _weight(split: Iterable[Piece]) -> int:
    return sum(piece.size_bytes + piece.entries * ENTRY_HEADER_BYTES + PIECE_BYTES for piece in split)


def _entries(pieces: Iterable[Piece]) -> Iterator[tuple[str | None, int, int, int | None, int | None]]:
    """(log, ledger, entry, offset, timestamp) of each entry, in order."""
    for piece in pieces:
        for number in range(piece.entries):
            offset = None if piece.base_offset is None else piece.base_offset + number
            yield piece.log, piece.ledger_id, piece.first + number, offset, piece.timestamp_ms


def _cut(
    pieces: Iterable[Piece], split_bytes: int, min_splits: int = 1, max_split_rows: int | None = None
) -> list[tuple[Piece, ...]]:
    return [tuple(split) for split in cut_splits(Pieces.of(pieces), split_bytes, min_splits, max_split_rows)]


def _piece(ledger_id: int, first: int, last: int, size_bytes: int, base: int | None = None) -> Piece:
    return Piece(ledger_id, first, last, size_bytes, last - first + 1, None if base is None else "events", base, 7)


def _some_logs(rng: random.Random) -> list[Piece]:
    pieces = []
    for log in [None, "a", "b"][rng.randint(0, 2) :]:
        offset = rng.randrange(1000)
        for ledger_id in range(rng.randint(1, 6)):
            count = rng.choice([1, 1, 2, 7, 100, 1000])
            first = rng.choice([0, 0, 17])
            size = max(1, count * rng.choice([0, 1, 100, 1024, MIB]))
            rows = count * rng.choice([1, 1, 10])
            base = None if log is None else offset
            pieces.append(Piece(ledger_id, first, first + count - 1, size, rows, log, base, ledger_id))
            offset += count
    return pieces


@pytest.mark.parametrize("seed", range(60))
def test_union_of_the_splits_is_the_input(seed: int) -> None:
    rng = random.Random(seed)
    pieces = _some_logs(rng)
    count = sum(piece.entries for piece in pieces)
    split_bytes, min_splits = rng.choice([1024, 64 << 10, MIB, 32 * MIB]), rng.choice([1, 1, 2, 5, 1000])
    splits = _cut(pieces, split_bytes, min_splits)

    assert list(_entries(piece for split in splits for piece in split)) == list(_entries(pieces))
    for sums in (lambda piece: piece.size_bytes, lambda piece: piece.rows):
        assert sum(sums(piece) for split in splits for piece in split) == sum(sums(piece) for piece in pieces)
    assert all(split and all(piece.entries > 0 for piece in split) for split in splits)
    assert len(splits) >= min(min_splits, count)
    # Half an entry too much at each end, and the slack that is left to end where a ledger ends.
    target = _weight(pieces) / len(splits)
    largest_entry = max(-(-_weight([piece]) // piece.entries) for piece in pieces)
    # A piece that is cut weighs what it did, in both of its tasks.
    assert max(map(_weight, splits)) <= 1.1 * target + largest_entry + 2 * PIECE_BYTES + 1


@pytest.mark.parametrize("seed", range(40))
def test_no_split_has_more_rows_than_wanted(seed: int) -> None:
    rng = random.Random(seed)
    pieces = [_piece(number, 3, 3 + rng.randrange(300), rng.randint(1, MIB), 0) for number in range(rng.randint(1, 9))]
    most = rng.choice([1, 2, 7, 100, 1000])
    splits = _cut(pieces, rng.choice([1024, MIB]), rng.choice([1, 20]), most)
    assert list(_entries(piece for split in splits for piece in split)) == list(_entries(pieces))
    assert max(sum(piece.rows for piece in split) for split in splits) <= most


def test_entries_of_many_rows_stay_whole() -> None:
    (first, second) = _cut([Piece(1, 0, 1, 1000, 200)], MIB, 1, 10)
    assert [piece.entries for piece in (*first, *second)] == [1, 1]


def test_a_task_is_sent_the_names_it_needs() -> None:
    pieces = [Piece(n, 0, 9, 10, 10, f"log-{n}", 0, n) for n in range(100)]
    pieces.append(Piece(100, 0, 9, 10, 10))
    splits = cut_splits(Pieces.of(pieces), MIB, 20)
    assert [*_entries(piece for split in splits for piece in split)] == [*_entries(pieces)]
    assert max(len(split.logs) for split in splits) <= 6
    assert [*pickle.loads(pickle.dumps(splits[3]))] == [*splits[3]]


class TestPieces:
    def test_round_trip(self) -> None:
        pieces = [Piece(5, 1, 3, 10, 3), Piece(7, 0, 0, 5, 20, "a", 17, 1000), Piece(8, 0, 0, 5, 1, "b", 0, 0)]
        assert [*Pieces.of(pieces)] == pieces
        assert [*Pieces.concat(Pieces.of([one]) for one in pieces)] == pieces
        assert [*Pieces.concat([])] == []
        assert [*Pieces.of(pieces).where(np.array([True, False, True]))] == [pieces[0], pieces[2]]

    def test_of_segments(self) -> None:
        segments = [Segment(9, 4, 13, 100, 20, 1000, 77), Segment(8, 0, 4, 110, 5, 50, 78)]
        table = SegmentTable.of(segments)
        assert [*Pieces.of_segments("a", [table], 100, 115)] == [
            Piece(9, 4, 13, 1000, 20, "a", 100, 77),
            Piece(8, 0, 4, 50, 5, "a", 110, 78),
        ]
        assert [*Pieces.of_segments("a", [table], 107, 112)] == [
            Piece(9, 11, 13, 300, 6, "a", 107, 77),
            Piece(8, 0, 1, 20, 2, "a", 110, 78),
        ]
        assert [*Pieces.of_segments("a", [table[:1], table[1:]], 103, 105)] == [Piece(9, 7, 8, 200, 4, "a", 103, 77)]
        assert [*Pieces.of_segments("a", [], 5, 5)] == []

    def test_sums_of_the_largest_segments_do_not_overflow(self) -> None:
        piece = Piece(1, 0, (1 << 40) - 1, 1 << 46, 1 << 46, "a", 0, 0)
        first, second = cut_splits(Pieces.of([piece]), 1 << 60, 2)
        assert sum(one.size_bytes for one in (*first, *second)) == 1 << 46


def test_nothing_gives_no_split() -> None:
    assert _cut([], 1024, 10) == []


def test_one_ledger_is_cut_in_equal_parts() -> None:
    splits = _cut([_piece(5, 0, 9_999, 10_000 * (1024 - ENTRY_HEADER_BYTES), 40)], MIB)
    assert [split[0].entries for split in splits] == [1000] * 10
    assert [split[0].base_offset for split in splits] == [40 + 1000 * number for number in range(10)]
    assert {split[0].timestamp_ms for split in splits} == {7}


def test_a_last_crumb_is_spread_over_all() -> None:
    (piece,) = (_piece(1, 0, 1000, 1001 * (1024 - ENTRY_HEADER_BYTES)),)
    assert [split[0].entries for split in _cut([piece], 1000 * 1024)] == [500, 501]


def test_small_ledgers_share_a_task() -> None:
    pieces = [_piece(ledger, 0, 9, 10 * 100, ledger * 10) for ledger in range(100)]
    (split,) = _cut(pieces, MIB)
    assert split == tuple(pieces)


def test_splits_end_where_ledgers_end_when_that_is_near() -> None:
    # What four equal tasks wrote is read by four, each opening one ledger.
    sizes = [1_000_000, 1_010_000, 990_000, 1_000_000]
    pieces = [_piece(ledger, 0, size // 100 - 1, size) for ledger, size in enumerate(sizes)]
    splits = _cut(pieces, 40 * MIB, 4)
    assert [len(split) for split in splits] == [1, 1, 1, 1]


def test_many_tiny_pieces_are_not_one_task() -> None:
    """As a log of micro-batches has them; few large ones of the same bytes are one."""
    pieces = [_piece(number % 8, number // 8, number // 8, 100, number) for number in range(80_000)]
    splits = _cut(pieces, 32 * MIB)
    assert len(splits) == 3
    assert max(map(len, splits)) - min(map(len, splits)) <= 1
    assert len(_cut([_piece(number, 0, 9_999, 1_000_000, 0) for number in range(8)], 32 * MIB)) == 1


@pytest.mark.parametrize("size_bytes", [1, 5 * MIB])
def test_one_entry_is_never_cut(size_bytes: int) -> None:
    piece = _piece(1, 3, 3, size_bytes, 0)
    assert _cut([piece], 1024, 100) == [(piece,)]


def test_min_splits_holds_where_entries_are_empty_or_uneven() -> None:
    assert len(_cut([_piece(1, 0, 99, 1)], 32 * MIB, 10)) == 10
    assert len(_cut([_piece(1, 0, 99, 1)], 32 * MIB, 1000)) == 100
    # One huge entry, then few small ones.
    splits = _cut([_piece(1, 0, 0, 5 * MIB), _piece(2, 0, 8, 9)], 32 * MIB, 10)
    assert [sum(piece.entries for piece in split) for split in splits] == [1] * 10


def test_many_empty_entries_are_not_one_task() -> None:
    assert len(_cut([_piece(1, 0, 10_000_000 - 1, 1)], 32 * MIB)) == 10


def test_a_read_has_a_bounded_number_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a list that is damaged or forged, too: a few segments may claim any size. And with tiny splits by mistake."""
    monkeypatch.setattr("bk_spark.log.entries.pieces.MAX_SPLITS", 1_000)
    claims = [Piece(number, 0, (1 << 40) - 1, (1 << 46) - 1, 1 << 40, "a", number << 40, 0) for number in range(100)]
    splits = cut_splits(Pieces.of(claims), 1024)
    assert len(splits) == 1_000
    assert sum(int(split.entries.sum()) for split in splits) == 100 << 40
    assert len(cut_splits(Pieces.of([_piece(1, 0, 1_999, 2_000 * MIB)]), MIB, 1_500)) == 1_500, "as asked for"
    with pytest.raises(InvalidArgumentError, match=r"maxRecordsPerPartition.* make \d+ tasks, more than 1000000"):
        cut_splits(Pieces.of(claims), MIB, max_split_rows=10)


def test_a_long_list_is_cut_soon() -> None:
    count = 1_000_000
    ones = np.ones(count, np.int64)
    table = SegmentTable(
        np.arange(count), 0 * ones, 100 * ones, 100 * np.arange(count), 100 * ones, 100 * 1024 * ones, ones, 0 * ones
    )
    began = time.process_time()
    splits = cut_splits(Pieces.of_segments("events", [table], 0, 100 * count), 32 * MIB)
    assert time.process_time() - began < 2
    assert sum(int(split.entries.sum()) for split in splits) == 100 * count
    assert sum(len(pickle.dumps(split)) for split in splits[:100]) < 100 * 100_000
