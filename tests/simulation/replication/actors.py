"""The actors of replication in the model world: workers, auditors, and a bookie's collection of copies in excess."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from functools import partial
from random import Random
from typing import Any, TypeVar

import numpy as np

from bk_spark.bookie.metadata.ledger_store import StoredMetadata, stored_metadata
from bk_spark.bookie.replication.under_replication_store import LockedLedger
from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.codes import Code
from bk_spark.protocol.entries.digest import master_key
from bk_spark.protocol.errors import (
    BookieUnavailableError,
    EntryUnknownError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    SessionLostError,
)
from bk_spark.protocol.ledger.reading.lac import LacRead
from bk_spark.protocol.ledger.reading.read_actions import ReportFailure, RequestFailed
from bk_spark.protocol.machine import EndedBy, StartTimer, StopRequest, Succeeded, TimerFired
from bk_spark.protocol.metadata.cookie import Cookie
from bk_spark.protocol.metadata.znodes import Znode
from bk_spark.protocol.replication.actions import (
    AskPace,
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
    PacePassed,
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
from bk_spark.protocol.replication.copying.copy_limits import CopyLimits
from bk_spark.protocol.replication.ledger_repair import LedgerRepair
from bk_spark.protocol.replication.repair_settings import RepairSettings
from bk_spark.protocol.wire.answers_v2 import AddAnswers
from bk_spark.protocol.wire.stored_adds import stored_adds_v2
from bookie_server.gc.brake import CollectionBrakeLimits
from bookie_server.gc.ledger_collection import LedgerCollection
from bookie_server.gc.ledger_metadata_reads import LedgerMetadataReads
from bookie_server.gc.throttle import StopSignal, Throttle
from bookie_server.identity.cluster_identity import ClusterIdentity
from tests.simulation.bytes_cache import answer_in, code_in, split
from tests.simulation.events import Answer, Choose, Command, Effect, Event, Nap, Request, Retry, Way
from tests.simulation.outcomes import InvariantError
from tests.simulation.readers import SETTINGS, ReadRunner, key_of
from tests.simulation.replication.zookeeper import LOCK, ROOT, Client, ZkCall, ZkReply
from tests.simulation.writers import Actor
from tests.support.ledgers import LEDGER, PASSWORD

#: Small batches show the same interleavings.
COPY = CopyLimits(batches=3, batch_entries=2)
_KEY = master_key(PASSWORD)
#: A bookie without the entry may not have the ledger either.
_ABSENT = (Code.NO_ENTRY, Code.NO_LEDGER)
Steps = Generator[Any, Any, str]
_T = TypeVar("_T")


class StepsActor(Actor):
    """An actor whose steps are a generator: it yields what it waits for, and is sent what came."""

    def __init__(self, name: str, world: Any) -> None:
        super().__init__(name)
        self.world = world
        self._number = 0
        self._steps: Steps | None = None

    def steps(self) -> Steps:
        raise NotImplementedError

    @property
    def client(self) -> Client:
        return self.world.coordination.client(self.name)  # type: ignore[no-any-return]

    def call(self, what: str, work: Callable[[], _T]) -> Generator[Any, Any, _T]:
        """Call a store. Returns what it returns, and raises what it raises."""
        self._number += 1
        tag = ("zk", self._number)
        self.out.append(ZkCall(self.name, tag, what, work))  # type: ignore[arg-type]
        while True:
            event = yield
            if isinstance(event, ZkReply) and event.tag == tag:
                if isinstance(event.result, Exception):
                    raise event.result
                return event.result  # type: ignore[return-value]

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

    def __init__(
        self, worker: WorkerActor, number: int, machine: LedgerRepair, proof: str, found: LockedLedger
    ) -> None:
        super().__init__(worker.name, number, machine)
        #: What was read under the lock.
        self._found: LockedLedger | None = found
        self._worker = worker
        self._proof = proof
        #: The metadata that were read last, as RepairPerformer keeps them.
        self._stored: StoredMetadata | None = None
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
            case ReadLedger() if self._found is not None:
                # As RepairPerformer does.
                found, self._found = self._found, None
                self._on_zk(ZkReply(self.actor, tag, "read", _stored(found)))
            case ReadLedger():
                self._call("read", self._worker.client.read_ledger, out)
            case ReadBookies(members):
                self._worker.world.before_look()
                self._call("bookies", partial(self._worker.client.read_bookies, members), out)
            case ReplaceMembers(metadata, version):
                stored, client = self._stored, self._worker.client
                assert stored is not None
                if stored.version != version:
                    self.machine.fail(MetadataConflictError("the metadata were read again meanwhile"))
                    return
                self._call("replace", partial(client.replace_members, metadata, stored, self._proof), out)
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
            case AskPace(request_id):
                self.machine.handle(PacePassed(request_id))
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

    def _call(self, what: str, work: Callable[[], object], out: list[Effect]) -> None:
        out.append(ZkCall(self.actor, ("repair", self.number), what, work))  # type: ignore[arg-type]

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
        machine = self.machine
        match reply.what, reply.result:
            case "recovered", "done":
                machine.handle(LedgerRecovered())
            case "recovered", error:
                machine.fail(EntryUnknownError(str(error)))
            case _, Exception() as error:
                machine.fail(error)
            case "replace", StoredMetadata() as stored:
                self._stored = stored
                machine.handle(MembersReplaced(stored.version))
            case "read", StoredMetadata() as stored:
                assert stored.created_zxid is not None
                self._stored = stored
                machine.handle(LedgerFound(stored.metadata, stored.version, stored.created_zxid))
            case "bookies", BookiesFound() as found:
                self._worker.known_read_only = found.read_only
                machine.handle(found)
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


def _stored(found: LockedLedger) -> object:
    try:
        return stored_metadata(LEDGER, found.ledger)
    except NoSuchLedgerError as error:
        return error


class WorkerActor(StepsActor):
    """A replication worker: one process, one session after the other. Commands: ``start``, ``kill``."""

    repair_class: type[LedgerRepair] = LedgerRepair

    def __init__(self, name: str, world: Any, random: Random) -> None:
        super().__init__(name, world)
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
            try:
                proof = yield from self.call("begin", lambda: self.client.marks.begin_worker(self.name))
                while True:
                    yield from self._round(proof)
            except MetadataUnavailableError:
                yield from self._release()
            except SessionLostError:
                pass

    def _round(self, proof: str) -> Generator[Any, Any, None]:
        """Raises SessionLostError, and MetadataUnavailableError if nothing was done."""
        client, marks = self.client, self.client.marks
        if (yield from self.call("disabled", client.switches.is_disabled)) or not (
            yield from self.call("marked", client.is_marked)
        ):
            yield from self.nap()
            return
        if not (yield from self.call("lock", lambda: marks.lock(LEDGER, proof=proof))):
            yield from self.nap()
            return
        found = yield from self.call("read", client.read_locked)
        mark = found.mark
        if mark is None:
            yield from self._release()
            return
        result = yield from self._repair(frozenset(mark.missing), proof, found)
        self.results.append(type(result).__name__)
        if isinstance(result, LockLost):
            raise SessionLostError("the lock is lost")
        if isinstance(result, Repaired | NothingBad | Gone):
            while True:
                try:
                    done = yield from self.call("finish", lambda: client.finish(mark.version, proof))
                    self.world.count("marked again", not done)
                    return
                except MetadataUnavailableError:
                    pass
        self._unreadable = result.unreadable if isinstance(result, Unrepairable) else frozenset()
        yield from self._release()
        yield from self.nap()

    def _repair(
        self, missing: frozenset[str], proof: str, found: LockedLedger
    ) -> Generator[Any, Any, RepairResult | Exception]:
        self._runs += 1
        settings = RepairSettings(verified_share=self._random.choice([0.0, 0.5]), copy=COPY)
        machine = self.repair_class(LEDGER, missing, settings, self._random, unreadable=self._unreadable)
        self._run = run = RepairRun(self, self._runs, machine, proof, found)
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

    def _release(self) -> Generator[Any, Any, None]:
        while True:
            try:
                return (yield from self.call("release", lambda: self.client.marks.release(LEDGER)))
            except MetadataUnavailableError:
                pass


class AuditorActor(StepsActor):
    """Marks the ledger once, if a bookie of it seems to be lost. Its view may be old when it marks."""

    def steps(self) -> Steps:
        client = self.client
        try:
            bookies = yield from self.call("bookies", lambda: client.read_bookies(frozenset()))
            found = yield from self.call("read", client.read_ledger)
            named = {bookie for segment in found.metadata.segments for bookie in segment.ensemble}
            lost = named - bookies.writable - bookies.read_only
            if lost:
                yield from self.call("mark", lambda: client.marks.mark_all({LEDGER: sorted(lost)}))
        except MetadataUnavailableError:
            return "gave up"
        return "done"


class CollectionActor(StepsActor):
    """One pass of a bookie's collection of copies in excess: the shipped one, in the bookie's own session."""

    def __init__(self, name: str, bookie: str, world: Any) -> None:
        super().__init__(name, world)
        self.bookie = bookie

    def steps(self) -> Steps:
        return (yield from self._collect().__await__())

    async def _collect(self) -> str:
        client, stop = self.client, StopSignal()
        reads = LedgerMetadataReads(client.ledgers, OnlyCluster(self.bookie), Throttle(0), stop)
        storage: Any = BookieStorage(self.bookie, self.world)
        collection = LedgerCollection(storage, reads, CollectionBrakeLimits(1.0, 10), self._run_blocking, stop)
        await collection.collect_over_replicated()
        self.world.marked.discard(self.bookie)
        while client.session.owns(LOCK):
            # As the next pass.
            await collection.release_locks()
        return "done"

    async def _run_blocking(self, work: Callable[..., _T], *arguments: Any) -> _T:
        what = getattr(work, "__name__", None) or getattr(getattr(work, "func", None), "__name__", "")
        return await _Awaited(self.call(what, partial(work, *arguments)))


class _Awaited(Awaitable[_T]):
    """The shipped coroutines await the steps of an actor."""

    def __init__(self, steps: Generator[Any, Any, _T]) -> None:
        self._steps = steps

    def __await__(self) -> Generator[Any, Any, _T]:
        return self._steps


class OnlyCluster(ClusterIdentity):
    """There is no other. What else ZooKeeper may be is in tests/simulation/collection."""

    def __init__(self, bookie: str) -> None:
        super().__init__(ROOT, Cookie(bookie, "", "", None), None)

    @property
    def paths(self) -> list[str]:
        return []

    def check(self, found: Mapping[str, Znode | None]) -> None:
        pass


class BookieStorage:
    """The ledger at a bookie, as the collection sees it."""

    def __init__(self, bookie: str, world: Any) -> None:
        self._bookie = bookie
        self._world = world

    async def local_ledgers(self) -> Int64s:
        return np.array([LEDGER] if self._world.bookie(self._bookie).disk else [], np.int64)

    def mark_ledger(self, ledger_id: int) -> bool:
        self._world.marked.add(self._bookie)
        return True

    async def settle(self) -> None:
        self._world.settle(self._bookie)

    def unmark_ledger(self, ledger_id: int) -> None:
        self._world.marked.discard(self._bookie)

    async def remove_ledger(self, ledger_id: int) -> None:
        if not self._world.bookie(self._bookie).up:
            raise OSError("the bookie is down")
        self._world.remove_copies(self._bookie)

    async def sync_deletions(self) -> None:
        pass
