"""Replacements that swallow connections or hang, bookies that come later, and limits of a writer."""

from __future__ import annotations

import asyncio

import pytest

from bk_spark.protocol.errors import (
    AddQuorumTimeoutError,
    EnsembleChangeRefusedError,
    LedgerClosedError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
)
from bk_spark.protocol.ledger import writer_ensemble
from bk_spark.protocol.metadata.ledger_metadata import LedgerState, Segment
from bk_spark.protocol.quorum import Quorum
from tests.support.write_stage import GIVES_UP_SOON, Stage, entries, staged, until


def swallow(stage: Stage, number: int) -> None:
    """Let attempts to connect to the bookie hang."""

    async def before(call: str) -> None:
        if call == f"address b{number}":
            await asyncio.Event().wait()

    stage.services.before = before


@staged(add_timeout_ms=3_000)
async def test_a_replacement_that_swallows_connections_holds_up_nothing(stage: Stage) -> None:
    swallow(stage, 4)
    await stage.lose(2)
    await stage.handle.append_many(entries(10))
    assert await stage.handle.flush() == 9
    # It is still waited for.
    assert "b4" not in stage.services.failures
    # The next candidate is tried after the add timeout. The new segment begins after the acknowledged entries.
    await stage.handle.append(b"x")
    await until(lambda: stage.services.version == 1)
    assert await stage.handle.flush() == 10
    assert stage.services.metadata.last_segment.ensemble == ("b1", "b5", "b3")
    assert stage.services.metadata.last_segment.first_entry_id >= 10
    assert "b4" in stage.services.failures


@staged(Quorum(3, 3, 3), **GIVES_UP_SOON)
async def test_where_a_replacement_is_needed_the_next_is_tried_after_the_add_timeout(stage: Stage) -> None:
    swallow(stage, 4)
    await stage.lose(2)
    await stage.handle.append_many(entries(10))
    assert await stage.handle.flush() == 9
    assert stage.services.metadata.segments == (Segment(0, ("b1", "b5", "b3")),)


@staged(**GIVES_UP_SOON)
async def test_a_bookie_that_accepts_connections_and_hangs_is_not_chosen(stage: Stage) -> None:
    stage[4].silent = True
    await stage.lose(2)
    await stage.handle.append_many(entries(10))
    assert await stage.handle.flush() == 9
    assert stage.services.metadata.last_segment.ensemble == ("b1", "b5", "b3")
    assert stage[4].seen == []
    assert set(stage.services.failures) == {"b2", "b4"}


@staged(running=3)
async def test_a_bookie_that_comes_is_used_at_once(stage: Stage) -> None:
    await stage.lose(2)
    await stage[2].stop()
    stage[2].port = 0
    await stage.handle.append_many(entries(3))
    assert await stage.handle.flush() == 2
    assert stage.services.metadata.segments == (Segment(0, ("b1", "b2", "b3")),)
    await stage[5].start()
    for on_change in stage.services.subscribers:
        on_change()
    await stage.handle.append(b"x")
    assert await stage.handle.flush() == 3
    assert stage.services.metadata.last_segment == Segment(3, ("b1", "b5", "b3"))


def test_without_news_it_looks_again_from_time_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bookie that hung and recovered never left ZooKeeper."""
    monkeypatch.setattr(writer_ensemble, "SEARCH_AGAIN_MS", 200.0)

    @staged(running=4, **GIVES_UP_SOON)
    async def play(stage: Stage) -> None:
        stage[4].silent = True
        await stage.lose(2)
        await stage[2].stop()
        stage[2].port = 0
        await stage.handle.append(b"x")
        assert await stage.handle.flush() == 0
        stage[4].silent = False
        appended = 0
        while stage.services.version == 0:
            appended = await stage.handle.append(b"x")
            assert await stage.handle.flush() == appended
            await asyncio.sleep(0.02)
        assert stage.services.metadata.last_segment.ensemble == ("b1", "b4", "b3")

    play()


@staged(add_quorum_timeout_ms=200)
async def test_an_entry_without_its_ack_quorum_ends_the_writer_in_time(stage: Stage) -> None:
    await stage.handle.append_many(entries(3))
    await stage.handle.flush()
    for number in (1, 2):
        stage[number].silent_adds = True
    await stage.handle.append_many(entries(3))
    with pytest.raises(AddQuorumTimeoutError, match="addEntryQuorumTimeoutSec") as caught:
        # It checks once a second.
        await stage.handle.flush()
    assert caught.value.entry_id == 3
    assert stage.handle.last_add_confirmed == 2


@staged(max_ensemble_changes=1)
async def test_no_more_ensemble_changes_than_allowed(stage: Stage) -> None:
    await stage.lose(2)
    await stage.handle.append(b"x")
    await stage.handle.flush()
    await stage.lose(4)
    await stage.handle.append(b"x")
    with pytest.raises(EnsembleChangeRefusedError, match="bookie b4 failed"):
        await stage.handle.flush()
    assert len(stage.services.metadata.segments) == 1


@staged()
async def test_several_bookies_fail_while_zookeeper_stalls(stage: Stage) -> None:
    """C8: nothing is acknowledged until the change is published. Bookies that failed meanwhile are replaced then."""
    stalled, go_on = asyncio.Event(), asyncio.Event()

    async def before(call: str) -> None:
        if call == "write" and not go_on.is_set():
            stalled.set()
            await go_on.wait()

    stage.services.before = before
    await stage.lose(1)
    await stage.handle.append_many(entries(10))
    await stalled.wait()
    await until(lambda: not stage.handle.machine.adds.pending.owed[1])
    await stage.lose(2)
    await stage.handle.append_many(entries(10))
    await until(lambda: len(stage[3].seen) == 20)
    assert stage.handle.last_add_confirmed == -1
    go_on.set()
    assert await stage.handle.flush() == 19
    # b2 had answered the first ten before it was lost. But nobody knew yet whether b4 takes the password, so they were
    # not acknowledged then.
    assert stage.services.metadata.segments == (Segment(0, ("b4", "b5", "b3")),)
    await until(lambda: len(stage[4].entries) == len(stage[5].entries) == 20)


@staged()
async def test_a_bookie_that_never_answers_stays_and_is_chosen_last_for_other_ledgers(stage: Stage) -> None:
    stage[3].silent_adds = True
    await stage.handle.append_many(entries(2))
    assert await stage.handle.flush() == 1
    assert stage.services.failures == ["b3"]
    metadata = await stage.handle.close()
    assert metadata.last_segment.ensemble == ("b1", "b2", "b3")


# --- closing ------------------------------------------------------------------------------------


@staged()
async def test_a_closing_handle_refuses_at_once(stage: Stage) -> None:
    for number in (1, 2):
        stage[number].silent_adds = True
    await stage.handle.append_many(entries(3))
    closing = asyncio.ensure_future(stage.handle.close())
    again = asyncio.ensure_future(stage.handle.close())
    await asyncio.sleep(0)
    for call in (stage.handle.append(b"x"), stage.handle.append_many([b"x"]), stage.handle.force()):
        with pytest.raises(LedgerClosedError):
            await call
    for number in (1, 2):
        stage[number].silent_adds = False
        stage[number].answer_held()
    closed = await closing
    assert closed.last_entry_id == 2
    assert await again == closed
    assert stage.services.calls.count("write") == 1


@staged()
async def test_closing_with_an_idle_bookie_that_failed(stage: Stage) -> None:
    await stage.handle.append_many(entries(3))
    await stage.handle.flush()
    await stage.lose(2)
    closed = await stage.handle.close()
    assert closed.segments == (Segment(0, ("b1", "b2", "b3")),)
    assert "choose_replacement" not in stage.services.calls


@staged()
async def test_closing_does_not_wait_for_a_search(stage: Stage) -> None:
    swallow(stage, 4)
    await stage.lose(2)
    await stage.handle.append_many(entries(3))
    closed = await stage.handle.close()
    assert "b4" not in stage.services.failures
    assert closed.segments == (Segment(0, ("b1", "b2", "b3")),)


@staged()
async def test_closing_can_be_tried_again_when_zookeeper_is_back(stage: Stage) -> None:
    away = True

    async def before(call: str) -> None:
        if away and call in ("write", "read_latest"):
            raise MetadataUnavailableError("away")

    stage.services.before = before
    await stage.handle.append_many(entries(3))
    for _ in range(2):
        with pytest.raises(MetadataUnavailableError):
            await stage.handle.close()
    with pytest.raises(LedgerClosedError):
        await stage.handle.append(b"x")
    away = False
    assert (await stage.handle.close()).last_entry_id == 2
    assert stage.services.metadata.state is LedgerState.CLOSED


@staged(Quorum(3, 3, 3), running=3)
async def test_a_handle_that_failed_does_not_close(stage: Stage) -> None:
    await stage.handle.append(b"x")
    await stage.handle.flush()
    await stage.lose(2)
    await stage[2].stop()
    stage[2].port = 0
    await stage.handle.append(b"y")
    for _ in range(2):
        with pytest.raises(NotEnoughBookiesError):
            await stage.handle.close()
    assert stage.services.metadata.state is LedgerState.OPEN


@staged()
async def test_buffers_of_many_kinds(stage: Stage) -> None:
    parts = [b"bytes", bytearray(b"bytearray"), memoryview(b"..view..")[2:6], b""]
    assert await stage.handle.append_many(parts) == 3
    assert await stage.handle.append_many([]) == 3
    large = [b"%06d" % number + bytes(100_000) for number in range(20)]
    assert await stage.handle.append_many(large) == 23
    closed = await stage.handle.close()
    assert closed.length == 5 + 9 + 4 + 20 * 100_006
    await until(lambda: len(stage[1].entries) == 24)
    assert stage[1].entries[2].endswith(b"view")
    assert all(stage[1].entries[4 + number][36:] == large[number] for number in range(20))
