"""What ZooKeeper and the bookies say while ledgers are repaired: which worker copies what, and what is left to do."""

from __future__ import annotations

import contextlib
import re
import urllib.request
from dataclasses import dataclass, replace
from typing import Final, Protocol

from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.replication.auditor_election import AuditorElection, AuditorVote
from bk_spark.bookie.replication.under_replication_store import UnderReplicationStore
from bk_spark.protocol.errors import NoSuchLedgerError
from bk_spark.protocol.metadata import ledger_metadata
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.metadata.replication_notes import RepairFailure, reasons_path
from bk_spark.protocol.metadata.under_replication import Mark, PeriodicCheck
from bookie_server.local import LOOPBACK, LocalBookie

_OPERATION_TIMEOUT_MS: Final = 5_000
_ANSWER_TIMEOUT_S: Final = 1.0
#: The copy of a ledger of so many entries takes a second or more.
_LONG_ENTRIES: Final = 100
_ENTRIES_WRITTEN: Final = re.compile(r"^\w*replication_worker_NUM_ENTRIES_WRITTEN (\d+)", re.MULTILINE)


class Servers(Protocol):
    """The processes that are watched."""

    bookies: list[LocalBookie]
    #: Bookies that are not to come back.
    lost: set[str]

    @property
    def direct_uri(self) -> str: ...

    def works(self, name: str) -> bool:
        """Whether a process runs, and is not suspended."""

    def daemons(self) -> set[str]:
        """The names of running processes with auditor and worker."""

    def http_port(self, name: str) -> int: ...


@dataclass(frozen=True, slots=True)
class Work:
    """What a worker holds at one time: the versions of its long ledgers, and the entries that it has ever written."""

    worker: str
    session_id: int
    versions: dict[int, int]
    entries: int

    def __str__(self) -> str:
        return f"{self.worker} repairs ledgers {sorted(self.versions)}"


class Watcher:
    """Reads in a session of its own. For one thread. Calls raise BookKeeperError while ZooKeeper is gone."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._uri = MetadataServiceUri.parse(servers.direct_uri)
        self.zk = ZooKeeper(self._uri.servers, session_timeout_ms=30_000, operation_timeout_ms=_OPERATION_TIMEOUT_MS)
        self.zk.start()
        self.ledgers = LedgerStore(self.zk, self._uri)
        self.store = UnderReplicationStore(self.zk, self._uri.root)
        self.election = AuditorElection(self.zk, self._uri.root)
        #: The last look, by session.
        self._works: dict[int, Work] = {}

    def close(self) -> None:
        self.zk.close()

    # --- metadata ---

    def registered(self) -> set[str]:
        available = f"{self._uri.root}/available"
        names = {*(self.zk.children(available) or ()), *(self.zk.children(f"{available}/readonly") or ())}
        return names - {"readonly"}

    def all_metadata(self) -> dict[int, LedgerMetadata]:
        """The metadata of all ledgers in ZooKeeper. Raises MetadataFormatError for one that cannot be parsed."""
        ids = [ledger_id for page in self.ledgers.list_ledgers() for ledger_id in page]
        paths = {self.ledgers.manager.ledger_path(self._uri.root, each): each for each in ids}
        return {
            paths[path]: ledger_metadata.decode(found.data)
            for path, found in self.zk.get_many(list(paths)).items()
            if found is not None
        }

    def naming(self, bookies: set[str]) -> dict[int, set[str]]:
        """Which of these bookies ledgers name, by ledger."""
        found = {}
        for ledger_id, metadata in self.all_metadata().items():
            named = bookies & {each for segment in metadata.segments for each in segment.ensemble}
            if named:
                found[ledger_id] = named
        return found

    def marks(self) -> dict[int, Mark]:
        return {ledger_id: mark for page in self.store.marks() for ledger_id, mark in page.items()}

    def reasons(self) -> dict[str, str]:
        """Why ledgers could not be repaired, by the names of znodes."""
        path = reasons_path(self._uri.root)
        found = {}
        for name in self.zk.children(path) or ():
            node = self.zk.get(f"{path}/{name}")
            if node is not None:
                found[name] = RepairFailure.decode(node.data).reason
        return found

    def checks_ended(self) -> int:
        """How many checks of all ledgers have ended."""
        found = self.zk.exists(self.store.paths.check_time(PeriodicCheck.ALL_LEDGERS))
        return 0 if found is None else found.version + 1

    def workers(self) -> dict[str, int]:
        """The session of each znode of a worker, by name."""
        names = self.zk.children(self.store.paths.workers) or ()
        found = {name: self.zk.exists(f"{self.store.paths.workers}/{name}") for name in names}
        return {name: node.owner_session for name, node in found.items() if node is not None}

    def delete_cookie(self, bookie_id: str) -> None:
        self.zk.delete(f"{self._uri.root}/cookies/{bookie_id}")

    # --- moments ---

    def auditor(self) -> AuditorVote | None:
        """The auditor's vote, if its process works."""
        vote = self.election.auditor()
        works = vote is not None and vote.bookie_id is not None and self._servers.works(vote.bookie_id)
        return vote if works else None

    def unmarked(self) -> dict[int, set[str]]:
        """Ledgers that name lost bookies, without a mark that says so."""
        lost = self._servers.lost - self.registered()
        naming, marks = self.naming(lost) if lost else {}, self.marks()
        missing = {
            each: named.difference(marks[each].missing if each in marks else ()) for each, named in naming.items()
        }
        return {each: named for each, named in missing.items() if named}

    def copying(self) -> Work | None:
        """A worker that is in the middle of a copy.

        It has written entries since the last look, and holds a long ledger that it held then and that has not changed.
        """
        locks: dict[int, list[int]] = {}
        for ledger_id, lock in self.store.locks().items():
            locks.setdefault(lock.session_id, []).append(ledger_id)
        before, self._works = self._works, {}
        for vote in self.election.votes():
            worker, held = vote.bookie_id, locks.get(vote.session_id)
            if held is None or worker is None or not self._servers.works(worker):
                continue
            with contextlib.suppress(OSError, NoSuchLedgerError):
                stored = {ledger_id: self.ledgers.read(ledger_id) for ledger_id in held}
                versions = {each: found.version for each, found in stored.items() if _is_long(found.metadata)}
                now = Work(worker, vote.session_id, versions, self._written(worker))
                self._works[vote.session_id] = now
                then = before.get(vote.session_id)
                if then is not None and then.entries < now.entries:
                    same = dict(then.versions.items() & now.versions.items())
                    if same:
                        return replace(now, versions=same)
        return None

    def in_the_middle(self, work: Work) -> bool:
        """Whether one of these ledgers has still not changed."""
        return any(self.ledgers.read(each).version == version for each, version in work.versions.items())

    def _written(self, worker: str) -> int:
        """The entries that a process has copied, and a bookie has acknowledged. Raises OSError."""
        url = f"http://{LOOPBACK}:{self._servers.http_port(worker)}/metrics"
        with urllib.request.urlopen(url, timeout=_ANSWER_TIMEOUT_S) as answer:
            found = _ENTRIES_WRITTEN.search(answer.read().decode())
        if found is None:
            raise OSError(f"{worker} has no such metric")
        return int(found[1])


def _is_long(metadata: LedgerMetadata) -> bool:
    return metadata.last_entry_id >= _LONG_ENTRIES
