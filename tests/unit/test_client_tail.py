"""Following a ledger over real sockets: news, silence, failures, the ends, and nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from bk_spark.bookie.reading.ledger_watch import LedgerWatches
from bk_spark.protocol.entries.entry import EntryBlock
from bk_spark.protocol.errors import (
    EntryUnknownError,
    InvalidArgumentError,
    MetadataUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from bk_spark.protocol.quorum import Quorum
from tests.support.ledgers import LEDGER, ledger, payload_of
from tests.support.read_stage import PLAIN, ReadStage, corrupted, staged, stored_entry

FAST_POLLS = {"first_speculative_read_lac_timeout_ms": 20}


class Follower:
    """A tail, whose entries are checked as they come."""

    def __init__(self, stage: ReadStage, first: int = 0, **options: Any) -> None:
        self.blocks: AsyncGenerator[EntryBlock, None] = stage.handle.tail(first, **options)
        self.next = first

    async def take(self, up_to: int) -> None:
        """Entries until ``up_to`` was given, and none after it."""
        while self.next <= up_to:
            self._take(await anext(self.blocks))
        assert self.next == up_to + 1

    async def take_rest(self) -> None:
        """Until the tail ends."""
        async for block in self.blocks:
            self._take(block)

    def _take(self, block: EntryBlock) -> None:
        assert block.first_entry_id == self.next
        assert [bytes(payload) for payload in block.payloads] == [
            payload_of(entry) for entry in range(self.next, self.next + len(block))
        ]
        self.next += len(block)


async def next_poll(stage: ReadStage, number: int) -> None:
    """Until the bookie has a poll that waits."""
    while not stage[number].waiting_polls:
        stage[number].polled.clear()
        await stage[number].polled.wait()


async def any_poll(stage: ReadStage) -> None:
    while not any(bookie.waiting_polls for bookie in stage.bookies):
        await asyncio.sleep(0.001)


def close(stage: ReadStage, last: int) -> None:
    stage.services.change(stage.services.metadata.closed(last, 0))


@pytest.mark.parametrize("quorum", [PLAIN, Quorum(3, 2, 2), Quorum(3, 1, 1), Quorum(1, 1, 1)], ids=str)
def test_entries_come_as_they_are_confirmed_and_the_tail_ends_with_the_ledger(quorum: Quorum) -> None:
    @staged(quorum, count=10, closed=False, **FAST_POLLS)
    async def play(stage: ReadStage) -> None:
        async with aclosing(stage.handle.tail(0)) as blocks:
            follower = Follower(stage)
            follower.blocks = blocks
            await follower.take(8)
            for last in (10, 11, 30):
                taking = asyncio.ensure_future(follower.take(last))
                await any_poll(stage)
                stage.add(*range(follower.next + 1, last + 2))
                await taking
            assert stage.handle.metadata.state is LedgerState.OPEN
            close(stage, 31)
            await follower.take_rest()
        assert follower.next == 32
        assert stage.handle.metadata.state is LedgerState.CLOSED
        assert stage.handle.last_add_confirmed == 31

    play()


@staged(count=0, closed=False)
async def test_a_ledger_without_entries_is_waited_for(stage: ReadStage) -> None:
    """Every bookie answers "no such ledger" to polls: nothing yet."""
    follower = Follower(stage)
    taking = asyncio.ensure_future(follower.take(0))
    while not all(bookie.polls for bookie in stage.bookies[:3]):
        await asyncio.sleep(0.001)
    stage.add(0, 1)
    await taking
    await follower.blocks.aclose()


@staged(count=0, closed=False)
async def test_an_explicit_lac_is_news(stage: ReadStage) -> None:
    stage.add(0, 1, 2)
    follower = Follower(stage)
    await follower.take(1)
    taking = asyncio.ensure_future(follower.take(2))
    await any_poll(stage)
    for number in (1, 2, 3):
        stage[number].publish(2)
    await taking
    close(stage, 2)
    await follower.take_rest()
    assert follower.next == 3


@staged(count=10, closed=False, **FAST_POLLS)
async def test_a_claim_without_proof_is_not_followed(stage: ReadStage) -> None:
    """A bookie's word for a LAC is not enough: an entry beyond the LAC might be cut off by recovery."""
    stage.add(10)
    follower = Follower(stage)
    await follower.take(9)
    taking = asyncio.ensure_future(follower.take(10))
    await any_poll(stage)
    for number in (1, 2, 3):
        stage[number].claimed_lac = 10
        stage[number].wake()
        before = stage[number].lac_reads
        while stage[number].lac_reads == before:
            await asyncio.sleep(0.001)
    assert not taking.done()
    for number in (1, 2, 3):
        stage[number].claimed_lac = -1
    stage.add(11)
    await taking
    await follower.blocks.aclose()


@staged(count=10, closed=False)
async def test_wrong_digests_at_one_replica(stage: ReadStage) -> None:
    stage[1].spoil_lac = True
    follower = Follower(stage)
    await follower.take(8)
    for entry in range(10, 40):
        stage.add(entry)
        stage[1].entries[entry] = corrupted(stored_entry(entry))
        await follower.take(entry - 1)
    close(stage, 39)
    await follower.take_rest()
    assert follower.next == 40


@staged(count=10, closed=False)
async def test_one_replica_cannot_read_its_disk(stage: ReadStage) -> None:
    """C7: an I/O error is not an end, and not absent."""
    stage[2].unreadable = set(range(100))
    close(stage, 9)
    follower = Follower(stage)
    await follower.take_rest()
    assert follower.next == 10


@staged(count=10, closed=False, first_speculative_read_timeout_ms=30, **FAST_POLLS)
async def test_a_hanging_bookie_is_polled_around(stage: ReadStage) -> None:
    for number in (1, 2, 3):
        stage[number].silent = True
        follower = Follower(stage, stage.handle.last_add_confirmed + 1)
        for _ in range(4):
            entry = max(stage[number].entries) + 1
            stage.add(entry)
            await follower.take(entry - 1)
        await follower.blocks.aclose()
        stage[number].silent = False
        stage[number].answer_held()


@staged(count=10, closed=False)
async def test_a_bookie_that_dies_while_it_is_polled(stage: ReadStage) -> None:
    follower = Follower(stage)
    await follower.take(8)
    taking = asyncio.ensure_future(follower.take(12))
    await any_poll(stage)
    (polled,) = (bookie for bookie in stage.bookies if bookie.waiting_polls)
    await polled.stop()
    await any_poll(stage)
    stage.add(*range(10, 14))
    await taking
    await follower.blocks.aclose()


@staged(Quorum(1, 1, 1), count=10, closed=False)
async def test_an_ensemble_change_moves_the_polls(stage: ReadStage) -> None:
    follower = Follower(stage)
    await follower.take(8)
    taking = asyncio.ensure_future(follower.take(20))
    await any_poll(stage)
    polls = stage[1].polls
    # That the new segment begins at entry 10 confirms entry 9.
    stage.services.change(ledger(Quorum(1, 1, 1), (0, "b1"), (10, "b4")))
    stage[4].add(10)
    await next_poll(stage, 4)
    assert follower.next == 10
    stage.add(*range(11, 22))
    await taking
    assert stage[1].polls == polls
    await follower.blocks.aclose()


@staged(count=10, closed=False)
async def test_a_recovery_by_another_client(stage: ReadStage) -> None:
    follower = Follower(stage)
    await follower.take(8)
    rest = asyncio.ensure_future(follower.take_rest())
    await any_poll(stage)
    stage.services.change(stage.services.metadata.in_recovery())
    for bookie in stage.bookies:
        bookie.wake(fenced=True)
    while stage.handle.metadata.state is not LedgerState.IN_RECOVERY:
        await asyncio.sleep(0.001)
    polls = sum(bookie.polls for bookie in stage.bookies)
    close(stage, 9)
    await rest
    assert follower.next == 10
    assert sum(bookie.polls for bookie in stage.bookies) == polls


@staged(count=10, closed=False)
async def test_a_ledger_deleted_meanwhile(stage: ReadStage) -> None:
    follower = Follower(stage)
    await follower.take(8)
    taking = asyncio.ensure_future(follower.take(9))
    await any_poll(stage)

    async def gone(call: str) -> None:
        if call.startswith("read"):
            raise NoSuchLedgerError("the ledger does not exist")

    stage.services.before = gone
    stage.services.change(stage.services.metadata)
    with pytest.raises(NoSuchLedgerError):
        await taking


@staged(count=10, closed=False, tail_attempts=3)
async def test_all_bookies_away(stage: ReadStage) -> None:
    follower = Follower(stage)
    await follower.take(8)
    for bookie in stage.bookies:
        await bookie.stop()
    with pytest.raises(EntryUnknownError, match="no bookie could be asked for new entries: b") as raised:
        await follower.take(9)
    assert raised.value.retriable
    assert raised.value.entry_id == 9
    for bookie in stage.bookies:
        await bookie.start()
    # The next call goes on.
    stage.add(10)
    follower.blocks = stage.handle.tail(follower.next)
    await follower.take(9)
    await follower.blocks.aclose()


@staged(count=10, closed=False, tail_attempts=2)
async def test_metadata_away(stage: ReadStage) -> None:
    async def away(call: str) -> None:
        if call.startswith("read"):
            raise MetadataUnavailableError("no ZooKeeper server answered")

    stage.services.before = away
    with pytest.raises(MetadataUnavailableError):
        await Follower(stage).take(0)
    assert len(stage.services.calls) == 2


@staged(count=10, closed=False, read_attempts=1, tail_attempts=2)
async def test_an_entry_that_no_replica_gives(stage: ReadStage) -> None:
    for number in (1, 2, 3):
        del stage[number].entries[5]
    follower = Follower(stage)
    with pytest.raises(EntryUnknownError) as raised:
        await follower.take(8)
    assert (follower.next, raised.value.entry_id) == (5, 5)


@staged(count=10, closed=False)
async def test_an_error_nobody_thought_of_ends_the_tail(stage: ReadStage) -> None:
    async def before(call: str) -> None:
        raise RuntimeError("cannot schedule new futures after shutdown")

    stage.services.before = before
    with pytest.raises(Exception, match="cannot schedule new futures"):
        await Follower(stage).take(0)


# --- bounded waits ------------------------------------------------------------------------------


@staged(count=10, closed=False)
async def test_a_tail_that_may_not_wait_gives_what_is_there(stage: ReadStage) -> None:
    for last in (8, 15, 15, 30):
        stage.add(*range(max(stage[1].entries) + 1, last + 2))
        follower = Follower(stage, stage.handle.last_add_confirmed + 1, max_wait_ms=0)
        await follower.take_rest()
        assert follower.next == last + 1
    assert stage.handle.metadata.state is LedgerState.OPEN
    close(stage, 31)
    follower = Follower(stage, 31, max_wait_ms=0)
    await follower.take_rest()
    assert (follower.next, stage.handle.metadata.state) == (32, LedgerState.CLOSED)
    # One watch for all of them: none can be taken back.
    assert stage.services.calls.count("read_watched") == 2


@staged(count=10, closed=False, long_poll_timeout_ms=10)
async def test_the_wait_is_bounded_for_each_block_anew(stage: ReadStage) -> None:
    loop = asyncio.get_running_loop()
    follower = Follower(stage, max_wait_ms=200)
    await follower.take(8)
    begun = loop.time()
    stage.add(10)
    await follower.take(9)
    await follower.take_rest()
    assert follower.next == 10
    # Many polls came back with nothing meanwhile: they do not make it longer, else it would never end.
    assert loop.time() - begun >= 0.2
    with pytest.raises(InvalidArgumentError, match="max_wait_ms"):
        await Follower(stage, max_wait_ms=-1).take_rest()


# --- letting go ---------------------------------------------------------------------------------


@staged(count=10, closed=False)
async def test_a_cancelled_tail_leaves_nothing_behind(stage: ReadStage) -> None:
    follower = Follower(stage)
    await follower.take(8)
    waiting = asyncio.ensure_future(follower.take(9))
    await any_poll(stage)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert asyncio.all_tasks() == {asyncio.current_task()}
    # A change that nobody waits for any more.
    close(stage, 9)


@staged(count=10, closed=False)
async def test_a_tail_given_up_between_blocks_leaves_nothing_behind(stage: ReadStage) -> None:
    async with aclosing(stage.handle.tail(0)) as blocks:
        await anext(blocks)
        for bookie in stage.bookies:
            bookie.silent = True
    assert asyncio.all_tasks() == {asyncio.current_task()}


@staged(count=10, closed=False)
async def test_two_tails_of_one_handle(stage: ReadStage) -> None:
    followers = [Follower(stage, first) for first in (0, 5)]
    taking = [asyncio.ensure_future(follower.take_rest()) for follower in followers]
    await any_poll(stage)
    stage.add(*range(10, 50))
    close(stage, 49)
    await asyncio.gather(*taking)
    assert [follower.next for follower in followers] == [50, 50]


@staged(count=10)
async def test_closed_before_what_is_asked_for(stage: ReadStage) -> None:
    with pytest.raises(NoSuchEntryError, match="closed at entry 9: entry 12 will never exist"):
        await Follower(stage, 12).take_rest()
    await Follower(stage, 10).take_rest()


# --- watches ------------------------------------------------------------------------------------


@staged()
async def test_watches_are_shared(stage: ReadStage) -> None:
    watches = LedgerWatches(stage.services)  # type: ignore[arg-type]
    called: list[str] = []

    def first() -> None:
        called.append("first")

    def second() -> None:
        called.append("second")

    await watches.read(LEDGER, first)
    await watches.read(LEDGER, second)
    assert stage.services.calls == ["read_watched", "read_latest"]
    watches.forget(LEDGER, first)
    watches.forget(LEDGER, first)
    stage.services.change(stage.services.metadata)
    stage.services.change(stage.services.metadata)
    assert called == ["second"]
    await watches.read(LEDGER, first)
    assert stage.services.calls[-1] == "read_watched"


@staged()
async def test_a_watch_that_could_not_be_set_is_told_to_those_who_rely_on_it(stage: ReadStage) -> None:
    watches = LedgerWatches(stage.services)  # type: ignore[arg-type]
    called: list[str] = []
    go_on = asyncio.Event()

    async def before(call: str) -> None:
        if call == "read_watched":
            await go_on.wait()
            raise MetadataUnavailableError("no ZooKeeper server answered")

    stage.services.before = before
    setting = asyncio.ensure_future(watches.read(LEDGER, lambda: called.append("never")))
    await asyncio.sleep(0)
    await watches.read(LEDGER, lambda: called.append("other"))
    go_on.set()
    with pytest.raises(MetadataUnavailableError):
        await setting
    assert called == ["other"]
