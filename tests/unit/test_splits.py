"""Cutting reads into tasks: every entry once, in order, in parts of like size."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import pytest

from bk_spark.datasource.splits import Piece, cut_splits
from bk_spark.protocol.entry import ENTRY_HEADER_BYTES

MIB = 1 << 20


def _weight(split: Iterable[Piece]) -> int:
    return sum(piece.size_bytes + piece.entries * ENTRY_HEADER_BYTES for piece in split)


def _entries(pieces: Iterable[Piece]) -> Iterator[tuple[int, int, int | None, int | None]]:
    """(ledger, entry, offset, timestamp) of each entry, in order."""
    for piece in pieces:
        for number in range(piece.entries):
            offset = None if piece.base_offset is None else piece.base_offset + number
            yield piece.ledger_id, piece.first + number, offset, piece.timestamp_ms


def _some_log(rng: random.Random) -> list[Piece]:
    offset = rng.randrange(1000)
    pieces = []
    for ledger_id in range(rng.randint(1, 12)):
        count = rng.choice([1, 1, 2, 7, 100, 1000])
        first = rng.choice([0, 0, 17])
        entry_bytes = rng.choice([0, 1, 100, 1024, MIB])
        pieces.append(Piece(ledger_id, first, first + count - 1, max(1, count * entry_bytes), offset, ledger_id))
        offset += count
    return pieces


@pytest.mark.parametrize("seed", range(60))
def test_union_of_the_splits_is_the_input(seed: int) -> None:
    rng = random.Random(seed)
    pieces = _some_log(rng)
    count = sum(piece.entries for piece in pieces)
    split_bytes, min_splits = rng.choice([1024, 64 << 10, MIB, 32 * MIB]), rng.choice([1, 1, 2, 5, 1000])
    splits = cut_splits(pieces, split_bytes, min_splits)

    assert list(_entries(piece for split in splits for piece in split)) == list(_entries(pieces))
    assert sum(piece.size_bytes for split in splits for piece in split) == sum(piece.size_bytes for piece in pieces)
    assert all(split and all(piece.entries > 0 for piece in split) for split in splits)
    assert len(splits) >= min(min_splits, count)
    # Half an entry too much at each end, and the slack that is left to end where a ledger ends.
    target = _weight(pieces) / len(splits)
    largest_entry = max(-(-_weight([piece]) // piece.entries) for piece in pieces)
    assert max(map(_weight, splits)) <= 1.1 * target + largest_entry + 1


def test_nothing_gives_no_split() -> None:
    assert cut_splits([], 1024, 10) == []


def test_one_ledger_is_cut_in_equal_parts() -> None:
    splits = cut_splits([Piece(5, 0, 9_999, 10_000 * (1024 - ENTRY_HEADER_BYTES), 40, 7)], MIB)
    assert [split[0].entries for split in splits] == [1000] * 10
    assert [split[0].base_offset for split in splits] == [40 + 1000 * number for number in range(10)]
    assert {split[0].timestamp_ms for split in splits} == {7}


def test_a_last_crumb_is_spread_over_all() -> None:
    (piece,) = (Piece(1, 0, 1000, 1001 * (1024 - ENTRY_HEADER_BYTES)),)
    assert [split[0].entries for split in cut_splits([piece], 1000 * 1024)] == [500, 501]


def test_small_ledgers_share_a_task() -> None:
    pieces = [Piece(ledger, 0, 9, 10 * 100, ledger * 10) for ledger in range(100)]
    (split,) = cut_splits(pieces, MIB)
    assert split == tuple(pieces)


def test_splits_end_where_ledgers_end_when_that_is_near() -> None:
    # What four equal tasks wrote is read by four, each opening one ledger.
    sizes = [1_000_000, 1_010_000, 990_000, 1_000_000]
    pieces = [Piece(ledger, 0, size // 100 - 1, size) for ledger, size in enumerate(sizes)]
    splits = cut_splits(pieces, 40 * MIB, 4)
    assert [len(split) for split in splits] == [1, 1, 1, 1]


@pytest.mark.parametrize("size_bytes", [1, 5 * MIB])
def test_one_entry_is_never_cut(size_bytes: int) -> None:
    piece = Piece(1, 3, 3, size_bytes, 0, 0)
    assert cut_splits([piece], 1024, 100) == [(piece,)]


def test_min_splits_holds_where_entries_are_empty_or_uneven() -> None:
    assert len(cut_splits([Piece(1, 0, 99, 1)], 32 * MIB, 10)) == 10
    assert len(cut_splits([Piece(1, 0, 99, 1)], 32 * MIB, 1000)) == 100
    # One huge entry, then few small ones.
    splits = cut_splits([Piece(1, 0, 0, 5 * MIB), Piece(2, 0, 8, 9)], 32 * MIB, 10)
    assert [sum(piece.entries for piece in split) for split in splits] == [1] * 10


def test_many_empty_entries_are_not_one_task() -> None:
    assert len(cut_splits([Piece(1, 0, 10_000_000 - 1, 1)], 32 * MIB)) == 10


def test_a_long_list_is_cut_soon() -> None:
    pieces = [Piece(ledger, 0, 99, 100 * 1024, ledger * 100) for ledger in range(50_000)]
    splits = cut_splits(pieces, MIB)
    assert sum(piece.entries for split in splits for piece in split) == 5_000_000
