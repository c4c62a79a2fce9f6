"""The settings of TLS that a client and a bookie share, under Apache's keys. Source: compatibility.md §1.9."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bk_spark.bookie.tls.suites import PROTOCOLS, SUITES
from bk_spark.settings.kinds import BOOLEAN, MAX_INT, OPTIONAL_TEXT, Kind, WrongValueError, did_you_mean, whole
from bk_spark.settings.setting import key

#: The only class that Apache ships for ``tlsProviderFactoryClass``.
_FACTORY: Final = "org.apache.bookkeeper.tls.TLSContextFactory"
STORE_TYPES: Final = ("PEM", "PKCS12", "JKS")
_PROVIDERS: Final = ("OpenSSL", "JDK")


def _factory(text: str) -> bool:
    name = text.strip()
    if name not in ("", "null", _FACTORY):
        raise WrongValueError(f"must be {_FACTORY}, or empty: no TLS")
    return name == _FACTORY


def _one_of(names: tuple[str, ...]) -> Kind:
    """One of several names, in any case, or nothing."""
    by_lower = {name.lower(): name for name in ("", *names)}
    allowed = f"one of {', '.join(names)}"

    def parsed(text: str) -> str:
        name = by_lower.get(text.strip().lower())
        if name is None:
            raise WrongValueError(f"must be {allowed}{did_you_mean(text, names)}")
        return name

    return Kind(allowed, parsed, lambda value: value in by_lower.values())


def _names_of(what: str, known: tuple[str, ...]) -> Kind:
    """Any number of names, separated by commas."""

    def parsed(text: str) -> tuple[str, ...]:
        names = tuple(name.strip() for name in text.split(",") if name.strip())
        for name in names:
            if name not in known:
                raise WrongValueError(f"names {name!r}, which is not {what}{did_you_mean(name, known)}")
        return names

    return Kind("names, separated by commas", parsed, lambda value: set(value) <= set(known))


#: How a private key, a certificate or trusted certificates are kept. "": not set.
STORE_TYPE: Final = _one_of(STORE_TYPES)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """TLS between clients and bookies. Passwords are never settings: they are in files."""

    tls_enabled: bool = key(
        "tlsProviderFactoryClass",
        "",
        Kind(f"`{_FACTORY}`, or empty", _factory, lambda value: isinstance(value, bool)),
        "Switches TLS on. Empty: connections are not encrypted.",
    )
    tls_provider: str = key(
        "tlsProvider", "OpenSSL", _one_of(_PROVIDERS), "Has no effect: Python's OpenSSL is always used."
    )
    tls_client_authentication: bool = key(
        "tlsClientAuthentication",
        "false",
        BOOLEAN,
        "Mutual TLS. A bookie requires a certificate of each client that uses TLS; a client sends its own.",
    )
    tls_key_store_type: str = key(
        "tlsKeyStoreType",
        "JKS",
        STORE_TYPE,
        "Form of `tlsKeyStore`. JKS means PKCS#12 in a file made by a JDK since 9; older files must be converted.",
    )
    tls_key_store: str = key(
        "tlsKeyStore",
        "",
        OPTIONAL_TEXT,
        "File with the private key. PEM: only the key. PKCS12: the key and its certificates.",
    )
    tls_key_store_password_path: str = key(
        "tlsKeyStorePasswordPath", "", OPTIONAL_TEXT, "File with the password of `tlsKeyStore`, if it has one."
    )
    tls_certificate_path: str = key(
        "tlsCertificatePath", "", OPTIONAL_TEXT, "PEM only: file with the certificate, and the chain up to the CA."
    )
    tls_trust_store_type: str = key("tlsTrustStoreType", "JKS", STORE_TYPE, "Form of `tlsTrustStore`.")
    tls_trust_store: str = key(
        "tlsTrustStore", "", OPTIONAL_TEXT, "File with the certificates of the authorities that are trusted."
    )
    tls_trust_store_password_path: str = key(
        "tlsTrustStorePasswordPath", "", OPTIONAL_TEXT, "File with the password of `tlsTrustStore`, if it has one."
    )
    tls_hostname_verification: bool = key(
        "tlsHostnameVerificationEnabled",
        "true",
        BOOLEAN,
        "A client checks that the bookie's certificate names the host that the bookie registered. Apache's default is "
        "false.",
    )
    tls_protocols: tuple[str, ...] = key(
        "tlsEnabledProtocols",
        "",
        _names_of("TLSv1.3 or TLSv1.2", PROTOCOLS),
        "Versions of TLS, separated by commas. Empty: TLSv1.3 and TLSv1.2.",
    )
    tls_cipher_suites: tuple[str, ...] = key(
        "tlsEnabledCipherSuites",
        "",
        _names_of("a cipher suite that is known here", SUITES),
        "Cipher suites by their Java names. No other is used. Name all three suites of TLSv1.3, or none of them, which "
        "switches TLSv1.3 off. Empty: OpenSSL's default.",
    )
    tls_refresh_ms: int = key(
        "tlsCertFilesRefreshDurationSeconds",
        "0",
        whole(0, MAX_INT // 1000, unit=1000),
        "When a connection is made, and the files were not looked at for this long, changed ones are loaded again, s. "
        "0: never.",
    )
