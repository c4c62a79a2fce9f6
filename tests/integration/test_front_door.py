"""The front door on a real cluster, by nothing but its own names."""

from __future__ import annotations

import contextlib
import uuid
from pathlib import Path

import pytest

import bk_spark
from bk_spark import errors
from bookie_server.local import LocalCluster


@pytest.fixture
def uri(cluster: LocalCluster) -> str:
    return cluster.metadata_service_uri


def test_one_connection_has_ledgers_and_logs(uri: str, fresh_root: str) -> None:
    with bk_spark.connect(uri, password="secret", log_root=fresh_root) as bk:
        writer = bk.create_ledger(quorum=bk_spark.Quorum(3, 2, 2), custom_metadata={"made by": b"me"})
        writer.append_many([b"one", b"two"])
        assert writer.flush() == 1
        # The second entry becomes readable because a connection has an interval for the explicit LAC.
        with contextlib.closing(bk.open_ledger_for_reading(writer.ledger_id).tail(0)) as blocks:
            payloads = (bytes(payload) for block in blocks for payload in block.payloads)
            assert [next(payloads), next(payloads)] == [b"one", b"two"]
        assert bk.recover_and_open_ledger(writer.ledger_id).metadata.last_entry_id == 1
        writer.append(b"three")
        with pytest.raises(errors.LedgerFencedError):
            writer.flush()
        adv = bk.create_ledger_adv()
        adv.append(1, b"b")
        adv.append(0, b"a")
        assert adv.close().last_entry_id == 1
        bk.delete_ledger(adv.ledger_id)
        with pytest.raises(errors.NoSuchLedgerError):
            bk.open_ledger_for_reading(adv.ledger_id)
        assert writer.ledger_id in set(bk.client.list_ledgers())

        log = bk.create_log("orders")
        with log.open_writer() as log_writer:
            log_writer.append_many([b"first", b"second"])
        again = bk.log("orders")
        assert again.log_id == log.log_id
        assert again.settings.entry_format is bk_spark.EntryFormat.RAW
        assert [bytes(value) for block in again.open_reader().read(0, 2) for value in block.payloads] == [
            b"first",
            b"second",
        ]
        assert bk.logs.list_logs() == ["orders"]
        assert bk.logs.root == fresh_root
        bk.delete_log("orders")
        with pytest.raises(errors.NoSuchLogError):
            bk.log("orders")


def test_the_password_is_a_text_bytes_or_a_file_and_is_in_no_text(uri: str, fresh_root: str, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_bytes("geheimnis-ß".encode() + b"\r\n")
    name = f"log-{uuid.uuid4().hex[:8]}"
    with bk_spark.connect(uri, password_file=file, log_root=fresh_root) as bk:
        log = bk.create_log(name)
        ledger = bk.create_ledger()
        ledger.close()
        for shown in (bk, bk.client, bk.logs, log, ledger):
            assert "geheimnis" not in repr(shown)
        assert repr(bk) == f"BookKeeper({bk.client.metadata_service_uri}, logs in {fresh_root})"
    for password in ("geheimnis-ß", "geheimnis-ß".encode()):
        with bk_spark.connect(uri, password=password, log_root=fresh_root) as bk:
            assert bk.log(name).log_id == log.log_id
            bk.open_ledger_for_reading(ledger.ledger_id)
    with bk_spark.connect(uri, password="wrong", log_root=fresh_root) as bk:
        with pytest.raises(errors.UnauthorizedError, match="wrong password"):
            bk.log(name)
        with pytest.raises(errors.UnauthorizedError, match="wrong ledger password"):
            bk.open_ledger_for_reading(ledger.ledger_id)


def test_settings_come_as_a_configuration_or_as_properties(uri: str) -> None:
    with bk_spark.connect(uri) as bk:
        assert bk.client.config == bk_spark.ClientConfig(explicit_lac_interval_ms=1000)
    with bk_spark.connect(uri, config={"addEntryTimeoutSec": "7"}) as bk:
        assert bk.client.config == bk_spark.ClientConfig(explicit_lac_interval_ms=1000, add_timeout_ms=7_000)
    config = bk_spark.ClientConfig(zk_session_rest_ms=500)
    with bk_spark.connect(uri, config=config) as bk:
        assert bk.client.config is config


def test_after_close_nothing_is_left_and_closing_again_is_no_error(uri: str) -> None:
    bk = bk_spark.connect(uri)
    writer = bk.create_ledger()
    bk.close()
    bk.close()
    with pytest.raises(errors.LedgerClosedError):
        writer.append(b"too late")
