"""ZooKeeper hangs (SIGSTOP), or the client's session expires: every call ends in time with an error that says to try
again, and succeeds afterwards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.client import Client
from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection.base import FramedConnection
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.errors import BookKeeperError, MetadataUnavailableError
from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalCluster
from tests.support.zookeeper_sessions import cut, expire

TIMEOUT_MS = 2_000
#: For a machine that is busy with other things.
SLACK_S = 30.0
CONFIG = ClientConfig(
    zk_session_timeout_ms=60_000, metadata_timeout_ms=TIMEOUT_MS, connect_timeout_ms=TIMEOUT_MS, add_timeout_ms=20_000
)
QUORUM = Quorum(3, 3, 2)


@pytest.fixture
def hung(cluster_of_six: LocalCluster) -> Iterator[Callable[[bool], None]]:
    """Makes ZooKeeper hang, or go on. The sessions of bookies outlive that."""
    (server,) = cluster_of_six.zookeepers
    yield lambda hang: server.suspend() if hang else server.resume()
    server.resume()


async def bounded(call: Awaitable[Any], least_s: float = 0.0) -> BookKeeperError:
    """The error of a call, which must come in time."""
    began = time.monotonic()
    with pytest.raises(MetadataUnavailableError) as raised:
        await call
    assert least_s <= time.monotonic() - began < TIMEOUT_MS / 1000 + SLACK_S
    assert type(raised.value) is MetadataUnavailableError, raised.value
    assert raised.value.retriable
    return raised.value


async def again(call: Callable[[], Awaitable[Any]]) -> Any:
    """The result of a call that is tried while its error says so."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()
            except BookKeeperError as error:
                if not error.retriable:
                    raise
                await asyncio.sleep(0.05)


async def listed(client: Client) -> list[int]:
    return [ledger_id async for ledger_id in client.list_ledgers()]


def test_every_call_ends_in_time_while_zookeeper_hangs(
    cluster_of_six: LocalCluster, hung: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A client whose connection is there was not refused. To ask the server takes seconds, in each of many attempts.
    asked: list[str] = []
    monkeypatch.setattr("bk_spark.bookie.metadata.zookeeper.refusal", asked.append)

    async def run() -> None:
        async with Client(cluster_of_six.metadata_service_uri, CONFIG) as client:
            writer = await client.create(quorum=QUORUM)
            abandoned = await client.create(quorum=QUORUM)
            await abandoned.append(b"kept")
            await abandoned.flush()
            closed = await client.create(quorum=QUORUM)
            await closed.append(b"entry")
            await closed.close()
            hung(True)
            calls: dict[str, Callable[[], Awaitable[Any]]] = {
                "create": lambda: client.create(quorum=QUORUM),
                "open": lambda: client.open_for_reading(closed.ledger_id),
                "metadata": lambda: client.metadata(closed.ledger_id),
                "recover": lambda: client.recover_and_open(abandoned.ledger_id),
                "delete": lambda: client.delete(closed.ledger_id),
                "list": lambda: listed(client),
            }
            # Together they need no longer than one: they wait side by side, and their time runs from the call.
            async with asyncio.timeout(TIMEOUT_MS / 1000 + SLACK_S):
                await asyncio.gather(*(bounded(call()) for call in calls.values()))
            assert asked == []
            # Who writes need not know.
            await writer.append(b"while ZooKeeper hangs")
            assert await writer.flush() == 0
            with pytest.raises(BookKeeperError):
                await writer.close()
            hung(False)
            # The calls that failed did not make anything that they will not make now.
            made = await again(calls["create"])
            await made.append(b"x")
            await again(made.close)
            assert (await again(calls["metadata"])).last_entry_id == 0
            reader = await again(calls["recover"])
            assert await reader.read(0, 0) == [b"kept"]
            reader = await again(calls["open"])
            assert await reader.read(0, 0) == [b"entry"]
            await again(calls["delete"])
            assert closed.ledger_id not in await again(calls["list"])
            recovered = await again(lambda: client.recover_and_open(writer.ledger_id))
            assert await recovered.read(0, 0) == [b"while ZooKeeper hangs"]

    asyncio.run(run())


def test_a_client_that_starts_or_closes_while_zookeeper_hangs(
    cluster_of_six: LocalCluster, hung: Callable[[bool], None]
) -> None:
    client = BlockingClient(cluster_of_six.metadata_service_uri, CONFIG)
    hung(True)
    began = time.monotonic()
    with pytest.raises(MetadataUnavailableError):
        BlockingClient(cluster_of_six.metadata_service_uri, CONFIG)
    assert time.monotonic() - began < TIMEOUT_MS / 1000 + 5 + SLACK_S
    began = time.monotonic()
    client.close()
    # Five seconds for the session's end to be confirmed.
    assert time.monotonic() - began < 7 + SLACK_S
    hung(False)


def test_closing_ends_the_calls_that_wait_for_zookeeper(
    cluster_of_six: LocalCluster, hung: Callable[[bool], None]
) -> None:
    async def run() -> None:
        client = Client(
            cluster_of_six.metadata_service_uri, ClientConfig(zk_session_timeout_ms=60_000, metadata_timeout_ms=120_000)
        )
        await client.start()
        hung(True)
        waiting = [asyncio.create_task(client.metadata(ledger_id)) for ledger_id in range(10)]
        await asyncio.sleep(0)
        async with asyncio.timeout(7 + SLACK_S):
            await client.close()
            for error in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(error, MetadataUnavailableError), error

    asyncio.run(run())
    hung(False)


def test_bookies_are_reached_at_their_last_address_while_zookeeper_hangs(
    cluster_of_six: LocalCluster, hung: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries can be read without ZooKeeper, also over new connections: a bookie's id is its address."""
    connections: list[FramedConnection] = []
    connection_made = FramedConnection.connection_made

    def made(connection: FramedConnection, transport: asyncio.BaseTransport) -> None:
        connections.append(connection)
        connection_made(connection, transport)

    monkeypatch.setattr(FramedConnection, "connection_made", made)

    async def run() -> None:
        async with Client(cluster_of_six.metadata_service_uri, CONFIG) as client:
            writer = await client.create(quorum=QUORUM)
            for _ in range(10):
                await writer.append(b"entry")
            await writer.close()
            reader = await client.open_for_reading(writer.ledger_id)
            assert await reader.read(0, 4) == [b"entry"] * 5
            hung(True)
            # What ends the session's connection ends its watches, and what they kept up to date.
            await asyncio.to_thread(cut, client.zookeeper)
            for connection in connections:
                connection.close()
            before = len(connections)
            async with asyncio.timeout(60):
                assert await reader.read(5, 9) == [b"entry"] * 5
            assert len(connections) > before > 0
            hung(False)

    asyncio.run(run())


def test_calls_after_zookeeper_hung_and_the_session_expired(
    cluster_of_six: LocalCluster, hung: Callable[[bool], None]
) -> None:
    async def run() -> None:
        async with Client(cluster_of_six.metadata_service_uri, CONFIG) as client:
            writer = await client.create(quorum=QUORUM)
            await writer.append(b"before")
            hung(True)
            await bounded(client.metadata(writer.ledger_id))
            hung(False)
            await again(lambda: client.metadata(writer.ledger_id))
            before = client.zookeeper.session_id
            assert before
            await asyncio.to_thread(expire, client.zookeeper)
            assert client.zookeeper.session_id != before
            assert (await again(lambda: client.metadata(writer.ledger_id))).state is LedgerState.OPEN
            await writer.append(b"after")
            assert (await again(writer.close)).last_entry_id == 1
            # In its new session it finds the bookies.
            made = await again(lambda: client.create(quorum=QUORUM))
            await again(made.close)
            await again(lambda: client.delete(writer.ledger_id))

    asyncio.run(run())


def test_a_shared_session_is_left_alone(cluster_of_six: LocalCluster) -> None:
    session = ZooKeeper(",".join(server.id for server in cluster_of_six.zookeepers))
    session.start()
    try:
        with BlockingClient(cluster_of_six.metadata_service_uri, zookeeper=session) as client:
            assert len(client.bookies()) == 6
            assert not any(bookie.read_only for bookie in client.bookies())
            assert sorted(client.list_ledgers()) == list(client.list_ledgers())
        assert session.exists("/") is not None
    finally:
        session.close()
