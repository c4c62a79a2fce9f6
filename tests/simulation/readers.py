"""The readers of the model world, and its replication worker."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final

from bk_spark.protocol.codes import LAST_ENTRY, Code, DigestType, FlagV2
from bk_spark.protocol.entries.digest import digest_function
from bk_spark.protocol.entries.entry import EntryBlock
from bk_spark.protocol.errors import BookieUnavailableError, MetadataUnavailableError, NoSuchEntryError
from bk_spark.protocol.ledger.metadata_calls import ReadMetadata
from bk_spark.protocol.ledger.reading.lac import LacRead
from bk_spark.protocol.ledger.reading.ledger_view import LedgerKey, LedgerView
from bk_spark.protocol.ledger.reading.read_actions import (
    AskLac,
    EntriesRead,
    LacTold,
    ReadEntries,
    RequestFailed,
)
from bk_spark.protocol.ledger.reading.read_settings import ReadSettings
from bk_spark.protocol.ledger.reading.reader import RangeReader
from bk_spark.protocol.machine import EndedBy, Machine, StartTimer, StopRequest, StopTimer, Succeeded, TimerFired
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment, encode
from bk_spark.protocol.wire.answers_v2 import AddAnswers, ReadAnswer
from tests.simulation.bytes_cache import (
    CachedPackager,
    answer_in,
    length_of,
    metadata_in,
    payloads_of,
    read_request,
    split,
)
from tests.simulation.events import Answer, Command, Effect, Event, MetaCall, MetaReply, Request, Saw, Slow, Way
from tests.simulation.metadata_calls import metadata_call, metadata_event
from tests.simulation.outcomes import InvariantError
from tests.simulation.writers import Actor
from tests.support.ledgers import LEDGER, PASSWORD, payload_of

#: Small reads show the same interleavings.
SETTINGS: Final = ReadSettings(attempts=3, requests_ahead=2, first_request_entries=2, max_request_entries=2)


@dataclass(slots=True)
class _Reads:
    """Plain pipelined reads: one message per entry."""

    bookie_id: str
    entry_ids: range
    answers: dict[int, ReadAnswer] = field(default_factory=dict)


class ReadRunner:
    """Runs one machine of reading for an actor. ``number`` keeps its messages apart.

    Nothing is late by itself in this world: a client that waits for a lost message hears that the connection broke. So
    timers that give up a request never fire. A read may be found slow at any time. Pauses end at once, because whatever
    follows them can take any time.
    """

    def __init__(self, actor: str, number: int, machine: Machine[Any, Any, Any]) -> None:
        self.actor = actor
        self.number = number
        self.machine = machine
        self._requests: dict[Hashable, _Reads | str] = {}

    @property
    def outcome(self) -> Succeeded[Any] | EndedBy | None:
        return self.machine.outcome

    def on(self, event: Event) -> None:
        """Pass an event to the machine. Call :meth:`run` afterwards."""
        match event:
            case Slow(tag=("slow", _, request_id)):
                self.machine.handle(TimerFired(request_id))
            case Answer(tag=("lac", _, request_id)):
                self._requests.pop(request_id, None)
                self.machine.handle(broken(request_id) if event.frame is None else lac_told(request_id, event.frame))
            case Answer(tag=("get", _, request_id, int(entry_id))):
                self._on_entry(request_id, entry_id, event.frame)
            case MetaReply():
                self.machine.handle(metadata_event(event))

    def run(self, out: list[Effect]) -> None:
        """Perform the machine's actions."""
        while actions := self.machine.take_actions():
            for action in actions:
                self.perform(action, out)

    def perform(self, action: Any, out: list[Effect]) -> None:
        match action:
            case StopTimer():
                pass
            case ReadEntries(request_id, bookie, entry_ids):
                self._requests[request_id] = _Reads(bookie, entry_ids)
                for entry_id in entry_ids:
                    tag = ("get", self.number, request_id, entry_id)
                    frame = read_request(entry_id, FlagV2.NONE)
                    out.append(Request(self.actor, bookie, f"get {entry_id}", tag, frame))
            case AskLac(request_id, bookie):
                assert isinstance(request_id, int | str)
                self.asked(request_id, bookie)
                frame = read_request(LAST_ENTRY, FlagV2.NONE)
                out.append(Request(self.actor, bookie, "lac", ("lac", self.number, request_id), frame))
            case ReadMetadata():
                out.append(metadata_call(self.actor, ("again",), action))
            case StartTimer(int(request_id), after_ms) if after_ms == SETTINGS.speculation.first_ms:
                out.append(Slow(self.actor, ("slow", self.number, request_id), self.bookie_of(request_id)))
            case StartTimer("pause"):
                self.machine.handle(TimerFired("pause"))
            case StopRequest(request_id):
                self._requests.pop(request_id, None)

    def asked(self, request_id: Hashable, bookie: str) -> None:
        self._requests[request_id] = bookie

    def bookie_of(self, request_id: Hashable) -> str:
        asked = self._requests[request_id]
        return asked if isinstance(asked, str) else asked.bookie_id

    def _on_entry(self, request_id: int | str, entry_id: int, frame: bytes | None) -> None:
        request = self._requests.get(request_id)
        if not isinstance(request, _Reads):
            return
        if frame is None:
            del self._requests[request_id]
            self.machine.handle(broken(request_id))
            return
        answer = answer_in(frame)
        assert isinstance(answer, ReadAnswer)
        request.answers[entry_id] = answer
        if len(request.answers) == len(request.entry_ids):
            del self._requests[request_id]
            assert isinstance(request_id, int)
            self.machine.handle(EntriesRead(request_id, request.answers))


class RangeRun(ReadRunner):
    """Runs a :class:`RangeReader`."""

    machine: RangeReader

    def __init__(self, actor: str, number: int, view: LedgerView, first: int, last: int) -> None:
        reader = RangeReader(
            key_of(view.metadata), view, first, last, SETTINGS, suspects=set(), without_batch_reads=set()
        )
        super().__init__(actor, number, reader)
        self._next = first

    def blocks(self, out: list[Effect]) -> list[EntryBlock]:
        """Perform the machine's actions; return its output."""
        blocks: list[EntryBlock] = []
        while True:
            self.run(out)
            block = self.machine.next_block()
            if block is None:
                self.run(out)
                return blocks
            assert block.first_entry_id == self._next, "a reader was given entries out of order"
            self._next += len(block)
            blocks.append(block)


class ReaderActor(Actor):
    """Opens the ledger without recovery and reads what is confirmed, from the beginning. Command: ``start
    <times>``: how often it asks for the last add confirmed and reads on.

    With ``handle``, the metadata of a handle that was opened earlier, it reads like a reader of a log: it knows from
    elsewhere which entries exist, and its handle may be old."""

    def __init__(self, name: str, handle: LedgerMetadata | None = None) -> None:
        super().__init__(name)
        self.next = 0
        self._handle = None if handle is None else LedgerView(LEDGER, handle)
        self._view: LedgerView | None = None
        self._times = 1
        self._number = 0
        self._run: ReadRunner | None = None

    def on(self, event: Event, way: Way) -> None:
        match event:
            case Command("start"):
                self._times = int(event.arguments[0]) if event.arguments else 1
                self.out.append(MetaCall(self.name, ("open",)))
            case MetaReply(tag=("open",), outcome="ok"):
                self._open(metadata_in(event.data))
            case MetaReply(tag=("open",)):
                self.end(MetadataUnavailableError("the metadata cannot be read"))
            case MetaReply() | Answer() | Slow() if self._run is not None:
                if isinstance(event, MetaReply) or event.tag[1] == self._number:
                    self._run.on(event)
                    self._go_on(self._run)

    def _open(self, metadata: LedgerMetadata) -> None:
        if self._view is None:
            self._view = LedgerView(LEDGER, metadata)
        self._view.learn_metadata(metadata)
        if self._view.closed:
            self._times = 1
            self._read(self._view)
        else:
            self._number += 1
            machine = LacRead(key_of(metadata), metadata, timeout_ms=SETTINGS.timeout_ms)
            self._run = ReadRunner(self.name, self._number, machine)
            self._go_on(self._run)

    def _read(self, view: LedgerView) -> None:
        if self.next <= view.last_add_confirmed:
            self._number += 1
            self._run = RangeRun(self.name, self._number, self._handle or view, self.next, view.last_add_confirmed)
            self._go_on(self._run)
        else:
            self._round_over()

    def _go_on(self, run: ReadRunner) -> None:
        view = self._view
        assert view is not None
        if isinstance(run, RangeRun):
            self.next = see(self, self.next, run.blocks(self.out))
        else:
            run.run(self.out)
        if run.outcome is None:
            return
        self._run = None
        if isinstance(run.outcome, EndedBy):
            if isinstance(run.outcome.error, NoSuchEntryError):
                raise InvariantError(f"{self.name} reports a confirmed entry as absent: {run.outcome.error}")
            self.end(run.outcome.error)
        elif isinstance(run, RangeRun):
            self._round_over()
        else:
            view.learn_lac(run.outcome.result)
            self._read(view)

    def _round_over(self) -> None:
        self._times -= 1
        if self._times:
            self.out.append(MetaCall(self.name, ("open",)))
        else:
            self.end("done")


def see(actor: Actor, first: int, blocks: list[EntryBlock]) -> int:
    """Give these entries to the actor's user. Returns the entry after them."""
    for block in blocks:
        for payload in block.payloads:
            actor.out.append(Saw(actor.name, first, bytes(payload)))
            first += 1
    return first


def lac_told(request_id: int | str, frame: bytes) -> LacTold:
    """Bookies of this world report their last entry in v2, and have no explicit LAC."""
    answer = answer_in(frame)
    assert isinstance(answer, ReadAnswer)
    return LacTold(request_id, answer.code, None, bytes(answer.stored) if answer.code is Code.OK else None)


def key_of(metadata: LedgerMetadata) -> LedgerKey:
    assert isinstance(metadata.digest_type, DigestType)
    return _key(metadata.digest_type)


@cache
def _key(digest_type: DigestType) -> LedgerKey:
    return LedgerKey(LEDGER, digest_type, digest_function(digest_type, PASSWORD))


def broken(request_id: int | str) -> RequestFailed:
    return RequestFailed(request_id, BookieUnavailableError("broke"))


class ReplicationActor(Actor):
    """Copies what one bookie of a finished segment should hold to another, which replaces it there. Command:
    ``start <segment's number> <ensemble index> <new bookie>``."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._wish = (0, 0, "")
        self._metadata: LedgerMetadata | None = None
        self._version = -1
        self._to_copy: list[int] = []
        self._reading: RangeRun | None = None

    def on(self, event: Event, way: Way) -> None:
        match event:
            case Command("start"):
                number, index, target = event.arguments
                self._wish = (int(number), int(index), str(target))
                self.out.append(MetaCall(self.name, ("open",)))
            case MetaReply(was_write=True):
                self.end("done" if event.outcome == "ok" else "gave up")
            case MetaReply(tag=("again",)) if self._reading is not None:
                self._reading.on(event)
                self._read_on(self._reading)
            case MetaReply(outcome="ok"):
                self._begin(metadata_in(event.data), event.version)
            case MetaReply():
                self.end("gave up")
            case Answer(tag=("put", entry_id)) if self._to_copy and entry_id == self._to_copy[0]:
                answer = None if event.frame is None else answer_in(event.frame)
                assert answer is None or isinstance(answer, AddAnswers)
                if answer is None or int(answer.codes[0]) != Code.OK:
                    assert answer is None or int(answer.codes[0]) != Code.FENCED, "a re-replication was fenced off"
                    self.end("gave up")
                else:
                    del self._to_copy[0]
                    self._next()
            case Answer() | Slow() if self._reading is not None and event.tag[1] == self._reading.number:
                self._reading.on(event)
                self._read_on(self._reading)

    def _begin(self, metadata: LedgerMetadata, version: int) -> None:
        number, index, target = self._wish
        segments = metadata.segments
        closed = metadata.state is LedgerState.CLOSED
        if number >= len(segments) - (not closed) or target in segments[number].ensemble:
            self.end("nothing to do")
            return
        self._metadata, self._version = metadata, version
        end = segments[number + 1].first_entry_id if number + 1 < len(segments) else metadata.last_entry_id + 1
        entry_ids = range(segments[number].first_entry_id, end)
        self._to_copy = [entry_id for entry_id in entry_ids if metadata.quorum.stores(index, entry_id)]
        self._next()

    def _next(self) -> None:
        assert self._metadata is not None
        if self._to_copy:
            entry_id = self._to_copy[0]
            self._reading = RangeRun(self.name, entry_id, LedgerView(LEDGER, self._metadata), entry_id, entry_id)
            self._read_on(self._reading)
            return
        number, index, target = self._wish
        segment = self._metadata.segments[number]
        ensemble = (*segment.ensemble[:index], target, *segment.ensemble[index + 1 :])
        moved = Segment(segment.first_entry_id, ensemble)
        segments = (*self._metadata.segments[:number], moved, *self._metadata.segments[number + 1 :])
        self.out.append(
            MetaCall(self.name, ("write",), encode(replace(self._metadata, segments=segments)), self._version)
        )

    def _read_on(self, reading: RangeRun) -> None:
        assert self._metadata is not None
        for block in reading.blocks(self.out):
            assert bytes(block.payloads[0]) == payload_of(block.first_entry_id)
        if reading.outcome is None:
            return
        self._reading = None
        if isinstance(reading.outcome, EndedBy):
            self.end("gave up")
            return
        entry_id = self._to_copy[0]
        packager = CachedPackager(key_of(self._metadata).digest_type, FlagV2.RECOVERY_ADD)
        made = packager.package(entry_id, entry_id - 1, length_of(entry_id - 1), payloads_of(entry_id, entry_id))
        (frame,) = split([made.data])
        self.out.append(Request(self.name, self._wish[2], f"put {entry_id}", ("put", entry_id), frame))
