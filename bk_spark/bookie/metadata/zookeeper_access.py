"""How a session with ZooKeeper is opened: its user, who may use its znodes, and whether it is encrypted."""

from __future__ import annotations

import math
import re
import select
import socket
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, Final

from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.handlers.utils import fileobj_to_fd
from kazoo.security import CREATOR_ALL_ACL

from bk_spark.bookie.metadata.zookeeper_settings import KEY_STORE, TRUST_STORE, ZooKeeperSettings
from bk_spark.bookie.passwords import password_in
from bk_spark.bookie.tls.contexts import TlsContexts
from bk_spark.bookie.tls.reasons import reason_of
from bk_spark.bookie.tls.settings import TlsSettings
from bk_spark.bookie.tls.stores import Store
from bk_spark.protocol.errors import InvalidArgumentError

#: ZooKeeper ends the name at the first colon.
_CREDENTIALS: Final = re.compile(r"[^:\s]+:.+")
_KIND_OF: Final = {".pem": "PEM", ".p12": "PKCS12", ".pfx": "PKCS12", ".jks": "JKS"}


class ZooKeeperAccess:
    """What ``settings`` say, with the files that they name. Sessions may share it.

    Raises InvalidArgumentError that names setting and file.
    """

    def __init__(self, settings: ZooKeeperSettings) -> None:
        self._credentials = _Credentials(_credentials_in(settings.zk_digest_file)) if settings.zk_digest_file else None
        if settings.zk_enable_security and self._credentials is None:
            raise InvalidArgumentError(
                "zkEnableSecurity=true needs zkDigestFile: without a user, ZooKeeper cannot keep znodes for its creator"
            )
        self._for_creator = settings.zk_enable_security
        self._tls: TlsContexts | None = None
        if settings.zk_secure:
            self._tls = _contexts(settings)

    def kazoo_options(self) -> dict[str, Any]:
        """Return arguments for a new ``KazooClient``."""
        options: dict[str, Any] = {"handler": PollingHandler() if self._tls is None else EncryptingHandler(self._tls)}
        if self._credentials is not None:
            options["auth_data"] = [("digest", self._credentials)]
        if self._for_creator:
            options["default_acl"] = CREATOR_ALL_ACL
        return options


class _Credentials(str):
    """What kazoo sends. It logs requests in their text form."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'...'"


class PollingHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Waits for sockets with ``poll``. kazoo makes a selector for each wait, and waits some five times a request."""

    def select(
        self, readers: Sequence[Any], writers: Sequence[Any], others: Sequence[Any], timeout_s: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Do what ``select.select`` does. ``others`` is empty: kazoo waits for nothing else."""
        wanted: dict[int, int] = {}
        for mask, files in ((select.POLLIN, readers), (select.POLLOUT, writers)):
            for file in files:
                fd = fileobj_to_fd(file)
                wanted[fd] = wanted.get(fd, 0) | mask
        poll = select.poll()
        for fd, mask in wanted.items():
            poll.register(fd, mask)
        ready = dict(poll.poll(None if timeout_s is None else max(0, math.ceil(timeout_s * 1000))))
        if any(events & select.POLLNVAL for events in ready.values()):
            raise ValueError("a socket was closed while it was waited for")
        # A socket that is broken is ready for both: the call that follows raises its error.
        return (
            [file for file in readers if ready.get(file.fileno(), 0) & ~select.POLLOUT],
            [file for file in writers if ready.get(file.fileno(), 0) & ~select.POLLIN],
            [],
        )


class EncryptingHandler(PollingHandler):
    """Opens kazoo's connections. kazoo's own TLS knows PEM files only, and reads them for each connection."""

    def __init__(self, contexts: TlsContexts) -> None:
        super().__init__()
        self._contexts = contexts
        #: Why the last handshake failed, "" if it did not.
        self.problem = ""

    def create_connection(
        self, address: tuple[str, int], hostname: str, timeout: float, **others: object
    ) -> socket.socket:
        """Open a connection and do the TLS handshake. Raises OSError, or an ``ssl.SSLError``, whose reason ``problem``
        keeps."""
        self._contexts.refresh()
        connection = socket.create_connection(address, timeout)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            encrypted = self._contexts.context.wrap_socket(connection, server_hostname=hostname)
        except BaseException as error:
            connection.close()
            self.problem = reason_of(error)
            raise
        self.problem = ""
        return encrypted


def _credentials_in(path: str) -> str:
    try:
        text = password_in(path, "zkDigestFile").decode()
    except UnicodeDecodeError:
        text = ""
    if not _CREDENTIALS.fullmatch(text):
        raise InvalidArgumentError(f"zkDigestFile: {path} must hold one line, user:password")
    return text


def _contexts(settings: ZooKeeperSettings) -> TlsContexts:
    trusted = _store(
        TRUST_STORE, settings.zk_trust_store, settings.zk_trust_store_type, settings.zk_trust_store_password_path
    )
    key = _store(KEY_STORE, settings.zk_key_store, settings.zk_key_store_type, settings.zk_key_store_password_path)
    tls = TlsSettings(
        tls_enabled=True,
        tls_client_authentication=bool(key.path),
        # ZooKeeper's PEM files hold both.
        tls_certificate_path=key.path,
        tls_hostname_verification=settings.zk_hostname_verification,
        tls_refresh_ms=settings.tls_refresh_ms,
    )
    return TlsContexts(tls, server_side=False, key_store=key, trust_store=trusted)


def _store(name: str, path: str, kind: str, password_path: str) -> Store:
    found = kind or _KIND_OF.get(PurePath(path).suffix.lower(), "")
    if path and not found:
        raise InvalidArgumentError(f"{name}.location: {path} does not end in .pem, .p12 or .jks: set {name}.type")
    return Store(found, path, password_path, f"{name}.location", f"{name}.type", f"{name}.passwordPath")
