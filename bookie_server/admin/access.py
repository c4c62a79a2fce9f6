"""Who may use the admin API, by HTTP and by gRPC: its tokens, and the certificates of HTTPS.

To change something a request must show the token of ``httpServerTokenFile``, always. Reading is open, unless
``httpServerReadTokenFile`` is set. A token comes as ``Authorization: Bearer TOKEN``. To read, it may also be the
password of ``Authorization: Basic``, which browsers ask for. They add that to requests that other sites caused, so it
allows no change.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import ssl
from http import HTTPStatus
from typing import Final

from bk_spark.bookie.file_marks import file_mark
from bk_spark.bookie.passwords import password_in
from bk_spark.bookie.tls.contexts import TlsContexts, trust_store_of
from bk_spark.bookie.tls.settings import TlsSettings
from bk_spark.bookie.tls.stores import Store
from bk_spark.protocol.errors import InvalidArgumentError
from bookie_server.admin.routes import HttpError
from bookie_server.config.administration import AdministrationConfig

_LOG: Final = logging.getLogger(__name__)
_FOR_CHANGES: Final = "httpServerTokenFile"
_FOR_READS: Final = "httpServerReadTokenFile"
#: A shorter one could be guessed.
_LEAST_BYTES: Final = 16
_MAKE_ONE: Final = "make one with: openssl rand -hex 32"
#: For probes: they tell nothing but that the process lives, or serves.
OPEN_PATHS: Final = frozenset({"/heartbeat", "/api/v1/bookie/is_ready"})
#: Methods that change nothing.
READING: Final = frozenset({"GET", "HEAD"})


class AdminAccess:
    """The tokens and certificates that ``config`` names. Raises InvalidArgumentError that names key and file."""

    def __init__(self, config: AdministrationConfig) -> None:
        self._changes = _Token(_FOR_CHANGES, config.http_token_file) if config.http_token_file else None
        self._reads = _Token(_FOR_READS, config.http_read_token_file) if config.http_read_token_file else None
        self.tls = _contexts(config) if config.http_tls_enabled else None

    def check(self, method: str, path: str, authorization: str) -> None:
        """Raise HttpError (401, 403) unless a request with this header ``Authorization`` ("": none) is allowed."""
        if path in OPEN_PATHS:
            return
        if method in READING:
            self.check_reading(authorization)
        else:
            self.check_change(authorization)

    def check_reading(self, authorization: str) -> None:
        """Raise HttpError (401) unless the caller with this header may read."""
        if self._reads is not None:
            scheme, credentials = _scheme_and_credentials(authorization)
            shown = _password(credentials) if scheme == "basic" else credentials if scheme == "bearer" else ""
            if not self._reads.is_shown(shown) and not (self._changes and self._changes.is_shown(shown)):
                raise HttpError(
                    HTTPStatus.UNAUTHORIZED,
                    "a token is needed to read: Authorization: Bearer TOKEN, or Basic with the token as password",
                    {"WWW-Authenticate": 'Basic realm="The password is the token of this bookie", charset="UTF-8"'},
                )

    def check_change(self, authorization: str) -> None:
        """Raise HttpError (401, 403) unless the caller with this header may change something."""
        scheme, credentials = _scheme_and_credentials(authorization)
        shown = credentials if scheme == "bearer" else ""
        if self._changes is None:
            raise HttpError(
                HTTPStatus.FORBIDDEN,
                f"changes need a token, and {_FOR_CHANGES} is not set in the configuration of this process",
            )
        if not self._changes.is_shown(shown):
            raise HttpError(
                HTTPStatus.UNAUTHORIZED,
                f"changes need the token in the file {_FOR_CHANGES} names: Authorization: Bearer TOKEN",
                {"WWW-Authenticate": "Bearer"},
            )


class _Token:
    """A token in a file, which is read again when it changes."""

    def __init__(self, key: str, path: str) -> None:
        self._key = key
        self._path = path
        self._seen = file_mark(self._path)
        self._digest = self._load()

    def is_shown(self, text: str) -> bool:
        mark = file_mark(self._path)
        if mark != self._seen:
            self._seen = mark
            try:
                self._digest = self._load()
            except InvalidArgumentError as error:
                _LOG.error("the token that was loaded before stays in use: %s", error)
        # Digests, because a comparison of texts would tell their length.
        return hmac.compare_digest(_digest(text.encode(errors="replace")), self._digest)

    def _load(self) -> bytes:
        token = password_in(self._path, self._key, _MAKE_ONE).strip()
        if len(token) < _LEAST_BYTES or not token.isascii() or any(byte <= 0x20 for byte in token):
            raise InvalidArgumentError(
                f"{self._key}: {self._path} must hold one token of at least {_LEAST_BYTES} characters, without spaces; "
                f"{_MAKE_ONE}"
            )
        return _digest(token)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _scheme_and_credentials(authorization: str) -> tuple[str, str]:
    scheme, _, credentials = authorization.strip().partition(" ")
    return scheme.lower(), credentials.strip()


def _password(credentials: str) -> str:
    """Return the password of ``Basic``, "" if it is wrong."""
    try:
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except (binascii.Error, ValueError):
        return ""


def client_context(config: AdministrationConfig) -> ssl.SSLContext | None:
    """Return the context with which this process asks other bookies. None if no authority is configured.

    It trusts the authorities of ``httpServerTrustStorePath``, or else those of ``tlsTrustStore``. With the former,
    bookies ask for a certificate, so it has the one of this process. Raises InvalidArgumentError.
    """
    trusted = _trusted(config) if config.http_trust_store else trust_store_of(config)
    if not trusted.path:
        return None
    return TlsContexts(_settings(config), server_side=False, key_store=_key(config), trust_store=trusted).context


def _contexts(config: AdministrationConfig) -> TlsContexts:
    return TlsContexts(_settings(config), server_side=True, key_store=_key(config), trust_store=_trusted(config))


def _settings(config: AdministrationConfig) -> TlsSettings:
    return TlsSettings(
        tls_enabled=True,
        tls_client_authentication=bool(config.http_trust_store),
        tls_certificate_path=config.http_certificate_path,
        tls_protocols=config.tls_protocols,
        tls_cipher_suites=config.tls_cipher_suites,
        tls_refresh_ms=config.tls_refresh_ms,
    )


def _key(config: AdministrationConfig) -> Store:
    return Store(
        config.http_key_store_type,
        config.http_key_store,
        config.http_key_store_password_path,
        "httpServerKeyStorePath",
        "httpServerKeyStoreType",
        "httpServerKeyStorePasswordPath",
        "httpServerCertificatePath",
    )


def _trusted(config: AdministrationConfig) -> Store:
    return Store(
        config.http_trust_store_type,
        config.http_trust_store,
        config.http_trust_store_password_path,
        "httpServerTrustStorePath",
        "httpServerTrustStoreType",
        "httpServerTrustStorePasswordPath",
    )
