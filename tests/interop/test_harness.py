"""The harness on Apache's own bookies: what fails here is no fault of the product."""

from __future__ import annotations

import pytest

from tests.interop.apache import ApacheBookies
from tests.interop.java_client import ALL_OF_THREE, DIGESTS, WIRES, JavaClient, JavaError
from tests.interop.payloads import Payloads, fingerprint

FENCED = -101


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("digest", DIGESTS)
def test_java_reads_what_java_wrote(
    java_client: JavaClient, apache_cluster: ApacheBookies, digest: str, wire: int
) -> None:
    uri = apache_cluster.metadata_service_uri
    payloads = Payloads.varied(50)
    writer = java_client.create(uri, digest=digest, wire=wire)
    writer.append(payloads)
    closed = writer.close()
    assert (closed.last_entry_id, closed.length) == (49, payloads.total_bytes)
    for batch in (False, True):
        read = java_client.read(uri, writer.ledger_id, recovery=False, digest=digest, wire=wire, batch=batch)
        assert read.fingerprint == payloads.fingerprint
        assert (read.count, read.length, read.closed) == (50, payloads.total_bytes, True)


def test_payloads_are_made_alike_on_both_sides(java_client: JavaClient, apache_cluster: ApacheBookies) -> None:
    uri = apache_cluster.metadata_service_uri
    payloads = Payloads((0, 1, 31, 32, 33, 1000), seed=7)
    writer = java_client.create(uri)
    writer.append(payloads)
    writer.append([b"", b"in base64"])
    writer.close()
    read = java_client.read(uri, writer.ledger_id, recovery=False, with_payloads=True)
    assert read.payloads == (*payloads, b"", b"in base64")
    assert read.fingerprint == fingerprint(read.payloads)


def test_recovery_fences_the_writer(java_client: JavaClient, apache_cluster: ApacheBookies) -> None:
    uri = apache_cluster.metadata_service_uri
    payloads = Payloads.of_size(10, 100)
    writer = java_client.create(uri, quorums=ALL_OF_THREE)
    writer.append(payloads)
    assert java_client.metadata(uri, writer.ledger_id).state == "OPEN"
    read = java_client.read(uri, writer.ledger_id, recovery=True)
    assert (read.fingerprint, read.closed) == (payloads.fingerprint, True)
    with pytest.raises(JavaError) as raised:
        writer.append([b"too late"])
    assert (raised.value.error, raised.value.code) == ("BKLedgerFencedException", FENCED)


def test_errors_carry_apaches_name_and_code(java_client: JavaClient, apache_cluster: ApacheBookies) -> None:
    with pytest.raises(JavaError) as raised:
        java_client.read(apache_cluster.metadata_service_uri, 1 << 40, recovery=False)
    assert raised.value.error == "BKNoSuchLedgerExistsOnMetadataServerException"
    assert raised.value.code == -25


def test_bookies_come_back_after_a_kill(java_client: JavaClient, apache_cluster: ApacheBookies) -> None:
    uri = apache_cluster.metadata_service_uri
    payloads = Payloads.of_size(20, 1000)
    writer = java_client.create(uri)
    writer.append(payloads)
    writer.close()
    apache_cluster.bookies[0].kill()
    assert java_client.read(uri, writer.ledger_id, recovery=False).fingerprint == payloads.fingerprint
    apache_cluster.start()
    writable, readonly = java_client.list_bookies(uri)
    assert (writable, readonly) == (sorted(bookie.id for bookie in apache_cluster.bookies), [])
