"""How a log writer opens, rolls and closes its tail: machines over :mod:`bk_spark.log.core.steps`. No I/O, no clock.

A writer's ledger is always made and registered first, listed as open tail next, and written to only then. So every
entry that was ever acknowledged to a log writer is in a ledger that the list knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bk_spark.log.core.changes import MAX_UNAVAILABLE, UNAVAILABLE_PAUSE_MS, change_steps
from bk_spark.log.core.reading import children_steps, read_steps, sync_steps
from bk_spark.log.core.registrations import MakeZnodes, registrar
from bk_spark.log.core.steps import (
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
)
from bk_spark.log.core.tail import (
    LookAtTail,
    OpenTail,
    RollTail,
    SealTail,
    TailPlace,
    writer_run,
)
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
)

#: New ledgers made in a row because the reaper took them for left-overs, or took the run's znode.
_MAX_LEDGERS: Final = 5

Clock = Callable[[], int]


def open_steps(paths: LogPaths, owner: Owner, now_ms: Clock, *, take_over: bool = False) -> Steps[TailPlace]:
    """A new ledger of ``owner`` is the open tail, and the ledgers before it are closed.

    Raises LogTailOpenError where another live writer holds the tail and ``take_over`` is not set; NoSuchLogError,
    LogReplacedError; the ledger client's errors; as :func:`bk_spark.log.core.changes.change_steps`.
    """
    state = yield from change_steps(LookAtTail(paths, owner, take_over=take_over), now_ms)
    if state.open is not None:
        yield from _recover(state.open.ledger_id)
    # A writer lists its ledger as sealed after closing it. Should that ever not hold, entries could still be added
    # behind the reader's back: so it is made sure. Ledgers of Spark's tasks stay open while they are in use.
    if state.before is not None and (yield from _is_writers(paths, state.before.ledger_id)):
        yield from _recover(state.before.ledger_id)
    for attempt in range(1, _MAX_LEDGERS + 1):
        ledger_id = yield from next_ledger_steps(paths, owner, now_ms)
        try:
            return (yield from change_steps(OpenTail(paths, owner, ledger_id, take_over=take_over), now_ms))
        except BookKeeperError as error:
            # Nobody wrote to it. Closed it is in nobody's way, and the reaper does the rest.
            yield CloseLedger(ledger_id)
            if not isinstance(error, LedgerRefusedError) or attempt == _MAX_LEDGERS:
                raise
    raise AssertionError


class Roll:
    """A log writer goes on to its next ledger: ``ledger_id``, the open tail, is drained, closed and sealed, and a new
    ledger is the open tail.

    ``next_ledger_id`` is the new ledger, once there is one. Its writer must be let go where the steps do not end well.
    """

    def __init__(self, paths: LogPaths, owner: Owner, ledger_id: int, now_ms: Clock) -> None:
        self.next_ledger_id: int | None = None
        #: Why no new ledger could be had.
        self.put_off_by: BookKeeperError | None = None
        self._paths = paths
        self._owner = owner
        self._ledger_id = ledger_id
        self._now_ms = now_ms

    def steps(self) -> Steps[TailPlace | None]:
        """The new tail; None where no new ledger could be had: the writer goes on with the old one.

        Raises LogFencedError where another has taken the tail; else as its parts do.
        """
        paths, owner, now_ms = self._paths, self._owner, self._now_ms
        try:
            # Before the old one is closed. Without a new one nothing is lost yet.
            self.next_ledger_id = yield from next_ledger_steps(paths, owner, now_ms)
        except (PeerError, MetadataError) as error:
            self.put_off_by = error
            return None
        closed = yield from drain_steps(paths, owner, self._ledger_id)
        return (yield from _move_steps(paths, owner, closed, self.next_ledger_id, now_ms))


def close_steps(paths: LogPaths, owner: Owner, ledger_id: int, now_ms: Clock) -> Steps[int]:
    """The open tail ``ledger_id`` is drained, closed and sealed; the log's ``next_offset`` then.

    Raises LogFencedError where the ledger was fenced; else as its parts do.
    """
    closed = yield from drain_steps(paths, owner, ledger_id)
    return (yield from change_steps(SealTail(paths, owner, closed), now_ms))


def next_ledger_steps(paths: LogPaths, owner: Owner, now_ms: Clock) -> Steps[int]:
    """A new ledger, registered for ``owner``, that is not in the list yet. Raises the ledger client's errors."""
    run_path = writer_run(paths, owner.writer_id)
    refused: Conflict | None = None
    for _ in range(_MAX_LEDGERS):
        yield from change_steps(MakeZnodes(paths, paths.runs_at(WRITERS), run_path), now_ms)
        event = yield CreateLedger(registrar(paths, run_path))
        if isinstance(event, Created):
            return event.ledger_id
        if isinstance(event, Failed):
            raise event.error
        # The reaper removed the run's empty znode in between, or the log is gone: the next turn tells.
        assert isinstance(event, Conflict), event
        refused = event
    assert refused is not None
    raise MetadataConflictError(f"log {paths.name}: no ledger could be registered: {refused.reason}")


def drain_steps(paths: LogPaths, owner: Owner, ledger_id: int) -> Steps[Closed]:
    """Where the writer's own ledger ends: all that was appended is acknowledged, and it is closed.

    Raises LogFencedError where another fenced it; else what ended the ledger's writer.
    """
    event = yield from _on_ledger(CloseLedger(ledger_id))
    if isinstance(event, Failed):
        # An empty tail that another removed from the list may be gone altogether.
        if isinstance(event.error, LedgerFencedError | NoSuchLedgerError):
            raise fenced_error(paths, owner, ledger_id) from event.error
        raise event.error
    assert isinstance(event, Closed), event
    return event


def _move_steps(paths: LogPaths, owner: Owner, closed: Closed, new_ledger_id: int, now_ms: Clock) -> Steps[TailPlace]:
    """Second half of a roll: the ledger is closed. Raises LogFencedError."""
    for _ in range(_MAX_LEDGERS):
        try:
            return (yield from change_steps(RollTail(paths, owner, closed, new_ledger_id), now_ms))
        except LedgerRefusedError as error:
            # The session had expired, and the reaper took the new ledger for a left-over.
            refused = error
            yield CloseLedger(new_ledger_id)
        new_ledger_id = yield from next_ledger_steps(paths, owner, now_ms)
    raise refused


def fenced_error(paths: LogPaths, owner: Owner, ledger_id: int) -> LogFencedError:
    return LogFencedError(
        f"log {paths.name}: log writer {owner.writer_id} holds the tail no more: its ledger was fenced by another "
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
    """The event of ``action``; again after a pause while ZooKeeper is away, which leaves open whether it is done."""
    attempt = 0
    while True:
        event = yield action
        attempt += 1
        away = isinstance(event, Failed) and isinstance(event.error, MetadataUnavailableError)
        if not away or attempt == MAX_UNAVAILABLE:
            return event
        yield Pause(UNAVAILABLE_PAUSE_MS * attempt)
