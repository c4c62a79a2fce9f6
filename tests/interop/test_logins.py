"""Logins with Apache's: SASL, in clear and inside TLS, and roles in certificates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.config import ClientConfig
from bk_spark.protocol.errors import NotEnoughBookiesError, UnauthorizedError
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalBookie, LocalCluster
from tests.interop.apache import LASTING, ApacheBookie, Bookies
from tests.interop.java_client import JavaClient, JavaError
from tests.interop.payloads import Payloads, fingerprint
from tests.support.certificates import identity, write_pem
from tests.support.clusters import new_cluster
from tests.support.jaas import CERTIFICATE_ROLES, bookie_keys, client_keys, write_jaas

BOTH = (2, 2, 2)
ONE = (1, 1, 1)
PAYLOADS = Payloads((*Payloads.varied(300).sizes, 1 << 20))
SECRET = "interop-password"


@pytest.fixture(scope="module")
def roots(zk_only: LocalCluster) -> dict[str, str]:
    """URIs of new clusters."""
    return {name: new_cluster(zk_only, f"logins-{name}") for name in ("mixed", "ours", "roles")}


class LoginBookies(Bookies):
    """Clients log in by SASL, in clear or inside TLS as they like."""

    def __init__(self, directory: Path, uri: str, kinds: list[type[LocalBookie]]) -> None:
        keys = bookie_keys(write_jaas(directory / "jaas.conf"))
        super().__init__(directory, uri, kinds, LASTING | keys | write_pem(directory / "tls", identity("bookie")))


@pytest.fixture(scope="module")
def mixed(
    roots: dict[str, str], java_client: JavaClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LoginBookies]:
    """One bookie of each kind: every entry of a ledger is on both."""
    uri = roots["mixed"]
    with LoginBookies(tmp_path_factory.mktemp("mixed"), uri, [LocalBookie, ApacheBookie]) as bookies:
        yield bookies
        java_client.forget(uri)


@pytest.fixture(scope="module")
def ours(
    roots: dict[str, str], java_client: JavaClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LoginBookies]:
    uri = roots["ours"]
    with LoginBookies(tmp_path_factory.mktemp("ours"), uri, [LocalBookie]) as bookies:
        yield bookies
        java_client.forget(uri)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Keys of clients of either kind: in clear, and with TLS."""
    directory = tmp_path_factory.mktemp("client")
    clear = client_keys(write_jaas(directory / "jaas.conf", users={}))
    return {"clear": clear, "tls": clear | write_pem(directory)}


def ours_of(keys: dict[str, str], v2: bool) -> ClientConfig:
    return ClientConfig.from_properties(keys | {"useV2WireProtocol": str(v2)})


@pytest.mark.parametrize("how", ["clear", "tls"])
@pytest.mark.parametrize("wire", [2, 3])
def test_java_writes_and_we_read(
    mixed: LoginBookies,
    ours: LoginBookies,
    java_client: JavaClient,
    keys: dict[str, dict[str, str]],
    wire: int,
    how: str,
) -> None:
    # Java's client sends the beginning of a login in clear, and its own bookie takes it for TLS: always over v2, and
    # over v3 if it comes before the handshake. Our bookie takes it for what it is.
    bookies, quorums = (ours, ONE) if how == "tls" else (mixed, BOTH)
    writer = java_client.create(bookies.metadata_service_uri, quorums=quorums, wire=wire, settings=keys[how])
    writer.append(PAYLOADS)
    assert writer.close().last_entry_id == len(PAYLOADS) - 1
    for v2 in (True, False):
        with BlockingClient(bookies.metadata_service_uri, ours_of(keys[how], v2)) as client:
            reader = client.open_for_reading(writer.ledger_id, SECRET.encode())
            assert fingerprint(reader.read(0, len(PAYLOADS) - 1)) == PAYLOADS.fingerprint


@pytest.mark.parametrize("how", ["clear", "tls"])
@pytest.mark.parametrize("v2", [True, False], ids=["v2", "v3"])
def test_we_write_and_java_reads(
    mixed: LoginBookies,
    ours: LoginBookies,
    java_client: JavaClient,
    keys: dict[str, dict[str, str]],
    v2: bool,
    how: str,
) -> None:
    # At its own bookie Java's client reads in clear, see above.
    for bookies, quorums, settings in ((mixed, BOTH, keys["clear"]), (ours, ONE, keys[how])):
        uri = bookies.metadata_service_uri
        with BlockingClient(uri, ours_of(keys[how], v2)) as client:
            with closing(client.create(quorum=Quorum(*quorums), password=SECRET.encode())) as writer:
                writer.append_many(list(PAYLOADS))
            left = client.create(quorum=Quorum(*quorums), password=SECRET.encode())
            left.append_many([b"one", b"two"])
            left.flush()
            found = java_client.read(uri, writer.ledger_id, recovery=False, wire=3, settings=settings)
            assert found.fingerprint == PAYLOADS.fingerprint
            found = java_client.read(uri, left.ledger_id, recovery=True, wire=3, settings=settings)
            assert (found.count, found.closed) == (2, True)
            left.abandon()


@pytest.mark.parametrize("wire", [2, 3])
@pytest.mark.parametrize("what", ["no login", "wrong password", "unknown user", "user that is not allowed"])
def test_our_bookie_refuses_java(
    ours: LoginBookies, java_client: JavaClient, tmp_path: Path, wire: int, what: str
) -> None:
    """At once: Apache's bookie would not answer, and the client wait for its timeout, a minute here."""
    user, password = {
        "no login": ("", ""),
        "wrong password": ("bookkeeper", "brass"),
        "unknown user": ("bookkeeper2", "golden"),
        "user that is not allowed": ("visitor", "silver"),
    }[what]
    settings = client_keys(write_jaas(tmp_path / "jaas.conf", user, password)) if user else {}
    writer = java_client.create(ours.metadata_service_uri, quorums=ONE, wire=wire, settings=settings)
    with pytest.raises(JavaError) as refused:
        writer.append([b"refused"], timeout_ms=30_000)
    assert refused.value.code == (-102 if not user or wire == 3 else -6)
    writer.abandon()


@pytest.mark.parametrize("v2", [True, False], ids=["v2", "v3"])
def test_both_bookies_refuse_us(mixed: LoginBookies, tmp_path: Path, v2: bool) -> None:
    wrong = client_keys(write_jaas(tmp_path / "jaas.conf", password="brass")) | {"readEntryTimeoutSec": "2"}
    with BlockingClient(mixed.metadata_service_uri, ours_of(wrong, v2)) as client:
        writer = client.create(quorum=Quorum(*BOTH))
        writer.append_many([b"refused"])
        with pytest.raises(NotEnoughBookiesError) as refused:
            writer.flush()
        assert "login failed: " in str(refused.value)
        assert "brass" not in str(refused.value)
        writer.abandon()
    with BlockingClient(mixed.metadata_service_uri, ours_of({}, v2)) as client:
        writer = client.create(quorum=Quorum(*BOTH))
        writer.append_many([b"refused"])
        with pytest.raises(UnauthorizedError):
            writer.flush()
        writer.abandon()


@pytest.mark.parametrize("wire", [2, 3])
def test_roles_of_javas_certificates(roots: dict[str, str], java_client: JavaClient, tmp_path: Path, wire: int) -> None:
    settings = write_pem(tmp_path / "tls", identity("bookie")) | {
        "tlsClientAuthentication": "true",
        "bookieAuthProviderFactoryClass": CERTIFICATE_ROLES,
        "authorizedRoles": "readers, writers",
    }
    uri = roots["roles"]

    def shown(role: str) -> dict[str, str]:
        own = identity(f"java {role}", client_only=True, units=(f"0:{role};1:cluster",))
        return write_pem(tmp_path / role, own) | {"tlsClientAuthentication": "true"}

    with Bookies(tmp_path / "bookies", uri, [LocalBookie], LASTING | settings):
        writer = java_client.create(uri, quorums=ONE, wire=wire, settings=shown("writers"))
        assert writer.append([b"of a writer"]).last_entry_id == 0
        writer.close()
        other = java_client.create(uri, quorums=ONE, wire=wire, settings=shown("strangers"))
        with pytest.raises(JavaError) as refused:
            other.append([b"refused"])
        assert refused.value.code == -102
        other.abandon()
        java_client.forget(uri)
