"""The moves of copies to other racks in the repair of one ledger, in a cluster that answers at once."""

from __future__ import annotations

from typing import Any

from bk_spark.bookie.placement.placement import DEFAULT_RACK
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.replication.actions import (
    ChooseTarget,
    FindMisplaced,
    NothingBad,
    Repaired,
    Unrepairable,
)
from tests.support.repair import BOOKIES, RepairedCluster, closed


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


def test_r11_a_striped_ledger_is_moved_copy_by_copy_as_far_as_each_move_helps() -> None:
    cluster = RepairedCluster(closed(Quorum(4, 2, 2), 9, (0, "b1 b2 b3 b4")), BOOKIES, 9)
    cluster.racks = {**dict.fromkeys(BOOKIES, "/a"), "b5": "/b"}
    cluster.writable -= {"b6"}
    # One bookie is there. Two of four write quorums are spread then.
    result = cluster.repair()
    assert isinstance(result, Repaired)
    assert (result.moved, result.adheres) == (1, False)
    assert cluster.repair() == NothingBad()
    # With another one, all are.
    cluster.writable.add("b6")
    cluster.racks["b6"] = "/b"
    result = cluster.repair()
    assert isinstance(result, Repaired)
    assert (result.moved, result.adheres) == (1, True)
    cluster.assert_whole()
    assert cluster.metadata is not None
    racks = [cluster.racks[each] for each in cluster.metadata.last_segment.ensemble]
    assert racks in (["/a", "/b", "/a", "/b"], ["/b", "/a", "/b", "/a"])
    assert cluster.repair() == NothingBad()


def test_r11_all_moves_of_a_wide_ledger_are_one_repair() -> None:
    """Each round moves one copy, and every second one of 20 is to be moved."""
    here = [f"a{number}" for number in range(20)]
    there = [f"c{number}" for number in range(10)]
    cluster = RepairedCluster(closed(Quorum(20, 2, 2), 39, (0, " ".join(here))), (*here, *there), 39)
    cluster.racks = {**dict.fromkeys(here, "/a"), **dict.fromkeys(there, "/b")}
    result = cluster.repair()
    assert isinstance(result, Repaired)
    assert (result.moved, result.adheres) == (10, True)
    cluster.assert_whole()


def test_r11_moves_end_even_if_racks_change_all_the_time() -> None:
    cluster = misplaced("b5", "b6")

    def change(action: Any) -> None:
        if isinstance(action, FindMisplaced) and cluster.metadata is not None:
            ensemble = cluster.metadata.last_segment.ensemble
            cluster.racks = {each: "/a" if each in ensemble else "/b" for each in BOOKIES}

    cluster.before = change
    result = cluster.repair()
    assert isinstance(result, Unrepairable)
    assert "keep changing" in result.reason


def misplaced(*elsewhere: str) -> RepairedCluster:
    """b1, b2 and b3 are in one rack."""
    cluster = RepairedCluster(closed(), ("b1", "b2", "b3", *elsewhere), 9)
    cluster.racks = {**dict.fromkeys(BOOKIES, "/a"), **dict.fromkeys(elsewhere, "/b")}
    return cluster


def test_r11_the_target_of_a_move_that_fails_is_exchanged() -> None:
    cluster = misplaced("b5", "b6")
    cluster.silent.add("b5")
    result = cluster.repair()
    assert isinstance(result, Repaired)
    assert (result.moved, result.adheres) == (1, True)
    assert cluster.metadata is not None
    assert "b6" in cluster.metadata.last_segment.ensemble
    cluster.assert_whole()


def test_r11_a_move_that_failed_keeps_the_mark_and_says_why() -> None:
    cluster = misplaced("b5")
    cluster.silent.add("b5")
    result = cluster.repair()
    assert isinstance(result, Unrepairable)
    assert "bookie b5 takes no copy" in result.reason
    # It is not chosen again.
    chosen = [action for action in cluster.actions if isinstance(action, ChooseTarget)]
    assert ["b5" in action.exclude for action in chosen] == [False, True]


def test_r11_no_copy_is_moved_because_a_rack_is_unknown() -> None:
    """Apache's auditor asks for it: to its policy, /default-rack is a rack like others."""
    for racks in ("??a", "aa?", "???"):
        cluster = misplaced("b5", "b6")
        members = zip(("b1", "b2", "b3"), racks, strict=True)
        cluster.racks |= {bookie: DEFAULT_RACK if rack == "?" else f"/{rack}" for bookie, rack in members}
        assert cluster.repair() == NothingBad()
        assert not cluster.written
    # Nor is one moved to a bookie of unknown rack, which may be in the same rack.
    cluster = misplaced("b5")
    cluster.racks["b5"] = DEFAULT_RACK
    assert cluster.repair() == NothingBad()
    assert not cluster.written


def test_r11_an_entry_that_is_lost_everywhere_is_found_by_a_move() -> None:
    cluster = misplaced("b5")
    for bookie_id in ("b1", "b2", "b3"):
        del cluster.disks[bookie_id][5]
    result = cluster.repair()
    assert isinstance(result, Unrepairable)
    assert result.unreadable == {5}
    assert "entry 5: " in result.reason
