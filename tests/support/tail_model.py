"""Model ledgers, and machines that can be stopped before any of their actions: for the open tail of a log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Generic, TypeVar

from bk_spark.log.core.steps import (
    AbandonLedger,
    Action,
    Answered,
    Closed,
    CloseLedger,
    Conflict,
    Created,
    CreateLedger,
    Done,
    Event,
    Failed,
    IsLedgerOpen,
    LimitTime,
    ListChildren,
    Listed,
    OutcomeUnknown,
    RecoverLedger,
    Steps,
    Transact,
    Warn,
)
from bk_spark.log.core.tail.writer_actions import (
    Acknowledged,
    AskConfirmed,
    AskFailure,
    Claimed,
    ClaimLedger,
    FlushLedger,
    SendEntries,
    Sent,
    TakeTurn,
    UseTail,
    WatchOwner,
)
from bk_spark.log.formats.segment import Segment
from bk_spark.log.formats.znodes import Owner
from bk_spark.protocol.errors import BookKeeperError, LedgerFencedError, UnauthorizedError
from bk_spark.protocol.metadata.znodes import DeleteOp
from tests.support.log_model import PATHS, Client, ModelLog
from tests.support.zookeeper_model import RefusedError

_T = TypeVar("_T")


@dataclass(slots=True)
class ModelLedger:
    entries: list[str] = field(default_factory=list)
    fenced: bool = False
    closed: bool = False


class _Newest(Random):
    """For a client that always sees the newest state."""

    def randint(self, a: int, b: int) -> int:
        return b


class TailWorld:
    """One log, its ledgers, and processes that work on it."""

    def __init__(self) -> None:
        self.zk = ModelLog()
        self.ledgers: dict[int, ModelLedger] = {}
        self.acknowledged: list[str] = []
        self.now_ms = 1_000
        #: The clock advances by this much at every look.
        self.tick_ms = 1
        self.abandoned: list[int] = []
        self.warnings: list[str] = []
        #: Ids that bookies know with another password.
        self.used_ids: set[int] = set()
        #: Errors that ended writers of ledgers.
        self.failures: dict[int, BookKeeperError] = {}
        self._next_ledger_id = 100

    def clock(self) -> int:
        self.now_ms += self.tick_ms
        return self.now_ms

    def perform(self, client: Client, action: Action) -> Event:
        match action:
            case CreateLedger(register):
                self._next_ledger_id += 1
                ledger_id = self._next_ledger_id
                self.ledgers[ledger_id] = ModelLedger()
                try:
                    self.zk.transact(register(ledger_id))
                except RefusedError as error:
                    del self.ledgers[ledger_id]
                    return Conflict(str(error))
                return Created(ledger_id)
            case ClaimLedger(ledger_id):
                if ledger_id in self.used_ids:
                    return Failed(UnauthorizedError("model", ledger_id=ledger_id))
                return Claimed()
            case AskFailure(ledger_id):
                failure = self.failures.get(ledger_id)
                return Done() if failure is None else Failed(failure)
            case CloseLedger(ledger_id):
                ledger = self.ledgers[ledger_id]
                if ledger.fenced and not ledger.closed:
                    return Failed(LedgerFencedError("model", ledger_id=ledger_id))
                return self._close(ledger_id)
            case SendEntries(ledger_id, payloads):
                ledger = self.ledgers[ledger_id]
                if ledger.fenced:
                    return Failed(LedgerFencedError("model", ledger_id=ledger_id))
                ledger.entries += map(str, payloads)
                return Sent(len(ledger.entries) - 1)
            case FlushLedger(ledger_id) | AskConfirmed(ledger_id):
                return Acknowledged(len(self.ledgers[ledger_id].entries) - 1)
            case IsLedgerOpen(ledger_id):
                return Answered(not self.ledgers[ledger_id].fenced)
            case AbandonLedger(ledger_id):
                self.abandoned.append(ledger_id)
                return Done()
            case Warn(text):
                self.warnings.append(text)
                return Done()
            case UseTail() | WatchOwner() | TakeTurn() | LimitTime():
                return Done()
            case RecoverLedger(ledger_id):
                self.ledgers[ledger_id].fenced = True
                return self._close(ledger_id)
            case ListChildren(path):
                return Listed(self.zk.children(path))
        return client.perform(action)

    def _close(self, ledger_id: int) -> Closed:
        ledger = self.ledgers[ledger_id]
        ledger.closed = True
        return Closed(ledger_id, len(ledger.entries) - 1, sum(map(len, ledger.entries)))

    def add(self, ledger_id: int, entry: str) -> bool:
        """Whether it was acknowledged."""
        ledger = self.ledgers[ledger_id]
        if ledger.fenced or ledger.closed:
            return False
        ledger.entries.append(entry)
        self.acknowledged.append(entry)
        return True

    def expire_owner(self) -> None:
        """End the session of the log writer that holds the tail."""
        if self.zk.read(PATHS.owner) is not None:
            self.zk.transact([DeleteOp(PATHS.owner)])

    @property
    def open_tail(self) -> Segment | None:
        segments = self.zk.segments()
        assert all(segment.entries for segment in segments[:-1])
        return segments[-1] if segments and not segments[-1].entries else None

    def entries(self) -> list[str]:
        """The entries of the sealed segments, in order."""
        return [
            entry
            for segment in self.zk.segments()
            if segment.last_entry is not None
            for entry in self.ledgers[segment.ledger_id].entries[segment.first_entry : segment.last_entry + 1]
        ]

    def start(self, steps: Steps[_T], *, lags: bool = True) -> Machine[_T]:
        return Machine(self, steps, lags=lags)

    def run(self, steps: Steps[_T]) -> _T:
        return Machine(self, steps).finish()


class Machine(Generic[_T]):
    """A machine in its own session, one action at a time. ``lags``: its server may be behind until synced."""

    def __init__(self, world: TailWorld, steps: Steps[_T], *, lags: bool = True) -> None:
        self.world = world
        self.client = Client(world.zk, Random(0) if lags else _Newest(0))
        self.result: _T | None = None
        self.error: BookKeeperError | None = None
        self.action: Action | None = None
        self._steps = steps
        self._send(None)

    @property
    def over(self) -> bool:
        return self.action is None

    def step(self) -> None:
        """Perform the next action."""
        assert self.action is not None
        self._send(self.world.perform(self.client, self.action))

    def until(self, holds: Callable[[Action], bool]) -> None:
        """Stop before the first action for which ``until`` holds."""
        while self.action is not None and not holds(self.action):
            self.step()
        assert self.action is not None, "it ended before"

    def lose_reply(self, *, applied: bool) -> None:
        """Perform the next action, a transaction, or never send it; the machine is told that the outcome is unknown."""
        assert isinstance(self.action, Transact)
        if applied:
            self.world.perform(self.client, self.action)
        self._send(OutcomeUnknown("model"))

    def answer(self, event: Event) -> None:
        """Answer the next action without performing it."""
        self._send(event)

    def finish(self) -> _T:
        """Run to the end. Raises the machine's error."""
        while not self.over:
            self.step()
        if self.error is not None:
            raise self.error
        result: Any = self.result
        return result  # type: ignore[no-any-return]

    def _send(self, event: Event | None) -> None:
        try:
            self.action = next(self._steps) if event is None else self._steps.send(event)
        except StopIteration as end:
            self.action, self.result = None, end.value
        except BookKeeperError as error:
            self.action, self.error = None, error


def owner_of(writer_id: str) -> Owner:
    return Owner(writer_id, "host", 42, 1_000)
