"""Logins by SASL's DIGEST-MD5 with users and passwords from files of JAAS, on both sides."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Final

from bk_spark.bookie.auth.jaas import options_of
from bk_spark.bookie.auth.providers import BookieLogin, ClientLogin, LoginAnswer, Peer
from bk_spark.bookie.auth.settings import JAAS_KEY, LoginSettings
from bk_spark.protocol.auth.digest_md5 import DigestMd5Bookie, DigestMd5Client
from bk_spark.protocol.errors import InvalidArgumentError, UnauthorizedError
from bk_spark.protocol.wire.auth_frames import SASL

#: Bytes of nonces; Apache's have 30.
_NONCE_BYTES: Final = 30
_USER_PREFIX: Final = "user_"


class SaslClient:
    """Logs in with the user in ``settings``. Raises InvalidArgumentError for wrong files. Blocks to read them."""

    plugin: Final = SASL

    def __init__(self, settings: LoginSettings) -> None:
        section = settings.sasl_client_section
        options = options_of(_jaas_file(settings.jaas_file), section, JAAS_KEY)
        self._user, self._password = options.get("username", ""), options.get("password", "")
        if not self._user or not self._password:
            raise InvalidArgumentError(
                f"{JAAS_KEY}: section {section} of {settings.jaas_file} lacks username or password"
            )

    def begin(self, host: str) -> ClientLogin:
        """Begin a login at the bookie on ``host``."""
        return _ClientLogin(self._user, self._password)


class _ClientLogin(ClientLogin):
    def __init__(self, user: str, password: str) -> None:
        self._digest = DigestMd5Client(user, password, secrets.token_urlsafe(_NONCE_BYTES))
        self._responded = False

    def answer(self, message: bytes | None) -> bytes | None:
        if message is None:
            return b""
        if not self._responded:
            self._responded = True
            return self._digest.respond(message)
        self._digest.check(message)
        return None


class SaslBookie:
    """Lets the users in a section of a file log in.

    Parameters
    ----------
    jaas_file, section
        Where they are: an option ``user_NAME="password"`` for each.
    allowed
        Which of them: a regular expression that matches the whole name.

    Raises
    ------
    InvalidArgumentError
        For wrong files.
    """

    plugin: Final = SASL

    def __init__(self, jaas_file: str, section: str, allowed: re.Pattern[str]) -> None:
        options = options_of(_jaas_file(jaas_file), section, JAAS_KEY)
        self._passwords = {
            name.removeprefix(_USER_PREFIX): password
            for name, password in options.items()
            if name.startswith(_USER_PREFIX) and name != _USER_PREFIX and password
        }
        if not self._passwords:
            raise InvalidArgumentError(f'{JAAS_KEY}: section {section} of {jaas_file} has no user_NAME="password"')
        self._allowed = allowed

    def begin(self, peer: Peer) -> BookieLogin:
        """Begin the login of ``peer``."""
        return _BookieLogin(self._passwords, self._allowed)


class _BookieLogin(BookieLogin):
    def __init__(self, passwords: Mapping[str, str], allowed: re.Pattern[str]) -> None:
        self._digest = DigestMd5Bookie(passwords, secrets.token_urlsafe(_NONCE_BYTES), secrets.token_urlsafe())
        self._allowed = allowed
        self._challenged = False

    def answer(self, message: bytes) -> LoginAnswer:
        if not self._challenged:  # Apache's bookie, too, ignores what is in the first message
            self._challenged = True
            return LoginAnswer(self._digest.challenge())
        user, proof = self._digest.check(message)
        if self._allowed.fullmatch(user) is None:
            raise UnauthorizedError(f"saslJaasClientAllowedIds does not allow user {user!r}")
        return LoginAnswer(proof, (f"user:{user}",))


def _jaas_file(path: str) -> str:
    if not path:
        raise InvalidArgumentError(f"{JAAS_KEY} is missing: set it to the file with users and passwords")
    return path
