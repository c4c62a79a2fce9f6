"""What the repair of one ledger checks and copies, in a cluster that answers at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.replication.actions import (
    NothingBad,
    RecoverLedger,
    Repaired,
    Unrepairable,
)
from tests.support.ledgers import ledger
from tests.support.repair import BOOKIES, REPAIRED_QUORUM, RepairedCluster, closed, stored_entry


def test_a_lost_bookie_is_replaced_in_every_fragment() -> None:
    cluster = RepairedCluster(closed(Quorum(3, 3, 2), 9, (0, "b1 b2 b3"), (4, "b2 b1 b4")), BOOKIES, 9)
    cluster.lose("b1")
    assert cluster.repair(["b1"]) == Repaired(2, 10, cluster_bytes(cluster, 10))
    cluster.assert_whole()
    assert cluster.metadata is not None
    assert [segment.first_entry_id for segment in cluster.metadata.segments] == [0, 4]
    assert cluster.repair(["b1"]) == NothingBad()


def cluster_bytes(cluster: RepairedCluster, count: int) -> int:
    assert cluster.metadata is not None
    return sum(4 + len(stored_entry(cluster.metadata, entry_id)) for entry_id in range(count))


def test_nothing_is_written_if_nothing_is_bad() -> None:
    cluster = RepairedCluster(closed(), BOOKIES, 9)
    assert cluster.repair() == NothingBad()
    assert not cluster.written
    # First and last entry of each copy.
    assert sorted(cluster.read) == sorted((bookie, entry) for bookie in ("b1", "b2", "b3") for entry in (0, 9))


@pytest.mark.parametrize("count", [1, 2, 10])
def test_no_entry_is_read_twice_at_a_bookie(count: int) -> None:
    cluster = RepairedCluster(closed(REPAIRED_QUORUM, count - 1), BOOKIES, count - 1)
    cluster.lose("b1")
    assert isinstance(cluster.repair(["b1"]), Repaired)
    cluster.assert_whole()
    assert len(cluster.written) == count
    assert len(cluster.read) == len(set(cluster.read))
    # Besides what is copied: first and last entry at the other member that stays, and at the new one.
    assert len(cluster.read) == count + 2 * min(count, 2)


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("count", [1, 2, 3, 40])
@pytest.mark.parametrize("quorum", [REPAIRED_QUORUM, Quorum(4, 3, 2), Quorum(5, 2, 2)], ids=str)
def test_no_entry_is_read_twice_at_a_bookie_if_many_are_verified(quorum: Quorum, count: int, share: float) -> None:
    cluster = RepairedCluster(closed(quorum, count - 1), (*BOOKIES, "b7"), count - 1)
    cluster.lose("b1")
    # Every entry of b2 is read, too.
    assert isinstance(cluster.repair(["b1", "b2"], verified_share=share), Repaired)
    cluster.assert_whole()
    assert len(cluster.read) == len(set(cluster.read))
    for bookie_id in ("b2", *(("b3",) if share == 1 else ())):
        assert {entry for bookie, entry in cluster.read if bookie == bookie_id} == set(cluster.disks[bookie_id])


def test_r1_a_bookie_that_returned_with_its_data_stays() -> None:
    cluster = RepairedCluster(closed(), BOOKIES, 9)
    assert cluster.repair(["b1"]) == NothingBad()
    # It must prove every entry, because it may have come back with another disk.
    assert {entry for bookie, entry in cluster.read if bookie == "b1"} == set(range(10))


def test_r6_a_bookie_that_returned_with_a_hole_is_replaced() -> None:
    cluster = RepairedCluster(closed(), BOOKIES, 9)
    del cluster.disks["b1"][5]
    assert cluster.repair() == NothingBad(), "first and last entry are there"
    assert isinstance(cluster.repair(["b1"]), Repaired)
    cluster.assert_whole()
    assert cluster.metadata is not None
    assert "b1" not in cluster.metadata.last_segment.ensemble


def test_an_empty_bookie_that_nobody_can_replace_gets_its_entries_again() -> None:
    cluster = RepairedCluster(closed(), ("b1", "b2", "b3"), 9)
    cluster.disks["b1"].clear()
    before = cluster.metadata
    assert isinstance(cluster.repair(["b1"]), Repaired)
    cluster.assert_whole()
    assert cluster.metadata == before


@pytest.mark.parametrize("quorum", [Quorum(4, 2, 2), Quorum(5, 3, 2), Quorum(3, 1, 1), Quorum(4, 3, 2)], ids=str)
def test_r9_exactly_what_the_lost_bookie_stored_is_copied(quorum: Quorum) -> None:
    cluster = RepairedCluster(closed(quorum, 30), BOOKIES, 30)
    kept = dict(cluster.disks["b2"])
    cluster.writable.discard("b2")
    if quorum.write_quorum_size == 1:
        # Its disk is the only one. Another bookie has the entries, as after a move by hand.
        cluster.writable.add("b2")
        cluster.disks["b2"].pop(max(kept))
        result = cluster.repair(["b2"])
        assert isinstance(result, Unrepairable)
        assert result.unreadable == {max(kept)}
        return
    assert isinstance(cluster.repair(["b2"]), Repaired)
    cluster.assert_whole()
    assert sorted(entry_id for _, entry_id in cluster.written) == sorted(kept)


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_r12_after_the_recovery_every_entry_of_the_last_fragment_is_checked(state: LedgerState) -> None:
    cluster = RepairedCluster(replace(ledger(Quorum(4, 4, 2)), state=state), BOOKIES, 9)
    cluster.lose("b1")
    # The writer's adds to b2 failed in the middle.
    for entry_id in (4, 5):
        del cluster.disks["b2"][entry_id]
    result = cluster.repair(["b1"])
    assert isinstance(result, Repaired)
    assert result.recovered
    cluster.assert_whole()


def test_entries_of_an_open_fragment_that_nobody_confirmed_prove_nothing() -> None:
    """A single potential entry, compatibility.md §6.5."""
    cluster = RepairedCluster(ledger(Quorum(3, 3, 2)), BOOKIES, -1)
    assert cluster.repair(["b1", "b2", "b3"]) == NothingBad()
    assert not any(isinstance(action, RecoverLedger) for action in cluster.actions)
