"""The read handle over real sockets: replicas that lack, corrupt, hang; closed clients; nothing left behind."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import numpy as np
import pyarrow as pa
import pytest

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.reading.arrow import entries_batch
from bk_spark.bookie.reading.failure_history import FailureHistory
from bk_spark.protocol.codes import LAST_ENTRY, Code, DigestType
from bk_spark.protocol.entries.entry import EntryBlock
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import (
    BookieUnavailableError,
    BookKeeperError,
    EntryUnknownError,
    InvalidArgumentError,
    MetadataUnavailableError,
    NoSuchEntryError,
)
from bk_spark.protocol.quorum import Quorum
from tests.support.ledgers import LEDGER, ledger, payload_of
from tests.support.read_stage import GIVES_UP_SOON, PLAIN, ReadStage as Stage, corrupted, staged, stored_entry

COUNT = 300


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
                spoiled.entries[entry] = corrupted(spoiled.entries[entry])
        await stage.read_all()

    play()


@pytest.mark.parametrize("quorum", [PLAIN, Quorum(3, 2, 2)], ids=str)
@pytest.mark.parametrize("harm", ["lacks", "corrupt", "hangs", "dead"])
def test_a_single_entry_whose_first_replica_fails(quorum: Quorum, harm: str) -> None:
    @staged(quorum, first_speculative_read_timeout_ms=30, bookie_failure_history_expiration_ms=0)
    async def play(stage: Stage) -> None:
        first = stage[1]
        for entry in list(first.entries):
            if harm == "lacks":
                del first.entries[entry]
            elif harm == "corrupt":
                first.entries[entry] = corrupted(first.entries[entry])
        first.silent = harm == "hangs"
        if harm == "dead":
            await first.stop()
        for entry in range(12):
            assert await stage.handle.read(entry, entry) == [payload_of(entry)]

    play()


@staged(**GIVES_UP_SOON)
async def test_a_hanging_replica_is_read_around(stage: Stage) -> None:
    stage[1].silent = True
    await stage.read_all()
    stage[1].silent = False
    stage[1].answer_held()
    await stage.read_all()


@staged(read_timeout_ms=5_000, bookie_failure_history_expiration_ms=0)
async def test_a_replica_that_dies_is_read_around(stage: Stage) -> None:
    stage[1].silent = True
    reading = asyncio.ensure_future(stage.read_all())
    while not stage[1].batch_reads:
        await asyncio.sleep(0.001)
    await stage[1].stop()
    await reading
    # It died; it is not one that does not know batch reads.
    assert stage.access.without_batch_reads == set()
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
    assert stage.access.without_batch_reads == {"b1"}
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


# --- slow replicas ------------------------------------------------------------------------------


@staged(first_speculative_read_timeout_ms=30)
async def test_a_slow_replica_is_joined_by_another_and_then_avoided(stage: Stage) -> None:
    stage[1].silent = True
    await stage.read_all()
    # Nothing was waited for, no answer is left, and the next read does not ask it.
    before = stage[1].batch_reads
    await stage.read_all()
    assert stage[1].batch_reads == before
    assert "b1" in stage.access.history
    stage[1].silent = False
    stage[1].answer_held()
    await stage.read_all()


@staged(first_speculative_read_timeout_ms=30)
async def test_a_slow_replica_that_answers_after_the_second_one_is_ignored(stage: Stage) -> None:
    stage[1].silent = stage[2].silent = True
    reading = asyncio.ensure_future(stage.handle.read(0, 0))
    while not (stage[1].answers_held and stage[2].answers_held):
        await asyncio.sleep(0.001)
    stage[2].entries[0] = stored_entry(0, b"not this one")
    stage[2].answer_held()
    assert await reading == [payload_of(0)]
    stage[1].answer_held()
    stage[1].silent = stage[2].silent = False
    assert await stage.handle.read(1, 1) == [payload_of(1)]


def test_failures_are_remembered_for_a_while() -> None:
    now = 100.0
    history = FailureHistory(60_000, clock=lambda: now)
    history.add("b1")
    assert "b1" in history
    assert "b2" not in history
    now += 59.9
    assert "b1" in history
    history.add("b1")
    now += 59.9
    assert "b1" in history
    now += 0.2
    assert "b1" not in history


# --- unconfirmed entries ------------------------------------------------------------------------


async def unconfirmed(stage: Stage, first: int, last: int) -> list[bytes]:
    found: list[bytes] = []
    async for block in stage.handle.read_unconfirmed(first, last):
        assert block.first_entry_id == first + len(found)
        found += [bytes(payload) for payload in block.payloads]
    return found


@staged(count=10, closed=False)
async def test_unconfirmed_entries_are_read_as_far_as_they_are_there(stage: Stage) -> None:
    assert await unconfirmed(stage, 3, 9) == [payload_of(entry) for entry in range(3, 10)]
    # The LACs in them count.
    assert stage.handle.last_add_confirmed == 8
    blocks = stage.handle.read_unconfirmed(0, 20)
    given = 0
    while given < 10:
        given += len(await anext(blocks))
    with pytest.raises(NoSuchEntryError, match="not there now") as raised:
        await anext(blocks)
    assert raised.value.entry_id == 10


@staged(count=10, closed=False)
async def test_an_unconfirmed_entry_at_one_replica_only(stage: Stage) -> None:
    stage[3].add(10)
    assert await unconfirmed(stage, 10, 10) == [payload_of(10)]


@staged(count=10, closed=False, read_attempts=2)
async def test_an_unconfirmed_entry_that_one_replica_cannot_read_is_unknown(stage: Stage) -> None:
    """C7: an I/O error is never absent. Nor is silence, nor a wrong digest."""
    stage[3].unreadable.add(10)
    with pytest.raises(EntryUnknownError, match="b3 answered IO_ERROR"):
        await unconfirmed(stage, 10, 10)
    stage[3].unreadable.clear()
    stage[3].entries[10] = corrupted(stored_entry(10))
    with pytest.raises(EntryUnknownError, match="b3 CRC32C digest does not match"):
        await unconfirmed(stage, 10, 10)
    del stage[3].entries[10]
    with pytest.raises(NoSuchEntryError):
        await unconfirmed(stage, 10, 10)
    await stage[3].stop()
    with pytest.raises(EntryUnknownError, match="b3 "):
        await unconfirmed(stage, 10, 10)


@staged(count=10, closed=False)
async def test_an_entry_of_an_ensemble_not_yet_known_is_not_taken_for_absent(stage: Stage) -> None:
    stage.services.change(ledger(PLAIN, (0, "b1 b2 b3"), (10, "b4 b2 b3")))
    stage[4].add(10)
    assert await unconfirmed(stage, 10, 10) == [payload_of(10)]


@staged(count=10)
async def test_beyond_the_end_of_a_closed_ledger_nobody_is_asked(stage: Stage) -> None:
    """C11: entry 10 was written back by a recoverer that lost."""
    for number in (1, 2, 3):
        stage[number].add(10)
    assert await unconfirmed(stage, 8, 9) == [payload_of(8), payload_of(9)]
    with pytest.raises(NoSuchEntryError, match="last add confirmed, 9") as raised:
        await unconfirmed(stage, 8, 10)
    assert raised.value.entry_id == 10
    with pytest.raises(InvalidArgumentError):
        await unconfirmed(stage, 3, 2)


@staged(count=10)
async def test_known_entries_are_read_up_to_the_end_of_a_closed_ledger(stage: Stage) -> None:
    for number in (1, 2, 3):
        stage[number].add(10)
    found: list[bytes] = []

    async def read_known() -> None:
        async for block in stage.handle.read_blocks(5, 12, known_to_exist=True):
            found.extend(map(bytes, block.payloads))

    with pytest.raises(NoSuchEntryError, match="entry 10 lies beyond the last add confirmed, 9"):
        await read_known()
    assert found == [payload_of(entry) for entry in range(5, 10)]
    with pytest.raises(NoSuchEntryError):
        await anext(stage.handle.read_blocks(5, 12))


@staged(count=10, read_attempts=1)
async def test_a_confirmed_entry_that_all_lack_is_unknown_even_so(stage: Stage) -> None:
    for number in (1, 2, 3):
        del stage[number].entries[5]
    with pytest.raises(EntryUnknownError) as raised:
        await unconfirmed(stage, 0, 9)
    assert raised.value.entry_id == 5


# --- the last add confirmed ---------------------------------------------------------------------


@staged(count=10, closed=False)
async def test_a_hanging_bookie_does_not_delay_the_lac(stage: Stage) -> None:
    stage[1].silent = True
    assert await stage.handle.read_last_add_confirmed() == 8


@staged(count=0, closed=False)
async def test_the_explicit_lac_of_a_bookie_without_entries_counts(stage: Stage) -> None:
    assert await stage.handle.read_last_add_confirmed() == -1
    stage[1].publish(3)
    stage[1].lac_without_entries = Code.IO_ERROR
    stage[2].silent = stage[3].silent = True
    reading = asyncio.ensure_future(stage.handle.read_last_add_confirmed())
    while not (stage[2].answers_held and stage[3].answers_held and stage[1].lac_reads == 2):
        await asyncio.sleep(0.001)
    # Two answers are enough, so the third stays away: the first is one of them.
    stage[2].answer_held()
    assert await reading == 3
    # The error was believed only because a read says that there is no entry.
    assert stage[1].reads == [(LAST_ENTRY, False)]


@staged(count=10, closed=False)
async def test_a_wrong_digest_is_no_answer(stage: Stage) -> None:
    stage[1].spoil_lac = stage[2].spoil_lac = True
    with pytest.raises(EntryUnknownError, match="b1 last entry: CRC32C digest .* b2 last entry: CRC32C"):
        await stage.handle.read_last_add_confirmed()
    stage[2].spoil_lac = False
    assert await stage.handle.read_last_add_confirmed() == 8
    # It never goes back.
    for number in (1, 2, 3):
        stage[number].entries.clear()
    assert await stage.handle.read_last_add_confirmed() == 8


# --- Arrow --------------------------------------------------------------------------------------


@pytest.mark.parametrize("quorum", [PLAIN, Quorum(3, 2, 2)], ids=str)
def test_a_range_as_a_record_batch(quorum: Quorum) -> None:
    @staged(quorum, max_frame_bytes=2_000)
    async def play(stage: Stage) -> None:
        batch = await stage.handle.read_range(5, COUNT - 1)
        assert batch.schema.names == ["entry_id", "value"]
        assert batch.schema.types == [pa.int64(), pa.binary()]
        assert batch.column(0).to_pylist() == list(range(5, COUNT))
        assert batch.column(1).to_pylist() == [payload_of(entry) for entry in range(5, COUNT)]
        batch.validate(full=True)
        one = await stage.handle.read_range(7, 7)
        assert one.to_pylist() == [{"entry_id": 7, "value": payload_of(7)}]

    play()


@staged()
async def test_a_range_that_is_too_large_for_one_batch(stage: Stage) -> None:
    size = stage.metadata.length
    assert (await stage.handle.read_range(0, COUNT - 1, max_bytes=size)).num_rows == COUNT
    with pytest.raises(InvalidArgumentError, match=f"more than {size - 1} bytes.* use read_blocks"):
        await stage.handle.read_range(0, COUNT - 1, max_bytes=size - 1)
    with pytest.raises(NoSuchEntryError):
        await stage.handle.read_range(0, COUNT)


def test_one_block_becomes_a_column_without_copying() -> None:
    data = memoryview(b"--one three--")
    block = EntryBlock(4, Payloads(data, np.array([2, 5, 5, 11], np.int64)), -1)
    batch = entries_batch([block])
    assert batch.to_pylist() == [
        {"entry_id": 4, "value": b"one"},
        {"entry_id": 5, "value": b""},
        {"entry_id": 6, "value": b" three"},
    ]
    assert batch.column(1).buffers()[2].address == pa.py_buffer(data).address + 2
    joined = entries_batch([block, EntryBlock(7, Payloads.of([b"", b"x"]), -1)])
    assert joined.column(1).to_pylist() == [b"one", b"", b" three", b"", b"x"]


# --- letting go ---------------------------------------------------------------------------------


@staged(max_frame_bytes=2_000)
async def test_an_iteration_given_up_early_ends_what_it_has_under_way(stage: Stage) -> None:
    async with aclosing(stage.handle.read_blocks(0, COUNT - 1)) as blocks:
        async for _ in blocks:
            stage[1].silent = stage[2].silent = stage[3].silent = True
            break
    assert asyncio.all_tasks() == {asyncio.current_task()}


@staged()
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


@staged()
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
