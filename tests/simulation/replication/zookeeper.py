"""ZooKeeper as the processes of replication see it: the shipped stores in sessions with the model of ZooKeeper.

A call of a store is one event of the world. Between its requests other clients act, its server is behind, and replies
are lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from bk_spark.bookie.metadata.ledger_store import LedgerStore, StoredMetadata
from bk_spark.bookie.replication.replication_switches import ReplicationSwitches
from bk_spark.bookie.replication.under_replication_store import LockedLedger, UnderReplicationStore
from bk_spark.protocol.errors import MetadataUnavailableError, OutcomeUnknownError
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.metadata.ledger_paths import LedgerManager
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.metadata.under_replication import UnderReplicationPaths
from bk_spark.protocol.metadata.znodes import TransactionOp
from bk_spark.protocol.replication.actions import BookiesFound
from tests.simulation.events import STORE
from tests.support.ledgers import LEDGER
from tests.support.zookeeper_model import RefusedError, ZooKeeperModel
from tests.support.zookeeper_model_session import ModelSession

ROOT = "/ledgers"
MANAGER = LedgerManager.HIERARCHICAL
PATHS = UnderReplicationPaths(ROOT)
LEDGER_PATH, MARK, LOCK = MANAGER.ledger_path(ROOT, LEDGER), PATHS.mark(LEDGER), PATHS.lock(LEDGER)
AVAILABLE, READ_ONLY = f"{ROOT}/available", f"{ROOT}/available/readonly"
_URI = MetadataServiceUri.parse(f"zk://model{ROOT}")


@dataclass(frozen=True, slots=True)
class ZkCall:
    """A blocking call of a store, made by ``actor`` in its session of that moment."""

    actor: str
    tag: tuple[str | int, ...]
    what: str
    work: Callable[[], Any]

    @property
    def target(self) -> str:
        return STORE

    @property
    def label(self) -> str:
        return f"{self.what} {self.actor}→{STORE}"

    def reply(self, result: object) -> ZkReply:
        return ZkReply(self.actor, self.tag, self.what, result)


@dataclass(frozen=True, slots=True)
class ZkReply:
    """What the call returned, or the error that it raised."""

    actor: str
    tag: tuple[str | int, ...]
    what: str
    result: object

    @property
    def target(self) -> str:
        return self.actor

    @property
    def label(self) -> str:
        result = self.result
        said = type(result).__name__ if isinstance(result, Exception) else result if isinstance(result, bool) else ""
        return f"answer {self.what} {STORE}→{self.actor} {said}"


class Session(ModelSession):
    """One process's session. If it ends, the process has another one at once, with another server.

    ``meanwhile`` is called before each request. ``loss`` is the chance that a request or its reply is lost.
    """

    def __init__(
        self, zk: ZooKeeperModel, random: Random, loss: Callable[[], float], meanwhile: Callable[[], None]
    ) -> None:
        super().__init__(zk)
        self._random = random
        self._loss = loss
        self._meanwhile = meanwhile
        self._view = zk.zxid
        #: Whether others act between its requests, and requests are lost.
        self.is_disturbed = False
        #: Whether a call is under way that is over before the session can end.
        self.bounded = False

    def owns(self, path: str) -> bool:
        found = self.zk.read(path)
        return found is not None and found.owner_session == self.session_id

    @contextlib.contextmanager
    def within(self, timeout_ms: float) -> Iterator[None]:
        before, self.bounded = self.bounded, True
        try:
            yield
        finally:
            self.bounded = before

    def sync(self, path: str) -> None:
        super().sync(path)
        self._view = self.zk.zxid

    def _begin_again(self) -> None:
        super()._begin_again()
        self._view = self._random.randint(max(0, self.zk.zxid - 10), self.zk.zxid)

    def _before(self) -> None:
        if self.is_disturbed:
            self._meanwhile()
        if self._is_lost():
            raise MetadataUnavailableError("the request was lost")

    def _is_lost(self) -> bool:
        loss = self._loss() if self.is_disturbed else 0.0
        return loss > 0 and self._random.random() < loss

    def _look(self) -> int:
        if self._view < self.zk.zxid:
            self._view = self._random.randint(self._view, self.zk.zxid)
        return self._view

    def _transact(self, operations: Sequence[TransactionOp]) -> None:
        if self._is_lost():
            if self._random.random() < 0.7:
                with contextlib.suppress(RefusedError):
                    super()._transact(operations)
            raise OutcomeUnknownError("the reply was lost")
        super()._transact(operations)
        self._view = self.zk.zxid


class Client:
    """The shipped stores in one process's session. What the process has seen is noted in ``seen``, since checks of its
    changes need it."""

    def __init__(self, name: str, session: Any) -> None:
        self.name = name
        self.session: Session = session
        self.marks = UnderReplicationStore(session, ROOT, wall_ms=lambda: 0)
        self.switches = ReplicationSwitches(session, ROOT)
        self.ledgers = LedgerStore(session, _URI)
        self.seen = Seen()

    def is_marked(self) -> bool:
        return self.marks.any_marks() and any(LEDGER in page for page in self.marks.marks())

    def read_locked(self) -> LockedLedger:
        found = self.marks.read_locked(LEDGER, LEDGER_PATH)
        self.seen.mark_version = None if found.mark is None else found.mark.version
        self.seen.ledger_version = None if found.ledger is None else found.ledger.version
        return found

    def finish(self, version: int, proof: str) -> bool:
        self.marks.forget_reason(LEDGER)
        return self.marks.finish(LEDGER, version, proof=proof)

    def read_ledger(self) -> StoredMetadata:
        stored = self.ledgers.read_latest(LEDGER)
        self.seen.ledger_version = stored.version
        return stored

    def replace_members(self, metadata: LedgerMetadata, stored: StoredMetadata, proof: str) -> StoredMetadata:
        written = self.ledgers.write_proven(LEDGER, metadata, stored, proof)
        self.seen.ledger_version = written.version
        return written

    def read_bookies(self, members: frozenset[str]) -> BookiesFound:
        # The lists first, as RepairPerformer does.
        session = self.session
        read_only = frozenset(session.children(READ_ONLY) or ())
        writable = frozenset(session.children(AVAILABLE) or ()) - {"readonly"} - read_only
        registrations = {}
        for name in sorted(members & (writable | read_only)):
            found = session.exists(f"{READ_ONLY if name in read_only else AVAILABLE}/{name}")
            if found is not None:
                registrations[name] = found.created_zxid
        self.seen.registrations = registrations
        return BookiesFound(writable, read_only, registrations)


@dataclass(slots=True)
class Seen:
    """What a process has read last."""

    mark_version: int | None = None
    ledger_version: int | None = None
    registrations: dict[str, int] | None = None
