"""The gRPC server: the bookie's service, and the standard services of health and reflection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from bk_spark.bookie.tls.contexts import TlsContexts
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.proto import bookie_pb2 as pb
from bk_spark.protocol.wire.batches import SERVICE
from bookie_server.net.common.access.rights import ADMIN, FENCE, READ, WRITE
from bookie_server.net.grpc import inquiries
from bookie_server.net.grpc.access.admission import admit
from bookie_server.net.grpc.access.credentials import server_credentials
from bookie_server.net.grpc.access.logins import LoginService
from bookie_server.net.grpc.access.sessions import Sessions
from bookie_server.net.grpc.adds import AddCall
from bookie_server.net.grpc.calls import (
    MAX_CALLS_PER_CONNECTION,
    UNARY_TIMEOUT_S,
    Call,
    Context,
    Service,
    Stuck,
)
from bookie_server.net.grpc.gate import Gate
from bookie_server.net.grpc.lines import check_free, choose_by_address, line_count
from bookie_server.net.grpc.reads import ReadCall
from bookie_server.net.native.shared import Shared

_LOG: Final = logging.getLogger(__name__)
#: How long callers may take to end their calls when the bookie stops.
_GRACE_S: Final = 2.0
#: A connection is closed if it does not begin as one of HTTP/2 in this time, and later if it has no calls, or its peer
#: answers no ping. While all places are taken by peers that call nothing, newcomers wait for as long as these may.
_HANDSHAKE_MS: Final = 10_000
_IDLE_MS: Final = 3_000
_PING_AFTER_MS: Final = 60_000
_PING_TIMEOUT_MS: Final = 20_000
#: Room in a message for everything but its entries.
_HEAD_BYTES: Final = 4096

_Q = TypeVar("_Q", bound=Message)
_A = TypeVar("_A", bound=Message)


class GrpcServer:
    """Serves the bookie of ``shared``, the limits of which count for both front ends together.

    ``tls``: the certificates. None: calls are in clear. ``services`` make those that are wanted, too.
    """

    def __init__(
        self, shared: Shared, tls: TlsContexts | None = None, services: Iterable[Callable[[Stuck], Service]] = ()
    ) -> None:
        self._shared = shared
        self._tls = tls
        self._stuck = Stuck()
        self._services: list[Service] = [make(self._stuck) for make in services]
        config = shared.config
        sessions = Sessions(config.max_grpc_connections)
        if shared.access is not None and shared.access.logins is not None:
            self._services.append(LoginService(shared.access, sessions))
        self.gate = Gate(
            config.max_grpc_calls, config.frame_timeout_ms / 1000, config.grpc_message_timeout_ms / 1000, sessions
        )
        self._health = health.aio.HealthServicer()
        #: One for each line of callers.
        self._servers: list[Any] = []

    async def start(self, host: str, port: int) -> int:
        """Listen and serve. Return the port, which is chosen if ``port`` is 0. Raises OSError."""
        config = self._shared.config
        count = line_count(config.grpc_lines, config.max_grpc_connections)
        if port:
            check_free(host, port)
        port = await self._listen(host, port, config.max_grpc_connections // count)
        if count > 1:
            choose_by_address(port, count)
        for _ in range(count - 1):
            await self._listen(host, port, config.max_grpc_connections // count)
        for name in ("", *self._names()):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return port

    async def close(self) -> None:
        """Take no more calls, and end those under way."""
        if self._servers:
            await self._health.enter_graceful_shutdown()
            await asyncio.gather(*(server.stop(_GRACE_S) for server in self._servers))
        for service in self._services:
            await service.close()

    def _names(self) -> list[str]:
        return [SERVICE, *(service.name for service in self._services)]

    async def _listen(self, host: str, port: int, connections: int) -> int:
        """Start a server for one line of callers. Return the port. Raises OSError."""
        message_bytes = self._shared.config.max_frame_bytes + _HEAD_BYTES
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", message_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", MAX_CALLS_PER_CONNECTION),
                ("grpc.max_allowed_incoming_connections", connections),
                ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
                ("grpc.max_connection_idle_ms", _IDLE_MS),
                ("grpc.keepalive_time_ms", _PING_AFTER_MS),
                ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
                ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
                # All lines share the port. That nobody else does was checked before.
                ("grpc.so_reuseport", 1),
            ],
            interceptors=(self.gate,),
        )
        self._servers.append(server)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, self._methods()),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        for service in self._services:
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.name, service.methods()),))
        reflection.enable_server_reflection((*self._names(), health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        address = f"{host}:{port}"
        try:
            if self._tls is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, server_credentials(self._tls))
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from error
        await server.start()
        return int(port)

    def _methods(self) -> dict[str, Any]:
        return {
            "Add": grpc.stream_stream_rpc_method_handler(self._add),
            "Read": grpc.stream_stream_rpc_method_handler(self._read),
            "Tail": self._unary(pb.TailRequest, pb.TailAnswer, inquiries.tail, READ, timeout_s=None),
            "Fence": self._unary(pb.FenceRequest, pb.FenceAnswer, inquiries.fence, FENCE),
            "GetLastAddConfirmed": self._unary(
                pb.GetLastAddConfirmedRequest, pb.GetLastAddConfirmedAnswer, inquiries.get_last_add_confirmed, READ
            ),
            "SetLastAddConfirmed": self._unary(
                pb.SetLastAddConfirmedRequest, pb.SetLastAddConfirmedAnswer, inquiries.set_last_add_confirmed, WRITE
            ),
            "Force": self._unary(pb.ForceRequest, pb.ForceAnswer, inquiries.force, WRITE),
            "ListEntries": self._unary(pb.ListEntriesRequest, pb.ListEntriesAnswer, inquiries.list_entries, READ),
            # Every client asks for it, to find out whether there is a bookie.
            "GetInfo": self._unary(pb.GetInfoRequest, pb.GetInfoAnswer, inquiries.get_info, ADMIN, counted=False),
        }

    async def _add(self, _: object, context: Context) -> None:
        access = await admit(self._shared, context)
        call = AddCall(self._shared, self._stuck, context)
        call.requests.access = access
        await call.run()

    async def _read(self, _: object, context: Context) -> None:
        access = await admit(self._shared, context)
        call = ReadCall(self._shared, self._stuck, context)
        call.requests.access = access
        await call.run()

    def _unary(
        self,
        kind: type[_Q],
        answer: type[_A],
        method: Callable[[Call, _Q], Awaitable[_A]],
        needed: int,
        timeout_s: float | None = UNARY_TIMEOUT_S,
        *,
        counted: bool = True,
    ) -> Any:
        """``needed`` are rights. With ``counted`` callers without them are counted and logged, and wait."""

        async def handle(data: bytes, context: Context) -> bytes:
            access = await admit(self._shared, context)
            if access is not None and not (access.may if counted else access.has)(needed):
                if counted:
                    await context.wait_refused()
                return answer(code=pb.CODE_UNAUTHORIZED).SerializeToString()
            call = Call(self._shared, self._stuck, context)
            call.requests.access = access
            try:
                async with asyncio.timeout(timeout_s):
                    return (await method(call, await call.parse(kind, data))).SerializeToString()
            except TimeoutError:
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no answer within {timeout_s} s")
                raise
            except (BookKeeperError, OSError) as error:
                _LOG.error("a call failed: %s", error)
                await context.abort(grpc.StatusCode.INTERNAL, "the bookie's log says why")
                raise
            finally:
                call.end()

        return grpc.unary_unary_rpc_method_handler(handle)
