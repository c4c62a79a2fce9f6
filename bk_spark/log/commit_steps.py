"""A commit as a machine: actions out, events in. No I/O, no clock of its own, no threads.

The generator of :func:`commit_steps` yields one action after another and is sent an event for each:

============ ====================================== ====================================
action       meaning                                events
============ ====================================== ====================================
Sync         bring the server up to date            Done, Unavailable
Read         read znodes, one after another         Found, Unavailable
Transact     send one transaction                   Done, Conflict, OutcomeUnknown
TakeLock     try to hold the log's advisory lock    Done (also where it could not be had)
Pause        wait about so long                     Done
============ ====================================== ====================================

The generator returns the commit's result, or raises the error it is refused with. After a transaction whose
outcome is unknown nothing is sent again: the machine syncs, reads and decides anew, and finds either its own
batch in the log or a state on which a new transaction can be built.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from bk_spark.bookie.zookeeper import TransactionOp, Znode
from bk_spark.log.commit import decide
from bk_spark.log.message import CommitRequest
from bk_spark.log.names import LogPaths
from bk_spark.log.plan import AlreadyDone, CommitResult, CommitStatus, Need, Plan, Stale
from bk_spark.protocol.errors import MetadataConflictError, MetadataUnavailableError, OutcomeUnknownError

MAX_CONFLICTS: Final = 20
CONFLICTS_BEFORE_LOCK: Final = 2
#: In a row, each after the session's own timeout for one call.
MAX_UNAVAILABLE: Final = 5
CONFLICT_PAUSE_MS: Final = 20
UNAVAILABLE_PAUSE_MS: Final = 250


@dataclass(frozen=True, slots=True)
class Sync:
    path: str


@dataclass(frozen=True, slots=True)
class Read:
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Transact:
    operations: tuple[TransactionOp, ...]


@dataclass(frozen=True, slots=True)
class TakeLock:
    pass


@dataclass(frozen=True, slots=True)
class Pause:
    about_ms: int


Action = Sync | Read | Transact | TakeLock | Pause


@dataclass(frozen=True, slots=True)
class Done:
    pass


@dataclass(frozen=True, slots=True)
class Found:
    znodes: Mapping[str, Znode | None]


@dataclass(frozen=True, slots=True)
class Conflict:
    """The transaction was refused as a whole."""

    reason: str


@dataclass(frozen=True, slots=True)
class OutcomeUnknown:
    """The connection was lost: the transaction may have taken effect, or may still."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Nothing was changed; the reading may be tried again."""

    reason: str


Event = Done | Found | Conflict | OutcomeUnknown | Unavailable
Steps = Generator[Action, Event, CommitResult]


def commit_steps(paths: LogPaths, request: CommitRequest, now_ms: Callable[[], int]) -> Steps:
    """Commit ``request`` to the log at ``paths``; ``now_ms`` gives Unix time.

    Raises what :func:`bk_spark.log.commit.decide` raises; MetadataConflictError after too many conflicts;
    MetadataUnavailableError where ZooKeeper stays away; OutcomeUnknownError where it went away for good
    after a transaction was sent: the same batch may then be committed again, and is appended once.
    """
    conflicts = unavailable = 0
    maybe: CommitResult | None = None
    while True:
        step = yield from _decide(paths, request, now_ms)
        failure: Conflict | OutcomeUnknown | Unavailable
        match step:
            case AlreadyDone():
                return _already_done(step, request, maybe)
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
                raise _given_up(paths, request, maybe, failure)
            if conflicts == CONFLICTS_BEFORE_LOCK:
                yield TakeLock()
            else:
                yield Pause(CONFLICT_PAUSE_MS)
        else:
            unavailable += 1
            if unavailable > MAX_UNAVAILABLE:
                raise _given_up(paths, request, maybe, failure)
            yield Pause(UNAVAILABLE_PAUSE_MS * unavailable)


def _decide(
    paths: LogPaths, request: CommitRequest, now_ms: Callable[[], int]
) -> Generator[Action, Event, AlreadyDone | Plan | Stale | Unavailable]:
    event = yield Sync(paths.head)
    if isinstance(event, Unavailable):
        return event
    znodes: dict[str, Znode | None] = {}
    while True:
        step = decide(znodes, paths, request, now_ms())
        if not isinstance(step, Need):
            return step
        event = yield Read(step.paths)
        if isinstance(event, Unavailable):
            return event
        assert isinstance(event, Found), event
        znodes.update(event.znodes)


def _send(preparations: tuple[tuple[TransactionOp, ...], ...]) -> Generator[Action, Event, Event]:
    for operations in preparations:
        event = yield Transact(operations)
        if isinstance(event, OutcomeUnknown):
            # Pages that nothing refers to: whether they were written changes nothing in the log.
            return Unavailable(event.reason)
        if not isinstance(event, Done):
            return event
    return Done()


def _already_done(step: AlreadyDone, request: CommitRequest, maybe: CommitResult | None) -> CommitResult:
    application = step.application
    if application.batch_id != request.batch_id:
        return CommitResult(CommitStatus.ALREADY_DONE, None, None, None)
    done = CommitResult(
        CommitStatus.ALREADY_DONE, application.start_offset, application.end_offset, application.commit_time_ms
    )
    if maybe is not None and application.run == request.run:
        # The transaction whose outcome was unknown took effect.
        return replace(done, status=CommitStatus.COMMITTED, retired_runs=maybe.retired_runs)
    return done


def _given_up(
    paths: LogPaths,
    request: CommitRequest,
    maybe: CommitResult | None,
    failure: Conflict | OutcomeUnknown | Unavailable,
) -> Exception:
    what = f"commit of batch {request.batch_id} of application {request.app!r} to log {paths.name}"
    if maybe is not None:
        return OutcomeUnknownError(
            f"{what}: connection to ZooKeeper lost, it may or may not have taken effect; commit the same batch "
            f"again, it is appended once ({failure.reason})"
        )
    if isinstance(failure, Conflict):
        return MetadataConflictError(f"{what}: the log was changed by others {MAX_CONFLICTS} times ({failure.reason})")
    return MetadataUnavailableError(f"{what}: ZooKeeper cannot be reached, nothing was changed ({failure.reason})")
