"""deploy/: bookie and autorecovery as the manifests start them, on loopback, and what surrounds them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.placement.rack_names import parse_rack_mapping
from bk_spark.protocol.errors import MetadataFormatError
from bookie_server.local import LocalCluster
from tests.support.bookie import BookieProcess, free_port
from tests.support.deploy import DEPLOY, asked_samples, expressions, read_yaml
from tests.support.servers import WITH_GRPC

TIMEOUT_S = 60.0
ZONE = {"topology.kubernetes.io/zone": "zone-a"}
TOKEN = "the pod's token"


def container(kind: str, path: str, which: str = "containers") -> dict[str, Any]:
    (found,) = (document for document in read_yaml(f"kubernetes/{path}") if document["kind"] == kind)
    (only,) = found["spec"]["template"]["spec"][which]
    assert isinstance(only, dict)
    return only


class FromManifests(BookieProcess):
    """A bookie with the configuration of the ConfigMap; only addresses and directories are this test's."""

    def __init__(self, directory: Path, metadata_service_uri: str) -> None:
        super().__init__(directory, metadata_service_uri)
        own = {key: self.settings[key] for key in ("metadataServiceUri", "bookiePort")}
        own |= {"advertisedAddress": "127.0.0.1", "allowLoopback": "true", "listeningInterface": "lo"}
        text = (DEPLOY / "kubernetes" / "base" / "bk_server.conf").read_text("utf-8")
        given = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
        self.settings = {key: value.replace("/bookkeeper/", f"{directory}/") for key, value in given.items()} | own
        self.settings |= {"httpServerPort": str(free_port()), "httpServerHost": "127.0.0.1"}
        self.settings |= WITH_GRPC  # the dashboard has panels for it

    def probe(self, probe: dict[str, Any]) -> str:
        """Ask as the kubelet does."""
        return str(self.get(probe["httpGet"]["path"]))

    def get(self, path: str) -> str:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.settings['httpServerPort']}{path}", timeout=TIMEOUT_S
        ) as answer:
            assert answer.status == 200
            return str(answer.read().decode())


def shell(script: str, uri: str, conf: Path) -> subprocess.CompletedProcess[str]:
    """A script of a manifest, with our commands on the path and ``conf`` where the pod has its configuration."""
    script = script.replace("/etc/bookkeeper/bk_server.conf", str(conf))
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "BK_METADATA_SERVICE_URI": uri}
    return subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, timeout=2 * TIMEOUT_S)


def test_a_bookie_runs_by_the_manifests(tmp_path: Path, zk_only: LocalCluster, fresh_root: str) -> None:
    uri = f"zk+hierarchical://{zk_only.zookeepers[0].id}{fresh_root}"
    bookie = FromManifests(tmp_path, uri)
    conf = tmp_path / "bk_server.conf"

    init = container("Job", "init/job.yaml")
    (compose,) = read_yaml("docker/compose.yml")
    assert compose["services"]["init"]["command"] == [each.replace("$", "$$") for each in init["args"]]
    made = shell(init["args"][0], uri, conf)
    assert (made.returncode, f"new cluster at {uri}" in made.stdout) == (0, True), made

    manifest = container("StatefulSet", "base/bookie.yaml")
    assert manifest["args"] == ["start", "--conf", "/etc/bookkeeper/bk_server.conf"]  # as BookieProcess starts it
    try:
        bookie.start()
        # The cluster is there: the container that waits for it ends.
        wait = container("StatefulSet", "base/bookie.yaml", "initContainers")
        waited = shell(wait["args"][0], uri, conf)
        assert (waited.returncode, waited.stdout.split()) == (0, [made.stdout.split()[-1]]), waited

        for name in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert bookie.probe(manifest[name]).strip() == "OK"
        healthy = [sys.executable, str(DEPLOY / "docker" / "bookie-healthy"), "/api/v1/bookie/is_ready"]
        port = bookie.settings["httpServerPort"]
        for path, status in ((healthy[-1], 0), ("/api/v1/bookie/no_such_path", 1)):
            assert (
                subprocess.run([*healthy[:2], path, port], capture_output=True, timeout=TIMEOUT_S).returncode == status
            )
        printed = samples(bookie.get("/metrics"))
        assert bookie.stop() == 0
    finally:
        bookie.end()
    assert [line for line in bookie.lines if "level=INFO" not in line] == []

    # Autorecovery has a pod of its own, with the same file.
    alone = FromManifests(tmp_path, uri)
    manifest = container("Deployment", "base/autorecovery.yaml")
    alone.command = manifest["args"][0]
    try:
        alone.launch()
        assert alone.wait_line("begins")
        assert alone.probe(manifest["livenessProbe"]).strip() == "OK"
        deadline = time.monotonic() + TIMEOUT_S
        while ("auditor_elected", "") not in (more := samples(alone.get("/metrics"))):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        printed |= more
        assert alone.stop() == 0
    finally:
        alone.end()
    assert [line for line in alone.lines if "level=INFO" not in line] == []

    asked = [sample for expression in expressions() for sample in asked_samples(expression)]
    assert len({name for name, _ in asked}) > 30
    assert sum(bool(labels) for _, labels in asked) > 5
    assert [each for each in asked if not any(selects(*each, *sample) for sample in printed)] == []


def samples(text: str) -> set[tuple[str, str]]:
    """The names of a page's samples, and their labels. Inside a bookie those of auditor and worker have one more
    prefix."""
    found = set()
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, labels = line.rpartition(" ")[0].partition("{")
            found.add((name, labels.rstrip("}")))
    return found


def selects(pattern: str, wanted: dict[str, str], name: str, labels: str) -> bool:
    has = dict(re.findall(r'(\w+)="([^"]*)"', labels))
    return re.fullmatch(pattern, name) is not None and all(
        re.fullmatch(value, has.get(label, "")) for label, value in wanted.items()
    )


# --- racks -----------------------------------------------------------------------------------------


@pytest.fixture
def racks() -> Any:
    """The script of the component for racks."""
    specification = importlib.util.spec_from_file_location("racks", DEPLOY / "kubernetes" / "racks" / "racks.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


class Nodes(HTTPServer):
    """The part of the Kubernetes API that knows a node."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Node)
        self.labels: dict[str, str] = {}


class _Node(BaseHTTPRequestHandler):
    server: Nodes

    def do_GET(self) -> None:
        known = self.path == "/api/v1/nodes/node-1" and self.headers["Authorization"] == f"Bearer {TOKEN}"
        self.send_response(200 if known else 403)
        self.end_headers()
        self.wfile.write(json.dumps({"metadata": {"name": "node-1", "labels": self.server.labels}}).encode())

    def log_message(self, format: str, *values: Any) -> None:
        """Nobody reads it."""


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with Nodes() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_rack_of_a_bookie_is_the_zone_of_its_node(
    racks: Any, nodes: Nodes, tmp_path: Path, zk_only: LocalCluster, zookeeper: ZooKeeper, fresh_root: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("NODE_NAME", "node-1")
    (tmp_path / "token").write_text(TOKEN + "\n")
    bookie = FromManifests(tmp_path, f"zk+hierarchical://{zk_only.zookeepers[0].id}{fresh_root}")
    assert bookie.settings["rackMappingZnode"] == "/bookies"
    path = f"{fresh_root}-bookies"
    bookie.settings["rackMappingZnode"] = path
    conf = tmp_path / "bk_server.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in bookie.settings.items()))

    def run() -> int:
        api = f"http://127.0.0.1:{nodes.server_port}"
        return int(racks.main(["--conf", str(conf)], api=api, account=tmp_path))

    def known() -> dict[str, str]:
        found = zookeeper.get_latest(path)
        assert found is not None
        return parse_rack_mapping(found.data)

    nodes.labels = ZONE
    assert run() == 0
    assert known() == {bookie.id: "/zone-a"}
    # Others' entries stay, in whatever group; a node without the label leaves the bookie without a rack.
    racks.set_rack(zookeeper, path, "other:3181", "other", "zone-b")
    assert known() == {bookie.id: "/zone-a", "other:3181": "/zone-b"}
    nodes.labels = {}
    assert run() == 0
    assert known() == {"other:3181": "/zone-b"}
    assert "rack unknown" in capsys.readouterr().out
    # Nothing is written without an answer of the API, or over what is not a table of racks.
    (tmp_path / "token").write_text("another token")
    assert run() == 1
    stored = zookeeper.get_latest(path)
    assert stored is not None
    zookeeper.set(path, b"[1]", stored.version)
    with pytest.raises(MetadataFormatError):
        racks.set_rack(zookeeper, path, bookie.id, "127.0.0.1", "zone-a")
    zookeeper.delete(path)
