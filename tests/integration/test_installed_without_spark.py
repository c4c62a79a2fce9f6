"""A bookie's host, and a program with the ledger client alone: ``pip install bk-spark`` without extras is enough."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bookie_server.local import LocalCluster
from bookie_server.local.state import PortChooser
from tests.support.environments import environment_variables, make_environment

CLIENT = """
import sys
import bk_spark

with bk_spark.connect(sys.argv[1]) as bk:
    one = bk_spark.Quorum(1, 1, 1)
    writer = bk.create_ledger(quorum=one)
    writer.append_many([b"one", b"two"])
    writer.close()
    print(bk.open_ledger_for_reading(writer.ledger_id).read(0, 1))
    log = bk.create_log("from-python", quorum=one)
    with log.open_writer() as writer:
        writer.append_many([b"three", b"four"])
    print([bytes(payload) for block in log.open_reader().read(0, 2) for payload in block.payloads])
    bk.delete_log("from-python")
assert "pyspark" not in sys.modules
"""

#: Commands of bkctl, one after another, in one process.
COMMANDS = """
import json, sys
from bk_spark.bkctl import main

for command in json.loads(sys.argv[1]):
    assert main(command) == 0
assert "pyspark" not in sys.modules
"""


class Installed:
    """An environment of its own, used by path."""

    def __init__(self, directory: Path, wheel: Path) -> None:
        make_environment(directory, wheel)
        self.bin = directory / "bin"

    def command(self, program: str, *arguments: str) -> list[str]:
        return [str(self.bin / program), *arguments]

    def run(self, program: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = self.command(program, *arguments)
        return subprocess.run(
            command, input=stdin, env=environment_variables(), capture_output=True, text=True, timeout=120
        )

    def ok(self, program: str, *arguments: str, stdin: str = "") -> str:
        done = self.run(program, *arguments, stdin=stdin)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed") / "environment", wheel)


def test_a_bookie_the_client_and_bkctl_need_no_pyspark(
    installed: Installed, zk_only: LocalCluster, zookeeper: ZooKeeper, fresh_root: str, tmp_path: Path
) -> None:
    assert "No module named 'pyspark'" in installed.run("python", "-c", "import pyspark").stderr
    assert "start" in installed.ok("bookie-server", "--help")

    servers = MetadataServiceUri.parse(zk_only.metadata_service_uri).servers
    uri = f"zk+hierarchical://{servers}{fresh_root}"
    installed.ok("bookie-server", "init", "--metadata-service-uri", uri)
    port = PortChooser(set()).choose()
    configuration = {
        "metadataServiceUri": uri,
        "bookiePort": port,
        "advertisedAddress": "127.0.0.1",
        "allowLoopback": "true",
        "journalDirectories": tmp_path / "journal",
        "ledgerDirectories": tmp_path / "ledgers",
        "journalPreAllocSizeMB": 1,
    }
    conf = tmp_path / "bookie.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in configuration.items()))
    with (tmp_path / "bookie.log").open("wb") as log:
        bookie = subprocess.Popen(
            installed.command("bookie-server", "start", "--conf", str(conf)),
            env=environment_variables(),
            stdout=log,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + 60
        while f"127.0.0.1:{port}" not in (zookeeper.children(f"{fresh_root}/available") or ()):
            assert bookie.poll() is None, (tmp_path / "bookie.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert installed.ok("python", "-c", CLIENT, uri).splitlines() == ["[b'one', b'two']", "[b'three', b'four']"]

        cluster = ("--metadata-service-uri", uri, "--log-root", f"{fresh_root}-logs")
        sizes = ("--ensemble-size", "1", "--write-quorum-size", "1", "--ack-quorum-size", "1")
        commands = (
            ("bookies", *cluster),
            ("ledger", "show", "0", *cluster),
            ("log", "create", "events", *sizes, *cluster),
            ("log", "append", "events", *cluster),
        )
        printed = installed.ok("python", "-c", COMMANDS, json.dumps(commands), stdin="a\nb\n")
        for text in ("writable", "state", "made log events", "appended 2 entries"):
            assert text in printed
        assert installed.ok("bkctl", "log", "read", "events", *cluster) == "a\nb\n"
    finally:
        bookie.send_signal(signal.SIGTERM)
        status = bookie.wait(60)
    assert status == 0, (tmp_path / "bookie.log").read_text()


def test_a_local_cluster_without_pyspark_says_what_to_install(installed: Installed, tmp_path: Path) -> None:
    done = installed.run("bookie-server", "local", "--dir", str(tmp_path / "cluster"))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "PySpark, which is not installed: pip install 'bk-spark[spark]'" in line
