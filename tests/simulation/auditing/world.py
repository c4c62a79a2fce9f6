"""The model world of self-healing: daemons with election, auditor and worker beside each other on one ZooKeeper.

The machines and the store of marks and locks are the shipped ones, on the model of ZooKeeper. The repair of one ledger
is modelled by its result: a compare-and-set that replaces lost bookies, under the proof of the worker's session.
Bookies come and go, sessions expire long before their daemon hears of it, and replies are lost.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, cast

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.replication.under_replication_store import UnderReplicationStore
from bk_spark.protocol.errors import MetadataUnavailableError, OutcomeUnknownError, SessionLostError
from bk_spark.protocol.machine import StartTimer, StepMachine, StopTimer, Succeeded, TimerFired
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, Segment, decode, encode
from bk_spark.protocol.metadata.ledger_paths import LedgerManager
from bk_spark.protocol.metadata.under_replication import Mark, UnderReplicationPaths, locked_ledger
from bk_spark.protocol.metadata.znodes import CheckOp, CreateOp, DeleteOp, SetOp, TransactionOp, Znode
from bk_spark.protocol.quorum import Quorum
from bookie_server.replication.actions import (
    AuditedDelayRead,
    BookiesRead,
    Check,
    CheckLedgers,
    CheckTimeRead,
    Children,
    CookiesRead,
    CreateVote,
    DelayRead,
    DisabledRead,
    Done,
    EndCheck,
    LedgersChecked,
    LedgersRead,
    ListChildren,
    MarkLedgers,
    ProgressRead,
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
    Vote,
    VotesRead,
    Watch,
    WatchVote,
    WithdrawVote,
    WriteAuditor,
    WriteProgress,
)
from bookie_server.replication.auditor import Auditor, AuditorSettings
from bookie_server.replication.election import election_steps
from bookie_server.replication.scans import ScanSettings
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
from tests.simulation.outcomes import Counts, InvariantError
from tests.support.zookeeper_model import Changes, RefusedError, ZooKeeperModel
from tests.support.zookeeper_model_session import ModelSession

ROOT = "/ledgers"
BASE = f"{ROOT}/underreplication"
ELECTION, MARKS, LOCKS, WORKERS, DISABLE = (
    f"{BASE}/auditorelection",
    f"{BASE}/ledgers",
    f"{BASE}/locks",
    f"{BASE}/workers",
    f"{BASE}/disable",
)
PATHS = UnderReplicationPaths(ROOT)
AUDITED_DELAY = f"{BASE}/audited-delay"
MANAGER = LedgerManager.HIERARCHICAL
BOOKIES = tuple(f"b{number}" for number in range(1, 7))
QUORUM = Quorum(3, 3, 2)
DELAY_MS = 20_000
#: The most by which a read may be behind.
MOST_LAG = 15

_decode = functools.lru_cache(4096)(decode)


class Session(ModelSession):
    """A daemon's session. Its server is behind; requests and replies of its stores are lost."""

    def __init__(self, world: World) -> None:
        super().__init__(world.zk)
        self._random = world.random
        self.view = self.zk.zxid
        self.loss: Callable[[], float] = lambda: 0.0

    def look(self) -> int:
        self.view = self._random.randint(max(self.view, self.zk.zxid - MOST_LAG), self.zk.zxid)
        return self.view

    def _look(self) -> int:
        return self.look()

    def _is_lost(self) -> bool:
        loss = self.loss()
        return loss > 0 and self._random.random() < loss

    def _before(self) -> None:
        if self._is_lost():
            raise MetadataUnavailableError("the request was lost")

    def sync(self, path: str) -> None:
        super().sync(path)
        self.view = self.zk.zxid

    def _transact(self, operations: Sequence[TransactionOp]) -> None:
        lost = self._is_lost()
        if not lost or self._random.random() < 0.7:
            super()._transact(operations)
            self.view = self.zk.zxid
        if lost:
            raise OutcomeUnknownError("the reply was lost")


class Daemon:
    """One process: a session, and the machines of self-healing. ``actions`` are those not yet performed."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.begin()

    def begin(self) -> None:
        world = self.world
        self.zk = Session(world)
        self.session = self.zk.session_id
        self.store = UnderReplicationStore(cast(ZooKeeper, self.zk), ROOT, wall_ms=lambda: 0)
        self.proof = self.store.begin_worker(self.name)
        self.zk.view = max(0, world.zk.zxid - world.random.randint(0, MOST_LAG))
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
        return self.world.zk.is_alive(self.session)

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
                self.begin()
            case "switch":
                disabled = world.zk.read(DISABLE) is not None
                self.told_disabled = disabled
                self.tell(self.worker, DisabledRead(disabled))
                if self.auditor is not None:
                    self.tell(self.auditor, DisabledRead(disabled))
            case "marks":
                self.tell(self.worker, MarksChanged(world.is_marked))
            case "bookies" if auditor is not None:
                self.tell(auditor, BookiesRead(frozenset(world.registered)))
            case "delay" if auditor is not None:
                self.tell(auditor, DelayRead(world.delay_ms, world.delay_version))

    def _perform(self, entry: tuple[Any, Any]) -> None:
        machine, action = entry
        if entry not in self.actions:
            return
        self.actions.remove(entry)
        lost = self.world.random.random()
        plain = action.action if isinstance(action, Step) else action
        try:
            if lost < self.world.weather / 2:
                raise MetadataUnavailableError("model")
            event = self._do(plain)
            of_store = isinstance(plain, MarkLedgers | ReadLocks | ReadMarks | Lock | Finish | Release)
            if lost < self.world.weather and not (of_store or isinstance(plain, Watch | WatchSwitch | Repair)):
                raise MetadataUnavailableError("model, and it took effect")
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
        world, zk = self.world, self.world.zk
        match action:
            case ReadVotes():
                votes = []
                for name in zk.children(ELECTION) or ():
                    node = zk.read(f"{ELECTION}/{name}")
                    assert node is not None
                    votes.append(Vote(f"{ELECTION}/{name}", int(name[2:]), node.owner_session == self.session))
                return VotesRead(tuple(votes))
            case CreateVote():
                world.votes += 1
                path = f"{ELECTION}/V_{world.votes:010d}"
                self._transact([CreateOp(path, self.name.encode(), ephemeral=True)])
                return Done()
            case WithdrawVote(path):
                self._transact([DeleteOp(path)])
                return Done()
            case WatchVote() | WriteAuditor():
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
                node = zk.read(AUDITED_DELAY)
                return AuditedDelayRead(None if node is None else DelayRead(*map(int, node.data.split())))
            case ReadCheckTime(check):
                return CheckTimeRead(check, None)
            case SyncStore():
                self.zk.view = zk.zxid
                return Done()
            case ListChildren(path):
                return Children(zk.children(path, self.zk.look()))
            case ReadLedgers(ledger_ids):
                at = self.zk.look()
                nodes = {each: zk.read(MANAGER.ledger_path(ROOT, each), at) for each in ledger_ids}
                return LedgersRead({each: _decode(node.data) for each, node in nodes.items() if node is not None})
            case MarkLedgers(missing, proof):
                world.marking = self, missing
                self.store.mark_all(missing, proof=proof)
                return Done()
            case ReadProgress(check):
                node = zk.read(f"{BASE}/progress-{check.value}")
                return ProgressRead(-1 if node is None else int(node.data))
            case WriteProgress(check, after, proof):
                self._put(f"{BASE}/progress-{check.value}", str(after).encode(), proof)
                return Done()
            case CheckLedgers(ledgers, _, lost):
                found = {each: lost.intersection(_all_bookies(metadata)) for each, metadata in ledgers.items()}
                return LedgersChecked({each: bad for each, bad in found.items() if bad}, {})
            case EndCheck(check, proof, delay):
                if check is Check.BOOKIES:
                    assert delay is not None
                    self._put(AUDITED_DELAY, b"%d %d" % (delay.delay_ms, delay.version), proof)
                if zk.read(f"{BASE}/progress-{check.value}") is not None:
                    self._prove(proof, [DeleteOp(f"{BASE}/progress-{check.value}")])
                if check is Check.BOOKIES:
                    world.tell(f"{self.name} has audited all", "audits")
                else:
                    world.tell(f"{self.name} has checked all ledgers", "checks of ledgers")
                return Done()
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
                mark = store.read_mark(ledger_id)
                return Locked(ledger_id, None if mark is None else mark.version)
            case Repair(ledger_id):
                return self._repair(ledger_id)
            case StopRepair(ledger_id):
                self.stopping.add(ledger_id)
                return None
            case Finish(ledger_id, version):
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
            if self.alive:
                raise InvariantError(f"{self.name} repairs ledger {ledger_id} without its lock")
            return RepairEnded(ledger_id, RepairEnd.LOCK_LOST)
        world.checked_mark[ledger_id] = -1 if mark is None else mark.version
        if node is None:
            return RepairEnded(ledger_id, RepairEnd.GONE)
        metadata = _decode(node.data)
        repaired = _without(metadata, world.registered, world.random)
        if repaired is None:
            return RepairEnded(ledger_id, RepairEnd.UNREPAIRABLE, "not enough bookies")
        if repaired != metadata:
            self._transact([CheckOp(self.proof, -1), SetOp(path, encode(repaired), node.version)])
            world.tell(f"{self.name} has repaired ledger {ledger_id}", "repairs")
        return RepairEnded(ledger_id, RepairEnd.REPAIRED)

    def _put(self, path: str, data: bytes, proof: str) -> None:
        found = self.world.zk.read(path)
        self._prove(proof, [CreateOp(path, data) if found is None else SetOp(path, data, found.version)])

    def _prove(self, proof: str, operations: list[TransactionOp]) -> None:
        """With an old session, a daemon may have opened another connection: only the proof protects."""
        if self.world.zk.read(proof) is None:
            raise SessionLostError(proof)
        self.world.zk.transact([CheckOp(proof, -1), *operations])

    def _transact(self, operations: list[TransactionOp]) -> None:
        try:
            self.world.zk.transact(operations, self.session)
        except RefusedError as error:
            raise MetadataUnavailableError(str(error)) from error

    def _owns(self, ledger_id: int) -> bool:
        lock = self.world.zk.read(PATHS.lock(ledger_id))
        return lock is not None and lock.owner_session == self.session


class World:
    """All daemons, ledgers and bookies. ``random`` decides everything."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now_ms = 0
        self.trace: list[str] = []
        self.counts = Counts()
        self.at_once = random.choice([1, 3])
        #: Chance that an action fails.
        self.weather = random.choice([0.0, 0.02, 0.1])
        self.zk = ZooKeeperModel(lambda: self.now_ms)
        for path in (ROOT, BASE, ELECTION, MARKS, LOCKS, WORKERS):
            self.zk.transact([CreateOp(path)])
        self.zk.on_change = self._on_change
        #: Who marks ledgers, and which.
        self.marking: tuple[Daemon, Mapping[int, frozenset[str]]] | None = None
        self.votes = 0
        self.registered = set(BOOKIES)
        self.delay_ms = random.choice([0, DELAY_MS, DELAY_MS])
        self.delay_version = 0
        #: Whether marks may come before the delay is over: several were lost, or an operator asked.
        self.impatient = self.delay_ms == 0
        self.first_lost_ms: dict[str, int] = {}
        self.repairs: dict[int, int] = {}
        #: The version of the mark that the last repair of a ledger saw.
        self.checked_mark: dict[int, int] = {}
        self.ledgers: set[int] = set()
        for _ in range(random.randint(30, 100)):
            self.make_ledger()
        self.daemons = [Daemon(self, f"d{number}") for number in range(random.choice([2, 3, 4]))]

    def proof_of(self, vote: str) -> str:
        return vote

    def tell(self, what: str, count: str = "") -> None:
        self.trace.append(f"{self.now_ms / 1000:9.1f} s  {what}")
        if count:
            self.counts[count] += 1

    def story(self, last: int = 60) -> str:
        return "\n".join(self.trace[-last:])

    @property
    def is_marked(self) -> bool:
        """Whether any ledger may be marked."""
        return bool(self.zk.children(MARKS))

    def loss(self) -> float:
        """The chance that a request of a store, or its reply, is lost."""
        return self.weather / 5

    def _on_change(self, changes: Changes) -> None:
        for path, (before, after) in changes.items():
            if not path.startswith(f"{MARKS}/"):
                continue
            parent, _, name = path.rpartition("/")
            if parent == MARKS:
                self._spread("marks")
            ledger_id = locked_ledger(name)
            if ledger_id is not None and after is not None:
                assert self.marking is not None
                daemon, missing = self.marking
                self.on_mark(daemon, ledger_id, missing[ledger_id])
            elif ledger_id is not None and before is not None:
                self.on_mark_deleted(ledger_id, before)

    # --- invariants ---

    def on_mark(self, daemon: Daemon, ledger_id: int, bookies: frozenset[str]) -> None:
        votes = {int(name[2:]): name for name in self.zk.children(ELECTION) or ()}
        first = self.zk.read(f"{ELECTION}/{votes[min(votes)]}") if votes else None
        if first is None or first.owner_session != daemon.session:
            raise InvariantError(f"{daemon.name} marks ledger {ledger_id} and is not the auditor")
        self.tell(f"{daemon.name} marks ledger {ledger_id}: {' '.join(sorted(bookies))}", "marks")
        if not self.impatient:
            for bookie in bookies:
                waited_ms = self.now_ms - self.first_lost_ms[bookie]
                if waited_ms < self.delay_ms:
                    raise InvariantError(f"ledger {ledger_id} is marked after {waited_ms} ms")

    def on_mark_deleted(self, ledger_id: int, mark: Znode) -> None:
        if self.checked_mark.get(ledger_id) != mark.version:
            raise InvariantError(f"the mark of ledger {ledger_id} is deleted, and was made again after the repair")
        self.tell(f"the mark of ledger {ledger_id} is deleted", "finished")

    def check_end(self) -> None:
        """After everything has healed."""
        for ledger_id in sorted(self.ledgers):
            lost = set(_all_bookies(self.metadata(ledger_id))) - self.registered
            if lost:
                raise InvariantError(f"ledger {ledger_id} still names {sorted(lost)}")
        # Empty directories of marks may be left.
        names = [path.rpartition("/")[2] for path in self.zk.paths() if path.startswith((f"{MARKS}/", f"{LOCKS}/"))]
        left = sorted(name for name in names if locked_ledger(name) is not None)
        if left:
            raise InvariantError(f"marks or locks are left: {left}")
        if len(self.zk.children(ELECTION) or ()) != len(self.daemons):
            raise InvariantError("votes are left or missing")

    def check_retries(self, span_ms: int, daemons: int) -> None:
        """Repairs that cannot succeed begin less and less often. Each daemon has a count of its own."""
        most = 6 + daemons * (6 + span_ms // 200_000)
        for ledger_id, count in self.repairs.items():
            if count > most:
                raise InvariantError(f"ledger {ledger_id} was tried {count} times in {span_ms} ms")

    # --- what there is ---

    def metadata(self, ledger_id: int) -> LedgerMetadata:
        node = self.zk.read(MANAGER.ledger_path(ROOT, ledger_id))
        assert node is not None
        return _decode(node.data)

    def make_ledger(self) -> None:
        ledger_id = self.random.randrange(40_000)
        if ledger_id in self.ledgers or len(self.registered) < 3:
            return
        ensembles = [tuple(self.random.sample(sorted(self.registered), 3)) for _ in range(self.random.choice([1, 2]))]
        segments = tuple(Segment(number * 10, ensemble) for number, ensemble in enumerate(ensembles))
        path = MANAGER.ledger_path(ROOT, ledger_id)
        parents = path.split("/")[2:-1]
        for depth in range(len(parents)):
            parent = f"{ROOT}/{'/'.join(parents[: depth + 1])}"
            if self.zk.read(parent) is None:
                self.zk.transact([CreateOp(parent)])
        self.zk.transact([CreateOp(path, encode(LedgerMetadata(QUORUM, segments).closed(19, 19)))])
        self.ledgers.add(ledger_id)

    def delete_ledger(self) -> None:
        if self.ledgers:
            ledger_id = self.random.choice(sorted(self.ledgers))
            self.zk.transact([DeleteOp(MANAGER.ledger_path(ROOT, ledger_id))])
            self.ledgers.discard(ledger_id)

    # --- what happens ---

    def step(self) -> bool:
        """One move of a daemon. If there is none, time goes on to the next timer. False if nothing is left."""
        moves = [move for daemon in self.daemons for move in daemon.moves()]
        if not moves:
            due = [daemon.next_due_ms for daemon in self.daemons if daemon.timers]
            due += [daemon.hears_ms for daemon in self.daemons if "session" in daemon.news]
            self.now_ms = int(min(due, default=self.now_ms))
            return bool(due)
        if self.random.random() < 0.02:
            self.now_ms += self.random.randint(1, 5_000)
        self.random.choice(moves)()
        return True

    def lose_bookie(self) -> None:
        if len(self.registered) > 1:
            bookie = self.random.choice(sorted(self.registered))
            self.registered.discard(bookie)
            self.first_lost_ms.setdefault(bookie, self.now_ms)
            self.impatient = self.impatient or len(self.first_lost_ms) > 1
            self.tell(f"bookie {bookie} is lost", "lost bookies")
            self._spread("bookies")

    def return_bookie(self) -> None:
        gone = sorted(set(BOOKIES) - self.registered)
        if gone:
            bookie = self.random.choice(gone)
            self.registered.add(bookie)
            self.tell(f"bookie {bookie} returns", "returned bookies")
            self._spread("bookies")

    def expire_session(self, daemon: Daemon) -> None:
        """The daemon hears of it later, and goes on until then."""
        if daemon.alive:
            self.zk.expire(daemon.session)
            daemon.news.add("session")
            daemon.hears_ms = self.now_ms + self.random.choice([0, 10, 30_000])
            self.tell(f"the session of {daemon.name} expires")

    def switch(self, disabled: bool) -> None:
        if (self.zk.read(DISABLE) is not None) != disabled:
            self.zk.transact([CreateOp(DISABLE) if disabled else DeleteOp(DISABLE)])
            self.tell("replication is disabled" if disabled else "replication is enabled", "switches")
            self._spread("switch")

    def trigger(self) -> None:
        self.delay_version += 1
        self.impatient = True
        self.tell("an operator triggers an audit", "triggers")
        self._spread("delay")

    def _spread(self, kind: str) -> None:
        for daemon in self.daemons:
            daemon.news.add(kind)


def _all_bookies(metadata: LedgerMetadata) -> list[str]:
    return [bookie for segment in metadata.segments for bookie in segment.ensemble]


def _without(metadata: LedgerMetadata, registered: set[str], random: Random) -> LedgerMetadata | None:
    """The ledger after its repair; None if there are too few bookies."""
    segments = []
    for segment in metadata.segments:
        ensemble = list(segment.ensemble)
        for place, bookie in enumerate(ensemble):
            if bookie not in registered:
                free = sorted(registered - set(ensemble))
                if not free:
                    return None
                ensemble[place] = random.choice(free)
        segments.append(Segment(segment.first_entry_id, tuple(ensemble)))
    return LedgerMetadata(metadata.quorum, tuple(segments)).closed(metadata.last_entry_id, metadata.length)
