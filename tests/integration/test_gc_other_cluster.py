"""A bookie process whose ZooKeeper is not its own any more: nothing is collected, and everybody is told why."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.metadata.cluster_init import init_cluster
from bk_spark.bookie.metadata.ledger_ids import skip_ledger_ids
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.errors import NoNodeError
from bk_spark.protocol.metadata.ledger_paths import LedgerManager
from bk_spark.protocol.quorum import Quorum
from tests.integration.test_admin_api import Admin
from tests.support.admin import token_file
from tests.support.bookie import BookieProcess, free_port
from tests.support.nursery import QuickCluster
from tests.support.servers import start_timeout_ms
from tests.support.tcp_proxy import TcpProxy

LEDGERS = 28
PASSWORD = b"open sesame"
PATIENCE_S = 60.0
WITHOUT_BRAKE = {"gcBrakeShare": "1", "gcBrakeIdsNotGiven": "false"}


class Stage:
    """A bookie whose collector only runs when asked, and the cluster's znodes."""

    def __init__(
        self, directory: Path, zookeeper: ZooKeeper, root: str, servers: str | None = None, **settings: str
    ) -> None:
        """The bookie reaches ZooKeeper at ``servers``."""
        self.zookeeper = zookeeper
        self.root = root
        self.uri = f"zk+hierarchical://{zookeeper.servers}{root}"
        self.ledgers: list[int] = []
        http_port = free_port()
        settings = {
            "gcWaitTime": "3600000",
            # Not a hundred, which take their time to be written.
            "gcBrakeLedgers": "20",
            "flushInterval": "50",
            "httpServerEnabled": "true",
            "httpServerHost": "127.0.0.1",
            "httpServerPort": str(http_port),
            "httpServerTokenFile": token_file(directory),
            "diskUsageThreshold": "0.999",
            "diskUsageWarnThreshold": "0.999",
            **settings,
        }
        self.bookie = BookieProcess(
            directory / "bookie", f"zk+hierarchical://{servers or zookeeper.servers}{root}", **settings
        )
        self.admin = Admin(http_port)

    def write(self, count: int = LEDGERS) -> list[int]:
        with BlockingClient(self.uri) as client:
            writers = [client.create(quorum=Quorum(1, 1, 1), password=PASSWORD) for _ in range(count)]
            for writer in writers:
                writer.append(b"kept")
            for writer in writers:
                writer.close()
        self.until(lambda: self.held() == count, "a flush")
        self.ledgers = sorted(writer.ledger_id for writer in writers)
        return self.ledgers

    def held(self) -> int:
        """Ledgers in the bookie's directory."""
        return len(list((self.bookie.directory / "ledgers" / "current").rglob("*.idx")))

    def collect(self) -> None:
        assert self.admin.put("gc", {"forceMajor": False, "forceMinor": False})[0] == 200
        self.until(lambda: self.admin.get("gc") == {"is_in_force_gc": "false"}, "the end of a collection")

    def remove_root(self) -> None:
        self._remove(self.root)

    def _remove(self, path: str) -> None:
        for name in self.zookeeper.children(path) or ():
            self._remove(f"{path}/{name}")
        with contextlib.suppress(NoNodeError):  # the bookie's session ended
            self.zookeeper.delete(path)

    def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, f"not in time: {what}"
            time.sleep(0.05)


@pytest.fixture
def stage(tmp_path: Path, zookeeper: ZooKeeper, ledgers_root: str) -> Iterator[Stage]:
    # Without the brake: what the bookie believes is to decide alone.
    stage = Stage(tmp_path, zookeeper, ledgers_root, **WITHOUT_BRAKE)
    yield stage
    stage.bookie.end()


def assert_told(stage: Stage, *texts: str) -> None:
    """In the log, the metrics and the admin API."""
    problem = stage.admin.get("gc/brake")["problem"]
    for text in texts:
        assert text in problem
        assert any("level=ERROR" in line and text in line for line in stage.bookie.lines)


def test_g1_a_root_made_anew_before_the_first_collection_is_not_believed(stage: Stage) -> None:
    stage.bookie.start()
    stage.write()
    stage.remove_root()
    init_cluster(stage.zookeeper, stage.root)
    stage.collect()
    assert stage.held() == LEDGERS
    assert_told(stage, f"not the cluster of bookie {stage.bookie.id}", "INSTANCEID")
    assert stage.admin.metrics()["bookie_gc_foreign_cluster"] == 1
    assert stage.bookie.stop() == 0
    # A restart is refused, and nobody is advised to throw the data away.
    stage.bookie.launch()
    assert stage.bookie.wait() == 5
    (refused,) = [line for line in stage.bookie.lines if "level=CRITICAL" in line]
    assert "instanceId" in refused
    assert "restore ZooKeeper from a backup" in refused
    assert stage.held() == LEDGERS


def test_g1_a_bookie_does_not_register_in_a_cluster_that_is_not_its_own(stage: Stage) -> None:
    """Its clients would find a bookie whose ledger ids name other ledgers."""
    stage.bookie.start()
    stage.write(1)
    stage.remove_root()
    init_cluster(stage.zookeeper, stage.root)
    # It moves its znode, in the cluster that is there now.
    assert stage.admin.put("state/readonly", {"readOnly": True})[0] == 200
    assert stage.bookie.wait_line("does not register until")
    assert stage.zookeeper.children(f"{stage.root}/available") == ["readonly"]
    assert stage.zookeeper.children(f"{stage.root}/available/readonly") == []


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ZooKeeper]:
    """A session with an ensemble of its own."""
    with QuickCluster(tmp_path / "own", bookies=0, start_timeout_ms=start_timeout_ms()) as running:
        session = ZooKeeper(running.zookeepers[0].id)
        session.start()
        yield session
        session.close()


def test_g1_a_host_name_that_leads_to_another_ensemble_is_not_believed(
    tmp_path: Path, own: ZooKeeper, zookeeper: ZooKeeper, ledgers_root: str
) -> None:
    """The connection is lost, and the next one goes to servers that have a cluster at the same path."""
    init_cluster(own, ledgers_root)
    with TcpProxy(_address(own)) as proxy:
        servers = f"127.0.0.1:{proxy.address[1]}"
        stage = Stage(tmp_path, own, ledgers_root, servers=servers, **WITHOUT_BRAKE)
        try:
            stage.bookie.start()
            stage.write()
            # ZooKeeper itself refuses clients that have seen more transactions than the server.
            wanted = own.get(own.create(f"{ledgers_root}/last"))
            assert wanted is not None
            while (found := zookeeper.get(zookeeper.create(f"{ledgers_root}/count", sequence=True))) is not None:
                if found.created_zxid > wanted.created_zxid + LEDGERS:
                    break
            proxy.lead_to(_address(zookeeper))
            assert stage.bookie.wait_line("does not register until")
            stage.collect()
            assert stage.held() == LEDGERS
            assert_told(stage, "INSTANCEID")
            assert stage.admin.metrics()["bookie_SERVER_STATUS"] == -1
            assert zookeeper.children(f"{ledgers_root}/available") == ["readonly"]
        finally:
            stage.bookie.end()


def _address(session: ZooKeeper) -> tuple[str, int]:
    host, _, port = session.servers.rpartition(":")
    return host, int(port)


def test_g4_a_single_ledger_waits_if_zookeeper_has_not_given_its_id_yet(
    tmp_path: Path, zookeeper: ZooKeeper, ledgers_root: str
) -> None:
    """ZooKeeper is set back to an older state of its cluster. What was made since is far below the brake's share."""
    stage = Stage(tmp_path, zookeeper, ledgers_root)
    counter = f"{ledgers_root}/idgen"
    try:
        stage.bookie.start()
        ledgers = stage.write(8)
        with BlockingClient(stage.uri) as client:
            client.delete(ledgers[0])
            client.delete(ledgers[7])
            # As it was when seven ids were given.
            zookeeper.delete(counter)
            list(skip_ledger_ids(zookeeper, ledgers_root, LedgerManager.HIERARCHICAL, 6))
        stage.collect()
        assert stage.held() == 8
        assert_told(stage, "2 of 8 ledgers are deleted", "ZooKeeper has not given the ids of 1 of them")
        (stopped,) = stage.admin.get("gc/brake")["stopped"]
        assert (stopped["ledgers"], stopped["notGiven"], stopped["first"]) == (2, 1, [ledgers[7], ledgers[0]])
        assert any(f"The ledgers: {ledgers[7]}, {ledgers[0]}" in line for line in stage.bookie.lines)
        assert stage.admin.put("gc/brake", {"word": stopped["word"]})[0] == 200
        stage.until(lambda: stage.held() == 6, "the collection that was released")
    finally:
        stage.bookie.end()


def test_g3_a_collection_of_most_ledgers_waits_for_an_operators_word(
    tmp_path: Path, zookeeper: ZooKeeper, ledgers_root: str
) -> None:
    """The cluster is the bookie's, and its ledgers' znodes are gone: an old backup of ZooKeeper, say."""
    stage = Stage(tmp_path, zookeeper, ledgers_root)
    try:
        stage.bookie.start()
        ledgers = stage.write()
        with BlockingClient(stage.uri) as client:
            for ledger_id in ledgers[1:]:
                client.delete(ledger_id)
        stage.collect()
        assert stage.held() == LEDGERS
        assert_told(stage, "27 of 28 ledgers are deleted", "too many at once")
        assert stage.admin.metrics()["bookie_gc_stopped_ledgers"] == 27
        (stopped,) = stage.admin.get("gc/brake")["stopped"]
        assert (stopped["kind"], stopped["ledgers"], stopped["held"]) == ("deleted", 27, 28)
        assert stopped["first"] == ledgers[1:11]
        # A restart is no word, and another word is none either.
        assert stage.bookie.stop() == 0
        stage.bookie.start()
        assert stage.admin.put("gc/brake", {"word": stopped["word"]})[0] == 409
        stage.collect()
        assert stage.admin.put("gc/brake", {"word": "another"})[0] == 409
        assert stage.held() == LEDGERS
        status, answer = stage.admin.put("gc/brake", {"word": stopped["word"]})
        assert (status, answer["released"]) == (200, True)
        stage.until(lambda: stage.held() == 1, "the collection that was released")
        stage.until(lambda: stage.admin.get("gc") == {"is_in_force_gc": "false"}, "its end")
        assert stage.admin.get("gc/brake") == {"problem": "", "stopped": []}
        assert stage.admin.metrics()["bookie_gc_stopped_ledgers"] == 0
    finally:
        stage.bookie.end()
