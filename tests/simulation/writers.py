"""The writer of the model world: it performs the machine's actions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from bk_spark.protocol.codes import Code, DigestType, FlagV2
from bk_spark.protocol.errors import BookieUnavailableError, NotEnoughBookiesError
from bk_spark.protocol.ledger.metadata_calls import CompareAndSet, ReadMetadata
from bk_spark.protocol.ledger.writer import LedgerWriter, WriterState
from bk_spark.protocol.ledger.writer_actions import (
    AddsAnswered,
    BookieFailed,
    BookieForced,
    BookiesChanged,
    BookiesChosen,
    ChooseBookies,
    ForceBookie,
    NoBookies,
    SendAdds,
    SendRefused,
    WriterAction,
    WriterEvent,
    WriterTimer,
)
from bk_spark.protocol.ledger.writer_ensemble import ChangeState
from bk_spark.protocol.machine import EndedBy, StartTimer, Succeeded, TimerFired
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.wire.answers_v2 import AddAnswers
from tests.simulation.bytes_cache import (
    AddSeen,
    CachedPackager,
    answer_in,
    code_in,
    force_request,
    length_of,
    payloads_of,
    request_in,
    split,
)
from tests.simulation.events import (
    SLOW,
    Acknowledged,
    Answer,
    Choose,
    Command,
    Effect,
    Ended,
    Event,
    MetaReply,
    Request,
    Retry,
    Tick,
    Way,
)
from tests.simulation.metadata_calls import metadata_call, metadata_event
from tests.support.ledgers import LEDGER


class Actor:
    """A client process: events in, effects out."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.started = False
        self.ended = False
        #: "done" or the name of an error; empty before the end.
        self.outcome = ""
        self.out: list[Effect] = []

    def handle(self, event: Event, way: Way) -> list[Effect]:
        if self.ended:
            return []
        self.started = True
        if isinstance(event, Command) and event.verb == "kill":
            self.end("killed")
        else:
            self.on(event, way)
        out, self.out = self.out, []
        return out

    def on(self, event: Event, way: Way) -> None:
        raise NotImplementedError

    @property
    def idle(self) -> bool:
        """Whether it does nothing more until it gets a command, even if messages arrive."""
        return self.ended or not self.started

    def end(self, outcome: str | BaseException, last_entry_id: int | None = None) -> None:
        self.ended = True
        self.outcome = outcome if isinstance(outcome, str) else type(outcome).__name__
        self.out.append(Ended(self.name, self.outcome, last_entry_id))


class AddPipeline:
    """Performs the actions of a :class:`LedgerWriter`. ``epoch`` keeps its messages apart from those of another
    pipeline of the same actor."""

    def __init__(self, actor: str, epoch: int, machine: LedgerWriter) -> None:
        self.actor = actor
        self.epoch = epoch
        self.machine = machine

    def on(self, event: Event, way: Way) -> None:
        """Pass an event of this epoch to the machine. Call :meth:`run` afterwards."""
        if isinstance(event, Answer) and event.tag[0] == "force" and not _is_ok(event.frame):
            self.machine.fail(BookieUnavailableError("the bookie did not sync", bookie_id=event.bookie))
        else:
            self.machine.handle(writer_event(event, way))

    def run(self, out: list[Effect]) -> None:
        """Perform the machine's actions."""
        for action in self.machine.take_actions():
            out += writer_effects(self.actor, self.epoch, action)


def writer_effects(actor: str, epoch: int, action: WriterAction) -> Iterator[Effect]:
    """The effects of an action of a writer's machine. ``epoch`` goes into the tags."""
    match action:
        case SendAdds(bookie, views):
            for frame in split(views):
                entry_id = cast(AddSeen, request_in(frame)).entry_id
                yield Request(actor, bookie, f"add {entry_id}", ("add", epoch), frame)
        case ForceBookie(bookie, last):
            yield Request(actor, bookie, f"force {last}", ("force", epoch, last), force_request())
        case ChooseBookies(failed, exclude, avoid):
            yield Choose(actor, ("choose", epoch), failed, exclude, avoid)
        case CompareAndSet() | ReadMetadata():
            yield metadata_call(actor, ("meta", epoch), action)
        case StartTimer(SendRefused(bookie)):
            yield Retry(actor, ("retry", epoch), bookie)
        case StartTimer(WriterTimer() as timer) if timer is not WriterTimer.SLOW_SEARCH:
            yield Tick(actor, ("tick", epoch), timer.value)
        case _:
            pass  # connections always exist, and a slow search is one of the ways of Choose


def writer_event(event: Event, way: Way) -> WriterEvent:
    """The event for the machine."""
    match event:
        case Answer(_, bookie, frame=None):
            return BookieFailed(bookie)
        case Answer(_, bookie, tag=("force", _, int(last))):
            return BookieForced(bookie, last)
        case Answer(_, bookie, frame=bytes(frame)):
            answers = answer_in(frame)
            assert isinstance(answers, AddAnswers)
            return AddsAnswered(bookie, answers.entry_ids, answers.codes)
        case Choose() if way == SLOW:
            return TimerFired(WriterTimer.SLOW_SEARCH)
        case Choose() if way:
            assert isinstance(way, tuple)
            return BookiesChosen(dict(way))
        case Choose():
            return NoBookies(NotEnoughBookiesError("none left"))
        case Retry() | Tick():
            return TimerFired(timer_of(event))
        case MetaReply():
            return metadata_event(event)
    raise AssertionError(event)


def timer_of(event: Retry | Tick) -> SendRefused | WriterTimer:
    """The name of the timer that fires."""
    return SendRefused(event.bookie) if isinstance(event, Retry) else WriterTimer(event.name)


def _is_ok(frame: bytes | None) -> bool:
    return frame is not None and code_in(frame) is Code.OK


class WriterActor(Actor):
    """Commands: ``append <count>``, ``close`` (again after one that failed), ``renew`` (bookies came or went),
    ``force`` (with deferred sync)."""

    def __init__(
        self,
        name: str,
        metadata: LedgerMetadata,
        machine_class: type[LedgerWriter] = LedgerWriter,
        *,
        deferred_sync: bool = False,
        claimed: bool = True,
    ) -> None:
        """The writer begins at the start of the last segment. ``claimed``: bookies were told the password before."""
        super().__init__(name)
        last = metadata.last_segment.first_entry_id - 1
        assert isinstance(metadata.digest_type, DigestType)
        machine = machine_class(
            LEDGER,
            metadata,
            0,
            CachedPackager(metadata.digest_type, FlagV2.NONE, deferred_sync),
            last_entry_id=last,
            length=length_of(last),
            deferred_sync=deferred_sync,
            password_is_known=claimed,
        )
        self.pipeline = AddPipeline(name, 0, machine)
        self.wants_close = False
        self._acknowledged = last

    @property
    def idle(self) -> bool:
        machine = self.pipeline.machine
        if self.ended or machine.close_error is not None:
            return True
        confirmed = machine.last_add_confirmed == machine.last_add_pushed
        settled = machine.state is WriterState.OPEN and machine.ensemble.state is ChangeState.NONE
        return settled and confirmed and not self.wants_close

    def on(self, event: Event, way: Way) -> None:
        machine = self.pipeline.machine
        match event:
            case Command("append"):
                if not self.wants_close:
                    first = machine.last_add_pushed + 1
                    machine.add(payloads_of(first, first + int(event.arguments[0]) - 1))
            case Command("close"):
                self.wants_close = True
                machine.close()
            case Command("force"):
                if machine.error is None:
                    machine.force()
            case Command("renew"):
                machine.handle(BookiesChanged())
            case _:
                self.pipeline.on(event, way)
        self.pipeline.run(self.out)
        if machine.last_add_confirmed > self._acknowledged:
            self._acknowledged = machine.last_add_confirmed
            self.out.append(Acknowledged(self.name, self._acknowledged))
        match machine.outcome:
            case Succeeded(metadata):
                self.end("done", metadata.last_entry_id)
            case EndedBy(error):
                self.end(error)
