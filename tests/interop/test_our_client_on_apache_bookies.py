"""Our ledger client on Apache's bookies, and together with Apache's client on the same ledgers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from bk_spark.bkctl import main as bkctl
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.config import ClientConfig
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.payloads import Payloads as Batch
from bk_spark.protocol.errors import (
    InvalidArgumentError,
    LedgerFencedError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    UnauthorizedError,
)
from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from bk_spark.protocol.quorum import Quorum
from tests.interop.apache import ApacheBookies
from tests.interop.java_client import ALL_OF_THREE, JavaClient, JavaError
from tests.interop.payloads import Payloads, fingerprint
from tests.support.explicit_lac import write_explicit_lac
from tests.support.logs import PASSWORD as PASSWORD_OF_LOGS, TELLING, entries, new_log

PASSWORD = b"open sesame"
JAVA_DIGEST = {
    DigestType.CRC32: "CRC32",
    DigestType.CRC32C: "CRC32C",
    DigestType.HMAC: "MAC",
    DigestType.DUMMY: "DUMMY",
}


@pytest.fixture(scope="module")
def running(apache_cluster: ApacheBookies, java_client: JavaClient) -> ApacheBookies:
    apache_cluster.start()
    # Another module may have killed a bookie: Java's writers would find out at their first add, and fail, since
    # there is no fourth bookie to replace it with.
    java_client.forget(apache_cluster.metadata_service_uri)
    return apache_cluster


@pytest.fixture
def client(running: ApacheBookies) -> Iterator[BlockingClient]:
    with BlockingClient(running.metadata_service_uri) as client:
        yield client


def test_many_small_reads_do_not_lock_the_bookies_up(running: ApacheBookies) -> None:
    """A bookie of 4.18.0 that has more reads under way than its maxReadsInProgressLimit, 10,000, serves nobody any
    more. Of a ledger with one bookie all single reads go there."""
    count = 20_000
    with BlockingClient(running.metadata_service_uri, ClientConfig(batch_read_enabled=False)) as client:
        writer = client.create(quorum=Quorum(1, 1, 1), password=PASSWORD)
        writer.append_many([b"%d" % number for number in range(count)])
        writer.close()
        payloads = client.open_for_reading(writer.ledger_id, PASSWORD).read(0, count - 1)
    assert payloads == [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(3, 2, 2), Quorum(1, 1, 1)], ids=str)
@pytest.mark.parametrize("digest", DigestType)
def test_ours_writes_both_read(
    client: BlockingClient, java_client: JavaClient, apache_cluster: ApacheBookies, digest: DigestType, quorum: Quorum
) -> None:
    payloads = Payloads.varied(300)
    writer = client.create(quorum=quorum, digest_type=digest, password=PASSWORD)
    writer.append_many(Batch.of(list(payloads)))
    closed = writer.close()
    assert (closed.state, closed.last_entry_id, closed.length) == (LedgerState.CLOSED, 299, payloads.total_bytes)

    reader = client.open_for_reading(writer.ledger_id, PASSWORD)
    assert fingerprint(reader.read(0, 299)) == payloads.fingerprint
    for recovery in (False, True):
        read = java_client.read(
            apache_cluster.metadata_service_uri,
            writer.ledger_id,
            recovery=recovery,
            digest=JAVA_DIGEST[digest],
            password=PASSWORD.decode(),
        )
        assert (read.fingerprint, read.closed) == (payloads.fingerprint, True)


@pytest.mark.parametrize("digest", DigestType)
def test_java_writes_ours_reads(
    client: BlockingClient, java_client: JavaClient, apache_cluster: ApacheBookies, digest: DigestType
) -> None:
    payloads = Payloads.varied(200)
    writer = java_client.create(
        apache_cluster.metadata_service_uri, digest=JAVA_DIGEST[digest], password=PASSWORD.decode()
    )
    writer.append(payloads)
    writer.close()
    reader = client.open_for_reading(writer.ledger_id, PASSWORD)
    assert fingerprint(reader.read(0, reader.last_add_confirmed)) == payloads.fingerprint


def test_single_reads_where_batch_reads_are_off(client: BlockingClient, apache_cluster: ApacheBookies) -> None:
    payloads = Payloads.of_size(2_000, 100)
    writer = client.create()
    writer.append_many(Batch.of(list(payloads)))
    writer.close()
    with BlockingClient(apache_cluster.metadata_service_uri, ClientConfig(batch_read_enabled=False)) as plain:
        assert fingerprint(plain.open_for_reading(writer.ledger_id).read(0, 1_999)) == payloads.fingerprint


def test_large_entries_and_the_frame_limit(client: BlockingClient) -> None:
    payloads = Payloads.of_size(12, 1024 * 1024)
    writer = client.create()
    writer.append_many(Batch.of(list(payloads)))
    with pytest.raises(InvalidArgumentError, match="frame limit"):
        writer.append(bytes(5 * 1024 * 1024))
    writer.close()
    assert fingerprint(client.open_for_reading(writer.ledger_id).read(0, 11)) == payloads.fingerprint


def test_ours_recovers_what_java_left_open(
    client: BlockingClient, java_client: JavaClient, apache_cluster: ApacheBookies
) -> None:
    payloads = Payloads.varied(100)
    writer = java_client.create(apache_cluster.metadata_service_uri, digest="CRC32C", password="", quorums=ALL_OF_THREE)
    writer.append(payloads)
    reader = client.recover_and_open(writer.ledger_id)
    assert fingerprint(reader.read(0, reader.last_add_confirmed)) == payloads.fingerprint
    assert (reader.metadata.state, reader.metadata.length) == (LedgerState.CLOSED, payloads.total_bytes)
    with pytest.raises(JavaError, match="Fenced"):
        writer.append([b"too late"])


def test_java_recovers_what_ours_left_open(
    client: BlockingClient, java_client: JavaClient, apache_cluster: ApacheBookies
) -> None:
    payloads = Payloads.varied(100)
    writer = client.create()
    writer.append_many(Batch.of(list(payloads)))
    assert writer.flush() == 99
    read = java_client.read(
        apache_cluster.metadata_service_uri, writer.ledger_id, recovery=True, digest="CRC32C", password=""
    )
    assert (read.fingerprint, read.closed) == (payloads.fingerprint, True)
    writer.append(b"too late")
    with pytest.raises(LedgerFencedError):
        writer.flush()
    writer.abandon()


def test_recovery_of_empty_ledgers_and_at_every_lac(client: BlockingClient) -> None:
    for count in (0, 1, 2, 40):
        writer = client.create(password=PASSWORD)
        for number in range(count):
            writer.append(b"entry %d" % number)
            if number % 7 == 3:
                writer.flush()
        writer.flush()
        reader = client.recover_and_open(writer.ledger_id, PASSWORD)
        assert reader.last_add_confirmed == count - 1
        length = sum(len(b"entry %d" % number) for number in range(count))
        assert (reader.metadata.state, reader.metadata.length) == (LedgerState.CLOSED, length)
        if count:
            assert reader.read(0, count - 1) == [b"entry %d" % number for number in range(count)]
        writer.abandon()


def test_concurrent_recoveries_end_alike(client: BlockingClient, apache_cluster: ApacheBookies) -> None:
    from bk_spark.bookie.client import Client

    writer = client.create()
    writer.append_many(Batch.of([b"%d" % number for number in range(50)]))
    writer.flush()

    async def recover_at_once() -> list[int]:
        async with Client(apache_cluster.metadata_service_uri) as other:
            readers = await asyncio.gather(*(other.recover_and_open(writer.ledger_id) for _ in range(4)))
            return [reader.last_add_confirmed for reader in readers]

    assert asyncio.run(recover_at_once()) == [49] * 4
    writer.abandon()


def test_lac_of_an_open_ledger(client: BlockingClient) -> None:
    writer = client.create()
    reader = client.open_for_reading(writer.ledger_id)
    assert reader.last_add_confirmed == -1
    for number in range(10):
        writer.append(b"%d" % number)
        writer.flush()
    # The LAC travels with the following entry.
    assert reader.read_last_add_confirmed() == 8
    assert reader.read(0, 8) == [b"%d" % number for number in range(9)]
    writer.close()
    assert reader.read_last_add_confirmed() == 9


def test_the_explicit_lac_of_an_idle_writer(client: BlockingClient) -> None:
    writer = client.create()
    writer.append_many(Batch.of([b"one", b"two"]))
    assert writer.flush() == 1
    reader = client.open_for_reading(writer.ledger_id)
    assert reader.last_add_confirmed == -1
    write_explicit_lac(writer.metadata.last_segment.ensemble, writer.ledger_id, 1)
    assert reader.read_last_add_confirmed() == 1
    assert reader.read(0, 1) == [b"one", b"two"]
    writer.close()


def test_a_log_writers_ledger_without_entries(running: ApacheBookies) -> None:
    """Its bookies know its password by an explicit LAC. Apache's answer READ_LAC with EIO then."""
    with BlockingClient(running.metadata_service_uri, TELLING) as client:
        log = new_log(client)
        with log.open_writer() as writer:
            tail = log.snapshot().open_tail
            assert tail is not None
            reader = client.open_for_reading(tail.ledger_id, PASSWORD_OF_LOGS)
            assert reader.read_last_add_confirmed() == -1
            writer.append(b"one")
            writer.flush()
        assert entries(log) == [b"one"]


def test_errors(client: BlockingClient) -> None:
    writer = client.create(password=PASSWORD)
    writer.close()
    with pytest.raises(UnauthorizedError, match="wrong ledger password") as raised:
        client.open_for_reading(writer.ledger_id, b"swordfish")
    assert "swordfish" not in str(raised.value)
    with pytest.raises(NotEnoughBookiesError, match="7 writable bookies are needed, 3 are registered"):
        client.create(quorum=Quorum(7, 3, 2))
    client.delete(writer.ledger_id)
    client.delete(writer.ledger_id)
    with pytest.raises(NoSuchLedgerError):
        client.open_for_reading(writer.ledger_id, PASSWORD)


def test_bkctl_lists_apaches_bookies_with_their_disks(
    running: ApacheBookies, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bkctl(["bookies", "--json", "--metadata-service-uri", running.metadata_service_uri]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [bookie["state"] for bookie in found] == ["writable"] * 3
    for bookie in found:
        assert 0 < bookie["free_bytes"] <= bookie["disk_bytes"]
