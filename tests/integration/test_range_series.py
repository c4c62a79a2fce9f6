"""Ranges of many ledgers, read one after the other with the next ones begun ahead."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Iterator
from contextlib import closing

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.reading.read_handle import ReadHandle
from bk_spark.protocol.entries.entry import EntryBlock
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import BookKeeperError, NoSuchEntryError, NoSuchLedgerError, UnauthorizedError
from bk_spark.protocol.ledger.reading.range_windows import EntryRange
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalCluster
from tests.support.registrations import mend

PASSWORD = b"open sesame"


@pytest.fixture
def client(metadata_service_uri: str) -> Iterator[BlockingClient]:
    with BlockingClient(metadata_service_uri) as client:
        yield client


def _ledger(client: BlockingClient, entries: list[bytes]) -> int:
    writer = client.create(password=PASSWORD)
    if entries:
        writer.append_many(Payloads.of(entries))
    writer.close()
    return writer.ledger_id


def _payloads(parts: Iterator[Payloads]) -> list[bytes]:
    return [bytes(payload) for part in parts for payload in part]


def _until_error(
    client: BlockingClient, ranges: list[EntryRange], password: bytes, part_bytes: int = 0
) -> tuple[list[bytes], Exception]:
    found: list[bytes] = []
    try:
        for part in client.read_series(ranges, password, part_bytes=part_bytes):
            found += map(bytes, part)
    except BookKeeperError as error:
        return found, error
    raise AssertionError("no error")


def test_all_entries_in_order(client: BlockingClient) -> None:
    rng = random.Random(1)
    ranges, expected = [], []
    for number in range(60):
        count, size = rng.choice([(1, 10), (5, 100), (300, 50), (40, 20_000), (7, 200_000)])
        entries = [b"%d-%d " % (number, entry) + bytes(size) for entry in range(count)]
        first = rng.choice([0, 0, count // 2])
        # What the list of a log knows of a part is an estimate; here also far off.
        size_bytes = rng.choice([1, 1, 10, 100]) * size * (count - first) // rng.choice([1, 1, 100])
        ranges.append(EntryRange(_ledger(client, entries), first, count - 1, size_bytes))
        expected += entries[first:]
    for _ in range(2):
        assert _payloads(client.read_series(ranges, PASSWORD)) == expected
    # Of ledgers that were opened before, and the same one several times.
    again = [ranges[5], ranges[3], ranges[5]] * 20
    assert len(_payloads(client.read_series(again, PASSWORD))) == sum(one.last - one.first + 1 for one in again)
    assert _payloads(client.read_series([], PASSWORD)) == []


def test_tiny_ranges_of_a_few_ledgers_are_read_together(
    client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a log of micro-batches has them: 600 batches of one entry from each of 8 tasks, some repeated."""
    reads: list[tuple[int, int]] = []
    known_blocks = ReadHandle.known_blocks

    def counted(self: ReadHandle, first: int, last: int) -> AsyncGenerator[EntryBlock, None]:
        reads.append((first, last))
        return known_blocks(self, first, last)

    monkeypatch.setattr(ReadHandle, "known_blocks", counted)
    rng = random.Random(2)
    batches, tasks = 600, 8
    written: list[list[bytes]] = [[] for _ in range(tasks)]
    listed: list[tuple[int, int]] = []
    for _ in range(batches):
        for task in range(tasks):
            # An attempt whose message was not taken leaves entries that no batch lists.
            for _ in range(int(rng.random() < 0.001)):
                written[task].append(b"not listed")
            listed.append((task, len(written[task])))
            written[task].append(b"%d" % len(listed) * rng.randint(1, 20))
    ledger_ids = [_ledger(client, entries) for entries in written]
    ranges = [EntryRange(ledger_ids[task], entry, entry, len(written[task][entry])) for task, entry in listed]
    found = _payloads(client.read_series(ranges, PASSWORD))
    assert found == [written[task][entry] for task, entry in listed]
    assert len(reads) < len(ranges) / 50


def test_entries_far_larger_than_the_list_says_are_not_held_all_at_once(client: BlockingClient) -> None:
    ledgers, entries, size = 4, 100, 50_000
    written = [[b"%d-%d " % (ledger, entry) + bytes(size) for entry in range(entries)] for ledger in range(ledgers)]
    ledger_ids = [_ledger(client, each) for each in written]
    ranges = [EntryRange(ledger_ids[n], entry, entry, 1) for entry in range(entries) for n in range(ledgers)]
    parts = list(client.read_series(ranges, PASSWORD))
    assert _payloads(iter(parts)) == [written[n][entry] for entry in range(entries) for n in range(ledgers)]
    assert max(part.size_bytes for part in parts) < ledgers * entries * size / 2


def test_tiny_ranges_before_an_error_are_given(client: BlockingClient) -> None:
    """A ledger that is gone, and one that ends too early, between others; each in the order of the ranges."""
    first, gone, short = (_ledger(client, [b"%d-%d" % (n, entry) for entry in range(5)]) for n in range(3))
    ranges = [EntryRange(ledger_id, entry, entry, 3) for entry in range(5) for ledger_id in (first, short)]
    assert len(_payloads(client.read_series(ranges, PASSWORD))) == 10
    beyond = [*ranges, EntryRange(short, 5, 5, 3), EntryRange(first, 0, 0, 3)]
    found, error = _until_error(client, beyond, PASSWORD)
    assert isinstance(error, NoSuchEntryError)
    assert found == _payloads(client.read_series(ranges, PASSWORD))
    client.delete(gone)
    ranges[5:5] = [EntryRange(gone, 0, 0, 3)]
    found, error = _until_error(client, ranges, PASSWORD)
    assert isinstance(error, NoSuchLedgerError)
    assert found == [b"0-0", b"2-0", b"0-1", b"2-1", b"0-2"]


def test_whoever_has_enough_leaves_nothing_behind(client: BlockingClient) -> None:
    ranges = [EntryRange(_ledger(client, [bytes(100)] * 10), 0, 9, 1000) for _ in range(40)]
    ranges[1:1] = [EntryRange(_ledger(client, [bytes(100_000)] * 50), 0, 49, size) for size in (5_000_000, 10)]
    for taken in (1, 2, 5, 30):
        with closing(client.read_series(ranges, PASSWORD)) as lists:
            for _, _blocks in zip(range(taken), lists, strict=False):
                pass


def test_parts_are_joined_until_they_are_large_enough(client: BlockingClient) -> None:
    written = [b"%d" % number + bytes(30_000) for number in range(200)]
    whole = EntryRange(_ledger(client, written), 0, 199, 6_000_000)
    gone = EntryRange(_ledger(client, [b"gone"]), 0, 0, 1)
    client.delete(gone.ledger_id)
    for part_bytes in (1, 2_500_000, 1 << 40):
        found, error = _until_error(client, [whole, gone], PASSWORD, part_bytes)
        assert isinstance(error, NoSuchLedgerError)
        assert found == written
        parts = list(client.read_series([whole], PASSWORD, part_bytes=part_bytes))
        assert _payloads(iter(parts)) == written
        # The first ones are smaller: an eighth, a quarter, a half.
        assert all(part.size_bytes >= part_bytes for part in parts[3:-1])
        assert all(part.size_bytes >= part_bytes // 8 for part in parts[:-1])


def test_what_lies_before_an_error_is_given(client: BlockingClient) -> None:
    ledgers = [_ledger(client, [b"%d" % number]) for number in range(30)]
    ranges = [EntryRange(ledger_id, 0, 0, 1) for ledger_id in ledgers]
    client.delete(ledgers[17])
    found, error = _until_error(client, ranges, PASSWORD)
    assert isinstance(error, NoSuchLedgerError)
    assert found == [b"%d" % number for number in range(17)]
    found, error = _until_error(client, [ranges[0], EntryRange(ledgers[1], 0, 3, 1), ranges[2]], PASSWORD)
    assert isinstance(error, NoSuchEntryError)
    assert found == [b"0", b"1"]
    assert _until_error(client, ranges[3:5], b"wrong")[1].__class__ is UnauthorizedError
    # The others are still read.
    assert _payloads(client.read_series(ranges[18:], PASSWORD)) == [b"%d" % number for number in range(18, 30)]


def test_a_ledger_that_goes_on_after_it_was_opened(client: BlockingClient) -> None:
    writer = client.create(password=PASSWORD)
    for turn in range(3):
        writer.append_many([b"%d" % number for number in range(turn * 10, turn * 10 + 10)])
        writer.flush()
        part = EntryRange(writer.ledger_id, turn * 10, turn * 10 + 9, 100)
        assert _payloads(client.read_series([part], PASSWORD)) == [
            b"%d" % number for number in range(turn * 10, turn * 10 + 10)
        ]
    writer.close()
    whole = EntryRange(writer.ledger_id, 0, 29, 100)
    assert _payloads(client.read_series([whole], PASSWORD)) == [b"%d" % number for number in range(30)]


def test_a_bookie_that_was_replaced_after_the_ledger_was_opened(
    client: BlockingClient, mended_cluster: LocalCluster
) -> None:
    """It runs again and says truly that it has no later entry; another one has."""
    writer = client.create(quorum=Quorum(1, 1, 1), password=PASSWORD)
    writer.append_many([b"a", b"b"])
    writer.flush()
    assert _payloads(client.read_series([EntryRange(writer.ledger_id, 0, 1, 2)], PASSWORD)) == [b"a", b"b"]
    (first_bookie,) = writer.metadata.last_segment.ensemble
    (process,) = [one for one in mended_cluster.bookies if one.id == first_bookie]
    process.kill()
    writer.append_many([b"c", b"d"])
    writer.flush()
    assert writer.metadata.last_segment.ensemble != (first_bookie,)
    mend(mended_cluster)
    later = [EntryRange(writer.ledger_id, 2, 3, 2)]
    assert _payloads(client.read_series(later, PASSWORD)) == [b"c", b"d"]
    writer.close()
