"""Lost bookies are repaired automatically: real processes, with auditor and worker inside the bookies."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.client import Client
from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.replication.auditor_election import AuditorElection
from bk_spark.bookie.replication.replication_switches import ReplicationSwitches
from bk_spark.bookie.replication.under_replication_store import UnderReplicationStore
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.metadata.under_replication import PeriodicCheck
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalCluster
from tests.support.bookie import free_port
from tests.support.copies import check_every_copy
from tests.support.nursery import ForkedBookie, QuickCluster
from tests.support.registrations import kill_and_forget
from tests.support.servers import BOOKIE_SETTINGS, start_timeout_ms

FAST = {
    "autoRecoveryDaemonEnabled": "true",
    "rwRereplicateBackoffMs": "300",
    "openLedgerRereplicationGracePeriod": "1000",
    "zkTimeout": "4000",
}
ENTRIES = 300


class Watcher:
    """What metadata say, read in a session of its own."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.uri = MetadataServiceUri.parse(cluster.metadata_service_uri)
        self.zk = ZooKeeper(self.uri.servers)
        self.zk.start()
        self.ledgers = LedgerStore(self.zk, self.uri)
        self.store = UnderReplicationStore(self.zk, self.uri.root)
        self.election = AuditorElection(self.zk, self.uri.root)

    def metadata(self, ledger_id: int) -> LedgerMetadata:
        return self.ledgers.read(ledger_id).metadata

    def names(self, bookie_id: str, ledger_ids: list[int]) -> list[int]:
        return [
            each
            for each in ledger_ids
            if any(bookie_id in segment.ensemble for segment in self.metadata(each).segments)
        ]

    def is_at_rest(self) -> bool:
        return not any(self.store.marks()) and not self.store.locks()


@pytest.fixture
def settings() -> dict[str, str]:
    return {}


@pytest.fixture
def watched(tmp_path: Path, settings: dict[str, str]) -> Iterator[tuple[LocalCluster, Watcher]]:
    settings = {**BOOKIE_SETTINGS, **FAST, **settings}
    with QuickCluster(tmp_path, bookies=4, bookie_settings=settings, start_timeout_ms=start_timeout_ms()) as cluster:
        watcher = Watcher(cluster)
        yield cluster, watcher
        watcher.zk.close()


def write_ledgers(cluster: LocalCluster) -> tuple[list[int], int]:
    """Closed ledgers, whole and striped and empty; and one that its writer left open."""
    ledger_ids = []
    with BlockingClient(cluster.metadata_service_uri) as client:
        for quorum in (Quorum(3, 3, 2), Quorum(3, 2, 2), Quorum(4, 2, 2), Quorum(1, 1, 1), Quorum(2, 2, 2)):
            for count in (0, 1, ENTRIES):
                with closing(client.create(quorum=quorum, password=b"secret")) as writer:
                    writer.append_many([b"%d" % number * 50 for number in range(count)])
                    writer.flush()
                ledger_ids.append(writer.ledger_id)
        left = client.create(quorum=Quorum(3, 3, 2))
        left.append_many([b"left"] * 20)
        left.flush()
        left_open = left.ledger_id
        left.abandon()
    return ledger_ids, left_open


def until(condition: Callable[[], bool], timeout_s: float = 90) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_one_of_four_bookies_is_killed_and_every_entry_has_its_write_quorum_again(
    watched: tuple[LocalCluster, Watcher],
) -> None:
    cluster, watcher = watched
    ledger_ids, left_open = write_ledgers(cluster)
    # A ledger with one copy on the lost bookie is lost, and one on four bookies needs a fifth: see the tests below.
    victim = cluster.bookies[1]
    repairable = [each for each in ledger_ids if len(watcher.metadata(each).last_segment.ensemble) in (2, 3)]
    lost = watcher.names(victim.id, [*repairable, left_open])
    assert lost
    kill_and_forget(cluster, victim)
    until(lambda: not watcher.names(victim.id, [*repairable, left_open]))
    assert watcher.metadata(left_open).state is LedgerState.CLOSED or left_open not in lost
    copies = check_every_copy(cluster.metadata_service_uri, [*repairable, left_open])
    assert copies >= 2 * 3 * ENTRIES


def test_all_marks_and_locks_are_gone_in_the_end_and_what_is_left_has_a_reason(
    watched: tuple[LocalCluster, Watcher],
) -> None:
    cluster, watcher = watched
    with BlockingClient(cluster.metadata_service_uri) as client:
        ids = []
        for _ in range(12):
            with closing(client.create(quorum=Quorum(3, 2, 2))) as writer:
                writer.append_many([b"%d" % number for number in range(50)])
            ids.append(writer.ledger_id)
    auditor = watcher.election.auditor()
    assert auditor is not None
    # The auditor itself is lost.
    victim = next(bookie for bookie in cluster.bookies if bookie.id == auditor.bookie_id)
    kill_and_forget(cluster, victim)
    until(lambda: not watcher.names(victim.id, ids) and watcher.is_at_rest())
    successor = watcher.election.auditor()
    assert successor is not None
    assert successor.bookie_id != victim.id
    assert check_every_copy(cluster.metadata_service_uri, ids) == 12 * 50 * 2
    # It returns. Nothing changes, since its copies are not needed any more.
    before = {each: watcher.metadata(each) for each in ids}
    victim.start()
    cluster.wait_ready()
    time.sleep(1)  # nothing tells that nobody does anything
    assert {each: watcher.metadata(each) for each in ids} == before
    assert watcher.is_at_rest()


class Healer(ForkedBookie[bytes]):
    """A process of ``bookie-server autorecovery``. It is killed at the end."""

    def __init__(self, directory: Path, uri: str, name: str, **settings: str) -> None:
        self.name = name
        conf = directory / f"{name}.conf"
        keys = {
            "metadataServiceUri": uri,
            "allowLoopback": "true",
            "bookieId": name,
            "rwRereplicateBackoffMs": "300",
            "zkTimeout": "4000",
            **settings,
        }
        conf.write_text("".join(f"{key}={value}\n" for key, value in keys.items()), "utf-8")
        super().__init__([sys.executable, "-m", "bookie_server", "autorecovery", "--conf", str(conf)])

    def __exit__(self, *error: object) -> None:
        self.kill()
        self.wait()


def ask(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return answer.read().decode()  # type: ignore[no-any-return]


@pytest.fixture
def unhealed(tmp_path: Path) -> Iterator[tuple[LocalCluster, Watcher]]:
    """Bookies without auditor and worker."""
    with QuickCluster(
        tmp_path, bookies=4, bookie_settings=BOOKIE_SETTINGS, start_timeout_ms=start_timeout_ms()
    ) as cluster:
        watcher = Watcher(cluster)
        yield cluster, watcher
        watcher.zk.close()


def lose_a_member(cluster: LocalCluster, watcher: Watcher, *, entries: int) -> tuple[int, str]:
    """Write a ledger and kill one of its bookies."""
    with BlockingClient(cluster.metadata_service_uri) as client, closing(client.create()) as writer:
        writer.append_many([b"x" * 1000] * entries)
        writer.flush()
    victim_id = watcher.metadata(writer.ledger_id).last_segment.ensemble[0]
    kill_and_forget(cluster, next(bookie for bookie in cluster.bookies if bookie.id == victim_id))
    return writer.ledger_id, victim_id


def test_autorecovery_alone_repairs_for_bookies_that_do_not(
    unhealed: tuple[LocalCluster, Watcher], tmp_path: Path
) -> None:
    cluster, watcher = unhealed
    port = free_port()
    http = {"httpServerEnabled": "true", "httpServerPort": str(port), "httpServerHost": "127.0.0.1"}
    with Healer(tmp_path, cluster.metadata_service_uri, "healer-1", **http) as healer:
        until(lambda: bool(watcher.election.votes()))
        assert ask(port, "/heartbeat") == "OK\n"
        assert ask(port, "/api/v1/autorecovery/who_is_auditor") == "Auditor: healer-1"
        ledger_id, victim_id = lose_a_member(cluster, watcher, entries=500)
        until(lambda: not watcher.names(victim_id, [ledger_id]) and watcher.is_at_rest())
        metrics = ask(port, "/metrics").splitlines()
        assert "replication_worker_NUM_ENTRIES_WRITTEN 500" in metrics
        assert "replication_worker_NUM_ENTRIES_READ 500" in metrics
        # Each entry has 1,000 bytes, a header of 32 and a digest of 4 or more.
        for name in ("NUM_BYTES_READ", "NUM_BYTES_WRITTEN"):
            total = f'replication_worker_{name}_sum{{success="true"}} '
            size_bytes = float(next(line for line in metrics if line.startswith(total)).split()[-1])
            assert 500 * 1036 <= size_bytes <= 500 * 1060
        assert 'replication_worker_rereplicate_count{success="true"} 1' in metrics
        assert "auditor_elected 1" in metrics
        assert json.loads(ask(port, "/api/v1/autorecovery/list_under_replicated_ledger")) == []
        assert check_every_copy(cluster.metadata_service_uri, [ledger_id]) == 1500
        assert watcher.zk.children(f"{watcher.uri.root}/underreplication/workers")
        healer.send_signal(signal.SIGTERM)
        assert healer.wait(30) == 0
        # It ended in an orderly way: no session is left to expire.
        assert watcher.zk.children(f"{watcher.uri.root}/underreplication/workers") == []
        assert not watcher.election.votes()


def test_r2_a_worker_is_killed_in_mid_copy_and_another_finishes(
    unhealed: tuple[LocalCluster, Watcher], tmp_path: Path
) -> None:
    cluster, watcher = unhealed
    uri, port = cluster.metadata_service_uri, free_port()
    http = {"httpServerEnabled": "true", "httpServerPort": str(port), "httpServerHost": "127.0.0.1"}
    # The copy would take more than a minute.
    slow = {"replicationRateByBytes": "30000", "rereplicationEntryBatchSize": "100"}
    with Healer(tmp_path, uri, "healer-1", **http, **slow) as first:
        until(lambda: len(watcher.election.votes()) == 1)
        ledger_id, victim_id = lose_a_member(cluster, watcher, entries=2000)
        until(lambda: ledger_id in watcher.store.locks())
        until(lambda: "replication_worker_NUM_ENTRIES_WRITTEN 0" not in ask(port, "/metrics").splitlines())
        with Healer(tmp_path, uri, "healer-2") as second:
            until(lambda: len(watcher.election.votes()) == 2)
            assert watcher.names(victim_id, [ledger_id])
            first.kill()
            until(lambda: not watcher.names(victim_id, [ledger_id]) and watcher.is_at_rest())
            assert second.poll() is None
        assert check_every_copy(cluster.metadata_service_uri, [ledger_id]) == 6000
        # The segment was changed once.
        assert watcher.ledgers.read(ledger_id).version == 2


def test_the_client_reads_a_repaired_ledger_with_every_old_bookie_gone(watched: tuple[LocalCluster, Watcher]) -> None:
    """Two bookies are lost one after another. After each repair nothing of the lost ones is needed."""
    cluster, watcher = watched

    async def write() -> int:
        async with Client(cluster.metadata_service_uri) as client:
            writer = await client.create(quorum=Quorum(2, 2, 2))
            await writer.append_many([b"%d" % number for number in range(100)])
            await writer.close()
            return writer.ledger_id

    ledger_id = asyncio.run(write())
    for _ in range(2):
        victim_id = watcher.metadata(ledger_id).last_segment.ensemble[0]
        next(bookie for bookie in cluster.bookies if bookie.id == victim_id).kill()
        until(lambda lost=victim_id: not watcher.names(lost, [ledger_id]))
    assert check_every_copy(cluster.metadata_service_uri, [ledger_id]) == 200


# An auditor waits for twice this time at its start, in which the other bookies must come.
@pytest.mark.parametrize("settings", [{"zkTimeout": "8000"}], ids=[""])
def test_a_start_of_the_whole_cluster_copies_nothing(watched: tuple[LocalCluster, Watcher]) -> None:
    """The first bookie is elected as auditor before the others have registered."""
    cluster, watcher = watched
    ledger_ids, _ = write_ledgers(cluster)
    before = {each: watcher.ledgers.read(each).version for each in ledger_ids}
    switches = ReplicationSwitches(watcher.zk, watcher.uri.root)
    kill_and_forget(cluster, *cluster.bookies)
    for vote in watcher.election.votes():
        watcher.zk.delete(vote.path)
    # The next auditor notes when it has looked at all ledgers.
    switches.set_check_time_ms(PeriodicCheck.ALL_LEDGERS, 0)
    cluster.bookies[0].start()
    until(lambda: bool(watcher.election.votes()))
    cluster.heal()
    until(lambda: bool(switches.check_time_ms(PeriodicCheck.ALL_LEDGERS)))
    assert {each: watcher.ledgers.read(each).version for each in ledger_ids} == before
    assert watcher.is_at_rest()
