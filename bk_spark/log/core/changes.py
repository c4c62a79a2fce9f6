"""How a log is changed: one transaction on what was read, whatever others do and whichever replies get lost.

:func:`change_steps` drives a :class:`Change`, which decides and does nothing else. After a transaction whose outcome
is unknown nothing is sent again: the machine syncs, reads and decides anew, and finds either its own work done
or a state on which a new transaction can be built.

**A change of any size gets through beside others.** What it reads may be much: a commit of 5,000 ledgers reads 5,000
registrations. Two rules keep it from starving.

* Another attempt reads again only what may have changed. Where the decision says that one znode covers others
  (:class:`bk_spark.log.core.plan.Need`), these are read once. They stay known as long as that znode is what it was:
  the same version of the same znode, for one that was made again begins with version 0 once more.
* After two conflicts a change waits for the log's lock. Whoever is about to write the head and finds others there waits
  behind them. So only changes that were under way when the lock was taken can still conflict with its holder. The lock
  is advice: whoever cannot have it within its bounds goes on without it, and versions keep the list right.

A change is tried again for MAX_CONFLICTS_MS. That others change the log must show in what is read: refusals of the same
state are not theirs, and end after MAX_UNCHANGED.
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
    Sync,
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

#: From the first conflict, and so many conflicts at least: a process may have been stopped for as long. Who holds the
#: lock gets through in a moment; this ends what has no end.
MAX_CONFLICTS_MS: Final = 120_000
MIN_CONFLICTS: Final = 20
#: Refusals in a row though nothing that was read had changed.
MAX_UNCHANGED: Final = 20
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
        return Need(missing.paths, missing.covered_by)
    except NotClosedError as open_ledger:
        return NeedClosed(open_ledger.ledger_id)
    except StaleError as stale:
        return Stale(str(stale))


def change_steps(change: Change[_T], now_ms: Callable[[], int]) -> Steps[_T]:
    """Carry out ``change``; ``now_ms`` gives the cluster's time, or a little less (after a ``Sync``).

    Raises what :meth:`Change.decide` raises; the ledger client's error where a ledger cannot be closed;
    MetadataConflictError after conflicts for too long; MetadataUnavailableError where ZooKeeper stays away;
    OutcomeUnknownError where it went away for good after a transaction was sent.
    """
    attempts = _Attempts(change, now_ms)
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
    """What is known under a znode that covers it, and that znode as it was read before."""

    by: Znode
    znodes: dict[str, Znode]


@dataclass(slots=True)
class _Attempts(Generic[_T]):
    change: Change[_T]
    now_ms: Callable[[], int]
    asked_for_lock: bool = False
    #: The result of a transaction whose outcome is unknown.
    maybe: _T | None = None
    #: The end of a closed ledger never changes: it stays known over all attempts.
    ends: dict[int, Closed] = field(default_factory=dict)
    missing: set[int] = field(default_factory=set)
    #: By the path of the znode that covers them.
    kept: dict[str, _Kept] = field(default_factory=dict)
    #: What the last attempt read, but for what is covered, in the order in which it was asked for.
    last_read: dict[str, Znode | None] = field(default_factory=dict)
    #: Others hold the log's lock or wait for it, as the last attempt saw it.
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
        """One attempt, up to where there is something to send."""
        event = yield Sync(self.change.paths.head)
        if isinstance(event, Unavailable):
            return event
        znodes: dict[str, Znode | None] = {}
        self.others_first = False
        while True:
            readings = Readings(znodes, self.ends)
            step = step_of(self.change, readings, self.now_ms(), self.maybe)
            if isinstance(step, Need):
                by = None if step.covered_by is None else znodes[step.covered_by]
                event = yield from (
                    self._read(step.paths, znodes) if by is None else self._read_covered(step, by, znodes)
                )
                if isinstance(event, Unavailable):
                    return event
                continue
            if isinstance(step, NeedClosed):
                gone = yield from self._close(step.ledger_id)
                if gone is None:
                    continue
                step = gone
            self.last_read = {path: znodes[path] for path in readings.used if path in znodes}
            return step

    def _close(self, ledger_id: int) -> Steps[Stale | None]:
        event = yield RecoverLedger(ledger_id)
        if isinstance(event, Failed):
            if not isinstance(event.error, NoSuchLedgerError) or ledger_id in self.missing:
                raise event.error
            # What referred to it may have been changed since it was read, or the whole log deleted.
            self.missing.add(ledger_id)
            return Stale(str(event.error))
        assert isinstance(event, Closed), event
        self.ends[ledger_id] = event
        return None

    def _read(self, paths: Iterable[str], znodes: dict[str, Znode | None]) -> Steps[Event]:
        """The first reading of an attempt reads all at once that the last one needed, in the same order."""
        lock = self.change.paths.lock
        names = tuple(paths)
        if not znodes:
            names = tuple(dict.fromkeys((*names, *self.last_read)))
            if not self.asked_for_lock:
                names = (*names, lock)
        event = yield Read(names)
        if isinstance(event, Found):
            found = dict(event.znodes)
            if not znodes and not self.asked_for_lock:
                queue = found.pop(lock, None)
                self.others_first = queue is not None and queue.children > 0
            znodes.update(found)
        return event

    def _read_covered(self, need: Need, by: Znode, znodes: dict[str, Znode | None]) -> Steps[Event]:
        """As far as these are not known since an earlier attempt."""
        assert need.covered_by is not None
        kept = self.kept.get(need.covered_by)
        if kept is None or not still_covers(kept.by, by):
            kept = self.kept[need.covered_by] = _Kept(by, {})
        known = {path: kept.znodes[path] for path in need.paths if path in kept.znodes}
        znodes.update(known)
        rest = tuple(path for path in need.paths if path not in known)
        if not rest:
            return Done()
        event = yield Read(rest)
        if isinstance(event, Found):
            znodes.update(event.znodes)
            # What is not there may be made at any time, without a word.
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


def still_covers(then: Znode, now: Znode) -> bool:
    """Whether a znode was not written, nor made again, between two readings."""
    return (then.created_zxid, then.version) == (now.created_zxid, now.version)


def _same(before: Mapping[str, Znode | None], after: Mapping[str, Znode | None]) -> bool:
    """Whether two attempts read the same."""
    return before.keys() == after.keys() and all(
        (one := before[path]) is other or (one is not None and other is not None and still_covers(one, other))
        for path, other in after.items()
    )


def _writes(plan: Plan[_T], path: str) -> bool:
    return any(isinstance(op, SetOp) and op.path == path for op in plan.transaction)


def _send(preparations: tuple[tuple[TransactionOp, ...], ...]) -> Steps[Event]:
    for operations in preparations:
        event = yield Transact(operations)
        if isinstance(event, OutcomeUnknown):
            # Pages that nothing refers to: whether they were written changes nothing in the log.
            return Unavailable(event.reason)
        if not isinstance(event, Done):
            return event
    return Done()
