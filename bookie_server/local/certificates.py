"""Certificates of a local cluster: an authority, and one certificate for bookies and one for clients, from it.

They are for trials. They have the extensions that RFC 5280 asks for, because Python from 3.13 on and other strict
verifiers refuse certificates without them. Everything is in the folder ``tls`` of the cluster's directory, readable by
its owner alone.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bk_spark.protocol.errors import InvalidArgumentError
from bookie_server.local.state import LOOPBACK, load_state

_FOLDER: Final = "tls"
_CLIENT_CONF: Final = "client.conf"
_VALID: Final = datetime.timedelta(days=3650)
_COMMON: Final = {
    "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
    "tlsTrustStoreType": "PEM",
    "tlsKeyStoreType": "PEM",
    "tlsClientAuthentication": "true",
}


def client_conf_of(directory: Path) -> Path | None:
    """Return the file for clients of the cluster in ``directory``. None: its bookies do not know TLS."""
    path = directory / _FOLDER / _CLIENT_CONF
    return path if path.exists() else None


def prepare(directory: Path) -> None:
    """Make the certificates of a new cluster in ``directory``, unless they are there.

    Raises InvalidArgumentError if there is a cluster without TLS.
    """
    if client_conf_of(directory) is not None:
        return
    if load_state(directory) is not None:
        raise InvalidArgumentError(f"--tls: the cluster in {directory} was made without it; use another directory")
    folder = directory / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    name = _name("local authority")
    authority = (
        _begun(name, name, authority_key.public_key())
        .add_extension(x509.BasicConstraints(True, 0), True)
        .add_extension(_usage(authority=True), True)
        .sign(authority_key, hashes.SHA256())
    )
    _write(folder / "ca.pem", authority.public_bytes(Encoding.PEM))
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    for who, uses in (("bookie", both), ("client", both[1:])):
        key = ec.generate_private_key(ec.SECP256R1())
        hosts = [x509.IPAddress(ipaddress.ip_address(LOOPBACK)), x509.DNSName("localhost")]
        certificate = (
            _begun(_name(who), name, key.public_key())
            .add_extension(x509.BasicConstraints(False, None), True)
            .add_extension(_usage(authority=False), True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), False)
            .add_extension(x509.ExtendedKeyUsage(uses), False)
            .add_extension(x509.SubjectAlternativeName(hosts), False)
            .sign(authority_key, hashes.SHA256())
        )
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        _write(folder / f"{who}.key", private)
        _write(folder / f"{who}.pem", certificate.public_bytes(Encoding.PEM))
    lines = [f"{key}={value}" for key, value in _keys(directory, "client").items()]
    _write(folder / _CLIENT_CONF, "\n".join([*lines, ""]).encode())


def bookie_keys(directory: Path) -> dict[str, str]:
    """Return the keys for bookies of the cluster in ``directory``. They refuse clients without a certificate."""
    return {**_keys(directory, "bookie"), "tlsRequired": "true"}


def _keys(directory: Path, who: str) -> dict[str, str]:
    folder = directory / _FOLDER
    return {
        **_COMMON,
        "tlsTrustStore": str(folder / "ca.pem"),
        "tlsKeyStore": str(folder / f"{who}.key"),
        "tlsCertificatePath": str(folder / f"{who}.pem"),
    }


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _begun(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), False)
    )


def _usage(*, authority: bool) -> x509.KeyUsage:
    """An authority signs certificates and revokes them. The others sign handshakes: keys of elliptic curves cannot
    encipher."""
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _write(path: Path, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
