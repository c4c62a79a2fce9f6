"""The local cluster: real servers, their state, and how they end."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.errors import BookieUnavailableError, InvalidArgumentError
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bookie_server.local import LocalCluster
from tests.support.nursery import OrderlyCluster
from tests.support.processes import listening_addresses, wait_until_ended
from tests.support.servers import BOOKIE_SETTINGS, start_timeout_ms


def _cluster(directory: Path, bookies: int | None = 0, zookeepers: int | None = None, **more: int) -> LocalCluster:
    return OrderlyCluster(
        directory,
        bookies,
        zookeepers,
        bookie_settings=BOOKIE_SETTINGS,
        start_timeout_ms=start_timeout_ms(),
        **more,  # type: ignore[arg-type]
    )


def _session(cluster: LocalCluster) -> ZooKeeper:
    zk = ZooKeeper(MetadataServiceUri.parse(cluster.metadata_service_uri).servers)
    zk.start()
    return zk


def _registered(cluster: LocalCluster) -> dict[str, int]:
    """Writable bookies, and the ZooKeeper session that registered each."""
    zk = _session(cluster)
    try:
        found = {}
        for name in zk.children("/ledgers/available") or []:
            node = zk.exists(f"/ledgers/available/{name}")
            if name != "readonly" and node is not None:
                found[name] = node.owner_session
        return found
    finally:
        zk.close()


def test_three_bookies_are_registered_under_the_uri(cluster: LocalCluster, metadata_service_uri: str) -> None:
    uri = MetadataServiceUri.parse(metadata_service_uri)
    assert (uri.root, uri.layout) == ("/ledgers", "hierarchical")
    assert uri.servers == cluster.zookeepers[0].id
    assert sorted(_registered(cluster)) == sorted(bookie.id for bookie in cluster.bookies)
    assert len({bookie.pid for bookie in cluster.bookies}) == 3


def test_servers_listen_on_loopback_only(cluster: LocalCluster) -> None:
    for server in (*cluster.zookeepers, *cluster.bookies):
        assert server.pid is not None
        addresses = listening_addresses(server.pid)
        assert ("127.0.0.1", server.port) in addresses
        assert {address for address, _ in addresses} == {"127.0.0.1"}


def test_dead_bookie_is_started_again_under_its_id(mended_cluster: LocalCluster) -> None:
    bookie = mended_cluster.bookies[0]
    before = _registered(mended_cluster)[bookie.id]
    bookie.kill()
    assert not bookie.running
    assert bookie.exit_code == -signal.SIGKILL

    bookie.start()
    # The registration of the killed process may still be there: it must not be taken for the new one.
    bookie.wait_registered(timeout_ms=60_000)

    assert bookie.running
    assert _registered(mended_cluster)[bookie.id] != before


def test_bookie_stops_in_order_at_sigterm_and_leaves_the_registry(mended_cluster: LocalCluster) -> None:
    bookie = mended_cluster.bookies[1]
    assert bookie.terminate()
    assert bookie.exit_code == 0
    assert bookie.id not in _registered(mended_cluster)


def test_mending_resumes_and_starts(mended_cluster: LocalCluster) -> None:
    suspended, dead, _ = mended_cluster.bookies
    pid = suspended.pid
    suspended.suspend()
    assert suspended.running
    dead.kill()
    mended_cluster.heal()
    assert suspended.pid == pid
    assert all(bookie.running for bookie in mended_cluster.bookies)


def test_state_survives_a_restart(tmp_path: Path) -> None:
    with _cluster(tmp_path, bookies=1) as first:
        uri, ids = first.metadata_service_uri, [bookie.id for bookie in first.bookies]
        zk = _session(first)
        zk.create("/kept", b"content")
        instance_id = zk.get("/ledgers/INSTANCEID")
        zk.close()
        conf = first.bookies[0].conf_path
        conf.write_text(conf.read_text() + "# a user's remark\n")
    assert [server.running for server in (*first.zookeepers, *first.bookies)] == [False, False]
    assert first.bookies[0].exit_code == 0

    with _cluster(tmp_path, bookies=None) as second:
        assert second.metadata_service_uri == uri
        assert [bookie.id for bookie in second.bookies] == ids
        zk = _session(second)
        kept = zk.get("/kept")
        assert kept is not None
        assert kept.data == b"content"
        assert zk.get("/ledgers/INSTANCEID") == instance_id
        zk.close()
    assert conf.read_text().endswith("# a user's remark\n")


def test_three_zookeepers_outlive_one(tmp_path: Path) -> None:
    with _cluster(tmp_path, zookeepers=3) as cluster:
        assert cluster.metadata_service_uri.count("127.0.0.1:") == 3
        zk = _session(cluster)
        zk.create("/before", b"1")
        leader = next(server for server in cluster.zookeepers if server.mode() == "leader")
        leader.kill()
        zk.close()
        cluster.wait_ready()
        zk = _session(cluster)
        zk.create("/after", b"2")
        cluster.heal()
        zk.close()
        survivor = ZooKeeper(leader.id)
        survivor.start()
        survivor.sync("/")
        assert {"before", "after"} <= set(survivor.children("/") or [])
        survivor.close()

    with pytest.raises(InvalidArgumentError, match="has 3 ZooKeeper servers, not 1"):
        _cluster(tmp_path, zookeepers=1).start()


@pytest.mark.parametrize("option", ["zookeeper_port", "bookie_port"])
def test_busy_port_is_named_and_nothing_is_left(tmp_path: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        cluster = _cluster(tmp_path, bookies=1, **{option: port})
        with pytest.raises(InvalidArgumentError, match=f"port {port} on 127.0.0.1.* is in use by another process"):
            cluster.start()
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.lock"]


@pytest.fixture(scope="module")
def stopped_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a cluster without bookies that ran once."""
    directory = tmp_path_factory.mktemp("stopped")
    with _cluster(directory):
        pass
    return directory


@pytest.fixture
def stopped_cluster(stopped_zookeeper: Path, tmp_path: Path) -> tuple[Path, int]:
    """A copy of it, and the port of its ZooKeeper."""
    shutil.copytree(stopped_zookeeper, tmp_path, dirs_exist_ok=True)
    (port,) = {server["client_port"] for server in json.loads((tmp_path / "cluster.json").read_text())["zookeepers"]}
    return tmp_path, port


def test_port_that_became_busy_is_named(stopped_cluster: tuple[Path, int]) -> None:
    directory, port = stopped_cluster
    cluster = _cluster(directory)
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(InvalidArgumentError, match=f"port {port} on 127.0.0.1, which zookeeper1 needs, is in use"),
    ):
        cluster.start()
    cluster.start()
    cluster.stop()


def test_directory_of_a_running_cluster_is_refused(zk_only: LocalCluster) -> None:
    other = _cluster(zk_only.directory)
    with pytest.raises(InvalidArgumentError, match="in use by a running cluster"):
        other.start()
    with pytest.raises(InvalidArgumentError, match="already started"):
        zk_only.start()
    assert zk_only.zookeepers[0].running


def test_existing_cluster_keeps_its_shape(stopped_cluster: tuple[Path, int]) -> None:
    tmp_path, port = stopped_cluster
    with pytest.raises(InvalidArgumentError, match="has 1 ZooKeeper servers, not 3"):
        _cluster(tmp_path, zookeepers=3).start()
    with pytest.raises(InvalidArgumentError, match=f"has {port} as its first ZooKeeper port, not {port + 1}"):
        _cluster(tmp_path, zookeeper_port=port + 1).start()
    state = json.loads((tmp_path / "cluster.json").read_text())
    state["bookies"] = [{"port": 31_999}, {"port": 31_998}]
    (tmp_path / "cluster.json").write_text(json.dumps(state))
    with pytest.raises(
        InvalidArgumentError, match="has 2 bookies, which may all hold data; it cannot be started with 1"
    ):
        _cluster(tmp_path, bookies=1).start()
    with pytest.raises(InvalidArgumentError, match="has 31999 as its first bookie port, not 31997"):
        _cluster(tmp_path, bookies=2, bookie_port=31_997).start()


def test_bookie_that_cannot_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a directory")
    cluster = LocalCluster(
        tmp_path / "cluster", bookies=1, bookie_settings={"journalDirectories": str(in_the_way / "journal")}
    )
    with pytest.raises(BookieUnavailableError, match=r"(?s)did not start: bookie1 ended with status \d.*journal"):
        cluster.start()
    assert not any(server.running for server in (*cluster.zookeepers, *cluster.bookies))


def test_children_end_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    # Started by a thread that has ended: that must not matter, and the death of the process must.
    script = textwrap.dedent("""
        import sys, threading
        from bookie_server.local import LocalCluster
        cluster = LocalCluster(sys.argv[1], bookies=1, bookie_settings={"zkTimeout": "2000"})
        starter = threading.Thread(target=cluster.start)
        starter.start()
        starter.join()
        assert cluster.zookeepers[0].running and cluster.bookies[0].running
        print(cluster.zookeepers[0].pid, cluster.bookies[0].pid, flush=True)
        sys.stdin.read()
    """)
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(pids) == 2
    assert all(wait_until_ended(pid, 60_000) for pid in pids)
    # The directory is free again, and whole.
    with _cluster(tmp_path, bookies=1) as cluster:
        assert cluster.bookies[0].running
