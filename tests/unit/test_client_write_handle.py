"""The write handle over real sockets: bookies that hang, refuse, vanish; metadata that stalls; no leaks."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.metadata.ledger_store import StoredMetadata
from bk_spark.bookie.services import ClusterServices
from bk_spark.bookie.writing.write_handle import WriteHandle
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import (
    BookKeeperError,
    InvalidArgumentError,
    LedgerClosedError,
    LedgerFencedError,
    MetadataConflictError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    OutcomeUnknownError,
)
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from bk_spark.protocol.quorum import Quorum
from tests.support.connections import listens
from tests.support.ledgers import LEDGER, PASSWORD, ledger
from tests.support.served_bookie import ModelServices
from tests.support.write_stage import GIVES_UP_SOON, Stage, entries, staged, until


@staged()
async def test_append_flush_close(stage: Stage) -> None:
    handle = stage.handle
    assert await handle.append_many(entries(500)) == 499
    assert await handle.append(b"last") == 500
    assert (await handle.flush(), handle.last_add_confirmed, handle.length) == (500, 500, 5004)
    closed = await handle.close()
    assert (closed.state, closed.last_entry_id, closed.length) == (LedgerState.CLOSED, 500, 5004)
    assert stage.services.metadata.last_entry_id == 500
    assert await handle.close() == closed
    with pytest.raises(LedgerClosedError):
        await handle.append(b"x")
    with pytest.raises(LedgerClosedError):
        await handle.flush()


def cancelled_close(hold: Callable[[Stage], Callable[[], None]], **settings: Any) -> Callable[[], None]:
    """Make a test in which ``hold`` delays the end of a close until the function that it returned is called."""

    @staged(**settings)
    async def play(stage: Stage) -> None:
        handle = stage.handle
        await handle.append_many(entries(10))
        let_go = hold(stage)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(handle.close(), 0.05)
            with pytest.raises(LedgerClosedError, match=r"close\(\) or abandon\(\) was called"):
                await handle.append(b"x")
        let_go()
        closed = await handle.close()
        assert (closed.state, closed.last_entry_id, closed.length) == (LedgerState.CLOSED, 9, 100)
        assert stage.services.metadata == closed == await handle.close()

    return play


def _silence(stage: Stage) -> Callable[[], None]:
    for bookie in stage.bookies[:3]:
        bookie.silent_adds = True

    def let_go() -> None:
        for bookie in stage.bookies[:3]:
            bookie.silent_adds = False
            bookie.answer_held()

    return let_go


def _hold_metadata(stage: Stage) -> Callable[[], None]:
    gate = asyncio.Event()

    async def before(name: str) -> None:
        await gate.wait()

    stage.services.before = before
    return gate.set


def _change_ensemble(stage: Stage) -> Callable[[], None]:
    let_go = _hold_metadata(stage)
    stage[2].break_connections()
    return let_go


test_a_close_that_was_cancelled_while_entries_were_unacknowledged_goes_on = cancelled_close(_silence)
test_a_close_that_was_cancelled_while_it_wrote_the_metadata_goes_on = cancelled_close(_hold_metadata)
test_a_close_that_was_cancelled_during_an_ensemble_change_goes_on = cancelled_close(_change_ensemble)


@staged()
async def test_a_close_goes_on_when_its_caller_is_cancelled_and_the_next_caller_waits_for_it(stage: Stage) -> None:
    await stage.handle.append_many(entries(10))
    gate = asyncio.Event()
    write = stage.services.write

    async def write_late(ledger_id: int, metadata: LedgerMetadata, version: int) -> StoredMetadata:
        written = await write(ledger_id, metadata, version)
        await gate.wait()
        return written

    stage.services.write = write_late  # type: ignore[method-assign]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stage.handle.close(), 0.05)
    second = asyncio.ensure_future(stage.handle.close())
    await asyncio.sleep(0)
    assert not second.done()
    gate.set()
    closed = await second
    assert (closed.state, closed.last_entry_id, closed.length) == (LedgerState.CLOSED, 9, 100)
    assert stage.services.calls.count("write") == 1


@staged()
async def test_a_close_that_failed_after_it_took_effect_is_found_out(stage: Stage) -> None:
    away = True

    def lose() -> None:
        raise OutcomeUnknownError("connection lost")

    async def before(call: str) -> None:
        if away and call == "read_latest":
            raise MetadataUnavailableError("away")

    await stage.handle.append_many(entries(10))
    stage.services.after_write, stage.services.before = lose, before
    with pytest.raises(MetadataUnavailableError):
        await stage.handle.close()
    assert stage.services.metadata.state is LedgerState.CLOSED
    away = False
    closed = await stage.handle.close()
    assert (closed.last_entry_id, closed.length, stage.services.version) == (9, 100, 1)


@staged(deferred_sync=True)
async def test_a_close_that_was_cancelled_while_bookies_synced_goes_on(stage: Stage) -> None:
    await stage.handle.append_many(entries(10))
    await stage.handle.flush()
    for bookie in stage.bookies[:3]:
        bookie.silent = True
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stage.handle.close(), 0.05)
    for bookie in stage.bookies[:3]:
        bookie.silent = False
        bookie.answer_held()
    closed = await stage.handle.close()
    assert (closed.state, closed.last_entry_id) == (LedgerState.CLOSED, 9)


@staged(max_unanswered_entries=20)
async def test_append_and_append_many_at_once_are_refused_instead_of_mixing_up_their_ids(stage: Stage) -> None:
    """The id that a call returns is that of its own payload. A call that cannot know its id is refused."""
    handle = stage.handle
    named: dict[int, bytes] = {}
    refused: list[str] = []

    async def one(payload: bytes) -> None:
        try:
            named[await handle.append(payload)] = payload
        except InvalidArgumentError as error:
            refused.append(str(error))

    async def many(payloads: list[bytes]) -> None:
        try:
            last = await handle.append_many(payloads)
        except InvalidArgumentError as error:
            refused.append(str(error))
        else:
            named.update(zip(range(last - len(payloads) + 1, last + 1), payloads, strict=True))

    for turn in range(30):
        large = [b"%d many %d " % (turn, number) + bytes(150_000) for number in range(10)]
        singles = [one(b"%d one %d" % (turn, number)) for number in range(10)]
        await asyncio.gather(*singles[:5], many(large), *singles[5:], many([b"%d" % turn] * 3))
    await handle.flush()
    assert refused
    assert all("use a lock" in text for text in refused)
    assert {entry: stage[1].entries[entry][36:] for entry in named} == named
    # Calls of append alone may overlap.
    refused.clear()
    await asyncio.gather(*(one(b"alone %d" % number) for number in range(100)))
    await handle.flush()
    assert not refused
    assert {entry: stage[1].entries[entry][36:] for entry in named} == named


@staged()
async def test_single_appends_go_out_together_in_the_next_turn(stage: Stage) -> None:
    handle, changing = stage.handle, bytearray(b"old")
    assert await handle.append(changing) == 0
    changing[:] = b"new"
    assert [await handle.append(b"%d" % number) for number in range(1, 10)] == list(range(1, 10))
    assert (handle.last_add_pushed, handle.machine.last_add_pushed) == (9, -1)
    await handle.wait_confirmed(4)
    assert handle.last_add_confirmed == 9
    # In order with other calls, and before any call that waits for it.
    assert await handle.append(b"10") == 10
    assert await handle.append_many([b"11", b"12"]) == 12
    assert await handle.append(b"13") == 13
    with pytest.raises(InvalidArgumentError, match="entry 14 was not appended; the last one is 13"):
        await handle.wait_confirmed(14)
    assert await handle.flush() == 13
    assert await handle.append(b"14") == 14
    assert (await handle.close()).last_entry_id == 14
    assert {entry: stored[36:] for entry, stored in stage[1].entries.items()} == {
        0: b"old",
        **{number: b"%d" % number for number in range(1, 15)},
    }


@pytest.mark.parametrize("count", [1, 2, 40])
def test_buffers_of_items_larger_than_a_byte_tear_nothing(count: int) -> None:
    @staged()
    async def play(stage: Stage) -> None:
        numbers = memoryview(bytes(range(16))).cast("I")
        for others in (b"x", b"x" * 5_000):
            with pytest.raises(InvalidArgumentError, match=r"cast\('B'\)"):
                await stage.handle.append_many([numbers, *[others] * (count - 1)])
        # A single one counts as its bytes.
        assert await stage.handle.append(numbers) == 0
        assert await stage.handle.append_many([b"good"] * count) == count
        assert await stage.handle.flush() == count
        assert stage[1].entries[0][36:] == bytes(range(16))

    play()


@staged()
async def test_single_appends_of_large_entries_wait_for_no_turn(stage: Stage) -> None:
    for number in range(20):
        assert await stage.handle.append(bytes(200_000)) == number
    assert stage.handle.machine.last_add_pushed >= 14
    assert await stage.handle.flush() == 19


@staged()
async def test_an_error_nobody_thought_of_ends_the_handle_with_its_gathered_entries(
    stage: Stage,
) -> None:
    def broken(*_: object) -> int:
        raise MemoryError

    stage.handle.machine.add = broken  # type: ignore[method-assign]
    assert await stage.handle.append(b"lost") == 0
    with pytest.raises(BookKeeperError, match="MemoryError"):
        await stage.handle.wait_confirmed(0)
    with pytest.raises(BookKeeperError, match="MemoryError"):
        await stage.handle.append(b"behind a gap")


@staged()
async def test_nothing_to_append(stage: Stage) -> None:
    assert await stage.handle.append_many(Payloads.of([])) == -1
    assert await stage.handle.flush() == -1
    assert (await stage.handle.close()).last_entry_id == -1


@staged(max_frame_bytes=2_000)
async def test_an_entry_too_large_is_refused_before_anything_is_sent(stage: Stage) -> None:
    limit = ClientConfig(max_frame_bytes=2_000).max_payload_bytes(DigestType.CRC32C)
    with pytest.raises(InvalidArgumentError, match=r"number 1 of this batch.*at most 1808 bytes"):
        await stage.handle.append_many(Payloads.of([b"x", bytes(limit + 1)]))
    assert stage.handle.last_add_pushed == -1
    assert await stage.handle.append(bytes(limit)) == 0
    assert await stage.handle.flush() == 0


# --- bookies that fail --------------------------------------------------------------------------


@staged()
async def test_a_broken_connection_replaces_the_bookie(stage: Stage) -> None:
    stage[2].silent = True
    await stage.handle.append_many(entries(5))
    await stage.lose(2)
    await stage.handle.append_many(entries(5))
    assert await stage.handle.flush() == 9
    await until(lambda: len(stage[4].entries) > 0)
    assert stage.services.metadata.last_segment.ensemble == ("b1", "b4", "b3")


@staged(running=4)
async def test_a_bookie_that_cannot_be_reached_is_replaced_at_the_first_add(stage: Stage) -> None:
    await stage.handle.abandon()
    stage.services.change(ledger(Quorum(3, 3, 2), (0, "b1 b5 b3")))
    other = WriteHandle(
        LEDGER,
        stage.services.stored,
        DigestType.CRC32C,
        PASSWORD,
        stage.services,  # type: ignore[arg-type]
        stage.pool,
        ClientConfig(),
    )
    await other.start()
    assert stage.services.metadata.segments == (Segment(0, ("b1", "b5", "b3")),)
    await other.append(b"x")
    await other.flush()
    assert stage.services.metadata.segments == (Segment(0, ("b1", "b2", "b3")),)
    await other.abandon()


@staged(**GIVES_UP_SOON)
async def test_a_hanging_bookie_is_given_up(stage: Stage) -> None:
    stage[1].silent = True
    await stage.handle.append_many(entries(3))
    assert await stage.handle.flush() == 2
    await until(lambda: not stage.handle.machine.adds.most_unanswered)
    await stage.handle.append(b"x")
    await until(lambda: "b1" not in stage.services.metadata.last_segment.ensemble)
    assert stage.services.metadata.segments == (Segment(0, ("b1", "b2", "b3")), Segment(3, ("b4", "b2", "b3")))


@staged(**GIVES_UP_SOON)
async def test_a_replacement_that_hangs_is_given_up_too(stage: Stage) -> None:
    """It received several batches at once when it replaced another bookie."""
    for number in (2, 3, 4):
        stage[number].silent_adds = True
    for _ in range(4):
        await stage.handle.append_many(entries(3))
    stage[2].break_connections()
    await until(lambda: stage[4].seen == list(range(12)))
    stage[3].silent_adds = False
    stage[3].answer_held()
    # b1 and b3 are an ack quorum. b4 must be replaced nevertheless, before it blocks the window.
    assert await stage.handle.flush() == 11
    await until(lambda: not stage.handle.machine.adds.most_unanswered)


@staged(Quorum(3, 3, 3), **GIVES_UP_SOON)
async def test_a_replacement_that_hangs_is_replaced(stage: Stage) -> None:
    for number in (2, 4):
        stage[number].silent = True
    for _ in range(4):
        await stage.handle.append_many(entries(3))
    stage[2].break_connections()
    assert await stage.handle.flush() == 11
    assert stage.services.metadata.segments == (Segment(0, ("b1", "b5", "b3")),)


@staged(running=3)
async def test_without_spare_bookies_the_writer_goes_on(stage: Stage) -> None:
    await stage.lose(2)
    await stage.handle.append_many(entries(10))
    assert await stage.handle.flush() == 9
    closed = await stage.handle.close()
    assert closed.segments == (Segment(0, ("b1", "b2", "b3")),)


@staged(running=3)
async def test_without_the_ack_quorum_every_call_fails_alike(stage: Stage) -> None:
    for number in (2, 3):
        stage[number].silent = True
    await stage.handle.append_many(entries(10))
    flushing = asyncio.ensure_future(stage.handle.flush())
    for number in (2, 3):
        await stage[number].stop()
    with pytest.raises(NotEnoughBookiesError):
        await flushing
    for call in (stage.handle.flush(), stage.handle.append(b"x"), stage.handle.close()):
        with pytest.raises((NotEnoughBookiesError, LedgerClosedError)):
            await call
    assert stage.handle.last_add_confirmed == -1
    assert stage.services.metadata.state is LedgerState.OPEN


@staged(Quorum(3, 3, 3), running=4)
async def test_c9_a_bookie_that_came_back_is_better_than_none(stage: Stage) -> None:
    await stage.handle.append(b"x")
    await stage.handle.flush()
    await stage.lose(2)
    await stage.handle.append(b"x")
    await stage.handle.flush()
    assert stage.services.metadata.last_segment.ensemble == ("b1", "b4", "b3")
    await stage.lose(4)
    # b5 never ran. b2 failed before and runs again.
    await stage.handle.append(b"x")
    await stage.handle.flush()
    assert stage.services.metadata.last_segment.ensemble == ("b1", "b2", "b3")


@staged()
async def test_a_connection_that_another_user_made_anew_is_not_taken_for_ours(stage: Stage) -> None:
    await stage.handle.append(b"x")
    await stage.handle.flush()
    await stage.lose(2)
    await stage.pool.get("b2")
    await stage.handle.append(b"y")
    assert await stage.handle.flush() == 1
    await until(lambda: 1 in stage[4].entries)
    assert 1 not in stage[2].entries


@staged()
async def test_a_fenced_answer_ends_the_handle(stage: Stage) -> None:
    stage[3].fenced = stage[1].fenced = True
    await stage.handle.append(b"x")
    with pytest.raises(LedgerFencedError):
        await stage.handle.flush()
    with pytest.raises(LedgerFencedError):
        await stage.handle.append(b"y")
    assert isinstance(stage.handle.error, LedgerFencedError)


# --- back-pressure ------------------------------------------------------------------------------


@staged(max_unanswered_entries=50)
async def test_b9_the_window_waits_for_the_slowest_bookie(stage: Stage) -> None:
    stage[3].silent = True
    appending = asyncio.ensure_future(append_in_pieces(stage.handle, 40, 10))
    await until(lambda: len(stage[3].seen) >= 50)
    await stage.handle.flush()
    await asyncio.sleep(0.1)  # more would be there
    assert not appending.done()
    assert len(stage[3].seen) <= 60
    stage[3].silent = False
    stage[3].answer_held()
    await appending
    assert await stage.handle.flush() == 399


async def append_in_pieces(handle: WriteHandle, pieces: int, each: int) -> None:
    for _ in range(pieces):
        await handle.append_many(entries(each))


@staged(max_unanswered_entries=50, **GIVES_UP_SOON)
async def test_b9_the_window_opens_when_the_slowest_bookie_is_given_up(stage: Stage) -> None:
    stage[3].silent = True
    await append_in_pieces(stage.handle, 40, 10)
    assert await stage.handle.flush() == 399


@staged(max_unanswered_entries=50, running=3)
async def test_b9_the_window_opens_when_the_slowest_bookie_is_lost(stage: Stage) -> None:
    stage[3].silent = True
    appending = asyncio.ensure_future(append_in_pieces(stage.handle, 40, 10))
    await until(lambda: len(stage[3].seen) >= 50)
    await stage.handle.flush()
    await stage[3].stop()
    await appending
    assert await stage.handle.flush() == 399


@staged(max_pending_bytes=100_000)
async def test_b9_bytes_that_the_slowest_bookie_owes_are_bounded(stage: Stage) -> None:
    stage[3].silent = True
    appending = asyncio.ensure_future(append_in_pieces_of(stage.handle, 40, 10_000))
    await until(lambda: len(stage[3].seen) >= 9)
    assert await stage.handle.flush() >= 8
    await asyncio.sleep(0.1)  # more would be there
    assert not appending.done()
    assert len(stage[3].seen) <= 10
    stage[3].silent = False
    stage[3].answer_held()
    await appending
    assert await stage.handle.flush() == 39


async def append_in_pieces_of(handle: WriteHandle, count: int, size: int) -> None:
    for _ in range(count):
        await handle.append(bytes(size))


@staged()
async def test_b9_too_many_requests_is_waited_out(stage: Stage) -> None:
    stage[3].refuse = 120
    await append_in_pieces(stage.handle, 20, 10)
    assert await stage.handle.flush() == 199
    await until(lambda: len(stage[3].entries) == 200)
    # A bookie of the ack quorum is no different: only time is lost.
    stage[1].refuse = stage[2].refuse = 70
    await append_in_pieces(stage.handle, 20, 10)
    assert await stage.handle.flush() == 399
    # Two of three are enough for that: the two that refuse do not come back in the same moment.
    await until(lambda: [len(stage[number].entries) for number in (1, 2, 3, 4)] == [400, 400, 400, 0])
    closed = await stage.handle.close()
    assert closed.segments == (Segment(0, ("b1", "b2", "b3")),)


@staged(**GIVES_UP_SOON)
async def test_b9_a_bookie_that_refuses_for_too_long_is_given_up(stage: Stage) -> None:
    stage[3].refuse = 10**9
    await stage.handle.append_many(entries(5))
    assert await stage.handle.flush() == 4
    await until(lambda: not stage.handle.machine.adds.most_unanswered)
    await stage.handle.append(b"x")
    await stage.handle.flush()
    assert stage.services.metadata.last_segment.ensemble == ("b1", "b2", "b4")
    # The pauses between attempts grew.
    assert stage[3].seen.count(0) < 12


# --- metadata that fails ------------------------------------------------------------------------


def failing(stage: Stage, name: str, error: Exception) -> None:
    async def before(call: str) -> None:
        if call.startswith(name):
            raise error

    stage.services.before = before


@staged()
async def test_an_address_that_cannot_be_looked_up_is_no_reason_to_wait_for_ever(stage: Stage) -> None:
    failing(stage, "address b4", MetadataUnavailableError("stalled"))
    await stage.lose(2)
    await stage.handle.append(b"x")
    assert await stage.handle.flush() == 0
    assert stage.services.metadata.last_segment.ensemble == ("b1", "b5", "b3")


@staged()
async def test_choosing_fails_the_writer_goes_on_while_it_can(stage: Stage) -> None:
    failing(stage, "choose_replacement", MetadataUnavailableError("stalled"))
    await stage.lose(2)
    await stage.handle.append(b"x")
    assert await stage.handle.flush() == 0


@pytest.mark.parametrize("call", ["choose_replacement", "address", "write"])
def test_an_error_nobody_thought_of_ends_the_handle(call: str) -> None:
    @staged()
    async def play(stage: Stage) -> None:
        failing(stage, call, RuntimeError("cannot schedule new futures after shutdown"))
        await stage.lose(2)
        await stage.handle.append(b"x")
        with pytest.raises(BookKeeperError, match="cannot schedule new futures"):
            await stage.handle.flush()

    play()


@staged()
async def test_c8_nothing_is_acknowledged_while_the_change_is_not_published(stage: Stage) -> None:
    stalled, go_on = asyncio.Event(), asyncio.Event()

    async def before(call: str) -> None:
        if call == "write":
            stalled.set()
            await go_on.wait()

    stage.services.before = before
    await stage.lose(2)
    await stage.handle.append_many(entries(10))
    await stalled.wait()
    for number in (1, 3):
        await until(lambda number=number: len(stage[number].entries) == 10)
    await asyncio.sleep(0.1)  # the answers of these two are there
    assert stage.handle.last_add_confirmed == -1
    go_on.set()
    assert await stage.handle.flush() == 9


@staged()
async def test_c13_a_lost_reply_of_the_change_is_found_out(stage: Stage) -> None:
    def lose() -> None:
        stage.services.after_write = None
        raise OutcomeUnknownError("connection lost")

    stage.services.after_write = lose
    await stage.lose(2)
    await stage.handle.append(b"x")
    assert await stage.handle.flush() == 0
    assert stage.services.version == 1
    closed = await stage.handle.close()
    assert closed.segments == (Segment(0, ("b1", "b4", "b3")),)


@staged()
async def test_a_change_whose_outcome_cannot_be_read_ends_the_handle(stage: Stage) -> None:
    async def before(call: str) -> None:
        if call == "write":
            raise OutcomeUnknownError("connection lost")
        if call == "read_latest":
            raise MetadataUnavailableError("still away")

    stage.services.before = before
    await stage.lose(2)
    await stage.handle.append(b"x")
    with pytest.raises(MetadataUnavailableError, match="still away"):
        await stage.handle.flush()


# --- closing ------------------------------------------------------------------------------------


Change = Callable[[LedgerMetadata], LedgerMetadata]


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        (lambda now: now.with_segment(Segment(0, ("b1", "b2", "b5"))), "closed"),
        (lambda now: now.in_recovery(), "closed"),
        (lambda now: now.closed(9, 100), "closed"),
        (lambda now: now.closed(8, 90), "lost"),
        (lambda now: now.closed(9, 99), "lost"),
        (lambda now: now.closed(-1, 0), "lost"),
    ],
    ids=["re-replicated", "in recovery", "closed alike", "closed before", "other length", "closed empty"],
)
def test_close_after_somebody_changed_the_metadata(change: Change, outcome: str) -> None:
    @staged()
    async def play(stage: Stage) -> None:
        await stage.handle.append_many(entries(10))
        await stage.handle.flush()
        changed = change(stage.services.metadata)
        stage.services.change(changed)
        if outcome == "closed":
            closed = await stage.handle.close()
            assert (closed.state, closed.last_entry_id, closed.length) == (LedgerState.CLOSED, 9, 100)
            assert stage.services.metadata == closed
            assert closed.segments == changed.segments
        else:
            with pytest.raises(LedgerFencedError, match="last acknowledged entry is 9"):
                await stage.handle.close()
            assert stage.services.metadata == changed

    play()


@staged()
async def test_c13_a_lost_reply_of_the_close_is_found_out(stage: Stage) -> None:
    def lose() -> None:
        raise OutcomeUnknownError("connection lost")

    await stage.handle.append_many(entries(10))
    stage.services.after_write = lose
    closed = await stage.handle.close()
    assert (closed.last_entry_id, stage.services.version) == (9, 1)


@staged()
async def test_close_gives_up_when_the_metadata_keep_changing(stage: Stage) -> None:
    async def before(call: str) -> None:
        if call == "write":
            stage.services.change(stage.services.metadata)

    stage.services.before = before
    with pytest.raises(MetadataConflictError, match="keeps changing"):
        await stage.handle.close()
    assert stage.services.calls.count("write") == 8


@staged()
async def test_close_waits_for_a_change_under_way(stage: Stage) -> None:
    await stage.handle.append_many(entries(3))
    await stage.handle.flush()
    await stage.lose(2)
    await stage.handle.append(b"x")
    closed = await stage.handle.close()
    assert closed.segments == (Segment(0, ("b1", "b2", "b3")), Segment(3, ("b1", "b4", "b3")))
    assert stage.services.metadata == closed


@staged()
async def test_abandoning_wakes_whoever_waits(stage: Stage) -> None:
    for number in (1, 2):
        stage[number].silent = True
    await stage.handle.append_many(entries(3))
    flushing = asyncio.ensure_future(stage.handle.flush())
    await until(lambda: len(stage[1].seen) == 3)
    await stage.handle.abandon()
    with pytest.raises(LedgerClosedError):
        await flushing
    await stage.handle.abandon()
    assert stage.services.metadata.state is LedgerState.OPEN


@staged()
async def test_abandoning_in_the_middle_of_a_change(stage: Stage) -> None:
    stalled = asyncio.Event()

    async def before(call: str) -> None:
        if call == "write":
            stalled.set()
            await asyncio.Event().wait()

    stage.services.before = before
    await stage.lose(2)
    await stage.handle.append(b"x")
    await stalled.wait()


@staged(**GIVES_UP_SOON)
async def test_a_replaced_bookie_is_listened_to_no_longer(stage: Stage) -> None:
    stage[2].silent = True
    await stage.handle.append(b"x")
    connection = stage.connection(2)
    assert listens(connection)
    await until(lambda: stage.handle.last_add_confirmed == 0 and stage.handle.machine.adds.most_unanswered == 0)
    assert not listens(connection)
    assert not connection.closed


@staged()
async def test_cancelled_waits_leave_nothing_behind(stage: Stage) -> None:
    for number in (1, 2):
        stage[number].silent = True
    await stage.handle.append(b"x")
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await stage.handle.flush()
    for number in (1, 2):
        stage[number].silent = False
        stage[number].answer_held()
    assert await stage.handle.flush() == 0


@pytest.mark.parametrize(
    "name",
    [
        "write", "read", "read_latest", "read_watched", "update", "address", "choose_ensemble", "choose_replacement",
        "subscribe", "bookie_failed", "bookie_answered",
    ],
)  # fmt: skip
def test_the_model_services_have_the_methods_of_the_real_ones(name: str) -> None:
    assert inspect.signature(getattr(ModelServices, name)) == inspect.signature(getattr(ClusterServices, name))
