"""A login over gRPC. Messages: sessions.proto."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.message import DecodeError

from bk_spark.bookie.connection.grpc import GrpcConnection
from bk_spark.bookie.connection.logins import NO_ANSWER, Dialogue
from bk_spark.protocol.errors import BookKeeperError, UnauthorizedError, WireFormatError
from bk_spark.protocol.proto import sessions_pb2 as pb
from bk_spark.protocol.wire.auth_frames import DISABLED, SESSION_METADATA, SESSIONS, AuthMessage


class GrpcDialogue(Dialogue):
    """The call of the login. It stays open as long as the connection, and when it ends the connection does."""

    def __init__(self, connection: GrpcConnection) -> None:
        self._connection = connection
        self._call: Any = connection.channel.stream_stream(f"/{SESSIONS}/LogIn")()
        self._session = b""
        self._is_needed = True

    @property
    def bookie_id(self) -> str:
        """The bookie of the connection."""
        return self._connection.bookie_id

    async def open(self) -> None:
        """Wait for the bookie. Raises BookieUnavailableError."""
        problem: BookKeeperError | None = None
        try:
            await self._call.initial_metadata()
            if self._call.done():
                await self._call.read()
        except grpc.aio.AioRpcError as error:
            # A bookie that asks nobody to log in does not know the call.
            self._is_needed = error.code() is not grpc.StatusCode.UNIMPLEMENTED
            problem = self._connection.failed(error) if self._is_needed else None
        # Not above: an error that somebody keeps would keep gRPC's, and with it the channel.
        if problem is not None:
            self.close()
            raise problem

    async def ask(self, message: AuthMessage) -> AuthMessage:
        """Send a message over the call. See :meth:`Dialogue.ask`."""
        if not self._is_needed:
            return AuthMessage(DISABLED, b"")
        problem: BookKeeperError
        try:
            await self._call.write(pb.LogInMessage(plugin=message.plugin, payload=message.payload).SerializeToString())
            data = await self._call.read()
            if data is grpc.aio.EOF:
                raise WireFormatError(NO_ANSWER)
            answer = pb.LogInAnswer.FromString(data)
            self._session = answer.session
            return AuthMessage(message.plugin, answer.payload)
        except DecodeError:
            problem = WireFormatError(NO_ANSWER)
        except grpc.aio.AioRpcError as error:
            refused = error.code() is grpc.StatusCode.UNAUTHENTICATED
            problem = UnauthorizedError("the bookie refuses the login") if refused else self._connection.failed(error)
        raise problem

    def end(self) -> None:
        """Let each later call show the session. Raises WireFormatError if the bookie named none."""
        if not self._is_needed:
            return
        if not self._session:
            raise WireFormatError("the bookie does not say that the login has succeeded")
        self._connection.metadata = ((SESSION_METADATA, self._session),)
        self._connection.begin(self._hold())

    def close(self) -> None:
        """Close the connection, and with it the call."""
        self._connection.close()
        # Whoever keeps the error keeps this, and the call would keep the channel.
        del self._call

    async def _hold(self) -> None:
        await self._call.read()
        raise WireFormatError("the bookie has ended the login")
