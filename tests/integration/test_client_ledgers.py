"""The ledger client on our own bookies: what it writes it reads, tails and recovers; each ledger manager."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.metadata.cluster_init import init_cluster
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import (
    InvalidArgumentError,
    LedgerFencedError,
    MetadataUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerError,
    UnauthorizedError,
)
from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from bk_spark.protocol.metadata.ledger_paths import LedgerManager
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalCluster
from tests.support.bookie import BookieProcess
from tests.support.explicit_lac import write_explicit_lac

PASSWORD = b"open sesame"


@pytest.fixture(params=["native", "grpc"])
def client(metadata_service_uri: str, request: pytest.FixtureRequest) -> Iterator[BlockingClient]:
    with BlockingClient(metadata_service_uri, ClientConfig(transport=request.param)) as client:
        yield client


def varied(count: int) -> list[bytes]:
    return [bytes([number % 251]) * (number * 37 % 2_000) for number in range(count)]


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(3, 2, 2), Quorum(2, 2, 1), Quorum(1, 1, 1)], ids=str)
@pytest.mark.parametrize("digest", DigestType)
def test_write_and_read(client: BlockingClient, digest: DigestType, quorum: Quorum) -> None:
    entries = varied(500)
    writer = client.create(quorum=quorum, digest_type=digest, password=PASSWORD, custom_metadata={"made by": b"a test"})
    writer.append_many(Payloads.of(entries[:-1]))
    assert writer.append(entries[-1]) == 499
    closed = writer.close()
    assert (closed.state, closed.last_entry_id, closed.length) == (LedgerState.CLOSED, 499, sum(map(len, entries)))
    reader = client.open_for_reading(writer.ledger_id, PASSWORD)
    assert reader.read(0, 499) == entries
    assert reader.read(7, 7) == [entries[7]]
    assert reader.metadata.custom_metadata == {"made by": b"a test"}


def test_single_reads_give_the_same(client: BlockingClient, metadata_service_uri: str) -> None:
    entries = varied(1_000)
    writer = client.create()
    writer.append_many(Payloads.of(entries))
    writer.close()
    with BlockingClient(metadata_service_uri, ClientConfig(batch_read_enabled=False)) as plain:
        assert plain.open_for_reading(writer.ledger_id).read(0, 999) == entries


def test_a_live_ledger_is_read_up_to_its_lac_and_not_fenced(client: BlockingClient) -> None:
    writer = client.create()
    reader = client.open_for_reading(writer.ledger_id)
    assert reader.last_add_confirmed == -1
    for number in range(5):
        writer.append(b"%d" % number)
        writer.flush()
    assert reader.read_last_add_confirmed() == 3
    with pytest.raises(NoSuchEntryError, match="beyond the last add confirmed, 3"):
        reader.read(0, 4)
    write_explicit_lac(writer.metadata.last_segment.ensemble, writer.ledger_id, 4)
    assert reader.read_last_add_confirmed() == 4
    assert reader.read(0, 4) == [b"0", b"1", b"2", b"3", b"4"]
    writer.append(b"5")
    assert writer.close().last_entry_id == 5


def test_recovery_fences_the_writer(client: BlockingClient) -> None:
    writer = client.create(password=PASSWORD)
    writer.append_many(Payloads.of(varied(100)))
    writer.flush()
    reader = client.recover_and_open(writer.ledger_id, PASSWORD)
    assert reader.read(0, reader.last_add_confirmed) == varied(100)
    writer.append(b"too late")
    with pytest.raises(LedgerFencedError):
        writer.flush()
    with pytest.raises(LedgerFencedError):
        writer.append(b"refused at once")
    writer.abandon()


def test_recovery_of_an_empty_ledger(client: BlockingClient) -> None:
    writer = client.create()
    reader = client.recover_and_open(writer.ledger_id)
    assert (reader.last_add_confirmed, reader.metadata.state) == (-1, LedgerState.CLOSED)
    writer.abandon()


@pytest.mark.parametrize("layout", ["flat", "hierarchical", "longhierarchical"])
def test_each_ledger_manager(tmp_path: Path, zookeeper: ZooKeeper, fresh_root: str, layout: str) -> None:
    one = Quorum(1, 1, 1)
    init_cluster(zookeeper, fresh_root, layout)
    uri = MetadataServiceUri(zookeeper.servers, fresh_root, layout)
    bookie = BookieProcess(tmp_path / "bookie", str(uri))
    try:
        bookie.start()
        with BlockingClient(str(uri)) as client:
            ids = set()
            for number in range(3):
                writer = client.create(quorum=one)
                writer.append(b"entry of %d" % number)
                writer.close()
                ids.add(writer.ledger_id)
                assert client.open_for_reading(writer.ledger_id).read(0, 0) == [b"entry of %d" % number]
            assert len(ids) == 3
            client.delete(min(ids))
            with pytest.raises(NoSuchLedgerError):
                client.metadata(min(ids))
            path = LedgerManager(layout).ledger_path(uri.root, max(ids))
            assert client.zookeeper.exists(path) is not None
        other = "flat" if layout != "flat" else "hierarchical"
        with pytest.raises(InvalidArgumentError, match=f"the cluster uses {layout}"):
            BlockingClient(str(MetadataServiceUri(uri.servers, uri.root, other)))
    finally:
        bookie.end()


def test_errors(client: BlockingClient, cluster: LocalCluster) -> None:
    writer = client.create(password=PASSWORD)
    writer.append(b"x")
    with pytest.raises(InvalidArgumentError, match="frame limit"):
        writer.append(bytes(5 * 1024 * 1024))
    assert writer.close().last_entry_id == 0
    with pytest.raises(UnauthorizedError, match="wrong ledger password") as raised:
        client.open_for_reading(writer.ledger_id, b"swordfish")
    assert "swordfish" not in str(raised.value)
    client.delete(writer.ledger_id)
    client.delete(writer.ledger_id)
    with pytest.raises(NoSuchLedgerError):
        client.open_for_reading(writer.ledger_id, PASSWORD)
    servers = MetadataServiceUri.parse(cluster.metadata_service_uri).servers
    with pytest.raises(MetadataUnavailableError, match="no BookKeeper cluster"):
        BlockingClient(f"zk://{servers}/nowhere")
    with pytest.raises(MetadataUnavailableError, match="no ZooKeeper server answered"):
        BlockingClient("zk://127.0.0.1:1/ledgers", ClientConfig(connect_timeout_ms=500))
