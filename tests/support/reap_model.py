"""A small world for the reaper: machines that are stopped between any two of their actions.

Every change of ZooKeeper is checked: every ledger in the list exists, with its registration, and is not condemned; a
deleted ledger was condemned long enough ago, is fenced, and is deleted together with its registration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Generic, TypeVar

from bk_spark.log import CommitMessage, CommitRequest, CommitResult, LedgerRange
from bk_spark.log.core.changes import change_steps
from bk_spark.log.core.commit import BatchCommit
from bk_spark.log.core.index import decode_indexed_page, walk_steps
from bk_spark.log.core.steps import (
    Action,
    Created,
    CreateLedger,
    Done,
    Event,
    InSession,
    ListChildren,
    LogMachine,
    OutcomeUnknown,
    Pause,
    Read,
    ReadTimer,
    ReleaseLock,
    Steps,
    Sync,
    TakeLock,
    TimerRead,
    Transact,
    Warn,
)
from bk_spark.log.formats.names import LogPaths, app_key, run_key
from bk_spark.log.formats.page import SegmentPage, decode_page, encode_page
from bk_spark.log.formats.segment import Segment, SegmentTable
from bk_spark.log.formats.znodes import (
    Application,
    Head,
    LedgerRegistration,
    Policy,
    decode_application,
    decode_head,
    decode_registration,
    encode_head,
    encode_policy,
    encode_registration,
)
from bk_spark.log.gc.reap_rules import ReapLimits
from bk_spark.log.gc.reaper import ReapReport, reap_steps
from bk_spark.log.gc.truncation import SegmentStart, Truncate
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.machine import Succeeded
from bk_spark.protocol.metadata.znodes import CreateOp, TransactionOp
from tests.simulation.logs.ledgers import ModelLedgers, ledger_path
from tests.simulation.logs.zookeeper import LogsZooKeeper, Session
from tests.support.zookeeper_model import Changes, RefusedError

START_MS = 1_760_000_000_000
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
LIMITS = ReapLimits()

_T = TypeVar("_T")


class ReapWorld:
    """One log; ``paths`` are those of the current log of its name."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.zk = LogsZooKeeper(lambda: self.now_ms)
        self.ledgers = ModelLedgers(self.zk, Random(1))
        self._session = Session(self.zk, Random(1))
        self.zk.transact([CreateOp("/logs")])
        self.logs: list[LogPaths] = []
        #: ledger -> its last registration
        self._registered: dict[int, str] = {}
        self.paths = self.make_log()
        self.zk.on_change = self._check

    # --- the log ---

    def make_log(self) -> LogPaths:
        paths = LogPaths("/logs", "flights", f"0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1{len(self.logs):02x}")
        page = encode_page(SegmentPage(paths.log_id, 0, 0, SegmentTable.of(())))
        names = (paths.identity, paths.settings, paths.pages, paths.apps, paths.ledgers, paths.lock)
        self.zk.transact(
            [
                CreateOp(paths.head, encode_head(Head(paths.log_id))),
                *map(CreateOp, names),
                CreateOp(paths.policy, encode_policy(Policy())),
                CreateOp(paths.page(0), page),
            ]
        )
        self.logs.append(paths)
        self.paths = paths
        return paths

    def ensure(self, *names: str) -> None:
        for name in names:
            if self.zk.read(name) is None:
                self.zk.transact([CreateOp(name)])

    def ledger(self, app: str = "app", run: str = "r0", *, entries: int = 100) -> int:
        """A new ledger of a run with this many acknowledged entries, still open."""
        return self.ledger_at(app_key(app), run_key(run), entries=entries)

    def ledger_at(self, app: str, run: str, *, entries: int = 100) -> int:
        run_path = self.paths.run_at(app, run)
        self.ensure(f"{self.paths.ledgers}/{app}", run_path)

        def register(ledger_id: int) -> tuple[TransactionOp, ...]:
            return (CreateOp(f"{run_path}/{ledger_id}", encode_registration(LedgerRegistration())),)

        created = self.ledgers.perform(self._session, CreateLedger(register))
        assert isinstance(created, Created), created
        ledger = self.ledgers.all[created.ledger_id]
        ledger.entries += [b"entry"] * entries
        ledger.acknowledged = entries
        return created.ledger_id

    def head(self, paths: LogPaths | None = None) -> Head:
        paths = paths or self.paths
        znode = self.zk.read(paths.head)
        assert znode is not None
        return decode_head(znode.data, paths.head)

    def application(self, app: str = "app") -> Application | None:
        znode = self.zk.read(self.paths.app(app))
        return None if znode is None else decode_application(znode.data, self.paths.app(app))

    def registration(self, ledger_id: int) -> LedgerRegistration | None:
        path = self._registered[ledger_id]
        znode = self.zk.read(path)
        return None if znode is None else decode_registration(znode.data, path)

    def registrations(self) -> Iterator[str]:
        for app in self.zk.children(self.paths.ledgers) or ():
            for run in self.zk.children(f"{self.paths.ledgers}/{app}") or ():
                for name in self.zk.children(self.paths.run_at(app, run)) or ():
                    yield f"{self.paths.run_at(app, run)}/{name}"

    def is_condemned(self, ledger_id: int) -> bool:
        registration = self.registration(ledger_id)
        return registration is not None and registration.condemned

    def all_paths(self) -> list[str]:
        """Everything there is."""
        found, waiting = [], ["/"]
        while waiting:
            path = waiting.pop()
            found.append(path)
            waiting += (f"{path.rstrip('/')}/{name}" for name in self.zk.children(path) or ())
        return found

    def pages(self) -> list[SegmentPage]:
        """Pages from the first that the head names, wherever they are."""
        head = self.head()
        pages: list[SegmentPage] = []
        walk = self.machine(walk_steps(self.paths, head)).finish()
        for number in range(walk.pages.first_page, walk.pages.end_page):
            ledger_id, entry_id = walk.pages.place(number)
            payload = self.ledgers.all[ledger_id].entries[entry_id]
            assert isinstance(payload, bytes)
            pages.append(decode_indexed_page(payload, self.paths, walk.pages, number))
        for number in range(max(head.first_page, walk.pages.end_page), head.tail_page + 1):
            znode = self.zk.read(self.paths.page(number))
            assert znode is not None, f"page {number} is missing"
            pages.append(decode_page(znode.data, self.paths.page(number), log_id=head.log_id, number=number))
        return pages

    def segments(self) -> list[Segment]:
        """All segments of the list."""
        head = self.head()
        return [
            segment
            for page in self.pages()
            for segment in page.table
            if segment.end_offset > head.first_offset or segment.last_entry is None
        ]

    def listed(self) -> set[int]:
        return {segment.ledger_id for segment in self.segments()}

    def truncate(self, up_to: int) -> int:
        starts = [
            SegmentStart(segment.base_offset, page.number)
            for page in self.pages()
            for segment in page.table
            if segment.base_offset <= up_to < segment.end_offset
        ]
        change = Truncate(self.paths, up_to, starts[0] if starts else None, tail_end=up_to)
        return self.machine(change_steps(change, self.clock)).finish()

    # --- machines ---

    def machine(self, steps: Steps[_T]) -> Machine[_T]:
        return Machine(self, steps)

    def request(
        self,
        batch_id: int,
        *parts: tuple[int, int, int],
        run: str = "r0",
        app: str = "app",
        overwrite: bool = False,
        anonymous: bool = False,
    ) -> CommitRequest:
        """``parts``: ledger, first and last entry."""
        log_id = self.paths.log_id
        ranges = [LedgerRange(ledger, first, last, last - first + 1, 100) for ledger, first, last in parts]
        messages = [
            CommitMessage(log_id, app, run, "query", batch_id, task, (part,)) for task, part in enumerate(ranges)
        ]
        return CommitRequest(log_id, app, run, "query", batch_id, tuple(messages), overwrite, anonymous)

    def committing(self, request: CommitRequest) -> Machine[CommitResult]:
        return self.machine(change_steps(BatchCommit(self.paths, request), self.clock))

    def commit(self, batch_id: int, *parts: tuple[int, int, int], **more: object) -> CommitResult:
        return self.committing(self.request(batch_id, *parts, **more)).finish()  # type: ignore[arg-type]

    def reaping(self, limits: ReapLimits = LIMITS, *, dry_run: bool = False) -> Machine[ReapReport]:
        return self.machine(reap_steps(self.paths, ledger_path, self.clock, lambda: None, limits, dry_run=dry_run))

    def reap(self, limits: ReapLimits = LIMITS, *, dry_run: bool = False) -> ReapReport:
        return self.reaping(limits, dry_run=dry_run).finish()

    def reap_for(self, passed_ms: int, limits: ReapLimits = LIMITS) -> None:
        """Let time pass, with maintenance every 10 minutes."""
        until = self.now_ms + passed_ms
        while self.now_ms < until:
            self.now_ms += 10 * MINUTE_MS
            self.reap(limits)

    def clock(self) -> int:
        self.now_ms += 1
        return self.now_ms

    def perform(self, session: Session, action: Action) -> Event | InSession:
        event = self._perform(session, action)
        session.ask_next()
        return event

    def _perform(self, session: Session, action: Action) -> Event | InSession:
        match action:
            case Sync() | Read() | ListChildren():
                return session.read(action)
            case Transact(operations):
                return session.transact(operations)
            case ReadTimer():
                return TimerRead(self.now_ms)
            case TakeLock() | ReleaseLock() | Pause() | Warn():
                return Done()
            case _:
                event = self.ledgers.perform(session, action)
                assert not hasattr(event, "first_entry")
                return event  # type: ignore[return-value]

    # --- what must hold ---

    def _check(self, changes: Changes) -> None:
        for path, (before, _) in changes.items():
            name = path.rpartition("/")[2]
            if before is None and path.count("/") == 6 and name.isdecimal():
                self._registered[int(name)] = path
        for paths in self.logs:
            self._check_log(paths, changes)

    def _check_log(self, paths: LogPaths, changes: Changes) -> None:
        if self.zk.read(paths.identity) is None:
            return
        listed = self.listed() if paths == self.paths else set()
        for ledger_id in listed:
            assert self.ledgers.exists(ledger_id), f"ledger {ledger_id} is listed, and deleted"
            assert not self.is_condemned(ledger_id), f"ledger {ledger_id} is listed, and condemned"
        gone = {
            int(path.removeprefix("/ledgers/L"))
            for path, (_, after) in changes.items()
            if path.startswith("/ledgers/L") and after is None
        }
        for path, (before, after) in changes.items():
            if not path.startswith(f"{paths.ledgers}/") or path.count("/") != 6 or before is None or after is not None:
                continue
            ledger_id = int(path.rpartition("/")[2])
            assert ledger_id not in listed
            assert decode_registration(before.data, path).condemned
            assert self.now_ms - before.mtime_ms >= LIMITS.delete_grace_ms, "deleted before its grace was over"
            ledger = self.ledgers.all[ledger_id]
            # Bookies that know it with another password take nothing from a writer.
            assert ledger.fenced or ledger.used_before or ledger_id not in gone, "deleted while it may be written"
        assert all(any(path.endswith(f"/{ledger_id}") for path in changes) for ledger_id in gone)


class Machine(Generic[_T]):
    """A process that runs one machine, one action at a time."""

    def __init__(self, world: ReapWorld, steps: Steps[_T]) -> None:
        self.world = world
        self.session = Session(world.zk, Random(2))
        self.done: list[Action] = []
        self.result: _T | None = None
        self.error: BookKeeperError | None = None
        self.ended = False
        self._late: list[tuple[TransactionOp, ...]] = []
        self._machine = LogMachine(steps)
        self._action: Action | None = None
        self._go()

    def step(self, fate: str = "") -> None:
        """Perform the next action. A transaction may be ``lost``, ``applied`` without a reply, or ``late``."""
        assert self._action is not None
        self.done.append(self._action)
        if fate and isinstance(self._action, Transact):
            if fate == "applied":
                self.world.perform(self.session, self._action)
            elif fate == "late":
                self._late.append(self._action.operations)
            self._machine.handle(OutcomeUnknown(fate))
        else:
            self._machine.handle(self.world.perform(self.session, self._action))
        self._go()

    def steps(self, count: int) -> bool:
        """Perform up to this many actions; return whether it is still running."""
        for _ in range(count):
            if self.ended:
                return False
            self.step()
        return not self.ended

    def to(self, kind: type[object], number: int = 1) -> None:
        """Stop before the ``number``-th action of a kind."""
        while not self.ended:
            number -= isinstance(self._action, kind)
            if not number:
                return
            self.step()
        raise AssertionError(f"ends without {kind.__name__}")

    def finish(self) -> _T:
        while not self.ended:
            self.step()
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result

    def end(self) -> BookKeeperError | None:
        """Run to the end; return how it ended."""
        while not self.ended:
            self.step()
        return self.error

    def deliver_late(self) -> int:
        """Deliver transactions that were reported lost; return how many succeeded."""
        held = 0
        while self._late:
            try:
                self.world.zk.transact(self._late.pop(0))
                held += 1
            except RefusedError:
                pass
        return held

    @property
    def next_action(self) -> Action | None:
        return self._action

    def transactions(self) -> list[tuple[TransactionOp, ...]]:
        return [action.operations for action in self.done if isinstance(action, Transact)]

    def _go(self) -> None:
        outcome = self._machine.outcome
        if outcome is None:
            (self._action,) = self._machine.take_actions()
            return
        self.ended = True
        if isinstance(outcome, Succeeded):
            self.result = outcome.result
        elif isinstance(outcome.error, BookKeeperError):
            self.error = outcome.error
        else:
            raise outcome.error


def paused_everywhere(make: Callable[[], tuple[ReapWorld, Machine[_T]]], between: Callable[[ReapWorld], object]) -> int:
    """Run ``make``'s machine, calling ``between`` before each of its actions in turn. Returns the number of places."""
    place = 0
    while True:
        world, machine = make()
        if not machine.steps(place):
            return place
        between(world)
        machine.end()
        place += 1
