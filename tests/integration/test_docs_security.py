"""docs/security.md: its commands make certificates, and its files configure a bookie and a client that work."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import urllib.request
from contextlib import closing
from pathlib import Path

from bk_spark import BlockingClient, ClientConfig, Quorum
from bk_spark.bkctl import main
from bookie_server.config.load import load_config
from bookie_server.local import LocalCluster
from tests.support.admin import BEARER, token_file
from tests.support.bookie import BookieProcess, free_port

_PAGE = Path(__file__).parents[2] / "docs" / "security.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TESTS = Path(__file__).parents[1]
_LEAST = (
    "metadataServiceUri=zk+hierarchical://localhost:2181/ledgers\nallowLoopback=true\nadvertisedAddress=127.0.0.1\n"
)


def test_the_page_as_printed(zk_only: LocalCluster, ledgers_root: str, tmp_path: Path) -> None:
    text = _PAGE.read_text("utf-8").replace("/etc/bookkeeper", str(tmp_path)).replace("10.0.0.11", "127.0.0.1")
    blocks = _BLOCK.findall(text)
    rest = ["properties", "sh", "properties", "properties", "properties", "text", "sh", *["properties"] * 2, "sh"]
    assert [kind for kind, _ in blocks] == ["sh", "sh", "sh", "properties", "properties", *rest]
    commands = "\n".join(block for kind, block in blocks[:3])
    subprocess.run(["bash", "-euc", commands], check=True, capture_output=True, timeout=60)
    assert (tmp_path / "tls" / "spark.key").stat().st_mode & 0o077 == 0
    # With users and passwords; roles are read only.
    subprocess.run(["bash", "-euc", blocks[6][1]], check=True, capture_output=True, timeout=60)
    assert (tmp_path / "bookie.jaas").stat().st_mode & 0o077 == 0
    bookie_conf, client_conf, roles, bookie_login, client_login, authorization, _, admin_conf = (
        block for kind, block in blocks if kind == "properties"
    )
    (tmp_path / "client.conf").write_text(client_conf + client_login)
    keys = _keys(bookie_conf + bookie_login + authorization)
    (tmp_path / "authorization").write_text(next(block for kind, block in blocks if kind == "text"))
    (tmp_path / "roles.conf").write_text(_LEAST + bookie_conf + roles)
    config, warnings = load_config(str(tmp_path / "roles.conf"))
    assert (config.authorized_roles, warnings) == (("writers", "bookies"), [])
    uri = f"zk+hierarchical://{zk_only.zookeepers[0].id}{ledgers_root}"
    keys |= dict(line.split("=", 1) for line in admin_conf.splitlines() if not line.startswith("#"))
    assert keys["httpServerHost"] == "0.0.0.0"
    port = free_port()
    here = {"httpServerHost": "127.0.0.1", "httpServerPort": str(port), "httpServerTokenFile": token_file(tmp_path)}
    here["httpServerReadTokenFile"] = token_file(tmp_path / "read", "a-token-for-reads-only")
    bookie = BookieProcess(tmp_path / "bookie", uri, **keys | here).start()
    try:
        caller = ssl.create_default_context(cafile=tmp_path / "tls" / "ca.pem")
        caller.load_cert_chain(tmp_path / "tls" / "spark.pem", tmp_path / "tls" / "spark.key")
        seen = json.loads(asked(f"https://127.0.0.1:{port}/api/v1/cluster/overview", caller))
        # The bookie has asked itself as it asks others: with its certificate, and the token for reads.
        assert [(one["http"], one["problem"]) for one in seen["bookies"]] == [(f"https://127.0.0.1:{port}/", None)]
        config = ClientConfig.from_file(tmp_path / "client.conf")
        with BlockingClient(uri, config) as client:
            with closing(client.create(quorum=Quorum(1, 1, 1))) as writer:
                writer.append_many([b"a secret"])
            assert client.open_for_reading(writer.ledger_id).read(0, 0) == [b"a secret"]
        there = ["--metadata-service-uri", uri, "--client-conf", str(tmp_path / "client.conf")]
        assert main([*there, "bookiesanity", bookie.id]) == 0
        assert main([*there[:2], "bookiesanity", "--timeout", "5", bookie.id]) == 1
        (tmp_path / "tls.conf").write_text(client_conf)  # a certificate is not enough
        assert main([*there[:3], str(tmp_path / "tls.conf"), "bookiesanity", "--timeout", "5", bookie.id]) == 1
    finally:
        bookie.end()


def _keys(conf: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in conf.splitlines() if not line.startswith("#"))


def asked(url: str, caller: ssl.SSLContext) -> str:
    """What is answered to somebody with the token for changes, which lets read, too."""
    with urllib.request.urlopen(urllib.request.Request(url, headers=BEARER), timeout=60, context=caller) as answer:
        return str(answer.read().decode())


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
        for name in re.findall(r"`((?:\w+/)?test_\w+(?:\.py)?)`", row):
            if name.endswith(".py"):
                (found,) = _TESTS.rglob(name)
                file = found.read_text("utf-8")
            else:
                assert f"def {name}(" in file, name
