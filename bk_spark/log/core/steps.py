"""Machines of logs: their actions and events, and :class:`LogMachine`, which runs them.

The steps of a machine are a generator. It yields actions and receives one event for each:

============== ============================================== ==============================================
action         meaning                                        events
============== ============================================== ==============================================
Sync           bring the server and the clock up to date      Done, Unavailable
Read           read znodes in order, after a sync if asked    Found, Unavailable
ListChildren   names of a znode's children                    Listed, Unavailable
Transact       send one transaction                           Done, Conflict, OutcomeUnknown
TakeLock       wait for the log's advisory lock               Done (even if it was not acquired)
ReleaseLock    release it, or leave its queue                 Done
MeasureClock   compare this machine's clock and the cluster's Done, Unavailable
AskList        ask the current list of segments               Answered
ReadTimer      read a monotonic clock                         TimerRead
Pause          wait a random time of about this length        Done
CreateLedger   create and register a ledger                   Created, Conflict, Failed
CloseLedger    drain and close a ledger made by CreateLedger  Closed, Failed
RecoverLedger  fence and close any ledger                     Closed, Failed
RecoverLedgers the same for many, several at once             Recovered, Failed
WriteLedger    create a closed ledger with these entries      Created, Conflict, Failed
ReadEntry      read one entry of a closed ledger              EntryRead, Failed
IsLedgerOpen   whether nobody has fenced or closed a ledger   Answered, Failed
AbandonLedger  give up a ledger made by CreateLedger          Done
LimitTime      limit this machine's time with ZooKeeper       Done
Warn           log a warning                                  Done
============== ============================================== ==============================================

Log writers have more actions, in :mod:`bk_spark.log.core.tail.writer_actions`.

After ``Sync``, or a ``Read`` with it, a machine may ask for the time: its ``now_ms`` returns the cluster's Unix time,
or slightly less.

Performers answer ``Sync``, ``Read`` and ``ListChildren`` with :class:`InSession`.

Pauses are random, so that processes that collided do not collide again. No rule depends on their length: in the
simulator a pause may take no time at all, or weeks.

``Conflict`` means that the change was refused as a whole. After ``OutcomeUnknown`` the change may have taken effect, or
may still do so: nothing is sent again before a ``Sync`` and a new read. After ``Unavailable`` nothing was changed.
``Failed`` holds the ledger client's error.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from bk_spark.log.core.tail.writer_actions import WriterAction, WriterEvent
from bk_spark.log.formats.segment import Segment, SegmentTable
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.machine import StepMachine
from bk_spark.protocol.metadata.znodes import TransactionOp, Znode

_T = TypeVar("_T")
R = TypeVar("R")

#: Operations that register a ledger, to be added to the transaction that creates the ledger.
LedgerRegistrar = Callable[[int], tuple[TransactionOp, ...]]


class SegmentList(Protocol):
    """The list of sealed segments at one moment. It is read as far as needed."""

    first_offset: int
    next_offset: int
    last_commit_time_ms: int

    def offset_at(self, time_ms: int, /) -> int:
        """Return the first offset committed at ``time_ms`` or later, or ``next_offset`` if there is none."""
        ...

    def segment_at(self, offset: int, /) -> tuple[int, Segment]:
        """Return the page number and the segment that hold ``offset``."""
        ...

    def tables_from_end(self) -> Iterator[SegmentTable]:
        """Yield all segments in columns, the last page first."""
        ...

    def first_offset_at(self, time_ms: int, /) -> int | None:
        """Return where the log began at ``time_ms``, or None if its list does not say so."""
        ...

    def page_of(self, offset: int, /) -> int:
        """Return the number of the page with ``offset``, which may be before the log's first offset, or its end."""
        ...


@dataclass(frozen=True, slots=True)
class Sync:
    """Bring the server of this session up to date, and the measured difference of the clocks, if it is old. ``path`` is
    any znode of the log."""

    path: str


@dataclass(frozen=True, slots=True)
class Read:
    """Read these znodes in this order. They need not be consistent with each other. ``after_sync``: do all of ``Sync``
    first, without waiting for its answer."""

    paths: tuple[str, ...]
    after_sync: bool = False


@dataclass(frozen=True, slots=True)
class ListChildren:
    """List the children of ``path``, which need not exist."""

    path: str


@dataclass(frozen=True, slots=True)
class MeasureClock:
    """Compare this machine's clock and the cluster's now, however recent the last comparison is."""


@dataclass(frozen=True, slots=True)
class AskList:
    """``question`` reads what it needs from the list. An error that it raises is an answer too."""

    question: Callable[[SegmentList], object]


@dataclass(frozen=True, slots=True)
class Transact:
    """Send these operations as one transaction: all of them take effect, or none."""

    operations: tuple[TransactionOp, ...]


@dataclass(frozen=True, slots=True)
class TakeLock:
    """The wait is bounded, whatever the lock's holder does. If the lock was lost, repeating this asks for it again."""


@dataclass(frozen=True, slots=True)
class ReleaseLock:
    """Release the log's advisory lock, or leave its queue. Allowed without either."""


@dataclass(frozen=True, slots=True)
class ReadTimer:
    """Read a monotonic clock, for differences only."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait between half and one and a half times ``about_ms``."""

    about_ms: int


@dataclass(frozen=True, slots=True)
class CreateLedger:
    """Create a ledger of the log for writing, and register it in the same transaction."""

    register: LedgerRegistrar


@dataclass(frozen=True, slots=True)
class CloseLedger:
    """Wait until everything sent to a ledger of this process is acknowledged, and close the ledger there."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class RecoverLedger:
    """Fence a ledger of any process and close it at its last entry. A closed ledger stays as it is."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class RecoverLedgers:
    """Ledgers that are already closed or deleted count as done."""

    ledger_ids: tuple[int, ...]
    within_ms: int


@dataclass(frozen=True, slots=True)
class WriteLedger:
    """Create and register a ledger, write ``entries`` to it, and close it. If that fails, a registered ledger may
    remain."""

    register: LedgerRegistrar
    entries: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class ReadEntry:
    """Read an entry of a closed ledger."""

    ledger_id: int
    entry_id: int


@dataclass(frozen=True, slots=True)
class IsLedgerOpen:
    """Ask the ledger's metadata whether its state is OPEN: nobody has begun to recover it, or closed it."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class AbandonLedger:
    """No error if the ledger was closed or abandoned before."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class LimitTime:
    """From now on, all requests to ZooKeeper together may take this long. Later ones are answered ``Unavailable``."""

    within_ms: int


@dataclass(frozen=True, slots=True)
class Warn:
    """Log ``text`` as a warning, after the name of the log."""

    text: str


LedgerAction = (
    CreateLedger | CloseLedger | AbandonLedger | RecoverLedger | RecoverLedgers | WriteLedger | ReadEntry | IsLedgerOpen
)

Action = (
    Sync
    | Read
    | ListChildren
    | MeasureClock
    | AskList
    | Transact
    | TakeLock
    | ReleaseLock
    | ReadTimer
    | Pause
    | LimitTime
    | Warn
    | LedgerAction
    | WriterAction
)


def syncs(action: object) -> bool:
    """Whether ``action`` brings the server up to date: a ``Sync``, or a ``Read`` after one."""
    return isinstance(action, Sync) or (isinstance(action, Read) and action.after_sync)


@dataclass(frozen=True, slots=True)
class Done:
    """The action was performed. It has no result."""


@dataclass(frozen=True, slots=True)
class Found:
    """The znodes by path, with None for those that do not exist."""

    znodes: Mapping[str, Znode | None]


@dataclass(frozen=True, slots=True)
class Listed:
    """None if there is no such znode."""

    names: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to AskList, or to IsLedgerOpen."""

    answer: Any


@dataclass(frozen=True, slots=True)
class TimerRead:
    """Only the difference between two of these is meaningful."""

    elapsed_ms: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """The transaction was refused as a whole. ``reason`` is for error texts, as in the next two."""

    reason: str


@dataclass(frozen=True, slots=True)
class OutcomeUnknown:
    """The transaction was sent, and nobody knows whether it took effect or still will."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unavailable:
    """ZooKeeper did not answer in time, or not in the session of the last Sync. Nothing was changed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Created:
    """A new ledger is registered with the log."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The ledger is closed at ``last_entry`` (-1 if it is empty), with ``size_bytes`` of payload."""

    ledger_id: int
    last_entry: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """``failed``: ledgers that could not be closed, with the reasons. ``left``: ledgers not closed in time."""

    failed: Mapping[int, BookKeeperError]
    left: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EntryRead:
    """The ``payload`` of the entry: without header and digest."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Failed:
    """The ledger client's error."""

    error: BookKeeperError


Event = (
    Done
    | Found
    | Listed
    | Answered
    | TimerRead
    | Conflict
    | OutcomeUnknown
    | Unavailable
    | Created
    | Closed
    | Recovered
    | EntryRead
    | WriterEvent
    | Failed
)

#: The steps of a machine with a result of type ``_T``.
Steps = Generator[Action, Event, _T]


@dataclass(frozen=True, slots=True)
class InSession:
    """The ``event`` that answers ``action``, with the ids of the ZooKeeper session before and after it."""

    action: Sync | Read | ListChildren
    event: Event
    before: int
    after: int


class LogMachine(StepMachine[Action, Event, R]):
    """Runs steps as a machine. It ties every read to the session of the last ``Sync``.

    The server of a new session may be behind the state that the old session was synced to. So a read in any other
    session than that of the last ``Sync`` counts as unavailable.
    """

    def __init__(self, steps: Generator[Action, Event, R]) -> None:
        self._session: int | None = None
        super().__init__(steps)

    def handle(self, event: Event | InSession) -> None:
        """Report an event. Performers answer Sync, Read and ListChildren with InSession."""
        super().handle(self._held_to_session(event) if isinstance(event, InSession) else event)

    def _held_to_session(self, answer: InSession) -> Event:
        if syncs(answer.action):
            self._session = answer.before
        return answer.event if answer.after == self._session else Unavailable("the session with ZooKeeper ended")
