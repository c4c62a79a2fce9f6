"""Decides, once for each connection, who its peer is and whether it may use the bookie.

A peer has names: those in its certificate, and those that a login gives it. Front ends ask :class:`ConnectionAccess`.
It knows nothing of their protocols.
"""

from __future__ import annotations

import logging
import re
from typing import Final

from bk_spark.bookie.auth.classes import class_of
from bk_spark.bookie.auth.providers import BookieAuthProvider, BookieLogin, Peer
from bk_spark.bookie.auth.sasl import SaslBookie
from bk_spark.protocol.errors import BookKeeperError, InvalidArgumentError, UnauthorizedError
from bookie_server.config.access import CERTIFICATE_ROLES, SASL_BOOKIE, AccessConfig
from bookie_server.net.common.access.certificates import names_in, role_in
from bookie_server.net.common.access.rights import ALL, ANONYMOUS, Authorization, words_of
from bookie_server.net.common.sparing_log import SparingLog

_LOG: Final = logging.getLogger(__name__)
_KEY: Final = "bookieAuthProviderFactoryClass"
#: How long a login may take.
LOGIN_TIMEOUT_S: Final = 10.0
#: Messages that a client may send in one login.
_MAX_ROUNDS: Final = 16
#: Bytes that such a message may have.
MAX_MESSAGE_BYTES: Final = 64 * 1024


class FrontAccess:
    """The rules for all connections of a bookie. Belongs to the event loop.

    Parameters
    ----------
    logins
        How clients log in. None: they need not.
    roles
        The roles of certificates that may use the bookie. None: roles do not matter.
    authorization
        What each may do. None: everything.
    """

    def __init__(
        self,
        logins: BookieAuthProvider | SaslBookie | None = None,
        roles: frozenset[str] | None = None,
        authorization: Authorization | None = None,
    ) -> None:
        self.logins = logins
        self.roles = roles
        self.authorization = authorization
        self.log = SparingLog()
        #: Logins that failed or were not finished, and connections whose certificate has no allowed role.
        self.failed_logins = 0
        self.refused_roles = 0
        #: Requests, or groups of them, that their peers have no right to.
        self.refused_requests = 0

    @classmethod
    def of(cls, config: AccessConfig) -> FrontAccess | None:
        """Return what ``config`` says. None: everybody may do everything. Blocks to read files.

        Raises InvalidArgumentError.
        """
        if not config.bookie_auth and not config.authorization_file:
            return None
        authorization = Authorization.load(config.authorization_file) if config.authorization_file else None
        if not config.bookie_auth:
            return cls(authorization=authorization)
        if config.bookie_auth == CERTIFICATE_ROLES:
            if not config.authorized_roles:
                raise InvalidArgumentError(f"authorizedRoles is missing: {_KEY} asks for roles in certificates")
            return cls(roles=frozenset(config.authorized_roles), authorization=authorization)
        if config.bookie_auth == SASL_BOOKIE:
            allowed = re.compile(config.sasl_allowed_ids)
            users = SaslBookie(config.jaas_file, config.sasl_bookie_section, allowed)
            return cls(users, authorization=authorization)
        own = class_of(config.bookie_auth, BookieAuthProvider, _KEY)(config.auth_file)
        return cls(own, authorization=authorization)

    def begin(self, peer: Peer) -> ConnectionAccess:
        """Return what is decided about a new connection."""
        return ConnectionAccess(self, peer)


class ConnectionAccess:
    """What is known of one connection's peer, and what it may do."""

    def __init__(self, front: FrontAccess, peer: Peer) -> None:
        self._front = front
        self._peer = peer
        #: Who the peer has proved to be.
        self.names = () if peer.certificate is None else names_in(peer.certificate)
        #: Whether it must log in before anything else.
        self.awaits_login = front.logins is not None
        #: Whether its requests are obeyed.
        self.is_allowed = not self.awaits_login and self._has_role()
        #: What it may do, decided when it is known.
        self.rights = self._rights() if self.is_allowed else 0
        self._login: BookieLogin | None = None
        self._rounds = 0

    def knows(self, plugin: str) -> bool:
        """Whether clients may log in this way."""
        return self._front.logins is not None and plugin == self._front.logins.plugin

    def log_in(self, message: bytes) -> bytes:
        """Return the answer to a message of the login. The last message makes the connection allowed.

        Raises UnauthorizedError if the login fails. Then the connection must be closed.
        """
        logins = self._front.logins
        assert logins is not None
        self._rounds += 1
        try:
            if self._rounds > _MAX_ROUNDS or len(message) > MAX_MESSAGE_BYTES:
                raise UnauthorizedError("too many or too long messages")
            if self._login is None:
                self._login = logins.begin(self._peer)
            answer = self._login.answer(message)
        except BookKeeperError as error:
            raise self._failed(error.message) from None
        except Exception as error:  # a class of the user's
            _LOG.exception("%s has failed", type(self._login).__name__)
            raise self._failed(type(error).__name__) from None
        if answer.names:
            self.names += answer.names
            self.awaits_login, self._login = False, None
            self.is_allowed, self.rights = True, self._rights()
        return answer.message

    def has(self, needed: int) -> bool:
        """Whether the peer has the rights ``needed``. If not, nothing is counted or logged."""
        return self.rights & needed == needed

    def may(self, needed: int) -> bool:
        """Whether the peer has the rights ``needed``. If not, that is counted and logged."""
        if self.has(needed):
            return True
        self._front.refused_requests += 1
        self._front.log.tell(
            "request from %s refused: %s may do %s, and it needs %s (authorizationFile)",
            self._peer.address,
            " ".join(map(repr, self.names)) or ANONYMOUS,
            words_of(self.rights),
            words_of(needed),
        )
        return False

    def give_up(self) -> None:
        """Note that the peer took too long to log in."""
        self._failed(f"not finished within {LOGIN_TIMEOUT_S:g} s")

    def _failed(self, reason: str) -> UnauthorizedError:
        self._front.failed_logins += 1
        self._front.log.tell("connection from %s closed: login failed: %s", self._peer.address, reason)
        return UnauthorizedError("login failed")

    def _rights(self) -> int:
        authorization = self._front.authorization
        return ALL if authorization is None else authorization.rights_of(self.names)

    def _has_role(self) -> bool:
        front, certificate = self._front, self._peer.certificate
        if front.roles is None:
            return True
        role = None if certificate is None else role_in(certificate)
        if role in front.roles:
            return True
        front.refused_roles += 1
        front.log.tell(
            "connection from %s refused: %s, and authorizedRoles does not name it",
            self._peer.address,
            "it has shown no certificate"
            if certificate is None
            else f"the certificate of {self.names[0]!r} has the role {role!r}"
            if self.names
            else "its certificate cannot be read",
        )
        return False
