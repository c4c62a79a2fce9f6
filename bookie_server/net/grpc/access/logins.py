"""The service by which callers log in, where the bookie asks them to. Messages: sessions.proto."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc.aio import EOF

from bk_spark.bookie.auth.providers import Peer
from bk_spark.protocol.errors import UnauthorizedError
from bk_spark.protocol.proto import sessions_pb2 as pb
from bk_spark.protocol.wire.auth_frames import SESSIONS
from bookie_server.net.common.access.front_access import LOGIN_TIMEOUT_S, ConnectionAccess, FrontAccess
from bookie_server.net.grpc.access.admission import certificate_of
from bookie_server.net.grpc.access.sessions import Sessions
from bookie_server.net.grpc.calls import Context


class LoginService:
    """Belongs to the event loop. A login counts as a call until it has succeeded, and then as a session."""

    name = SESSIONS

    def __init__(self, access: FrontAccess, sessions: Sessions) -> None:
        self._access = access
        self._sessions = sessions
        #: The time for a login.
        self.timeout_s = LOGIN_TIMEOUT_S

    def methods(self) -> dict[str, Any]:
        """Return the handler of the service, by name."""
        return {"LogIn": grpc.stream_stream_rpc_method_handler(self._log_in)}

    async def _log_in(self, _: object, context: Context) -> None:
        context.message_s = None  # the login has a limit of its own, and the session lasts
        # So a client knows that the bookie is there before it says anything.
        await context.send_initial_metadata(())
        access = self._access.begin(Peer(context.peer(), certificate_of(context)))
        try:
            async with asyncio.timeout(self.timeout_s):
                payload = await self._talk(context, access)
        except TimeoutError:
            access.give_up()
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no login within {self.timeout_s:g} s")
        session = self._sessions.begin(context.peer(), access, context.end_wait)
        try:
            context.leave_place()
            await context.write(pb.LogInAnswer(payload=payload, session=session.token).SerializeToString())
            if await context.read() is not EOF:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the login is over")
        finally:
            self._sessions.end(session)

    async def _talk(self, context: Context, access: ConnectionAccess) -> bytes:
        """Return the payload of the last answer. Whatever else comes of the login ends the call."""
        while True:
            data = await context.read()
            if data is EOF:
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the login was not finished")
            try:
                message = pb.LogInMessage.FromString(data)
            except DecodeError:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "this is not a LogInMessage")
                raise
            if not access.knows(message.plugin):
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, "clients of this bookie log in another way")
            try:
                payload = access.log_in(message.payload)
            except UnauthorizedError as error:
                refused = error.message
            else:
                if access.is_allowed:
                    return payload
                await context.write(pb.LogInAnswer(payload=payload).SerializeToString())
                continue
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, refused)

    async def close(self) -> None:
        """Nothing is left when no call is under way."""
