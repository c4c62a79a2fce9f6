"""Deferred sync, forcing, the explicit LAC: over real sockets and v3."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bk_spark.protocol.codes import Code, DigestType
from bk_spark.protocol.entries.digest import digest_function
from bk_spark.protocol.entries.entry import verify_lac
from bk_spark.protocol.errors import (
    BookieAnswerError,
    BookieTimeoutError,
    EnsembleChangeRefusedError,
    InvalidArgumentError,
    LedgerClosedError,
    PeerError,
)
from bk_spark.protocol.metadata.ledger_metadata import LedgerState, Segment
from bk_spark.protocol.quorum import Quorum
from tests.support.ledgers import LEDGER, PASSWORD
from tests.support.write_stage import GIVES_UP_SOON, Stage, entries, staged, until

# --- deferred sync ------------------------------------------------------------------------------


@staged(deferred_sync=True)
async def test_entries_are_confirmed_by_force(stage: Stage) -> None:
    handle = stage.handle
    await handle.append_many(entries(10))
    assert (await handle.flush(), handle.last_add_acknowledged, handle.length) == (-1, 9, 0)
    waiting = asyncio.ensure_future(handle.wait_confirmed(9))
    assert await handle.force() == 9
    await waiting
    assert (handle.last_add_confirmed, handle.length) == (9, 100)
    assert [bookie.forces for bookie in stage.bookies] == [1, 1, 1, 0, 0]
    # Nothing is new, so no bookie is asked.
    assert await handle.force() == 9
    assert stage[1].forces == 1
    closed = await handle.close()
    assert (closed.last_entry_id, closed.length) == (9, 100)


@staged(deferred_sync=True)
async def test_forcing_an_empty_ledger(stage: Stage) -> None:
    assert await stage.handle.force() == -1
    assert stage[1].forces == 0
    assert (await stage.handle.close()).last_entry_id == -1


@staged(deferred_sync=True)
async def test_closing_forces_what_was_not(stage: Stage) -> None:
    await stage.handle.append_many(entries(3))
    assert (await stage.handle.close()).last_entry_id == 2
    assert [bookie.forces for bookie in stage.bookies] == [1, 1, 1, 0, 0]


@staged(deferred_sync=True)
async def test_a_bookie_that_cannot_sync_ends_the_handle(stage: Stage) -> None:
    stage[3].force_with = Code.IO_ERROR
    await stage.handle.append_many(entries(3))
    with pytest.raises(BookieAnswerError, match="force ledger") as caught:
        await stage.handle.force()
    assert (caught.value.bookie_id, caught.value.code) == ("b3", "IO_ERROR")
    stage[3].force_with = Code.OK
    # A second sync says nothing about entries that the first lost.
    for call in (stage.handle.force(), stage.handle.append(b"x"), stage.handle.close()):
        with pytest.raises(BookieAnswerError):
            await call
    assert stage.handle.last_add_confirmed == -1
    assert stage.services.metadata.state is LedgerState.OPEN


@staged(deferred_sync=True, **GIVES_UP_SOON)
async def test_a_bookie_that_does_not_answer_a_force(stage: Stage) -> None:
    await stage.handle.append_many(entries(3))
    await stage.handle.flush()
    await until(lambda: not stage.handle.machine.adds.most_unanswered)
    stage[3].silent = True
    with pytest.raises((BookieTimeoutError, EnsembleChangeRefusedError)):
        await stage.handle.force()
    assert stage.handle.last_add_confirmed == -1


@staged(deferred_sync=True)
async def test_a_lost_connection_ends_the_handle_though_the_bookie_is_there(stage: Stage) -> None:
    """The process that held the entries may have been replaced by another."""
    await stage.handle.append_many(entries(3))
    await stage.handle.flush()
    await stage.lose(3)
    with pytest.raises(EnsembleChangeRefusedError, match="bookie b3 failed.*deferred sync"):
        await stage.handle.force()
    assert (stage.handle.last_add_confirmed, stage[1].forces) == (-1, 0)


@staged(deferred_sync=True)
async def test_a_bookie_that_is_away_at_the_start_is_replaced(stage: Stage) -> None:
    await stage[2].stop()
    await stage.pool.close()
    fresh = Stage(stage.config, Quorum(3, 3, 2), deferred_sync=True)
    fresh.bookies, fresh.services.bookies = stage.bookies, stage.services.bookies
    await fresh.handle.start()
    await fresh.handle.append_many(entries(3))
    assert await fresh.handle.force() == 2
    closed = await fresh.handle.close()
    assert closed.segments == (Segment(0, ("b1", "b4", "b3")),)
    await fresh.pool.close()


# --- force on any ledger ------------------------------------------------------------------------


@pytest.mark.parametrize("use_v2", [True, False])
def test_forcing_a_ledger_that_is_synced_anyway(use_v2: bool) -> None:
    @staged(use_v2_wire_protocol=use_v2)
    async def play(stage: Stage) -> None:
        assert await stage.handle.force() == -1
        assert stage[1].forces == 0
        await stage.handle.append_many(entries(3))
        assert await stage.handle.force() == 2
        assert [bookie.forces for bookie in stage.bookies] == [1, 1, 1, 0, 0]
        stage[2].force_with = Code.IO_ERROR
        with pytest.raises(PeerError, match="force ledger"):
            await stage.handle.force()
        # Every entry was synced before it was acknowledged, so nothing is lost.
        assert await stage.handle.append(b"x") == 3
        assert (await stage.handle.close()).last_entry_id == 3
        with pytest.raises(LedgerClosedError):
            await stage.handle.force()

    play()


# --- wait_confirmed -----------------------------------------------------------------------------


@staged()
async def test_waiting_for_one_entry(stage: Stage) -> None:
    for number in (2, 3):
        stage[number].silent_adds = True
    await stage.handle.append_many(entries(2))
    first, second = (asyncio.ensure_future(stage.handle.wait_confirmed(entry_id)) for entry_id in (0, 1))
    await until(lambda: len(stage[2].seen) == 2)
    assert not first.done()
    assert not second.done()
    stage[2].silent_adds = False
    stage[2].answer_held()
    await asyncio.gather(first, second)
    await stage.handle.wait_confirmed(-1)
    with pytest.raises(InvalidArgumentError, match="entry 2 was not appended; the last one is 1"):
        await stage.handle.wait_confirmed(2)


@staged()
async def test_waiting_for_an_entry_of_a_handle_that_ends(stage: Stage) -> None:
    for number in (2, 3):
        stage[number].silent_adds = True
    await stage.handle.append(b"x")
    waiting = asyncio.ensure_future(stage.handle.wait_confirmed(0))
    cancelled = asyncio.ensure_future(stage.handle.wait_confirmed(0))
    await until(lambda: len(stage[2].seen) == 1)
    cancelled.cancel()
    await stage.handle.abandon()
    with pytest.raises(LedgerClosedError):
        await waiting
    with pytest.raises(LedgerClosedError):
        await stage.handle.wait_confirmed(0)


# --- explicit LAC -------------------------------------------------------------------------------


def told(stage: Stage, number: int) -> int | None:
    packet = stage[number].explicit_lac
    digest = digest_function(DigestType.CRC32C, PASSWORD)
    return None if packet is None else verify_lac(packet, LEDGER, DigestType.CRC32C, digest)


@pytest.mark.parametrize("settings", [{}, {"deferred_sync": True}], ids=["synced", "deferred sync"])
def test_a_writer_that_pauses_tells_its_lac(settings: dict[str, Any]) -> None:
    @staged(explicit_lac_interval_ms=20, **settings)
    async def play(stage: Stage) -> None:
        await stage.handle.append_many(entries(5))
        await stage.handle.force()
        await until(lambda: all(told(stage, number) == 4 for number in (1, 2, 3)))
        assert told(stage, 4) is None
        # The LAC is sent once.
        for bookie in stage.bookies:
            bookie.explicit_lac = None
        await asyncio.sleep(0.1)  # five intervals
        assert told(stage, 1) is None
        await stage.handle.append(b"x")
        await stage.handle.force()
        await until(lambda: told(stage, 1) == 5)
        await stage.handle.close()

    play()


@staged(Quorum(5, 2, 2), explicit_lac_interval_ms=20)
async def test_the_write_set_of_the_lac_is_told(stage: Stage) -> None:
    await stage.handle.append_many(entries(4))
    await until(lambda: told(stage, 4) == 3 == told(stage, 5))
    assert [told(stage, number) for number in (1, 2, 3)] == [None, None, None]


@staged(explicit_lac_interval_ms=20)
async def test_a_lac_that_too_few_took_is_told_again(stage: Stage) -> None:
    """The writer continues without it."""
    await stage.handle.append(b"x")
    await stage.handle.flush()
    for number in (1, 2):
        await stage[number].stop()
    await until(lambda: told(stage, 3) == 0)
    stage[3].explicit_lac = None
    await until(lambda: told(stage, 3) == 0)
    assert stage.handle.error is None


@staged()
async def test_nothing_is_told_unless_asked_for(stage: Stage) -> None:
    await stage.handle.append(b"x")
    await stage.handle.flush()
    await asyncio.sleep(0.1)  # a LAC that was sent would be there
    assert told(stage, 1) is None
