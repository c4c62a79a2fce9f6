"""The model world of collection: a bookie's ledgers; clients that create, write and delete ledgers, and reuse old ids;
replication workers; and a metadata service that is created again, partly lost, or replaced by another.

The code under test is the bookie's own: the machines of collection and their runner, the reads of metadata, the locks,
the brake. The storage (the part of StorageUpkeep) and ZooKeeper are modelled. One random source decides what happens
between two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar, cast

import numpy as np

from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.metadata.cookie import Cookie, encode_directories
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment, encode
from bk_spark.protocol.metadata.ledger_paths import LedgerManager
from bk_spark.protocol.metadata.znodes import DeleteOp
from bk_spark.protocol.quorum import Quorum
from bookie_server.gc.brake import CollectionBrakeLimits
from bookie_server.gc.collection_steps import CollectionReport
from bookie_server.gc.ledger_collection import LedgerCollection
from bookie_server.gc.ledger_metadata_reads import LedgerMetadataReads
from bookie_server.gc.throttle import StopSignal, Throttle
from bookie_server.identity.cluster_identity import ClusterIdentity
from tests.simulation.bytes_cache import metadata_in
from tests.simulation.collection.zookeeper import CollectorSession, Ensemble
from tests.simulation.outcomes import Counts, InvariantError

ROOT = "/ledgers"
BOOKIE, OTHER = "b1:3181", "b2:3181"
MANAGER = LedgerManager.HIERARCHICAL
#: One range that is listed, one whose ledgers are read.
LEDGERS = [*range(1, 25), *range(10_001, 10_005)]
_PATHS = {ledger_id: MANAGER.ledger_path(ROOT, ledger_id) for ledger_id in LEDGERS}
LOCKS = f"{ROOT}/underreplication/locks/urL"
#: Added to a worker's session, it is the number of an entry that the worker copied.
_COPIED = 1_000_000
_T = TypeVar("_T")


class KilledError(BaseException):
    """The bookie's process is gone: kill -9."""


class ModelStorage:
    """The bookie's ledgers: entries as (life of the id, number). Marked ledgers accept nothing."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self.entries: dict[int, set[tuple[int, int]]] = {}
        self.marked: set[int] = set()
        self.removed: list[int] = []
        #: The number of ledgers when the current pass listed them.
        self.listed = 0
        self._meanwhile = meanwhile

    def add(self, ledger_id: int, entry: tuple[int, int]) -> bool:
        """Whether the add is acknowledged."""
        if ledger_id in self.marked:
            return False
        self.entries.setdefault(ledger_id, set()).add(entry)
        return True

    # --- as StorageUpkeep ---

    async def local_ledgers(self) -> Int64s:
        self._meanwhile()
        self.listed = len(self.entries)
        return np.array(sorted(self.entries), np.int64)

    def mark_ledger(self, ledger_id: int) -> bool:
        if ledger_id not in self.entries:
            return False
        self.marked.add(ledger_id)
        return True

    async def settle(self) -> None:
        self._meanwhile()

    async def remove_ledger(self, ledger_id: int) -> None:
        self._meanwhile()
        if ledger_id not in self.marked:
            raise InvariantError(f"ledger {ledger_id} is removed, and was not marked")
        del self.entries[ledger_id]
        self.marked.discard(ledger_id)
        self.removed.append(ledger_id)
        self._meanwhile()

    def unmark_ledger(self, ledger_id: int) -> None:
        self.marked.discard(ledger_id)

    async def sync_deletions(self) -> None:
        self._meanwhile()


class World:
    """The whole model; ``random`` decides everything. After each event all acknowledged entries must be there."""

    def __init__(self, random: Random, limits: CollectionBrakeLimits) -> None:
        self.random = random
        self.limits = limits
        self.trace: list[str] = []
        self.counts = Counts()
        cookie = Cookie(BOOKIE, "/journal", encode_directories(["/ledgers"]), "instance 1")
        self.identity = ClusterIdentity(ROOT, cookie, cookie.instance_id)
        self.own = Ensemble(self._cluster("instance 1", cookie))
        self.own.given = LEDGERS[-1] + 1
        self.storage = ModelStorage(self.meanwhile)
        self.zk = CollectorSession(random, self.own, self.meanwhile)
        #: How often each id was used, and the acknowledged entries of each life.
        self.lives = dict.fromkeys(LEDGERS, 0)
        self.acknowledged: dict[tuple[int, int], set[tuple[int, int]]] = {}
        #: (id, life) that must stay after the cluster's znodes were lost.
        self.kept: set[tuple[int, int]] | None = None
        #: Copies by workers, not yet in the metadata: (worker's session, id, life).
        self.copies: list[tuple[int, int, int]] = []
        #: Most events concern these ledgers.
        self.busiest = random.sample(LEDGERS, 6)
        self.busy = False
        self._start_bookie()

    # --- what there is ---

    @staticmethod
    def _cluster(instance: str, cookie: Cookie | None) -> dict[str, bytes]:
        nodes = {f"{ROOT}/LAYOUT": MANAGER.layout, f"{ROOT}/INSTANCEID": instance.encode()}
        return nodes if cookie is None else {**nodes, f"{ROOT}/cookies/{BOOKIE}": cookie.encode()}

    def _start_bookie(self) -> None:
        self.storage.marked.clear()
        store = cast(LedgerStore, _Store(self.zk))
        stop = StopSignal()
        reads = LedgerMetadataReads(store, self.identity, Throttle(0), stop)
        storage: Any = self.storage
        self.collection = LedgerCollection(storage, reads, self.limits, _inline, stop)
        self.brakes = (self.collection.deleted, self.collection.over_replicated)

    def metadata(self, ledger_id: int) -> LedgerMetadata | None:
        node = self.own.read(_PATHS[ledger_id])
        return None if node is None else metadata_in(node.data)

    def protected(self) -> set[tuple[int, int]]:
        """Lives of ledgers whose acknowledged entries the bookie must hold."""
        if self.kept is not None:
            return self.kept
        found = set()
        for ledger_id in LEDGERS:
            metadata = self.metadata(ledger_id)
            if metadata is not None and BOOKIE in metadata.last_segment.ensemble:
                found.add((ledger_id, self.lives[ledger_id]))
        return found

    def check(self) -> None:
        for ledger_id, life in self.protected():
            lost = self.acknowledged.get((ledger_id, life), set()) - self.storage.entries.get(ledger_id, set())
            if lost:
                raise InvariantError(f"ledger {ledger_id}, life {life}: acknowledged and lost: {sorted(lost)}")

    def tell(self, what: str, count: str = "") -> None:
        self.trace.append(what)
        if count:
            self.counts[count] += 1

    def story(self, last: int = 60) -> str:
        return "\n".join(self.trace[-last:])

    # --- a pass ---

    def collect(self, number: int) -> None:
        """Run pass ``number`` of the collection (deleted, over-replicated); it may be killed."""
        collect = (self.collection.collect_deleted, self.collection.collect_over_replicated)[number]
        brake = self.brakes[number]
        held, released = len(self.storage.entries), set()
        if brake.released and brake.stopped is not None:
            released = set(brake.stopped.ledgers.tolist())
        self.storage.removed.clear()
        self.tell(f"a pass for {brake.kind} ledgers begins: {held} here, {len(released)} released", "passes")
        try:
            report = self._play(collect())
        except KilledError:
            self.tell("the bookie is killed and starts again", "kills")
            self.end_session()
            self._start_bookie()
        else:
            self.tell(f"it ends: {len(report.deleted)} deleted; {report.problem or 'no problem'}")
            self.counts["stopped"] += report.stopped is not None
            self.counts["foreign"] += report.foreign_cluster
            if self.storage.marked:
                raise InvariantError(f"marks were left: {sorted(self.storage.marked)}")
        unnamed = set(self.storage.removed) - released
        if len(unnamed) > max(self.limits.least, self.limits.share * self.storage.listed):
            raise InvariantError(f"{len(unnamed)} of {self.storage.listed} ledgers were removed without a word")
        early = [each for each in unnamed if each >= self.own.given]
        if early and self.zk.zk is self.own:
            raise InvariantError(f"the ids of {early} were not given, and they were removed without a word")
        self.counts["removed"] += len(self.storage.removed)

    def _play(self, work: Coroutine[Any, Any, CollectionReport]) -> CollectionReport:
        self.busy = True
        try:
            work.send(None)
        except StopIteration as end:
            report: CollectionReport = end.value
            return report
        finally:
            self.busy = False
        raise AssertionError("the model waits for nothing")

    # --- what others do ---

    def meanwhile(self) -> None:
        """Runs between two steps of the bookie."""
        if self.busy:
            while self.random.random() < 0.4:
                self.act()
            if self.random.random() < 0.001:
                raise KilledError

    def act(self) -> None:
        """Another actor does something."""
        chance = self.random.random()
        ledger_id = self.random.choice(self.busiest if self.random.random() < 0.7 else LEDGERS)
        if chance < 0.35:
            self.add(ledger_id)
        elif chance < 0.55:
            self.make(ledger_id)
        elif chance < 0.75:
            self.delete(ledger_id)
        elif chance < 0.83:
            self.move_away(ledger_id)
        elif chance < 0.96:
            self.replicate(ledger_id)
        else:
            self.end_session()
        self.check()

    def end_session(self) -> None:
        """End the bookie's session; a worker that waits for one of its locks takes it."""
        held = [path for path in self.zk.ephemerals_in(self.own) if path.startswith(LOCKS)]
        self.zk.renew()
        self.tell("the bookie's session ends", "sessions")
        for path in held:
            self.begin_copy(int(path.removeprefix(LOCKS)))

    def make(self, ledger_id: int) -> None:
        """A client creates a ledger under this id (again) and writes to it."""
        if self.kept is None and self.metadata(ledger_id) is None:
            self.lives[ledger_id] += 1
            self.own.given = max(self.own.given, ledger_id + 1)
            self._write(ledger_id, LedgerMetadata(Quorum(1, 1, 1), (Segment(0, (BOOKIE,)),)))
            self.tell(f"ledger {ledger_id} is made, life {self.lives[ledger_id]}", "made again")
            self.add(ledger_id)

    def add(self, ledger_id: int) -> None:
        metadata = self.metadata(ledger_id)
        if self.kept is None and metadata is not None and metadata.state is LedgerState.OPEN:
            entry = (self.lives[ledger_id], self.random.randrange(100))
            if self.storage.add(ledger_id, entry):
                self.acknowledged.setdefault((ledger_id, self.lives[ledger_id]), set()).add(entry)
                self.tell(f"entry {entry} of ledger {ledger_id} is acknowledged", "adds")
            else:
                self.tell(f"entry {entry} of ledger {ledger_id} is refused", "refused")

    def delete(self, ledger_id: int) -> None:
        if self.kept is None and self.metadata(ledger_id) is not None:
            self.own.transact([DeleteOp(_PATHS[ledger_id])])
            self.tell(f"ledger {ledger_id} is deleted")

    def move_away(self, ledger_id: int) -> None:
        """Another bookie has replaced this one, and the ledger is closed."""
        if self.kept is None and self.metadata(ledger_id) is not None:
            moved = LedgerMetadata(Quorum(1, 1, 1), (Segment(0, (OTHER,)),)).closed(9, 9)
            self._write(ledger_id, moved)
            self.tell(f"ledger {ledger_id} is closed, at {OTHER}")

    def replicate(self, ledger_id: int) -> None:
        """A worker takes its next step: lock and copy, or compare-and-set and release."""
        if self.copies and self.random.random() < 0.5:
            self.finish_copy()
        else:
            self.begin_copy(ledger_id)

    def finish_copy(self) -> None:
        session, copied, life = self.copies.pop(0)
        if self.kept is None:
            if self.metadata(copied) is not None and self.lives[copied] == life:
                self._write(copied, LedgerMetadata(Quorum(1, 1, 1), (Segment(0, (BOOKIE,)),)).closed(9, 9))
                self.acknowledged.setdefault((copied, life), set()).add((life, _COPIED + session))
                self.tell(f"ledger {copied} is replicated to the bookie", "replicated")
            self.own.expire(session)

    def begin_copy(self, ledger_id: int) -> None:
        metadata, lock = self.metadata(ledger_id), f"{LOCKS}{ledger_id:010d}"
        if (
            self.kept is not None
            or metadata is None
            or BOOKIE in metadata.last_segment.ensemble
            or self.own.read(lock) is not None
        ):
            return
        session = self.own.new_session()
        life = self.lives[ledger_id]
        if self.storage.add(ledger_id, (life, _COPIED + session)):
            self.storage.entries[ledger_id] |= self.acknowledged.get((ledger_id, life), set())
            self.own.put(lock, b"", session)
            self.copies.append((session, ledger_id, life))
            self.tell(f"a worker has the lock of ledger {ledger_id}, and copies it to the bookie")

    # --- what happens to the metadata service ---

    def make_anew(self) -> None:
        """The root is deleted, and a new cluster initialised."""
        self.kept = self.protected()
        self.own.clear()
        for path, data in self._cluster("instance 2", None).items():
            self.own.put(path, data)
        if self.random.random() < 0.5:
            self.zk.renew()
        self.tell("the metadata service is made anew", "made anew")

    def lead_elsewhere(self) -> None:
        """The host name leads to another ensemble, which has a cluster at the same path."""
        self.zk.renew(Ensemble(self._cluster("instance 3", None)))
        self.tell("the host name leads to another ensemble", "elsewhere")

    def lead_back(self) -> None:
        self.zk.renew(self.own)
        self.tell("the host name leads to the bookie's ensemble")

    def lose_ledgers(self, share: float) -> None:
        """An old backup is restored: the cluster is the same, but ledgers are missing. The bookie must keep its
        entries of them unless an operator releases them, or they are few (:meth:`collect` counts)."""
        lost = [each for each in LEDGERS if self.random.random() < share and self.metadata(each) is not None]
        self.own.transact([DeleteOp(_PATHS[ledger_id]) for ledger_id in lost])
        self.tell(f"{len(lost)} ledgers are lost in the metadata", "losses")

    def set_back(self) -> None:
        """An older state is restored. Ledgers that were made since are missing, and their ids will be given again."""
        self.own.given = self.random.choice(LEDGERS)
        lost = [each for each in LEDGERS if each >= self.own.given and self.metadata(each) is not None]
        self.own.transact([DeleteOp(_PATHS[ledger_id]) for ledger_id in lost])
        self.tell(f"the metadata are set back: {len(lost)} ledgers from {self.own.given} on are lost", "set back")

    def _write(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        self.own.put(_PATHS[ledger_id], encode(metadata))


class _Store:
    """A LedgerStore for LedgerMetadataReads."""

    root = ROOT
    manager = MANAGER

    def __init__(self, zk: CollectorSession) -> None:
        self.zk = zk


async def _inline(function: Callable[..., _T], /, *arguments: object) -> _T:
    return function(*arguments)
