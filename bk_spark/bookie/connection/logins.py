"""How a client's connection logs in at its bookie, before anything else. Belongs to one event loop."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from bk_spark.bookie.auth.classes import class_of
from bk_spark.bookie.auth.providers import ClientAuthProvider, ClientLogin
from bk_spark.bookie.auth.sasl import SaslClient
from bk_spark.bookie.auth.settings import SASL_CLIENT
from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection.base import FramedConnection
from bk_spark.protocol.errors import BookieUnavailableError, BookKeeperError, LoginError, TlsError, WireFormatError
from bk_spark.protocol.wire.auth_frames import DISABLED, AuthMessage, auth_answer_of, auth_request

_LOG: Final = logging.getLogger(__name__)
#: Messages that a client sends in one login.
_MAX_ROUNDS: Final = 16
_KEY: Final = "clientAuthProviderFactoryClass"
NO_ANSWER: Final = "the peer does not answer the login"


class Dialogue(Protocol):
    """The messages of a login over one connection.

    ``bookie_id``: the bookie at its other end.
    """

    @property
    def bookie_id(self) -> str:
        """The bookie's id, for errors and logs."""

    async def ask(self, message: AuthMessage) -> AuthMessage:
        """Send a message. Return the bookie's answer, of the plugin ``DISABLED`` if no login is needed.

        Raises UnauthorizedError, WireFormatError, BookieUnavailableError.
        """

    def end(self) -> None:
        """The login has succeeded. Raises WireFormatError if the bookie says otherwise."""

    def close(self) -> None:
        """Close the connection."""


class FramedDialogue(Dialogue):
    """The dialogue over Apache's protocols."""

    def __init__(self, connection: FramedConnection) -> None:
        self._connection = connection
        connection.begin_login()

    @property
    def bookie_id(self) -> str:
        """The bookie of the connection."""
        return self._connection.bookie_id

    async def ask(self, message: AuthMessage) -> AuthMessage:
        """Send an AUTH request and wait for its answer. See :meth:`Dialogue.ask`."""
        connection, v2 = self._connection, self._connection.is_v2
        connection.send([auth_request(message, v2=v2)])
        answer = auth_answer_of(await connection.login_frame(), v2=v2)
        if answer is None:
            answer = auth_answer_of(await connection.login_frame(), v2=v2)
        if answer is None:
            raise WireFormatError(NO_ANSWER)
        return answer

    def end(self) -> None:
        """Let requests begin. Raises WireFormatError if the bookie sent more than its answers."""
        self._connection.end_login()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class Logins:
    """Logs connections in.

    Parameters
    ----------
    provider
        How.
    timeout_s
        The time for one login.
    """

    def __init__(self, provider: ClientAuthProvider | SaslClient, timeout_s: float) -> None:
        self._provider = provider
        self._timeout_s = timeout_s
        #: The bookies that asked for no login.
        self._open_bookies: set[str] = set()

    @classmethod
    def of(cls, config: ClientConfig) -> Logins | None:
        """Return what ``config`` says. None: no logins. Raises InvalidArgumentError for wrong files. Blocks."""
        if not config.client_auth:
            return None
        provider: ClientAuthProvider | SaslClient
        if config.client_auth == SASL_CLIENT:
            provider = SaslClient(config)
        else:
            provider = class_of(config.client_auth, ClientAuthProvider, _KEY)(config.auth_file)
        return cls(provider, config.read_timeout_ms / 1000)

    async def log_in(self, dialogue: Dialogue, host: str) -> None:
        """Log in at the bookie on ``host``. The connection is closed if that fails.

        Raises LoginError, or TlsError if TLS breaks meanwhile.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._talk(dialogue, self._provider.begin(host))
            dialogue.end()
        except BaseException as error:
            dialogue.close()
            reason = self._reason(error)
            if reason is None:
                raise
            raise LoginError(f"login failed: {reason}", bookie_id=dialogue.bookie_id) from None

    async def _talk(self, dialogue: Dialogue, login: ClientLogin) -> None:
        plugin = self._provider.plugin
        message = login.answer(None)
        for sent in range(_MAX_ROUNDS):
            if message is None:
                return
            answer = await dialogue.ask(AuthMessage(plugin, message))
            if answer.plugin == DISABLED and not sent:
                self._no_login(dialogue.bookie_id)
                return
            if answer.plugin != plugin:
                raise WireFormatError(NO_ANSWER)
            message = login.answer(answer.payload)
        raise WireFormatError(f"the login has not ended after {_MAX_ROUNDS} messages")

    def _no_login(self, bookie_id: str) -> None:
        if bookie_id not in self._open_bookies:
            self._open_bookies.add(bookie_id)
            _LOG.warning("bookie %s asks nobody to log in (bookieAuthProviderFactoryClass)", bookie_id)

    def _reason(self, error: BaseException) -> str | None:
        """Say why the login failed. None: the error says it itself, or is about something else."""
        if isinstance(error, TimeoutError):
            # Apache's bookies never answer a wrong password.
            return f"no answer within {self._timeout_s:g} s; the user or the password may be wrong"
        if isinstance(error, TlsError):
            return None
        if isinstance(error, BookieUnavailableError):
            return "the bookie closed the connection; the user or the password may be wrong, and its log says why"
        return error.message if isinstance(error, BookKeeperError) else None
