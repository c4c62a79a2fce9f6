"""docs/security.md: its commands make certificates, and its files configure a bookie and a client that work."""

from __future__ import annotations

import re
import subprocess
from contextlib import closing
from pathlib import Path

from bk_spark import BlockingClient, ClientConfig, Quorum
from bk_spark.bkctl import main
from bookie_server.local import LocalCluster
from tests.support.bookie import BookieProcess

_PAGE = Path(__file__).parents[2] / "docs" / "security.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TESTS = Path(__file__).parents[1]


def test_the_page_as_printed(zk_only: LocalCluster, ledgers_root: str, tmp_path: Path) -> None:
    text = _PAGE.read_text("utf-8").replace("/etc/bookkeeper", str(tmp_path)).replace("10.0.0.11", "127.0.0.1")
    blocks = _BLOCK.findall(text)
    assert [kind for kind, _ in blocks] == ["sh", "sh", "sh", *["properties"] * 2, "sh", "properties", "sh"]
    commands = "\n".join(block for kind, block in blocks[:3])
    subprocess.run(["bash", "-euc", commands], check=True, capture_output=True, timeout=60)
    assert (tmp_path / "tls" / "spark.key").stat().st_mode & 0o077 == 0
    bookie_conf, client_conf, _ = (block for kind, block in blocks if kind == "properties")
    (tmp_path / "client.conf").write_text(client_conf)
    keys = dict(line.split("=", 1) for line in bookie_conf.splitlines() if not line.startswith("#"))
    uri = f"zk+hierarchical://{zk_only.zookeepers[0].id}{ledgers_root}"
    bookie = BookieProcess(tmp_path / "bookie", uri, **keys).start()
    try:
        config = ClientConfig.from_file(tmp_path / "client.conf")
        with BlockingClient(uri, config) as client:
            with closing(client.create(quorum=Quorum(1, 1, 1))) as writer:
                writer.append_many([b"a secret"])
            assert client.open_for_reading(writer.ledger_id).read(0, 0) == [b"a secret"]
        there = ["--metadata-service-uri", uri, "--client-conf", str(tmp_path / "client.conf")]
        assert main([*there, "bookiesanity", bookie.id]) == 0
        assert main([*there[:2], "bookiesanity", "--timeout", "5", bookie.id]) == 1
    finally:
        bookie.end()


def test_the_section_about_zookeeper_as_printed(zk_only: LocalCluster, fresh_root: str, tmp_path: Path) -> None:
    """Without encryption: its settings are only read. tests/integration/test_zookeeper_security.py encrypts."""
    text = _PAGE.read_text("utf-8").replace("/etc/bookkeeper", str(tmp_path))
    _, _, section = text.partition("## ZooKeeper\n")
    (_, command), (_, properties), *_ = _BLOCK.findall(section)
    subprocess.run(["bash", "-euc", command], check=True, capture_output=True, timeout=60)
    (tmp_path / "client.conf").write_text(properties)
    assert ClientConfig.from_file(tmp_path / "client.conf").zk_secure
    plain = [line for line in properties.splitlines() if not line.startswith(("zookeeper.", "#"))]
    (tmp_path / "plain.conf").write_text("\n".join(plain))
    uri = f"zk+hierarchical://{zk_only.zookeepers[0].id}{fresh_root}"
    assert main(["--metadata-service-uri", uri, "--client-conf", str(tmp_path / "plain.conf"), "initnewcluster"]) == 0
    bookie = BookieProcess(tmp_path / "bookie", uri, **dict(line.split("=", 1) for line in plain)).start()
    try:
        there = ["--metadata-service-uri", uri, "--client-conf", str(tmp_path / "plain.conf")]
        assert main([*there, "bookiesanity", bookie.id]) == 0
        assert main([*there[:2], "bookiesanity", bookie.id]) != 0
    finally:
        bookie.end()


def test_every_test_that_the_threat_model_names_exists() -> None:
    rows = [line for line in _PAGE.read_text("utf-8").splitlines() if line.startswith("|") and "test_" in line]
    assert len(rows) >= 8
    for row in rows:
        file = ""
        for name in re.findall(r"`(test_\w+(?:\.py)?)`", row):
            if name.endswith(".py"):
                (found,) = _TESTS.rglob(name)
                file = found.read_text("utf-8")
            else:
                assert f"def {name}(" in file, name
