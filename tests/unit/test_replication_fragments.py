"""Fragments of a ledger, and what each position of an ensemble stores."""

from __future__ import annotations

import itertools

import pytest

from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, Segment
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.replication.fragments import Fragment, fragments_of, with_members

BOOKIES = tuple(f"b{number}" for number in range(1, 8))


@pytest.mark.parametrize(
    ("size", "write", "first", "count"),
    [
        (size, write, first, count)
        for size in range(1, 6)
        for write in range(1, size + 1)
        for first in (0, 3)
        for count in (0, 1, 2, 4, 11)
    ],
)
def test_r9_a_position_stores_exactly_the_entries_of_its_write_sets(
    size: int, write: int, first: int, count: int
) -> None:
    quorum = Quorum(size, write, 1)
    fragment = Fragment(quorum, first, first + count - 1, BOOKIES[:size], True)
    for positions in itertools.chain(
        [()], itertools.combinations(range(size), 1), itertools.combinations(range(size), 2)
    ):
        wanted = [each for each in fragment.entry_ids if set(quorum.write_set(each)) & set(positions)]
        found = list(fragment.series(positions))
        assert sorted(itertools.chain(*found)) == wanted
        if quorum.striped:
            assert all(len({quorum.write_set(each) for each in series}) == 1 for series in found)
    for position in range(size):
        wanted = [each for each in fragment.entry_ids if position in quorum.write_set(each)]
        assert fragment.ends(position) == tuple(sorted({*wanted[:1], *wanted[-1:]}))


def test_only_the_last_fragment_of_an_open_ledger_is_open() -> None:
    metadata = LedgerMetadata(
        Quorum(2, 2, 1), (Segment(0, ("b1", "b2")), Segment(10, ("b1", "b3")), Segment(12, ("b4", "b3")))
    )
    for unclosed in (metadata, metadata.in_recovery()):
        found = fragments_of(unclosed, 15)
        assert [(each.first_entry_id, each.last_entry_id, each.closed) for each in found] == [
            (0, 9, True),
            (10, 11, True),
            (12, 15, False),
        ]
        # Nothing of the last fragment is confirmed.
        assert list(fragments_of(unclosed, 11)[-1].entry_ids) == []
    found = fragments_of(metadata.closed(20, 99), 15)
    assert [(each.last_entry_id, each.closed) for each in found] == [(9, True), (11, True), (20, True)]
    assert list(fragments_of(metadata.closed(11, 99), 15)[-1].entry_ids) == []


def test_members_are_replaced_only_in_the_segment_that_was_copied() -> None:
    metadata = LedgerMetadata(Quorum(2, 2, 1), (Segment(0, ("b1", "b2")), Segment(10, ("b1", "b2")))).closed(19, 9)
    first, last = fragments_of(metadata, 0)
    changed = with_members(metadata, last, {0: "b5"})
    assert changed is not None
    assert changed.segments == (Segment(0, ("b1", "b2")), Segment(10, ("b5", "b2")))
    assert (changed.last_entry_id, changed.length, changed.state) == (19, 9, metadata.state)
    # Another client replaced a member of it.
    assert with_members(changed, last, {0: "b6"}) is None
    assert with_members(changed, first, {1: "b6"}) is not None
