"""The writer of the model world, and the part of it that writes for a recovery."""

from __future__ import annotations

from typing import cast

from bk_spark.protocol.codes import Code, DigestType, FlagV2
from bk_spark.protocol.errors import BookieUnavailableError, MetadataUnavailableError, NotEnoughBookiesError
from bk_spark.protocol.ledger.closing import LedgerClosing
from bk_spark.protocol.ledger.writer import LedgerWriter, WriterState
from bk_spark.protocol.ledger.writer_actions import (
    Acknowledge,
    ChooseBookies,
    Failed,
    ForceBookie,
    SendAdds,
    Throttled,
    WriteMetadata,
)
from bk_spark.protocol.machine import EndedBy, Succeeded
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, encode
from bk_spark.protocol.wire.answers_v2 import AddAnswers
from tests.simulation.bytes_cache import (
    AddSeen,
    CachedPackager,
    answer_in,
    code_in,
    force_request,
    length_of,
    metadata_in,
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
    MetaCall,
    MetaReply,
    Request,
    Retry,
    Way,
)
from tests.simulation.metadata_calls import metadata_call, metadata_event
from tests.support.ledgers import LEDGER

PUBLISH, CLOSE = "publish", "close"


class Actor:
    """A client process: events come in, effects go out."""

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
        """Whether nothing that is under way can make it do anything, unless it is told to."""
        return self.ended or not self.started

    def end(self, outcome: str | BaseException, last_entry_id: int | None = None) -> None:
        self.ended = True
        self.outcome = outcome if isinstance(outcome, str) else type(outcome).__name__
        self.out.append(Ended(self.name, self.outcome, last_entry_id))


class AddPipeline:
    """Drives a :class:`LedgerWriter` as WriteHandle does. ``epoch`` keeps its messages apart from those of
    another pipeline of the same actor."""

    def __init__(
        self,
        actor: str,
        metadata: LedgerMetadata,
        version: int,
        *,
        epoch: int = 0,
        last_entry_id: int,
        length: int,
        recovery: bool = False,
        publish: bool = True,
        deferred_sync: bool = False,
    ) -> None:
        self.actor = actor
        self.version = version
        self.epoch = epoch
        flags = FlagV2.RECOVERY_ADD | FlagV2.HIGH_PRIORITY if recovery else FlagV2.NONE
        assert isinstance(metadata.digest_type, DigestType)
        self.machine = LedgerWriter(
            LEDGER,
            metadata,
            CachedPackager(metadata.digest_type, flags, deferred_sync),
            last_entry_id=last_entry_id,
            length=length,
            publish=publish,
            deferred_sync=deferred_sync,
        )

    def on(self, event: Event, way: Way) -> None:
        """An event of this epoch. :meth:`run` must follow."""
        machine = self.machine
        match event:
            case Answer(_, bookie, tag=("force", _, int(last))):
                if event.frame is not None and code_in(event.frame) is Code.OK:
                    machine.on_forced(bookie, last)
                else:
                    machine.fail(BookieUnavailableError("the bookie did not sync", bookie_id=bookie))
            case Answer(_, bookie, frame=None):
                machine.on_bookie_failed(bookie)
            case Answer(_, bookie, frame=bytes(frame)):
                answers = answer_in(frame)
                assert isinstance(answers, AddAnswers)
                machine.on_add_answers(bookie, answers.entry_ids, answers.codes)
            case Choose():
                if way == SLOW:
                    machine.on_search_slow()
                elif way:
                    assert isinstance(way, tuple)
                    machine.on_bookies_chosen(dict(way))
                else:
                    machine.on_no_bookies(NotEnoughBookiesError("none left"))
            case Retry(_, _, bookie):
                machine.retry_refused(bookie)
            case MetaReply():
                self._on_reply(event)
            case _:
                raise AssertionError(event)

    def _on_reply(self, reply: MetaReply) -> None:
        if reply.was_write:
            if reply.outcome == "ok":
                self.version = reply.version
                self.machine.on_metadata_written(metadata_in(reply.data))
        elif reply.outcome == "ok":
            self.version = reply.version
            self.machine.on_metadata_conflict(metadata_in(reply.data))
        else:
            self.machine.fail(MetadataUnavailableError("the metadata cannot be read"))

    def run(self, out: list[Effect], *, user: bool = False, after: Event | None = None) -> None:
        """Do what the machine wants. ``user``: somebody is told of acknowledgements."""
        if isinstance(after, MetaReply) and after.was_write and after.outcome != "ok":
            # Whatever became of the compare-and-set: what is there now decides.
            out.append(MetaCall(self.actor, (PUBLISH, self.epoch)))
        while actions := self.machine.take_actions():
            for action in actions:
                match action:
                    case SendAdds(bookie, views):
                        for frame in split(views):
                            entry_id = cast(AddSeen, request_in(frame)).entry_id
                            out.append(Request(self.actor, bookie, f"add {entry_id}", ("add", self.epoch), frame))
                    case ForceBookie(bookie, last):
                        tag = ("force", self.epoch, last)
                        out.append(Request(self.actor, bookie, f"force {last}", tag, force_request()))
                    case ChooseBookies(failed, exclude, avoid):
                        out.append(Choose(self.actor, ("choose", self.epoch), failed, exclude, avoid))
                    case WriteMetadata(metadata):
                        out.append(MetaCall(self.actor, (PUBLISH, self.epoch), encode(metadata), self.version))
                    case Throttled(bookie):
                        out.append(Retry(self.actor, ("retry", self.epoch), bookie))
                    case Acknowledge(lac) if user:
                        out.append(Acknowledged(self.actor, lac))
                    case Acknowledge() | Failed():
                        pass


class WriterActor(Actor):
    """Commands: ``append <count>``, ``close``, ``renew`` (look again for what could not be replaced), ``force`` (with
    deferred sync)."""

    def __init__(
        self, name: str, metadata: LedgerMetadata, *, publish: bool = True, deferred_sync: bool = False
    ) -> None:
        """It stands at the beginning of the last segment. ``publish`` is for a mutant."""
        super().__init__(name)
        last = metadata.last_segment.first_entry_id - 1
        self.pipeline = AddPipeline(
            name,
            metadata,
            0,
            last_entry_id=last,
            length=length_of(last),
            publish=publish,
            deferred_sync=deferred_sync,
        )
        self.wants_close = False
        self._closing: LedgerClosing | None = None

    @property
    def idle(self) -> bool:
        machine = self.pipeline.machine
        confirmed = machine.last_add_confirmed == machine.last_add_pushed
        return self.ended or (machine.state is WriterState.OPEN and confirmed and not self.wants_close)

    def on(self, event: Event, way: Way) -> None:
        if isinstance(event, MetaReply) and event.tag[0] == CLOSE:
            self._on_close_reply(event)
            return
        machine = self.pipeline.machine
        match event:
            case Command("append"):
                if not self.wants_close:
                    first = machine.last_add_pushed + 1
                    machine.add(payloads_of(first, first + int(event.arguments[0]) - 1))
            case Command("close"):
                self.wants_close = True
            case Command("force"):
                machine.force()
            case Command("renew"):
                machine.on_bookies_changed()
            case _:
                self.pipeline.on(event, way)
        self.pipeline.run(self.out, user=True, after=event)
        if machine.error is not None:
            self.end(machine.error)
        elif self.wants_close and self._closing is None and not machine.pending_entries:
            if machine.last_add_confirmed < machine.last_add_acknowledged:
                machine.force()
                self.pipeline.run(self.out, user=True)
                return
            machine.seal()
            if machine.state is WriterState.OPEN:
                self._closing = LedgerClosing(
                    LEDGER, machine.metadata, self.pipeline.version, machine.last_add_confirmed, machine.length
                )
                self._run_closing(self._closing)

    def _on_close_reply(self, reply: MetaReply) -> None:
        assert self._closing is not None
        self._closing.handle(metadata_event(reply))
        self._run_closing(self._closing)

    def _run_closing(self, closing: LedgerClosing) -> None:
        self.out += [metadata_call(self.name, (CLOSE, 0), action) for action in closing.take_actions()]
        match closing.outcome:
            case Succeeded(metadata):
                self.end("done", metadata.last_entry_id)
            case EndedBy(error):
                self.end(error)
