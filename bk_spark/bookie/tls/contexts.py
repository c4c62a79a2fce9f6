"""OpenSSL's contexts, made of the settings, and made again when their files change."""

from __future__ import annotations

import logging
import ssl
import threading
import time
from typing import Final

from bk_spark.bookie.file_marks import FileMark, file_mark
from bk_spark.bookie.tls.pem import PemIdentity, pem_identity
from bk_spark.bookie.tls.settings import TlsSettings
from bk_spark.bookie.tls.stores import Store, load_key, load_trusted
from bk_spark.bookie.tls.suites import restrict
from bk_spark.protocol.errors import InvalidArgumentError

_LOG: Final = logging.getLogger(__name__)


class TlsContexts:
    """The context of one side. Thread-safe.

    Parameters
    ----------
    settings
        What to load, with TLS enabled.
    server_side
        Whether this is a bookie's front end.
    key_store, trust_store
        Where the key and the trusted certificates are, if not where ``settings`` say.
    alpn
        The protocol that a client speaks inside TLS, if it has to say so.

    Raises
    ------
    InvalidArgumentError
        If a file is missing or wrong. The error names key and file.
    """

    def __init__(
        self,
        settings: TlsSettings,
        *,
        server_side: bool,
        key_store: Store | None = None,
        trust_store: Store | None = None,
        alpn: str = "",
    ) -> None:
        self._settings = settings
        self._server_side = server_side
        self._alpn = alpn
        self._key_store = key_store or key_store_of(settings)
        self._trust_store = trust_store or trust_store_of(settings)
        self._lock = threading.Lock()
        self._looked_at = time.monotonic()
        self._seen = self._marks()
        self._context = self._make()

    @property
    def context(self) -> ssl.SSLContext:
        """The context for the next connection."""
        return self._context

    @property
    def is_due(self) -> bool:
        """Whether the files should be looked at: call :meth:`refresh`."""
        period_s = self._settings.tls_refresh_ms / 1000
        return period_s > 0 and time.monotonic() - self._looked_at >= period_s

    def refresh(self) -> None:
        """Load the files again if one of them has changed. Blocks.

        If they are wrong, the certificates that were loaded last stay in use. The log says why.
        """
        with self._lock:
            if not self.is_due:
                return
            self._looked_at = time.monotonic()
            marks = self._marks()
            if marks == self._seen:
                return
            try:
                # A new context: the old one would keep what the new files do not replace.
                self._context = self._make()
            except InvalidArgumentError as error:
                _LOG.error("the changed certificates are not used; those loaded before stay: %s", error)
                return
            self._seen = marks
            _LOG.info("the changed certificates are used for new connections")

    @property
    def wants_client_certificates(self) -> bool:
        """Whether a bookie requires a certificate of each client."""
        return self._settings.tls_client_authentication

    def pem(self) -> PemIdentity:
        """Return the key and the certificates of the files as they are now. Blocks. Raises InvalidArgumentError."""
        return pem_identity(
            self._key_store if self._with_key else None,
            self._settings.tls_certificate_path,
            self._trust_store if self._with_trust else None,
        )

    @property
    def _with_key(self) -> bool:
        return self._server_side or self._settings.tls_client_authentication

    @property
    def _with_trust(self) -> bool:
        return not self._server_side or self._settings.tls_client_authentication

    def _make(self) -> ssl.SSLContext:
        settings = self._settings
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if self._server_side else ssl.PROTOCOL_TLS_CLIENT)
        problem = restrict(context, settings.tls_protocols, settings.tls_cipher_suites)
        if problem is not None:
            raise InvalidArgumentError(f"tlsEnabledCipherSuites {problem}")
        if self._with_key:
            if not self._key_store.path:
                raise InvalidArgumentError(f"{self._key_store.path_key} is missing: set it to the private key's file")
            load_key(context, self._key_store, settings.tls_certificate_path)
        if self._with_trust:
            if not self._trust_store.path:
                raise InvalidArgumentError(
                    f"{self._trust_store.path_key} is missing: set it to the certificates of the trusted authorities"
                )
            load_trusted(context, self._trust_store)
        if self._server_side:
            context.verify_mode = ssl.CERT_REQUIRED if settings.tls_client_authentication else ssl.CERT_NONE
            # Connections live long, so there is nothing to resume.
            context.num_tickets = 0
        else:
            context.check_hostname = settings.tls_hostname_verification
            context.verify_mode = ssl.CERT_REQUIRED
        if self._alpn:
            context.set_alpn_protocols([self._alpn])
        return context

    def _marks(self) -> list[FileMark | None]:
        files = [*self._key_store.files, *self._trust_store.files, self._settings.tls_certificate_path]
        return [file_mark(path) for path in files if path]


def key_store_of(settings: TlsSettings) -> Store:
    """Return where ``settings`` say that the key is."""
    return Store(
        settings.tls_key_store_type or "JKS",
        settings.tls_key_store,
        settings.tls_key_store_password_path,
        "tlsKeyStore",
        "tlsKeyStoreType",
        "tlsKeyStorePasswordPath",
    )


def trust_store_of(settings: TlsSettings) -> Store:
    """Return where ``settings`` say that the trusted certificates are."""
    return Store(
        settings.tls_trust_store_type or "JKS",
        settings.tls_trust_store,
        settings.tls_trust_store_password_path,
        "tlsTrustStore",
        "tlsTrustStoreType",
        "tlsTrustStorePasswordPath",
    )
