"""Which bookies take the copies in the repair of one ledger, in a cluster that answers at once."""

from __future__ import annotations

from dataclasses import replace

from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.replication.actions import (
    NothingBad,
    Repaired,
    Unrepairable,
)
from tests.support.ledgers import ledger
from tests.support.repair import BOOKIES, RepairedCluster, closed


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


def test_a_target_that_fails_is_exchanged() -> None:
    cluster = RepairedCluster(closed(), BOOKIES, 9)
    cluster.lose("b1")
    cluster.silent.add("b4")
    assert isinstance(cluster.repair(["b1"]), Repaired)
    cluster.assert_whole()
    assert cluster.metadata is not None
    assert cluster.metadata.last_segment.ensemble[0] == "b5"


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
