"""The gRPC front end with the bookie's certificates: who gets in, and certificates that change."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import grpc
import pytest

from bk_spark.bookie.auth.sasl import SaslBookie
from bk_spark.bookie.tls.contexts import TlsContexts
from bk_spark.bookie.tls.settings import TlsSettings
from bk_spark.protocol.proto import bookie_pb2 as pb
from bookie_server.net.common.access.front_access import FrontAccess
from tests.support import patient_loop
from tests.support.certificates import PASSWORD, authority, identity, write_pem
from tests.support.front import HeldBookie
from tests.support.grpc_front import caller, grpc_front
from tests.support.jaas import write_jaas


def settings(directory: Path, **more: Any) -> TlsSettings:
    write_pem(directory, identity("bookie"))
    pem = {"tls_key_store_type": "PEM", "tls_trust_store_type": "PEM"}
    files = {"tls_key_store": "key.pem", "tls_certificate_path": "cert.pem", "tls_trust_store": "ca.pem"}
    paths = {name: str(directory / file) for name, file in files.items()}
    return TlsSettings(**{"tls_enabled": True, **pem, **paths, **more})


def credentials(
    client: str | None = None, *, signed_by: str = "ours", trusts: str = "ours", expired: bool = False
) -> Any:
    own = None if client is None else identity(client, client_only=True, signed_by=signed_by, expired=expired)
    return grpc.ssl_channel_credentials(
        authority(trusts).pem, None if own is None else own.key_pem(), None if own is None else own.pem
    )


async def answers(port: int, how: Any) -> bool:
    """Whether the bookie answers."""
    async with caller(port, how) as one:
        try:
            return (await one.ask("GetInfo", pb.GetInfoRequest())).code == pb.CODE_OK
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return False


def test_without_certificates_of_clients(tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(120), grpc_front(HeldBookie(), tls=contexts) as front:
            assert await answers(front.port, credentials())
            assert not await answers(front.port, credentials(trusts="others"))
            assert not await answers(front.port, None)
        async with asyncio.timeout(120), grpc_front(HeldBookie()) as front:
            assert not await answers(front.port, credentials())

    contexts = TlsContexts(settings(tmp_path), server_side=True)
    patient_loop.run(run())


def test_with_certificates_of_clients(tmp_path: Path) -> None:
    """From a PKCS#12 file with a password."""
    (tmp_path / "key.p12").write_bytes(identity("bookie").pkcs12(PASSWORD))
    (tmp_path / "password").write_text(f"{PASSWORD}\n")

    async def run() -> None:
        async with asyncio.timeout(120), grpc_front(HeldBookie(), tls=contexts) as front:
            assert await answers(front.port, credentials("client"))
            assert not await answers(front.port, credentials())
            assert not await answers(front.port, credentials("client", signed_by="others"))
            assert not await answers(front.port, credentials("old", expired=True))
            assert not await answers(front.port, None)

    keys = {
        "tls_key_store_type": "PKCS12",
        "tls_key_store": str(tmp_path / "key.p12"),
        "tls_key_store_password_path": str(tmp_path / "password"),
    }
    contexts = TlsContexts(settings(tmp_path, tls_client_authentication=True, **keys), server_side=True)
    patient_loop.run(run())


def with_role(role: str) -> Any:
    own = identity(role, client_only=True, units=(f"0:{role}",))
    return grpc.ssl_channel_credentials(authority("ours").pem, own.key_pem(), own.pem)


@pytest.mark.parametrize("method", ["Add", "Read", "GetInfo"])
def test_callers_without_the_role_are_refused(tmp_path: Path, method: str) -> None:
    """So are all where clients log in, and these have not."""
    bookie = HeldBookie()

    async def code(port: int, how: Any) -> Any:
        async with caller(port, how) as one:
            try:
                if method == "GetInfo":
                    await one.ask(method, pb.GetInfoRequest())
                else:
                    call = one.stream(method)
                    await call.done_writing()
                    await call.read()
                return (await call.code()) if method != "GetInfo" else grpc.StatusCode.OK
            except grpc.aio.AioRpcError as error:
                return error.code()

    async def run() -> None:
        contexts = TlsContexts(settings(tmp_path, tls_client_authentication=True), server_side=True)
        roles = FrontAccess(roles=frozenset({"writers"}))
        async with asyncio.timeout(120), grpc_front(bookie, tls=contexts, access=roles) as front:
            assert await code(front.port, with_role("writers")) is grpc.StatusCode.OK
            assert await code(front.port, with_role("readers")) is grpc.StatusCode.UNAUTHENTICATED
            assert await code(front.port, credentials("client")) is grpc.StatusCode.UNAUTHENTICATED
        logins = FrontAccess(SaslBookie(write_jaas(tmp_path / "jaas.conf"), "Bookie", re.compile(".*")))
        async with asyncio.timeout(120), grpc_front(bookie, access=logins) as front:
            assert await code(front.port, None) is grpc.StatusCode.UNAUTHENTICATED

    patient_loop.run(run())
    assert (bookie.entries, bookie.reads) == (0, 0)


def test_changed_certificates_are_used_for_new_connections(tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(120), grpc_front(HeldBookie(), tls=contexts) as front:
            assert await answers(front.port, credentials())
            other = identity("bookie", signed_by="others")
            (tmp_path / "key.pem").write_bytes(other.key_pem())
            assert await answers(front.port, credentials()), "half of a change is not used"
            (tmp_path / "cert.pem").write_bytes(other.pem)
            await asyncio.sleep(0.01)  # then the next look at the files is due
            assert await answers(front.port, credentials(trusts="others"))
            assert not await answers(front.port, credentials())

    contexts = TlsContexts(settings(tmp_path, tls_refresh_ms=1), server_side=True)
    patient_loop.run(run())


def test_its_repr_shows_no_key(tmp_path: Path) -> None:
    found = TlsContexts(settings(tmp_path), server_side=True).pem()
    assert found.key is not None
    assert b"PRIVATE KEY" in found.key
    assert "KEY" not in repr(found)
    assert found.trusted is None


@pytest.mark.parametrize("password", [None, "wrong"])
def test_a_key_that_its_password_does_not_open(tmp_path: Path, password: str | None) -> None:
    from bk_spark.bookie.tls.stores import Store, key_and_chain_pem
    from bk_spark.protocol.errors import InvalidArgumentError

    write_pem(tmp_path, identity("bookie"))
    (tmp_path / "key.pem").write_bytes(identity("bookie").key_pem(PASSWORD))
    (tmp_path / "password").write_text(password or "")
    path = str(tmp_path / "password") if password else ""
    store = Store("PEM", str(tmp_path / "key.pem"), path, "tlsKeyStore", "tlsKeyStoreType", "tlsKeyStorePasswordPath")
    with pytest.raises(InvalidArgumentError, match="tlsKeyStore: .* holds no private key"):
        key_and_chain_pem(store, str(tmp_path / "cert.pem"))
