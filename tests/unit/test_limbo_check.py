"""The check of one ledger in limbo, in a cluster that answers at once. ``b1`` is the bookie that lost data."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pytest

from bk_spark.protocol.codes import Code
from bk_spark.protocol.errors import EntryUnknownError
from bk_spark.protocol.ledger.reading.read_actions import EntriesRead, RequestFailed
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.replication.actions import NothingBad, RecoverLedger, Repaired, Unrepairable, WriteEntries
from bk_spark.protocol.replication.copying.copy_limits import CopyLimits
from bookie_server.integrity import limbo_check
from bookie_server.integrity.limbo_check import (
    EndLimbo,
    LimboCheck,
    LimboEnded,
    LimboResult,
    NothingToCheck,
    NotWhole,
    OwnFound,
    ReadOwn,
    ReadState,
    StateFound,
    Whole,
)
from tests.support.ledgers import LEDGER, ledger
from tests.support.repair import RepairedCluster, closed

BOOKIES = ("b1", "b2", "b3", "b4", "b5", "b6")
STRIPED = Quorum(4, 2, 2)


class LossyCluster(RepairedCluster):
    """``b1`` lost ``lost`` entries, all by default, and its ledger is in limbo."""

    def __init__(
        self, metadata: LedgerMetadata, last: int, lost: Collection[int] | None = None, *, fenced: bool = False
    ) -> None:
        super().__init__(metadata, BOOKIES, last)
        self.limbo, self.fenced = True, fenced
        #: How it calls what it lacks.
        self.unknown = Code.UNKNOWN_LEDGER_STATE
        for entry_id in list(self.disks["b1"]) if lost is None else lost:
            del self.disks["b1"][entry_id]

    def check(self) -> LimboResult:
        result: LimboResult = self.run(LimboCheck(LEDGER, "b1", CopyLimits()))
        return result

    def perform(self, action: Any) -> Any:
        match action:
            case ReadState():
                return StateFound(self.limbo, self.fenced)
            case ReadOwn(first, last):
                held = sorted(entry_id for entry_id in self.disks["b1"] if first <= entry_id <= last)
                return OwnFound(np.array(held, np.int64))
            case EndLimbo():
                self.limbo = False
                return LimboEnded()
        return super().perform(action)

    def _read(self, request_id: int, bookie_id: str, entry_ids: range) -> EntriesRead | RequestFailed:
        answer = super()._read(request_id, bookie_id, entry_ids)
        if not self.limbo or bookie_id != "b1" or not isinstance(answer, EntriesRead):
            return answer
        unknown = {Code.NO_ENTRY: self.unknown}
        answers = {key: each._replace(code=unknown.get(each.code, each.code)) for key, each in answer.answers.items()}
        return EntriesRead(request_id, answers)

    @property
    def copied(self) -> list[int]:
        assert {bookie for bookie, _ in self.written} <= {"b1"}
        return sorted(entry_id for _, entry_id in self.written)


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), STRIPED, Quorum(4, 3, 2)])
def test_everything_that_was_lost_is_copied_and_nothing_else(quorum: Quorum) -> None:
    cluster = LossyCluster(closed(quorum, 19), 19)
    result = cluster.check()
    assert isinstance(result, Whole)
    assert result.entries == len(cluster.disks["b1"])
    assert not cluster.limbo
    cluster.assert_whole()
    assert cluster.copied == [entry_id for entry_id in range(20) if "b1" in cluster.holders(entry_id)]


def test_what_is_here_is_not_copied() -> None:
    """Each gap is closed alone."""
    cluster = LossyCluster(closed(Quorum(3, 3, 2), 19), 19, [0, 7, 8, 19])
    assert cluster.check() == Whole(False, 4, cluster_bytes(cluster, [0, 7, 8, 19]))
    assert cluster.copied == [0, 7, 8, 19]
    assert {entry_id for _, entry_id in cluster.read} == {0, 7, 8, 19}


def cluster_bytes(cluster: LossyCluster, entry_ids: Collection[int]) -> int:
    return sum(4 + len(cluster.disks["b1"][entry_id]) for entry_id in entry_ids)


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), STRIPED])
def test_a_long_fragment_is_looked_up_in_parts(monkeypatch: pytest.MonkeyPatch, quorum: Quorum) -> None:
    monkeypatch.setattr(limbo_check, "ENTRIES_AT_ONCE", 7)
    cluster = LossyCluster(closed(quorum, 24), 24)
    asked: list[tuple[int, int]] = []

    def before(action: Any) -> None:
        if isinstance(action, ReadOwn):
            asked.append((action.first_entry_id, action.last_entry_id))

    cluster.before = before
    assert isinstance(cluster.check(), Whole)
    assert asked == [(0, 6), (7, 13), (14, 20), (21, 24)]
    cluster.assert_whole()


def test_few_entries_are_compared_in_one_step() -> None:
    """The check runs in the event loop of a bookie that serves."""

    class WholeCluster(LossyCluster):
        def perform(self, action: Any) -> Any:
            if isinstance(action, ReadOwn):
                found = np.arange(action.first_entry_id, action.last_entry_id + 1)
                assert len(found) <= 65_536
                return OwnFound(found)
            return super().perform(action)

    assert WholeCluster(closed(Quorum(3, 3, 2), 1_000_000), -1).check() == Whole()


def test_only_the_fragments_of_this_bookie_count() -> None:
    metadata = closed(Quorum(3, 3, 2), 29, (0, "b1 b2 b3"), (10, "b2 b3 b4"), (20, "b3 b1 b4"))
    cluster = LossyCluster(metadata, 29)
    assert isinstance(cluster.check(), Whole)
    assert cluster.copied == [*range(10), *range(20, 30)]


def test_c5_an_open_ledger_is_recovered_before_anything_is_copied() -> None:
    cluster = LossyCluster(ledger(), 9, fenced=True)
    actions: list[Any] = []
    cluster.before = actions.append
    result = cluster.check()
    assert isinstance(result, Whole)
    assert result.recovered
    assert cluster.metadata is not None
    assert (cluster.metadata.state, cluster.metadata.last_entry_id) == (LedgerState.CLOSED, 9)
    cluster.assert_whole()
    kinds = [type(action) for action in actions]
    assert kinds.index(RecoverLedger) < kinds.index(WriteEntries) < kinds.index(EndLimbo)


def test_c5_limbo_lasts_while_the_end_of_the_ledger_is_unknown() -> None:
    cluster = LossyCluster(ledger(), 9, fenced=True)
    for bookie in ("b2", "b3"):
        cluster.disks[bookie].clear()
    with pytest.raises(EntryUnknownError):
        cluster.check()
    assert cluster.limbo
    assert not cluster.written


def test_a_bookie_that_came_into_the_last_segment_after_it_was_marked_ends_nobodys_ledger() -> None:
    """It was not fenced, so it was not there when the ledgers were marked."""
    metadata = ledger(Quorum(3, 3, 2), (0, "b1 b2 b3"), (10, "b2 b3 b4"), (20, "b1 b2 b3"))
    cluster = LossyCluster(metadata, 29, range(10))
    assert cluster.check() == Whole(False, 10, cluster_bytes(cluster, range(10)))
    assert cluster.metadata is metadata
    assert cluster.copied == list(range(10))


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), STRIPED])
def test_an_entry_that_nobody_has_keeps_the_ledger_in_limbo(quorum: Quorum) -> None:
    """All others are copied, and not again."""
    cluster = LossyCluster(closed(quorum, 39), 39)
    for disk in cluster.disks.values():
        disk.pop(4, None)
        disk.pop(20, None)
    wanted = [each for each in range(40) if each not in (4, 20) and "b1" in cluster.holders(each)]
    result = cluster.check()
    assert isinstance(result, NotWhole)
    assert "entry 4: bookie" in result.reason
    assert "entry 20: bookie" in result.reason
    assert cluster.limbo
    assert cluster.copied == wanted
    cluster.written.clear()
    assert isinstance(cluster.check(), NotWhole)
    assert not cluster.written


def test_a_ledger_of_which_much_is_lost_is_given_up_for_now() -> None:
    """Each entry that nobody has costs a round of requests."""
    cluster = LossyCluster(closed(Quorum(3, 3, 2), 1999), 1999)
    for disk in cluster.disks.values():
        disk.clear()
    result = cluster.check()
    assert isinstance(result, NotWhole)
    assert "7 more fragments" in result.reason
    assert len({entry_id for _, entry_id in cluster.read}) < 1000


def test_a_bookie_that_takes_no_copies_stays_in_limbo() -> None:
    cluster = LossyCluster(closed(Quorum(3, 3, 2), 29, (0, "b1 b2 b3"), (10, "b1 b3 b4")), 29)
    cluster.silent.add("b1")
    result = cluster.check()
    assert isinstance(result, NotWhole)
    assert "bookie b1 takes no copy" in result.reason
    assert not cluster.written


def test_a_deleted_ledger_needs_no_check() -> None:
    cluster = LossyCluster(closed(), 9)
    cluster.metadata = None
    assert cluster.check() == NothingToCheck()
    cluster = LossyCluster(closed(), 9)
    cluster.limbo = False
    assert cluster.check() == NothingToCheck()
    assert not cluster.written


def test_a_ledger_that_no_longer_names_this_bookie_lacks_nothing() -> None:
    cluster = LossyCluster(closed(Quorum(3, 3, 2), 9, (0, "b2 b3 b4")), 9)
    assert cluster.check() == Whole()
    assert not cluster.limbo
    assert not cluster.written


@pytest.mark.parametrize("unknown", [Code.UNKNOWN_LEDGER_STATE, Code.IO_ERROR])
def test_r6_a_repair_leaves_a_bookie_alone_that_checks_its_data(unknown: Code) -> None:
    """Neither wire protocol says that a copy is lost. When the check has ended, the auditor's mark can go."""
    cluster = LossyCluster(closed(Quorum(3, 3, 2), 19), 19)
    cluster.unknown = unknown
    result = cluster.repair(["b1"])
    assert isinstance(result, Unrepairable)
    assert [problem.bookies for problem in result.fragments] == [("b1",)]
    assert not cluster.written
    assert isinstance(cluster.check(), Whole)
    assert cluster.repair(["b1"]) == NothingBad()
    # It would be replaced if it said "absent".
    cluster = LossyCluster(closed(Quorum(3, 3, 2), 19), 19)
    cluster.unknown = Code.NO_ENTRY
    assert isinstance(cluster.repair(["b1"]), Repaired)
