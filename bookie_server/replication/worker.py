"""The replication worker: takes marked ledgers, one lock each, and has them repaired (compatibility.md §6.6).

It reads marks in random order and shuffles them, so that many workers spread over them. The lock is held from before
the repair until the mark is deleted. A ledger that cannot be repaired keeps its lock for a pause, as with Apache's
workers, so that no other worker tries at once. The pause grows with each attempt.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from bk_spark.protocol.machine import EndedBy, StartTimer, Succeeded, TimerFired
from bookie_server.replication.actions import DisabledRead, SessionLost
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

#: Marked ledgers at which a worker stops reading marks, until it has tried them.
MAX_CANDIDATES: Final = 1_000
#: Ledgers that rest before their next attempt, each with its lock.
MAX_RESTING: Final = 1_000
#: Ledgers whose failed attempts are counted.
_MAX_FAILING: Final = 10_000
#: The first pause of a ledger that cannot be repaired is this part of the longest one, as with Apache.
_FIRST_PAUSE_SHARE: Final = 1 / 32
#: Pauses are shortened by up to this share at random.
_JITTER: Final = 0.25
_MAX_RETRY_PAUSE_MS: Final = 60_000
_DRAIN_MS: Final = 20_000


class WorkerEnd(enum.Enum):
    """Why a worker ended."""

    DRAINED = "it was stopped"
    SESSION_LOST = "its session with ZooKeeper ended"


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings of a worker. Times are in milliseconds.

    Parameters
    ----------
    at_once
        Ledgers that are repaired at the same time.
    backoff_ms
        How long to wait before marks are read again while there are some, or an action that failed is repeated.
    longest_pause_ms
        The longest pause of a ledger that cannot be repaired.
    """

    at_once: int = 1
    backoff_ms: int = 5_000
    longest_pause_ms: int = 300_000


@dataclass(slots=True)
class WorkerCounters:
    """What the worker did, for metrics and operators."""

    repaired: int = 0
    failed_attempts: int = 0


class _State(enum.Enum):
    LOCKING = enum.auto()
    REPAIRING = enum.auto()
    #: The lock is held until the next attempt.
    RESTING = enum.auto()
    FINISHING = enum.auto()
    RELEASING = enum.auto()


class _Look(enum.Enum):
    """Whether marks are being read."""

    IDLE = enum.auto()
    READING = enum.auto()
    #: They are read again after a pause, or when there are new ones.
    PAUSING = enum.auto()


@dataclass(slots=True)
class _Held:
    """A ledger whose lock this worker has, or may have."""

    state: _State
    mark_version: int = -1
    #: How often the current action failed.
    failures: int = 0


Event = (
    DisabledRead
    | SessionLost
    | MarksChanged
    | LocksRead
    | MarksRead
    | Locked
    | NotLocked
    | RepairEnded
    | Released
    | WorkFailed
    | TimerFired
)
Action = WatchSwitch | ReadLocks | ReadMarks | Lock | Repair | StopRepair | Finish | NoteReason | Release | StartTimer


class ReplicationWorker:
    """The machine of one worker. ``random`` chooses the ledgers and spreads the pauses.

    ``counters`` may go on counting for a former worker.
    """

    def __init__(self, settings: WorkerSettings, random: Random, counters: WorkerCounters | None = None) -> None:
        self._settings = settings
        self._random = random
        self.outcome: Succeeded[WorkerEnd] | EndedBy | None = None
        self.counters = counters or WorkerCounters()
        self._actions: list[Action] = [WatchSwitch()]
        #: None until it was read.
        self._disabled: bool | None = None
        self._draining = False
        self._held: dict[int, _Held] = {}
        #: Failed attempts by ledger, the oldest first.
        self._failing: dict[int, int] = {}
        #: Marked ledgers, in the order in which they are taken.
        self._candidates: list[int] = []
        self._look_state = _Look.IDLE
        #: Whether any ledger may be marked. False until it was read.
        self._some_marked = False
        #: There were new marks while they were read.
        self._look_again = False
        self._locked: frozenset[int] = frozenset()
        self._still_marked: set[int] = set()

    # --- the contract of machines ---

    def take_actions(self) -> list[Action]:
        """The new actions, in order."""
        actions, self._actions = self._actions, []
        return actions

    def handle(self, event: Event) -> None:
        """Take an event, and begin what there is room for. Ignored after the end."""
        if self.outcome is not None:
            return
        match event:
            case SessionLost():
                self._end(WorkerEnd.SESSION_LOST)
                return
            case DisabledRead(disabled):
                self._disabled = disabled
                if disabled:
                    self._let_go()
            case MarksChanged(some):
                self._some_marked = self._look_again = some
                if not some:
                    self._failing.clear()
                elif self._look_state is _Look.PAUSING:
                    self._look_state = _Look.IDLE
            case LocksRead(ledger_ids):
                self._locked = ledger_ids
                self._actions.append(ReadMarks(first=True))
            case MarksRead(ledger_ids, more):
                self._on_marks(ledger_ids, more)
            case Locked(ledger_id, mark_version):
                self._on_locked(ledger_id, mark_version)
            case RepairEnded(ledger_id, end, reason):
                self._on_repair_ended(ledger_id, end, reason)
            case NotLocked(ledger_id) | Released(ledger_id):
                self._held.pop(ledger_id, None)
            case WorkFailed(action, error):
                self._on_failed(action, error)
            case TimerFired(name):
                self._on_timer(name)
        self._fill()

    def fail(self, error: Exception) -> None:
        """An unexpected error ends the worker. Its locks go with its session."""
        if self.outcome is None:
            self.outcome = EndedBy(error)

    # --- commands ---

    def drain(self) -> None:
        """Begin nothing more, stop the repairs and give all locks back. Then the worker ends, after 20 s at most."""
        self._draining = True
        self._start_timer("drain", _DRAIN_MS)
        self._let_go()
        self._fill()

    @property
    def disabled(self) -> bool:
        """Whether an operator has disabled replication. False until it was read."""
        return self._disabled is True

    @property
    def some_marked(self) -> bool:
        """Whether any ledger may be marked. False until it was read."""
        return self._some_marked

    @property
    def repairing(self) -> tuple[int, ...]:
        """The ledgers that are being repaired."""
        return tuple(each for each, held in self._held.items() if held.state is _State.REPAIRING)

    # --- choice ---

    @property
    def _may_begin(self) -> bool:
        return self._disabled is False and not self._draining

    def _fill(self) -> None:
        if self.outcome is not None:
            return
        if self._draining and not self._held:
            self._end(WorkerEnd.DRAINED)
            return
        if not self._may_begin:
            return
        # A resting ledger occupies no slot.
        free = self._settings.at_once - sum(held.state is not _State.RESTING for held in self._held.values())
        while free > 0 and self._candidates:
            ledger_id = self._candidates.pop()
            if ledger_id not in self._held:
                self._held[ledger_id] = _Held(_State.LOCKING)
                self._actions.append(Lock(ledger_id))
                free -= 1
        if free > 0 and self._look_state is _Look.IDLE and self._some_marked:
            self._look()

    def _look(self) -> None:
        self._look_state, self._look_again = _Look.READING, False
        self._still_marked.clear()
        self._actions.append(ReadLocks())

    def _on_marks(self, ledger_ids: Sequence[int], more: bool) -> None:
        self._still_marked.update(each for each in ledger_ids if each in self._failing)
        self._candidates += [each for each in ledger_ids if each not in self._locked and each not in self._held]
        self._random.shuffle(self._candidates)
        if more and len(self._candidates) < MAX_CANDIDATES:
            self._actions.append(ReadMarks(first=False))
            return
        if not more:
            self._failing = {each: count for each, count in self._failing.items() if each in self._still_marked}
        if self._candidates or self._look_again:
            self._look_state = _Look.IDLE
        else:
            self._pause_looking()

    # --- one ledger ---

    def _on_locked(self, ledger_id: int, mark_version: int | None) -> None:
        held = self._held[ledger_id]
        if mark_version is None or not self._may_begin:
            self._release(ledger_id)
        else:
            held.state, held.mark_version, held.failures = _State.REPAIRING, mark_version, 0
            self._actions.append(Repair(ledger_id))

    def _on_repair_ended(self, ledger_id: int, end: RepairEnd, reason: str) -> None:
        held = self._held[ledger_id]
        match end:
            case RepairEnd.REPAIRED | RepairEnd.GONE:
                self.counters.repaired += end is RepairEnd.REPAIRED
                self._failing.pop(ledger_id, None)
                held.state, held.failures = _State.FINISHING, 0
                self._actions.append(Finish(ledger_id, held.mark_version))
            case RepairEnd.UNREPAIRABLE:
                self._rest(ledger_id, reason)
            case RepairEnd.LOCK_LOST | RepairEnd.STOPPED:
                self._release(ledger_id)

    def _rest(self, ledger_id: int, reason: str) -> None:
        attempts = self._failing.pop(ledger_id, 0) + 1
        while len(self._failing) >= _MAX_FAILING:
            del self._failing[next(iter(self._failing))]
        self._failing[ledger_id] = attempts
        # It was marked when the repair began. The page with its mark may have been read before.
        self._still_marked.add(ledger_id)
        self.counters.failed_attempts += 1
        self._actions.append(NoteReason(ledger_id, reason, attempts))
        resting = sum(held.state is _State.RESTING for held in self._held.values())
        if not self._may_begin or resting >= MAX_RESTING:
            self._release(ledger_id)
            return
        self._held[ledger_id].state = _State.RESTING
        longest_ms = self._settings.longest_pause_ms
        pause_ms = min(longest_ms, longest_ms * _FIRST_PAUSE_SHARE * 2 ** min(attempts - 1, 10))
        self._start_timer(("rest", ledger_id), pause_ms * (1 - _JITTER * self._random.random()))

    def _release(self, ledger_id: int) -> None:
        self._held[ledger_id].state = _State.RELEASING
        self._actions.append(Release(ledger_id))

    def _let_go(self) -> None:
        """Stop the repairs and give back the locks that no work needs."""
        self._candidates.clear()
        for ledger_id, held in self._held.items():
            if held.state is _State.REPAIRING:
                self._actions.append(StopRepair(ledger_id))
            elif held.state is _State.RESTING:
                self._release(ledger_id)

    # --- errors and timers ---

    def _on_failed(self, action: object, error: Exception) -> None:
        match action:
            case ReadLocks() | ReadMarks():
                self._candidates.clear()
                self._pause_looking()
            case Repair(ledger_id):
                self._rest(ledger_id, str(error))
            case Lock(ledger_id):
                # It may have been taken.
                self._again(ledger_id, _State.RELEASING)
            case Finish(ledger_id) | Release(ledger_id):
                self._again(ledger_id, self._held[ledger_id].state)

    def _again(self, ledger_id: int, state: _State) -> None:
        """Repeat the action of ``state`` after a pause, for as long as the session lasts."""
        held = self._held[ledger_id]
        held.state = state
        held.failures += 1
        pause_ms = min(_MAX_RETRY_PAUSE_MS, self._settings.backoff_ms * 2 ** min(held.failures - 1, 10))
        self._start_timer(("again", ledger_id), pause_ms)

    def _on_timer(self, name: Hashable) -> None:
        match name:
            case "look":
                if self._look_state is _Look.PAUSING:
                    self._look_state = _Look.IDLE
            case "drain":
                self._end(WorkerEnd.DRAINED)
            case ("rest", int(ledger_id)):
                held = self._held.get(ledger_id)
                if held is not None and held.state is _State.RESTING:
                    self._release(ledger_id)
            case ("again", int(ledger_id)):
                held = self._held.get(ledger_id)
                if held is None:
                    return
                if held.state is _State.FINISHING:
                    self._actions.append(Finish(ledger_id, held.mark_version))
                elif held.state is _State.RELEASING:
                    self._actions.append(Release(ledger_id))

    def _pause_looking(self) -> None:
        self._look_state = _Look.PAUSING
        self._start_timer("look", self._settings.backoff_ms)

    def _start_timer(self, name: Hashable, after_ms: float) -> None:
        self._actions.append(StartTimer(name, after_ms))

    def _end(self, why: WorkerEnd) -> None:
        self.outcome = Succeeded(why)
        self._actions.clear()
