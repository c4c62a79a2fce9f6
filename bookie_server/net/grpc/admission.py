"""Whose calls are obeyed: the same decision as for connections of Apache's protocols."""

from __future__ import annotations

import ssl
from typing import Final

from grpc import StatusCode

from bk_spark.bookie.auth.providers import Peer
from bookie_server.net.common.access.front_access import ConnectionAccess
from bookie_server.net.grpc.calls import Context
from bookie_server.net.native.shared import Shared

#: Where gRPC keeps the certificate that the caller has shown.
_CERTIFICATE: Final = "x509_pem_cert"


async def admit(shared: Shared, context: Context, needed: int = 0) -> ConnectionAccess | None:
    """End a call with the status UNAUTHENTICATED if its caller may not use the bookie, or with PERMISSION_DENIED if it
    lacks the rights ``needed``. Return what it may do. None: everything."""
    if shared.access is None:
        return None
    shown = context.auth_context().get(_CERTIFICATE)
    certificate = ssl.PEM_cert_to_DER_cert(shown[0].decode()) if shown else None
    access = shared.access.begin(Peer(context.peer(), certificate))
    if access.awaits_login:
        await context.abort(StatusCode.UNAUTHENTICATED, "clients of this bookie log in, which gRPC cannot do")
    if not access.is_allowed:
        await context.abort(StatusCode.UNAUTHENTICATED, "the caller's certificate has no role that this bookie allows")
    if not access.may(needed):
        await context.abort(StatusCode.PERMISSION_DENIED, "the bookie's authorizationFile does not allow this call")
    return access
