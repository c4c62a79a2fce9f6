"""Names of protocols and cipher suites: Java's, which Apache's keys use, and OpenSSL's."""

from __future__ import annotations

import ssl
from typing import Final

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
#: Older ones are broken.
PROTOCOLS: Final = tuple(_VERSIONS)

_TLS_1_3: Final = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
#: The authenticated ciphers, and how OpenSSL ends their names.
_AUTHENTICATED: Final = {
    "AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "CHACHA20_POLY1305_SHA256": "CHACHA20-POLY1305",
}
_OTHERS: Final = {
    "AES_256_CBC_SHA384": "AES256-SHA384",
    "AES_128_CBC_SHA256": "AES128-SHA256",
    "AES_256_CBC_SHA": "AES256-SHA",
    "AES_128_CBC_SHA": "AES128-SHA",
}
_TLS_1_2: Final = {
    f"TLS_{java}_WITH_{cipher}": f"{openssl}-{end}"
    for ciphers in (_AUTHENTICATED, _OTHERS)
    for java, openssl in (("ECDHE_ECDSA", "ECDHE-ECDSA"), ("ECDHE_RSA", "ECDHE-RSA"), ("DHE_RSA", "DHE-RSA"))
    for cipher, end in ciphers.items()
    # There is no suite of this kind.
    if not (java == "DHE_RSA" and cipher == "AES_256_CBC_SHA384")
}
#: Every suite that may be named.
SUITES: Final = (*_TLS_1_3, *_TLS_1_2)


def restrict(context: ssl.SSLContext, protocols: tuple[str, ...], suites: tuple[str, ...]) -> str | None:
    """Let ``context`` use only these. Empty: all of TLSv1.2 and TLSv1.3, OpenSSL's default suites.

    Return what is wrong with the names together, or None.
    """
    versions = sorted(_VERSIONS[name] for name in protocols or PROTOCOLS)
    newest = [name for name in suites if name in _TLS_1_3]
    older = [_TLS_1_2[name] for name in suites if name in _TLS_1_2]
    if newest and len(set(newest)) < len(_TLS_1_3) and ssl.TLSVersion.TLSv1_3 in versions:
        # Python has no call that chooses among them.
        return f"names some suites of TLSv1.3; name all of them ({', '.join(_TLS_1_3)}), or none"
    if suites and not newest:
        versions = [version for version in versions if version != ssl.TLSVersion.TLSv1_3]
    if suites and not older:
        versions = [version for version in versions if version != ssl.TLSVersion.TLSv1_2]
    if not versions:
        return "names no suite of the versions in tlsEnabledProtocols"
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    # A peer of TLSv1.2 could make this side calculate for ever.
    context.options |= ssl.OP_NO_RENEGOTIATION
    if older:
        context.set_ciphers(":".join(older))
    return None
