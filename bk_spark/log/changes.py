"""How a log is changed: one transaction on what was read, whatever others do and whichever replies get lost.

:func:`change_steps` drives a :class:`Change`, which decides and does nothing else. After a transaction whose outcome
is unknown nothing is sent again: the machine syncs, reads and decides anew, and finds either its own work done
or a state on which a new transaction can be built.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator
from typing import Final, Protocol, TypeVar

from bk_spark.bookie.zookeeper import TransactionOp, Znode
from bk_spark.log.names import LogPaths
from bk_spark.log.plan import (
    AlreadyDone,
    MissingError,
    Need,
    NeedClosed,
    NotClosedError,
    Plan,
    Readings,
    Stale,
    StaleError,
)
from bk_spark.log.steps import (
    Action,
    Closed,
    Conflict,
    Done,
    Event,
    Failed,
    Found,
    OutcomeUnknown,
    Pause,
    Read,
    RecoverLedger,
    Steps,
    Sync,
    TakeLock,
    Transact,
    Unavailable,
)
from bk_spark.protocol.errors import (
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    OutcomeUnknownError,
)

MAX_CONFLICTS: Final = 20
CONFLICTS_BEFORE_LOCK: Final = 2
#: In a row, each after the session's own timeout for one call.
MAX_UNAVAILABLE: Final = 5
CONFLICT_PAUSE_MS: Final = 20
UNAVAILABLE_PAUSE_MS: Final = 250

_T = TypeVar("_T")


class Change(Protocol[_T]):
    """One change of one log, with a ``_T`` as its result."""

    #: The log, as its znodes are found.
    paths: LogPaths

    @property
    @abstractmethod
    def what(self) -> str:
        """For error texts: ``commit of batch 7 of application 'x' to log y``."""

    @property
    @abstractmethod
    def again(self) -> str:
        """For error texts: what to do where the outcome stays unknown: ``commit the same batch again, …``."""

    @abstractmethod
    def decide(self, readings: Readings, now_ms: int, maybe: _T | None) -> AlreadyDone[_T] | Plan[_T]:
        """What to do, given what is known. ``maybe`` is the result of a transaction sent before, of which the
        outcome is unknown.

        Raises MissingError, NotClosedError, StaleError to go on; every other error refuses the change.
        """


def step_of(
    change: Change[_T], readings: Readings, now_ms: int, maybe: _T | None = None
) -> Need | NeedClosed | AlreadyDone[_T] | Stale | Plan[_T]:
    """One decision. Raises what refuses the change."""
    try:
        return change.decide(readings, now_ms, maybe)
    except MissingError as missing:
        return Need(missing.paths)
    except NotClosedError as open_ledger:
        return NeedClosed(open_ledger.ledger_id)
    except StaleError as stale:
        return Stale(str(stale))


def change_steps(change: Change[_T], now_ms: Callable[[], int]) -> Steps[_T]:
    """Carry out ``change``; ``now_ms`` gives the cluster's time, or a little less (after a ``Sync``).

    Raises what :meth:`Change.decide` raises; the ledger client's error where a ledger cannot be closed;
    MetadataConflictError after too many conflicts; MetadataUnavailableError where ZooKeeper stays away;
    OutcomeUnknownError where it went away for good after a transaction was sent.
    """
    conflicts = unavailable = 0
    maybe: _T | None = None
    ends: dict[int, Closed] = {}
    missing: set[int] = set()
    while True:
        step = yield from _decide(change, now_ms, maybe, ends, missing)
        failure: Conflict | OutcomeUnknown | Unavailable
        match step:
            case AlreadyDone(result):
                return result
            case Plan(preparations, transaction, result):
                event = yield from _send(preparations)
                if isinstance(event, Done):
                    event = yield Transact(transaction)
                    if isinstance(event, OutcomeUnknown):
                        maybe = result
                if isinstance(event, Done):
                    return result
                assert isinstance(event, Conflict | OutcomeUnknown | Unavailable), event
                failure = event
            case Stale(reason):
                failure = Conflict(reason)
            case Unavailable():
                failure = step

        if isinstance(failure, Conflict):
            conflicts, unavailable = conflicts + 1, 0
            if conflicts > MAX_CONFLICTS:
                raise _given_up(change, maybe, failure)
            if conflicts == CONFLICTS_BEFORE_LOCK:
                yield TakeLock()
            else:
                yield Pause(CONFLICT_PAUSE_MS)
        else:
            unavailable += 1
            if unavailable > MAX_UNAVAILABLE:
                raise _given_up(change, maybe, failure)
            yield Pause(UNAVAILABLE_PAUSE_MS * unavailable)


def _decide(
    change: Change[_T], now_ms: Callable[[], int], maybe: _T | None, ends: dict[int, Closed], missing: set[int]
) -> Generator[Action, Event, AlreadyDone[_T] | Plan[_T] | Stale | Unavailable]:
    event = yield Sync(change.paths.head)
    if isinstance(event, Unavailable):
        return event
    znodes: dict[str, Znode | None] = {}
    while True:
        step = step_of(change, Readings(znodes, ends), now_ms(), maybe)
        match step:
            case Need(paths):
                event = yield Read(paths)
                if isinstance(event, Unavailable):
                    return event
                assert isinstance(event, Found), event
                znodes.update(event.znodes)
            case NeedClosed(ledger_id):
                event = yield RecoverLedger(ledger_id)
                if isinstance(event, Failed):
                    if not isinstance(event.error, NoSuchLedgerError) or ledger_id in missing:
                        raise event.error
                    # What referred to it may have been changed since it was read, or the whole log deleted.
                    missing.add(ledger_id)
                    return Stale(str(event.error))
                assert isinstance(event, Closed), event
                # The end of a closed ledger never changes: it stays known over new readings.
                ends[ledger_id] = event
            case _:
                return step


def _send(preparations: tuple[tuple[TransactionOp, ...], ...]) -> Generator[Action, Event, Event]:
    for operations in preparations:
        event = yield Transact(operations)
        if isinstance(event, OutcomeUnknown):
            # Pages that nothing refers to: whether they were written changes nothing in the log.
            return Unavailable(event.reason)
        if not isinstance(event, Done):
            return event
    return Done()


def _given_up(change: Change[_T], maybe: _T | None, failure: Conflict | OutcomeUnknown | Unavailable) -> Exception:
    if maybe is not None:
        return OutcomeUnknownError(
            f"{change.what}: connection to ZooKeeper lost, it may or may not have taken effect; {change.again} "
            f"({failure.reason})"
        )
    if isinstance(failure, Conflict):
        return MetadataConflictError(
            f"{change.what}: the log was changed by others {MAX_CONFLICTS} times ({failure.reason})"
        )
    return MetadataUnavailableError(
        f"{change.what}: ZooKeeper cannot be reached, nothing was changed ({failure.reason})"
    )
