"""Entries that somebody else wrote under the id of a log's ledger, with another password, to a bookie that never took
the log's own: it hung or was away, and the ack quorum did without it."""

from __future__ import annotations

import dataclasses

import pyarrow as pa

from bk_spark.bookie.blocking import BlockingClient
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


def write_as_another(bookie: LocalBookie, ledger_id: int) -> None:
    with Connection(bookie.port) as connection:
        assert connection.add(ledger_id, range(len(ROWS))) == [Code.OK] * len(ROWS)


def ledger_of(log: Log) -> int:
    (segment,) = log.snapshot().segments()
    return segment.ledger_id


def rows_and_retries(cluster: LocalCluster, name: str) -> tuple[list[bytes], int]:
    """The rows of a log, read by a new client, and how many reads it sent to one more bookie."""
    with BlockingClient(cluster.metadata_service_uri) as reader:
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
