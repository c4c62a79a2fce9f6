"""Private keys and certificates as PEM text, for libraries that do not take an OpenSSL context: gRPC.

The files were checked by :mod:`bk_spark.bookie.tls.contexts` before; errors here are those of files that changed since.
"""

from __future__ import annotations

from dataclasses import dataclass

from bk_spark.bookie.tls.stores import Store, key_and_chain_pem, trusted_pem


@dataclass(frozen=True, slots=True, repr=False)
class PemIdentity:
    """A private key, its certificates, and trusted certificates. None: not needed. Its repr does not show them."""

    key: bytes | None
    chain: bytes | None
    trusted: bytes | None


def pem_identity(key_store: Store | None, certificate_path: str, trust_store: Store | None) -> PemIdentity:
    """Load what is given. Raises InvalidArgumentError."""
    key, chain = (None, None) if key_store is None else key_and_chain_pem(key_store, certificate_path)
    return PemIdentity(key, chain, None if trust_store is None else trusted_pem(trust_store))
