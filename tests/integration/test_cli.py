"""The ``bookie-server`` command as a user runs it."""

from __future__ import annotations

import os
import pwd
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import bk_spark
from bk_spark.bkctl import main as bkctl
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bookie_server.cli import main
from bookie_server.local import LocalCluster
from tests.support.admin import put

_COMMAND = (sys.executable, "-m", "bookie_server")


@pytest.mark.parametrize(("number", "secure"), [(signal.SIGINT, False), (signal.SIGTERM, True)])
def test_local_prints_the_uri_and_stops_cleanly_at_a_signal(
    tmp_path: Path, number: signal.Signals, secure: bool
) -> None:
    with subprocess.Popen(
        # With TLS once.
        [*_COMMAND, "local", "--bookies", "1", "--dir", str(tmp_path), *(["--tls"] if secure else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        text = ""
        while "Ctrl-C" not in text and (line := process.stdout.readline()):
            text += line
        match = re.search(r"^metadataServiceUri: (zk\+hierarchical://127\.0\.0\.1:\d+/ledgers)$", text, re.MULTILINE)
        assert match is not None, text
        assert f'.option("metadataServiceUri", "{match[1]}")' in text
        page = re.search(r"^in a browser: (http://127\.0\.0\.1:\d+/)$", text, re.MULTILINE)
        assert page is not None, text
        with urllib.request.urlopen(page[1], timeout=60) as answer:
            assert b"<title>BookKeeper cluster</title>" in answer.read()
        assert (tmp_path / "admin-token").stat().st_mode & 0o777 == 0o600
        put(page[1] + "api/v1/bookie/gc", token=(tmp_path / "admin-token").read_text().strip())
        zk = ZooKeeper(MetadataServiceUri.parse(match[1]).servers)
        zk.start()
        bookies = [name for name in zk.children("/ledgers/available") if name != "readonly"]
        zk.close()
        assert len(bookies) == 1
        assert ('.option("clientConf", ' in text) == secure
        if secure:
            conf = tmp_path / "tls" / "client.conf"
            assert f'.option("clientConf", "{conf}")' in text
            assert all(file.stat().st_mode & 0o077 == 0 for file in conf.parent.iterdir())
            uri = ["--metadata-service-uri", match[1]]
            assert bkctl([*uri, "--client-conf", str(conf), "bookiesanity", *bookies]) == 0
            assert bkctl([*uri, "bookiesanity", "--timeout", "5", *bookies]) == 1

        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert err == ""
    assert out.splitlines()[-1] == "stopped"


@pytest.fixture
def kept_signals() -> Iterator[None]:
    """A process that stops ignores signals to its end, so this one must take them again."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["local", "--bookies", "1", "--dir", ""], 1, "--dir is empty: name the directory of the cluster"),
        (["local", "--bookies", "-1", "--dir", "{dir}"], 1, "--bookies must be from 1 to 64, not -1"),
        (
            ["local", "--bookies", "0", "--dir", "{dir}"],
            1,
            "--bookies must be from 1 to 64, not 0: without one",
        ),
        (["local", "--bookies", "1", "--zk-port", "70000", "--dir", "{dir}"], 1, "port 70000 is out of range"),
    ],
)
@pytest.mark.usefixtures("kept_signals")
def test_error_is_one_line_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, message: str
) -> None:
    assert main([argument.format(dir=tmp_path) for argument in arguments]) == status
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert error.startswith("bookie-server: ")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"bookie-server {bk_spark.__version__}\n"


def test_a_number_with_other_signs_than_digits_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["local", "--bookies", "1_0", "--dir", str(tmp_path)])
    assert ended.value.code == 2
    assert "argument --bookies: '1_0' is not a whole number" in capsys.readouterr().err


def test_bookie_with_no_configuration_says_so_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [*_COMMAND, "start", "--conf", str(tmp_path / "missing.conf")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "missing.conf" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["start", "autorecovery"])
def test_a_bookie_is_started_only_by_the_users_that_its_configuration_names(tmp_path: Path, command: str) -> None:
    """Its directories, made by another user, could not be read by those who should run it."""
    user = pwd.getpwuid(os.geteuid()).pw_name
    conf = tmp_path / "bk_server.conf"

    def start(users: str) -> str:
        conf.write_text(
            f"permittedStartupUsers={users}\nadvertisedAddress=127.0.0.1\nallowLoopback=true\n"
            f"httpServerEnabled=true\nhttpServerTokenFile={tmp_path}/missing\n"
            "metadataServiceUri=zk://127.0.0.1:1/ledgers\n"
            f"journalDirectories={tmp_path}/journal\nledgerDirectories={tmp_path}/ledgers\n"
        )
        done = subprocess.run(
            [*_COMMAND, command, "--conf", str(conf)], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode != 0
        return done.stderr

    error = start("operator, bookie")
    assert f"bk_server.conf: permittedStartupUsers does not name {user}, the user of this process" in error
    assert "start it as operator or bookie, or add" in error
    assert not (tmp_path / "journal").exists()
    assert len(error.splitlines()) == 1
    # The next thing that is wrong is told instead.
    assert "permittedStartupUsers" not in (error := start(f"operator, {user}"))
    assert "httpServerTokenFile" in error


@pytest.mark.parametrize("arguments", [[], ["local"], ["start"], ["local", "--dir", "x", "--zookeepers", "2"]])
def test_wrong_usage_is_explained(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "usage: bookie-server" in capsys.readouterr().err


def test_init_creates_a_cluster_once(
    zk_only: LocalCluster, zookeeper: ZooKeeper, fresh_root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = MetadataServiceUri.parse(zk_only.metadata_service_uri).servers
    uri = f"zk+flat://{servers}{fresh_root}"
    assert main(["init", "--metadata-service-uri", uri]) == 0
    instance = zookeeper.get(f"{fresh_root}/INSTANCEID")
    assert instance is not None
    assert f"new cluster at {uri}, instance {instance.data.decode()}" in capsys.readouterr().out
    layout = zookeeper.get(f"{fresh_root}/LAYOUT")
    assert layout is not None
    assert layout.data.endswith(b"FlatLedgerManagerFactory:1")

    assert main(["init", "--metadata-service-uri", uri]) != 0
    error = capsys.readouterr().err
    assert fresh_root in error
    assert len(error.splitlines()) == 1
    assert zookeeper.get(f"{fresh_root}/INSTANCEID") == instance
