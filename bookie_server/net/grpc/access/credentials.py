"""The bookie's certificates, as gRPC takes them. Changed files are loaded again, as on the native port."""

from __future__ import annotations

from typing import Any

import grpc

from bk_spark.bookie.tls.contexts import TlsContexts


def server_credentials(tls: TlsContexts) -> Any:
    """Return credentials that follow the files of ``tls``. Raises InvalidArgumentError."""
    last = tls.context

    def changed() -> Any:
        """Called in a thread of gRPC's before each handshake."""
        nonlocal last
        if tls.is_due:
            tls.refresh()
        if tls.context is last:
            return None
        last = tls.context
        return _configuration(tls)

    # With certificates of clients required, whoever has none does not get past the handshake.
    return grpc.dynamic_ssl_server_credentials(
        _configuration(tls), changed, require_client_authentication=tls.wants_client_certificates
    )


def _configuration(tls: TlsContexts) -> Any:
    found = tls.pem()
    return grpc.ssl_server_certificate_configuration([(found.key, found.chain)], root_certificates=found.trusted)
