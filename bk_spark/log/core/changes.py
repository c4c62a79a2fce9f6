"""Changes a log with one transaction based on what was read, despite concurrent changes and lost replies.

:func:`change_steps` drives a :class:`Change`, which only decides. After a transaction with an unknown outcome, nothing
is sent again. Instead the machine syncs, reads and decides again. It then finds either its own work done, or a state
from which it can build a new transaction.

**A change of any size succeeds under contention.** A change may read much: a commit of 5,000 ledgers reads 5,000
registrations. Two rules keep it from starving.

* A new attempt reads again only what may have changed. If the decision says that one znode covers others
  (:class:`bk_spark.log.core.plan.Need`), the others are read once. They stay valid while the covering znode is
  unchanged: same znode, same version. The version alone is not enough: a znode that is created again starts at 0.
* After two conflicts, a change waits for the log's lock. A change that is about to write the head and finds a queue
  waits in it. So only changes that were under way when the lock was taken can conflict with its holder. The lock is
  advisory: a change that cannot get it in time continues without it, and versions keep the list correct.

A change is retried for MAX_CONFLICTS_MS. Changes by others must be visible in what is read. If the same state is
refused repeatedly, others are not the cause, and the change ends after MAX_UNCHANGED refusals.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from bk_spark.log.core.plan import (
    AlreadyDone,
    MissingError,
    Need,
    NeedClosed,
    NotClosedError,
    Plan,
    Readings,
    Stale,
    StaleError,
    is_unchanged,
)
from bk_spark.log.core.steps import (
    Closed,
    Conflict,
    Done,
    Event,
    Failed,
    Found,
    OutcomeUnknown,
    Pause,
    Read,
    ReadTimer,
    RecoverLedger,
    ReleaseLock,
    Steps,
    TakeLock,
    TimerRead,
    Transact,
    Unavailable,
)
from bk_spark.log.formats.names import LogPaths
from bk_spark.protocol.errors import (
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    OutcomeUnknownError,
)
from bk_spark.protocol.metadata.znodes import SetOp, TransactionOp, Znode

#: Give up this long after the first conflict, but only after this many conflicts: a process may be suspended for that
#: long. The lock's holder usually succeeds at once, so these limits only end endless retries.
MAX_CONFLICTS_MS: Final = 120_000
MIN_CONFLICTS: Final = 20
#: Consecutive refusals with no change in what was read.
MAX_UNCHANGED: Final = 20
CONFLICTS_BEFORE_LOCK: Final = 2
#: Consecutive failures, each after the session's own timeout for one call.
MAX_UNAVAILABLE: Final = 5
CONFLICT_PAUSE_MS: Final = 4
UNAVAILABLE_PAUSE_MS: Final = 250

_T = TypeVar("_T")


class Change(Protocol[_T]):
    """One change of one log, with a result of type ``_T``."""

    #: The paths of the log's znodes.
    paths: LogPaths

    @property
    @abstractmethod
    def what(self) -> str:
        """For error texts: ``commit of batch 7 of application 'x' to log y``."""

    @property
    @abstractmethod
    def again(self) -> str:
        """For error texts: what to do if the outcome stays unknown: ``commit the same batch again, …``."""

    @abstractmethod
    def decide(self, readings: Readings, now_ms: int, maybe: _T | None) -> AlreadyDone[_T] | Plan[_T]:
        """Decide what to do with what is known. ``maybe`` is the result of an earlier transaction whose outcome is
        unknown.

        Raises MissingError, NotClosedError, StaleError to continue. Any other error refuses the change.
        """


def step_of(
    change: Change[_T], readings: Readings, now_ms: int, maybe: _T | None = None
) -> Need | NeedClosed | AlreadyDone[_T] | Stale | Plan[_T]:
    """Return one decision. Raises the error that refuses the change."""
    try:
        return change.decide(readings, now_ms, maybe)
    except MissingError as missing:
        return Need(missing.paths, missing.covered_by)
    except NotClosedError as open_ledger:
        return NeedClosed(open_ledger.ledger_id)
    except StaleError as stale:
        return Stale(str(stale))


@dataclass(slots=True)
class SeenTail:
    """The tail page in a process's last change of a log. The next one reads it together with the head, which saves a
    round trip. It may be any page: a decision asks for the one that the head names."""

    path: str | None = None

    def note(self, paths: LogPaths, read: Iterable[str]) -> None:
        """Keep the last page of those ``read`` for a decision."""
        pages = [path for path in read if path.startswith(f"{paths.pages}/")]
        if pages:
            self.path = pages[-1]


def change_steps(change: Change[_T], now_ms: Callable[[], int], seen: SeenTail | None = None) -> Steps[_T]:
    """Make ``change``. ``now_ms`` returns the cluster's time, or slightly less (after a ``Sync``). ``seen`` is the same
    in all changes of a process to one log.

    Raises the errors of :meth:`Change.decide`, the ledger client's error if a ledger cannot be closed,
    MetadataConflictError after too many conflicts, MetadataUnavailableError if ZooKeeper stays unavailable, and
    OutcomeUnknownError if ZooKeeper became unavailable after a transaction was sent.
    """
    attempts = _Attempts(change, now_ms, seen or SeenTail())
    try:
        result = yield from attempts.until_done()
    except Exception:
        if attempts.asked_for_lock:
            yield ReleaseLock()
        raise
    if attempts.asked_for_lock:
        yield ReleaseLock()
    return result


@dataclass(slots=True)
class _Kept:
    """Znodes that one znode covers, and the covering znode as it was read before them."""

    by: Znode
    znodes: dict[str, Znode]


@dataclass(slots=True)
class _Attempts(Generic[_T]):
    change: Change[_T]
    now_ms: Callable[[], int]
    seen: SeenTail
    asked_for_lock: bool = False
    #: The result of a transaction with an unknown outcome.
    maybe: _T | None = None
    #: The end of a closed ledger never changes, so it is kept over all attempts.
    ends: dict[int, Closed] = field(default_factory=dict)
    missing: set[int] = field(default_factory=set)
    #: Keyed by the path of the covering znode.
    kept: dict[str, _Kept] = field(default_factory=dict)
    #: What the last attempt read, except covered znodes, in request order.
    last_read: dict[str, Znode | None] = field(default_factory=dict)
    #: Whether others held or waited for the log's lock in the last attempt.
    others_first: bool = False

    def until_done(self) -> Steps[_T]:
        first_conflict_ms: int | None = None
        conflicts = unchanged = unavailable = 0
        while True:
            before = self.last_read
            step = yield from self.decide()
            failure: Conflict | OutcomeUnknown | Unavailable
            match step:
                case AlreadyDone(result):
                    return result
                case Plan() if self.others_first and _writes(step, self.change.paths.head):
                    yield from self._take_lock()
                    continue
                case Plan(preparations, transaction, result):
                    event = yield from _send(preparations)
                    if isinstance(event, Done):
                        event = yield Transact(transaction)
                        if isinstance(event, OutcomeUnknown):
                            self.maybe = result
                    if isinstance(event, Done):
                        return result
                    assert isinstance(event, Conflict | OutcomeUnknown | Unavailable), event
                    failure = event
                case Stale(reason):
                    failure = Conflict(reason)
                case Unavailable():
                    failure = step

            if not isinstance(failure, Conflict):
                unavailable += 1
                if unavailable > MAX_UNAVAILABLE:
                    raise self._given_up(failure)
                yield Pause(UNAVAILABLE_PAUSE_MS * unavailable)
                continue

            conflicts, unavailable = conflicts + 1, 0
            unchanged = unchanged + 1 if _same(before, self.last_read) else 0
            timer = yield ReadTimer()
            assert isinstance(timer, TimerRead), timer
            if first_conflict_ms is None:
                first_conflict_ms = timer.elapsed_ms
            tried_ms = timer.elapsed_ms - first_conflict_ms
            if unchanged >= MAX_UNCHANGED:
                raise self._given_up(failure, f"was refused {unchanged} times, though nothing changed in between")
            if tried_ms > MAX_CONFLICTS_MS and conflicts >= MIN_CONFLICTS:
                raise self._given_up(failure, f"the log was changed by others for {tried_ms // 1000} s")
            if conflicts >= CONFLICTS_BEFORE_LOCK:
                yield from self._take_lock()
            if conflicts < CONFLICTS_BEFORE_LOCK or unchanged:
                yield Pause(CONFLICT_PAUSE_MS)

    def decide(self) -> Steps[AlreadyDone[_T] | Plan[_T] | Stale | Unavailable]:
        """Make one attempt, until there is something to send."""
        znodes: dict[str, Znode | None] = {}
        event = yield from self._read_first(znodes)
        if isinstance(event, Unavailable):
            return event
        while True:
            readings = Readings(znodes, self.ends)
            step = step_of(self.change, readings, self.now_ms(), self.maybe)
            if isinstance(step, Need):
                by = None if step.covered_by is None else znodes[step.covered_by]
                event = yield from (_read(step.paths, znodes) if by is None else self._read_covered(step, by, znodes))
                if isinstance(event, Unavailable):
                    return event
                continue
            if isinstance(step, NeedClosed):
                gone = yield from self._close(step.ledger_id)
                if gone is None:
                    continue
                step = gone
            self.last_read = {path: znodes[path] for path in readings.used if path in znodes}
            self.seen.note(self.change.paths, self.last_read)
            return step

    def _close(self, ledger_id: int) -> Steps[Stale | None]:
        event = yield RecoverLedger(ledger_id)
        if isinstance(event, Failed):
            if not isinstance(event.error, NoSuchLedgerError):
                raise event.error
            if ledger_id in self.missing:
                raise NoSuchLedgerError(
                    f"the ledger at the open end of log {self.change.paths.name} was deleted, so nobody can say where "
                    "the log ends, and it takes no more entries. Write to a new log, or let this one continue after "
                    "the lost entries: bkctl log give-up-tail",
                    ledger_id=ledger_id,
                ) from event.error
            # The znode that referred to it may have changed since, or the whole log may be deleted.
            self.missing.add(ledger_id)
            return Stale(str(event.error))
        assert isinstance(event, Closed), event
        self.ends[ledger_id] = event
        return None

    def _read_first(self, znodes: dict[str, Znode | None]) -> Steps[Event]:
        """Sync, and read what is needed first, all that the last attempt needed, in the same order, and the lock."""
        need = step_of(self.change, Readings({}), 0)
        assert isinstance(need, Need), f"{self.change.what} is decided before anything was read"
        lock = () if self.asked_for_lock else (self.change.paths.lock,)
        tail = () if self.seen.path is None else (self.seen.path,)
        names = dict.fromkeys((*need.paths, *self.last_read, *tail))
        event = yield Read((*names, *lock), after_sync=True)
        if isinstance(event, Found):
            queue = event.znodes[lock[0]] if lock else None
            self.others_first = queue is not None and queue.children > 0
            znodes.update((name, event.znodes[name]) for name in names)
        return event

    def _read_covered(self, need: Need, by: Znode, znodes: dict[str, Znode | None]) -> Steps[Event]:
        """Read the covered znodes that are not known from an earlier attempt."""
        assert need.covered_by is not None
        kept = self.kept.get(need.covered_by)
        if kept is None or not is_unchanged(kept.by, by):
            kept = self.kept[need.covered_by] = _Kept(by, {})
        known = {path: kept.znodes[path] for path in need.paths if path in kept.znodes}
        znodes.update(known)
        rest = tuple(path for path in need.paths if path not in known)
        if not rest:
            return Done()
        event = yield from _read(rest, znodes)
        if isinstance(event, Found):
            # A missing znode may be created at any time without a change of the covering one.
            kept.znodes.update((path, znode) for path, znode in event.znodes.items() if znode is not None)
        return event

    def _take_lock(self) -> Steps[None]:
        self.asked_for_lock = True
        yield TakeLock()

    def _given_up(self, failure: Conflict | OutcomeUnknown | Unavailable, why: str = "") -> Exception:
        change = self.change
        if self.maybe is not None:
            return OutcomeUnknownError(
                f"{change.what}: connection to ZooKeeper lost, it may or may not have taken effect; {change.again} "
                f"({failure.reason})"
            )
        if isinstance(failure, Conflict):
            return MetadataConflictError(f"{change.what}: {why} ({failure.reason})")
        return MetadataUnavailableError(
            f"{change.what}: ZooKeeper cannot be reached, nothing was changed ({failure.reason})"
        )


def _read(paths: tuple[str, ...], znodes: dict[str, Znode | None]) -> Steps[Event]:
    event = yield Read(paths)
    if isinstance(event, Found):
        znodes.update(event.znodes)
    return event


def _same(before: Mapping[str, Znode | None], after: Mapping[str, Znode | None]) -> bool:
    """Whether two attempts read the same state."""
    return before.keys() == after.keys() and all(is_unchanged(before[path], znode) for path, znode in after.items())


def _writes(plan: Plan[_T], path: str) -> bool:
    return any(isinstance(op, SetOp) and op.path == path for op in plan.transaction)


def _send(preparations: tuple[tuple[TransactionOp, ...], ...]) -> Steps[Event]:
    for operations in preparations:
        event = yield Transact(operations)
        if isinstance(event, OutcomeUnknown):
            # These pages are unreferenced. Whether they were written changes nothing in the log.
            return Unavailable(event.reason)
        if not isinstance(event, Done):
            return event
    return Done()
