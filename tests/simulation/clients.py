"""A writer and a recoverer of one ledger in the model world: drivers of the protocol's state machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from bk_spark.protocol import wire_v2
from bk_spark.protocol.add_frames import EntryPackager
from bk_spark.protocol.codes import LAST_ENTRY, Code, DigestType, FlagV2
from bk_spark.protocol.digest import digest_function, master_key
from bk_spark.protocol.entry import verify_entry
from bk_spark.protocol.errors import BookKeeperError, NotEnoughBookiesError
from bk_spark.protocol.ledger_metadata import LedgerMetadata, LedgerState
from bk_spark.protocol.payloads import Payloads
from bk_spark.protocol.quorum import Answer
from bk_spark.protocol.recovery import (
    EndFound,
    FenceBookie,
    FencingRead,
    LedgerRecovery,
    LengthRead,
    RecoveryFailed,
    StartWriteBack,
    WriteBack,
)
from bk_spark.protocol.wire_v2 import AddAnswers, ReadAnswer, parse_answers
from bk_spark.protocol.writer import (
    Acknowledge,
    ChooseBookies,
    Failed,
    LedgerWriter,
    SendAdds,
    Throttled,
    WriteMetadata,
    WriterState,
)
from tests.simulation.model import ModelBookie, ModelStore, World
from tests.support.ledgers import LEDGER, PASSWORD
from tests.support.wire import frames

_DIGEST = digest_function(DigestType.CRC32C, PASSWORD)
_KEY = master_key(PASSWORD)


class Cluster:
    """Bookies, metadata and what they share."""

    def __init__(self, world: World, bookies: dict[str, ModelBookie], store: ModelStore) -> None:
        self.world = world
        self.bookies = bookies
        self.store = store


class SimulatedWriter:
    """``on_progress`` is called after every event; ``acknowledged`` hears of every acknowledgement."""

    def __init__(
        self,
        cluster: Cluster,
        metadata: LedgerMetadata,
        version: int,
        *,
        start: StartWriteBack | None = None,
        publish: bool = True,
        acknowledged: Callable[[int], None] = lambda lac: None,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        flags = FlagV2.NONE if start is None else FlagV2.RECOVERY_ADD | FlagV2.HIGH_PRIORITY
        self.alive = True
        self.version = version
        self._closing = False
        self._cluster = cluster
        self._acknowledged = acknowledged
        self._on_progress = on_progress
        self.machine = LedgerWriter(
            LEDGER,
            metadata,
            EntryPackager(LEDGER, DigestType.CRC32C, PASSWORD, flags),
            last_entry_id=-1 if start is None else start.last_entry_id,
            length=0 if start is None else start.length,
            publish=publish,
        )

    def add(self, payloads: Payloads, last_add_confirmed: int | None = None) -> None:
        if self.machine.error is None and not self._closing:
            self.machine.add(payloads, last_add_confirmed)
            self._run()

    def close(self) -> None:
        """As WriteHandle.close, once everything is acknowledged."""
        machine = self.machine
        if machine.state is WriterState.OPEN and not machine.pending_entries:
            self._closing = True
            end = (machine.last_add_confirmed, machine.length)
            closed = machine.metadata.closed(*end)
            self._cluster.store.write(closed, self.version, lambda _: None, self._closed_by_other)

    def _closed_by_other(self, found: LedgerMetadata, version: int) -> None:
        machine = self.machine
        if found.state is not LedgerState.CLOSED and self.alive:
            end = (machine.last_add_confirmed, machine.length)
            self._cluster.store.write(found.closed(*end), version, lambda _: None, self._closed_by_other)

    def _run(self) -> None:
        world = self._cluster.world
        while self.alive and (actions := self.machine.take_actions()):
            for action in actions:
                match action:
                    case SendAdds(bookie_id, views):
                        for body in frames(bytes(view) for view in views):
                            self._send(bookie_id, bytes(body))
                    case ChooseBookies():
                        world.later(self._event(lambda action=action: self._choose(action)))
                    case WriteMetadata(metadata):
                        self._cluster.store.write(
                            metadata,
                            self.version,
                            lambda version, metadata=metadata: self._on_written(metadata, version),
                            self._on_conflict,
                        )
                    case Acknowledge(lac):
                        self._acknowledged(lac)
                    case Throttled(bookie_id):
                        world.later(self._event(lambda bookie=bookie_id: self.machine.retry_refused(bookie)))
                    case Failed():
                        pass
        self._on_progress()

    def _event(self, event: Callable[[], None]) -> Callable[[], None]:
        def happen() -> None:
            if self.alive:
                event()
                self._run()

        return happen

    def _send(self, bookie_id: str, body: bytes) -> None:
        def reply(answer: bytes | None) -> None:
            if not self.alive:
                return
            if answer is None:
                self.machine.on_bookie_failed(bookie_id)
            else:
                for parsed in parse_answers(frames(answer)):
                    assert isinstance(parsed, AddAnswers)
                    self.machine.on_add_answers(bookie_id, parsed.entry_ids, parsed.codes)
            self._run()

        self._cluster.bookies[bookie_id].send(len(body).to_bytes(4, "big") + body, reply)

    def _choose(self, action: ChooseBookies) -> None:
        random = self._cluster.world.random
        good = sorted(self._cluster.bookies.keys() - action.exclude - action.avoid)
        candidates = random.sample(good, len(good)) + sorted(action.avoid - action.exclude)
        if random.random() < 0.1:
            candidates = []
        if candidates:
            self.machine.on_bookies_chosen(dict(zip(action.failed, candidates, strict=False)))
        else:
            self.machine.on_no_bookies(NotEnoughBookiesError("none left"))

    def _on_written(self, metadata: LedgerMetadata, version: int) -> None:
        if self.alive:
            self.version = version
            self.machine.on_metadata_written(metadata)
            self._run()

    def _on_conflict(self, found: LedgerMetadata, version: int) -> None:
        if self.alive:
            self.version = version
            self.machine.on_metadata_conflict(found)
            self._run()


class SimulatedRecovery:
    """As bk_spark.bookie.recovery. Ends with ``closed`` or ``error``, or never if its process dies."""

    def __init__(self, cluster: Cluster, *, fence_reads: bool = True, newest_lac: bool = False) -> None:
        self.closed: LedgerMetadata | None = None
        self.error: BookKeeperError | None = None
        self.alive = True
        self._cluster = cluster
        #: Both for mutants: what if the rules were broken?
        self._fence_reads = fence_reads
        self._newest_lac = newest_lac
        self._machine: LedgerRecovery | None = None
        self._writer: SimulatedWriter | None = None
        self._end: int | None = None
        self._version = 0

    def start(self) -> None:
        self._cluster.store.read(self._mark)

    def kill(self) -> None:
        self.alive = False
        if self._writer is not None:
            self._writer.alive = False

    @property
    def done(self) -> bool:
        return self.closed is not None or self.error is not None or not self.alive

    def _mark(self, found: LedgerMetadata, version: int) -> None:
        if not self.alive:
            return
        if found.state is LedgerState.CLOSED:
            self.closed = found
        elif found.state is LedgerState.OPEN:
            marked = found.in_recovery()
            self._cluster.store.write(marked, version, lambda new: self._begin(marked, new), self._mark)
        else:
            self._begin(found, version)

    def _begin(self, metadata: LedgerMetadata, version: int) -> None:
        if not self.alive:
            return
        if self._writer is not None:
            self._writer.alive = False
        self._writer, self._end, self._version = None, None, version
        # Reading a little ahead shows the same interleavings as reading far.
        self._machine = LedgerRecovery(LEDGER, metadata, read_ahead_entries=3)
        self._run(self._machine, metadata)

    def _run(self, machine: LedgerRecovery, metadata: LedgerMetadata) -> None:
        while self.alive and machine is self._machine and (actions := machine.take_actions()):
            for action in actions:
                match action:
                    case FenceBookie(bookie_id):
                        self._read(machine, metadata, bookie_id, LAST_ENTRY, FlagV2.FENCING)
                    case FencingRead(bookie_id, entry_id):
                        flags = FlagV2.FENCING | FlagV2.HIGH_PRIORITY if self._fence_reads else FlagV2.NONE
                        self._read(machine, metadata, bookie_id, entry_id, flags)
                    case LengthRead(bookie_id, entry_id):
                        self._read(machine, metadata, bookie_id, entry_id, FlagV2.NONE)
                    case StartWriteBack():
                        self._writer = SimulatedWriter(
                            self._cluster, metadata, self._version, start=action, publish=False, on_progress=self._close
                        )
                    case WriteBack(payloads, lac):
                        assert self._writer is not None
                        self._writer.add(payloads, None if self._newest_lac else lac)
                        machine.on_written_back(self._writer.machine.last_add_pushed)
                    case EndFound(last_entry_id):
                        self._end = last_entry_id
                        self._close()
                    case RecoveryFailed(error):
                        self.error = error

    def _read(
        self, machine: LedgerRecovery, metadata: LedgerMetadata, bookie_id: str, entry_id: int, flags: FlagV2
    ) -> None:
        def reply(answer: bytes | None) -> None:
            if not self.alive or machine is not self._machine:
                return
            said, entry = Answer.UNKNOWN, None
            if answer is not None:
                (parsed,) = parse_answers(frames(answer))
                assert isinstance(parsed, ReadAnswer)
                if parsed.code is Code.NO_ENTRY:
                    said = Answer.ABSENT
                else:
                    wanted = None if entry_id == LAST_ENTRY else entry_id
                    entry = verify_entry(parsed.stored, LEDGER, wanted, DigestType.CRC32C, _DIGEST)
                    said = Answer.PRESENT
            if entry_id == LAST_ENTRY:
                machine.on_fence_answer(bookie_id, said, entry)
            else:
                machine.on_read_answer(bookie_id, entry_id, said, entry)
            self._run(machine, metadata)

        key = _KEY if flags & FlagV2.FENCING else None
        request = wire_v2.read_requests(LEDGER, np.array([entry_id]), flags, key)
        self._cluster.bookies[bookie_id].send(request, reply)

    def _close(self) -> None:
        writer = self._writer
        if not self.alive or writer is None:
            return
        if writer.machine.error is not None:
            self.error = writer.machine.error
        elif self._end is not None and not writer.machine.pending_entries:
            assert writer.machine.last_add_confirmed == self._end
            closed = replace(writer.machine.metadata.closed(self._end, writer.machine.length))
            self._end = None
            self._cluster.store.write(closed, self._version, lambda _: self._done(closed), self._lost)

    def _done(self, closed: LedgerMetadata) -> None:
        self.closed = closed

    def _lost(self, found: LedgerMetadata, version: int) -> None:
        if found.state is LedgerState.CLOSED:
            self.closed = found
        else:
            self._mark(found, version)
