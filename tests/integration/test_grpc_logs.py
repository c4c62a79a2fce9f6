"""The service of logs over gRPC: a client in another language, made of the proto alone, and what can go wrong."""

from __future__ import annotations

import asyncio
import json
import subprocess
import uuid
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import bk_spark
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.metadata.registration import GRPC_PROTOCOL, BookieServiceInfo
from bk_spark.protocol.proto import logs_pb2 as pb
from bookie_server.local import LocalCluster
from tests.support.bookie import BookieProcess
from tests.support.node_client import node_client, program
from tests.support.servers import WITH_GRPC

PASSWORD = b"open sesame"
PROTO = Path(pb.__file__).with_name("logs.proto")
_ALONE = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
_TIMEOUT_S = 120


class Served:
    def __init__(self, uri: str, address: str) -> None:
        self.uri, self.address = uri, address


@pytest.fixture(scope="module")
def served(zk_only: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A bookie of the cluster that serves logs. It needs no other."""
    servers = zk_only.zookeepers[0].id
    uri = f"zk+hierarchical://{servers}/ledgers"
    process = BookieProcess(tmp_path_factory.mktemp("bookie"), uri, **WITH_GRPC, grpcLogServiceEnabled="true").start()
    session = ZooKeeper(servers)
    session.start()
    found = session.get(f"/ledgers/available/{process.id}")
    session.close()
    assert found is not None
    endpoint = BookieServiceInfo.decode(found.data, process.id).endpoint(GRPC_PROTOCOL)
    assert endpoint is not None
    yield Served(uri, f"{endpoint.host}:{endpoint.port}")
    process.end()


class Logs:
    """Calls of the service."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    async def ask(self, method: str, request: Any) -> Any:
        answer = getattr(pb, type(request).__name__.replace("Request", "Answer"))
        return await self._method("unary_unary", method, answer)(request, timeout=_TIMEOUT_S)

    def rows(self, method: str, request: Any) -> Any:
        return self._method("unary_stream", method, pb.Rows)(request, timeout=_TIMEOUT_S)

    def append(self) -> Any:
        return self._method("stream_stream", "Append", pb.AppendAnswer)(timeout=_TIMEOUT_S)

    def _method(self, kind: str, method: str, answer: Any) -> Any:
        return getattr(self._channel, kind)(
            f"/bk_spark.v1.Logs/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )


def play(served: Served, work: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(_TIMEOUT_S), grpc.aio.insecure_channel(served.address) as channel:
            await work(Logs(channel))

    asyncio.run(run())


async def status_of(call: Coroutine[Any, Any, Any]) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    status: grpc.StatusCode = caught.value.code()
    return status


async def ended(call: Any) -> grpc.StatusCode:
    """Take what comes; the status of the call."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError:
        pass
    status: grpc.StatusCode = await call.code()
    return status


async def new_log(logs: Logs) -> str:
    name = f"log-{uuid.uuid4().hex[:12]}"
    await logs.ask("Create", pb.CreateLogRequest(log=name, password=PASSWORD, **_ALONE))
    return name


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return node_client(tmp_path_factory.mktemp("node"))


def test_a_client_in_another_language_appends_and_follows(served: Served, node: Path) -> None:
    """And what it appended is read by ours."""
    name, count = f"log-{uuid.uuid4().hex[:12]}", 1_050

    async def make(logs: Logs) -> None:
        await logs.ask("Create", pb.CreateLogRequest(log=name, password=PASSWORD, **_ALONE))

    play(served, make)
    done = subprocess.run(
        [program("node"), str(node / "logs.js"), str(PROTO), served.address, name, PASSWORD.decode(), str(count)],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert name in told["names"]
    assert told["answers"] == [[i + 1, 100 * i, min(100, count - 100 * i)] for i in range(11)]
    assert told["seen"] == [[i, f"row {i}"] for i in range(count)]
    assert (told["firstOffset"], told["endOffset"]) == (0, count)
    assert (told["refused"], told["wrong"]) == ("NOT_FOUND", "PERMISSION_DENIED")
    with bk_spark.connect(served.uri, password=PASSWORD) as bk:
        blocks = list(bk.log(name).open_reader().read(0, count))
    assert [bytes(row) for block in blocks for row in block.payloads] == [b"row %d" % i for i in range(count)]


def test_rows_are_read_in_messages_of_bounded_size(served: Served) -> None:
    async def work(logs: Logs) -> None:
        name = await new_log(logs)
        call = logs.append()
        rows = [bytes([i]) * 400_000 for i in range(10)]
        for i in range(0, 10, 5):
            await call.write(pb.AppendRequest(log=name, password=PASSWORD, batch_id=i, rows=rows[i : i + 5]))
            answer = await call.read()
            assert (answer.batch_id, answer.first_offset, answer.count) == (i, i, 5)
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        described = await logs.ask("Describe", pb.DescribeLogRequest(log=name, password=PASSWORD))
        assert (described.first_offset, described.end_offset) == (0, 10)
        found = [
            one
            async for one in logs.rows(
                "Read", pb.ReadRowsRequest(log=name, password=PASSWORD, start_offset=2, end_offset=9)
            )
        ]
        assert [row for one in found for row in one.rows] == rows[2:9]
        assert max(len(one.rows) for one in found) <= 3
        offsets = [one.first_offset + i for one in found for i in range(len(one.rows))]
        assert offsets == list(range(2, 9))

    play(served, work)


def test_what_is_refused(served: Served) -> None:
    async def work(logs: Logs) -> None:
        name = await new_log(logs)
        again = logs.ask("Create", pb.CreateLogRequest(log=name, **_ALONE))
        assert await status_of(again) is grpc.StatusCode.ALREADY_EXISTS
        for request in (
            pb.CreateLogRequest(log="a/b"),
            pb.CreateLogRequest(log="x", ensemble_size=1, write_quorum_size=2),
            pb.CreateLogRequest(log="x", ensemble_size=1_000_000),
        ):
            assert await status_of(logs.ask("Create", request)) is grpc.StatusCode.INVALID_ARGUMENT
        for request, status in (
            (pb.ReadRowsRequest(log="none"), grpc.StatusCode.NOT_FOUND),
            (pb.ReadRowsRequest(log=name), grpc.StatusCode.PERMISSION_DENIED),
            (pb.ReadRowsRequest(log=name, password=PASSWORD, end_offset=1), grpc.StatusCode.OUT_OF_RANGE),
            (pb.ReadRowsRequest(log=name, password=PASSWORD, start_offset=1), grpc.StatusCode.INVALID_ARGUMENT),
        ):
            assert await ended(logs.rows("Read", request)) is status
        follow = logs.rows("Follow", pb.FollowRequest(log=name, password=PASSWORD, start_offset=7))
        assert await ended(follow) is grpc.StatusCode.OUT_OF_RANGE
        follow.cancel()

    play(served, work)


def test_one_writer_holds_a_log_until_another_takes_it(served: Served) -> None:
    async def work(logs: Logs) -> None:
        name = await new_log(logs)
        first, second, third = logs.append(), logs.append(), logs.append()
        await first.write(pb.AppendRequest(log=name, password=PASSWORD, rows=[b"a"]))
        assert (await first.read()).first_offset == 0
        await second.write(pb.AppendRequest(log=name, password=PASSWORD, rows=[b"b"]))
        assert await ended(second) is grpc.StatusCode.FAILED_PRECONDITION
        await third.write(pb.AppendRequest(log=name, password=PASSWORD, take_over=True, rows=[b"c"]))
        assert (await third.read()).first_offset == 1
        await first.write(pb.AppendRequest(rows=[b"d"]))
        assert await ended(first) is grpc.StatusCode.ABORTED
        # A caller that leaves does not close the log. The next writer goes on behind what was acknowledged.
        third.cancel()
        fourth = logs.append()
        await fourth.write(pb.AppendRequest(log=name, password=PASSWORD, take_over=True, rows=[b"e"]))
        assert (await fourth.read()).first_offset == 2
        await fourth.done_writing()
        assert await ended(fourth) is grpc.StatusCode.OK
        found = [one async for one in logs.rows("Read", pb.ReadRowsRequest(log=name, password=PASSWORD, end_offset=3))]
        assert [row for one in found for row in one.rows] == [b"a", b"c", b"e"]

    play(served, work)
