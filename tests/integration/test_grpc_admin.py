"""The administration of a real bookie over gRPC: who may call it, and that it does what the admin API does."""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.codes import Code
from bk_spark.protocol.metadata.registration import GRPC_PROTOCOL, BookieServiceInfo
from bk_spark.protocol.proto import admin_pb2 as pb
from bookie_server.local import LocalCluster
from tests.support.admin import TOKEN, token_file
from tests.support.bookie import BookieProcess
from tests.support.certificates import authority, identity, write_pem
from tests.support.servers import WITH_GRPC

_SERVICE = pb.DESCRIPTOR.services_by_name["Admin"]
_METHODS = _SERVICE.methods_by_name
#: What each method that changes something is asked to do, so that a caller who may is not refused.
_CHANGES = {
    "SetReadOnly": pb.SetReadOnlyRequest(read_only=False),
    "CollectGarbage": pb.CollectGarbageRequest(),
    "SuspendCompaction": pb.SuspendCompactionRequest(major=True),
    "ResumeCompaction": pb.ResumeCompactionRequest(major=True),
    "ReleaseCollection": pb.ReleaseCollectionRequest(word="no such word"),
    "SetAutoRecovery": pb.SetAutoRecoveryRequest(enabled=True),
    "SetLostBookieRecoveryDelay": pb.SetLostBookieRecoveryDelayRequest(seconds=0),
    "TriggerAudit": pb.TriggerAuditRequest(),
}
_READS = [name for name in _METHODS if name.startswith(("Get", "List"))]
_TIMEOUT_S = 120
OK, UNAUTHENTICATED, DENIED = grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED
PRECONDITION, INVALID = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT


class Operator:
    """Calls of the service, with ``token`` if one is given."""

    def __init__(self, channel: Any, token: str | None = None) -> None:
        self.channel = channel
        self.metadata = None if token is None else (("authorization", f"Bearer {token}"),)

    async def all_of(self, name: str, request: Any = None) -> list[Any]:
        """Call a method, and return its answers."""
        method = _METHODS[name]
        kind = "unary_stream" if method.server_streaming else "unary_unary"
        call = getattr(self.channel, kind)(
            f"/{_SERVICE.full_name}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )(request or GetMessageClass(method.input_type)(), metadata=self.metadata, timeout=_TIMEOUT_S)
        return [one async for one in call] if method.server_streaming else [await call]

    async def ask(self, name: str, request: Any = None) -> Any:
        (answer,) = await self.all_of(name, request)
        return answer

    async def status(self, name: str, request: Any = None) -> grpc.StatusCode:
        try:
            await self.all_of(name, request or _CHANGES.get(name))
        except grpc.aio.AioRpcError as error:
            code: grpc.StatusCode = error.code()
            return code
        return OK

    async def statuses(self, names: Any) -> set[grpc.StatusCode]:
        # Together, since the bookie lets those wait that are refused again and again.
        return {*await asyncio.gather(*map(self.status, names))}


def address_of(zookeeper: ZooKeeper, root: str, bookie: BookieProcess) -> str:
    found = zookeeper.get(f"{root}/available/{bookie.id}")
    assert found is not None
    endpoint = BookieServiceInfo.decode(found.data, bookie.id).endpoint(GRPC_PROTOCOL)
    assert endpoint is not None
    return f"{endpoint.host}:{endpoint.port}"


@pytest.fixture
def bookie(tmp_path: Path, zk_only: LocalCluster, ledgers_root: str) -> Iterator[BookieProcess]:
    process = BookieProcess(
        tmp_path / "bookie",
        f"zk+hierarchical://{zk_only.zookeepers[0].id}{ledgers_root}",
        **WITH_GRPC,
        grpcAdminServiceEnabled="true",
    )
    yield process
    process.end()


def test_with_tokens(bookie: BookieProcess, zookeeper: ZooKeeper, ledgers_root: str, tmp_path: Path) -> None:
    """Reads are open, and changes need the token, as by HTTP."""
    assert {*_READS, *_CHANGES} == {*_METHODS}
    tokens = token_file(tmp_path)
    bookie.settings["httpServerTokenFile"] = tokens
    bookie.start()
    address = address_of(zookeeper, ledgers_root, bookie)
    with bookie.connect() as connection:
        for ledger_id in (3, 5):
            assert connection.add(ledger_id, [0]) == [Code.OK]

    async def play() -> None:
        async with asyncio.timeout(_TIMEOUT_S), grpc.aio.insecure_channel(address) as channel:
            operator, nobody = Operator(channel, TOKEN), Operator(channel)
            for other in (nobody, Operator(channel, TOKEN[:-1]), Operator(channel, "")):
                assert await other.statuses(_CHANGES) == {UNAUTHENTICATED}
            assert not (await nobody.ask("GetState")).read_only
            assert await nobody.statuses(_READS) == {OK}
            await check_the_bookie(operator, bookie)
            await check_its_disks(operator)
            await check_collection(operator)
            await check_self_healing(operator, bookie)
            await check_that_it_is_listed(channel)

    asyncio.run(play())
    assert bookie.wait_line("by=token status=OK")
    assert not any(TOKEN in line for line in bookie.lines)


async def check_the_bookie(operator: Operator, bookie: BookieProcess) -> None:
    server = await operator.ask("GetServer")
    assert (server.bookie_id, server.port) == (bookie.id, bookie.port)
    assert server.version == importlib.metadata.version("bk-spark")
    settings = {one.key: one for one in (await operator.ask("GetConfiguration")).settings}
    for key, value in bookie.settings.items():
        assert (settings[key].value, settings[key].given) == (value, True), key
    assert (settings["nettyMaxFrameSizeBytes"].value, settings["nettyMaxFrameSizeBytes"].given) == ("5242880", False)
    assert not any(TOKEN in one.value for one in settings.values())
    state = await operator.ask("SetReadOnly", pb.SetReadOnlyRequest(read_only=True))
    assert (state.running, state.ready, state.read_only, set(state.read_only_reasons)) == (True, True, True, {"manual"})
    with bookie.connect() as connection:
        assert connection.add(3, [1]) == [Code.READ_ONLY]
    assert not (await operator.ask("SetReadOnly", pb.SetReadOnlyRequest(read_only=False))).read_only
    assert await operator.status("SetReadOnly", pb.SetReadOnlyRequest()) is INVALID
    assert not (await operator.ask("GetDataCheck")).known


async def check_its_disks(operator: Operator) -> None:
    usage = await operator.ask("GetDiskUsage")
    assert 0 < usage.free_bytes < usage.total_bytes
    found = await operator.all_of("ListLedgers")
    assert [ledger_id for one in found for ledger_id in one.ledger_ids] == [3, 5]
    files = (await operator.ask("ListFiles", pb.ListFilesRequest(file_type="journal"))).by_type
    assert [*files] == ["journal"]
    assert files["journal"].names[0].endswith(".txn")
    assert await operator.status("ListFiles", pb.ListFilesRequest(file_type="none")) is INVALID
    assert len((await operator.ask("GetLastLogMarks")).marks) == 1


async def check_collection(operator: Operator) -> None:
    collection = await operator.ask("SuspendCompaction", pb.SuspendCompactionRequest(major=True))
    assert (collection.major_suspended, collection.minor_suspended, len(collection.stopped)) == (True, False, 0)
    refused = operator.status("CollectGarbage", pb.CollectGarbageRequest(major=True))
    assert await refused is PRECONDITION, "major compaction is suspended"
    collection = await operator.ask("ResumeCompaction", pb.ResumeCompactionRequest(major=True, minor=True))
    assert (collection.major_suspended, collection.minor_suspended) == (False, False)
    before = collection.major_compactions
    await operator.ask("CollectGarbage", pb.CollectGarbageRequest(major=True))
    while (await operator.ask("GetGarbageCollection")).major_compactions == before:
        await asyncio.sleep(0.02)
    assert await operator.status("ReleaseCollection", pb.ReleaseCollectionRequest(word="wrong")) is PRECONDITION
    assert await operator.status("SuspendCompaction", pb.SuspendCompactionRequest()) is INVALID


async def check_self_healing(operator: Operator, bookie: BookieProcess) -> None:
    recovery = await operator.ask("SetAutoRecovery", pb.SetAutoRecoveryRequest(enabled=False))
    assert (recovery.enabled, recovery.HasField("auditor")) == (False, False)
    assert not recovery.HasField("lost_bookie_recovery_delay_s")
    assert (await operator.ask("SetAutoRecovery", pb.SetAutoRecoveryRequest(enabled=True))).enabled
    recovery = await operator.ask("SetLostBookieRecoveryDelay", pb.SetLostBookieRecoveryDelayRequest(seconds=7))
    assert recovery.lost_bookie_recovery_delay_s == 7
    wrong = pb.SetLostBookieRecoveryDelayRequest(seconds=-1)
    assert await operator.status("SetLostBookieRecoveryDelay", wrong) is INVALID
    await operator.ask("TriggerAudit")
    assert await operator.all_of("ListUnderReplicatedLedgers") == []
    cluster = await operator.ask("GetCluster")
    assert [(one.bookie, one.state) for one in cluster.bookies] == [(bookie.id, "writable")]
    assert (cluster.repair.enabled, list(cluster.problems)) == (True, [])


async def check_that_it_is_listed(channel: Any) -> None:
    question = health_pb2.HealthCheckRequest(service=_SERVICE.full_name)
    health = await health_pb2_grpc.HealthStub(channel).Check(question)
    assert health.status == health_pb2.HealthCheckResponse.SERVING
    call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    listed = await call.read()
    assert _SERVICE.full_name in {one.name for one in listed.list_services_response.service}
    await call.done_writing()


def test_with_rights(bookie: BookieProcess, zookeeper: ZooKeeper, ledgers_root: str, tmp_path: Path) -> None:
    """Where there is an authorizationFile a caller with a name needs the right admin, and no token."""
    table = tmp_path / "authorization"
    table.write_text("all role:operators\nread,write,fence role:spark\n")
    bookie.settings |= write_pem(tmp_path / "tls", identity("bookie"))
    bookie.settings |= {"tlsClientAuthentication": "true", "authorizationFile": str(table)}
    bookie.settings["httpServerTokenFile"] = token_file(tmp_path)
    bookie.start()
    address = address_of(zookeeper, ledgers_root, bookie)

    def channel(role: str) -> Any:
        own = identity(role, client_only=True, units=(f"0:{role}",))
        return grpc.aio.secure_channel(
            address, grpc.ssl_channel_credentials(authority("ours").pem, own.key_pem(), own.pem)
        )

    async def play() -> None:
        async with asyncio.timeout(_TIMEOUT_S), channel("operators") as mine, channel("spark") as others:
            assert await Operator(others, TOKEN).statuses(_METHODS) == {DENIED}, "a token gives no right"
            assert not (await Operator(mine).ask("GetState")).read_only
            assert (await Operator(mine).ask("SetReadOnly", pb.SetReadOnlyRequest(read_only=True))).read_only

    asyncio.run(play())
    assert bookie.wait_line("'role:operators'")


def test_a_caller_without_a_name_needs_the_token_in_any_case(
    bookie: BookieProcess, zookeeper: ZooKeeper, ledgers_root: str, tmp_path: Path
) -> None:
    """Without a file for it nothing is changed."""
    table = tmp_path / "authorization"
    table.write_text("admin anonymous\n")
    bookie.settings |= {"authorizationFile": str(table), "httpServerReadTokenFile": token_file(tmp_path)}
    bookie.start()
    address = address_of(zookeeper, ledgers_root, bookie)

    async def play() -> None:
        async with asyncio.timeout(_TIMEOUT_S), grpc.aio.insecure_channel(address) as channel:
            assert await Operator(channel, TOKEN).statuses(_CHANGES) == {DENIED}
            assert await Operator(channel).statuses(_READS) == {UNAUTHENTICATED}
            assert await Operator(channel, TOKEN).statuses(_READS) == {OK}

    asyncio.run(play())
