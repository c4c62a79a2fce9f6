"""The ledger client with ``useV2WireProtocol=false``: everything over v3, on our bookies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.client import Client
from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection.base import FramedConnection
from bk_spark.bookie.connection.v3 import BookieConnectionV3
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import InvalidArgumentError, LedgerFencedError
from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from bk_spark.protocol.quorum import Quorum

PASSWORD = b"open sesame"
V3 = ClientConfig(use_v2_wire_protocol=False)


@pytest.fixture
def client(metadata_service_uri: str) -> Iterator[BlockingClient]:
    with BlockingClient(metadata_service_uri, V3) as client:
        yield client


def varied(count: int) -> list[bytes]:
    return [bytes([number % 251]) * (number * 37 % 2_000) for number in range(count)]


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(3, 2, 2), Quorum(1, 1, 1)], ids=str)
@pytest.mark.parametrize("digest", DigestType)
def test_write_and_read(client: BlockingClient, metadata_service_uri: str, digest: DigestType, quorum: Quorum) -> None:
    entries = varied(500)
    writer = client.create(quorum=quorum, digest_type=digest, password=PASSWORD)
    writer.append_many(Payloads.of(entries))
    assert writer.close().last_entry_id == 499
    assert client.open_for_reading(writer.ledger_id, PASSWORD).read(0, 499) == entries
    with BlockingClient(metadata_service_uri) as other:
        assert other.open_for_reading(writer.ledger_id, PASSWORD).read(0, 499) == entries, "what v2 reads is the same"


def test_nothing_goes_over_v2(metadata_service_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connected: list[type] = []
    connection_made = FramedConnection.connection_made

    def made(connection: FramedConnection, transport: asyncio.BaseTransport) -> None:
        connected.append(type(connection))
        connection_made(connection, transport)

    monkeypatch.setattr(FramedConnection, "connection_made", made)

    async def run() -> None:
        async with Client(metadata_service_uri, V3) as client:
            writer = await client.create()
            await writer.append_many(Payloads.of(varied(50)))
            await writer.close()
            reader = await client.open_for_reading(writer.ledger_id)
            assert await reader.read(0, 49) == varied(50)

    asyncio.run(run())
    assert connected == [BookieConnectionV3] * 3


@pytest.mark.parametrize("recover_over_v2", [False, True])
def test_recovery_fences_the_writer(client: BlockingClient, metadata_service_uri: str, recover_over_v2: bool) -> None:
    writer = client.create(password=PASSWORD)
    writer.append_many(Payloads.of(varied(100)))
    writer.flush()
    with BlockingClient(metadata_service_uri, ClientConfig(use_v2_wire_protocol=recover_over_v2)) as other:
        reader = other.recover_and_open(writer.ledger_id, PASSWORD)
        assert (reader.last_add_confirmed, reader.metadata.state) == (99, LedgerState.CLOSED)
    assert client.open_for_reading(writer.ledger_id, PASSWORD).read(0, 99) == varied(100)
    writer.append(b"too late")
    with pytest.raises(LedgerFencedError):
        writer.flush()
    writer.abandon()


def test_recovery_over_v3_of_what_v2_wrote(client: BlockingClient, metadata_service_uri: str) -> None:
    with BlockingClient(metadata_service_uri) as other:
        writer = other.create()
        writer.append_many(Payloads.of(varied(100)))
        writer.flush()
        assert client.recover_and_open(writer.ledger_id).read(0, 99) == varied(100)
        writer.abandon()


def test_large_entries(client: BlockingClient) -> None:
    most = client.config.max_payload_bytes(DigestType.CRC32C)
    writer = client.create()
    writer.append(b"\x01" * most)
    writer.append_many(Payloads.of([bytes(1024 * 1024)] * 8))
    with pytest.raises(InvalidArgumentError, match="frame limit"):
        writer.append(bytes(most + 1))
    assert writer.flush() == 8
    # The largest one comes back in a recovery's frame, too, which is the longest of all.
    reader = client.recover_and_open(writer.ledger_id)
    assert [len(payload) for payload in reader.read(0, 8)] == [most] + [1024 * 1024] * 8
    writer.abandon()


def test_a_thousand_small_requests_at_once(metadata_service_uri: str) -> None:
    async def run() -> None:
        async with Client(metadata_service_uri, V3) as client:
            writer = await client.create()
            await writer.append_many(Payloads.of([b"%d" % number for number in range(1_000)]))
            await writer.close()
            reader = await client.open_for_reading(writer.ledger_id)
            read = await asyncio.gather(*(reader.read(number, number) for number in range(1_000)))
            assert read == [[b"%d" % number] for number in range(1_000)]

    asyncio.run(run())
