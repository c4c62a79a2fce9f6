"""The actors of replication in the model world: workers, auditors, and a bookie's collection of copies in excess."""

from __future__ import annotations

from collections.abc import Generator
from random import Random
from typing import Any

import numpy as np

from bk_spark.protocol.codes import Code
from bk_spark.protocol.entries.digest import master_key
from bk_spark.protocol.errors import (
    BookieUnavailableError,
    EntryUnknownError,
    MetadataConflictError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    OutcomeUnknownError,
    SessionLostError,
)
from bk_spark.protocol.ledger.reading.lac import LacRead
from bk_spark.protocol.ledger.reading.read_actions import ReportFailure, RequestFailed
from bk_spark.protocol.machine import EndedBy, StartTimer, StepMachine, StopRequest, Succeeded, TimerFired
from bk_spark.protocol.metadata.ledger_metadata import encode
from bk_spark.protocol.replication.actions import (
    AskThrottle,
    BookiesFound,
    ChooseTarget,
    EntriesWritten,
    FindMisplaced,
    Gone,
    LastAddConfirmed,
    LedgerFound,
    LedgerRecovered,
    LockLost,
    MembersReplaced,
    MisplacedFound,
    NothingBad,
    ReadBookies,
    ReadLastAddConfirmed,
    ReadLedger,
    RecoverLedger,
    Repaired,
    RepairResult,
    ReplaceMembers,
    TargetChosen,
    ThrottlePassed,
    Unrepairable,
    WriteEntries,
)
from bk_spark.protocol.replication.copy_limits import CopyLimits
from bk_spark.protocol.replication.ledger_repair import LedgerRepair
from bk_spark.protocol.replication.repair_settings import RepairSettings
from bk_spark.protocol.wire.answers_v2 import AddAnswers
from bk_spark.protocol.wire.stored_adds import stored_adds_v2
from bookie_server.gc.brake import CollectionBrake, CollectionBrakeLimits
from bookie_server.gc.collection_steps import (
    CollectionReport,
    LockedLedger,
    MarkLedgers,
    PrepareLocks,
    ReadLedgers,
    ReadLocked,
    ReleaseLock,
    RemoveLedgers,
    SyncDeletions,
    SyncMetadata,
    TakeLock,
    UnmarkLedgers,
    over_replication_steps,
)
from tests.simulation.bytes_cache import answer_in, code_in, metadata_in, split
from tests.simulation.events import Answer, Choose, Command, Effect, Event, Nap, Request, Retry, Way
from tests.simulation.outcomes import InvariantError
from tests.simulation.readers import SETTINGS, ReadRunner, key_of
from tests.simulation.replication.coordination import SESSION_LOST, UNKNOWN, ZkCall, ZkReply
from tests.simulation.writers import Actor
from tests.support.ledgers import LEDGER, PASSWORD

#: Small batches show the same interleavings.
COPY = CopyLimits(batches=3, batch_entries=2)
_KEY = master_key(PASSWORD)
#: A bookie without the entry may not have the ledger either.
_ABSENT = (Code.NO_ENTRY, Code.NO_LEDGER)
Steps = Generator[Any, Any, str]


class StepsActor(Actor):
    """An actor whose steps are a generator: it yields what it waits for, and is sent what came."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._number = 0
        self._steps: Steps | None = None

    def steps(self) -> Steps:
        raise NotImplementedError

    def call(self, op: str, *arguments: Any) -> Generator[Any, Any, Any]:
        """Call ZooKeeper. A lost reply is UNKNOWN."""
        self._number += 1
        tag = ("zk", self._number)
        self.out.append(ZkCall(self.name, tag, op, arguments))  # type: ignore[arg-type]
        while True:
            event = yield
            if isinstance(event, ZkReply) and event.tag == tag:
                return event.result

    def nap(self) -> Generator[Any, Any, None]:
        self._number += 1
        nap = Nap(self.name, ("nap", self._number))
        self.out.append(nap)
        while (yield) != nap:
            pass

    def on(self, event: Event, way: Way) -> None:
        self.way = way
        try:
            if self._steps is None:
                assert isinstance(event, Command)
                self._steps = self.steps()
                next(self._steps)
            else:
                self._steps.send(event)
        except StopIteration as end:
            self.end(end.value)


class RepairRun(ReadRunner):
    """Runs one :class:`LedgerRepair`."""

    machine: LedgerRepair

    def __init__(self, worker: WorkerActor, number: int, machine: LedgerRepair, proof: int | None) -> None:
        super().__init__(worker.name, number, machine)
        self._worker = worker
        self._proof = proof
        #: Adds without an answer, the codes of the others, by request.
        self._adds: dict[int, tuple[set[int], list[int], str]] = {}
        self._lac: ReadRunner | None = None
        self._lacs = 0

    def expects(self, number: int) -> bool:
        """Whether messages with this number belong to this repair."""
        return number == self.number or (self._lac is not None and number == self._lac.number)

    def on(self, event: Any) -> None:
        machine = self.machine
        match event:
            case Answer(tag=("copy", _, int(request_id), int(entry_id))):
                self._on_added(request_id, entry_id, event)
            case Answer(tag=(_, int(number), *_)) if self._lac is not None and number == self._lac.number:
                self._lac.on(event)
            case ZkReply():
                self._on_zk(event)
            case Choose():
                self._on_chosen(event)
            case Nap():
                machine.handle(TimerFired("grace period"))
            case Retry(tag=("again", _, request_id)):
                machine.handle(TimerFired(request_id))
            case _:
                if isinstance(event, Answer) and event.frame is not None and code_in(event.frame) in _ABSENT:
                    self._worker.world.coordination.note_absent(self.actor, event.bookie)
                super().on(event)

    def run(self, out: list[Effect]) -> None:
        while True:
            super().run(out)
            if self._lac is None:
                return
            self._lac.run(out)
            match self._lac.outcome:
                case None:
                    return
                case Succeeded(lac):
                    self._lac = None
                    self.machine.handle(LastAddConfirmed(lac))
                case EndedBy(error):
                    self._lac = None
                    self.machine.fail(error)

    def perform(self, action: Any, out: list[Effect]) -> None:
        tag = ("repair", self.number)
        match action:
            case ReadLedger():
                out.append(ZkCall(self.actor, tag, "read"))  # type: ignore[arg-type]
            case ReadBookies(members):
                out.append(ZkCall(self.actor, tag, "bookies", (members,)))  # type: ignore[arg-type]
            case ReplaceMembers(metadata, version):
                arguments = (encode(metadata), version, self._proof)
                out.append(ZkCall(self.actor, tag, "replace", arguments))  # type: ignore[arg-type]
            case ReadLastAddConfirmed(metadata):
                self._lacs += 1
                self._lac = ReadRunner(
                    self.actor,
                    -(self.number * 1_000 + self._lacs),
                    LacRead(key_of(metadata), metadata, timeout_ms=SETTINGS.timeout_ms),
                )
            case RecoverLedger():
                self._worker.world.recover_for(self._worker, tag)
            case ChooseTarget(_, ensemble, index, exclude):
                self._ensemble = ensemble
                out.append(Choose(self.actor, ("target", self.number), (index,), exclude, frozenset()))
            case StartTimer("grace period"):
                out.append(Nap(self.actor, tag))
            case StartTimer(int(request_id), COPY.busy_pause_ms):
                out.append(Retry(self.actor, ("again", self.number, request_id), ""))
            case FindMisplaced():
                self.machine.handle(MisplacedFound(0, 0))
            case AskThrottle(request_id):
                self.machine.handle(ThrottlePassed(request_id))
            case WriteEntries():
                self._add(action, out)
            case StopRequest(request_id) if request_id in self._adds:
                del self._adds[request_id]
            case ReportFailure():
                pass
            case _:
                super().perform(action, out)

    def _add(self, action: WriteEntries, out: list[Effect]) -> None:
        entry_ids = action.entries.entry_ids
        self._adds[action.request_id] = (set(entry_ids), [], action.bookie_id)
        frames = split([stored_adds_v2(_KEY, len(entry_ids), action.entries.records)])
        for entry_id, frame in zip(entry_ids, frames, strict=True):
            tag = ("copy", self.number, action.request_id, entry_id)
            out.append(Request(self.actor, action.bookie_id, f"copy {entry_id}", tag, frame))

    def _on_added(self, request_id: int, entry_id: int, event: Answer) -> None:
        if request_id not in self._adds:
            return
        missing, codes, _ = self._adds[request_id]
        if event.frame is None:
            del self._adds[request_id]
            self.machine.handle(RequestFailed(request_id, BookieUnavailableError("broke")))
            return
        answers = answer_in(event.frame)
        assert isinstance(answers, AddAnswers)
        code = int(answers.codes[0])
        if code == Code.FENCED:
            raise InvariantError("a copy was fenced off")
        missing.discard(entry_id)
        codes.append(code)
        if not missing:
            del self._adds[request_id]
            bad = [each for each in codes if each]
            self.machine.handle(EntriesWritten(request_id, Code.from_v2(bad[0] if bad else 0)))

    def _on_zk(self, reply: ZkReply) -> None:
        machine, result = self.machine, reply.result
        match reply.op, result:
            case "replace", "ok":
                machine.handle(MembersReplaced(0))
            case "replace", "conflict":
                machine.fail(MetadataConflictError("changed by another client"))
            case "replace", "session lost":
                machine.fail(SessionLostError("the session ended"))
            case "replace", _:
                machine.fail(OutcomeUnknownError("the reply was lost"))
            case "recovered", "done":
                machine.handle(LedgerRecovered())
            case "recovered", _:
                machine.fail(EntryUnknownError(str(result)))
            case _, "unknown":
                machine.fail(MetadataUnavailableError("ZooKeeper cannot be read"))
            case "read", (bytes(data), int(version)):
                machine.handle(LedgerFound(metadata_in(data), version, 1))
            case "bookies", (writable, read_only, registrations):
                self._worker.known_read_only = read_only
                machine.handle(BookiesFound(writable, read_only, dict(registrations)))
            case _:
                raise AssertionError(reply)

    def _on_chosen(self, event: Choose) -> None:
        way = self._worker.way
        if not isinstance(way, tuple) or not way:
            self.machine.fail(NotEnoughBookiesError("none left"))
            return
        ((_, bookie_id),) = way
        if bookie_id in self._ensemble:
            raise InvariantError(f"{self.actor} copies to {bookie_id}, a member of {self._ensemble}")
        if bookie_id in self._worker.world.coordination.read_only:
            raise InvariantError(f"{self.actor} copies to {bookie_id}, which is read-only")
        self.machine.handle(TargetChosen(bookie_id))


class WorkerActor(StepsActor):
    """A replication worker: one process, one session after the other. Commands: ``start``, ``kill``."""

    repair_class: type[LedgerRepair] = LedgerRepair
    #: Rules that mutants break.
    takes_the_lock = proves_its_session = checks_the_version = True

    def __init__(self, name: str, world: Any, random: Random) -> None:
        super().__init__(name)
        self.world = world
        self._random = random
        self._unreadable: frozenset[int] = frozenset()
        self._runs = 0
        self._run: RepairRun | None = None
        #: The read-only bookies that its repair has heard of.
        self.known_read_only: frozenset[str] = frozenset()
        #: The results of repairs.
        self.results: list[str] = []

    @property
    def idle(self) -> bool:
        return self.ended or self._run is None

    def steps(self) -> Steps:
        while True:
            proof = yield from self.call("begin")
            if proof == UNKNOWN:
                continue
            while (yield from self._round(proof)):
                pass

    def _round(self, proof: int) -> Generator[Any, Any, bool]:
        """Return False if the session is lost."""
        if (yield from self.call("disabled")) is not False or (yield from self.call("marked")) is not True:
            yield from self.nap()
            return True
        if self.takes_the_lock:
            got = yield from self.call("lock", proof)
            if got == SESSION_LOST:
                return False
            if got != "ok":
                if got == UNKNOWN:
                    yield from self._release()
                yield from self.nap()
                return True
        mark = yield from self.call("read mark")
        if not isinstance(mark, tuple):
            yield from self._release()
            return True
        missing, version = mark
        result = yield from self._repair(missing, proof if self.proves_its_session else None)
        self.results.append(type(result).__name__)
        if isinstance(result, LockLost):
            return False
        if isinstance(result, Repaired | NothingBad | Gone):
            while True:
                at = version if self.checks_the_version else None
                ended = yield from self.call("finish", at, proof)
                if ended == SESSION_LOST:
                    return False
                if ended != UNKNOWN:
                    return True
                if not (yield from self._still_locked()):
                    return True
        self._unreadable = result.unreadable if isinstance(result, Unrepairable) else frozenset()
        yield from self._release()
        yield from self.nap()
        return True

    def _repair(self, missing: frozenset[str], proof: int | None) -> Generator[Any, Any, RepairResult | Exception]:
        self._runs += 1
        settings = RepairSettings(verified_share=self._random.choice([0.0, 0.5]), copy=COPY)
        machine = self.repair_class(LEDGER, missing, settings, self._random, unreadable=self._unreadable)
        self._run = run = RepairRun(self, self._runs, machine, proof)
        while True:
            run.run(self.out)
            if machine.outcome is not None:
                self._run = None
                break
            event = yield
            tag = getattr(event, "tag", ())
            # Others belong to an earlier repair.
            if len(tag) > 1 and run.expects(tag[1]):
                run.on(event)
        outcome = machine.outcome
        return outcome.error if isinstance(outcome, EndedBy) else outcome.result

    def _still_locked(self) -> Generator[Any, Any, bool]:
        while True:
            found = yield from self.call("locked")
            if found != UNKNOWN:
                return bool(found[1])

    def _release(self) -> Generator[Any, Any, None]:
        while (yield from self.call("release")) == UNKNOWN:
            pass


class AuditorActor(StepsActor):
    """Marks the ledger once, if a bookie of it seems to be lost. Its view may be old when it marks."""

    def steps(self) -> Steps:
        bookies = yield from self.call("bookies")
        found = yield from self.call("read")
        if UNKNOWN in (bookies, found):
            return "gave up"
        named = {bookie for segment in metadata_in(found[0]).segments for bookie in segment.ensemble}
        lost = named - bookies[0] - bookies[1]
        if lost:
            yield from self.call("mark", frozenset(lost))
        return "done"


class CollectionActor(StepsActor):
    """One pass of a bookie's collection of copies in excess: the shipped steps, in the bookie's own session."""

    def __init__(self, name: str, bookie: str, world: Any) -> None:
        super().__init__(name)
        self.bookie = bookie
        self._world = world

    def steps(self) -> Steps:
        brake = CollectionBrake("over-replicated", CollectionBrakeLimits(1.0, 10))
        local = np.array([LEDGER] if self._world.bookie(self.bookie).disk else [], np.int64)
        machine = StepMachine(over_replication_steps(CollectionReport(), local, self.bookie, brake))
        while machine.outcome is None:
            for step in machine.take_actions():
                answer = yield from self._do(step)
                if isinstance(answer, MetadataUnavailableError):
                    machine.fail(answer)
                else:
                    machine.handle(answer)
        self._world.marked.discard(self.bookie)
        return "done"

    def _do(self, step: Any) -> Generator[Any, Any, Any]:
        bookie, marked = self.bookie, self._world.marked
        match step:
            case SyncMetadata() | PrepareLocks() | SyncDeletions():
                return None
            case ReadLedgers():
                found = yield from self.call("read")
                return MetadataUnavailableError("") if found == UNKNOWN else {LEDGER: found[0]}
            case TakeLock():
                got = yield from self.call("lock", None)
                if got == UNKNOWN:
                    yield from self.call("release")
                return got == "ok"
            case ReadLocked():
                found = yield from self.call("locked")
                return MetadataUnavailableError("") if found == UNKNOWN else LockedLedger(*found)
            case ReleaseLock():
                while (yield from self.call("release")) == UNKNOWN:
                    pass
            case MarkLedgers():
                marked.add(bookie)
                self._world.settle(bookie)
                return [LEDGER], 0
            case UnmarkLedgers():
                marked.discard(bookie)
            case RemoveLedgers():
                if not self._world.bookie(bookie).up:
                    return [], 1
                self._world.remove_copies(bookie)
                return [LEDGER], 0
            case _:
                raise AssertionError(step)
        return None
