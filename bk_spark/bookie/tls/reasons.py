"""Why a TLS connection failed, in words."""

from __future__ import annotations

import ssl
from typing import Final

_PEER: Final = "the peer does not accept it: "
#: By OpenSSL's names. Alerts are what the peer says.
_REASONS: Final = {
    "WRONG_VERSION_NUMBER": "the peer sent bytes in clear where the handshake was expected",
    "HTTP_REQUEST": "the peer sent an HTTP request in clear",
    "UNEXPECTED_EOF_WHILE_READING": "the peer closed the connection",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer has sent no certificate, and tlsClientAuthentication=true",
    "NO_SHARED_CIPHER": "the two sides have no cipher suite in common",
    "UNSUPPORTED_PROTOCOL": "the two sides have no version of TLS in common",
    "NO_PROTOCOLS_AVAILABLE": "OpenSSL of this machine allows no version in tlsEnabledProtocols",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the two sides have no version of TLS in common",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": _PEER + "it requires a certificate that was not sent, or other cipher suites",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": _PEER
    + "it requires a certificate, and none was sent (tlsClientAuthentication)",
    "TLSV1_ALERT_UNKNOWN_CA": _PEER + "the certificate is not from an authority that it trusts",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": _PEER + "the certificate has expired",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _PEER + "something about the certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": _PEER + "something about the certificate",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": _PEER + "the certificate is not for this use",
    "TLSV1_ALERT_INTERNAL_ERROR": _PEER
    + "it does not say why; its log does (Apache's does so for unknown certificates)",
}


def reason_of(error: BaseException) -> str:
    """Return the reason for an error of the handshake, or of what follows."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of the peer is refused: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLError):
        name = error.reason or ""
        return _REASONS.get(name, name.lower().replace("_", " ") or "no reason is known")
    if isinstance(error, TimeoutError):
        return "it took too long"
    return str(error) or type(error).__name__
