"""Whose calls are obeyed: the same decision as for connections of Apache's protocols."""

from __future__ import annotations

import ssl
from typing import Final

from grpc import StatusCode

from bk_spark.bookie.auth.providers import Peer
from bk_spark.protocol.wire.auth_frames import SESSION_METADATA
from bookie_server.admin.access import AdminAccess
from bookie_server.admin.routes import HttpError
from bookie_server.net.common.access.front_access import ConnectionAccess
from bookie_server.net.common.access.rights import ADMIN
from bookie_server.net.grpc.calls import Context
from bookie_server.net.grpc.statuses import status_of_http
from bookie_server.net.native.shared import Shared

#: Where gRPC keeps the certificate that the caller has shown.
_CERTIFICATE: Final = "x509_pem_cert"
#: The metadata of a token.
_AUTHORIZATION: Final = "authorization"
_NO_RIGHT: Final = "the bookie's authorizationFile does not allow this call"


def certificate_of(context: Context) -> bytes | None:
    """Return the certificate that the caller has shown, in DER form."""
    shown = context.auth_context().get(_CERTIFICATE)
    return ssl.PEM_cert_to_DER_cert(shown[0].decode()) if shown else None


async def admit(shared: Shared, context: Context, needed: int = 0) -> ConnectionAccess | None:
    """End a call with the status UNAUTHENTICATED if its caller may not use the bookie, or with PERMISSION_DENIED if it
    lacks the rights ``needed``. Return what it may do. None: everything."""
    if shared.access is None:
        return None
    if shared.access.logins is None:
        access = shared.access.begin(Peer(context.peer(), certificate_of(context)))
    else:
        logged_in = _session_of(context)
        if logged_in is None:
            await _refuse(context, StatusCode.UNAUTHENTICATED, "clients of this bookie log in first (sessions.proto)")
            raise AssertionError  # that has ended the call
        access = logged_in
    if not access.is_allowed:
        await _refuse(
            context, StatusCode.UNAUTHENTICATED, "the caller's certificate has no role that this bookie allows"
        )
    if not access.may(needed):
        await _refuse(context, StatusCode.PERMISSION_DENIED, _NO_RIGHT)
    return access


def _session_of(context: Context) -> ConnectionAccess | None:
    shown = [value for key, value in context.invocation_metadata() or () if key == SESSION_METADATA]
    return context.sessions.find(context.peer(), shown[0]) if len(shown) == 1 else None


async def admit_operator(shared: Shared, tokens: AdminAccess, context: Context, *, changes: bool) -> str:
    """End a call of the administration unless its caller may make it. Return who the caller is, for the log.

    Where there is an authorizationFile the caller needs the right ``admin``, and a name of its own does for a token.
    Otherwise, and for callers without a name, the tokens of the admin API decide.
    """
    access = await admit(shared, context)
    if access is not None and shared.access is not None and shared.access.authorization is not None:
        if not access.may(ADMIN):
            await _refuse(context, StatusCode.PERMISSION_DENIED, _NO_RIGHT)
        if access.names:
            return " ".join(map(repr, access.names))
    shown = [value for key, value in context.invocation_metadata() or () if key == _AUTHORIZATION]
    try:
        (tokens.check_change if changes else tokens.check_reading)(str(shown[0]) if len(shown) == 1 else "")
    except HttpError as error:
        refused = error
    else:
        return "token" if changes else "-"
    await _refuse(context, status_of_http(refused.status), str(refused))
    raise refused


async def _refuse(context: Context, status: StatusCode, reason: str) -> None:
    await context.wait_refused()
    await context.abort(status, reason)
