"""Apache's Java client writes to and reads from our bookies: nobody but it decides what is right here."""

from __future__ import annotations

import pytest

from bookie_server.local import LocalCluster
from tests.interop.java_client import (
    ALL_OF_THREE,
    CALL_TIMEOUT_MS,
    DEFAULT_PASSWORD,
    DIGESTS,
    WIRES,
    JavaClient,
    JavaError,
    JavaRead,
)
from tests.interop.payloads import Payloads

FENCED = -101
UNAUTHORIZED = -102
MIB = 1 << 20


def _all_reads(java_client: JavaClient, uri: str, ledger_id: int, digest: str = "CRC32C") -> list[JavaRead]:
    """What every way of reading gives: plain over v3 and v2, in batches over v2, and last with recovery."""
    return [
        java_client.read(uri, ledger_id, recovery=False, digest=digest, wire=3),
        java_client.read(uri, ledger_id, recovery=False, digest=digest, wire=2),
        java_client.read(uri, ledger_id, recovery=False, digest=digest, wire=2, batch=True),
        java_client.read(uri, ledger_id, recovery=True, digest=digest, wire=2),
        java_client.read(uri, ledger_id, recovery=True, digest=digest, wire=3),
    ]


def test_java_sees_our_bookies(java_client: JavaClient, cluster: LocalCluster) -> None:
    writable, readonly = java_client.list_bookies(cluster.metadata_service_uri)
    assert writable == sorted(bookie.id for bookie in cluster.bookies)
    assert readonly == []


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("digest", DIGESTS)
def test_written_and_read(java_client: JavaClient, cluster: LocalCluster, digest: str, wire: int) -> None:
    uri = cluster.metadata_service_uri
    payloads = Payloads.varied(60)
    writer = java_client.create(uri, digest=digest, wire=wire)
    added = writer.append(payloads)
    assert (added.first_entry_id, added.last_entry_id, added.length) == (0, 59, payloads.total_bytes)
    closed = writer.close()
    assert (closed.last_entry_id, closed.length) == (59, payloads.total_bytes)
    for read in _all_reads(java_client, uri, writer.ledger_id, digest):
        assert (read.count, read.fingerprint) == (60, payloads.fingerprint)
        assert (read.accumulated_length, read.length) == (payloads.total_bytes, payloads.total_bytes)
        assert (read.last_add_confirmed, read.closed) == (59, True)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2), (1, 1, 1)], ids=str)
def test_a_thousand_adds_in_a_pipeline(
    java_client: JavaClient, cluster: LocalCluster, quorums: tuple[int, int, int], wire: int
) -> None:
    uri = cluster.metadata_service_uri
    payloads = Payloads.of_size(1000, 256)
    writer = java_client.create(uri, quorums=quorums, wire=wire)
    writer.append(payloads, in_flight=1000)
    writer.close()
    for read in _all_reads(java_client, uri, writer.ledger_id):
        assert (read.count, read.fingerprint) == (1000, payloads.fingerprint)


@pytest.mark.parametrize("wire", WIRES)
def test_entries_of_one_mebibyte(java_client: JavaClient, cluster: LocalCluster, wire: int) -> None:
    uri = cluster.metadata_service_uri
    payloads = Payloads.of_size(12, MIB)
    writer = java_client.create(uri, wire=wire)
    writer.append(payloads)
    writer.close()
    reads = _all_reads(java_client, uri, writer.ledger_id)
    for read in reads:
        assert (read.count, read.size_bytes, read.fingerprint) == (12, 12 * MIB, payloads.fingerprint)
    # A batch answer holds at most 5 MiB, less the headers: four of these entries.
    assert reads[2].calls == 3


def test_part_of_a_ledger(java_client: JavaClient, cluster: LocalCluster) -> None:
    uri = cluster.metadata_service_uri
    payloads = Payloads.varied(100)
    writer = java_client.create(uri, quorums=(3, 2, 2))
    writer.append(payloads)
    writer.close()
    read = java_client.read(uri, writer.ledger_id, recovery=False, entries=(17, 23), with_payloads=True)
    assert read.payloads == tuple(payloads)[17:24]


def test_an_empty_ledger(java_client: JavaClient, cluster: LocalCluster) -> None:
    uri = cluster.metadata_service_uri
    writer = java_client.create(uri)
    for wire in WIRES:
        unwritten = java_client.read(uri, writer.ledger_id, recovery=False, wire=wire)
        assert (unwritten.count, unwritten.last_add_confirmed, unwritten.closed) == (0, -1, False)
    closed = writer.close()
    assert (closed.last_entry_id, closed.length) == (-1, 0)
    for read in (
        java_client.read(uri, writer.ledger_id, recovery=False),
        java_client.read(uri, writer.ledger_id, recovery=True),
    ):
        assert (read.count, read.last_add_confirmed, read.length, read.closed) == (0, -1, 0, True)


@pytest.mark.parametrize("wire", WIRES)
def test_recovery_of_an_empty_open_ledger(java_client: JavaClient, cluster: LocalCluster, wire: int) -> None:
    uri = cluster.metadata_service_uri
    writer = java_client.create(uri, wire=wire)
    read = java_client.read(uri, writer.ledger_id, recovery=True, wire=wire)
    assert (read.count, read.last_add_confirmed, read.closed) == (0, -1, True)
    with pytest.raises(JavaError) as raised:
        writer.append([b"too late"])
    assert raised.value.code == FENCED


@pytest.mark.parametrize("wire", WIRES)
def test_an_open_ledger_is_read_up_to_its_last_add_confirmed(
    java_client: JavaClient, cluster: LocalCluster, wire: int
) -> None:
    uri = cluster.metadata_service_uri
    payloads = Payloads.of_size(10, 50)
    writer = java_client.create(uri, wire=wire)
    # One at a time: each entry then carries the one before as its last add confirmed.
    writer.append(payloads, in_flight=1)
    read = java_client.read(uri, writer.ledger_id, recovery=False, wire=wire, with_payloads=True)
    assert (read.last_add_confirmed, read.closed) == (8, False)
    assert read.payloads == tuple(payloads)[:9]
    beyond = java_client.read(
        uri, writer.ledger_id, recovery=False, wire=wire, entries=(0, 9), unconfirmed=True, with_payloads=True
    )
    assert beyond.payloads == tuple(payloads)
    writer.append([b"the writer was not disturbed"])
    assert writer.close().last_entry_id == 10


@pytest.mark.parametrize("recovery_wire", WIRES)
@pytest.mark.parametrize("wire", WIRES)
def test_recovery_fences_the_writer(
    java_client: JavaClient, cluster: LocalCluster, wire: int, recovery_wire: int
) -> None:
    uri = cluster.metadata_service_uri
    payloads = Payloads.varied(30)
    writer = java_client.create(uri, wire=wire, quorums=ALL_OF_THREE)
    writer.append(payloads)
    read = java_client.read(uri, writer.ledger_id, recovery=True, wire=recovery_wire)
    assert (read.fingerprint, read.last_add_confirmed, read.closed) == (payloads.fingerprint, 29, True)
    with pytest.raises(JavaError) as raised:
        writer.append([b"too late"])
    assert (raised.value.error, raised.value.code) == ("BKLedgerFencedException", FENCED)
    after = java_client.read(uri, writer.ledger_id, recovery=False)
    assert (after.count, after.fingerprint) == (30, payloads.fingerprint)


def test_recoverers_at_once_agree(java_client: JavaClient, cluster: LocalCluster) -> None:
    uri = cluster.metadata_service_uri
    payloads = Payloads.varied(200)
    writer = java_client.create(uri, quorums=(3, 3, 2))
    writer.append(payloads)
    answers = [
        java_client.submit(
            "read",
            uri=uri,
            wire=wire,
            ledger_id=writer.ledger_id,
            recovery=True,
            digest="CRC32C",
            password=DEFAULT_PASSWORD,
        )
        for wire in (2, 3, 2, 3)
    ]
    for answer in answers:
        read = answer.result(CALL_TIMEOUT_MS / 1000)
        assert (read["count"], read["fingerprint"]) == (200, payloads.fingerprint)


def test_another_key_is_refused(java_client: JavaClient, cluster: LocalCluster) -> None:
    uri = cluster.metadata_service_uri
    writer = java_client.create(uri, password="right")
    writer.append([b"payload"])
    writer.close()
    with pytest.raises(JavaError) as raised:
        java_client.read(uri, writer.ledger_id, recovery=False, password="wrong")
    assert raised.value.code == UNAUTHORIZED
    empty = java_client.create(uri, password="")
    empty.append([b"payload"])
    empty.close()
    assert java_client.read(uri, empty.ledger_id, recovery=True, password="").count == 1


def test_nothing_is_lost_by_kill_9(java_client: JavaClient, mended_cluster: LocalCluster) -> None:
    uri = mended_cluster.metadata_service_uri
    payloads = Payloads.varied(500)
    closed = java_client.create(uri, quorums=ALL_OF_THREE)
    closed.append(payloads)
    closed.close()
    fenced = java_client.create(uri, quorums=ALL_OF_THREE)
    fenced.append(payloads)
    assert java_client.read(uri, fenced.ledger_id, recovery=True).count == 500
    still_open = java_client.create(uri, quorums=ALL_OF_THREE)
    still_open.append(payloads)
    for bookie in mended_cluster.bookies:
        bookie.kill()
    mended_cluster.heal()
    with pytest.raises(JavaError) as raised:
        fenced.append([b"the fence is as durable as an entry"])
    assert raised.value.code == FENCED
    for writer in (closed, fenced, still_open):
        for read in _all_reads(java_client, uri, writer.ledger_id)[-2:]:
            assert (read.count, read.fingerprint) == (500, payloads.fingerprint)


def test_java_replaces_a_dead_bookie_in_its_ensemble(java_client: JavaClient, mended_cluster: LocalCluster) -> None:
    uri = mended_cluster.metadata_service_uri
    first, second = Payloads.varied(100, seed=1), Payloads.varied(100, seed=2)
    writer = java_client.create(uri, quorums=(2, 2, 2))
    writer.append(first)
    ensemble = java_client.metadata(uri, writer.ledger_id).segments[0][1]
    (dead,) = [bookie for bookie in mended_cluster.bookies if bookie.id == ensemble[0]]
    dead.kill()
    writer.append(second)
    writer.close()
    segments = java_client.metadata(uri, writer.ledger_id).segments
    assert [first_entry_id for first_entry_id, _ in segments] == [0, 100]
    assert dead.id not in segments[1][1]
    read = java_client.read(uri, writer.ledger_id, recovery=False, with_payloads=True)
    assert read.payloads == (*first, *second)
