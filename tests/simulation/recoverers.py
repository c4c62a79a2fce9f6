"""The recoverers of the model world: they perform the machine's actions."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from bk_spark.protocol.codes import DigestType, FlagV2
from bk_spark.protocol.errors import BookieUnavailableError
from bk_spark.protocol.ledger.end_search import EntryFailed, EntryRead, ReadEntry, Unclear, Verify
from bk_spark.protocol.ledger.metadata_calls import CompareAndSet, ReadMetadata
from bk_spark.protocol.ledger.recovery import (
    AwaitConnections,
    ForWriteBacks,
    LedgerRecovery,
    RecoveryAction,
    ToldWriteBacks,
    WriteBacksReady,
    WriteBackTimer,
)
from bk_spark.protocol.ledger.writer_actions import WriterLimits
from bk_spark.protocol.machine import EndedBy, StartTimer, StopRequest, StopTimer, Succeeded, TimerFired
from bk_spark.protocol.wire.answers_v2 import ReadAnswer
from tests.simulation.bytes_cache import CachedPackager, answer_in, entry_in, read_request
from tests.simulation.events import Answer, Choose, Command, Event, MetaReply, Request, Retry, Tick, Way
from tests.simulation.metadata_calls import metadata_call, metadata_event
from tests.simulation.writers import Actor, timer_of, writer_effects, writer_event
from tests.support.ledgers import LEDGER

#: Actions without effect in the model world. Timers of reads have none either.
_NOTHING = (StopTimer, StopRequest, Unclear)


class RecoveryActor(Actor):
    """Command: ``start``.

    Time is not modelled: an answer that comes too late is a lost one.
    """

    def __init__(
        self,
        name: str,
        digest_type: DigestType,
        machine_class: type[LedgerRecovery] = LedgerRecovery,
        *,
        read_ahead_entries: int = 3,
    ) -> None:
        super().__init__(name)
        # A small read-ahead shows the same interleavings as a large one.
        self._machine = machine_class(
            LEDGER,
            _verify(digest_type),
            _packager_of(digest_type),
            read_timeout_ms=1,
            limits=WriterLimits(),
            read_ahead_entries=read_ahead_entries,
        )

    def on(self, event: Event, way: Way) -> None:
        machine = self._machine
        match event:
            case MetaReply():
                machine.handle(metadata_event(event))
            case Answer(tag=("add", int(attempt))) | Choose(tag=(_, int(attempt))):
                machine.handle(ToldWriteBacks(attempt, writer_event(event, way)))
            case Retry(tag=(_, int(attempt))) | Tick(tag=(_, int(attempt))):
                machine.handle(TimerFired(WriteBackTimer(attempt, timer_of(event))))
            case Answer(tag=(_, int(attempt), int(entry_id))):
                machine.handle(_read_event(event, attempt, entry_id))
            case _:
                assert event == Command("start", self.name)
        self._run()

    def _run(self) -> None:
        machine = self._machine
        while actions := machine.take_actions():
            for action in actions:
                if not isinstance(action, _NOTHING):
                    self._perform(action)
        match machine.outcome:
            case Succeeded(metadata):
                self.end("done", metadata.last_entry_id)
            case EndedBy(error):
                self.end(error)

    def _perform(self, action: RecoveryAction) -> None:
        match action:
            case ReadMetadata() | CompareAndSet():
                self.out.append(metadata_call(self.name, ("meta",), action))
            case ReadEntry():
                self.out.append(_read(self.name, action))
            case ForWriteBacks(attempt, for_writer):
                self.out += writer_effects(self.name, attempt, for_writer)
            case StartTimer(WriteBackTimer(attempt, name), after_ms):
                self.out += writer_effects(self.name, attempt, StartTimer(name, after_ms))
            case AwaitConnections(attempt):
                # Connections always exist.
                self._machine.handle(WriteBacksReady(attempt))


def _read(actor: str, read: ReadEntry) -> Request:
    kind = read.purpose.value
    what = kind if kind == "fence" else f"{kind} {read.entry_id}"
    frame = read_request(read.entry_id, read.flags, read.with_key)
    return Request(actor, read.bookie_id, what, (kind, read.attempt, read.entry_id), frame)


def _read_event(answer: Answer, attempt: int, entry_id: int) -> EntryRead | EntryFailed:
    if answer.frame is None:
        return EntryFailed(attempt, answer.bookie, entry_id, BookieUnavailableError("the connection broke"))
    read = answer_in(answer.frame)
    assert isinstance(read, ReadAnswer)
    return EntryRead(attempt, answer.bookie, entry_id, read)


@lru_cache
def _verify(digest_type: DigestType) -> Verify:
    return lambda stored, entry_id: entry_in(bytes(stored), entry_id, digest_type)


@lru_cache
def _packager_of(digest_type: DigestType) -> Callable[[FlagV2], CachedPackager]:
    return lambda flags: CachedPackager(digest_type, flags)
