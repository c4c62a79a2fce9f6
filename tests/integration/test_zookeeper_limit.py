"""ZooKeeper as it is shipped takes 60 connections from one host (``maxClientCnxns``)."""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.metadata.zookeeper_refusal import refusal
from bk_spark.log.formats.settings import EntryFormat, LogSettings
from bk_spark.log.store import LogStore
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import InvalidArgumentError, MetadataUnavailableError
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalCluster
from tests.support.nursery import QuickCluster

LIMIT = 60
WAIT_S = 60.0
TRIALS = 1_000


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A ZooKeeper that nobody else asks."""
    with QuickCluster(tmp_path_factory.mktemp("limit"), bookies=0) as cluster:
        yield cluster


def connections(server: str) -> int:
    """Of clients, as the server tells; but for the one that asks, which a server at its limit refuses."""
    host, port = server.split(":")
    try:
        with socket.create_connection((host, int(port)), timeout=WAIT_S) as connection:
            connection.sendall(b"srvr")
            answer = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
    except (BrokenPipeError, ConnectionResetError):
        return LIMIT  # how the client learns of the refusal depends on how the packets come
    found = re.search(r"^Connections: (\d+)$", answer, re.MULTILINE)
    return LIMIT if found is None else int(found[1]) - 1


def wait_connections(server: str, most: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while connections(server) > most:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_local_zookeepers_have_the_limit_that_zookeeper_is_shipped_with(zk_only: LocalCluster) -> None:
    for server in zk_only.zookeepers:
        assert "maxClientCnxns" not in (server.directory / "zoo.cfg").read_text()


def test_the_limit_is_named_where_it_stops_a_client(alone: LocalCluster) -> None:
    server = alone.zookeepers[0].id
    wait_connections(server, 0)
    with ExitStack() as sessions:
        for _ in range(LIMIT):
            session = ZooKeeper(server)
            sessions.callback(session.close)
            session.start(30_000)
        further = ZooKeeper(server)
        sessions.callback(further.close)
        with pytest.raises(MetadataUnavailableError) as raised:
            further.start(3_000)
    assert str(raised.value) == (
        f"ZooKeeper at {server} closes new connections of this host at once: it has reached maxClientCnxns, the "
        "limit of connections from one host (60 by default). Raise it in ZooKeeper's zoo.cfg (0: no limit), or run "
        "fewer clients, which include Spark tasks and queries, on this host at once"
    )
    # Others are told what they were told before.
    wait_connections(server, LIMIT - 1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        for port in (1, silent.getsockname()[1]):
            with pytest.raises(MetadataUnavailableError, match="no ZooKeeper server answered at"):
                ZooKeeper(f"127.0.0.1:{port}").start(500)


def test_every_way_in_which_a_server_ends_a_connection_at_its_limit_is_named() -> None:
    """ZooKeeper ends its direction, and then resets the connection: the client sees the end, a reset, or a broken
    pipe, as the packets happen to come."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def refuse() -> None:
            for number in range(TRIALS):
                connection, _ = server.accept()
                if number % 2:
                    connection.shutdown(socket.SHUT_WR)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()

        with ThreadPoolExecutor(1) as thread:
            refusing = thread.submit(refuse)
            found = [refusal(f"127.0.0.1:{port}") for _ in range(TRIALS)]
            refusing.result(WAIT_S)
    assert [number for number, text in enumerate(found) if text is None] == []


def test_more_clients_than_connections_where_sessions_rest(alone: LocalCluster) -> None:
    """As many tasks of Spark on one host: each asks, and is then busy with bookies."""
    server = alone.zookeepers[0].id
    wait_connections(server, 0)
    count = LIMIT + 20
    asked = threading.Barrier(count)

    def ask(session: ZooKeeper) -> bool:
        asked.wait(WAIT_S)
        session.start()
        return session.exists("/ledgers") is not None

    with ExitStack() as sessions, ThreadPoolExecutor(count) as threads:
        made = [ZooKeeper(server, rest_after_ms=300) for _ in range(count)]
        for one in made:
            sessions.callback(one.close)
        assert all(threads.map(ask, made))
        wait_connections(server, 0)
        # And once more, out of their rest.
        assert all(found is not None for found in threads.map(lambda session: session.exists("/ledgers"), made))


def test_a_ledger_is_written_and_read_while_the_session_rests(cluster: LocalCluster) -> None:
    with BlockingClient(cluster.metadata_service_uri, ClientConfig(zk_session_rest_ms=50)) as client:
        writer = client.create(quorum=Quorum(2, 2, 2))
        for number in range(3):
            _wait_rest(client.zookeeper)
            writer.append(b"%d" % number)
            writer.flush()
            # Nobody asked ZooKeeper, nor did the end of its watches.
            assert client.zookeeper.session_id == 0
        writer.close()
        _wait_rest(client.zookeeper)
        assert client.open_for_reading(writer.ledger_id).read(0, 2) == [b"0", b"1", b"2"]


def test_a_bookie_is_replaced_though_the_session_rests(mended_cluster: LocalCluster) -> None:
    with BlockingClient(mended_cluster.metadata_service_uri, ClientConfig(zk_session_rest_ms=50)) as client:
        writer = client.create(quorum=Quorum(2, 2, 2))
        writer.append(b"0")
        writer.flush()
        _wait_rest(client.zookeeper)
        victim = writer.metadata.last_segment.ensemble[0]
        next(one for one in mended_cluster.bookies if one.id == victim).kill()
        writer.append(b"1")
        writer.flush()
        metadata = writer.close()
        assert victim not in metadata.last_segment.ensemble
        assert metadata.last_entry_id == 1


def test_a_log_writer_does_not_take_a_session_that_rests(metadata_service_uri: str) -> None:
    """It holds its place by an ephemeral znode."""
    config = ClientConfig(zk_session_rest_ms=50, explicit_lac_interval_ms=100)
    with BlockingClient(metadata_service_uri, config) as client:
        settings = LogSettings.create(Quorum(3, 3, 2), DigestType.CRC32C, EntryFormat.RAW, b"")
        log = LogStore.of(client, f"/limit-{uuid.uuid4().hex}/logs").create_log("events", settings)
        with pytest.raises(InvalidArgumentError, match="leave zkSessionRestMs out"):
            log.open_writer()


def _wait_rest(session: ZooKeeper) -> None:
    deadline = time.monotonic() + WAIT_S
    while session.session_id:
        assert time.monotonic() < deadline
        time.sleep(0.01)
