"""Closing the blocking client while other threads write and read through it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.config import ClientConfig
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import BookKeeperError, LedgerClosedError
from bookie_server.local import LocalCluster

#: Nothing ends by a timeout here.
PATIENT = ClientConfig(add_timeout_ms=120_000, read_timeout_ms=120_000)


def test_calls_under_way_end_when_the_client_is_closed(mended_cluster: LocalCluster) -> None:
    client = BlockingClient(mended_cluster.metadata_service_uri, PATIENT)
    writer = client.create()
    writer.append_many(Payloads.of([b"x"] * 100))
    writer.flush()
    reader = client.open_for_reading(writer.ledger_id)
    outcomes: list[BaseException | None] = []

    def outcome(call: Callable[[], object]) -> None:
        try:
            call()
        except BookKeeperError as error:
            outcomes.append(error)
        else:
            outcomes.append(None)

    for bookie in mended_cluster.bookies:
        bookie.suspend()
    writer.append(b"y")
    calls = [writer.flush, lambda: reader.read(0, 50), lambda: list(reader.read_blocks(0, 50))]
    threads = [threading.Thread(target=outcome, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    begin = time.monotonic()
    client.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert time.monotonic() - begin < 60
    assert len(outcomes) == 3
    assert None not in outcomes
    client.close()
    writer.abandon()
    with pytest.raises(LedgerClosedError):
        writer.append(b"z")
    with pytest.raises(LedgerClosedError):
        client.create()


def test_an_iterator_that_outlives_its_client(cluster: LocalCluster) -> None:
    with BlockingClient(cluster.metadata_service_uri) as client:
        writer = client.create()
        writer.append_many(Payloads.of([bytes(1000)] * 5_000))
        writer.close()
        blocks = client.open_for_reading(writer.ledger_id).read_blocks(0, 4_999)
        next(blocks)
    with pytest.raises(LedgerClosedError):
        next(blocks)
    del blocks


def test_a_client_that_cannot_start_leaves_no_thread() -> None:
    before = threading.active_count()
    with pytest.raises(BookKeeperError, match="no ZooKeeper server answered"):
        BlockingClient("zk://127.0.0.1:1/ledgers", ClientConfig(connect_timeout_ms=300))
    assert threading.active_count() == before
