"""The ``bkctl`` command as a user runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bk_spark.bkctl import main
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.log.message import CommitMessage, CommitRequest, LedgerRange
from bk_spark.log.settings import EntryFormat, LogSettings
from bk_spark.log.store import LogStore
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.payloads import Payloads
from bk_spark.protocol.quorum import Quorum
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


def test_ledger_and_log(
    metadata_service_uri: str, password_file: str, fresh_root: str, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    common = [
        "--metadata-service-uri",
        metadata_service_uri,
        "--password-file",
        password_file,
        "--log-root",
        fresh_root,
    ]
    quorum = Quorum(3, 3, 2)
    with BlockingClient(metadata_service_uri) as client:
        settings = LogSettings.create(quorum, DigestType.CRC32C, EntryFormat.RAW, PASSWORD)
        log = LogStore(client.zookeeper, fresh_root).create_log("events", settings)
        writer = client.create(quorum=quorum, password=PASSWORD, create_with=log.ledger_registrar("app", "run"))
        writer.append_many(Payloads.of([b"one", b"two", b"three"]))
        writer.close()
        parts = (LedgerRange(writer.ledger_id, 0, 2, 3, 11),)
        message = CommitMessage(log.log_id, "app", "run", "", 0, 0, parts)
        log.commit(CommitRequest.from_messages([message]))

    assert main([*common, "ledger", "read", str(writer.ledger_id), "--first", "1"]) == 0
    assert capsysbinary.readouterr().out == b"two\nthree\n"
    assert main([*common, "ledger", "show", str(writer.ledger_id)]) == 0
    shown = capsysbinary.readouterr().out.decode()
    assert "state       CLOSED" in shown
    assert "last entry  2" in shown
    assert "sesame" not in shown
    assert main([*common, "log", "list"]) == 0
    assert capsysbinary.readouterr().out == b"events\n"
    assert main([*common, "log", "show", "events"]) == 0
    shown = capsysbinary.readouterr().out.decode()
    assert "offsets  0 to 3" in shown
    assert f"{writer.ledger_id:>12} {'0..2':>22} {3:>12} {11:>14}" in shown


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
