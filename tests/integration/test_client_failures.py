"""The ledger client while bookies die, hang and come back: nothing acknowledged is lost, order is kept."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from bk_spark.bookie.blocking import BlockingClient, BlockingWriter
from bk_spark.bookie.config import ClientConfig
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import EntryUnknownError, NotEnoughBookiesError
from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalCluster
from bookie_server.local.bookie import LocalBookie
from tests.support.registrations import mend

#: A busy machine is not taken for a dead bookie: the connection to one that was killed breaks.
CONFIG = ClientConfig(add_timeout_ms=60_000, read_timeout_ms=60_000, connect_timeout_ms=60_000)
#: A suspended bookie is given up soon, and one that a busy machine holds up is not.
IMPATIENT = ClientConfig(add_timeout_ms=5_000, read_timeout_ms=5_000, connect_timeout_ms=5_000)


@pytest.fixture(params=["native", "grpc"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(cluster_of_six: LocalCluster, transport: str) -> Iterator[BlockingClient]:
    with BlockingClient(cluster_of_six.metadata_service_uri, replace(CONFIG, transport=transport)) as client:
        yield client


def numbered(first: int, count: int) -> Payloads:
    return Payloads.of([b"%08d" % number for number in range(first, first + count)])


def append_and_flush(writer: BlockingWriter, payloads: Payloads) -> None:
    writer.append_many(payloads)
    writer.flush()


def bookie(cluster: LocalCluster, bookie_id: str) -> LocalBookie:
    return next(one for one in cluster.bookies if one.id == bookie_id)


def check_content(client: BlockingClient, ledger_id: int, count: int) -> None:
    reader = client.open_for_reading(ledger_id)
    assert reader.metadata.state is LedgerState.CLOSED
    assert reader.last_add_confirmed == count - 1
    assert reader.read(0, count - 1) == [b"%08d" % number for number in range(count)]


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(3, 2, 2)], ids=str)
def test_a_killed_bookie_is_replaced(client: BlockingClient, cluster_of_six: LocalCluster, quorum: Quorum) -> None:
    writer = client.create(quorum=quorum)
    writer.append_many(numbered(0, 1_000))
    writer.flush()
    victim = writer.metadata.last_segment.ensemble[0]
    bookie(cluster_of_six, victim).kill()
    writer.append_many(numbered(1_000, 1_000))
    closed = writer.close()
    assert len(closed.segments) == 2
    assert closed.segments[1].first_entry_id == 1_000
    assert victim not in closed.last_segment.ensemble
    check_content(client, writer.ledger_id, 2_000)


def test_two_bookies_killed_while_adds_are_under_way(client: BlockingClient, cluster_of_six: LocalCluster) -> None:
    writer = client.create()
    victims = writer.metadata.last_segment.ensemble[:2]
    killers = [threading.Thread(target=bookie(cluster_of_six, victim).kill) for victim in victims]
    for round_number in range(40):
        writer.append_many(numbered(round_number * 1_000, 1_000))
        if round_number in (10, 20):
            killers.pop().start()
    closed = writer.close()
    assert not set(victims) & set(closed.last_segment.ensemble)
    check_content(client, writer.ledger_id, 40_000)


@pytest.fixture
def impatient(cluster_of_six: LocalCluster, transport: str) -> Iterator[BlockingClient]:
    with BlockingClient(cluster_of_six.metadata_service_uri, replace(IMPATIENT, transport=transport)) as client:
        yield client


def test_a_hanging_bookie_is_replaced_and_reads_go_around_it(
    impatient: BlockingClient, cluster_of_six: LocalCluster
) -> None:
    writer = impatient.create()
    writer.append_many(numbered(0, 500))
    writer.flush()
    victim = bookie(cluster_of_six, writer.metadata.last_segment.ensemble[1])
    victim.suspend()
    writer.append_many(numbered(500, 500))
    # The ack quorum of the other two acknowledges; the hanging one is given up once its time is over.
    assert writer.flush() == 999
    deadline = time.monotonic() + 60
    while victim.id in writer.metadata.last_segment.ensemble:
        assert time.monotonic() < deadline
        time.sleep(0.1)
        writer.append(b"%08d" % (writer.last_add_pushed + 1))
        writer.flush()
    closed = writer.close()
    assert victim.id not in closed.last_segment.ensemble
    # The first segment lies on the hanging bookie too: reads of it use the others.
    check_content(impatient, writer.ledger_id, closed.last_entry_id + 1)


def test_without_spare_bookies_the_ack_quorum_is_enough(mended_cluster: LocalCluster) -> None:
    with BlockingClient(mended_cluster.metadata_service_uri, CONFIG) as client:
        writer = client.create(quorum=Quorum(3, 3, 2))
        writer.append_many(numbered(0, 100))
        writer.flush()
        mended_cluster.bookies[2].kill()
        writer.append_many(numbered(100, 100))
        writer.close()
        check_content(client, writer.ledger_id, 200)


def test_without_the_ack_quorum_the_writer_ends(mended_cluster: LocalCluster) -> None:
    with BlockingClient(mended_cluster.metadata_service_uri, CONFIG) as client:
        writer = client.create(quorum=Quorum(3, 3, 2))
        writer.append_many(numbered(0, 100))
        writer.flush()
        mended_cluster.bookies[1].kill()
        mended_cluster.bookies[2].kill()
        with pytest.raises(NotEnoughBookiesError, match="writable bookie"):
            append_and_flush(writer, numbered(100, 100))
        assert writer.last_add_confirmed >= 99
        writer.abandon()
        mend(mended_cluster)
        reader = client.recover_and_open(writer.ledger_id)
        # What was not acknowledged may survive as far as it goes, and may not.
        assert 99 <= reader.last_add_confirmed <= 199
        assert reader.read(0, 99) == [b"%08d" % number for number in range(100)]


def test_recovery_with_a_dead_bookie_keeps_every_acknowledged_entry(
    client: BlockingClient, cluster_of_six: LocalCluster
) -> None:
    writer = client.create()
    writer.append_many(numbered(0, 300))
    acknowledged = writer.flush()
    bookie(cluster_of_six, writer.metadata.last_segment.ensemble[2]).kill()
    writer.abandon()
    reader = client.recover_and_open(writer.ledger_id)
    assert reader.last_add_confirmed == acknowledged == 299
    check_content(client, writer.ledger_id, 300)


def test_a_read_from_bookies_that_are_down_says_so_and_what_helps(
    client: BlockingClient, cluster_of_six: LocalCluster
) -> None:
    writer = client.create()
    append_and_flush(writer, numbered(0, 10))
    ensemble = writer.close().last_segment.ensemble
    reader = client.open_for_reading(writer.ledger_id)
    for bookie_id in ensemble:
        bookie(cluster_of_six, bookie_id).kill()
    with pytest.raises(EntryUnknownError) as raised:
        reader.read(0, 9)
    text = str(raised.value)
    assert all(bookie_id in text for bookie_id in ensemble)
    assert (
        "check that these bookies are running and reachable from here (bkctl doctor tries each of them), then try again"
        in text
    )
    mend(cluster_of_six)
    assert len(reader.read(0, 9)) == 10
