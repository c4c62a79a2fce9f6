"""Throw-away certificates, made once per process. Nothing here is secret."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PASSWORD = "changeit"
FACTORY = "org.apache.bookkeeper.tls.TLSContextFactory"
_DAY = datetime.timedelta(days=1)
_NOW = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
_HERE = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class Identity:
    """A private key with its certificate, and the certificate of who signed it."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    authority: x509.Certificate

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)

    def key_pem(self, password: str | None = None) -> bytes:
        how = NoEncryption() if password is None else BestAvailableEncryption(password.encode())
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how)

    def pkcs12(self, password: str) -> bytes:
        how = BestAvailableEncryption(password.encode())
        return pkcs12.serialize_key_and_certificates(b"own", self.key, self.certificate, [self.authority], how)


def _name(common: str, units: tuple[str, ...] = ()) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "tests"),
            *(x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit) for unit in units),
            x509.NameAttribute(NameOID.COMMON_NAME, common),
        ]
    )


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_NOW - 30 * _DAY)
    )


@cache
def authority(name: str) -> Identity:
    """The authority of this name; all authorities differ."""
    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    certificate = (
        _builder(_name(name), _name(name), key)
        .not_valid_after(_NOW + 30 * _DAY)
        .add_extension(x509.BasicConstraints(True, 0), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(usage, True)
        .sign(key, hashes.SHA256())
    )
    return Identity(key, certificate, certificate)


@cache
def identity(
    name: str,
    *,
    hosts: tuple[str, ...] = _HERE,
    signed_by: str = "ours",
    expired: bool = False,
    client_only: bool = False,
    units: tuple[str, ...] = (),
) -> Identity:
    """An identity that bookies and clients can use, unless it is ``expired`` or ``client_only``. ``units``: the OUs of
    its subject."""
    key, signer = ec.generate_private_key(ec.SECP256R1()), authority(signed_by)
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([] if client_only else [ExtendedKeyUsageOID.SERVER_AUTH])]
    names = [x509.IPAddress(ipaddress.ip_address(host)) if host[0].isdigit() else x509.DNSName(host) for host in hosts]
    certificate = (
        _builder(_name(name, units), signer.certificate.subject, key)
        .not_valid_after(_NOW - _DAY if expired else _NOW + 30 * _DAY)
        .add_extension(x509.BasicConstraints(False, None), True)
        .add_extension(x509.ExtendedKeyUsage(uses), False)
        .add_extension(x509.SubjectAlternativeName(names), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key()), False)
        .sign(signer.key, hashes.SHA256())
    )
    return Identity(key, certificate, signer.certificate)


def write_pem(directory: Path, own: Identity | None = None, trusted: str = "ours") -> dict[str, str]:
    """Write files in PEM form into ``directory``, and return the configuration keys for them."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "ca.pem").write_bytes(authority(trusted).pem)
    keys = {
        "tlsProviderFactoryClass": FACTORY,
        "tlsTrustStoreType": "PEM",
        "tlsTrustStore": str(directory / "ca.pem"),
    }
    if own is None:
        return keys
    (directory / "key.pem").write_bytes(own.key_pem())
    (directory / "cert.pem").write_bytes(own.pem)
    return keys | {
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": str(directory / "key.pem"),
        "tlsCertificatePath": str(directory / "cert.pem"),
    }
