"""One log writer's machine: what ends it, what does not, and what may be repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bk_spark.log.core.changes import MAX_UNAVAILABLE
from bk_spark.log.core.steps import (
    Action,
    CloseLedger,
    CreateLedger,
    Event,
    Failed,
    IsLedgerOpen,
    Steps,
    Transact,
)
from bk_spark.log.core.tail.roll import RollLimits
from bk_spark.log.core.tail.writer_actions import Claimed, ClaimLedger, FlushLedger, SendEntries, TakeTurn, WatchOwner
from bk_spark.log.core.tail.writing import KEEP_AGAIN_MS, ROLL_AGAIN_MS, TailWriting
from bk_spark.protocol.errors import (
    BookieUnavailableError,
    BookKeeperError,
    LedgerClosedError,
    LedgerFencedError,
    LogFencedError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    OutcomeUnknownError,
    UnauthorizedError,
)
from tests.support.log_model import PATHS
from tests.support.tail_model import Machine, TailWorld, owner_of

AWAY = Failed(MetadataUnavailableError("model"))


class Timer:
    now_ms = 0.0

    def __call__(self) -> float:
        return self.now_ms


@pytest.fixture
def world() -> TailWorld:
    return TailWorld()


@pytest.fixture
def timer() -> Timer:
    return Timer()


@pytest.fixture
def writing(world: TailWorld, timer: Timer) -> TailWriting:
    return opened(world, timer)


def opened(world: TailWorld, timer: Timer, name: str = "a", *, take_over: bool = False) -> TailWriting:
    writing = TailWriting(PATHS, owner_of(name), RollLimits(1_000, 60_000, 3), world.clock, timer)
    world.run(writing.open_steps(take_over=take_over))
    return writing


def sending(writing: TailWriting, *entries: str) -> Steps[None]:
    texts: Any = entries
    return writing.send_steps(texts, np.arange(len(entries) + 1) * 10)


def closing(writing: TailWriting) -> Steps[int]:
    return writing.close_steps((), np.zeros(1, np.int64))


def serving(writing: TailWriting) -> Steps[None]:
    return writing.serve_steps((), np.zeros(1, np.int64))


def is_a(*kinds: type) -> Callable[[Action], bool]:
    return lambda action: isinstance(action, kinds)


def answer_next(machine: Machine[Any], kind: type, answer: Event) -> None:
    machine.until(is_a(kind))
    machine.answer(answer)


def fail_next(machine: Machine[Any], kind: type, error: BookKeeperError) -> None:
    answer_next(machine, kind, Failed(error))


def test_entries_go_over_as_many_ledgers_as_they_need(world: TailWorld, writing: TailWriting) -> None:
    world.run(sending(writing, *"abcdefgh"))
    assert [segment.entries for segment in world.zk.segments()] == [3, 3, 0]
    assert writing.place.base_offset == 6
    world.run(writing.flush_steps())
    writing.stop()
    assert world.run(closing(writing)) == 8
    assert world.entries() == list("abcdefgh")
    with pytest.raises(LedgerClosedError, match="is closed"):
        writing.check_open()


def test_a_roll_without_bookies_is_put_off(world: TailWorld, writing: TailWriting, timer: Timer) -> None:
    world.run(sending(writing, *"abc"))
    first = writing.ledger_id
    machine = world.start(sending(writing, "d"))
    fail_next(machine, CreateLedger, NotEnoughBookiesError("model"))
    machine.finish()
    assert writing.ledger_id == first
    assert "no new ledger" in world.warnings[0]
    assert writing.idle_ms(has_entries=False) == ROLL_AGAIN_MS
    world.run(sending(writing, "e"))
    assert writing.ledger_id == first, "not tried again before the time"
    timer.now_ms += ROLL_AGAIN_MS
    assert writing.idle_ms(has_entries=False) == 0
    world.run(serving(writing))
    assert writing.ledger_id != first
    assert [segment.entries for segment in world.zk.segments()] == [5, 0]


def test_ids_that_bookies_know_with_another_password_are_passed_over(
    world: TailWorld, writing: TailWriting, timer: Timer
) -> None:
    world.run(sending(writing, *"abc"))
    first = writing.ledger_id
    world.used_ids = {first + 1, first + 2}
    world.run(sending(writing, "d"))
    assert writing.ledger_id == first + 3
    assert world.abandoned == [first + 1, first + 2]
    assert [text.split(" is")[0] for text in world.warnings] == [f"new ledger {first + n}" for n in (1, 2)]
    # Nobody ever saw one of them at the end of the log.
    assert [segment.ledger_id for segment in world.zk.segments()] == [first, first + 3]
    world.run(sending(writing, *"ef"))
    world.used_ids = set(range(first + 4, first + 9))
    world.run(sending(writing, "g"))
    assert writing.ledger_id == first + 3, "put off"
    assert "no new ledger" in world.warnings[-1]
    timer.now_ms += ROLL_AGAIN_MS
    world.run(serving(writing))
    assert writing.ledger_id == first + 9
    assert world.entries() == list("abcdefg")


def test_a_ledger_whose_bookies_do_not_answer_is_passed_over_once(world: TailWorld, timer: Timer) -> None:
    silent = BookieUnavailableError("model: too few bookies answer")
    writing = TailWriting(PATHS, owner_of("a"), RollLimits(1_000, 60_000, 3), world.clock, timer)
    machine = world.start(writing.open_steps(take_over=False))
    fail_next(machine, ClaimLedger, silent)
    machine.finish()
    assert (writing.ledger_id, world.abandoned) == (102, [101])
    # With a bookie of which nobody knows what it holds: readers could not tell its entries from the ledger's.
    machine = world.start(opening(world, timer))
    answer_next(machine, ClaimLedger, Claimed(("b3",)))
    machine.finish()
    assert world.abandoned == [101, 103]
    assert world.warnings[-1] == "new ledger 103 is left unused: no answer from b3"
    # Each of which too few bookies answer takes as long as the timeout of adds.
    machine = world.start(opening(world, timer))
    fail_next(machine, ClaimLedger, silent)
    fail_next(machine, ClaimLedger, silent)
    with pytest.raises(BookieUnavailableError):
        machine.finish()
    # No others can be had.
    machine = world.start(opening(world, timer))
    for answer in (Claimed(("b3",)), Failed(silent), Claimed(("b2", "b3"))):
        answer_next(machine, ClaimLedger, answer)
    machine.finish()
    tail = world.zk.segments()[-1]
    assert (tail.ledger_id, world.abandoned[-2:]) == (109, [107, 108])


def opening(world: TailWorld, timer: Timer) -> Steps[None]:
    return TailWriting(PATHS, owner_of("b"), RollLimits(1_000, 60_000, 3), world.clock, timer).open_steps(
        take_over=True
    )


def test_a_log_of_which_all_new_ids_were_used_before_is_left_as_it_is(world: TailWorld, timer: Timer) -> None:
    world.used_ids = set(range(101, 106))
    with pytest.raises(UnauthorizedError):
        opened(world, timer)
    assert world.open_tail is None
    assert world.zk.read(PATHS.owner) is None
    assert world.abandoned == list(range(101, 106))
    opened(world, timer)


def test_a_ledger_rolls_by_age_unless_it_is_empty(world: TailWorld, writing: TailWriting, timer: Timer) -> None:
    timer.now_ms += 100_000
    assert writing.idle_ms(has_entries=False) == 60_000
    assert writing.idle_ms(has_entries=True) == 0
    world.run(sending(writing, "a"))
    assert writing.idle_ms(has_entries=False) == 0
    world.run(serving(writing))
    assert [segment.entries for segment in world.zk.segments()] == [1, 0]


@pytest.mark.parametrize("kind", [SendEntries, FlushLedger])
def test_a_failed_ledger_ends_the_writer(world: TailWorld, writing: TailWriting, kind: type) -> None:
    world.run(sending(writing, "a", "b"))
    machine = world.start(sending(writing, "c") if kind is SendEntries else writing.flush_steps())
    fail_next(machine, kind, LedgerFencedError("model"))
    with pytest.raises(LogFencedError, match="has lost the tail.*below offset 2 were acknowledged") as lost:
        machine.finish()
    assert lost.value.acknowledged_offset == 2
    assert isinstance(lost.value.__cause__, LedgerFencedError)
    assert world.zk.read(PATHS.owner) is None, "nobody waits for it"
    assert writing.idle_ms(has_entries=True) is None
    for steps in (sending(writing, "x"), writing.flush_steps(), closing(writing)):
        with pytest.raises(LogFencedError) as again:
            world.run(steps)
        assert again.value is lost.value
    assert world.abandoned == [writing.ledger_id]


def test_a_failed_roll_gives_up_the_new_ledger(world: TailWorld, writing: TailWriting) -> None:
    world.run(sending(writing, *"abc"))
    machine = world.start(sending(writing, "d"))
    fail_next(machine, CloseLedger, BookieUnavailableError("model"))
    with pytest.raises(BookieUnavailableError):
        machine.finish()
    (given_up,) = world.abandoned
    assert given_up in world.ledgers
    assert given_up != writing.ledger_id


def test_closing_may_be_repeated_while_zookeeper_is_away(world: TailWorld, writing: TailWriting) -> None:
    world.run(sending(writing, "a"))
    writing.stop()
    machine = world.start(closing(writing))
    for _ in range(MAX_UNAVAILABLE):
        machine.until(is_a(CloseLedger))
        machine.answer(AWAY)
    with pytest.raises(MetadataUnavailableError):
        machine.finish()
    assert writing.failure is None
    # The ledger is closed now, and the transaction's reply is lost, again and again.
    machine = world.start(closing(writing))
    machine.until(is_a(Transact))
    for _ in range(MAX_UNAVAILABLE + 1):
        machine.until(is_a(Transact))
        machine.lose_reply(applied=False)
    with pytest.raises(OutcomeUnknownError):
        machine.finish()
    assert writing.failure is None
    machine = world.start(closing(writing))
    while not machine.over:
        assert not isinstance(machine.action, CloseLedger), "closed once"
        machine.step()
    assert machine.result == 1
    assert world.run(closing(writing)) == 1
    assert world.entries() == ["a"]


def test_an_interrupted_or_abandoned_writer_says_so(world: TailWorld, writing: TailWriting, timer: Timer) -> None:
    world.run(sending(writing, "a"))
    world.run(writing.interrupt_steps())
    with pytest.raises(LedgerClosedError, match="interrupted while it sent"):
        writing.check_open()
    other = opened(world, timer, "b")
    other.stop()
    world.run(other.abandon_steps())
    with pytest.raises(LedgerClosedError, match="was abandoned"):
        world.run(closing(other))
    assert world.open_tail is not None, "left for the next one"
    assert world.zk.read(PATHS.owner) is None


def test_the_keeper_makes_the_owner_again(world: TailWorld, writing: TailWriting) -> None:
    world.expire_owner()
    machine = world.start(writing.keep_steps())
    machine.until(is_a(IsLedgerOpen, WatchOwner))
    assert isinstance(machine.action, WatchOwner), "later changes are noticed"
    assert machine.finish() is None
    assert world.zk.read(PATHS.owner) is not None
    machine = world.start(writing.keep_steps())
    fail_next(machine, IsLedgerOpen, MetadataUnavailableError("model"))
    assert machine.finish() == KEEP_AGAIN_MS


def test_the_keeper_ends_a_writer_that_was_replaced(world: TailWorld, writing: TailWriting, timer: Timer) -> None:
    other = opened(world, timer, "b", take_over=True)
    assert world.run(writing.keep_steps()) is None
    with pytest.raises(LogFencedError, match="writer b"):
        writing.check_open()
    assert other.failure is None
    znode = world.zk.read(PATHS.owner)
    assert znode is not None
    assert b"b" in znode.data, "the other's is left alone"


def test_the_keeper_ends_an_idle_writer_whose_ledger_failed(world: TailWorld, writing: TailWriting) -> None:
    world.failures[writing.ledger_id] = UnauthorizedError("model")
    assert world.run(writing.keep_steps()) is None
    assert world.zk.read(PATHS.owner) is None, "nobody waits for it"
    with pytest.raises(UnauthorizedError):
        writing.check_open()
    assert writing.idle_ms(has_entries=False) is None


def test_the_keeper_checks_again_if_the_writer_rolled_meanwhile(world: TailWorld, writing: TailWriting) -> None:
    """It saw the ledger closed, by the writer's own roll."""
    world.run(sending(writing, *"abc"))
    machine = world.start(writing.keep_steps())
    machine.until(is_a(IsLedgerOpen))
    world.ledgers[writing.ledger_id].fenced = True
    machine.step()
    assert isinstance(machine.action, TakeTurn)
    world.ledgers[writing.ledger_id].fenced = False
    world.run(sending(writing, "d"))
    assert machine.finish() == 0
    assert writing.failure is None
