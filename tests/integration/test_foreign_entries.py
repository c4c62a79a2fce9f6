"""Entries that somebody else wrote under the id of a log's ledger, with another password, to a bookie that never took
the log's own: it hung or was away, and the ack quorum did without it. And to one that only answers last."""

from __future__ import annotations

import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.config import ClientConfig
from bk_spark.log import Log, LogStore
from bk_spark.protocol.codes import Code, DigestType
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalBookie, LocalCluster
from tests.support.bookie import Connection, stored
from tests.support.logs import PASSWORD, RAW, entries, new_log
from tests.support.registrations import mend

ROWS = [b"one", b"two", b"three"]
#: Each of the three bookies is asked first for one of three entries.
SETTINGS = dataclasses.replace(RAW, quorum=Quorum(3, 2, 1), digest_type=DigestType.HMAC)
#: No bookie is too slow for it, on any machine.
PATIENT = ClientConfig(
    add_timeout_ms=120_000,
    read_timeout_ms=120_000,
    first_speculative_read_timeout_ms=120_000,
    max_speculative_read_timeout_ms=120_000,
)


def write_as_another(bookie: LocalBookie, ledger_id: int) -> None:
    with Connection(bookie.port) as connection:
        assert connection.add(ledger_id, range(len(ROWS))) == [Code.OK] * len(ROWS)


def ledger_of(log: Log) -> int:
    (segment,) = log.snapshot().segments()
    return segment.ledger_id


def rows_and_retries(cluster: LocalCluster, name: str) -> tuple[list[bytes], int]:
    """The rows of a log, read by a new client, and how many reads it sent to one more bookie because of an answer."""
    with BlockingClient(cluster.metadata_service_uri, PATIENT) as reader:
        rows = entries(LogStore.of(reader).open_log(name, password=PASSWORD))
        return rows, reader.counts.read_retries


def test_with_hmac_entries_of_others_at_a_bookie_that_hung_during_a_write_are_refused(
    mended_cluster: LocalCluster,
) -> None:
    hanging = mended_cluster.bookies[0]
    with BlockingClient(mended_cluster.metadata_service_uri) as client:
        log = new_log(client, SETTINGS)
        last = client.create()
        last.close()
        write_as_another(hanging, last.ledger_id + 1)
        hanging.suspend()
        log.write(pa.table({"value": ROWS}))
        assert ledger_of(log) == last.ledger_id + 1
        hanging.resume()
    rows, retries = rows_and_retries(mended_cluster, log.name)
    assert rows == ROWS
    assert retries > 0, "the foreign entry was not met"


def test_with_hmac_entries_of_others_at_a_bookie_that_was_away_during_a_write_are_refused(
    mended_cluster: LocalCluster,
) -> None:
    away = mended_cluster.bookies[0]
    with BlockingClient(mended_cluster.metadata_service_uri) as client:
        log = new_log(client, SETTINGS)
        away.kill()
        log.write(pa.table({"value": ROWS}))
        ledger_id = ledger_of(log)
    mend(mended_cluster)
    write_as_another(away, ledger_id)
    rows, retries = rows_and_retries(mended_cluster, log.name)
    assert rows == ROWS
    assert retries > 0, "the foreign entry was not met"
    with Connection(away.port) as connection:
        assert connection.read(ledger_id, 0) == stored(ledger_id, 0)


def wait_for_entry(bookie: LocalBookie, ledger_id: int) -> None:
    deadline = time.monotonic() + 60
    with Connection(bookie.port) as connection:
        while isinstance(connection.read(ledger_id, 0), Code):
            assert time.monotonic() < deadline, "no entry came"
            time.sleep(0.01)


def test_c17_a_bookie_that_answers_last_and_has_entries_of_others_gets_no_part_of_a_log(
    mended_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped until the others hold the entries, and is not too late on any machine."""
    monkeypatch.setattr("bk_spark.protocol.ledger.first_answers.PATIENCE_MS", 120_000)
    late, *others = mended_cluster.bookies
    with BlockingClient(mended_cluster.metadata_service_uri, PATIENT) as client, ThreadPoolExecutor(1) as thread:
        log = new_log(client, RAW)
        last = client.create()
        last.close()
        write_as_another(late, last.ledger_id + 1)
        late.suspend()
        writing = thread.submit(log.write, pa.table({"value": ROWS}))
        for bookie in others:
            wait_for_entry(bookie, last.ledger_id + 1)
        late.resume()
        writing.result()
        assert ledger_of(log) == last.ledger_id + 2
    assert rows_and_retries(mended_cluster, log.name) == (ROWS, 0)
