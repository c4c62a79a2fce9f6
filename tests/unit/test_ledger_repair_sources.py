"""Copies that are silent, damaged or lost in the repair of one ledger, in a cluster that answers at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.replication.actions import (
    Repaired,
    Unrepairable,
)
from tests.support.repair import BOOKIES, RepairedCluster, closed, stored_entry


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


@pytest.mark.parametrize("entry_id", [4, 9])
def test_without_a_password_copies_must_agree(entry_id: int) -> None:
    unsigned = replace(closed(), digest_type=None, password=None)
    cluster = RepairedCluster(closed(), BOOKIES, 9)
    cluster.metadata = unsigned
    cluster.lose("b1")
    assert isinstance(cluster.repair(["b1"]), Repaired)
    assert len(cluster.written) == 10
    cluster = RepairedCluster(closed(), BOOKIES, 9)
    cluster.metadata = unsigned
    cluster.lose("b1")
    right = cluster.disks["b2"][entry_id]
    cluster.disks["b2"][entry_id] = right[:-1] + bytes([right[-1] ^ 1])
    result = cluster.repair(["b1"])
    assert isinstance(result, Unrepairable)
    assert "differ" in result.reason
