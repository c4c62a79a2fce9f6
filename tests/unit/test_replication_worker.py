"""The replication worker's loop: marks, locks, repairs, pauses (bookie_server/replication/worker.py)."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pytest

from bk_spark.protocol.errors import MetadataUnavailableError
from bk_spark.protocol.machine import StartTimer, Succeeded, TimerFired
from bk_spark.protocol.replication.copying.copy_limits import CopyLimits
from bk_spark.protocol.replication.copying.copy_rate import CopyRate
from bookie_server.replication.actions import DisabledRead, SessionLost
from bookie_server.replication.worker import (
    MAX_CANDIDATES,
    MAX_RESTING,
    ReplicationWorker,
    WorkerEnd,
    WorkerSettings,
)
from bookie_server.replication.worker_actions import (
    Finish,
    Lock,
    Locked,
    LocksRead,
    MarksChanged,
    MarksRead,
    NoteReason,
    NotLocked,
    ReadLocks,
    ReadMarks,
    Release,
    Released,
    Repair,
    RepairEnd,
    RepairEnded,
    StopRepair,
    WatchSwitch,
    WorkFailed,
)

pytestmark = pytest.mark.unit

LOST = MetadataUnavailableError("no answer")


class Rig:
    def __init__(self, seed: int = 1, at_once: int = 1, disabled: bool = False) -> None:
        self.worker = ReplicationWorker(WorkerSettings(at_once=at_once), Random(seed))
        assert self.worker.take_actions() == [WatchSwitch()]
        self.tell(DisabledRead(disabled), MarksChanged(some=True))

    def tell(self, *events: Any) -> Rig:
        for event in events:
            self.worker.handle(event)
        return self

    def take(self, kind: type) -> list[Any]:
        """The new actions, which are all of this kind."""
        actions = self.worker.take_actions()
        assert {type(action) for action in actions} <= {kind}, actions
        return list(actions)

    def marks(self, *ledger_ids: int, locked: frozenset[int] = frozenset()) -> Rig:
        assert self.worker.take_actions() == [ReadLocks()]
        self.tell(LocksRead(locked))
        assert self.worker.take_actions() == [ReadMarks(first=True)]
        return self.tell(MarksRead(ledger_ids, more=False))

    def repairing(self, ledger_id: int = 5, version: int = 3) -> Rig:
        self.marks(ledger_id)
        assert self.take(Lock) == [Lock(ledger_id)]
        self.tell(Locked(ledger_id, version))
        assert self.take(Repair) == [Repair(ledger_id)]
        return self


def test_an_attempt_that_fails_while_marks_are_read_is_counted() -> None:
    """Otherwise the pauses of a ledger would not grow in a cluster with many marks."""
    rig = Rig(at_once=2).marks(5)
    for attempt in (1, 2, 3):
        assert rig.worker.take_actions() == [Lock(5), ReadLocks()]
        rig.tell(Locked(5, 3), LocksRead(frozenset({5})))
        assert rig.worker.take_actions() == [Repair(5), ReadMarks(first=True)]
        # The page with ledger 5 has been read when its repair ends.
        rig.tell(MarksRead((5,), more=True), RepairEnded(5, RepairEnd.UNREPAIRABLE, "lost"))
        assert NoteReason(5, "lost", attempt) in rig.worker.take_actions()
        rig.tell(MarksRead((), more=False), TimerFired(("rest", 5)), Released(5), TimerFired("look"))
        assert rig.worker.take_actions()[-1] == ReadLocks()
        rig.tell(LocksRead(frozenset()))
        assert rig.take(ReadMarks) == [ReadMarks(first=True)]
        rig.tell(MarksRead((5,), more=False))


def test_it_locks_as_many_marked_ledgers_as_it_may_repair_at_once() -> None:
    rig = Rig(at_once=2).marks(1, 2, 3, 4)
    first, second = (action.ledger_id for action in rig.take(Lock))
    rig.tell(Locked(first, 0), NotLocked(second))
    actions = rig.worker.take_actions()
    assert Repair(first) in actions
    third = next(action.ledger_id for action in actions if isinstance(action, Lock))
    assert third not in (first, second)
    rig.tell(RepairEnded(first, RepairEnd.REPAIRED))
    assert rig.take(Finish) == [Finish(first, 0)]
    rig.tell(Released(first))
    assert len(rig.take(Lock)) == 1


def test_locked_ledgers_are_skipped() -> None:
    rig = Rig(at_once=5).marks(1, 2, 3, locked=frozenset({1, 3}))
    assert [each for each in rig.worker.take_actions() if isinstance(each, Lock)] == [Lock(2)]


def test_pages_are_read_until_there_is_enough_to_do_and_their_marks_shuffled() -> None:
    chosen = set()
    for seed in range(20):
        rig = Rig(seed)
        rig.worker.take_actions()
        rig.tell(LocksRead(frozenset(range(100))))
        assert rig.take(ReadMarks) == [ReadMarks(first=True)]
        rig.tell(MarksRead(range(400), more=True))
        more, lock = rig.worker.take_actions()
        assert more == ReadMarks(first=False)
        chosen.add(lock.ledger_id)
        rig.tell(MarksRead(range(400, 2_000), more=True))
        assert rig.take(ReadMarks) == []
    assert len(chosen) > 10
    assert min(chosen) >= 100


def test_without_marks_it_waits_and_looks_again_when_there_are_new_ones() -> None:
    rig = Rig().marks()
    assert rig.worker.take_actions() == [StartTimer("look", 5_000)]
    rig.tell(TimerFired("look")).marks()
    assert rig.worker.take_actions() == [StartTimer("look", 5_000)]
    rig.tell(MarksChanged(some=True))
    assert rig.worker.take_actions() == [ReadLocks()]
    # New ones while it reads: it reads again.
    rig.tell(TimerFired("look"), MarksChanged(some=True), LocksRead(frozenset()))
    assert rig.worker.take_actions() == [ReadMarks(first=True)]
    rig.tell(MarksRead((), more=False))
    assert rig.worker.take_actions() == [ReadLocks()]


def test_while_no_ledger_is_marked_it_reads_nothing() -> None:
    rig = Rig().marks()
    assert rig.worker.take_actions() == [StartTimer("look", 5_000)]
    rig.tell(MarksChanged(some=False), TimerFired("look"), DisabledRead(True), DisabledRead(False))
    assert rig.worker.take_actions() == []
    rig.tell(MarksChanged(some=True)).marks(5)
    assert rig.take(Lock) == [Lock(5)]


def test_marks_that_vanish_while_they_are_read_stop_the_looking() -> None:
    rig = Rig()
    assert rig.worker.take_actions() == [ReadLocks()]
    rig.tell(MarksChanged(some=False), LocksRead(frozenset()), MarksRead((), more=False), TimerFired("look"))
    assert not any(isinstance(each, ReadLocks) for each in rig.worker.take_actions())


def test_a_mark_that_is_gone_after_the_lock_needs_no_repair() -> None:
    rig = Rig().marks(5)
    rig.worker.take_actions()
    rig.tell(Locked(5, None))
    assert rig.worker.take_actions() == [Release(5)]


@pytest.mark.parametrize("end", [RepairEnd.REPAIRED, RepairEnd.GONE])
def test_a_mark_is_deleted_at_the_version_that_was_read_under_the_lock(end: RepairEnd) -> None:
    rig = Rig().repairing(5, version=12).tell(RepairEnded(5, end))
    assert rig.worker.take_actions() == [Finish(5, 12)]
    assert rig.worker.counters.repaired == (end is RepairEnd.REPAIRED)


@pytest.mark.parametrize("end", [RepairEnd.LOCK_LOST, RepairEnd.STOPPED])
def test_a_repair_that_did_not_end_leaves_the_mark(end: RepairEnd) -> None:
    rig = Rig().repairing().tell(RepairEnded(5, end))
    assert rig.worker.take_actions() == [Release(5)]


def test_pauses_of_a_ledger_that_cannot_be_repaired_grow_and_it_keeps_its_lock() -> None:
    rig = Rig().repairing()
    pauses = []
    for attempt in range(1, 12):
        rig.tell(RepairEnded(5, RepairEnd.UNREPAIRABLE, "entry 3 is lost"))
        actions = rig.worker.take_actions()
        assert NoteReason(5, "entry 3 is lost", attempt) in actions
        pauses += [each.after_ms for each in actions if isinstance(each, StartTimer) and each.name == ("rest", 5)]
        assert Release(5) not in actions
        rig.tell(TimerFired(("rest", 5)))
        assert Release(5) in rig.worker.take_actions()
        rig.tell(Released(5), MarksChanged(some=True))
        rig.worker.take_actions()
        rig.tell(LocksRead(frozenset()), MarksRead((5,), more=False))
        assert Lock(5) in rig.worker.take_actions()
        rig.tell(Locked(5, 3))
        rig.worker.take_actions()
    assert all(0.75 * 9_375 * 2**n <= pauses[n] <= 9_375 * 2**n for n in range(5))
    assert all(0.75 * 300_000 <= pause <= 300_000 for pause in pauses[5:])
    assert len(set(pauses)) == len(pauses)  # jitter
    assert rig.worker.counters.failed_attempts == 11


def test_a_resting_ledger_occupies_no_slot_and_resting_ones_are_bounded() -> None:
    rig = Rig(at_once=1)
    rig.marks(*range(MAX_CANDIDATES))
    released = 0
    for _ in range(MAX_CANDIDATES):
        lock = next(each for each in rig.worker.take_actions() if isinstance(each, Lock))
        rig.tell(Locked(lock.ledger_id, 0), RepairEnded(lock.ledger_id, RepairEnd.UNREPAIRABLE, "lost"))
    assert rig.worker.take_actions()
    rig.tell(LocksRead(frozenset()), MarksRead((5_000,), more=False), Locked(5_000, 0))
    rig.tell(RepairEnded(5_000, RepairEnd.UNREPAIRABLE, "lost"))
    released = sum(isinstance(each, Release) for each in rig.worker.take_actions())
    assert MAX_RESTING == MAX_CANDIDATES
    assert released == 1


def test_ledgers_that_are_gone_are_forgotten() -> None:
    rig = Rig().repairing().tell(RepairEnded(5, RepairEnd.UNREPAIRABLE, "lost"), TimerFired(("rest", 5)), Released(5))
    rig.worker.take_actions()
    rig.tell(LocksRead(frozenset()), MarksRead((6,), more=False))
    assert Lock(6) in rig.worker.take_actions()
    rig.tell(Locked(6, 1), RepairEnded(6, RepairEnd.GONE), Released(6), MarksChanged(some=True), TimerFired("look"))
    rig.worker.take_actions()
    rig.tell(LocksRead(frozenset()), MarksRead((5,), more=False), Locked(5, 0))
    rig.worker.take_actions()
    rig.tell(RepairEnded(5, RepairEnd.UNREPAIRABLE, "lost"))
    assert NoteReason(5, "lost", 1) in rig.worker.take_actions()  # its first attempt


def test_an_error_of_a_repair_is_a_failed_attempt() -> None:
    rig = Rig().repairing().tell(WorkFailed(Repair(5), LOST))
    assert NoteReason(5, "no answer", 1) in rig.worker.take_actions()


def test_a_lock_whose_outcome_is_unknown_is_given_back() -> None:
    rig = Rig(at_once=1).marks(5)
    assert rig.worker.take_actions() == [Lock(5)]
    rig.tell(WorkFailed(Lock(5), LOST))
    assert rig.worker.take_actions() == [StartTimer(("again", 5), 5_000)]
    rig.tell(TimerFired(("again", 5)))
    assert rig.worker.take_actions() == [Release(5)]
    pauses = []
    for _ in range(6):
        rig.tell(WorkFailed(Release(5), LOST))
        (timer,) = rig.worker.take_actions()
        pauses.append(timer.after_ms)
        rig.tell(TimerFired(("again", 5)))
        assert rig.worker.take_actions() == [Release(5)]
    assert pauses == [10_000, 20_000, 40_000, 60_000, 60_000, 60_000]
    rig.tell(Released(5))
    assert rig.worker.take_actions() == [ReadLocks()]


def test_a_failed_finish_is_repeated_at_the_same_version() -> None:
    rig = Rig().repairing(5, version=2).tell(RepairEnded(5, RepairEnd.REPAIRED))
    assert rig.worker.take_actions() == [Finish(5, 2)]
    rig.tell(WorkFailed(Finish(5, 2), LOST), TimerFired(("again", 5)))
    assert rig.worker.take_actions() == [StartTimer(("again", 5), 5_000), Finish(5, 2)]


def test_marks_that_cannot_be_read_are_read_later() -> None:
    rig = Rig()
    rig.worker.take_actions()
    rig.tell(WorkFailed(ReadLocks(), LOST))
    assert rig.worker.take_actions() == [StartTimer("look", 5_000)]
    rig.tell(TimerFired("look")).marks(5)
    assert Lock(5) in rig.worker.take_actions()


def test_disabled_means_that_nothing_is_begun_and_repairs_stop() -> None:
    rig = Rig(disabled=True)
    assert rig.worker.take_actions() == []
    rig.tell(DisabledRead(False)).repairing().tell(DisabledRead(True))
    assert rig.worker.take_actions() == [StopRepair(5)]
    # The lock stays until nothing of the repair is under way.
    rig.tell(RepairEnded(5, RepairEnd.STOPPED))
    assert rig.worker.take_actions() == [Release(5)]
    rig.tell(
        Released(5), MarksChanged(some=True), TimerFired("look"), LocksRead(frozenset()), MarksRead((7,), more=False)
    )
    assert not any(isinstance(each, Lock | ReadLocks) for each in rig.worker.take_actions())
    rig.tell(DisabledRead(False))
    assert rig.worker.take_actions()


def test_a_lock_that_arrives_after_the_switch_is_given_back() -> None:
    rig = Rig().marks(5)
    rig.worker.take_actions()
    rig.tell(DisabledRead(True), Locked(5, 1))
    assert rig.worker.take_actions() == [Release(5)]


def test_it_stops_at_once_when_its_session_is_gone() -> None:
    rig = Rig().repairing().tell(RepairEnded(5, RepairEnd.REPAIRED), SessionLost())
    assert rig.worker.outcome == Succeeded(WorkerEnd.SESSION_LOST)
    assert rig.worker.take_actions() == []
    rig.tell(TimerFired("look"), Released(5))
    assert rig.worker.take_actions() == []


def test_an_orderly_stop_ends_repairs_and_gives_all_locks_back() -> None:
    rig = Rig(at_once=3).marks(1, 2, 3)
    locks = [each.ledger_id for each in rig.worker.take_actions()]
    rig.tell(Locked(locks[0], 0), Locked(locks[1], 0))
    rig.tell(RepairEnded(locks[0], RepairEnd.UNREPAIRABLE, "lost"))
    rig.worker.take_actions()
    rig.worker.drain()
    actions = rig.worker.take_actions()
    assert set(actions) >= {Release(locks[0]), StopRepair(locks[1])}
    rig.tell(Locked(locks[2], 0), RepairEnded(locks[1], RepairEnd.REPAIRED))
    assert rig.worker.take_actions() == [Release(locks[2]), Finish(locks[1], 0)]
    rig.tell(Released(locks[0]), Released(locks[1]))
    assert rig.worker.outcome is None
    rig.tell(Released(locks[2]))
    assert rig.worker.outcome == Succeeded(WorkerEnd.DRAINED)


def test_an_orderly_stop_is_bounded() -> None:
    rig = Rig().repairing()
    rig.worker.drain()
    assert StartTimer("drain", 20_000) in rig.worker.take_actions()
    rig.tell(TimerFired("drain"))
    assert rig.worker.outcome == Succeeded(WorkerEnd.DRAINED)


# --- the rate of copies -----------------------------------------------------------------------------


def test_the_rate_of_copies_is_kept_in_entries_and_in_bytes() -> None:
    rate = CopyRate(entries_per_s=100, bytes_per_s=1_000)
    now_ms = 5_000.0
    for _ in range(50):
        now_ms += rate.take(10, 40, now_ms)
    # 500 entries at 100 a second; 2,000 bytes at 1,000 would take 2 s.
    assert 4_700 <= now_ms - 5_000 <= 5_000
    for _ in range(50):
        now_ms += rate.take(1, 100, now_ms)
    assert 9_500 <= now_ms - 5_000 <= 10_000


def test_unused_rate_is_hardly_saved_up() -> None:
    rate = CopyRate(bytes_per_s=1_000)
    assert rate.take(1, 100, 1_000_000) == 0
    assert rate.take(1, 1_000, 1_000_000) == 0
    assert rate.take(1, 1, 1_000_000) == 1_000
    assert CopyRate().take(10**9, 10**12, 0) == 0


def test_the_rate_is_kept_however_many_batches_wait() -> None:
    rate = CopyRate(bytes_per_s=1_000_000)
    batch_bytes, batches = 256 * 1024, 800  # eight batches of each of a hundred ledgers
    waits_ms = [rate.take(1, batch_bytes, 0.0) for _ in range(batches)]
    between = [later - earlier for earlier, later in itertools.pairwise(waits_ms[1:])]
    assert all(abs(each - batch_bytes / 1_000) < 1e-6 for each in between)
    assert waits_ms[-1] > 200_000


def test_batches_take_a_second_at_most() -> None:
    limits = CopyLimits()
    assert CopyRate().batches(limits) == limits
    assert CopyRate(10**9, 10**9).batches(limits) == limits
    slow = CopyRate(entries_per_s=100, bytes_per_s=3_000).batches(limits)
    assert (slow.batch_entries, slow.batch_bytes) == (100, 3_000)
