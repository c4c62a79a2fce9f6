"""Our bookies and Apache's in one ensemble, in a cluster that our code initialised."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from bookie_server.local import LocalCluster
from tests.interop.apache import ApacheBookies
from tests.interop.java_client import DIGESTS, WIRES, JavaClient, JavaError
from tests.interop.payloads import Payloads
from tests.support.servers import BOOKIE_SETTINGS, start_timeout_ms

FENCED = -101


@dataclass(frozen=True, slots=True)
class Mixed:
    """One bookie of each kind: a ledger of 2/2/2 is on both."""

    ours: LocalCluster
    apaches: ApacheBookies

    @property
    def metadata_service_uri(self) -> str:
        return self.ours.metadata_service_uri


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory, java_client: JavaClient) -> Iterator[Mixed]:
    directory = tmp_path_factory.mktemp("mixed")
    with (
        LocalCluster(
            directory / "ours", bookies=1, bookie_settings=BOOKIE_SETTINGS, start_timeout_ms=start_timeout_ms()
        ) as ours,
        ApacheBookies(directory / "apaches", ours.metadata_service_uri, 1) as apaches,
    ):
        yield Mixed(ours, apaches)
        java_client.forget(ours.metadata_service_uri)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("digest", DIGESTS)
def test_java_writes_to_both_kinds_and_reads_from_each(
    java_client: JavaClient, mixed: Mixed, digest: str, wire: int
) -> None:
    uri = mixed.metadata_service_uri
    payloads = Payloads.varied(40)
    # Striped: every second entry is on one kind of bookie only, so a read needs both.
    striped = java_client.create(uri, digest=digest, wire=wire, quorums=(2, 1, 1))
    striped.append(payloads)
    striped.close()
    assert set(java_client.metadata(uri, striped.ledger_id).segments[0][1]) == {
        mixed.ours.bookies[0].id,
        mixed.apaches.bookies[0].id,
    }
    for recovery in (False, True):
        read = java_client.read(uri, striped.ledger_id, recovery=recovery, digest=digest, wire=wire)
        assert (read.count, read.fingerprint) == (40, payloads.fingerprint)


@pytest.mark.parametrize("wire", WIRES)
def test_recovery_needs_both_kinds(java_client: JavaClient, mixed: Mixed, wire: int) -> None:
    uri = mixed.metadata_service_uri
    payloads = Payloads.varied(40)
    writer = java_client.create(uri, wire=wire, quorums=(2, 2, 2))
    writer.append(payloads)
    read = java_client.read(uri, writer.ledger_id, recovery=True, wire=wire)
    assert (read.last_add_confirmed, read.fingerprint) == (39, payloads.fingerprint)
    with pytest.raises(JavaError) as raised:
        writer.append([b"too late"])
    assert raised.value.code == FENCED
