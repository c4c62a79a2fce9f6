"""The read handle over real sockets: replicas that lack, corrupt, hang; closed clients; nothing left behind."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any

import pytest

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection import BookieConnection
from bk_spark.bookie.connection_v3 import BookieConnectionV3
from bk_spark.bookie.pool import ConnectionPool
from bk_spark.bookie.read_handle import ReadHandle
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.digest import digest_function
from bk_spark.protocol.entry import pack_entry
from bk_spark.protocol.errors import (
    BookieUnavailableError,
    BookKeeperError,
    EntryUnknownError,
    InvalidArgumentError,
    MetadataUnavailableError,
    NoSuchEntryError,
)
from bk_spark.protocol.ledger_metadata import LedgerMetadata
from bk_spark.protocol.quorum import Quorum
from tests.support.ledgers import LEDGER, PASSWORD, ledger, payload_of
from tests.support.served_bookie import ModelServices, ServedBookie

COUNT = 300
DIGEST = digest_function(DigestType.CRC32C, PASSWORD)


class Stage:
    """Bookies b1 … b4 with a closed ledger of :data:`COUNT` entries on the first three, and a reader of it."""

    def __init__(self, config: ClientConfig, quorum: Quorum) -> None:
        self.bookies = [ServedBookie(f"b{number}") for number in range(1, 5)]
        length = sum(len(payload_of(entry)) for entry in range(COUNT))
        self.metadata: LedgerMetadata = ledger(quorum).closed(COUNT - 1, length)
        for entry in range(COUNT):
            for index in quorum.write_set(entry):
                self.bookies[index].entries[entry] = stored_entry(entry, payload_of(entry))
        self.services = ModelServices(self.bookies, self.metadata)
        self.pool = ConnectionPool(BookieConnection, self.services.address, config)
        self.pool_v3 = ConnectionPool(BookieConnectionV3, self.services.address, config)
        self.handle = ReadHandle(
            LEDGER,
            self.metadata,
            DigestType.CRC32C,
            PASSWORD,
            self.services,  # type: ignore[arg-type]
            self.pool,
            self.pool_v3,
            config,
        )

    def __getitem__(self, number: int) -> ServedBookie:
        return self.bookies[number - 1]

    async def read_all(self) -> None:
        assert await self.handle.read(0, COUNT - 1) == [payload_of(entry) for entry in range(COUNT)]


def stored_entry(entry_id: int, payload: bytes) -> bytes:
    return pack_entry(LEDGER, entry_id, entry_id - 1, 0, payload, DIGEST)


Play = Callable[[Stage], Coroutine[Any, Any, None]]
PLAIN = Quorum(3, 3, 2)


def staged(quorum: Quorum = PLAIN, **settings: Any) -> Callable[[Play], Callable[[], None]]:
    """A test over a :class:`Stage`; nothing may be left at its end."""
    config = ClientConfig(**{"read_timeout_ms": 300, "connect_timeout_ms": 2_000, **settings})

    def decorate(play: Play) -> Callable[[], None]:
        async def run() -> None:
            stage = Stage(config, quorum)
            for bookie in stage.bookies:
                await bookie.start()
            try:
                async with asyncio.timeout(10):
                    await play(stage)
                for connection in stage.pool._connections.values():
                    assert connection._reads == {} == connection._batches
                left = asyncio.all_tasks() - {asyncio.current_task()}
                assert not left, left
            finally:
                await stage.pool.close()
                await stage.pool_v3.close()
                for bookie in stage.bookies:
                    await bookie.stop()

        @functools.wraps(play)
        def test() -> None:
            asyncio.run(run())

        del test.__wrapped__  # type: ignore[attr-defined]
        return test

    return decorate


@pytest.mark.parametrize("quorum", [PLAIN, Quorum(3, 2, 2), Quorum(2, 1, 1), Quorum(1, 1, 1)], ids=str)
@pytest.mark.parametrize("batch", [True, False])
def test_every_way_of_reading(quorum: Quorum, batch: bool) -> None:
    @staged(quorum, batch_read_enabled=batch)
    async def play(stage: Stage) -> None:
        await stage.read_all()
        assert await stage.handle.read(7, 7) == [payload_of(7)]
        assert any(bookie.batch_reads for bookie in stage.bookies) is (batch and not quorum.striped)

    play()


@staged()
async def test_ranges_that_cannot_be_read(stage: Stage) -> None:
    for first, last in ((-1, 3), (5, 4)):
        with pytest.raises(InvalidArgumentError):
            await stage.handle.read(first, last)
    with pytest.raises(NoSuchEntryError, match=f"last add confirmed, {COUNT - 1}"):
        await stage.handle.read(0, COUNT)


@staged(max_frame_bytes=2_000)
async def test_batches_that_do_not_fit_are_continued(stage: Stage) -> None:
    await stage.read_all()
    assert sum(bookie.batch_reads for bookie in stage.bookies) > 10


@staged(max_frame_bytes=4_000)
async def test_the_largest_entry_that_can_be_written_can_be_read_in_a_batch(stage: Stage) -> None:
    """A batch read's answer is larger than the frame that brought the entry."""
    config = ClientConfig(max_frame_bytes=4_000)
    # What others write may be as large as an ADD frame allows.
    size = config.max_payload_bytes(DigestType.CRC32C) + 128
    for number in (1, 2, 3):
        stage[number].entries[100] = stored_entry(100, bytes(size))
    payloads = await stage.handle.read(98, 103)
    assert [len(payload) for payload in payloads[1:4]] == [len(payload_of(99)), size, len(payload_of(101))]


# --- replicas -----------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize("quorum", [PLAIN, Quorum(3, 2, 2)], ids=str)
def test_gaps_and_corruption_are_read_around(quorum: Quorum, batch: bool) -> None:
    @staged(quorum, batch_read_enabled=batch)
    async def play(stage: Stage) -> None:
        for entry in range(COUNT):
            holders = [bookie for bookie in stage.bookies if entry in bookie.entries]
            spoiled = holders[entry // 40 % len(holders)]
            if entry % 2:
                del spoiled.entries[entry]
            else:
                corrupt = bytearray(spoiled.entries[entry])
                corrupt[-1] ^= 1
                spoiled.entries[entry] = bytes(corrupt)
        await stage.read_all()

    play()


@staged()
async def test_a_hanging_replica_is_read_around(stage: Stage) -> None:
    stage[1].silent = True
    await stage.read_all()
    stage[1].silent = False
    stage[1].answer_held()
    await stage.read_all()


@staged(read_timeout_ms=5_000)
async def test_a_replica_that_dies_is_read_around(stage: Stage) -> None:
    stage[1].silent = True
    reading = asyncio.ensure_future(stage.read_all())
    while not stage[1].batch_reads:
        await asyncio.sleep(0.001)
    await stage[1].stop()
    await reading
    # It died; it is not one that does not know batch reads.
    assert stage.pool.without_batch_read == set()
    stage[1].silent = False
    await stage[1].start()
    before = stage[1].batch_reads
    await stage.read_all()
    assert stage[1].batch_reads > before


@staged()
async def test_bookies_without_batch_reads(stage: Stage) -> None:
    for bookie in stage.bookies:
        bookie.knows_batch_read = False
    await stage.read_all()
    assert stage.pool.without_batch_read == {"b1"}
    tries = sum(bookie.batch_reads for bookie in stage.bookies)
    await stage.read_all()
    assert sum(bookie.batch_reads for bookie in stage.bookies) == tries


@staged(read_attempts=2)
async def test_an_entry_that_no_replica_gives_is_unknown(stage: Stage) -> None:
    for bookie in stage.bookies:
        bookie.entries.pop(150, None)
    with pytest.raises(EntryUnknownError, match="b1 does not have it") as raised:
        await stage.handle.read(0, COUNT - 1)
    assert raised.value.entry_id == 150
    assert stage.services.calls.count("read_latest") == 1


@staged()
async def test_entries_that_moved_are_found_with_fresh_metadata(stage: Stage) -> None:
    for number in (1, 2, 3):
        del stage[number].entries[150]
    stage[4].entries[150] = stored_entry(150, payload_of(150))
    stage.services.change(ledger(PLAIN, (0, "b4 b2 b3")).closed(COUNT - 1, stage.metadata.length))
    received: list[bytes] = []
    async for block in stage.handle.read_blocks(0, COUNT - 1):
        assert block.first_entry_id == len(received)
        received += [bytes(payload) for payload in block.payloads]
    assert received == [payload_of(entry) for entry in range(COUNT)]


# --- letting go ---------------------------------------------------------------------------------


@staged(max_frame_bytes=2_000)
async def test_an_iteration_given_up_early_ends_what_it_has_under_way(stage: Stage) -> None:
    async with aclosing(stage.handle.read_blocks(0, COUNT - 1)) as blocks:
        async for _ in blocks:
            stage[1].silent = stage[2].silent = stage[3].silent = True
            break
    assert asyncio.all_tasks() == {asyncio.current_task()}


@staged(read_timeout_ms=60_000)
async def test_a_cancelled_read_ends_what_it_has_under_way(stage: Stage) -> None:
    for bookie in stage.bookies:
        bookie.silent = True
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await stage.handle.read(0, COUNT - 1)
    for bookie in stage.bookies:
        bookie.silent = False
        bookie.answer_held()
    await stage.read_all()


@staged(read_timeout_ms=60_000)
async def test_closing_the_client_fails_a_read_under_way(stage: Stage) -> None:
    for bookie in stage.bookies:
        bookie.silent = True
    reading = asyncio.ensure_future(stage.handle.read(0, COUNT - 1))
    while not any(bookie.batch_reads for bookie in stage.bookies):
        await asyncio.sleep(0.001)

    async def closed(call: str) -> None:
        raise MetadataUnavailableError("the client is closed")

    stage.services.before = closed
    await stage.pool.close()
    with pytest.raises(BookKeeperError, match="the client is closed"):
        await reading


@staged()
async def test_closing_the_client_fails_whoever_waits_for_a_connection(stage: Stage) -> None:
    go_on = asyncio.Event()

    async def before(call: str) -> None:
        await go_on.wait()

    stage.services.before = before
    waiting = [asyncio.ensure_future(stage.pool.get("b1")) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    await stage.pool.close()
    assert waiting[0].cancelled()
    for one in waiting[1:]:
        with pytest.raises(BookieUnavailableError, match="the client is closed"):
            await one
    with pytest.raises(BookieUnavailableError, match="the client is closed"):
        await stage.pool.get("b2")


@staged(read_attempts=1)
async def test_an_error_nobody_thought_of_is_a_failed_read(stage: Stage) -> None:
    async def before(call: str) -> None:
        raise RuntimeError("cannot schedule new futures after shutdown")

    stage.services.before = before
    with pytest.raises(EntryUnknownError, match="cannot schedule new futures"):
        await stage.handle.read(0, 3)


@staged()
async def test_one_connection_serves_all_who_ask_at_once(stage: Stage) -> None:
    connections = await asyncio.gather(*(stage.pool.get("b1") for _ in range(10)))
    assert len(set(map(id, connections))) == 1
    assert len(stage[1].connections) == 1
    stage[1].break_connections()
    while stage.pool.existing("b1") is not None:
        await asyncio.sleep(0.001)
    again = await asyncio.gather(*(stage.pool.get("b1") for _ in range(10)))
    assert len(set(map(id, again))) == 1
    assert again[0] is not connections[0]


@staged()
async def test_reads_of_one_entry_by_many_are_matched(stage: Stage) -> None:
    connection = await stage.pool.get("b1")
    reads = [connection.read(LEDGER, range(first, first + 4)) for first in (0, 1, 2, 0, 1)]
    for first, answers in zip((0, 1, 2, 0, 1), await asyncio.gather(*reads), strict=True):
        assert sorted(answers) == list(range(first, first + 4))
        assert all(answers[entry].stored == stage[1].entries[entry] for entry in answers)
