"""The ``bkctl`` command as a user runs it: bookies, ledgers, and wrong command lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bk_spark.bkctl import main
from bk_spark.bookie.blocking import BlockingClient
from bookie_server.local import LocalCluster

PASSWORD = b"open sesame"


@pytest.fixture
def password_file(tmp_path: Path) -> str:
    path = tmp_path / "password"
    path.write_bytes(PASSWORD + b"\n")
    return str(path)


def test_bookies(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--metadata-service-uri", cluster.metadata_service_uri, "bookies"]) == 0
    assert capsys.readouterr().out.splitlines() == sorted(f"{one.id}\t{one.id}" for one in cluster.bookies)


def test_ledger(metadata_service_uri: str, password_file: str, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    common = ["--metadata-service-uri", metadata_service_uri, "--password-file", password_file]
    with BlockingClient(metadata_service_uri) as client:
        writer = client.create(password=PASSWORD)
        writer.append_many([b"one", b"two", b"three"])
        writer.close()

    assert main([*common, "ledger", "read", str(writer.ledger_id), "--first", "1"]) == 0
    assert capsysbinary.readouterr().out == b"two\nthree\n"
    assert main([*common, "ledger", "show", str(writer.ledger_id)]) == 0
    shown = capsysbinary.readouterr().out.decode()
    assert "state       CLOSED" in shown
    assert "last entry  2" in shown
    assert "sesame" not in shown


def test_errors_are_one_line(metadata_service_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--metadata-service-uri", metadata_service_uri]
    for arguments, text in (
        (["log", "show", "no-such-log"], "there is no log no-such-log"),
        (["ledger", "show", "999999999"], "ledger 999999999"),
        (["--password-file", "/no/such/file", "ledger", "read", "0"], "/no/such/file cannot be read"),
    ):
        assert main([*common, *arguments]) == 1
        error = capsys.readouterr().err
        assert text in error
        assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["log", "read", "x", "--from", "-1"], "argument --from: '-1' is no offset: give a whole number"),
        (
            ["log", "read", "x", "--from-time", "tomorrow"],
            "argument --from-time: 'tomorrow' is no time: give one",
        ),
        (["log", "truncate", "x", "1.5"], "argument OFFSET: '1.5' is no offset"),
        (
            ["log", "retention", "x", "--time", "7"],
            "argument --time: '7' must be a number with a unit: ms, s",
        ),
        (["log", "retention", "x", "--size", "-3"], "argument --size: '-3' must be a number of bytes, or one with"),
        (["log", "create", "x", "--digest-type", "MD5"], "argument --digest-type: invalid choice: 'MD5'"),
        (["log", "wipe"], "argument list|show|read"),
        (["ledger", "show", "x"], "argument LEDGER: 'x' is no offset"),
    ],
)
def test_a_wrong_command_line_is_told_in_one_line(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--metadata-service-uri", "zk://localhost:1/ledgers", *arguments])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.startswith("bkctl ")
    assert len(error.splitlines()) == 1


def test_it_runs_as_a_module_and_stops_when_nobody_reads_on(metadata_service_uri: str) -> None:
    command = [sys.executable, "-m", "bk_spark.bkctl", "--metadata-service-uri", metadata_service_uri]
    with BlockingClient(metadata_service_uri) as client:
        writer = client.create()
        writer.append_many([b"x" * 1000] * 2000)
        writer.close()
    listed = subprocess.run([*command, "log", "list", "--json"], capture_output=True, timeout=60)
    assert (listed.returncode, listed.stderr) == (0, b"")
    assert isinstance(json.loads(listed.stdout), list)
    reading = subprocess.Popen(
        [*command, "ledger", "read", str(writer.ledger_id)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert reading.stdout is not None
    assert reading.stderr is not None
    with reading:
        assert len(reading.stdout.readline()) == 1001
        reading.stdout.close()
        assert reading.stderr.read() == b""
        assert reading.wait(60) == 0
