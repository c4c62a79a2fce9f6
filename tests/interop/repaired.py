"""A cluster with ledgers of all kinds that loses a bookie, and what must be true when it is whole again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.metadata.cluster_init import init_cluster
from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.replication.auditor_election import AuditorElection
from bk_spark.bookie.replication.under_replication_store import UnderReplicationStore
from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalBookie, LocalCluster
from tests.interop.apache import LASTING, Bookies
from tests.interop.autorecovery import AutoRecovery
from tests.interop.copies import check_copies
from tests.interop.java_client import JavaClient
from tests.support.streams import wait_until

PASSWORD: Final = b"repaired"
ENTRIES: Final = 40
REPAIR_TIMEOUT_S: Final = 150


def payload(entry_id: int) -> bytes:
    return b"entry %d " % entry_id * 20


class Repaired:
    """A cluster, what was written to it, and what must be true when it is whole again."""

    def __init__(self, bookies: Bookies, java: JavaClient, zk: ZooKeeper) -> None:
        self.bookies, self.java, self.uri = bookies, java, bookies.metadata_service_uri
        parsed = MetadataServiceUri.parse(self.uri)
        self.zk, self.root = zk, parsed.root
        self.ledgers = LedgerStore(zk, parsed)
        self.marks = UnderReplicationStore(zk, parsed.root)
        #: The number of entries of each ledger, those that are not acknowledged left out.
        self.written: dict[int, int] = {}

    def write(self) -> None:
        """Closed ledgers of both clients, striped and not, with several fragments and empty; one is open."""
        with BlockingClient(self.uri) as client:
            for quorum in (Quorum(3, 3, 2), Quorum(3, 2, 2), Quorum(2, 2, 1)):
                for _ in range(2):
                    with closing(client.create(quorum=quorum, password=PASSWORD)) as ledger:
                        ledger.append_many([payload(entry_id) for entry_id in range(ENTRIES)])
                        self.written[ledger.ledger_id] = ENTRIES
                sizes = (quorum.ensemble_size, quorum.write_quorum_size, quorum.ack_quorum_size)
                writer = self.java.create(self.uri, password=PASSWORD.decode(), quorums=sizes)
                writer.append([payload(entry_id) for entry_id in range(ENTRIES)])
                writer.close()
                self.written[writer.ledger_id] = ENTRIES
            with closing(client.create(quorum=Quorum(3, 3, 2), password=PASSWORD)) as empty:
                self.written[empty.ledger_id] = 0
            abandoned = client.create(quorum=Quorum(3, 3, 2), password=PASSWORD)
            abandoned.append_many([payload(entry_id) for entry_id in range(ENTRIES)])
            self.written[abandoned.ledger_id] = ENTRIES

    @property
    def named(self) -> set[str]:
        """The bookies that any ledger's metadata name."""
        return {
            bookie_id
            for ledger_id in self.written
            for segment in self.ledgers.read_latest(ledger_id).metadata.segments
            for bookie_id in segment.ensemble
        }

    def busiest(self, kind: type[LocalBookie]) -> LocalBookie:
        """A bookie of this kind, in as many ledgers as possible."""
        ensembles = [self.ledgers.read_latest(each).metadata.last_segment.ensemble for each in self.written]
        of_kind = [bookie for bookie in self.bookies.bookies if type(bookie) is kind]
        return max(of_kind, key=lambda bookie: sum(bookie.id in ensemble for ensemble in ensembles))

    def lose(self, bookie: LocalBookie) -> None:
        """Kill a bookie, and end its registration."""
        self.bookies.kill(bookie)

    def wait_auditor(self) -> None:
        election = AuditorElection(self.zk, self.root)
        wait_until(lambda: election.auditor() is not None, "an auditor")

    def cookies(self) -> set[str]:
        return set(self.zk.children(f"{self.root}/cookies") or ())

    def wait_repaired(self, lost: str, daemons: list[AutoRecovery]) -> None:
        deadline = time.monotonic() + REPAIR_TIMEOUT_S
        while lost in self.named or list(self.marks.marks()) or self.marks.locks():
            for daemon in daemons:
                assert daemon.running, daemon.failure("the daemon ended")
            assert time.monotonic() < deadline, "\n".join(
                [
                    f"named: {sorted(self.named)}, lost: {lost}",
                    f"marks: {list(self.marks.marks())}, locks: {self.marks.locks()}",
                    *(daemon.failure("what the daemon says") for daemon in daemons),
                ]
            )
            time.sleep(0.2)

    def assert_whole(self) -> None:
        """Each entry is on each bookie of its write set, and reads as it was written."""
        for ledger_id, count in self.written.items():
            metadata = self.ledgers.read_latest(ledger_id).metadata
            if metadata.state is LedgerState.CLOSED:
                assert metadata.last_entry_id == count - 1
            _, missing = check_copies(ledger_id, metadata, [payload(entry_id) for entry_id in range(count)])
            assert not missing
        # Both clients also check digests. Copies may differ in the last add confirmed: Apache's worker sets it anew.
        with BlockingClient(self.uri) as client:
            for ledger_id, count in self.written.items():
                read = self.java.read(self.uri, ledger_id, recovery=True, password=PASSWORD.decode())
                assert read.count == count
                reader = client.open_for_reading(ledger_id, PASSWORD)
                found = reader.read(0, count - 1) if count else []
                assert found == [payload(entry_id) for entry_id in range(count)]


@contextmanager
def cluster_of(
    kinds: list[type[LocalBookie]], directory: Path, zk_only: LocalCluster, java: JavaClient, root: str
) -> Iterator[Repaired]:
    servers = MetadataServiceUri.parse(zk_only.metadata_service_uri).servers
    with ExitStack() as stack:
        zk = ZooKeeper(servers)
        zk.start()
        stack.callback(zk.close)
        init_cluster(zk, root)
        uri = str(MetadataServiceUri(servers, root, "hierarchical"))
        bookies = stack.enter_context(Bookies(directory / "bookies", uri, kinds, LASTING))
        stack.callback(java.forget, uri)
        cluster = Repaired(bookies, java, zk)
        cluster.marks.prepare()
        yield cluster
