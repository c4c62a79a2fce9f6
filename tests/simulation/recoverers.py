"""The recoverers of the model world."""

from __future__ import annotations

from bk_spark.protocol.codes import LAST_ENTRY, Code, DigestType, FlagV2
from bk_spark.protocol.entries.entry import Entry
from bk_spark.protocol.errors import MetadataUnavailableError
from bk_spark.protocol.ledger.recovery import (
    EndFound,
    FenceBookie,
    FencingRead,
    LedgerRecovery,
    LengthRead,
    RecoveryFailed,
    StartWriteBack,
    WriteBack,
)
from bk_spark.protocol.ledger.writer import LedgerWriter
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState, encode
from bk_spark.protocol.quorum import Answer as Said
from bk_spark.protocol.wire.answers_v2 import ReadAnswer
from tests.simulation.bytes_cache import CachedPackager, answer_in, entry_in, metadata_in, read_request
from tests.simulation.events import Answer, Choose, Command, Event, MetaCall, MetaReply, Request, Retry, Tick, Way
from tests.simulation.writers import Actor, AddPipeline
from tests.support.ledgers import LEDGER

MARK, CLOSE, LOST = "mark", "close", "lost"


class RecoveryActor(Actor):
    """As bk_spark.bookie.writing.recovery. Command: ``start``.

    The methods that mutants override are those that begin with ``rule_``.
    """

    machine_class: type[LedgerRecovery] = LedgerRecovery

    def __init__(self, name: str, *, read_ahead_entries: int = 3) -> None:
        super().__init__(name)
        self._read_ahead_entries = read_ahead_entries
        self._epoch = 0
        self._metadata: LedgerMetadata | None = None
        self._version = -1
        self._machine: LedgerRecovery | None = None
        self._pipeline: AddPipeline | None = None
        self._end: int | None = None

    def rule_read_flags(self) -> FlagV2:
        return FlagV2.FENCING | FlagV2.HIGH_PRIORITY

    def rule_no_answer(self) -> Said:
        return Said.UNKNOWN

    def rule_write_back_lac(self, found_at_start: int) -> int | None:
        return found_at_start

    def on(self, event: Event, way: Way) -> None:
        match event:
            case Command("start"):
                self.out.append(MetaCall(self.name, (MARK,)))
            case MetaReply():
                self._on_reply(event)
            case Answer(tag=(kind, epoch, *_)) if epoch == self._epoch and kind != "add":
                self._on_read(event)
            case Answer() | Choose() | Retry() | Tick() if self._pipeline is not None and event.tag[1] == self._epoch:
                self._pipeline.on(event, way)
                self._run()

    # --- metadata ---

    def _on_reply(self, reply: MetaReply) -> None:
        (purpose,) = reply.tag
        if reply.outcome == "ok":
            found = metadata_in(reply.data)
            if found.state is LedgerState.CLOSED:
                self.end("done", found.last_entry_id)
            elif found.state is LedgerState.OPEN:
                self.out.append(MetaCall(self.name, (MARK,), encode(found.in_recovery()), reply.version))
            else:
                self._begin(found, reply.version)
        elif reply.was_write:
            # Not done, or done and the reply lost: what is there now decides.
            self.out.append(MetaCall(self.name, (LOST if purpose == CLOSE else MARK,)))
        else:
            self.end(MetadataUnavailableError("the metadata cannot be read"))

    def _begin(self, metadata: LedgerMetadata, version: int) -> None:
        self._epoch += 1
        self._metadata, self._version = metadata, version
        self._pipeline, self._end = None, None
        # Reading a little ahead shows the same interleavings as reading far.
        self._machine = self.machine_class(LEDGER, metadata, read_ahead_entries=self._read_ahead_entries)
        self._run()

    # --- reading ---

    def _on_read(self, answer: Answer) -> None:
        machine = self._machine
        assert machine is not None
        kind, _, entry_id = answer.tag
        assert isinstance(entry_id, int)
        said, entry = self._understand(answer.frame, entry_id)
        if kind == "fence":
            machine.on_fence_answer(answer.bookie, said, entry)
        else:
            machine.on_read_answer(answer.bookie, entry_id, said, entry)
        self._run()

    def _understand(self, frame: bytes | None, entry_id: int) -> tuple[Said, Entry | None]:
        if frame is None:
            return self.rule_no_answer(), None
        answer = answer_in(frame)
        assert isinstance(answer, ReadAnswer)
        if answer.code in (Code.NO_ENTRY, Code.NO_LEDGER):
            return Said.ABSENT, None
        if answer.code is not Code.OK:
            return self.rule_no_answer(), None
        assert self._metadata is not None
        assert isinstance(self._metadata.digest_type, DigestType)
        wanted = None if entry_id == LAST_ENTRY else entry_id
        return Said.PRESENT, entry_in(bytes(answer.stored), wanted, self._metadata.digest_type)

    # --- the machine's actions ---

    def _run(self) -> None:
        machine = self._machine
        assert machine is not None
        while actions := machine.take_actions():
            for action in actions:
                match action:
                    case FenceBookie(bookie):
                        self._read("fence", bookie, LAST_ENTRY, FlagV2.FENCING)
                    case FencingRead(bookie, entry_id):
                        self._read("read", bookie, entry_id, self.rule_read_flags())
                    case LengthRead(bookie, entry_id):
                        self._read("length", bookie, entry_id, FlagV2.NONE)
                    case StartWriteBack(last_entry_id, length):
                        assert self._metadata is not None
                        assert isinstance(self._metadata.digest_type, DigestType)
                        writer = LedgerWriter(
                            LEDGER,
                            self._metadata,
                            self._version,
                            CachedPackager(self._metadata.digest_type, FlagV2.RECOVERY_ADD | FlagV2.HIGH_PRIORITY),
                            last_entry_id=last_entry_id,
                            length=length,
                            publish=False,
                        )
                        self._pipeline = AddPipeline(self.name, self._epoch, writer)
                    case WriteBack(payloads, lac):
                        assert self._pipeline is not None
                        if self._pipeline.machine.error is None:
                            self._pipeline.machine.add(payloads, self.rule_write_back_lac(lac))
                            machine.on_written_back(self._pipeline.machine.last_add_pushed)
                    case EndFound(last_entry_id):
                        self._end = last_entry_id
                    case RecoveryFailed(error):
                        self.end(error)
                        return
        if self._pipeline is not None:
            self._pipeline.run(self.out)
            self._close(self._pipeline)

    def _read(self, kind: str, bookie: str, entry_id: int, flags: FlagV2) -> None:
        what = "fence" if kind == "fence" else f"{kind} {entry_id}"
        frame = read_request(entry_id, flags)
        self.out.append(Request(self.name, bookie, what, (kind, self._epoch, entry_id), frame))

    def _close(self, pipeline: AddPipeline) -> None:
        machine = pipeline.machine
        if machine.error is not None:
            self.end(machine.error)
        elif self._end is not None and not machine.pending_entries:
            assert machine.last_add_confirmed == self._end
            self._end = None
            closed = machine.metadata.closed(machine.last_add_confirmed, machine.length)
            self.out.append(MetaCall(self.name, (CLOSE,), encode(closed), self._version))
