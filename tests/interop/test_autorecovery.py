"""A bookie is lost, and its copies are made again: by Apache's daemon, by ours, and by both at once, on clusters with
bookies of both kinds. Afterwards each entry is read from each bookie of its write set."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.metadata.cluster_init import init_cluster
from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.replication.under_replication_store import UnderReplicationStore
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.wire.wire_v2 import read_requests
from bookie_server.local import LocalBookie, LocalCluster
from bookie_server.local.process import STOP_TIMEOUT_MS, GuardedProcessGroup
from bookie_server.local.state import DirectoryLock
from tests.interop.apache import ApacheBookie, Bookies
from tests.interop.autorecovery import ApacheAutoRecovery, AutoRecovery
from tests.interop.java_client import JavaClient
from tests.interop.matrix import answer_of
from tests.support.servers import BOOKIE_SETTINGS

PASSWORD: Final = b"repaired"
ENTRIES: Final = 40
REPAIR_TIMEOUT_S: Final = 150
OURS, APACHES = LocalBookie, ApacheBookie


def payload(entry_id: int) -> bytes:
    return b"entry %d " % entry_id * 20


class Repaired:
    """A cluster, what was written to it, and what must be true when it is whole again."""

    def __init__(self, bookies: Bookies, java: JavaClient, zk: ZooKeeper) -> None:
        self.bookies, self.java, self.uri = bookies, java, bookies.metadata_service_uri
        parsed = MetadataServiceUri.parse(self.uri)
        self.ledgers = LedgerStore(zk, parsed)
        self.marks = UnderReplicationStore(zk, parsed.root)
        self.client = BlockingClient(self.uri)
        #: The number of entries of each ledger, those that are not acknowledged left out.
        self.written: dict[int, int] = {}

    def write(self) -> None:
        """Closed ledgers of both clients, striped and not, with several fragments and empty; one is open."""
        for quorum in (Quorum(3, 3, 2), Quorum(3, 2, 2), Quorum(2, 2, 1)):
            for _ in range(2):
                with closing(self.client.create(quorum=quorum, password=PASSWORD)) as ledger:
                    ledger.append_many([payload(entry_id) for entry_id in range(ENTRIES)])
                    self.written[ledger.ledger_id] = ENTRIES
            sizes = (quorum.ensemble_size, quorum.write_quorum_size, quorum.ack_quorum_size)
            writer = self.java.create(self.uri, password=PASSWORD.decode(), quorums=sizes)
            writer.append([payload(entry_id) for entry_id in range(ENTRIES)])
            writer.close()
            self.written[writer.ledger_id] = ENTRIES
        with closing(self.client.create(quorum=Quorum(3, 3, 2), password=PASSWORD)) as empty:
            self.written[empty.ledger_id] = 0
        abandoned = self.client.create(quorum=Quorum(3, 3, 2), password=PASSWORD)
        abandoned.append_many([payload(entry_id) for entry_id in range(ENTRIES)])
        self.written[abandoned.ledger_id] = ENTRIES
        self.client.close()

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
            for entry_id in range(count):
                ensemble = metadata.segment_of(entry_id).ensemble
                answers = [
                    answer_of(ensemble[index], read_requests(ledger_id, [entry_id]))
                    for index in metadata.quorum.write_set(entry_id)
                ]
                assert [answer[4:8] for answer in answers] == [bytes(4)] * len(answers), (ledger_id, entry_id, ensemble)
                assert all(answer.endswith(payload(entry_id)) for answer in answers), (ledger_id, entry_id)
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
        bookies = stack.enter_context(Bookies(directory / "bookies", uri, kinds, BOOKIE_SETTINGS))
        stack.callback(java.forget, uri)
        cluster = Repaired(bookies, java, zk)
        cluster.marks.prepare()
        yield cluster


@contextmanager
def daemons_of(kinds: list[type[AutoRecovery]], directory: Path, uri: str) -> Iterator[list[AutoRecovery]]:
    directory.mkdir()
    lock = DirectoryLock(directory)
    group = GuardedProcessGroup(lock.fd)
    daemons = [kind(directory / f"daemon{number}", group, uri, 4100 + number) for number, kind in enumerate(kinds)]
    try:
        for daemon in daemons:
            daemon.start()
        yield daemons
        for daemon in daemons:
            daemon.request_stop()
        for daemon in daemons:
            daemon.wait_ended(time.monotonic() + STOP_TIMEOUT_MS / 1000)
            if type(daemon) is AutoRecovery:
                assert daemon.exit_code == 0, daemon.failure("the daemon did not stop in order")
    finally:
        for daemon in daemons:
            if daemon.running:
                daemon.kill()
        group.close()
        lock.release()


@pytest.mark.parametrize(
    ("healers", "kinds", "lost"),
    [
        pytest.param([ApacheAutoRecovery], [OURS] * 4, OURS, id="apaches-daemon-our-bookies"),
        pytest.param([AutoRecovery], [APACHES] * 4, APACHES, id="our-daemon-apaches-bookies"),
        pytest.param([AutoRecovery], [OURS, OURS, APACHES, APACHES], APACHES, id="our-daemon-mixed-bookies"),
        pytest.param(
            [AutoRecovery, ApacheAutoRecovery, AutoRecovery],
            [OURS, OURS, APACHES, APACHES],
            OURS,
            id="both-daemons-mixed-bookies",
        ),
    ],
)
def test_a_lost_bookies_copies_are_made_again(
    healers: list[type[AutoRecovery]],
    kinds: list[type[LocalBookie]],
    lost: type[LocalBookie],
    tmp_path: Path,
    zk_only: LocalCluster,
    java_client: JavaClient,
    request: pytest.FixtureRequest,
) -> None:
    root = f"/healed-{request.node.callspec.id}"
    with cluster_of(kinds, tmp_path, zk_only, java_client, root) as cluster:
        cluster.write()
        victim = cluster.busiest(lost)
        with daemons_of(healers, tmp_path / "daemons", cluster.uri) as daemons, _writing(cluster):
            victim.kill()
            cluster.wait_repaired(victim.id, daemons)
        cluster.assert_whole()


@contextmanager
def _writing(cluster: Repaired) -> Iterator[None]:
    """A client writes ledgers all the while, and loses none of them."""
    stop = threading.Event()
    errors: list[BookKeeperError] = []
    written: dict[int, int] = {}

    def run() -> None:
        with BlockingClient(cluster.uri) as client:
            while not stop.is_set():
                try:
                    with closing(client.create(quorum=Quorum(3, 3, 2), password=PASSWORD)) as ledger:
                        ledger.append_many([payload(entry_id) for entry_id in range(10)])
                        time.sleep(0.05)
                    written[ledger.ledger_id] = 10
                except BookKeeperError as error:
                    errors.append(error)
                stop.wait(0.2)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not errors, errors
    assert written
    cluster.written.update(written)
