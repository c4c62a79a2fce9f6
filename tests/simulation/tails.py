"""Tails of the model world: they follow the ledger while it is written, fenced, recovered and closed."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

from bk_spark.protocol.errors import BookKeeperError, MetadataUnavailableError
from bk_spark.protocol.ledger.reading.lac import LacRead
from bk_spark.protocol.ledger.reading.ledger_view import LedgerView
from bk_spark.protocol.ledger.reading.read_actions import (
    EntriesGiven,
    LacHeard,
    LongPoll,
    MetadataChanged,
    PollAnswered,
    RangeFailed,
    RangeRead,
    ReadLac,
    ReadRange,
    WatchMetadata,
)
from bk_spark.protocol.ledger.reading.read_settings import TailSettings
from bk_spark.protocol.ledger.reading.tail import LedgerTail
from bk_spark.protocol.machine import EndedBy, StartTimer, StopTimer, TimerFired
from tests.simulation.bytes_cache import metadata_in, poll_answer_in, poll_request
from tests.simulation.events import (
    Answer,
    Changed,
    Command,
    Effect,
    Event,
    Followed,
    MetaCall,
    MetaReply,
    Nap,
    Request,
    Slow,
    Way,
    Withdraw,
)
from tests.simulation.readers import SETTINGS, RangeRun, ReadRunner, broken, key_of
from tests.simulation.writers import Actor
from tests.support.ledgers import LEDGER

#: Few attempts, so that histories use them up.
TAIL_SETTINGS: Final = TailSettings(attempts=3)


class TailRun(ReadRunner):
    """Runs a :class:`LedgerTail`. A pause is a nap of any length."""

    machine: LedgerTail

    def __init__(self, actor: str, number: int, machine: LedgerTail) -> None:
        super().__init__(actor, number, machine)
        self.range: ReadRange | None = None
        self.lac_read: ReadLac | None = None
        self._naps: frozenset[Hashable] = frozenset()

    def on(self, event: Event) -> None:
        match event:
            case Answer(tag=("poll", _, int(request_id))):
                if event.frame is None:
                    self.machine.handle(broken(request_id))
                else:
                    told = poll_answer_in(event.frame)
                    self.machine.handle(PollAnswered(request_id, told.code, told.max_lac))
            case Slow(tag=(kind, _, request_id)):
                self.machine.handle(TimerFired((kind, request_id)))
            case Changed():
                self.machine.handle(MetadataChanged())
            case Nap(tag=(_, *name)):
                timer = name[0] if len(name) == 1 else tuple(name)
                self._naps -= {timer}
                self.machine.handle(TimerFired(timer))
            case _:
                super().on(event)

    def perform(self, action: Any, out: list[Effect]) -> None:
        match action:
            case ReadRange():
                self.range = action
            case ReadLac():
                self.lac_read = action
            case WatchMetadata():
                out.append(MetaCall(self.actor, ("watch",)))
            case LongPoll(request_id, bookie, previous_lac, wait_ms):
                self.asked(request_id, bookie)
                tag = ("poll", self.number, request_id)
                frame = poll_request(previous_lac, wait_ms)
                out.append(Request(self.actor, bookie, f"poll {previous_lac}", tag, frame))
            case StartTimer(("slow" | "early" as kind, int(request_id))):
                out.append(Slow(self.actor, (kind, self.number, request_id), self.bookie_of(request_id)))
            case StartTimer("metadata" | "wait" | ("pause", _) as name):
                self._naps |= {name}
                out.append(self._nap(name))
            case StopTimer(name) if name in self._naps:
                self._naps -= {name}
                out.append(Withdraw(self._nap(name)))
            case _:
                super().perform(action, out)

    def _nap(self, name: Any) -> Nap:
        return Nap(self.actor, (self.number, *((name,) if isinstance(name, str) else name)))


class TailActor(Actor):
    """Follows the ledger from its beginning. After a retriable error it continues where it was, as its user would.
    Commands: ``start [<wait>]``: with a wait it sometimes ends when nothing new comes."""

    machine_class: type[LedgerTail] = LedgerTail

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.next = 0
        self.failures = 0
        self._settings = TAIL_SETTINGS
        self._view: LedgerView | None = None
        self._number = 0
        self.tail: TailRun | None = None
        #: The tail's activities: reading the LAC, and a range.
        self._lac: ReadRunner | None = None
        self._range: RangeRun | None = None

    def on(self, event: Event, way: Way) -> None:
        match event:
            case Command("start"):
                if event.arguments:
                    self._settings = TailSettings(attempts=TAIL_SETTINGS.attempts, max_wait_ms=int(event.arguments[0]))
                self._open()
            case MetaReply(tag=("open",), outcome="ok"):
                self._view = LedgerView(LEDGER, metadata_in(event.data))
                self._follow(self._view)
            case MetaReply(tag=("open",)):
                self._retry(MetadataUnavailableError("the metadata cannot be read"))
            case Nap(tag=("open",)):
                self._open()
            case MetaReply(tag=("again",)):
                self._tell(self._range, event)
            case MetaReply() | Changed():
                self._tell(self.tail, event)
            case Nap(tag=(number, *_)) | Answer(tag=(_, number, *_)) | Slow(tag=(_, number, *_)):
                runs = (self.tail, self._lac, self._range)
                self._tell(next((run for run in runs if run is not None and run.number == number), None), event)

    def _open(self) -> None:
        if self._view is None:
            self.out.append(MetaCall(self.name, ("open",)))
        else:
            self._follow(self._view)

    def _follow(self, view: LedgerView) -> None:
        key = key_of(view.metadata)
        machine = self.machine_class(key, view, self.next, self._settings, suspects=set())
        self.tail = TailRun(self.name, self._next_number(), machine)
        self._go_on(self.tail, view)

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _tell(self, run: ReadRunner | None, event: Event) -> None:
        if run is not None and self.tail is not None and self._view is not None:
            run.on(event)
            self._go_on(self.tail, self._view)

    def _go_on(self, tail: TailRun, view: LedgerView) -> None:
        """Perform the machines' actions until they wait."""
        machine = tail.machine
        while True:
            tail.run(self.out)
            if tail.outcome is not None:
                self._end_of(tail, view)
                return
            if tail.lac_read is not None:
                lac_read = LacRead(key_of(view.metadata), tail.lac_read.metadata, timeout_ms=SETTINGS.timeout_ms)
                tail.lac_read, self._lac = None, ReadRunner(self.name, self._next_number(), lac_read)
            if tail.range is not None:
                first, last = tail.range.first, tail.range.last
                tail.range, self._range = None, RangeRun(self.name, self._next_number(), view, first, last)
            if not (self._read_lac(machine) or self._read_range(machine)):
                machine.wait()
                tail.run(self.out)
                if tail.outcome is None and tail.range is None and tail.lac_read is None:
                    return

    def _read_lac(self, machine: LedgerTail) -> bool:
        """Whether the tail received anything."""
        if self._lac is None:
            return False
        self._lac.run(self.out)
        end = self._lac.outcome
        if end is None:
            return False
        self._lac = None
        machine.handle(LacHeard(None if isinstance(end, EndedBy) else end.result))
        return True

    def _read_range(self, machine: LedgerTail) -> bool:
        if self._range is None:
            return False
        given = self._range.blocks(self.out)
        for block in given:
            for entry_id, payload in enumerate(block.payloads, block.first_entry_id):
                self.out.append(Followed(self.name, entry_id, bytes(payload)))
            machine.handle(EntriesGiven(len(block), block.max_lac))
        end = self._range.outcome
        if end is not None:
            self._range = None
            machine.handle(RangeFailed(end.error) if isinstance(end, EndedBy) else RangeRead())
        return bool(given) or end is not None

    def _end_of(self, tail: TailRun, view: LedgerView) -> None:
        end = tail.outcome
        self.next = tail.machine.next_entry_id
        if isinstance(end, EndedBy):
            self._retry(end.error)
        elif self._settings.max_wait_ms is None or (view.closed and self.next > view.last_add_confirmed):
            self.end("done", view.metadata.last_entry_id)
        else:
            self.end("waited")

    def _retry(self, error: Exception) -> None:
        self.tail = self._lac = self._range = None
        if isinstance(error, BookKeeperError) and error.retriable:
            self.failures += 1
            self.out.append(Nap(self.name, ("open",)))
        else:
            self.end(error)
