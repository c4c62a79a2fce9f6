"""What others do during the repair of one ledger, in a cluster that answers at once."""

from __future__ import annotations

from typing import Any

import pytest

from bk_spark.protocol.ledger.reading.read_actions import ReadEntries
from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.replication.actions import (
    Gone,
    LockLost,
    ReadLedger,
    RecoverLedger,
    Repaired,
    ReplaceMembers,
    Unrepairable,
    WriteEntries,
)
from tests.support.ledgers import ledger
from tests.support.repair import BOOKIES, REPAIRED_QUORUM, RepairedCluster, closed, stored_entry


def test_copies_are_checked_again_after_a_wait() -> None:
    """In the grace period of the last fragment, a bookie loses entries of one that was good."""
    cluster = RepairedCluster(ledger(REPAIRED_QUORUM, (0, "b2 b3 b4"), (5, "b1 b2 b3")), BOOKIES, 9)
    cluster.lose("b1")

    def lose(action: Any) -> None:
        if getattr(action, "name", "") == "grace period":
            cluster.disks["b4"].clear()

    cluster.before = lose
    assert isinstance(cluster.repair(["b1"]), Repaired)
    cluster.assert_whole()


@pytest.mark.parametrize("kind", [WriteEntries, ReplaceMembers])
def test_r6_a_bookie_that_comes_back_empty_after_its_check_is_checked_again(kind: type) -> None:
    """The mark names b2 already, so an auditor that marks it again may change nothing."""
    cluster = RepairedCluster(closed(), BOOKIES, 9)
    cluster.lose("b1")

    def come_back(action: Any) -> None:
        if isinstance(action, kind) and "b2" not in cluster.registrations:
            cluster.come_back_empty("b2")

    cluster.before = come_back
    assert isinstance(cluster.repair(["b1", "b2"]), Repaired)
    cluster.assert_whole()


def test_r6_a_bookie_that_comes_back_empty_in_the_last_check_is_checked_again() -> None:
    cluster = RepairedCluster(closed(), BOOKIES, 9)

    def come_back(action: Any) -> None:
        # Every entry of b2 has been read then.
        if isinstance(action, ReadEntries) and action.bookie_id == "b3" and "b2" not in cluster.registrations:
            cluster.come_back_empty("b2")

    cluster.before = come_back
    assert isinstance(cluster.repair(["b2"]), Repaired)
    cluster.assert_whole()


def test_a_bookie_that_registers_again_and_again_ends_the_repair() -> None:
    cluster = RepairedCluster(closed(), BOOKIES, 9)

    def register(action: Any) -> None:
        if isinstance(action, ReadEntries):
            cluster.registrations["b1"] = cluster.registrations.get("b1", 1) + 1

    cluster.before = register
    result = cluster.repair(["b1"])
    assert isinstance(result, Unrepairable)
    assert "registrations of its bookies" in result.reason


def test_r2_r3_a_worker_without_its_session_changes_nothing() -> None:
    cluster = RepairedCluster(closed(), BOOKIES, 9)
    cluster.lose("b1")
    cluster.session_lost = True
    before = cluster.metadata
    assert cluster.repair(["b1"]) == LockLost()
    assert cluster.metadata == before
    # Another worker takes the ledger.
    cluster.session_lost = False
    assert isinstance(cluster.repair(["b1"]), Repaired)
    cluster.assert_whole()


def test_r8_a_ledger_that_is_deleted_in_the_middle_does_not_come_back() -> None:
    for when in (WriteEntries, ReplaceMembers):
        cluster = RepairedCluster(closed(), BOOKIES, 9)
        cluster.lose("b1")

        def delete(action: Any, cluster: RepairedCluster = cluster, when: type = when) -> None:
            if isinstance(action, when):
                cluster.metadata = None

        cluster.before = delete
        assert cluster.repair(["b1"]) == Gone()
        assert cluster.metadata is None


def test_r8_a_ledger_that_was_made_again_after_a_conflict_stays() -> None:
    """It is made again between the conflict and the next read, with the same members."""
    cluster = RepairedCluster(closed(), BOOKIES, 9)
    cluster.lose("b1")
    again = ledger(Quorum(3, 3, 2), (0, "b1 b2 b3")).closed(9, 100)
    conflicts: list[int] = []

    def interfere(action: Any) -> None:
        if isinstance(action, ReplaceMembers) and not conflicts:
            cluster.version += 1
            conflicts.append(cluster.version)
        elif isinstance(action, ReadLedger) and conflicts and cluster.created_zxid == 11:
            cluster.metadata, cluster.created_zxid, cluster.version = again, 12, 3
            for bookie_id in ("b2", "b3"):
                cluster.disks[bookie_id] = {each: stored_entry(again, each) for each in range(10)}

    cluster.before = interfere
    assert isinstance(cluster.repair(["b1"]), Repaired)
    assert len(cluster.written) == 20


def test_r8_copies_of_a_deleted_ledger_are_not_named_by_one_made_again_under_its_id() -> None:
    cluster = RepairedCluster(closed(), BOOKIES, 9)
    cluster.lose("b1")
    again = ledger(Quorum(3, 3, 2), (0, "b1 b2 b3")).closed(9, 100)

    def make_again(action: Any) -> None:
        if isinstance(action, WriteEntries) and cluster.created_zxid == 11:
            cluster.metadata, cluster.created_zxid, cluster.version = again, 12, 3
            # Its entries are others.
            for bookie_id in ("b2", "b3"):
                cluster.disks[bookie_id] = {each: stored_entry(again, each) for each in range(10)}

    cluster.before = make_again
    assert isinstance(cluster.repair(["b1"]), Repaired)
    # Everything was copied again, for the new ledger.
    assert len(cluster.written) == 20
    cluster.assert_whole()


def test_r8_copies_of_a_ledger_made_again_are_checked_though_those_of_the_former_were_good() -> None:
    cluster = RepairedCluster(closed(), BOOKIES, 9)
    cluster.lose("b1")

    def make_again(action: Any) -> None:
        if isinstance(action, ReplaceMembers) and cluster.created_zxid == 11:
            cluster.metadata, cluster.created_zxid, cluster.version = closed(), 12, 4
            del cluster.disks["b2"][9]

    cluster.before = make_again
    assert isinstance(cluster.repair(["b1"]), Repaired)
    cluster.assert_whole()


def test_r8_another_client_repaired_the_segment_meanwhile() -> None:
    cluster = RepairedCluster(closed(), BOOKIES, 9)
    cluster.lose("b1")

    def repair(action: Any) -> None:
        if isinstance(action, ReplaceMembers) and cluster.version == 3:
            cluster.metadata = closed(Quorum(3, 3, 2), 9, (0, "b6 b2 b3"))
            cluster.disks["b6"] = dict(cluster.disks["b2"])
            cluster.version += 1

    cluster.before = repair
    cluster.repair(["b1"])
    assert cluster.metadata is not None
    assert cluster.metadata.last_segment.ensemble == ("b6", "b2", "b3")


def test_after_a_conflict_elsewhere_the_copies_are_used() -> None:
    cluster = RepairedCluster(closed(Quorum(3, 3, 2), 9, (0, "b1 b2 b3"), (5, "b2 b3 b4")), BOOKIES, 9)
    cluster.lose("b1")
    changed = closed(Quorum(3, 3, 2), 9, (0, "b1 b2 b3"), (5, "b2 b3 b5"))
    cluster.disks["b5"] = {each: cluster.disks["b2"][each] for each in range(5, 10)}

    def change(action: Any) -> None:
        if isinstance(action, ReplaceMembers) and cluster.version == 3:
            cluster.metadata, cluster.version = changed, 4

    cluster.before = change
    assert isinstance(cluster.repair(["b1"]), Repaired)
    assert len(cluster.written) == 5
    cluster.assert_whole()


def test_r5_a_writer_that_replaced_the_bookie_in_the_grace_period_is_not_fenced() -> None:
    cluster = RepairedCluster(ledger(Quorum(3, 3, 2)), BOOKIES, 5)
    cluster.lose("b1")
    changed = ledger(Quorum(3, 3, 2), (0, "b1 b2 b3"), (6, "b5 b2 b3"))

    def change(action: Any) -> None:
        if getattr(action, "name", "") == "grace period":
            cluster.metadata, cluster.version = changed, 4

    cluster.before = change
    assert isinstance(cluster.repair(["b1"]), Repaired)
    assert not any(isinstance(action, RecoverLedger) for action in cluster.actions)
    assert cluster.metadata is not None
    assert cluster.metadata.state is LedgerState.OPEN
    assert "b1" not in cluster.metadata.segments[0].ensemble
    assert cluster.metadata.segments[1] == changed.segments[1]
