"""gRPC of a real bookie: where it is registered, and that it is the same bookie as on the native port."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from grpc import StatusCode

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.codes import Code
from bk_spark.protocol.metadata.registration import GRPC_PROTOCOL, NATIVE_PROTOCOL, BookieServiceInfo
from bk_spark.protocol.proto import bookie_pb2 as pb
from bookie_server.local import LocalCluster
from tests.support.bookie import KEY, BookieProcess, stored
from tests.support.grpc_front import batch, caller
from tests.support.servers import WITH_GRPC


@pytest.fixture(scope="module")
def bookie(zk_only: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookieProcess]:
    uri = f"zk://{zk_only.zookeepers[0].id}/ledgers"
    process = BookieProcess(tmp_path_factory.mktemp("bookie"), uri, **WITH_GRPC)
    process.start()
    yield process
    process.end()


def registered(zookeeper: ZooKeeper, bookie: BookieProcess) -> BookieServiceInfo:
    found = zookeeper.get(f"/ledgers/available/{bookie.id}")
    assert found is not None
    return BookieServiceInfo.decode(found.data, bookie.id)


def test_both_endpoints_are_registered_and_lead_to_the_same_bookie(bookie: BookieProcess, zookeeper: ZooKeeper) -> None:
    async def play(port: int) -> None:
        async with asyncio.timeout(120), caller(port) as one:
            answers = await one.add(batch(1, 77, [stored(77, 1)], master_key=KEY))
            assert answers[1].code == pb.CODE_OK
            (found,) = await one.read(ledger_id=77, first_entry_id=0, count=2, max_bytes=10_000)
            assert (found.code, found.count) == (pb.CODE_OK, 2)
            # Other services are served only where they are asked for.
            for name in ("Admin/GetServer", "Logs/List"):
                call = one.channel.unary_unary(f"/bk_spark.v1.{name}")(b"")
                assert await call.code() is StatusCode.UNIMPLEMENTED

    info = registered(zookeeper, bookie)
    native, grpc = info.endpoint(NATIVE_PROTOCOL), info.endpoint(GRPC_PROTOCOL)
    assert native is not None
    assert grpc is not None
    assert info.endpoints[0] == native, "clients that take the first endpoint find the native one"
    assert (native.host, native.port, grpc.host) == ("127.0.0.1", bookie.port, "127.0.0.1")
    with bookie.connect() as connection:
        assert connection.add(77, [0]) == [Code.OK]
    asyncio.run(play(grpc.port))


def test_a_port_that_is_taken_and_keys_that_contradict(bookie: BookieProcess, zookeeper: ZooKeeper) -> None:
    endpoint = registered(zookeeper, bookie).endpoint(GRPC_PROTOCOL)
    assert endpoint is not None
    settings = bookie.settings | {"grpcServerPort": str(endpoint.port)}
    other = BookieProcess(bookie.directory.parent / "other", settings.pop("metadataServiceUri"))
    directories = {key: value for key, value in other.settings.items() if key.endswith("Directories")}
    other.settings |= settings | directories | {"bookiePort": str(other.port)}
    other.launch()
    assert not other.wait_line("serves on")
    assert other.wait() == 2
    assert any("bookie not started: grpcServerPort" in line for line in other.lines), other.lines
