"""How a log writer opens and rolls its tail, and drains a ledger. No I/O, no clock.

A writer's ledger is first created and registered, then listed as the open tail, and only then written to. So every
entry ever acknowledged to a log writer is in a ledger in the list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bk_spark.log.core.changes import MAX_UNAVAILABLE, UNAVAILABLE_PAUSE_MS, change_steps
from bk_spark.log.core.reading import children_steps, read_steps, sync_steps
from bk_spark.log.core.registrations import MakeZnodes, registrar
from bk_spark.log.core.steps import (
    AbandonLedger,
    Closed,
    CloseLedger,
    Conflict,
    Created,
    CreateLedger,
    Event,
    Failed,
    Pause,
    RecoverLedger,
    Steps,
    Warn,
)
from bk_spark.log.core.tail.tail_changes import (
    LookAtTail,
    OpenTail,
    RollTail,
    TailPlace,
    writer_run,
)
from bk_spark.log.core.tail.writer_actions import Claimed, ClaimLedger
from bk_spark.log.formats.names import WRITERS, LogPaths
from bk_spark.log.formats.znodes import Owner
from bk_spark.protocol.errors import (
    BookKeeperError,
    LedgerFencedError,
    LedgerRefusedError,
    LogFencedError,
    MetadataConflictError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    PeerError,
    UnauthorizedError,
)

#: New ledgers in a row, created because the reaper took them for leftovers, or removed the run's znode, or because
#: somebody else had used their ids.
_MAX_LEDGERS: Final = 5

#: Of these, ledgers of which too few bookies answered. Each takes as long as the timeout of adds.
_MAX_SILENT: Final = 2

Clock = Callable[[], int]


def open_steps(paths: LogPaths, owner: Owner, now_ms: Clock, *, take_over: bool = False) -> Steps[TailPlace]:
    """Make a new ledger of ``owner`` the open tail, and close the ledgers before it.

    Raises LogTailOpenError if another live writer holds the tail and ``take_over`` is not set, NoSuchLogError,
    LogReplacedError, the ledger client's errors, and those of :func:`bk_spark.log.core.changes.change_steps`.
    """
    state = yield from change_steps(LookAtTail(paths, owner, take_over=take_over), now_ms)
    if state.open is not None:
        yield from _recover(state.open.ledger_id)
    # A writer closes its ledger before listing it as sealed. If that ever failed to hold, entries could still be added
    # behind the reader's back. So recover it to be sure. Ledgers of Spark tasks stay open while they are in use.
    if state.before is not None and (yield from _is_writers(paths, state.before.ledger_id)):
        yield from _recover(state.before.ledger_id)
    for attempt in range(1, _MAX_LEDGERS + 1):
        ledger_id = yield from next_ledger_steps(paths, owner, now_ms)
        try:
            return (yield from change_steps(OpenTail(paths, owner, ledger_id, take_over=take_over), now_ms))
        except BookKeeperError as error:
            # Nobody wrote to it. Closed, it does no harm, and the reaper deletes it.
            yield CloseLedger(ledger_id)
            if not isinstance(error, LedgerRefusedError) or attempt == _MAX_LEDGERS:
                raise
    raise AssertionError


class Roll:
    """Moves a log writer to its next ledger. The open tail ``ledger_id`` is drained, closed and sealed, and a new
    ledger becomes the open tail.

    ``next_ledger_id`` is the new ledger, once created. If the steps fail, the caller must abandon its writer.
    """

    def __init__(self, paths: LogPaths, owner: Owner, ledger_id: int, now_ms: Clock) -> None:
        self.next_ledger_id: int | None = None
        #: The error that prevented a new ledger.
        self.put_off_by: BookKeeperError | None = None
        self._paths = paths
        self._owner = owner
        self._ledger_id = ledger_id
        self._now_ms = now_ms

    def steps(self) -> Steps[TailPlace | None]:
        """Return the new tail. None if no new ledger could be created: the writer keeps using the old one.

        Raises LogFencedError if another writer or a commit took the tail, and the errors of its parts.
        """
        paths, owner, now_ms = self._paths, self._owner, self._now_ms
        try:
            # Create it before closing the old one. If that fails, nothing is lost yet.
            self.next_ledger_id = yield from next_ledger_steps(paths, owner, now_ms)
        except (PeerError, MetadataError, UnauthorizedError) as error:
            self.put_off_by = error
            return None
        closed = yield from drain_steps(paths, owner, self._ledger_id)
        return (yield from _move_steps(paths, owner, closed, self.next_ledger_id, now_ms))


def next_ledger_steps(paths: LogPaths, owner: Owner, now_ms: Clock) -> Steps[int]:
    """Create a ledger, registered for ``owner`` but not in the list yet. Raises the ledger client's errors.

    Whoever may write to bookies may have used its id with another password. They would refuse the writer's entries, and
    a tail that they refuse cannot be sealed. So they are asked first, and another ledger is taken. If some do not
    answer, another ledger is taken once, which has other bookies as far as there are some.
    """
    run_path = writer_run(paths, owner.writer_id)
    refused: BookKeeperError | None = None
    silent, may_pass_over = 0, True
    for _ in range(_MAX_LEDGERS):
        yield from change_steps(MakeZnodes(paths, paths.runs_at(WRITERS), run_path), now_ms)
        event = yield CreateLedger(registrar(paths, run_path))
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Conflict):
            # The reaper removed the run's empty znode in the meantime, or the log is gone. The next attempt will show.
            refused = MetadataConflictError(f"log {paths.name}: no ledger could be registered: {event.reason}")
            continue
        assert isinstance(event, Created), event
        claimed = yield ClaimLedger(event.ledger_id)
        assert isinstance(claimed, Claimed | Failed), claimed
        if isinstance(claimed, Claimed) and not (claimed.silent and may_pass_over):
            return event.ledger_id
        yield AbandonLedger(event.ledger_id)
        if isinstance(claimed, Claimed):
            may_pass_over = False
            why = f"no answer from {', '.join(claimed.silent)}"
        else:
            refused = claimed.error
            silent += isinstance(refused, PeerError)
            if silent == _MAX_SILENT or not isinstance(refused, PeerError | UnauthorizedError):
                raise refused
            why = str(refused)
        yield Warn(f"new ledger {event.ledger_id} is left unused: {why}")
    assert refused is not None
    raise refused


def drain_steps(paths: LogPaths, owner: Owner, ledger_id: int) -> Steps[Closed]:
    """Close the writer's own ledger after everything appended is acknowledged. Returns where it ends.

    Raises LogFencedError if another process fenced it, otherwise the error that ended the ledger's writer.
    """
    event = yield from _on_ledger(CloseLedger(ledger_id))
    if isinstance(event, Failed):
        # If another process removed an empty tail from the list, its ledger may be deleted.
        if isinstance(event.error, LedgerFencedError | NoSuchLedgerError):
            raise fenced_error(paths, owner, ledger_id) from event.error
        raise event.error
    assert isinstance(event, Closed), event
    return event


def _move_steps(paths: LogPaths, owner: Owner, closed: Closed, new_ledger_id: int, now_ms: Clock) -> Steps[TailPlace]:
    """Do the second half of a roll, after the ledger was closed. Raises LogFencedError."""
    for _ in range(_MAX_LEDGERS):
        try:
            return (yield from change_steps(RollTail(paths, owner, closed, new_ledger_id), now_ms))
        except LedgerRefusedError as error:
            # The session had expired, and the reaper took the new ledger for a leftover.
            refused = error
            yield CloseLedger(new_ledger_id)
        new_ledger_id = yield from next_ledger_steps(paths, owner, now_ms)
    raise refused


def fenced_error(paths: LogPaths, owner: Owner, ledger_id: int) -> LogFencedError:
    """Return the error of a writer whose open tail ``ledger_id`` was fenced by somebody else."""
    return LogFencedError(
        f"log {paths.name}: log writer {owner.writer_id} has lost the tail: its ledger was fenced by another "
        "writer or by a commit",
        ledger_id=ledger_id,
    )


def _recover(ledger_id: int) -> Steps[None]:
    event = yield from _on_ledger(RecoverLedger(ledger_id))
    if isinstance(event, Failed):
        raise event.error


def _is_writers(paths: LogPaths, ledger_id: int) -> Steps[bool]:
    """Whether a log writer made the ledger. Raises MetadataUnavailableError."""
    yield from sync_steps(paths)
    writers = yield from children_steps(paths, paths.runs_at(WRITERS))
    names = tuple(f"{writer_run(paths, writer_id)}/{ledger_id}" for writer_id in writers)
    znodes = yield from read_steps(paths, names)
    return any(znode is not None for znode in znodes.values())


def _on_ledger(action: CloseLedger | RecoverLedger) -> Steps[Event]:
    """Perform ``action``. While ZooKeeper is unavailable the outcome is unknown: pause and retry."""
    attempt = 0
    while True:
        event = yield action
        attempt += 1
        away = isinstance(event, Failed) and isinstance(event.error, MetadataUnavailableError)
        if not away or attempt == MAX_UNAVAILABLE:
            return event
        yield Pause(UNAVAILABLE_PAUSE_MS * attempt)
