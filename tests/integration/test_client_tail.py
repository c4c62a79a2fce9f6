"""Following a ledger on real bookies while it is written: each entry once, in order, to the very end."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.client import Client
from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.reading.read_handle import ReadHandle
from bk_spark.bookie.writing.write_handle import WriteHandle
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import EntryUnknownError, LedgerFencedError, NoSuchEntryError, NoSuchLedgerError
from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalCluster
from tests.support.explicit_lac import write_explicit_lac
from tests.support.registrations import kill_and_forget

#: A busy machine is not taken for a dead bookie: the connection to one that was killed breaks.
CONFIG = ClientConfig(
    add_timeout_ms=60_000, read_timeout_ms=60_000, connect_timeout_ms=60_000, first_speculative_read_timeout_ms=300
)


def payload_of(entry_id: int) -> bytes:
    return b"%d " % entry_id + bytes(entry_id % 700)


def payloads(first: int, count: int) -> Payloads:
    return Payloads.of([payload_of(entry) for entry in range(first, first + count)])


class Follower:
    """Tails a ledger in a task of its own; entries are checked as they come."""

    def __init__(self, reader: ReadHandle) -> None:
        self._reader = reader
        self._progress = asyncio.Event()
        self.next = 0
        self.task = asyncio.ensure_future(self._follow())

    async def reached(self, entry_id: int) -> None:
        """Wait until the entry was given."""
        while self.next <= entry_id and not self.task.done():
            self._progress.clear()
            await self._progress.wait()
        if self.next <= entry_id:
            await self.task
            raise AssertionError(f"the tail ended at {self.next}")

    async def _follow(self) -> None:
        try:
            async with aclosing(self._reader.tail(0)) as blocks:
                async for block in blocks:
                    assert block.first_entry_id == self.next
                    for payload in block.payloads:
                        assert payload == payload_of(self.next)
                        self.next += 1
                    self._progress.set()
        finally:
            self._progress.set()


@asynccontextmanager
async def two_clients(uri: str, config: ClientConfig = CONFIG) -> AsyncIterator[tuple[Client, Client]]:
    async with asyncio.timeout(120), Client(uri, config) as one, Client(uri, config) as other:
        yield one, other


async def write(writer: WriteHandle, first: int, count: int) -> None:
    """Entries ``first`` …, in batches of all sizes; the last one alone, after all others were acknowledged: so it
    tells that they were."""
    sizes = random.Random(first)
    written = 0
    while written < count - 1:
        size = min(sizes.choice((1, 2, 10, 100, 700)), count - 1 - written)
        await writer.append_many(payloads(first + written, size))
        written += size
    await writer.flush()
    await writer.append_many(payloads(first + count - 1, 1))
    await writer.flush()


@pytest.mark.parametrize("v2", [True, False], ids=["v2", "v3"])
@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(3, 2, 2)], ids=str)
def test_a_writer_and_a_tail_at_once(metadata_service_uri: str, quorum: Quorum, v2: bool) -> None:
    """20,000 entries with pauses: at each the tail catches up, up to the last but one, whose LAC no entry carries."""

    async def run() -> None:
        config = ClientConfig(use_v2_wire_protocol=v2)
        async with two_clients(metadata_service_uri, config) as (writing, reading):
            writer = await writing.create(quorum=quorum)
            follower = Follower(await reading.open_for_reading(writer.ledger_id))
            written = 0
            for count in (1, 1, 5, 993, 9_000, 3_000, 7_000):
                await write(writer, written, count)
                written += count
                await follower.reached(written - 2)
            assert written == 20_000
            await writer.close()
            await follower.task
            assert follower.next == written

    asyncio.run(run())


def test_an_explicit_lac_brings_the_last_entry(metadata_service_uri: str) -> None:
    async def run() -> None:
        async with two_clients(metadata_service_uri) as (writing, reading):
            writer = await writing.create()
            follower = Follower(await reading.open_for_reading(writer.ledger_id))
            await write(writer, 0, 1)
            ensemble = writer.metadata.last_segment.ensemble
            await asyncio.to_thread(write_explicit_lac, ensemble, writer.ledger_id, 0)
            await follower.reached(0)
            await writing.delete(writer.ledger_id)
            with pytest.raises(NoSuchLedgerError):
                await follower.task
            await writer.abandon()

    asyncio.run(run())


def test_a_recovery_during_the_tail(metadata_service_uri: str) -> None:
    async def run() -> None:
        async with two_clients(metadata_service_uri) as (writing, reading):
            writer = await writing.create()
            follower = Follower(await reading.open_for_reading(writer.ledger_id))
            await write(writer, 0, 500)
            await follower.reached(498)
            recovered = await reading.recover_and_open(writer.ledger_id)
            assert recovered.last_add_confirmed >= 499
            await follower.task
            assert follower.next == recovered.last_add_confirmed + 1
            with pytest.raises(LedgerFencedError):
                await write(writer, 500, 1)
            await writer.abandon()

    asyncio.run(run())


# --- with bookies that die ----------------------------------------------------------------------


@pytest.fixture
def cluster_of_four(cluster_of_six: LocalCluster) -> LocalCluster:
    """The others are down."""
    kill_and_forget(cluster_of_six, *cluster_of_six.bookies[4:])
    return cluster_of_six


def test_bookies_killed_during_the_tail(cluster_of_four: LocalCluster) -> None:
    """The writer changes its ensemble, the polls move with it; the second bookie to go leaves a hole that
    replicas fill."""
    bookies = {bookie.id: bookie for bookie in cluster_of_four.bookies}

    async def run() -> None:
        async with two_clients(cluster_of_four.metadata_service_uri) as (writing, reading):
            writer = await writing.create()
            follower = Follower(await reading.open_for_reading(writer.ledger_id))
            await write(writer, 0, 2_000)
            await follower.reached(1_998)
            bookies[writer.metadata.last_segment.ensemble[0]].kill()
            await write(writer, 2_000, 2_000)
            assert len(writer.metadata.segments) == 2
            await follower.reached(3_998)
            bookies[writer.metadata.last_segment.ensemble[0]].kill()
            await write(writer, 4_000, 2_000)
            await writer.close()
            await follower.task
            assert follower.next == 6_000

    asyncio.run(run())


def test_a_suspended_bookie_and_then_all_away(cluster_of_six: LocalCluster) -> None:
    bookies = {bookie.id: bookie for bookie in cluster_of_six.bookies}
    config = ClientConfig(
        add_timeout_ms=5_000,
        read_timeout_ms=5_000,
        connect_timeout_ms=5_000,
        first_speculative_read_timeout_ms=300,
        first_speculative_read_lac_timeout_ms=300,
        long_poll_timeout_ms=500,
        tail_attempts=3,
    )

    async def run() -> None:
        async with two_clients(cluster_of_six.metadata_service_uri, config) as (writing, reading):
            writer = await writing.create(quorum=Quorum(2, 2, 1))
            reader = await reading.open_for_reading(writer.ledger_id)
            follower = Follower(reader)
            await write(writer, 0, 100)
            await follower.reached(98)
            bookies[writer.metadata.last_segment.ensemble[0]].suspend()
            await write(writer, 100, 100)
            await follower.reached(198)
            await writer.close()
            await follower.task
            open_ledger = await writing.create(quorum=Quorum(1, 1, 1))
            await write(open_ledger, 0, 1)
            (only,) = open_ledger.metadata.last_segment.ensemble
            follower = Follower(await reading.open_for_reading(open_ledger.ledger_id))
            bookies[only].kill()
            with pytest.raises(EntryUnknownError, match="no bookie could be asked"):
                await follower.task
            await open_ledger.abandon()

    asyncio.run(run())


# --- the blocking facade ------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["native", "grpc"])
def test_the_blocking_reader(metadata_service_uri: str, transport: str) -> None:
    with BlockingClient(metadata_service_uri, ClientConfig(transport=transport)) as client:
        writer = client.create()
        reader = client.open_for_reading(writer.ledger_id)
        assert list(reader.tail(0, max_wait_ms=0)) == []
        writer.append_many(payloads(0, 50))
        writer.flush()
        (given,) = reader.read_unconfirmed(40, 49)
        assert [bytes(payload) for payload in given.payloads] == [payload_of(entry) for entry in range(40, 50)]
        with pytest.raises(NoSuchEntryError, match="not there now"):
            list(reader.read_unconfirmed(50, 50))
        writer.append(payload_of(50))
        writer.flush()
        # What was acknowledged before the last add began is there without waiting.
        following = reader.tail(0, max_wait_ms=0)
        assert sum(len(block) for block in following) == 50
        assert reader.metadata.state is LedgerState.OPEN
        waiting = reader.tail(50)
        closing = threading.Timer(0, writer.close)
        closing.start()
        (block,) = waiting
        assert (block.first_entry_id, len(block)) == (50, 1)
        closing.join()
        batch = reader.read_range(0, 50)
        assert batch.column("value").to_pylist() == [payload_of(entry) for entry in range(51)]
        assert batch.column("entry_id").to_pylist() == list(range(51))
        # Given up in the middle.
        early = reader.tail(0)
        next(early)
        early.close()
