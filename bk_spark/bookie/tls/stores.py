"""Private keys, certificates and trusted certificates: from files in one of Apache's forms into OpenSSL's context.

No error here shows what a file holds. Errors name the configuration key and the file.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from bk_spark.protocol.errors import InvalidArgumentError

#: The first bytes of a JKS file. A file without them that is called JKS is PKCS#12, as JDKs since 9 make it.
_JKS_MAGIC: Final = bytes.fromhex("feedfeed")
_CONVERT: Final = (
    "convert it: keytool -importkeystore -srckeystore {path} -destkeystore {path}.p12 -deststoretype PKCS12, and set "
    "{path_key}={path}.p12 and {type_key}=PKCS12"
)


@dataclass(frozen=True, slots=True)
class Store:
    """A file with a key, with certificates, or with both, and the configuration keys that named it.

    Parameters
    ----------
    kind
        PEM, PKCS12 or JKS.
    path
        The file. For a key in PEM form it holds the key alone.
    password_path
        The file with its password. Empty if it has no password.
    path_key, type_key, password_key, certificate_key
        The configuration keys of these, and of the file with the certificates of a PEM key.
    """

    kind: str
    path: str
    password_path: str
    path_key: str
    type_key: str
    password_key: str
    certificate_key: str = "tlsCertificatePath"

    @property
    def files(self) -> list[str]:
        """The files that the store is read from."""
        return [path for path in (self.path, self.password_path) if path]

    def wrong(self, what: str) -> InvalidArgumentError:
        """Return an error that names the key and the file, and goes on with ``what``."""
        return InvalidArgumentError(f"{self.path_key}: {self.path} {what}")

    def password(self) -> bytes | None:
        """Return the password, without one line end after it. Raises InvalidArgumentError."""
        if not self.password_path:
            return None
        text = _content(self.password_key, self.password_path)
        return text.removesuffix(b"\n").removesuffix(b"\r")


def load_key(context: ssl.SSLContext, store: Store, certificate_path: str) -> None:
    """Load a private key and its certificates. ``certificate_path``: the certificates of a PEM key.

    Raises InvalidArgumentError.
    """
    password = store.password()
    if store.kind == "PEM":
        if not certificate_path:
            raise InvalidArgumentError(
                f"{store.certificate_key} is missing: with {store.type_key}=PEM the certificate has a file of its own"
            )
        _content(store.certificate_key, certificate_path)
        _content(store.path_key, store.path)
        _load_chain(context, store, certificate_path, store.path, password)
        return
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key, own, others = _open(store, password)
    if key is None or own is None:
        raise store.wrong("holds no private key with its certificate")
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain = [certificate.public_bytes(Encoding.PEM) for certificate in (own, *others)]
    # OpenSSL takes files only. This one is in this process's memory and has no name.
    with _memory_file(b"".join([pem, *chain])) as path:
        _load_chain(context, store, path, path, None)


def key_and_chain_pem(store: Store, certificate_path: str) -> tuple[bytes, bytes]:
    """Return a private key, not encrypted, and its certificates in PEM form. Raises InvalidArgumentError."""
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )

    password = store.password()
    if store.kind == "PEM":
        chain = _content(store.certificate_key, certificate_path)
        try:
            key = load_pem_private_key(_content(store.path_key, store.path), password)
        except (TypeError, ValueError):
            raise store.wrong("holds no private key in PEM form that its password opens") from None
    else:
        key, own, others = _open(store, password)
        if key is None or own is None:
            raise store.wrong("holds no private key with its certificate")
        chain = b"".join(certificate.public_bytes(Encoding.PEM) for certificate in (own, *others))
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), chain


def trusted_pem(store: Store) -> bytes:
    """Return the certificates that are trusted in PEM form. Raises InvalidArgumentError."""
    if store.kind == "PEM":
        return _content(store.path_key, store.path)
    from cryptography.hazmat.primitives.serialization import Encoding

    _, own, others = _open(store, store.password())
    return b"".join(each.public_bytes(Encoding.PEM) for each in ([own] if own is not None else []) + list(others))


def load_trusted(context: ssl.SSLContext, store: Store) -> None:
    """Load the certificates that are trusted. Raises InvalidArgumentError."""
    if store.kind == "PEM":
        _content(store.path_key, store.path)
        try:
            context.load_verify_locations(cafile=store.path)
        except ssl.SSLError:
            raise store.wrong("holds no certificates in PEM form") from None
        return
    from cryptography.hazmat.primitives.serialization import Encoding

    _, own, others = _open(store, store.password())
    trusted = [*([own] if own is not None else []), *others]
    if not trusted:
        raise store.wrong("holds no certificates")
    context.load_verify_locations(cadata=b"".join(each.public_bytes(Encoding.DER) for each in trusted))


def _load_chain(context: ssl.SSLContext, store: Store, chain: str, key: str, password: bytes | None) -> None:
    asked = False

    def answer() -> bytes:
        # Without it OpenSSL would ask at the terminal.
        nonlocal asked
        asked = True
        return password or b""

    try:
        context.load_cert_chain(chain, key, answer)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise store.wrong("is not the key of the certificate") from None
        if asked and password is None:
            raise store.wrong(f"has a password; set {store.password_key} to a file with it") from None
        if asked:
            raise store.wrong(f"cannot be read with the password in {store.password_path}") from None
        if error.reason in ("CA_MD_TOO_WEAK", "EE_KEY_TOO_SMALL"):
            raise store.wrong("or its certificate is too weak for OpenSSL; make a new one") from None
        raise store.wrong("and its certificate are not a key and certificates in PEM form") from None


def _open(store: Store, password: bytes | None):  # type: ignore[no-untyped-def]  # its types are cryptography's
    """Return private key, its certificate and other certificates of a PKCS#12 file."""
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_key_and_certificates

    content = _content(store.path_key, store.path)
    if content.startswith(_JKS_MAGIC):
        remedy = _CONVERT.format(path=store.path, path_key=store.path_key, type_key=store.type_key)
        raise store.wrong(f"is a store in Java's own form, which only Java reads; {remedy}")
    try:
        return load_key_and_certificates(content, password)
    except ValueError:
        because = "no password is given" if password is None else f"the password in {store.password_path} is wrong"
        raise store.wrong(f"cannot be read: it is not PKCS#12, or {because}") from None


def _content(key: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InvalidArgumentError(f"{key}: cannot read {path}: {error.strerror}") from error


@contextmanager
def _memory_file(content: bytes) -> Iterator[str]:
    fd = os.memfd_create("store", os.MFD_CLOEXEC)
    try:
        os.write(fd, content)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
