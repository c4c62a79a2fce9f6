"""One log writer, from its opening to its end: when it sends, rolls, seals its tail, and gives up. No I/O, no clock.

A :class:`TailWriting` holds what the writer knows. Its commands are steps. One of them runs at a time, except
:meth:`TailWriting.keep_steps`, which runs beside the others and takes a turn before it changes anything.

Any error of a ledger or of a roll ends the writer. It removes the owner's znode, so that nobody waits for it, and keeps
the error for all later commands. Errors of ZooKeeper while the tail is sealed do not end it: :meth:`close_steps` may be
repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from bk_spark.log.core.changes import change_steps
from bk_spark.log.core.steps import (
    AbandonLedger,
    Answered,
    Closed,
    Failed,
    IsLedgerOpen,
    LimitTime,
    Steps,
    Warn,
)
from bk_spark.log.core.tail.roll import RollLimits
from bk_spark.log.core.tail.tail_changes import KeepTail, ReleaseTail, SealTail, TailPlace
from bk_spark.log.core.tail.writer_actions import (
    Acknowledged,
    AskConfirmed,
    AskFailure,
    FlushLedger,
    SendEntries,
    Sent,
    TakeTurn,
    UseTail,
    WatchOwner,
)
from bk_spark.log.core.tail.writer_steps import Clock, Roll, drain_steps, fenced_error, open_steps
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.formats.znodes import Owner
from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import (
    BookKeeperError,
    LedgerClosedError,
    LedgerFencedError,
    LogFencedError,
    LogReplacedError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NoSuchLogError,
    OutcomeUnknownError,
)

#: Without a new ledger the writer keeps using the old one, so there is no hurry to retry.
ROLL_AGAIN_MS: Final = 10_000
_RELEASE_MS: Final = 5_000
#: For one check of the tail. Keeps the end of a writer from waiting long.
_KEEP_MS: Final = 5_000
#: Check the tail again this long after ZooKeeper was unavailable.
KEEP_AGAIN_MS: Final = 1_000


class TailWriting:
    """One log writer. Call :meth:`open_steps` first.

    Parameters
    ----------
    owner
        Names the writer.
    limits
        When it rolls to its next ledger.
    now_ms
        Returns the cluster's time in Unix milliseconds, or slightly less.
    elapsed_ms
        Reads a monotonic clock.
    """

    def __init__(
        self, paths: LogPaths, owner: Owner, limits: RollLimits, now_ms: Clock, elapsed_ms: Callable[[], float]
    ) -> None:
        self.owner = owner
        #: The error that ended the writer.
        self.failure: BookKeeperError | None = None
        #: Where the log ended when this writer sealed its tail.
        self.end_offset: int | None = None
        #: The writer was told to close, or was abandoned.
        self.is_closing = False
        self._paths = paths
        self._limits = limits
        self._now_ms = now_ms
        self._elapsed_ms = elapsed_ms
        self._place: TailPlace | None = None
        #: What was sent to the ledger.
        self._entries = self._size_bytes = 0
        self._opened_ms = self._no_roll_before_ms = 0.0
        #: The roll under way, or the one that failed.
        self._roll: Roll | None = None
        #: Where the last ledger ended, once it is closed.
        self._closed: Closed | None = None
        #: The owner's znode must not be created again.
        self._is_ending = False

    @property
    def place(self) -> TailPlace:
        """The writer's tail."""
        assert self._place is not None
        return self._place

    @property
    def ledger_id(self) -> int:
        """The ledger that new entries go to."""
        return self.place.ledger_id

    # --- commands that ask for nothing ---

    def stop(self) -> None:
        """Accept no more entries."""
        self.is_closing = True

    def check_open(self) -> None:
        """Raise the error that ended the writer, or LedgerClosedError if it is closed."""
        self._raise_failure()
        if self.is_closing:
            raise LedgerClosedError(f"log {self._paths.name}: this log writer is closed")

    def idle_ms(self, *, has_entries: bool) -> float | None:
        """How long there is nothing to do: 0 if there is something now, None if the writer has ended."""
        if self.is_closing or self.failure is not None:
            return None
        return 0.0 if has_entries else max(0.0, self._due_in_ms())

    # --- commands ---

    def open_steps(self, *, take_over: bool) -> Steps[None]:
        """Open the tail. Raises what :func:`~bk_spark.log.core.tail.writer_steps.open_steps` raises."""
        place = yield from open_steps(self._paths, self.owner, self._now_ms, take_over=take_over)
        yield from self._use(place)

    def send_steps(self, payloads: Payloads | Sequence[Buffer], offsets: Int64s) -> Steps[None]:
        """Send entries, and roll to the next ledger whenever one is due. ``offsets`` are those of the payloads.

        Raises the error that ended the writer.
        """
        self._raise_failure()
        first, count = 0, len(payloads)
        try:
            while first < count:
                yield from self._roll_if_due()
                last = self._limits.part_end(offsets, first, self._size_bytes, self._entries)
                event = yield SendEntries(self.ledger_id, _part(payloads, first, last))
                if isinstance(event, Failed):
                    raise event.error
                assert isinstance(event, Sent), event
                self._entries += last - first
                self._size_bytes += int(offsets[last] - offsets[first])
                assert event.last_entry == self._entries - 1, "the offsets returned are not those of the entries"
                first = last
        except BookKeeperError as error:
            yield from self._fail_steps(error)

    def serve_steps(self, payloads: Sequence[Buffer], offsets: Int64s) -> Steps[None]:
        """Send entries, then roll if the ledger is due. Raises the error that ended the writer."""
        yield from self.send_steps(payloads, offsets)
        try:
            yield from self._roll_if_due()
        except BookKeeperError as error:
            yield from self._fail_steps(error)

    def flush_steps(self) -> Steps[None]:
        """Wait until everything sent is acknowledged. Raises the error that ended the writer."""
        self._raise_failure()
        if self._closed is None:
            event = yield FlushLedger(self.ledger_id)
            if isinstance(event, Failed):
                yield from self._fail_steps(event.error)

    def close_steps(self, payloads: Sequence[Buffer], offsets: Int64s) -> Steps[int]:
        """Send the last entries, close the ledger and seal the tail. Returns where the log ends.

        Raises the error that ended the writer. After other errors, those of
        :func:`~bk_spark.log.core.changes.change_steps`, it may be repeated without entries.
        """
        try:
            self._raise_failure()
            if self._closed is None:
                yield from self.send_steps(payloads, offsets)
                self._closed = yield from self._drain()
        except BookKeeperError:
            if self.failure is not None:
                yield from self._leave()
            raise
        if self.end_offset is None:
            self.end_offset = yield from change_steps(SealTail(self._paths, self.owner, self._closed), self._now_ms)
        return self.end_offset

    def abandon_steps(self) -> Steps[None]:
        """Leave the tail for the next writer or commit to seal."""
        yield from self._leave()
        if self.failure is None and self.end_offset is None:
            self.failure = LedgerClosedError(f"log {self._paths.name}: this log writer was abandoned")

    def interrupt_steps(self) -> Steps[None]:
        """End the writer because entries were sent in part: their offsets were returned, and it is unknown which
        entries were sent."""
        error = LedgerClosedError(f"log {self._paths.name}: this log writer was interrupted while it sent entries")
        yield from self.end_steps(error)

    def end_steps(self, error: BookKeeperError) -> Steps[None]:
        """End the writer with ``error``, unless it has ended already."""
        if self.failure is not None:
            return
        self._is_ending = True
        if self._roll is not None and self._roll.next_ledger_id is not None:
            yield AbandonLedger(self._roll.next_ledger_id)
        confirmed = yield AskConfirmed(self.ledger_id)
        assert isinstance(confirmed, Acknowledged), confirmed
        became = yield from self._release()
        if isinstance(error, LedgerFencedError | LogFencedError | NoSuchLedgerError):
            error = self._fenced_error(became, self.place.base_offset + confirmed.last_entry + 1, error)
        self.failure = error

    def keep_steps(self) -> Steps[float | None]:
        """Check whether the tail is still this writer's, and create the owner's znode again if it is gone.

        Run this when the owner's znode changed, or may have changed, and when the ledger's writer has failed: until
        somebody learns of that, an idle writer would keep others from the tail. Returns after how many milliseconds to
        run it again. None: after the next change.
        """
        yield LimitTime(_KEEP_MS)
        try:
            # Before the check, so that later changes are noticed.
            event = yield WatchOwner()
            if isinstance(event, Failed):
                raise event.error
            if self._is_over():
                return None
            place = self.place
            lost = yield from self._find_lost(place)
        except BookKeeperError as error:
            if not error.retriable and not isinstance(error, OutcomeUnknownError):
                return None
            yield Warn(f"the owner {self.owner.writer_id} of the tail could not be checked, trying again: {error}")
            return KEEP_AGAIN_MS
        if lost is None:
            return None
        yield TakeTurn()
        if self._is_over():
            return None
        if self.place is not place:
            # The writer has rolled in the meantime.
            return 0.0
        yield from self.end_steps(lost)
        return None

    # --- parts of commands ---

    def _is_over(self) -> bool:
        return self._is_ending or self.is_closing

    def _raise_failure(self) -> None:
        if self.failure is not None:
            # Without the calls that it was raised to before: their frames hold payloads, and a caller may try for ever.
            raise self.failure.with_traceback(None)

    def _fail_steps(self, error: BookKeeperError) -> Steps[NoReturn]:
        """End the writer with ``error``, and raise what ended it."""
        yield from self.end_steps(error)
        assert self.failure is not None
        raise self.failure

    def _use(self, place: TailPlace) -> Steps[None]:
        yield UseTail(place.ledger_id, place.base_offset)
        self._place, self._entries, self._size_bytes = place, 0, 0
        self._opened_ms, self._no_roll_before_ms = self._elapsed_ms(), 0.0

    def _due_in_ms(self) -> float:
        """Milliseconds until the next ledger is due; 0 or less if it is due now. An empty ledger is kept."""
        if not self._entries:
            return self._limits.age_ms
        is_full = self._limits.is_full(self._size_bytes, self._entries)
        due_ms = 0.0 if is_full else self._opened_ms + self._limits.age_ms
        return max(due_ms, self._no_roll_before_ms) - self._elapsed_ms()

    def _roll_if_due(self) -> Steps[None]:
        if self._due_in_ms() > 0:
            return
        self._roll = roll = Roll(self._paths, self.owner, self.ledger_id, self._now_ms)
        place = yield from roll.steps()
        self._roll = None
        if place is None:
            yield Warn(f"no new ledger could be created, so ledger {self.ledger_id} stays in use: {roll.put_off_by}")
            self._no_roll_before_ms = self._elapsed_ms() + ROLL_AGAIN_MS
            return
        assert place.base_offset == self.place.base_offset + self._entries
        yield from self._use(place)

    def _drain(self) -> Steps[Closed]:
        try:
            return (yield from drain_steps(self._paths, self.owner, self.ledger_id))
        except MetadataUnavailableError:
            # The ledger may be closed already. The caller can retry.
            raise
        except BookKeeperError as error:
            return (yield from self._fail_steps(error))

    def _find_lost(self, place: TailPlace) -> Steps[BookKeeperError | None]:
        """Return the error that says that the tail is lost, or None if it is this writer's, with its owner's znode."""
        event = yield AskFailure(place.ledger_id)
        if isinstance(event, Failed):
            return event.error
        event = yield IsLedgerOpen(place.ledger_id)
        try:
            if isinstance(event, Failed):
                raise event.error
            assert isinstance(event, Answered), event
            if not event.answer:
                # A ledger fenced by someone else is lost. Keeping the tail would only keep that other writer out.
                return fenced_error(self._paths, self.owner, place.ledger_id)
            yield from change_steps(KeepTail(self._paths, self.owner), self._now_ms)
        except (LogFencedError, NoSuchLedgerError, NoSuchLogError, LogReplacedError) as error:
            return error
        return None

    def _release(self) -> Steps[str]:
        """Remove the owner's znode, so that nobody waits for this writer. Return the state of the tail, if known."""
        yield LimitTime(_RELEASE_MS)
        try:
            return (yield from change_steps(ReleaseTail(self._paths, self.owner), self._now_ms))
        except (NoSuchLogError, LogReplacedError) as error:
            return error.message
        except BookKeeperError as error:
            yield Warn(f"the tail's owner {self.owner.writer_id} could not be removed: {error}")
            return ""

    def _leave(self) -> Steps[None]:
        if self.end_offset is None:
            yield AbandonLedger(self.ledger_id)
            yield from self._release()

    def _fenced_error(self, became: str, acknowledged: int, cause: BookKeeperError) -> LogFencedError:
        error = LogFencedError(
            f"log {self._paths.name}: log writer {self.owner.writer_id} has lost the tail: "
            f"{became or 'its ledger was fenced by another writer or by a commit'}. Entries below offset "
            f"{acknowledged} were acknowledged and are in the log; later entries may or may not be in it",
            ledger_id=self.ledger_id,
        )
        error.acknowledged_offset = acknowledged
        error.__cause__ = cause
        return error


def _part(payloads: Payloads | Sequence[Buffer], first: int, last: int) -> Payloads | Sequence[Buffer]:
    if last - first == len(payloads):
        return payloads
    return payloads.part(first, last) if isinstance(payloads, Payloads) else payloads[first:last]
