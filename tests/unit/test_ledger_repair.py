"""The repair of one ledger, rule by rule, in a cluster that answers at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.replication.actions import (
    Gone,
    LockLost,
    NothingBad,
    RecoverLedger,
    Repaired,
    ReplaceMembers,
    Unrepairable,
    WriteEntries,
)
from tests.support.ledgers import ledger
from tests.support.repair import RepairedCluster, stored_entry

BOOKIES = tuple(f"b{number}" for number in range(1, 7))
DEFAULT = Quorum(3, 3, 2)


def closed(quorum: Quorum = DEFAULT, last: int = 9, *segments: tuple[int, str]) -> LedgerMetadata:
    return ledger(quorum, *segments).closed(last, 10 * (last + 1))


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


def test_without_a_writable_bookie_the_ledger_waits() -> None:
    cluster = RepairedCluster(closed(), ("b1", "b2", "b3", "b4"), 9)
    cluster.lose("b1")
    cluster.writable.discard("b4")
    cluster.read_only.add("b4")
    result = cluster.repair(["b1"])
    assert isinstance(result, Unrepairable)
    assert "no writable bookie" in result.reason
    assert result.fragments[0].bookies == ("b1",)
    assert not cluster.written
    # A read-only bookie is a source.
    cluster.metadata = replace(closed(), segments=ledger(Quorum(3, 3, 2), (0, "b1 b3 b4")).segments)
    cluster.disks["b4"] = dict(cluster.disks["b3"])
    assert isinstance(cluster.repair(["b1"]), Repaired)
    cluster.assert_whole()


def test_unknown_neither_repairs_nor_counts_as_whole() -> None:
    cluster = RepairedCluster(closed(), BOOKIES, 9)
    cluster.silent.add("b2")
    result = cluster.repair(["b2"])
    assert isinstance(result, Unrepairable)
    assert "b2" in result.reason
    assert not cluster.written
    # The others are repaired.
    cluster.lose("b1")
    result = cluster.repair(["b1", "b2"])
    assert isinstance(result, Unrepairable)
    assert cluster.metadata is not None
    assert cluster.metadata.last_segment.ensemble[1:] == ("b2", "b3")
    assert cluster.metadata.last_segment.ensemble[0] != "b1"


def test_a_copy_with_a_wrong_digest_is_bad_and_is_never_copied() -> None:
    cluster = RepairedCluster(closed(), BOOKIES, 9)
    for entry_id in range(10):
        right = cluster.disks["b2"][entry_id]
        cluster.disks["b2"][entry_id] = right[:-1] + bytes([right[-1] ^ 1])
    cluster.lose("b1")
    assert isinstance(cluster.repair(["b1"]), Repaired)
    cluster.assert_whole()


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


def test_r10_an_entry_that_is_lost_everywhere_is_reported_and_the_rest_repaired() -> None:
    cluster = RepairedCluster(closed(Quorum(3, 3, 2), 9, (0, "b1 b2 b3"), (5, "b2 b1 b4")), BOOKIES, 9)
    cluster.lose("b1")
    del cluster.disks["b2"][3], cluster.disks["b3"][3]
    result = cluster.repair(["b1"])
    assert isinstance(result, Unrepairable)
    assert result.unreadable == {3}
    assert [(each.first_entry_id, each.last_entry_id) for each in result.fragments] == [(0, 4)]
    assert "entry 3" in result.reason
    assert cluster.metadata is not None
    # b1 may come back with entry 3, so it stays a member.
    assert cluster.metadata.segments[0].ensemble == ("b1", "b2", "b3")
    assert "b1" not in cluster.metadata.segments[1].ensemble
    # The next repair finds that out before it copies anything.
    cluster.written.clear()
    again = cluster.repair(["b1"])
    assert isinstance(again, Unrepairable)
    # b1 comes back.
    cluster.writable.add("b1")
    cluster.disks["b1"] = {each: stored_entry(cluster.metadata, each) for each in range(5)}
    assert isinstance(cluster.repair(["b1", "b2", "b3"]), Repaired)
    cluster.assert_whole()


def test_r10_in_a_striped_ledger_positions_without_the_lost_entry_are_repaired() -> None:
    quorum = Quorum(4, 2, 2)
    cluster = RepairedCluster(closed(quorum, 11), BOOKIES, 11)
    cluster.lose("b1", "b3")
    # Entry 0 is on b1 and b2, entry 3 on b4 and b1.
    del cluster.disks["b2"][0]
    result = cluster.repair(["b1", "b3"])
    assert isinstance(result, Unrepairable)
    assert result.unreadable == {0}
    assert cluster.metadata is not None
    ensemble = cluster.metadata.last_segment.ensemble
    assert (ensemble[0], ensemble[1], ensemble[3]) == ("b1", "b2", "b4")
    assert ensemble[2] != "b3"


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


def test_a_target_that_fails_is_exchanged() -> None:
    cluster = RepairedCluster(closed(), BOOKIES, 9)
    cluster.lose("b1")
    cluster.silent.add("b4")
    assert isinstance(cluster.repair(["b1"]), Repaired)
    cluster.assert_whole()
    assert cluster.metadata is not None
    assert cluster.metadata.last_segment.ensemble[0] == "b5"


def test_without_a_password_copies_must_agree() -> None:
    unsigned = replace(closed(), digest_type=None, password=None)
    cluster = RepairedCluster(closed(), BOOKIES, 9)
    cluster.metadata = unsigned
    cluster.lose("b1")
    assert isinstance(cluster.repair(["b1"]), Repaired)
    assert len(cluster.written) == 10
    cluster = RepairedCluster(closed(), BOOKIES, 9)
    cluster.metadata = unsigned
    cluster.lose("b1")
    right = cluster.disks["b2"][4]
    cluster.disks["b2"][4] = right[:-1] + bytes([right[-1] ^ 1])
    result = cluster.repair(["b1"])
    assert isinstance(result, Unrepairable)
    assert "differ" in result.reason


def test_r11_copies_are_moved_when_a_rack_is_back() -> None:
    cluster = RepairedCluster(closed(), ("b1", "b2", "b3", "b4"), 9)
    cluster.racks = dict.fromkeys(BOOKIES, "/a")
    cluster.lose("b1")
    result = cluster.repair(["b1"])
    assert isinstance(result, Repaired)
    assert not result.adheres
    cluster.assert_whole()
    # The auditor's check marks the ledger, and names no bookie. There is nowhere to move a copy.
    cluster.written.clear()
    assert cluster.repair() == NothingBad()
    assert not cluster.written
    cluster.racks["b5"] = "/b"
    cluster.writable.add("b5")
    cluster.disks["b5"] = {}
    result = cluster.repair()
    assert isinstance(result, Repaired)
    assert result.adheres
    assert result.fragments == 1
    cluster.assert_whole()
    assert cluster.metadata is not None
    assert "b5" in cluster.metadata.last_segment.ensemble
    assert cluster.repair() == NothingBad()


def test_a_bookie_that_still_runs_is_replaced_if_an_operator_wants_it() -> None:
    cluster = RepairedCluster(closed(Quorum(3, 3, 2), 9, (0, "b1 b2 b3"), (4, "b2 b1 b4")), BOOKIES, 9)
    replaced = frozenset(["b1"])
    assert isinstance(cluster.repair(["b1"], replaced=replaced), Repaired)
    cluster.assert_whole()
    assert cluster.metadata is not None
    assert not any("b1" in segment.ensemble for segment in cluster.metadata.segments)
    # Healthy bookies are asked first.
    assert not any(bookie == "b1" for bookie, _ in cluster.read)
    assert cluster.repair(["b1"], replaced=replaced) == NothingBad()


def test_a_replaced_bookie_is_the_source_of_what_only_it_has() -> None:
    cluster = RepairedCluster(closed(Quorum(1, 1, 1), 9, (0, "b1")), BOOKIES, 9)
    assert isinstance(cluster.repair(["b1"], replaced=frozenset(["b1"])), Repaired)
    cluster.assert_whole()
    assert {entry for bookie, entry in cluster.read if bookie == "b1"} == set(range(10))


def test_a_replaced_bookie_takes_no_copy() -> None:
    """Neither its own entries nor those of another lost bookie."""
    cluster = RepairedCluster(closed(), ("b1", "b2", "b3", "b4"), 9)
    cluster.lose("b2")
    before = cluster.metadata
    cluster.repair(["b2"], replaced=frozenset(["b1", "b4"]))
    assert cluster.metadata == before
    assert not cluster.written


def test_copies_go_only_to_the_targets() -> None:
    cluster = RepairedCluster(closed(), BOOKIES, 9)
    cluster.lose("b1")
    assert isinstance(cluster.repair(["b1"], targets=frozenset(["b5"])), Repaired)
    cluster.assert_whole()
    assert {bookie for bookie, _ in cluster.written} == {"b5"}


def test_without_a_usable_target_the_ledger_stays_and_says_why() -> None:
    cluster = RepairedCluster(closed(), BOOKIES, 9)
    cluster.lose("b1")
    cluster.writable.discard("b6")
    before = cluster.metadata
    result = cluster.repair(["b1"], targets=frozenset(["b3", "b6"]))
    assert isinstance(result, Unrepairable)
    assert result.fragments[0].reason == (
        "no bookie that may take copies is left: b3 is in the ensemble already; b6 is not writable"
    )
    assert cluster.metadata == before
    assert not cluster.written
    # One that fails is named, too.
    cluster.silent.add("b5")
    result = cluster.repair(["b1"], targets=frozenset(["b5"]))
    assert isinstance(result, Unrepairable)
    assert "b5 takes no copy" in result.reason
