"""What a local cluster keeps in its directory."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection.client_tls import ClientTls
from bk_spark.bookie.tls.contexts import TlsContexts
from bk_spark.protocol.errors import CorruptFileError, InvalidArgumentError
from bookie_server.local import LocalCluster, certificates
from bookie_server.local.state import (
    BookiePorts,
    DirectoryLock,
    LocalClusterState,
    PortChooser,
    ZooKeeperPorts,
    load_state,
    save_state,
)

STATE = LocalClusterState("/ledgers", "flat", (ZooKeeperPorts(1, 2, 3),), (BookiePorts(4), BookiePorts(5)))


def test_state_is_read_back_as_written(tmp_path: Path) -> None:
    assert load_state(tmp_path) is None
    save_state(tmp_path, STATE)
    assert load_state(tmp_path) == STATE
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.json"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 2}, "format version 2; this release knows 1 only"),
        ({"format_version": None}, "format version None"),
        ({"bookies": [{"prot": 1}]}, "lacks or misnames a field"),
        ({"zookeepers": [{"client_port": 1}]}, "lacks or misnames a field"),
        ({"zookeepers": []}, "no ZooKeeper"),
        ({"bookies": [{"port": "3181"}]}, "port '3181'"),
    ],
)
def test_state_of_another_form_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    save_state(tmp_path, STATE)
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CorruptFileError, match=message):
        load_state(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_state_that_is_no_object_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "cluster.json").write_text(content)
    with pytest.raises(CorruptFileError, match="cluster.json"):
        load_state(tmp_path)


def test_lock_is_exclusive_until_released(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    with pytest.raises(InvalidArgumentError, match=r"in use by a running cluster \(pid \d+\); stop that one"):
        DirectoryLock(tmp_path)
    lock.release()
    DirectoryLock(tmp_path).release()


def test_ports_are_never_given_twice() -> None:
    chooser = PortChooser(set())
    ports = {chooser.choose() for _ in range(50)}
    assert len(ports) == 50
    with pytest.raises(InvalidArgumentError, match="used twice"):
        chooser.choose(ports.pop())


def test_wanted_port_that_is_busy_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(InvalidArgumentError, match=f"port {port} on 127.0.0.1.* is in use by another process"):
            PortChooser(set()).choose(port)


@pytest.mark.parametrize("port", [-1, 65536])
def test_wanted_port_out_of_range_is_refused(port: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"port {port} is out of range"):
        PortChooser(set()).choose(port)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bookies": -1}, "bookies must be from 0 to 64, not -1"),
        ({"bookies": 65}, "bookies must be from 0 to 64, not 65"),
        ({"zookeepers": 2}, "zookeepers must be 1 or 3, not 2"),
        ({"root": "ledgers"}, "must start with /"),
        ({"root": "/ledgers/"}, "must start with / and not end with it"),
        ({"layout": "ms"}, "layout 'ms' is unknown"),
    ],
)
def test_impossible_cluster_is_refused(tmp_path: Path, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        LocalCluster(tmp_path / "new", **arguments)  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()


def test_certificates_are_made_once_and_for_a_new_cluster_only(tmp_path: Path) -> None:
    assert certificates.client_conf_of(tmp_path) is None
    certificates.prepare(tmp_path)
    conf = certificates.client_conf_of(tmp_path)
    assert conf is not None
    ClientTls(ClientConfig.from_file(conf))
    keys = certificates.bookie_keys(tmp_path)
    assert keys.pop("tlsRequired") == "true"
    TlsContexts(ClientConfig.from_properties(keys), server_side=True)
    made = {path.name: path.read_bytes() for path in conf.parent.iterdir()}
    save_state(tmp_path, STATE)
    certificates.prepare(tmp_path)
    assert {path.name: path.read_bytes() for path in conf.parent.iterdir()} == made
    other = tmp_path / "other"
    other.mkdir()
    save_state(other, STATE)
    with pytest.raises(InvalidArgumentError, match="--tls: the cluster in .* was made without it"):
        certificates.prepare(other)
