"""The gRPC front end in this process, and calls of it without the client: by method name and message."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from google.protobuf.message import Message

from bk_spark.bookie.tls.contexts import TlsContexts
from bk_spark.protocol.proto import bookie_pb2 as pb
from bk_spark.protocol.wire.batches import SERVICE
from bookie_server.net.common.access.front_access import FrontAccess
from bookie_server.net.common.limits import NetConfig
from bookie_server.net.common.load import Load
from bookie_server.net.grpc.server import GrpcServer
from bookie_server.net.native.server import NativeServer

KEY = bytes(range(20))


def records(entries: Sequence[bytes]) -> bytes:
    return b"".join(len(entry).to_bytes(4, "big") + entry for entry in entries)


def batch(batch_id: int, ledger_id: int, entries: Sequence[bytes], **fields: Any) -> pb.AddBatch:
    given = {"master_key": KEY, "count": len(entries), "records": records(entries), **fields}
    return pb.AddBatch(batch_id=batch_id, ledger_id=ledger_id, **given)


class Caller:
    """Calls over one channel."""

    def __init__(self, port: int, credentials: Any = None) -> None:
        target = f"127.0.0.1:{port}"
        # Each has a connection of its own.
        options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        self.channel = (
            grpc.aio.insecure_channel(target, options=options)
            if credentials is None
            else grpc.aio.secure_channel(target, credentials, options=options)
        )

    def stream(self, method: str) -> Any:
        """A call of Add or Read."""
        answer = {"Add": pb.AddAnswer, "Read": pb.ReadAnswer}[method]
        return self.channel.stream_stream(
            f"/{SERVICE}/{method}", request_serializer=_serialized, response_deserializer=answer.FromString
        )(timeout=60)

    async def ask(self, method: str, request: Message) -> Any:
        """Call a method with one request."""
        answer = getattr(pb, f"{method}Answer")
        call = self.channel.unary_unary(
            f"/{SERVICE}/{method}", request_serializer=_serialized, response_deserializer=answer.FromString
        )
        return await call(request, timeout=60)

    async def add(self, *batches: pb.AddBatch) -> dict[int, pb.AddAnswer]:
        """Add; the answers by batch."""
        call = self.stream("Add")
        for one in batches:
            await call.write(one)
        await call.done_writing()
        return {answer.batch_id: answer async for answer in call}

    async def read(self, **request: Any) -> list[pb.ReadAnswer]:
        """The answers to one request."""
        call = self.stream("Read")
        await call.write(pb.ReadRequest(**request))
        await call.done_writing()
        return [answer async for answer in call]


def _serialized(message: Message | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()


class GrpcFront:
    def __init__(self, native: NativeServer, server: GrpcServer, port: int) -> None:
        self.native, self.server, self.port = native, server, port

    @property
    def load(self) -> Load:
        return self.native.load


@contextlib.asynccontextmanager
async def grpc_front(
    bookie: Any,
    config: NetConfig | None = None,
    tls: TlsContexts | None = None,
    access: FrontAccess | None = None,
) -> AsyncIterator[GrpcFront]:
    """At its end its counters must be empty."""
    native = NativeServer(bookie, disk_space=lambda: (1, 2), config=config or NetConfig(), access=access)
    server = GrpcServer(native.shared, tls)
    port = await server.start("127.0.0.1", 0)
    try:
        yield GrpcFront(native, server, port)
    finally:
        await server.close()
    load = native.load
    async with asyncio.timeout(60):
        while load.polls or load.reads or load.reads_bytes or load.unsent_bytes:
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def caller(port: int, credentials: Any = None) -> AsyncIterator[Caller]:
    one = Caller(port, credentials)
    try:
        yield one
    finally:
        await one.channel.close(None)
