"""A login over gRPC. Messages: sessions.proto."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from bk_spark.bookie.connection.grpc import GrpcConnection
from bk_spark.bookie.connection.http2.call import CallError
from bk_spark.bookie.connection.logins import NO_ANSWER, Dialogue
from bk_spark.protocol.errors import UnauthorizedError, WireFormatError
from bk_spark.protocol.proto import sessions_pb2 as pb
from bk_spark.protocol.wire.auth_frames import DISABLED, SESSION_METADATA, SESSIONS, AuthMessage
from bk_spark.protocol.wire.http2.calls import UNAUTHENTICATED, UNIMPLEMENTED


class GrpcDialogue(Dialogue):
    """The call of the login. It stays open as long as the connection, and when it ends the connection does."""

    def __init__(self, connection: GrpcConnection) -> None:
        self._connection = connection
        self._call = connection.channel.begin(f"/{SESSIONS}/LogIn")
        self._session = b""
        self._is_needed = True

    @property
    def bookie_id(self) -> str:
        """The bookie of the connection."""
        return self._connection.bookie_id

    async def open(self) -> None:
        """Wait for the bookie. Raises BookieUnavailableError."""
        try:
            await self._call.answered()
        except CallError as error:
            # A bookie that asks nobody to log in does not know the call.
            self._is_needed = error.status != UNIMPLEMENTED
            if self._is_needed:
                self.close()
                raise self._connection.failed(error) from None

    async def ask(self, message: AuthMessage) -> AuthMessage:
        """Send a message over the call. See :meth:`Dialogue.ask`."""
        if not self._is_needed:
            return AuthMessage(DISABLED, b"")
        try:
            await self._call.write(pb.LogInMessage(plugin=message.plugin, payload=message.payload).SerializeToString())
            data = await self._call.read()
            if data is None:
                raise WireFormatError(NO_ANSWER)
            answer = pb.LogInAnswer.FromString(bytes(data))
            self._session = answer.session
            return AuthMessage(message.plugin, answer.payload)
        except DecodeError:
            raise WireFormatError(NO_ANSWER) from None
        except CallError as error:
            if error.status == UNAUTHENTICATED:
                raise UnauthorizedError("the bookie refuses the login") from None
            raise self._connection.failed(error) from None

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

    async def _hold(self) -> None:
        await self._call.read()
        raise WireFormatError("the bookie has ended the login")
