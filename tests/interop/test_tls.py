"""TLS with Apache's: both clients on bookies of both kinds, which have the same keys in their configurations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.config import ClientConfig
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalBookie, LocalCluster
from tests.interop.apache import LASTING, ApacheBookie, Bookies
from tests.interop.java_client import JavaClient, JavaError
from tests.interop.payloads import Payloads, fingerprint
from tests.support.certificates import PASSWORD, identity, write_pem
from tests.support.clusters import new_cluster

BOTH = (2, 2, 2)
#: Many small entries in a pipeline, and some of which each needs many records of TLS.
PAYLOADS = Payloads((*Payloads.varied(2000).sizes, 4 << 20, 1 << 20, 100, 3 << 20))
SECRET = "interop-password"


class SecuredBookies(Bookies):
    """All require certificates of clients that use TLS, and ours refuse the others."""

    def __init__(self, directory: Path, uri: str, kinds: list[type[LocalBookie]]) -> None:
        keys = write_pem(directory / "tls", identity("bookie")) | {"tlsClientAuthentication": "true"}
        super().__init__(directory, uri, kinds, LASTING | keys)

    def _settings_of(self, kind: type[LocalBookie], port: int) -> Mapping[str, str]:
        return self._settings if issubclass(kind, ApacheBookie) else {**self._settings, "tlsRequired": "true"}


@pytest.fixture(scope="module")
def roots(zk_only: LocalCluster) -> dict[str, str]:
    """URIs of two new clusters."""
    return {name: new_cluster(zk_only, f"tls-{name}") for name in ("mixed", "ours")}


@pytest.fixture(scope="module")
def mixed(
    roots: dict[str, str], java_client: JavaClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredBookies]:
    """One bookie of each kind: every entry of a ledger is on both."""
    uri = roots["mixed"]
    with SecuredBookies(tmp_path_factory.mktemp("mixed"), uri, [LocalBookie, ApacheBookie]) as bookies:
        yield bookies
        java_client.forget(uri)


@pytest.fixture(scope="module")
def ours(
    roots: dict[str, str], java_client: JavaClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredBookies]:
    uri = roots["ours"]
    with SecuredBookies(tmp_path_factory.mktemp("ours"), uri, [LocalBookie]) as bookies:
        yield bookies
        java_client.forget(uri)


@pytest.fixture(scope="module")
def client_keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Keys of either client. Java's does not check hosts unless it is told to."""
    keys = write_pem(tmp_path_factory.mktemp("client"), identity("client", client_only=True))
    return keys | {"tlsClientAuthentication": "true", "tlsHostnameVerificationEnabled": "true"}


@pytest.mark.parametrize("wire", [2, 3])
def test_java_writes_and_we_read(
    mixed: SecuredBookies, java_client: JavaClient, client_keys: dict[str, str], wire: int
) -> None:
    writer = java_client.create(mixed.metadata_service_uri, quorums=BOTH, wire=wire, settings=client_keys)
    writer.append(PAYLOADS)
    closed = writer.close()
    assert closed.last_entry_id == len(PAYLOADS) - 1
    for v2 in ("true", "false"):
        config = ClientConfig.from_properties(client_keys | {"useV2WireProtocol": v2})
        with BlockingClient(mixed.metadata_service_uri, config) as client:
            reader = client.open_for_reading(writer.ledger_id, SECRET.encode())
            assert fingerprint(reader.read(0, len(PAYLOADS) - 1)) == PAYLOADS.fingerprint
            assert [client.metadata(writer.ledger_id).segments[0].first_entry_id] == [0]


@pytest.mark.parametrize("v2", ["true", "false"], ids=["v2", "v3"])
def test_we_write_and_java_reads(
    mixed: SecuredBookies, java_client: JavaClient, client_keys: dict[str, str], v2: str
) -> None:
    config = ClientConfig.from_properties(client_keys | {"useV2WireProtocol": v2})
    with BlockingClient(mixed.metadata_service_uri, config) as client:
        with closing(client.create(quorum=Quorum(*BOTH), password=SECRET.encode())) as writer:
            writer.append_many(list(PAYLOADS))
        left = client.create(quorum=Quorum(*BOTH), password=SECRET.encode())
        left.append_many([b"one", b"two"])
        left.flush()
        for wire in (2, 3):
            found = java_client.read(
                mixed.metadata_service_uri, writer.ledger_id, recovery=False, wire=wire, settings=client_keys
            )
            assert found.fingerprint == PAYLOADS.fingerprint
        # And recovers what we left open, which fences and reads over connections of its own.
        found = java_client.read(mixed.metadata_service_uri, left.ledger_id, recovery=True, settings=client_keys)
        assert (found.count, found.closed) == (2, True)
        left.abandon()


def test_apaches_bookie_serves_us_inside_tls(mixed: SecuredBookies, client_keys: dict[str, str]) -> None:
    config = ClientConfig.from_properties(client_keys)
    with (
        BlockingClient(mixed.metadata_service_uri, config) as client,
        closing(client.create(quorum=Quorum(*BOTH))) as writer,
    ):
        writer.append_many([b"a secret"])
    (apaches,) = [bookie for bookie in mixed.bookies if isinstance(bookie, ApacheBookie)]
    log = (apaches.directory / "bookie.log").read_text("utf-8")
    assert "Session is protected" in log
    assert "TLS Handshake failure" not in log


def test_java_uses_tls_1_2_and_a_pkcs12_store_on_our_bookie(
    ours: SecuredBookies, java_client: JavaClient, client_keys: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "client.p12").write_bytes(identity("client", client_only=True).pkcs12(PASSWORD))
    (tmp_path / "password").write_text(PASSWORD)
    settings = client_keys | {
        "tlsEnabledProtocols": "TLSv1.2",
        "tlsKeyStoreType": "PKCS12",
        "tlsKeyStore": str(tmp_path / "client.p12"),
        "tlsKeyStorePasswordPath": str(tmp_path / "password"),
    }
    writer = java_client.create(ours.metadata_service_uri, quorums=(1, 1, 1), settings=settings)
    assert writer.append([b"over TLS 1.2"]).last_entry_id == 0
    writer.close()


@pytest.mark.parametrize("wire", [2, 3])
def test_our_bookie_refuses_java_in_clear(ours: SecuredBookies, java_client: JavaClient, wire: int) -> None:
    writer = java_client.create(ours.metadata_service_uri, quorums=(1, 1, 1), wire=wire)
    with pytest.raises(JavaError) as refused:
        writer.append([b"in clear"])
    assert refused.value.code == -102
    writer.abandon()


@pytest.mark.parametrize("what", ["no certificate", "an expired one", "one of another authority", "trusts another"])
def test_our_bookie_and_java_refuse_each_others_wrong_certificates(
    ours: SecuredBookies, java_client: JavaClient, tmp_path: Path, what: str
) -> None:
    own = {
        "no certificate": None,
        "an expired one": identity("late", expired=True),
        "one of another authority": identity("stranger", signed_by="others"),
        "trusts another": identity("client", client_only=True),
    }[what]
    keys = write_pem(tmp_path, own, "others" if what == "trusts another" else "ours")
    keys["tlsClientAuthentication"] = "false" if own is None else "true"
    writer = java_client.create(ours.metadata_service_uri, quorums=(1, 1, 1), settings=keys)
    with pytest.raises(JavaError) as refused:
        writer.append([b"to nobody"])
    assert refused.value.code == -6  # its only bookie failed
    writer.abandon()
