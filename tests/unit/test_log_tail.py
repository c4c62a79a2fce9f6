"""The open tail of a log: writers open, roll and close it, commits seal it, in every order and with replies lost."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator

import pytest

from bk_spark.log import CommitMessage, CommitRequest, CommitResult, LedgerRange
from bk_spark.log.core.append import MAX_INLINE_PAGES
from bk_spark.log.core.changes import change_steps
from bk_spark.log.core.commit import BatchCommit
from bk_spark.log.core.steps import (
    Action,
    CreateLedger,
    Read,
    RecoverLedger,
    Steps,
    Transact,
)
from bk_spark.log.core.tail.tail_changes import KeepTail, ReleaseTail, SealTail, TailPlace
from bk_spark.log.core.tail.writer_steps import Roll, drain_steps, open_steps
from bk_spark.log.formats.names import WRITERS
from bk_spark.log.formats.znodes import LedgerRegistration, Owner, encode_registration
from bk_spark.protocol.errors import (
    LogFencedError,
    LogTailOpenError,
)
from bk_spark.protocol.metadata.znodes import DeleteOp, SetOp
from tests.support.log_model import LOG_ID, PATHS
from tests.support.page_cache import pages_decoded_once
from tests.support.tail_model import Machine, ModelLedger, TailWorld, owner_of


@pytest.fixture(autouse=True, scope="module")
def page_cache() -> Iterator[None]:
    with pages_decoded_once():
        yield


A, B = owner_of("a"), owner_of("b")
Writer = tuple[TailWorld, TailPlace]


def opening(world: TailWorld, writer: str = "a", *, take_over: bool = False) -> Steps[TailPlace]:
    return open_steps(PATHS, owner_of(writer), world.clock, take_over=take_over)


def closing(world: TailWorld, owner: Owner, ledger_id: int) -> Steps[int]:
    closed = yield from drain_steps(PATHS, owner, ledger_id)
    return (yield from change_steps(SealTail(PATHS, owner, closed), world.clock))


def commit(world: TailWorld, batch_id: int = 0, *, fence_tail: bool = False, entries: int = 2) -> Steps[CommitResult]:
    """Of a ledger of its own, 500, registered at first use."""
    if 500 not in world.ledgers:
        world.ledgers[500] = ModelLedger([f"s{n}" for n in range(100)])
        world.zk.register("app", "r0", 500)
    ranges = (LedgerRange(500, batch_id * 2, batch_id * 2 + entries - 1, entries, 20),) if entries else ()
    message = CommitMessage(LOG_ID, "app", "r0", "query", batch_id, 0, ranges)
    request = CommitRequest(LOG_ID, "app", "r0", "query", batch_id, (message,), fence_tail=fence_tail)
    return change_steps(BatchCommit(PATHS, request), world.clock)


def owner_is(world: TailWorld) -> str | None:
    znode = world.zk.read(PATHS.owner)
    return (
        None
        if znode is None
        else next(w for w in ("a", "b", "c", "last") if f"\x12{chr(len(w))}{w}".encode() in znode.data)
    )


def writes(action: Action) -> bool:
    """The transaction that changes the list."""
    return isinstance(action, Transact) and any(
        op.path == PATHS.head and isinstance(op, SetOp) for op in action.operations
    )


@pytest.fixture
def world() -> TailWorld:
    return TailWorld()


def test_a_writer_opens_rolls_and_closes(world: TailWorld) -> None:
    world.run(commit(world))
    first = world.run(opening(world))
    assert first.base_offset == 2
    assert owner_is(world) == "a"
    assert world.add(first.ledger_id, "one")
    assert world.add(first.ledger_id, "two")
    second = world.run(Roll(PATHS, A, first.ledger_id, world.clock).steps())
    assert second.base_offset == 4
    assert world.open_tail is not None
    assert world.open_tail.ledger_id == second.ledger_id
    sealed = world.zk.segments()[1]
    assert (sealed.entries, sealed.rows, sealed.size_bytes, sealed.commit_time_ms) == (2, 2, 6, first.commit_time_ms)
    assert world.add(second.ledger_id, "three")
    assert world.run(closing(world, A, second.ledger_id)) == 5
    assert owner_is(world) is None
    assert world.open_tail is None
    assert world.entries() == ["s0", "s1", "one", "two", "three"]
    world.run(commit(world, 1))
    assert world.entries()[5:] == ["s2", "s3"]
    times = [segment.commit_time_ms for segment in world.zk.segments()]
    assert times == sorted(times)


@pytest.mark.parametrize("how", ["close", "roll", "next writer", "commit"])
def test_an_empty_tail_is_removed(world: TailWorld, how: str) -> None:
    place = world.run(opening(world))
    if how == "close":
        assert world.run(closing(world, A, place.ledger_id)) == 0
        assert world.zk.segments() == []
    elif how == "roll":
        place = world.run(Roll(PATHS, A, place.ledger_id, world.clock).steps())
        assert [s.ledger_id for s in world.zk.segments()] == [place.ledger_id]
    else:
        world.expire_owner()
        if how == "commit":
            world.run(commit(world))
            assert [s.ledger_id for s in world.zk.segments()] == [500]
        else:
            other = world.run(opening(world, "b"))
            assert [s.ledger_id for s in world.zk.segments()] == [other.ledger_id]
            assert other.base_offset == 0
    world.expire_owner()
    last = world.run(opening(world, "last"))
    assert world.add(last.ledger_id, "x")
    world.run(closing(world, owner_of("last"), last.ledger_id))
    assert world.entries()[-1] == "x"


def test_a_live_owner_is_named_and_left_alone(world: TailWorld) -> None:
    place = world.run(opening(world))
    made = len(world.ledgers)
    with pytest.raises(LogTailOpenError, match=r"writer a \(host host, process 42\).*take_over=True"):
        world.run(opening(world, "b"))
    with pytest.raises(LogTailOpenError, match=r"writer a \(host host, process 42\).*fenceTail=true"):
        world.run(commit(world))
    assert world.run(commit(world, entries=0)).end_offset == 0, "an empty batch needs no place in the list"
    assert len(world.ledgers) == made + 1
    assert world.add(place.ledger_id, "still there")


def test_taking_over_fences_the_owner(world: TailWorld) -> None:
    place = world.run(opening(world))
    assert world.add(place.ledger_id, "one")
    other = world.run(opening(world, "b", take_over=True))
    assert owner_is(world) == "b"
    assert not world.add(place.ledger_id, "two")
    assert world.add(other.ledger_id, "three")
    for steps in (
        Roll(PATHS, A, place.ledger_id, world.clock).steps(),
        change_steps(KeepTail(PATHS, A), world.clock),
    ):
        with pytest.raises(LogFencedError, match=r"log writer a has lost the tail.*writer b \(host host"):
            world.run(steps)
    assert "writer b" in world.run(change_steps(ReleaseTail(PATHS, A), world.clock))
    assert owner_is(world) == "b"
    world.run(closing(world, B, other.ledger_id))
    assert world.entries() == ["one", "three"]


def test_a_commit_seals_the_tail_of_a_writer_that_is_gone(world: TailWorld) -> None:
    place = world.run(opening(world))
    assert world.add(place.ledger_id, "one")
    world.expire_owner()
    result = world.run(commit(world))
    assert (result.start_offset, result.end_offset) == (1, 3)
    assert world.entries() == ["one", "s0", "s1"]
    with pytest.raises(LogFencedError, match="sealed by a commit"):
        world.run(Roll(PATHS, A, place.ledger_id, world.clock).steps())


def test_a_commit_with_fence_tail_ends_a_live_writer(world: TailWorld) -> None:
    place = world.run(opening(world))
    assert world.add(place.ledger_id, "one")
    result = world.run(commit(world, fence_tail=True))
    assert (result.start_offset, result.end_offset) == (1, 3)
    assert owner_is(world) is None
    assert not world.add(place.ledger_id, "two")
    assert world.run(closing(world, A, place.ledger_id)) == 3, "sealed as it was closed: nothing to do"


def test_an_overwrite_begins_after_the_tail_it_sealed(world: TailWorld) -> None:
    place = world.run(opening(world))
    assert world.add(place.ledger_id, "one")
    commit(world)
    for batch_id, ranges in ((0, (LedgerRange(500, 0, 1, 2, 20),)), (1, ())):
        message = CommitMessage(LOG_ID, "app", "r0", "query", batch_id, 0, ranges)
        request = CommitRequest(LOG_ID, "app", "r0", "query", batch_id, (message,), overwrite=True, fence_tail=True)
        world.run(change_steps(BatchCommit(PATHS, request), world.clock))
        assert world.zk.head().first_offset == (1, 5)[batch_id]
        assert world.zk.head().next_offset == (3, 5)[batch_id]
        if batch_id == 0:
            assert world.entries() == ["s0", "s1"]
            place = world.run(opening(world))
            assert world.add(place.ledger_id, "two")
            assert world.add(place.ledger_id, "three")
    assert world.entries() == []


def test_the_page_is_read_before_the_owner(world: TailWorld) -> None:
    """Else a writer that opens its tail in between looks as if it had gone, and is fenced."""
    world.tick_ms = 0  # all within a millisecond: times tell nothing
    world.run(commit(world))
    for machine in (world.start(opening(world, "b"), lags=False), world.start(commit(world, 1), lags=False)):
        machine.until(lambda action: isinstance(action, Read) and PATHS.page(0) in action.paths)
        place = world.run(opening(world))
        with pytest.raises(LogTailOpenError):
            machine.finish()
        assert world.add(place.ledger_id, "one")
        world.run(closing(world, A, place.ledger_id))


def test_l1_of_two_that_open_at_once_one_is_told(world: TailWorld) -> None:
    one, other = world.start(opening(world, "a")), world.start(opening(world, "b"))
    for machine in (one, other):
        machine.until(writes)
    place = one.finish()
    with pytest.raises(LogTailOpenError, match="writer a"):
        other.finish()
    assert world.add(place.ledger_id, "one")
    assert [ledger.closed for ledger in world.ledgers.values()] == [False, True], "the other's ledger is closed"


def test_a_writer_keeps_its_tail_after_its_session_expired(world: TailWorld) -> None:
    place = world.run(opening(world))
    world.expire_owner()
    assert world.run(change_steps(KeepTail(PATHS, A), world.clock)) == place
    assert owner_is(world) == "a"
    world.expire_owner()
    place = world.run(Roll(PATHS, A, place.ledger_id, world.clock).steps())
    assert owner_is(world) == "a", "a roll makes it too"
    world.expire_owner()
    assert world.run(closing(world, A, place.ledger_id)) == 0
    assert owner_is(world) is None
    with pytest.raises(LogFencedError):
        world.run(change_steps(KeepTail(PATHS, A), world.clock))


def test_releasing_the_tail_leaves_it_open_for_the_next(world: TailWorld) -> None:
    place = world.run(opening(world))
    assert world.add(place.ledger_id, "one")
    assert "the next writer or commit seals its ledger" in world.run(change_steps(ReleaseTail(PATHS, A), world.clock))
    assert owner_is(world) is None
    assert world.open_tail is not None
    other = world.run(opening(world, "b"))
    assert other.base_offset == 1
    # The next one's is not touched, though the old writer had read its own there.
    slow = world.start(change_steps(ReleaseTail(PATHS, B), world.clock))
    slow.until(lambda action: isinstance(action, Transact))
    world.run(opening(world, "c", take_over=True))
    slow.finish()
    assert owner_is(world) == "c"


def test_a_ledger_that_was_condemned_meanwhile_is_not_listed(world: TailWorld) -> None:
    """The reaper takes a new ledger for a left-over, since its writer has no owner's znode (yet, or any more)."""

    def condemn(ledger_id: int, writer: str) -> None:
        run = PATHS.run_at(WRITERS, writer)
        data = encode_registration(LedgerRegistration(condemned=True))
        world.zk.transact([SetOp(run, b"", -1), SetOp(f"{run}/{ledger_id}", data, -1)])

    machine = world.start(opening(world))
    machine.until(writes)
    condemn(101, "a")
    place = machine.finish()
    assert place.ledger_id == 102
    assert world.add(place.ledger_id, "one")

    rolling = world.start(Roll(PATHS, A, place.ledger_id, world.clock).steps())
    rolling.until(writes)
    world.expire_owner()
    condemn(103, "a")
    assert rolling.finish().ledger_id == 104
    assert world.ledgers[103].closed
    assert owner_is(world) == "a"


def test_the_runs_znode_is_made_again_where_the_reaper_removed_it(world: TailWorld) -> None:
    machine = world.start(opening(world))
    machine.until(lambda action: isinstance(action, CreateLedger))
    world.zk.transact([DeleteOp(PATHS.run_at(WRITERS, "a"))])
    assert machine.finish().base_offset == 0


def test_the_last_two_ledgers_of_writers_are_recovered(world: TailWorld) -> None:
    recovered: list[int] = []

    def note(action: Action) -> bool:
        if isinstance(action, RecoverLedger):
            recovered.append(action.ledger_id)
        return False

    def run(steps: Steps[TailPlace]) -> TailPlace:
        machine = world.start(steps)
        with pytest.raises(AssertionError, match="ended before"):
            machine.until(note)
        return machine.finish()

    world.run(commit(world))
    first = run(opening(world))
    assert recovered == [], "ledgers of commits are still written"
    world.add(first.ledger_id, "one")
    second = world.run(Roll(PATHS, A, first.ledger_id, world.clock).steps())
    world.expire_owner()
    run(opening(world, "b"))
    assert set(recovered) == {first.ledger_id, second.ledger_id}
    assert not world.ledgers[500].fenced


@pytest.mark.parametrize("inline_pages", [0, MAX_INLINE_PAGES])
def test_a_sealed_segment_that_does_not_fit_goes_into_the_next_page(
    world: TailWorld, monkeypatch: pytest.MonkeyPatch, inline_pages: int
) -> None:
    monkeypatch.setattr("bk_spark.log.core.append.MAX_INLINE_PAGES", inline_pages)
    world.run(commit(world))
    place = world.run(opening(world))
    world.ledgers[place.ledger_id].entries = ["x" * 50] * 40_000
    znode = world.zk.read(PATHS.page(0))
    assert znode is not None
    monkeypatch.setattr("bk_spark.log.formats.page.MAX_PAGE_BYTES", len(znode.data))
    monkeypatch.setattr("bk_spark.log.formats.page._FULL_BYTES", len(znode.data))
    place = world.run(Roll(PATHS, A, place.ledger_id, world.clock).steps())
    assert world.zk.head().tail_page > 0
    world.add(place.ledger_id, "end")
    world.run(closing(world, A, place.ledger_id))
    assert [segment.entries for segment in world.zk.segments()] == [2, 40_000, 1]


# --- every order ---

Interference = Callable[[TailWorld], object]


def nothing(world: TailWorld) -> None:
    pass


def expiry(world: TailWorld) -> None:
    world.expire_owner()


def expiry_and_keeping(world: TailWorld) -> None:
    world.expire_owner()
    with contextlib.suppress(LogFencedError):
        world.run(change_steps(KeepTail(PATHS, A), world.clock))


def fencing_commit(world: TailWorld) -> None:
    world.run(commit(world, fence_tail=True))


def commit_after_expiry(world: TailWorld) -> None:
    world.expire_owner()
    world.run(commit(world))


def take_over(world: TailWorld) -> None:
    place = world.run(opening(world, "b", take_over=True))
    assert world.add(place.ledger_id, "b0")


def another_comes_and_goes(world: TailWorld) -> None:
    world.expire_owner()
    place = world.run(opening(world, "b"))
    assert world.add(place.ledger_id, "b0")
    world.run(closing(world, B, place.ledger_id))


def another_opens_an_empty_tail_and_dies(world: TailWorld) -> None:
    world.expire_owner()
    world.run(opening(world, "b"))
    world.expire_owner()


INTERFERENCES: tuple[Interference, ...] = (
    nothing,
    expiry,
    expiry_and_keeping,
    fencing_commit,
    commit_after_expiry,
    take_over,
    another_comes_and_goes,
    another_opens_an_empty_tail_and_dies,
)


def begun(operation: str) -> tuple[TailWorld, Machine[TailPlace | int]]:
    """A log whose tail writer ``a`` holds, with an acknowledged entry, and the machine that is to be disturbed."""
    world = TailWorld()
    if operation == "open":
        # The writer before it died.
        place = world.run(opening(world, "c"))
        assert world.add(place.ledger_id, "c0")
        world.expire_owner()
        return world, world.start(opening(world))
    place = world.run(opening(world))
    assert world.add(place.ledger_id, "a0")
    if operation == "roll":
        return world, world.start(Roll(PATHS, A, place.ledger_id, world.clock).steps())
    return world, world.start(closing(world, A, place.ledger_id))


def disturbed(operation: str, at: int, interfere: Interference, lost: int | None, *, applied: bool) -> bool:
    """One history: before action ``at`` others do something; the reply to transaction ``lost`` is lost. Whether the
    operation got so far."""
    world, machine = begun(operation)
    transactions = 0
    reached = False
    for number in itertools.count():
        if number == at:
            reached = True
            interfere(world)
        if machine.over:
            break
        if isinstance(machine.action, Transact):
            transactions += 1
            if transactions - 1 == lost:
                machine.lose_reply(applied=applied)
                continue
        machine.step()
    if machine.error is None:
        # It may have been fenced since; if not, its entries are where it was told.
        if isinstance(machine.result, TailPlace) and world.add(machine.result.ledger_id, "a1"):
            assert world.open_tail is not None
            assert world.open_tail.base_offset == machine.result.base_offset
    else:
        assert isinstance(machine.error, LogFencedError | LogTailOpenError), machine.error
        assert interfere is not nothing
        assert interfere is not expiry
        assert interfere is not expiry_and_keeping
    place = world.run(opening(world, "last", take_over=True))
    assert world.add(place.ledger_id, "end")
    world.run(closing(world, owner_of("last"), place.ledger_id))
    entries = world.entries()
    committed = ["s0", "s1"] if 500 in world.ledgers else []
    assert sorted(entries) == sorted([*world.acknowledged, *committed]), "every acknowledged entry is there, once"
    assert [entry for entry in entries if entry not in committed] == world.acknowledged, "and in order"
    times = [segment.commit_time_ms for segment in world.zk.segments()]
    assert times == sorted(times)
    return reached


@pytest.mark.parametrize("operation", ["open", "roll", "close"])
@pytest.mark.parametrize("interfere", INTERFERENCES, ids=lambda interfere: interfere.__name__)
def test_l1_whatever_comes_in_between_and_whichever_reply_is_lost(operation: str, interfere: Interference) -> None:
    # The transaction that changes the list; an opening makes the znode of the writer's run before.
    lost_ones = [1] if operation == "open" else [0]
    if operation == "open" and interfere is nothing:
        lost_ones.append(0)
    reached = True
    at = -1
    while reached:
        at += 1
        reached = disturbed(operation, at, interfere, None, applied=True)
        for lost, applied in itertools.product(lost_ones, (False, True)):
            disturbed(operation, at, interfere, lost, applied=applied)
    assert at > 5
