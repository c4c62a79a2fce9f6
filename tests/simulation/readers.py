"""The readers of the model world, and the worker that replicates entries anew."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from bk_spark.protocol.codes import LAST_ENTRY, Code, DigestType, FlagV2
from bk_spark.protocol.entries.digest import digest_function
from bk_spark.protocol.entries.entry_block import EntryBlock, verify_stored
from bk_spark.protocol.errors import BookKeeperError, DigestMismatchError, MetadataUnavailableError
from bk_spark.protocol.ledger.lac import LacAnswer, LacRead
from bk_spark.protocol.ledger.reader import RangeReader, ReadEntries, ReadFailed, StopReading
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment, encode
from bk_spark.protocol.quorum import Answer as Said
from bk_spark.protocol.wire.answers_v2 import AddAnswers, ReadAnswer
from tests.simulation.bytes_cache import (
    CachedPackager,
    answer_in,
    entry_in,
    length_of,
    metadata_in,
    payloads_of,
    read_request,
    split,
)
from tests.simulation.events import Answer, Command, Effect, Event, MetaCall, MetaReply, Request, Saw, Slow, Way
from tests.simulation.writers import Actor
from tests.support.ledgers import LEDGER, PASSWORD, payload_of

#: As the client's readAttempts.
_ATTEMPTS = 3


@dataclass(slots=True)
class _Request:
    entry_ids: range
    #: None where the connection broke.
    answers: dict[int, ReadAnswer | None] = field(default_factory=dict)


class RangeRead:
    """Drives a :class:`RangeReader`, with plain pipelined reads. ``number`` keeps its messages apart."""

    def __init__(self, actor: str, number: int, metadata: LedgerMetadata, first: int, last: int) -> None:
        self.number = number
        self.next = first
        self.last = last
        self.error: BookKeeperError | None = None
        self._actor = actor
        self._digest_type = _digest_type(metadata)
        self._machine = RangeReader(LEDGER, metadata, first, last, chunk_entries=2, chunks_in_flight=2)
        self._requests: dict[int, _Request] = {}

    @property
    def over(self) -> bool:
        return self.error is not None or self.next > self.last

    def on(self, event: Event) -> None:
        if isinstance(event, Slow):
            self._machine.on_slow(int(event.tag[2]))
            return
        assert isinstance(event, Answer)
        request_id, entry_id = int(event.tag[2]), int(event.tag[3])
        request = self._requests.get(request_id)
        if request is None:
            return
        answer = None if event.frame is None else answer_in(event.frame)
        assert answer is None or isinstance(answer, ReadAnswer)
        request.answers[entry_id] = answer
        if answer is None:
            del self._requests[request_id]
            self._machine.on_error(request_id, Said.UNKNOWN, "broke")
        elif len(request.answers) == len(request.entry_ids):
            del self._requests[request_id]
            self._on_all(request_id, request)

    def _on_all(self, request_id: int, request: _Request) -> None:
        stored: list[memoryview] = []
        for entry_id in request.entry_ids:
            answer = request.answers[entry_id]
            assert answer is not None
            if answer.code is not Code.OK and not stored:
                absent = answer.code in (Code.NO_ENTRY, Code.NO_LEDGER)
                self._machine.on_error(request_id, Said.ABSENT if absent else Said.UNKNOWN, answer.code.name)
                return
            if answer.code is not Code.OK:
                break
            stored.append(answer.stored)
        digest = digest_function(self._digest_type, PASSWORD)
        try:
            first, step = request.entry_ids.start, request.entry_ids.step
            block = verify_stored(stored, LEDGER, first, self._digest_type, digest, step)
        except DigestMismatchError as error:
            self._machine.on_error(request_id, Said.UNKNOWN, error.message)
        else:
            self._machine.on_entries(request_id, block)

    def run(self, out: list[Effect]) -> list[EntryBlock]:
        """Do what the machine wants; what it gives out."""
        blocks: list[EntryBlock] = []
        while True:
            for action in self._machine.take_actions():
                match action:
                    case ReadEntries(request_id, bookie, entry_ids, slow_after_ms):
                        self._requests[request_id] = _Request(entry_ids)
                        for entry_id in entry_ids:
                            tag = ("get", self.number, request_id, entry_id)
                            frame = read_request(entry_id, FlagV2.NONE)
                            out.append(Request(self._actor, bookie, f"get {entry_id}", tag, frame))
                        if slow_after_ms is not None:
                            out.append(Slow(self._actor, ("slow", self.number, request_id), bookie))
                    case StopReading(request_id):
                        self._requests.pop(request_id, None)
                    case ReadFailed():
                        pass
            block = self._machine.next_block()
            if block is None:
                self.error = self._machine.error
                return blocks
            assert block.first_entry_id == self.next, "a reader was given entries out of order"
            self.next += len(block)
            blocks.append(block)


class ReaderActor(Actor):
    """Opens the ledger without recovery and reads what is confirmed, from the beginning. Command: ``start
    <times>``: how often it asks for the last add confirmed and reads on."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.next = 0
        self._metadata: LedgerMetadata | None = None
        self._times = 1
        self._number = 0
        self._attempts = 0
        self._last = -1
        self._lac: LacRead | None = None
        self._range: RangeRead | None = None

    def on(self, event: Event, way: Way) -> None:
        match event:
            case Command("start"):
                self._times = int(event.arguments[0]) if event.arguments else 1
                self.out.append(MetaCall(self.name, ("open",)))
            case MetaReply(outcome="ok"):
                self._on_metadata(metadata_in(event.data), again=event.tag == ("again",))
            case MetaReply():
                self.end(MetadataUnavailableError("the metadata cannot be read"))
            case Answer(tag=("lac", number)) if number == self._number and self._lac is not None:
                self._on_lac(self._lac, event)
            case Answer(tag=("get", number, *_)) | Slow(tag=("slow", number, *_)) if number == self._number:
                if self._range is not None:
                    self._range.on(event)
                    self._go_on(self._range)

    def _on_metadata(self, metadata: LedgerMetadata, again: bool) -> None:
        self._metadata = metadata
        if again:
            self._read()
        elif metadata.state is LedgerState.CLOSED:
            self._last = metadata.last_entry_id
            self._times = 1
            self._read()
        else:
            self._number += 1
            self._lac = LacRead(LEDGER, metadata)
            for bookie in self._lac.bookie_ids:
                frame = read_request(LAST_ENTRY, FlagV2.NONE)
                self.out.append(Request(self.name, bookie, "lac", ("lac", self._number), frame))

    def _on_lac(self, machine: LacRead, answer: Answer) -> None:
        machine.on_answer(answer.bookie, self._understand(answer.frame))
        if machine.error is not None:
            self.end(machine.error)
        elif machine.result is not None:
            self._lac = None
            self._last = max(self._last, machine.result)
            self._read()

    def _understand(self, frame: bytes | None) -> LacAnswer:
        if frame is None:
            return LacAnswer(Said.UNKNOWN, reason="broke")
        answer = answer_in(frame)
        assert isinstance(answer, ReadAnswer)
        if answer.code is Code.OK:
            entry = entry_in(bytes(answer.stored), None, _digest_type(self._metadata))
            return LacAnswer(Said.PRESENT, entry.last_add_confirmed)
        if answer.code in (Code.NO_ENTRY, Code.NO_LEDGER):
            return LacAnswer(Said.ABSENT)
        return LacAnswer(Said.UNKNOWN, reason=answer.code.name)

    def _read(self) -> None:
        assert self._metadata is not None
        if self.next <= self._last:
            self._number += 1
            self._range = RangeRead(self.name, self._number, self._metadata, self.next, self._last)
            self._go_on(self._range)
        else:
            self._round_over()

    def _go_on(self, reading: RangeRead) -> None:
        for block in reading.run(self.out):
            for payload in block.payloads:
                self.out.append(Saw(self.name, self.next, bytes(payload)))
                self.next += 1
            self._attempts = 0
        if not reading.over:
            return
        self._range = None
        if reading.error is None:
            self._round_over()
        elif self._attempts < _ATTEMPTS:
            # A re-replication may have moved the segment since its metadata was read.
            self._attempts += 1
            self.out.append(MetaCall(self.name, ("again",)))
        else:
            self.end(reading.error)

    def _round_over(self) -> None:
        self._times -= 1
        if self._times:
            self.out.append(MetaCall(self.name, ("open",)))
        else:
            self.end("done")


class ReplicationActor(Actor):
    """Copies what one bookie of a finished segment should hold to another, which takes its place there.
    Command: ``start <segment's number> <ensemble index> <new bookie>``."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._wish = (0, 0, "")
        self._metadata: LedgerMetadata | None = None
        self._version = -1
        self._to_copy: list[int] = []
        self._reading: RangeRead | None = None

    def on(self, event: Event, way: Way) -> None:
        match event:
            case Command("start"):
                number, index, target = event.arguments
                self._wish = (int(number), int(index), str(target))
                self.out.append(MetaCall(self.name, ("open",)))
            case MetaReply(was_write=True):
                self.end("done" if event.outcome == "ok" else "gave up")
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
            self._reading = RangeRead(self.name, entry_id, self._metadata, entry_id, entry_id)
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

    def _read_on(self, reading: RangeRead) -> None:
        for block in reading.run(self.out):
            assert bytes(block.payloads[0]) == payload_of(block.first_entry_id)
        if reading.over:
            self._reading = None
        if reading.error is not None:
            self.end("gave up")
        elif reading.over:
            entry_id = reading.last
            packager = CachedPackager(_digest_type(self._metadata), FlagV2.RECOVERY_ADD)
            made = packager.package(entry_id, entry_id - 1, length_of(entry_id - 1), payloads_of(entry_id, entry_id))
            (frame,) = split([made.data])
            self.out.append(Request(self.name, self._wish[2], f"put {entry_id}", ("put", entry_id), frame))


def _digest_type(metadata: LedgerMetadata | None) -> DigestType:
    assert metadata is not None
    assert isinstance(metadata.digest_type, DigestType)
    return metadata.digest_type
