"""One process of the model world of self-healing."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.replication.auditor_election import AuditorElection, AuditorVote
from bk_spark.bookie.replication.replication_switches import ReplicationSwitches
from bk_spark.bookie.replication.under_replication_store import UnderReplicationStore
from bk_spark.protocol.errors import MetadataUnavailableError
from bk_spark.protocol.machine import StartTimer, StepMachine, StopTimer, Succeeded, TimerFired
from bk_spark.protocol.metadata.ledger_metadata import encode
from bk_spark.protocol.metadata.under_replication import Mark, locked_ledger
from bk_spark.protocol.metadata.znodes import CheckOp, SetOp, TransactionOp
from bookie_server.replication.actions import (
    BookiesRead,
    Check,
    CheckLedgers,
    CheckTimeRead,
    CookiesRead,
    CreateVote,
    DisabledRead,
    Done,
    EndCheck,
    LedgersChecked,
    ListChildren,
    MarkLedgers,
    ReadAuditedDelay,
    ReadCheckTime,
    ReadCookies,
    ReadLedgers,
    ReadProgress,
    ReadVotes,
    SessionLost,
    Step,
    StepDone,
    StepFailed,
    SyncStore,
    Watch,
    WatchVote,
    WithdrawVote,
    WriteAuditor,
    WriteProgress,
)
from bookie_server.replication.auditing.auditor import Auditor, AuditorSettings
from bookie_server.replication.auditing.auditor_store import AuditorStore
from bookie_server.replication.auditing.election import election_steps
from bookie_server.replication.auditing.scans import ScanSettings
from bookie_server.replication.worker import ReplicationWorker, WorkerSettings
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
from tests.simulation.auditing.cluster import (
    BOOKIES,
    LOCKS,
    MANAGER,
    PATHS,
    ROOT,
    all_bookies,
    decoded,
    without_lost,
)
from tests.simulation.auditing.session import Session
from tests.simulation.outcomes import InvariantError
from tests.support.zookeeper_model import RefusedError

if TYPE_CHECKING:
    from tests.simulation.auditing.world import World


class Daemon:
    """One process: a session, and the machines of self-healing. ``actions`` are those not yet performed."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.begin()

    def begin(self) -> None:
        world = self.world
        self.zk = Session(world.zk, world.random)
        zk = cast(ZooKeeper, self.zk)
        self.store = UnderReplicationStore(zk, ROOT, wall_ms=lambda: 0)
        self.switches = ReplicationSwitches(zk, ROOT)
        self.votes = AuditorElection(zk, ROOT)
        access: Any = SimpleNamespace(
            zk=zk,
            store=self.store,
            switches=self.switches,
            election=self.votes,
            bookie_id=self.name,
            uri=SimpleNamespace(root=ROOT),
            ledgers=SimpleNamespace(manager=MANAGER),
        )
        # What they do with ZooKeeper is the shipped code's. They run no event loop here.
        self.auditing = AuditorStore(access)
        self.proof = self.store.begin_worker(self.name)
        #: The session that holds the locks. The client begins another one when this has ended.
        self.session = self.zk.session_id
        self.zk.fall_behind()
        self.zk.loss = world.loss
        self.election: StepMachine[Any, Any, str] | None = StepMachine(election_steps())
        self.auditor: Auditor | None = None
        self.worker = ReplicationWorker(WorkerSettings(at_once=world.at_once), Random(world.random.random()))
        #: (machine, action)
        self.actions: list[tuple[Any, Any]] = []
        self.timers: dict[tuple[int, Any], tuple[Any, int]] = {}
        #: Looked for when it is needed: there may be a timer for each ledger.
        self._next_due_ms: float | None = None
        #: What the daemon has been told and what waits to be told, by kind.
        self.news: set[str] = set()
        #: When it hears of the end of its session.
        self.hears_ms = 0
        self.told_disabled = False
        self.stopping: set[int] = set()
        self.pages: Iterator[dict[int, Mark]] = iter(())
        self.pump(self.election)
        self.pump(self.worker)

    @property
    def alive(self) -> bool:
        return self.world.zk.is_alive(self.zk.session_id)

    def tell(self, machine: Any, event: Any) -> None:
        machine.handle(event)
        self.pump(machine)

    def pump(self, machine: Any) -> None:
        for action in machine.take_actions():
            if isinstance(action, StartTimer):
                self.timers[(id(machine), action.name)] = (machine, self.world.now_ms + int(action.after_ms))
                self._next_due_ms = None
            elif isinstance(action, StopTimer):
                self.timers.pop((id(machine), action.name), None)
                self._next_due_ms = None
            else:
                if self.told_disabled and self._begins_work(action):
                    raise InvariantError(f"{self.name} begins {action} though replication is disabled")
                self.actions.append((machine, action))
        if machine is self.election and isinstance(machine.outcome, Succeeded):
            self.election = None
            scans = ScanSettings(MANAGER, ROOT, self.world.proof_of(machine.outcome.result))
            first_wait_ms, interval_ms = self.world.random.choice([0, 8_000]), self.world.random.choice([0, 60_000])
            settings = AuditorSettings(first_wait_ms, ledgers_interval_ms=interval_ms)
            self.auditor = Auditor(settings, scans)
            self.world.tell(f"{self.name} is elected", "elections")
            self.pump(self.auditor)
        elif machine is self.election and machine.outcome is not None:
            # As the daemon does: it closes its session, and begins anew after a pause.
            self.world.end_session(self, pause_ms=1_000)
        elif machine is self.auditor and machine.outcome is not None:
            # As the daemon does: it votes again, or begins anew when it hears of its session's end.
            self.auditor = None
            self.election = StepMachine(election_steps())
            self.pump(self.election)

    @staticmethod
    def _begins_work(action: Any) -> bool:
        if isinstance(action, Step):
            action = action.action
        return isinstance(action, Lock | Repair | ReadLedgers | MarkLedgers)

    # --- moves ---

    def moves(self) -> list[Callable[[], None]]:
        found: list[Callable[[], None]] = []
        for entry in self.actions:
            action = entry[1]
            if isinstance(action, WatchVote) and self.world.zk.read(action.path) is not None:
                continue
            found.append(functools.partial(self._perform, entry))
        found += [
            functools.partial(self._hear, kind)
            for kind in sorted(self.news)
            if kind != "session" or self.hears_ms <= self.world.now_ms
        ]
        if self.next_due_ms <= self.world.now_ms:
            due = [key for key, (_, due_ms) in self.timers.items() if due_ms <= self.world.now_ms]
            found += [functools.partial(self._fire, key) for key in due]
        return found

    @property
    def next_due_ms(self) -> float:
        """When the next timer ends."""
        if self._next_due_ms is None:
            self._next_due_ms = min((due_ms for _, due_ms in self.timers.values()), default=math.inf)
        return self._next_due_ms

    def _fire(self, key: tuple[int, Any]) -> None:
        machine, _ = self.timers.pop(key)
        self._next_due_ms = None
        self.tell(machine, TimerFired(key[1]))

    def _hear(self, kind: str) -> None:
        self.news.discard(kind)
        world, auditor = self.world, self.auditor
        match kind:
            case "session":
                for machine in (self.worker, auditor):
                    if machine is not None:
                        machine.handle(SessionLost())
                world.tell(f"{self.name} hears of the end of its session", "expiries")
                # The one that the client has begun since is closed, with all that was created in it.
                if self.alive:
                    world.zk.expire(self.zk.session_id)
                self.begin()
            case "switch" | "delay":
                self.zk.catch_up()
                try:
                    self._hear_of_settings(kind)
                except MetadataUnavailableError:
                    self.news.add(kind)  # it reads again
            case "marks":
                self.tell(self.worker, MarksChanged(world.is_marked))
            case "bookies" if auditor is not None:
                self.tell(auditor, BookiesRead(frozenset(world.registered)))

    def _hear_of_settings(self, kind: str) -> None:
        if kind == "switch":
            disabled = self.switches.is_disabled()
            self.told_disabled = disabled
            self.tell(self.worker, DisabledRead(disabled))
            if self.auditor is not None:
                self.tell(self.auditor, DisabledRead(disabled))
        elif self.auditor is not None:
            self.tell(self.auditor, self.auditing.read_delay(None))

    def _perform(self, entry: tuple[Any, Any]) -> None:
        machine, action = entry
        if entry not in self.actions:
            return
        self.actions.remove(entry)
        plain = action.action if isinstance(action, Step) else action
        try:
            if self.world.random.random() < self.world.weather / 2:
                raise MetadataUnavailableError("model")
            event = self._do(plain)
        except Exception as error:
            if isinstance(error, InvariantError | AssertionError):
                raise
            self._fail(machine, action, error)
            return
        if event is None:
            return
        if isinstance(action, Step):
            event = StepDone(action.request_id, event)
        self.tell(machine, event)

    def _fail(self, machine: Any, action: Any, error: Exception) -> None:
        match action:
            case Step(request_id):
                self.tell(machine, StepFailed(request_id, error))
            case Lock() | Finish() | Release() | ReadMarks() | ReadLocks() | Repair():
                self.tell(machine, WorkFailed(action, error))
            case NoteReason():
                pass
            case StopRepair() | Watch() | WatchSwitch() | ReadCookies() | ReadAuditedDelay():
                self.actions.append((machine, action))  # the daemon repeats these
            case _:
                machine.fail(error)
                self.pump(machine)

    # --- performing ---

    def _do(self, action: Any) -> Any:
        world = self.world
        match action:
            case ReadVotes():
                return self.auditing.read_votes()
            case CreateVote():
                self.votes.vote(self.name)
                return Done()
            case WithdrawVote(path):
                self.votes.withdraw(AuditorVote(path, 0, None, 0))
                return Done()
            case WatchVote():
                return Done()
            case WriteAuditor():
                self.auditing.write_auditor()
                return Done()
            case Watch():
                self.news |= {"bookies", "delay", "switch"}
                return None
            case WatchSwitch():
                self.news |= {"switch", "marks"}
                return None
            case ReadCookies():
                return CookiesRead(frozenset(BOOKIES))
            case ReadAuditedDelay():
                return self.auditing.read_audited_delay()
            case ReadCheckTime(check):
                return CheckTimeRead(check, None)
            case CheckLedgers(ledgers, _, lost):
                found = {each: lost.intersection(all_bookies(metadata)) for each, metadata in ledgers.items()}
                return LedgersChecked({each: bad for each, bad in found.items() if bad}, {})
            case MarkLedgers(missing):
                world.marking = self, missing
                return self.auditing.do(action)
            case EndCheck(check):
                event = self.auditing.do(action)
                if check is Check.BOOKIES:
                    world.tell(f"{self.name} has audited all", "audits")
                else:
                    world.tell(f"{self.name} has checked all ledgers", "checks of ledgers")
                return event
            case SyncStore() | ListChildren() | ReadLedgers() | ReadProgress() | WriteProgress():
                return self.auditing.do(action)
        return self._do_work(action)

    def _do_work(self, action: Any) -> Any:
        store = self.store
        match action:
            case ReadLocks():
                names = self.zk.children(LOCKS) or ()
                return LocksRead(frozenset(each for name in names if (each := locked_ledger(name)) is not None))
            case ReadMarks(first):
                if first:
                    self.pages = store.marks(rng=self.world.random)
                page = next(self.pages, None)
                return MarksRead(tuple(page or ()), more=page is not None)
            case Lock(ledger_id):
                if not store.lock(ledger_id, proof=self.proof):
                    return NotLocked(ledger_id)
                mark = store.read_locked(ledger_id, MANAGER.ledger_path(ROOT, ledger_id)).mark
                return Locked(ledger_id, None if mark is None else mark.version)
            case Repair(ledger_id):
                return self._repair(ledger_id)
            case StopRepair(ledger_id):
                self.stopping.add(ledger_id)
                return None
            case Finish(ledger_id, version):
                store.forget_reason(ledger_id)
                store.finish(ledger_id, version, proof=self.proof)
                return Released(ledger_id)
            case Release(ledger_id):
                store.release(ledger_id)
                return Released(ledger_id)
            case NoteReason():
                return None
        raise AssertionError(action)

    def _repair(self, ledger_id: int) -> RepairEnded:
        """The repair of one ledger by its result, at one moment."""
        world, zk = self.world, self.world.zk
        world.repairs[ledger_id] = world.repairs.get(ledger_id, 0) + 1
        if ledger_id in self.stopping and world.random.random() < 0.7:
            self.stopping.discard(ledger_id)
            return RepairEnded(ledger_id, RepairEnd.STOPPED)
        self.stopping.discard(ledger_id)
        mark, path = zk.read(PATHS.mark(ledger_id)), MANAGER.ledger_path(ROOT, ledger_id)
        node = zk.read(path)
        if not self._owns(ledger_id):
            if zk.is_alive(self.session):
                raise InvariantError(f"{self.name} repairs ledger {ledger_id} without its lock")
            return RepairEnded(ledger_id, RepairEnd.LOCK_LOST)
        world.checked_mark[ledger_id] = -1 if mark is None else mark.version
        if node is None:
            return RepairEnded(ledger_id, RepairEnd.GONE)
        metadata = decoded(node.data)
        repaired = without_lost(metadata, world.registered, world.random)
        if repaired is None:
            return RepairEnded(ledger_id, RepairEnd.UNREPAIRABLE, "not enough bookies")
        if repaired != metadata:
            self._transact([CheckOp(self.proof, -1), SetOp(path, encode(repaired), node.version)])
            world.tell(f"{self.name} has repaired ledger {ledger_id}", "repairs")
        return RepairEnded(ledger_id, RepairEnd.REPAIRED)

    def _transact(self, operations: list[TransactionOp]) -> None:
        try:
            self.world.zk.transact(operations, self.session)
        except RefusedError as error:
            raise MetadataUnavailableError(str(error)) from error

    def _owns(self, ledger_id: int) -> bool:
        lock = self.world.zk.read(PATHS.lock(ledger_id))
        return lock is not None and lock.owner_session == self.session
