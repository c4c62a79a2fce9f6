"""What writers can do besides appending, on real bookies: force, chosen ids, explicit LAC, waiting for one entry."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.config import ClientConfig
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import (
    DuplicateEntryError,
    EntryGapError,
    LedgerClosedError,
    LedgerExistsError,
    LedgerFencedError,
    UnauthorizedError,
)
from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from bk_spark.protocol.quorum import Quorum

PASSWORD = b"open sesame"


@pytest.fixture(params=["v2", "v3", "grpc"])
def client(metadata_service_uri: str, request: pytest.FixtureRequest) -> Iterator[BlockingClient]:
    transport = "grpc" if request.param == "grpc" else "native"
    config = ClientConfig(use_v2_wire_protocol=request.param == "v2", transport=transport, entry_gap_timeout_ms=200)
    with BlockingClient(metadata_service_uri, config) as client:
        yield client


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%08d" % number for number in range(first, first + count)]


@pytest.mark.parametrize("digest", DigestType)
def test_deferred_sync(client: BlockingClient, digest: DigestType) -> None:
    writer = client.create(deferred_sync=True, digest_type=digest, password=PASSWORD)
    assert writer.append_many(numbered(0, 500)) == 499
    assert (writer.flush(), writer.last_add_acknowledged) == (-1, 499)
    # Nobody can read them yet, though all bookies have them.
    assert client.open_for_reading(writer.ledger_id, PASSWORD).last_add_confirmed == -1
    assert writer.force() == 499
    writer.append(b"00000500")
    writer.flush()
    assert client.open_for_reading(writer.ledger_id, PASSWORD).last_add_confirmed == 499
    closed = writer.close()
    assert (closed.last_entry_id, closed.length) == (500, 501 * 8)
    assert client.open_for_reading(writer.ledger_id, PASSWORD).read(0, 500) == numbered(0, 501)


def test_a_recovery_keeps_what_was_forced(client: BlockingClient) -> None:
    writer = client.create(deferred_sync=True)
    writer.append_many(numbered(0, 100))
    assert writer.force() == 99
    reader = client.recover_and_open(writer.ledger_id)
    assert reader.read(0, 99) == numbered(0, 100)
    writer.append(b"x")
    with pytest.raises(LedgerFencedError):
        writer.flush()
    writer.abandon()


def test_forcing_a_ledger_that_is_synced_anyway(client: BlockingClient) -> None:
    writer = client.create()
    assert writer.force() == -1
    writer.append_many(numbered(0, 10))
    assert writer.force() == 9
    assert writer.close().last_entry_id == 9
    with pytest.raises(LedgerClosedError):
        writer.force()


def test_waiting_for_one_entry(client: BlockingClient) -> None:
    writer = client.create()
    for number in range(20):
        writer.wait_confirmed(writer.append(b"%d" % number))
        assert writer.last_add_confirmed == number
    writer.close()


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(3, 2, 2)], ids=str)
def test_chosen_entry_ids(client: BlockingClient, quorum: Quorum) -> None:
    count = 2_000
    ids = np.arange(count)
    random.Random(5).shuffle(ids)
    writer = client.create_adv(quorum=quorum)

    def append(part: np.ndarray) -> None:
        for start in range(0, len(part), 50):
            some = part[start : start + 50]
            writer.append_many(some, [b"%08d" % number for number in some.tolist()])

    # From several threads at once.
    threads = [threading.Thread(target=append, args=(ids[number::4],)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert writer.flush() == count - 1
    with pytest.raises(DuplicateEntryError):
        writer.append(7, b"again")
    writer.append(count + 1, b"beyond a gap")
    with pytest.raises(EntryGapError, match=f"entry {count} is missing"):
        writer.close()
    writer.append(count, b"the gap")
    closed = writer.close()
    assert closed.last_entry_id == count + 1
    reader = client.open_for_reading(writer.ledger_id)
    assert reader.read(0, count - 1) == numbered(0, count)
    assert reader.read(count, count + 1) == [b"the gap", b"beyond a gap"]


def test_a_chosen_ledger_id(client: BlockingClient) -> None:
    ledger_id = 2**40 + random.getrandbits(30)
    writer = client.create_adv(ledger_id=ledger_id)
    assert writer.ledger_id == ledger_id
    writer.append(0, b"x")
    with pytest.raises(LedgerExistsError):
        client.create_adv(ledger_id=ledger_id)
    assert writer.close().state is LedgerState.CLOSED
    assert client.open_for_reading(ledger_id).read(0, 0) == [b"x"]


def test_g2_an_id_used_again_with_another_password_is_refused_while_its_first_life_is_held(
    client: BlockingClient,
) -> None:
    ledger_id = 2**40 + random.getrandbits(30)
    first = client.create_adv(ledger_id=ledger_id, password=b"first")
    first.append(0, b"old0")
    first.close()
    client.delete(ledger_id)
    second = client.create_adv(ledger_id=ledger_id, password=b"second")
    second.append(0, b"NEW0")
    with pytest.raises(UnauthorizedError):
        second.close()


@pytest.mark.parametrize("digest", DigestType)
def test_a_pausing_writer_is_readable_to_its_end(metadata_service_uri: str, digest: DigestType) -> None:
    with BlockingClient(metadata_service_uri, ClientConfig(explicit_lac_interval_ms=50)) as client:
        writer = client.create(digest_type=digest, password=PASSWORD)
        writer.append_many(numbered(0, 10))
        assert writer.flush() == 9
        reader = client.open_for_reading(writer.ledger_id, PASSWORD)
        deadline = time.monotonic() + 60
        while reader.read_last_add_confirmed() < 9:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert reader.read(0, 9) == numbered(0, 10)
        writer.close()
