"""The handle whose caller chooses entry ids, over real sockets."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import (
    DuplicateEntryError,
    EntryGapError,
    InvalidArgumentError,
    LedgerClosedError,
    LedgerFencedError,
)
from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from tests.support.write_stage import Stage, entries, staged, until


@staged()
async def test_ids_in_any_order_reach_bookies_in_order(stage: Stage) -> None:
    ids = list(range(200))
    random.Random(1).shuffle(ids)
    for start in range(0, 200, 10):
        part = ids[start : start + 10]
        await stage.adv.append_many(part, [b"%04d" % entry_id for entry_id in part])
    assert await stage.adv.flush() == 199
    await until(lambda: len(stage[1].seen) == 200)
    assert stage[1].seen == list(range(200))
    assert stage[1].entries[17].endswith(b"0017")
    closed = await stage.adv.close()
    assert (closed.last_entry_id, closed.length) == (199, 800)
    with pytest.raises(LedgerClosedError):
        await stage.adv.append(200, b"x")


@staged()
async def test_several_tasks_at_once(stage: Stage) -> None:
    async def append(numbers: range) -> None:
        for entry_id in numbers:
            await stage.adv.append(entry_id, b"%04d" % entry_id)
            await stage.adv.wait_confirmed(entry_id)

    await asyncio.gather(*(append(range(first, 100, 5)) for first in range(5)))
    assert stage.adv.last_add_confirmed == 99
    assert stage[2].seen == list(range(100))


@staged()
async def test_duplicates(stage: Stage) -> None:
    await stage.adv.append_many(np.array([0, 1, 5]), entries(3))
    for taken in (0, 1, 5):
        with pytest.raises(DuplicateEntryError) as caught:
            await stage.adv.append(taken, b"x")
        assert caught.value.entry_id == taken
    with pytest.raises(InvalidArgumentError):
        await stage.adv.append(-1, b"x")
    assert stage.adv.waiting_entries == 1
    await stage.adv.append_many([2, 3, 4], entries(3))
    assert await stage.adv.flush() == 5


@staged(max_unanswered_entries=10, entry_gap_timeout_ms=50)
async def test_a_gap_that_nobody_fills(stage: Stage) -> None:
    await stage.adv.append(0, b"x")
    await stage.adv.append_many(list(range(3, 13)), entries(10))
    with pytest.raises(
        EntryGapError, match="no room for entry 13: entry 1 is missing, and all up to 2; 10 entries"
    ) as e:
        await stage.adv.append(13, b"x")
    assert (e.value.entry_id, e.value.retriable) == (1, True)
    # flush, close and force fail too.
    for call in (stage.adv.flush(), stage.adv.close(), stage.adv.force()):
        with pytest.raises(EntryGapError, match="entry 1 is missing"):
            await call
    # Nothing was lost: the gap can still be filled.
    await stage.adv.append_many([1, 2], entries(2))
    await stage.adv.append(13, b"x")
    assert (await stage.adv.close()).last_entry_id == 13


@staged(max_unanswered_entries=4, entry_gap_timeout_ms=50)
async def test_more_than_may_wait_in_one_call(stage: Stage) -> None:
    with pytest.raises(EntryGapError, match="no room for entry 1: entry 0 is missing; 0 entries"):
        await stage.adv.append_many(list(range(1, 7)), entries(6))
    await stage.adv.append_many(list(range(6)), entries(6))
    assert await stage.adv.flush() == 5


@staged(max_unanswered_entries=4)
async def test_who_waits_for_room_goes_on_when_the_gap_is_filled(stage: Stage) -> None:
    await stage.adv.append_many([1, 2, 3, 4], entries(4))
    late = asyncio.ensure_future(stage.adv.append(5, b"x"))
    flushing = asyncio.ensure_future(stage.adv.flush())
    await asyncio.sleep(0)
    assert not late.done()
    await stage.adv.append(0, b"x")
    await late
    await flushing
    assert await stage.adv.flush() == 5


@staged(max_unanswered_entries=4, entry_gap_timeout_ms=100)
async def test_back_pressure_is_no_gap(stage: Stage) -> None:
    """The gap is filled in time, but the bookies are slow to take what is in order."""
    for bookie in stage.bookies:
        bookie.silent_adds = True
    await stage.adv.append_many([0, 1, 2, 3], entries(4))
    await stage.adv.append_many([5, 6, 7, 8], entries(4))
    waiting = asyncio.ensure_future(stage.adv.append(9, b"x"))
    await asyncio.sleep(0)
    filling = asyncio.ensure_future(stage.adv.append(4, b"x"))
    done, _ = await asyncio.wait([waiting, filling], timeout=0.3)
    assert not done
    for bookie in stage.bookies:
        bookie.silent_adds = False
        bookie.answer_held()
    await asyncio.gather(waiting, filling)
    assert await stage.adv.flush() == 9


@staged(max_unanswered_entries=4)
async def test_the_end_of_the_handle_wakes_who_waits(stage: Stage) -> None:
    await stage.adv.append_many([1, 2, 3, 4], entries(4))
    waiting = [
        asyncio.ensure_future(work)
        for work in (stage.adv.append(5, b"x"), stage.adv.flush(), stage.adv.wait_confirmed(3))
    ]
    await asyncio.sleep(0)
    await stage.adv.abandon()
    for one in waiting:
        with pytest.raises(LedgerClosedError):
            await one
    with pytest.raises(LedgerClosedError):
        await stage.adv.append(0, b"x")
    assert stage.services.metadata.state is LedgerState.OPEN


@staged(max_pending_bytes=1)
async def test_a_cancelled_append_leaves_no_hole(stage: Stage) -> None:
    """The next call sends the entries of the cancelled one."""
    for bookie in stage.bookies:
        bookie.silent_adds = True
    await stage.adv.append(0, b"zero")
    cancelled = asyncio.ensure_future(stage.adv.append(1, b"one"))
    await until(lambda: len(stage[1].seen) == 1)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    for bookie in stage.bookies:
        bookie.silent_adds = False
        bookie.answer_held()
    with pytest.raises(DuplicateEntryError):
        await stage.adv.append(1, b"one")
    await stage.adv.append(2, b"two")
    assert await stage.adv.flush() == 2
    assert stage[1].entries[1].endswith(b"one")
    assert (await stage.adv.close()).length == 10


@staged()
async def test_an_entry_too_large_is_refused_before_it_is_taken(stage: Stage) -> None:
    too_large = bytes(6 * 1024 * 1024)
    with pytest.raises(InvalidArgumentError, match="larger than a bookie's frame limit"):
        await stage.adv.append(0, too_large)
    with pytest.raises(InvalidArgumentError, match="as many entry ids"):
        await stage.adv.append_many([0, 1], Payloads.of([b"x"]))
    with pytest.raises(InvalidArgumentError, match="entry 0 was not appended"):
        await stage.adv.wait_confirmed(0)
    await stage.adv.append(0, b"x")
    await stage.adv.wait_confirmed(0)


@staged()
async def test_a_fence_ends_it(stage: Stage) -> None:
    stage[1].fenced = stage[2].fenced = True
    await stage.adv.append_many([0, 2], entries(2))
    with pytest.raises(LedgerFencedError):
        await stage.adv.wait_confirmed(0)
    for call in (stage.adv.append(1, b"x"), stage.adv.flush(), stage.adv.close()):
        with pytest.raises(LedgerFencedError):
            await call


@staged(deferred_sync=True)
async def test_with_deferred_sync(stage: Stage) -> None:
    await stage.adv.append_many([2, 1, 0], entries(3))
    assert (await stage.adv.flush(), stage.adv.last_add_acknowledged) == (-1, 2)
    assert await stage.adv.force() == 2
    assert (await stage.adv.close()).last_entry_id == 2
