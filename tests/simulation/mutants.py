"""Rules broken on purpose. The checks must find these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from bk_spark.protocol.codes import NO_ENTRY, Code, FlagV2
from bk_spark.protocol.entries.entry import Entry
from bk_spark.protocol.errors import BookieUnavailableError
from bk_spark.protocol.ledger import end_search
from bk_spark.protocol.ledger.closing import LedgerClosing
from bk_spark.protocol.ledger.end_search import EndSearch, EntryFailed, EntryRead, Purpose
from bk_spark.protocol.ledger.metadata_calls import CompareAndSet, MetadataFailed, MetadataFound, MetadataWritten
from bk_spark.protocol.ledger.reading import lac, tail
from bk_spark.protocol.ledger.reading.lac import LacAnswer
from bk_spark.protocol.ledger.reading.ledger_view import LedgerKey, LedgerView
from bk_spark.protocol.ledger.reading.read_actions import LacTold, MetadataChanged
from bk_spark.protocol.ledger.reading.reader import Event as RangeEvent, RangeReader
from bk_spark.protocol.ledger.reading.tail import Event, LedgerTail
from bk_spark.protocol.ledger.recovery import LedgerRecovery
from bk_spark.protocol.ledger.writer import LedgerWriter
from bk_spark.protocol.ledger.writer_actions import WriterAction, WriterEvent
from bk_spark.protocol.ledger.writer_ensemble import ChangeEvent, ChangeState, WriterEnsemble
from bk_spark.protocol.machine import Succeeded
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.quorum import Answer, Quorum
from tests.simulation.bytes_cache import lac_in, length_of
from tests.simulation.events import Effect
from tests.simulation.servers import ModelBookie
from tests.simulation.tails import TailActor

# --- writers ----------------------------------------------------------------------------------------


class PublishesNothing(LedgerWriter):
    """It acknowledges on ensembles that nobody else knows."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, publish=False, **settings)


class _AllowsAcknowledgingUnpublished(WriterEnsemble):
    @property
    def _change_admits(self) -> bool:
        return self.state is ChangeState.CHANGING or super()._change_admits


class AcknowledgesUnpublished(LedgerWriter):
    """C8: it acknowledges while the compare-and-set of an ensemble change is under way."""

    ensemble_class = _AllowsAcknowledgingUnpublished


class _AwaitsNobody(WriterEnsemble):
    def may_acknowledge(self, owed: Sequence[int]) -> bool:
        return super().may_acknowledge([0] * len(owed))


class AwaitsNobody(LedgerWriter):
    """C17: it acknowledges though a bookie may know the ledger with another password."""

    ensemble_class = _AwaitsNobody


class _TakesConflictsForItsOwn(WriterEnsemble):
    proposed: CompareAndSet | None = None

    def take_actions(self) -> list[WriterAction]:
        actions = super().take_actions()
        for action in actions:
            if isinstance(action, CompareAndSet):
                self.proposed = action
        return actions

    def handle(self, event: ChangeEvent, last_add_acknowledged: int) -> Mapping[int, str]:
        if isinstance(event, MetadataFailed) and self.proposed is not None:
            event = MetadataWritten(self.proposed.metadata, self.proposed.version + 1)
        return super().handle(event, last_add_acknowledged)


class TakesConflictsForItsOwn(LedgerWriter):
    """It treats an ensemble change as published, whatever the result of the compare-and-set."""

    ensemble_class = _TakesConflictsForItsOwn


class _TellsOfNoReplacements(WriterEnsemble):
    def handle(self, event: ChangeEvent, last_add_acknowledged: int) -> Mapping[int, str]:
        super().handle(event, last_add_acknowledged)
        return {}


class SendsReplacementsNothing(LedgerWriter):
    """Entries of a replaced bookie count as held by its replacement, which receives nothing."""

    ensemble_class = _TellsOfNoReplacements


class ClosesUndrained(LedgerWriter):
    """It closes at the last entry added, acknowledged or not."""

    @property
    def pending_entries(self) -> int:
        return 0 if self._close_wanted else super().pending_entries

    def _begin_closing(self) -> None:
        self._closing = LedgerClosing(
            self.ledger_id, self.metadata, self.ensemble.version, self.last_add_pushed, self._pushed_length
        )
        self._advance_closing(self._closing)

    @property
    def _drained(self) -> bool:
        return self._close_wanted


class TrustsTheFirstClose(LedgerWriter):
    """A second close treats the first as done, though its outcome is unknown."""

    def close(self) -> None:
        if self.close_error is None:
            super().close()
        elif self.outcome is None:
            self.outcome = Succeeded(self.metadata.closed(self.last_add_confirmed, self.length))


class GoesOnAfterAFailedForce(LedgerWriter):
    """The next force is expected to cover one that failed."""

    def fail(self, error: Exception) -> None:
        if isinstance(error, BookieUnavailableError):
            self._forces.clear()
        else:
            super().fail(error)


class _ReplacesAlways(WriterEnsemble):
    def __init__(self, *arguments: Any, deferred_sync: bool, **settings: Any) -> None:
        super().__init__(*arguments, deferred_sync=False, **settings)


class ReplacesBookiesWithDeferredSync(LedgerWriter):
    """It replaces a bookie that may have lost entries that it acknowledged without syncing, and confirms these
    entries."""

    ensemble_class = _ReplacesAlways


class ConfirmsUnforced(LedgerWriter):
    """With deferred sync it confirms entries that are only acknowledged."""

    def handle(self, event: WriterEvent) -> None:
        super().handle(event)
        if self.last_add_confirmed < self.last_add_acknowledged:
            self.last_add_confirmed = self.last_add_acknowledged
            self.length = length_of(self.last_add_acknowledged)


# --- recoverers -------------------------------------------------------------------------------------


class _FencesOnceOnly(EndSearch):
    def _flags(self, purpose: Purpose) -> FlagV2:
        return FlagV2.NONE if purpose is Purpose.SEARCH else super()._flags(purpose)


class ReadsDoNotFence(LedgerRecovery):
    """Issue 2614: only the read of the last entry fences."""

    search_class = _FencesOnceOnly


class _FencesNothing(EndSearch):
    def _flags(self, purpose: Purpose) -> FlagV2:
        return FlagV2.NONE


class DoesNotFence(LedgerRecovery):
    search_class = _FencesNothing


class _TakesUnknownForAbsent(EndSearch):
    def _unknown(self) -> Answer:
        return Answer.ABSENT


class UnknownIsAbsent(LedgerRecovery):
    """A bookie that does not answer, or answers with an error, counts as having nothing."""

    search_class = _TakesUnknownForAbsent


class _TakesErrorsForAbsent(EndSearch):
    def _understand(self, event: EntryRead | EntryFailed) -> tuple[Answer, Entry | None]:
        failed = isinstance(event, EntryRead) and event.answer.code is not Code.OK
        return (Answer.ABSENT, None) if failed else super()._understand(event)


class ErrorsAreAbsent(LedgerRecovery):
    """A bookie that answers with an error counts as having nothing."""

    search_class = _TakesErrorsForAbsent


class WritesBackTheNewestLac(LedgerRecovery):
    """Entries that a recovery itself wrote back count as confirmed."""

    def _write_back(self, writer: LedgerWriter, entries: list[Entry], last_add_confirmed: int) -> None:
        super()._write_back(writer, entries, writer.last_add_confirmed)


class _NoFloor(EndSearch):
    def _floor(self) -> int:
        return NO_ENTRY


class RecoversFromTheBeginning(LedgerRecovery):
    """Issue 2615: the start of the last segment is not a lower bound for the LAC that was heard."""

    search_class = _NoFloor


class DoesNotMark(LedgerRecovery):
    """It fences and closes a ledger whose metadata say OPEN."""

    def _on_open(self, metadata: LedgerMetadata, version: int) -> None:
        self._begin(metadata, version)


class GoesOnAfterAConflict(LedgerRecovery):
    """It does not read the metadata to which its compare-and-set lost."""

    proposed: CompareAndSet | None = None

    def _compare_and_set(self, metadata: LedgerMetadata, version: int) -> None:
        self.proposed = CompareAndSet(metadata, version)
        super()._compare_and_set(metadata, version)

    def _read_metadata(self) -> None:
        assert self.proposed is not None
        self._on_stored(self.proposed.metadata, self.proposed.version + 1)


def let_any_ack_quorum_decide(stack: ExitStack) -> None:
    """While ``stack`` is open, any Qa answers, whatever their position, are enough to treat a ledger as fenced and
    an entry as absent. (With fencing reads the first alone would do no harm: these reach the bookies that the
    fences missed.)"""

    def any_ack_quorum(quorum: Quorum, answers: Sequence[Answer]) -> bool:
        definite = sum(answer in (Answer.PRESENT, Answer.ABSENT) for answer in answers)
        return definite >= quorum.ack_quorum_size

    stack.enter_context(patch.object(end_search, "covered", any_ack_quorum))
    stack.enter_context(patch.object(Quorum, "absent_needed", property(lambda quorum: quorum.ack_quorum_size)))


def let_forces_go_over_any_connection(stack: ExitStack) -> None:
    """While ``stack`` is open, a crash between adds with deferred sync and a force goes unnoticed."""
    crash = ModelBookie._crash

    def unnoticed(bookie: ModelBookie) -> list[Effect]:
        effects = crash(bookie)
        bookie.broken = frozenset()
        return effects

    stack.enter_context(patch.object(ModelBookie, "_crash", unnoticed))


# --- readers ----------------------------------------------------------------------------------------


def let_old_metadata_stay(stack: ExitStack) -> None:
    """While ``stack`` is open, a reader of a range uses the metadata of its handle, whatever it reads later."""
    handle = RangeReader.handle

    def stubborn(machine: RangeReader, event: RangeEvent) -> None:
        handle(machine, MetadataFound(machine._metadata, 0) if isinstance(event, MetadataFound) else event)

    stack.enter_context(patch.object(RangeReader, "handle", stubborn))


def let_old_ends_count(stack: ExitStack) -> None:
    """While ``stack`` is open, a reader of known entries takes the LAC of its handle for the end of the ledger."""
    begin = RangeReader._begin

    def begin_as_if_closed(machine: RangeReader) -> None:
        with patch.object(LedgerView, "closed", True):
            begin(machine)

    stack.enter_context(patch.object(RangeReader, "_begin", begin_as_if_closed))


# --- tails ------------------------------------------------------------------------------------------


class _TakesPollsAtTheirWord(LedgerTail):
    def _on_poll_answered(self, request_id: int, code: Code, max_lac: int | None) -> None:
        if code is Code.OK and max_lac is not None:
            self._hear(max_lac)
        super()._on_poll_answered(request_id, code, -1)


class TakesPollsAtTheirWord(TailActor):
    """A bookie's claim counts as confirmed, without proof."""

    machine_class = _TakesPollsAtTheirWord


class _EndsWhereItHasCaughtUp(LedgerTail):
    def _poll(self, metadata: LedgerMetadata) -> None:
        self._end(Succeeded(None))


class EndsWhereItHasCaughtUp(TailActor):
    """It ends though the ledger is open."""

    machine_class = _EndsWhereItHasCaughtUp


class _ReadsBeyondTheLac(LedgerTail):
    def _hear(self, last_add_confirmed: int) -> None:
        super()._hear(last_add_confirmed + (last_add_confirmed > self.last_add_confirmed))


class ReadsBeyondTheLac(TailActor):
    """The entry that a bookie gives as its last counts as confirmed, not the LAC in that entry."""

    machine_class = _ReadsBeyondTheLac


class _KeepsPollsOfOldFragments(LedgerTail):
    def _stop_polls(self, keep: tuple[str, ...] = ()) -> None:
        if not keep:
            super()._stop_polls()


class KeepsPollsOfOldFragments(TailActor):
    """It keeps waiting for a bookie that was replaced."""

    machine_class = _KeepsPollsOfOldFragments


class _ReadsAFailedRangeAgain(LedgerTail):
    def _on_range_failed(self, error: Exception) -> None:
        self.next_entry_id = max(0, self.next_entry_id - 1)
        super()._on_range_failed(error)


class ReadsAFailedRangeAgain(TailActor):
    """After a failure it goes back by one entry."""

    machine_class = _ReadsAFailedRangeAgain


class _ReadsMetadataOnce(LedgerTail):
    def handle(self, event: Event) -> None:
        if not isinstance(event, MetadataChanged):
            super().handle(event)


class ReadsMetadataOnce(TailActor):
    """It does not read the metadata again when they change."""

    machine_class = _ReadsMetadataOnce


class _GivesUpNothing(LedgerTail):
    def _on_metadata_failed(self, error: Exception) -> None:
        """It waits for an answer that has already come."""


class WaitsForMetadataForEver(TailActor):
    """If reading the metadata fails, it does not try again."""

    machine_class = _GivesUpNothing


def let_tails_trust_any_digest(stack: ExitStack) -> None:
    """While ``stack`` is open, a LAC counts though its digest is wrong."""

    def trusting(ledger: LedgerKey, told: LacTold) -> LacAnswer:
        if told.code is not Code.OK or told.last_entry is None:
            return understand(ledger, told)
        return LacAnswer(Answer.PRESENT, lac_in(told.last_entry))

    understand = lac.understand
    stack.enter_context(patch.object(tail, "understand", trusting))


def let_watches_be_forgotten(stack: ExitStack) -> None:
    """While ``stack`` is open, a change that comes while the metadata are being read is ignored."""
    handle = LedgerTail.handle

    def forgetful(machine: LedgerTail, event: Event) -> None:
        if not (isinstance(event, MetadataChanged) and machine._refreshing):
            handle(machine, event)

    stack.enter_context(patch.object(LedgerTail, "handle", forgetful))
