"""Copies are moved to where the placement policy wants them: real bookies in racks, with the daemon of self-healing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.protocol.errors import NoSuchLedgerError
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalCluster
from tests.integration.test_self_healing import Healer, Watcher, ask, until
from tests.support.bookie import free_port
from tests.support.copies import check_every_copy
from tests.support.nursery import QuickCluster
from tests.support.servers import BOOKIE_SETTINGS, start_timeout_ms

RACKS = "/bookies"
NOT_ADHERING = "auditor_NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY"
MOVED = "replication_worker_NUM_NOT_ADHERING_PLACEMENT_LEDGERS_REPLICATED"


@pytest.fixture(scope="module")
def racks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, Watcher]]:
    """Four bookies without auditor and worker."""
    directory = tmp_path_factory.mktemp("racks")
    with QuickCluster(
        directory, bookies=4, bookie_settings=BOOKIE_SETTINGS, start_timeout_ms=start_timeout_ms()
    ) as cluster:
        watcher = Watcher(cluster)
        put_into_racks(watcher, dict.fromkeys((bookie.id for bookie in cluster.bookies), "/a"))
        yield cluster, watcher
        watcher.zk.close()


def put_into_racks(watcher: Watcher, racks: dict[str, str]) -> None:
    data = json.dumps({"group": {bookie_id: {"rack": rack} for bookie_id, rack in racks.items()}}).encode()
    found = watcher.zk.get(RACKS)
    if found is None:
        watcher.zk.create(RACKS, data)
    else:
        watcher.zk.set(RACKS, data, found.version)


def write(cluster: LocalCluster, entries: int) -> int:
    with BlockingClient(cluster.metadata_service_uri) as client:
        with closing(client.create(quorum=Quorum(3, 3, 2))) as writer:
            writer.append_many([b"x" * 1000] * entries)
            writer.flush()
        return writer.ledger_id


class Mover(Healer):
    """Auditor and worker that look for misplaced ledgers every second."""

    def __init__(self, directory: Path, cluster: LocalCluster, **settings: str) -> None:
        self.port = free_port()
        super().__init__(
            directory,
            cluster.metadata_service_uri,
            "mover",
            rackMappingZnode=RACKS,
            auditorPeriodicPlacementPolicyCheckInterval="1",
            repairedPlacementPolicyNotAdheringBookieEnabled="true",
            httpServerEnabled="true",
            httpServerPort=str(self.port),
            httpServerHost="127.0.0.1",
            **{"zkTimeout": "1000", **settings},
        )

    def shows(self, line: str) -> bool:
        return line in ask(self.port, "/metrics").splitlines()


def test_r11_a_ledger_on_one_rack_is_moved_when_another_rack_is_there(
    racks: tuple[LocalCluster, Watcher], tmp_path: Path
) -> None:
    cluster, watcher = racks
    ledger_id = write(cluster, 200)
    before = watcher.ledgers.read(ledger_id)
    members = before.metadata.last_segment.ensemble
    (other,) = {bookie.id for bookie in cluster.bookies} - set(members)
    with Mover(tmp_path, cluster) as mover:
        until(lambda: bool(watcher.election.votes()))
        until(lambda: mover.shows(f"{NOT_ADHERING} 1"))
        # There is nowhere to move a copy, so it is counted, and not marked.
        assert watcher.is_at_rest()
        assert watcher.ledgers.read(ledger_id) == before
        put_into_racks(watcher, {**dict.fromkeys(members, "/a"), other: "/b"})
        until(lambda: other in watcher.metadata(ledger_id).last_segment.ensemble)
        until(lambda: mover.shows(f"{NOT_ADHERING} 0") and mover.shows(f"{MOVED} 1"))
        until(watcher.is_at_rest)
        # One copy was moved, and no more.
        assert watcher.ledgers.read(ledger_id).version == before.version + 1
        assert mover.shows("replication_worker_NUM_ENTRIES_WRITTEN 200")
        for requests in ("READ_DATA_LATENCY", "WRITE_DATA_LATENCY"):
            assert not mover.shows(f'replication_worker_{requests}_count{{success="true"}} 0')
            assert mover.shows(f'replication_worker_{requests}_count{{success="false"}} 0')
    assert check_every_copy(cluster.metadata_service_uri, [ledger_id]) == 600
    watcher.ledgers.delete(ledger_id)


def test_r8_a_ledger_that_is_deleted_while_its_copies_are_moved_does_not_come_back(
    racks: tuple[LocalCluster, Watcher], tmp_path: Path
) -> None:
    cluster, watcher = racks
    ledger_id = write(cluster, 1000)
    members = watcher.metadata(ledger_id).last_segment.ensemble
    (other,) = {bookie.id for bookie in cluster.bookies} - set(members)
    put_into_racks(watcher, {**dict.fromkeys(members, "/a"), other: "/b"})
    # The copy takes about three seconds.
    slow = {"replicationRateByBytes": "300000", "rereplicationEntryBatchSize": "100"}
    with Mover(tmp_path, cluster, **slow) as mover:
        until(lambda: ledger_id in watcher.store.locks())
        until(lambda: not mover.shows("replication_worker_NUM_ENTRIES_WRITTEN 0"))
        watcher.ledgers.delete(ledger_id)
        until(watcher.is_at_rest)
        with pytest.raises(NoSuchLedgerError):
            watcher.ledgers.read(ledger_id)
        assert mover.shows(f"{MOVED} 0")
        assert mover.poll() is None
