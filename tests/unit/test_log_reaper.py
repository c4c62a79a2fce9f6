"""The reaper against everybody else, stopped between any two of their steps: scenarios L2, L3, L4, L5."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from bk_spark.log.core.changes import MIN_CONFLICTS, change_steps
from bk_spark.log.core.index_move import MoveReport, move_steps
from bk_spark.log.core.steps import Read, RecoverLedger, Steps, Transact
from bk_spark.log.core.tail.tail_changes import TailPlace
from bk_spark.log.core.tail.writer_steps import Roll, open_steps
from bk_spark.log.formats.names import INDEX, WRITERS
from bk_spark.log.formats.segment import COMMIT_TIME_LAG_MS
from bk_spark.log.formats.znodes import Appended, LedgerRegistration, Owner, encode_appended, encode_registration
from bk_spark.log.gc.maintenance import INTERVAL_MS, ClaimMaintenance
from bk_spark.log.gc.reap_rules import ReapLimits, Reason, Run
from bk_spark.log.gc.reaper import ReapReport
from bk_spark.log.gc.reaping import DeleteLedgers
from bk_spark.log.gc.references import view_steps
from bk_spark.protocol.errors import (
    LedgerRefusedError,
    LogReplacedError,
    MetadataFormatError,
    NoSuchLogError,
    RunRetiredError,
)
from bk_spark.protocol.metadata.znodes import CheckOp, CreateOp, SetOp
from tests.simulation.logs.ledgers import ledger_path
from tests.support.page_cache import pages_decoded_once
from tests.support.reap_model import DAY_MS, HOUR_MS, LIMITS, MINUTE_MS, START_MS, Machine, ReapWorld, paused_everywhere


@pytest.fixture(autouse=True, scope="module")
def page_cache() -> Iterator[None]:
    with pages_decoded_once():
        yield


FATES = ("lost", "applied", "late")


def retired_world() -> tuple[ReapWorld, int, int]:
    """Run r1 took over from r0: a ledger of r0 that is in the list, and one that is not."""
    world = ReapWorld()
    kept, orphan, other = world.ledger(), world.ledger(), world.ledger(run="r1")
    world.commit(0, (kept, 0, 9))
    world.commit(1, (other, 0, 9), run="r1")
    return world, kept, orphan


# --- what goes, and when ---


def test_an_orphan_of_a_retired_run_is_condemned_recovered_and_deleted_after_its_grace() -> None:
    world, kept, orphan = retired_world()
    report = world.reap()
    assert [(one.ledger_id, one.reason) for one in report.condemned] == [(orphan, Reason.RUN_RETIRED)]
    assert (report.deleted, report.failed, report.complete) == ((), (), True)
    assert world.is_condemned(orphan)
    assert world.ledgers.all[orphan].fenced
    assert not world.ledgers.all[kept].fenced

    world.now_ms += HOUR_MS - MINUTE_MS
    report = world.reap()
    assert (report.waiting, report.deleted) == ((orphan,), ())
    world.now_ms += MINUTE_MS
    report = world.reap()
    assert (report.waiting, report.deleted) == ((), (orphan,))
    assert not world.ledgers.exists(orphan)
    assert world.registration(orphan) is None
    assert world.ledgers.exists(kept)
    assert world.reap().deleted == ()


def test_no_orphan_of_a_retired_run_is_left_two_hours_later() -> None:
    world, _, orphan = retired_world()
    world.now_ms += 3 * MINUTE_MS
    writer = world.ledger_at("+writers", "6f0e")
    index = world.ledger_at(INDEX, "77aa")
    world.reap_for(2 * HOUR_MS)
    for ledger_id in (orphan, writer, index):
        assert not world.ledgers.exists(ledger_id)


def test_a_run_that_is_not_retired_keeps_its_ledgers_for_the_orphan_retention() -> None:
    world = ReapWorld()
    never_committed, of_another_app = world.ledger(), world.ledger(app="other", run="x")
    world.reap_for(3 * HOUR_MS)
    world.now_ms += 6 * DAY_MS
    assert world.reap().condemned == ()
    world.now_ms += DAY_MS
    report = world.reap()
    assert {(one.ledger_id, one.reason) for one in report.condemned} == {
        (never_committed, Reason.OLD),
        (of_another_app, Reason.OLD),
    }


def test_l3_a_truncated_ledger_in_use_is_kept_until_its_application_is_idle() -> None:
    world = ReapWorld()
    ledger = world.ledger()
    world.commit(0, (ledger, 0, 9))
    assert world.truncate(10) == 10
    world.reap_for(2 * HOUR_MS)
    world.commit(1, (ledger, 10, 19))
    assert world.listed() == {ledger}

    assert world.truncate(20) == 20
    # A commit may have come a little after its time.
    world.now_ms += 7 * DAY_MS
    assert world.reap().condemned == ()
    world.now_ms += COMMIT_TIME_LAG_MS
    assert [one.reason for one in world.reap().condemned] == [Reason.APPLICATION_IDLE]
    application = world.application()
    assert application is not None
    assert dict(application.in_use) == {}
    registration = world.registration(ledger)
    assert registration is not None
    assert registration.last_committed_entry == 19
    with pytest.raises(LedgerRefusedError, match="about to be deleted"):
        world.commit(2, (ledger, 20, 29))
    world.now_ms += HOUR_MS
    assert world.reap().deleted == (ledger,)
    with pytest.raises(LedgerRefusedError, match="not registered"):
        world.commit(2, (ledger, 20, 29))


def test_l3_a_truncated_ledger_that_left_those_in_use_is_condemned_and_then_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bk_spark.log.core.applications.IN_USE_KEPT", 0)
    world = ReapWorld()
    idle, busy = world.ledger(), world.ledger()
    world.commit(0, (idle, 0, 9))
    world.commit(1, (busy, 0, 9))
    world.commit(2, (busy, 10, 19))
    world.truncate(10)
    assert [(one.ledger_id, one.reason) for one in world.reap().condemned] == [(idle, Reason.DROPPED)]
    with pytest.raises(LedgerRefusedError, match="about to be deleted"):
        world.commit(3, (idle, 10, 19))


def test_ledgers_that_are_still_in_part_of_the_list_stay() -> None:
    world = ReapWorld()
    first, second = world.ledger(), world.ledger()
    world.commit(0, (first, 0, 9), (second, 0, 9))
    world.commit(1, (first, 10, 19))
    assert world.truncate(20) == 20
    world.commit(2, (world.ledger(run="r1"), 0, 9), run="r1")
    assert [one.ledger_id for one in world.reap().condemned] == [second]


def test_an_idle_application_that_wakes_before_its_ledger_is_condemned_keeps_it() -> None:
    """An empty batch changes the application, and not the head."""
    world = ReapWorld()
    ledger = world.ledger()
    world.commit(0, (ledger, 0, 9))
    world.truncate(10)
    world.now_ms += 8 * DAY_MS
    reaper = world.reaping()
    reaper.to(Transact)
    world.commit(1)
    assert reaper.finish().condemned == ()
    world.commit(2, (ledger, 10, 19))


def test_the_application_that_was_read_is_part_of_each_transaction() -> None:
    world, _, _ = retired_world()
    for _ in range(2):
        machine = world.reaping()
        machine.finish()
        (operations,) = machine.transactions()
        assert CheckOp(world.paths.app("app"), 1) in operations
        world.now_ms += 2 * HOUR_MS


def test_a_deletion_decides_for_itself() -> None:
    """Asked for by mistake, it leaves what is not condemned, condemned just now, in the list, in use, or not closed."""
    world, kept, condemned = retired_world()
    world.reap()
    fresh = world.ledger()
    in_use = world.ledger(run="r1")
    world.commit(2, (in_use, 0, 9), run="r1")
    view = world.machine(view_steps(world.paths)).finish()

    def delete(run: str, ledger_id: int, *, closed: bool = True) -> tuple[int, ...]:
        change = DeleteLedgers(
            world.paths,
            view,
            Run("app", run),
            [ledger_id],
            frozenset([ledger_id] if closed else ()),
            ledger_path,
            ReapLimits(),
        )
        return world.machine(change_steps(change, world.clock)).finish()

    assert delete("r0", condemned) == (), "in its grace"
    world.now_ms += 2 * HOUR_MS
    world.ledgers.all[fresh].fenced = True
    assert delete("r0", fresh) == ()
    assert delete("r0", kept) == ()
    assert delete("r1", in_use) == ()
    assert delete("r0", condemned, closed=False) == ()
    # These cannot be: something else would have to be wrong already.
    world.zk.on_change = lambda changes: None
    for run, ledger_id in (("r0", kept), ("r1", in_use)):
        data = encode_registration(LedgerRegistration(condemned=True))
        world.zk.transact([SetOp(world.paths.registration("app", run, ledger_id), data, -1)])
        world.now_ms += 2 * HOUR_MS
        assert delete(run, ledger_id) == ()
    assert world.reap().deleted == (condemned,)
    assert delete("r0", condemned) == (condemned,), "gone already"


# --- against commits ---


def test_l2_the_reaper_is_stopped_anywhere_while_a_zombie_commits_what_it_is_about_to_collect() -> None:
    """Run r0 is not retired, only old; it wakes and commits the ledger."""
    committed = 0

    def make() -> tuple[ReapWorld, Machine[ReapReport]]:
        world = ReapWorld()
        world.ledger()
        world.ledger()
        world.now_ms += 8 * DAY_MS
        return world, world.reaping()

    def wake(world: ReapWorld) -> None:
        nonlocal committed
        ledger = 101
        if world.is_condemned(ledger):
            with pytest.raises(LedgerRefusedError):
                world.commit(0, (ledger, 0, 9))
        else:
            world.commit(0, (ledger, 0, 9))
            committed += 1
        world.now_ms += 3 * HOUR_MS

    places = paused_everywhere(make, wake)
    assert 5 < committed < places


def test_l2_a_zombie_is_stopped_anywhere_in_its_commit_while_the_reaper_does_all_its_work() -> None:
    """Hours pass before each of the steps of the commit; rounds of the reaper in between."""
    outcomes = set()
    place = 0
    while True:
        world = ReapWorld()
        orphan = world.ledger()
        world.now_ms += 8 * DAY_MS
        zombie = world.committing(world.request(0, (orphan, 0, 9)))
        if not zombie.steps(place):
            break
        world.reap_for(3 * HOUR_MS)
        error = zombie.end()
        assert error is None or isinstance(error, LedgerRefusedError)
        assert world.ledgers.exists(orphan) == (error is None)
        outcomes.add(type(error))
        world.reap_for(3 * HOUR_MS)
        place += 1
    assert outcomes == {LedgerRefusedError}
    assert place == 4


def test_l2_a_commit_that_read_a_ledger_before_it_was_condemned_is_refused() -> None:
    """Hours before the ledger is deleted, and though nothing else has changed."""
    world = ReapWorld()
    orphan = world.ledger()
    world.now_ms += 8 * DAY_MS
    zombie = world.committing(world.request(0, (orphan, 0, 9)))
    zombie.to(Transact)
    assert [one.ledger_id for one in world.reap().condemned] == [orphan]
    assert isinstance(zombie.end(), LedgerRefusedError)


def test_l2_a_new_run_retires_the_old_one_whose_commit_is_stopped_anywhere() -> None:
    place = 0
    while True:
        world = ReapWorld()
        first, second = world.ledger(), world.ledger()
        world.commit(0, (first, 0, 9))
        zombie = world.committing(world.request(1, (second, 0, 9)))
        if not zombie.steps(place):
            break
        world.commit(1, (world.ledger(run="r1"), 0, 9), run="r1")
        world.reap_for(3 * HOUR_MS)
        # Stopped between reading its application and the ledger, it finds the ledger gone.
        assert isinstance(zombie.end(), RunRetiredError | LedgerRefusedError)
        assert world.ledgers.exists(first)
        assert not world.ledgers.exists(second)
        place += 1
    assert place == 4


@pytest.mark.parametrize("fate", FATES)
def test_l4_every_reply_of_the_reaper_is_lost_in_turn(fate: str) -> None:
    for number in range(1, 40):
        world, kept, orphan = retired_world()
        lost = 0
        machines = []
        for _ in range(14):
            machine = world.reaping()
            machines.append(machine)
            while not machine.ended:
                lost += isinstance(machine.next_action, Transact)
                machine.step(fate if lost == number else "")
                lost += 1000 if lost == number else 0
            world.now_ms += 10 * MINUTE_MS
        assert not world.ledgers.exists(orphan)
        assert world.registration(orphan) is None
        assert world.ledgers.exists(kept)
        for machine in machines:
            machine.deliver_late()
        if lost < 1000:
            assert number >= 3
            return
    raise AssertionError


def test_l4_a_condemnation_that_arrives_hours_late_does_not_hold_if_the_ledger_was_committed() -> None:
    world = ReapWorld()
    ledger = world.ledger()
    world.now_ms += 8 * DAY_MS
    reaper = world.reaping()
    reaper.to(Transact)
    reaper.step("late")
    world.commit(0, (ledger, 0, 9))
    world.now_ms += 3 * HOUR_MS
    assert reaper.deliver_late() == 0
    reaper.end()
    assert not world.is_condemned(ledger)
    assert reaper.result is not None
    assert reaper.result.condemned == ()


def test_a_deletion_that_arrives_late_finds_the_ledger_gone_and_does_nothing() -> None:
    world, _, orphan = retired_world()
    world.reap()
    world.now_ms += 2 * HOUR_MS
    reaper = world.reaping()
    reaper.to(Transact)
    reaper.step("late")
    assert world.reap().deleted == (orphan,)
    assert reaper.deliver_late() == 0
    reaper.end()
    assert reaper.result is not None
    assert reaper.result.deleted == (orphan,), "it is gone, whoever did it"


def test_two_reapers_in_every_order_do_each_ledger_once() -> None:
    def make() -> tuple[ReapWorld, Machine[ReapReport]]:
        world, _, _ = retired_world()
        world.ledger(run="r0")
        world.reap()
        world.ledger(run="r0")
        world.now_ms += 2 * HOUR_MS
        return world, world.reaping()

    def other(world: ReapWorld) -> None:
        world.reap()
        world.now_ms += 2 * HOUR_MS
        world.reap()
        assert sum(1 for _ in world.registrations()) == 2

    assert paused_everywhere(make, other) > 10


# --- against log writers, and moves of pages into an index ledger ---

OWNER = Owner("6f0e", "host", 1, START_MS)


def rolling(world: ReapWorld) -> Machine[TailPlace]:
    """A log writer opens the tail, writes, and rolls it twice."""

    def steps() -> Steps[TailPlace]:
        place = yield from open_steps(world.paths, OWNER, world.clock)
        for _ in range(2):
            ledger = world.ledgers.all[place.ledger_id]
            if not ledger.fenced:
                ledger.entries += [b"entry"] * 10
                ledger.acknowledged += 10
            place = yield from Roll(world.paths, OWNER, place.ledger_id, world.clock).steps()
        return place

    return world.machine(steps())


def test_l1_a_log_writer_is_stopped_anywhere_while_the_reaper_works_for_hours() -> None:
    """Its session is alive or over. It may have to make another ledger; what is listed is never touched."""
    for session_over in (False, True):
        place = 0
        while True:
            world = ReapWorld()
            writer = rolling(world)
            if not writer.steps(place):
                break
            if session_over:
                world.zk.expire(writer.session.session)
            world.reap_for(3 * HOUR_MS)
            error = writer.end()
            assert error is None, error
            world.reap_for(3 * HOUR_MS)
            assert world.head().next_offset == 20
            assert {int(path.rpartition("/")[2]) for path in world.registrations()} == world.listed()
            place += 1
        assert place > 20


def test_l1_the_reaper_is_stopped_anywhere_while_a_log_writer_rolls_and_its_log_is_truncated() -> None:
    def make() -> tuple[ReapWorld, Machine[ReapReport]]:
        world = ReapWorld()
        world.ledger_at(WRITERS, "6f0e", entries=0)
        rolling(world).finish()
        world.truncate(10)
        world.now_ms += HOUR_MS
        world.reap()
        world.truncate(20)
        world.now_ms += HOUR_MS
        return world, world.reaping()

    def roll(world: ReapWorld) -> None:
        machine = world.machine(Roll(world.paths, OWNER, max(world.listed()), world.clock).steps())
        machine.finish()
        world.truncate(world.head().next_offset)
        world.now_ms += HOUR_MS

    assert paused_everywhere(make, roll) > 10


def test_the_next_ledger_of_the_log_writer_at_the_tail_is_left_to_it() -> None:
    world = ReapWorld()
    place = world.machine(open_steps(world.paths, OWNER, world.clock)).finish()
    following, left_over = world.ledger_at(WRITERS, OWNER.writer_id), world.ledger_at(WRITERS, "gone")
    world.now_ms += 10 * MINUTE_MS
    assert world.reap().condemned == (), "they may be listed any moment"
    world.now_ms += 10 * MINUTE_MS
    assert [one.ledger_id for one in world.reap().condemned] == [left_over]
    assert world.listed() == {place.ledger_id}
    world.now_ms += 7 * DAY_MS
    assert [one.ledger_id for one in world.reap().condemned] == [following]


def indexed_world() -> ReapWorld:
    """About one segment in each page; the first pages are in an index ledger."""
    world = ReapWorld()
    for batch in range(6):
        world.commit(batch, (world.ledger(), 0, 9))
    world.machine(moving(world, "first")).finish()
    for batch in range(6, 10):
        world.commit(batch, (world.ledger(), 0, 9))
    return world


def moving(world: ReapWorld, name: str) -> Steps[MoveReport]:
    return move_steps(world.paths, world.clock, max_znode_pages=2, keep_pages=1, new_id=lambda: name)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bk_spark.log.formats.page.MAX_PAGE_BYTES", 50)
    monkeypatch.setattr("bk_spark.log.formats.page._FULL_BYTES", 40)


@pytest.mark.usefixtures("small_pages")
def test_ledgers_that_only_the_index_leads_to_stay_and_so_does_the_index() -> None:
    world = indexed_world()
    head = world.head()
    assert head.index is not None
    world.commit(10, (world.ledger(run="r1"), 0, 9), run="r1")
    world.now_ms += 8 * DAY_MS
    report = world.reap()
    assert (report.condemned, report.failed) == ((), ())
    world.truncate(20)
    world.reap_for(2 * HOUR_MS)
    assert world.ledgers.exists(head.index.ledger_id)
    assert sum(1 for _ in world.registrations()) == len(world.listed()) + 1
    world.truncate(head.index.end_offset)
    world.reap_for(2 * HOUR_MS)
    assert not world.ledgers.exists(head.index.ledger_id)
    assert sum(1 for _ in world.registrations()) == len(world.listed())


@pytest.mark.usefixtures("small_pages")
def test_a_move_of_pages_is_stopped_anywhere_while_the_reaper_works_for_hours() -> None:
    place = 0
    while True:
        world = indexed_world()
        mover = world.machine(moving(world, "second"))
        if not mover.steps(place):
            break
        world.truncate(10)
        world.reap_for(3 * HOUR_MS)
        mover.end()
        world.reap_for(3 * HOUR_MS)
        assert [segment.base_offset for segment in world.segments()] == list(range(10, 100, 10))
        place += 1
    assert place == 8


@pytest.mark.usefixtures("small_pages")
def test_the_reaper_is_stopped_anywhere_while_pages_move_and_the_log_is_truncated() -> None:
    def make() -> tuple[ReapWorld, Machine[ReapReport]]:
        world = indexed_world()
        world.now_ms += HOUR_MS
        world.truncate(20)
        world.reap()
        world.now_ms += 2 * HOUR_MS
        return world, world.reaping()

    def move(world: ReapWorld) -> None:
        world.machine(moving(world, "second")).finish()
        world.truncate(40)
        world.commit(10, (world.ledger(), 0, 9))
        world.now_ms += HOUR_MS

    assert paused_everywhere(make, move) > 10


@pytest.mark.usefixtures("small_pages")
def test_pages_that_the_list_left_behind_are_removed() -> None:
    world = indexed_world()
    world.truncate(80)
    world.reap()
    first = world.head().first_page
    assert first > 5
    names = world.zk.children(world.paths.pages)
    assert names is not None
    assert min(map(int, names)) == first


def test_a_page_left_beyond_the_tail_is_removed_and_a_commit_that_prepared_it_starts_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bk_spark.log.core.append.MAX_INLINE_PAGES", 0)
    monkeypatch.setattr("bk_spark.log.formats.page.MAX_PAGE_BYTES", 50)
    monkeypatch.setattr("bk_spark.log.formats.page._FULL_BYTES", 40)
    world = ReapWorld()
    ledgers = [world.ledger() for _ in range(4)]
    committer = world.committing(world.request(0, *((ledger, 0, 9) for ledger in ledgers)))
    committer.to(Transact, 2)
    assert len(world.zk.children(world.paths.pages) or ()) > 1
    world.reap()
    assert len(world.zk.children(world.paths.pages) or ()) > 1, "it may be at work"
    world.now_ms += 2 * HOUR_MS
    assert len(world.reap().removed) > 0
    assert world.zk.children(world.paths.pages) == ("0000000000",)
    committer.finish()
    assert [segment.ledger_id for segment in world.segments()] == ledgers


def test_what_tells_of_an_appended_ledger_goes_long_after_it_left_the_list() -> None:
    world = ReapWorld()
    world.ensure(world.paths.appended)
    listed, left = (world.paths.appended_ledger(ledger_id) for ledger_id in (7, 8))
    own = world.ledger()
    world.commit(0, (own, 0, 9))
    world.truncate(10)
    world.zk.transact([CreateOp(left, encode_appended(Appended(b"t", 0)))])
    world.zk.transact([CreateOp(listed, encode_appended(Appended(b"u", 10)))])
    world.now_ms += 6 * DAY_MS
    assert world.reap().removed == ()
    world.now_ms += DAY_MS
    assert world.reap().removed == (left,)
    assert world.zk.read(listed) is not None


# --- znodes that are made again ---


def test_a_run_deleted_and_made_again_does_not_let_an_old_commit_through() -> None:
    """The commit holds version 0 of the run's znode. It is condemned under, deleted, and made again: version 0."""
    world = ReapWorld()
    other = world.ledger(app="other", run="x")
    orphan = world.ledger()
    world.now_ms += 8 * DAY_MS
    zombie = world.committing(world.request(0, (orphan, 0, 9)))
    zombie.to(Transact)
    held = [op for op in zombie.next_action.operations if isinstance(op, CheckOp)]  # type: ignore[union-attr]
    run_path = world.paths.run("app", "r0")
    assert CheckOp(run_path, 0) in held

    world.reap_for(2 * HOUR_MS)
    assert not world.ledgers.exists(orphan)
    world.now_ms += 8 * DAY_MS
    report = world.reap()
    assert run_path in report.removed
    assert world.paths.runs_at("app") in report.removed
    again = world.ledger()
    run = world.zk.read(run_path)
    assert run is not None
    assert run.version == 0
    assert isinstance(zombie.end(), LedgerRefusedError)
    assert world.listed() == set()
    assert world.ledgers.exists(again)
    del other


def test_whoever_removes_a_run_or_an_application_or_a_page_beyond_the_tail_writes_the_head() -> None:
    world, _, orphan = retired_world()
    world.commit(0, (world.ledger(app="uuid", run="b"), 0, 9), app="uuid", run="b", anonymous=True)
    world.zk.transact([CreateOp(world.paths.page(7), b"left over")])
    world.commit(2, (world.ledger(run="r2"), 0, 9), run="r2", overwrite=True)
    world.reap()
    world.now_ms += 8 * DAY_MS
    machine = world.reaping()
    machine.end()
    assert machine.result is not None
    expected = {world.paths.page(7)}
    assert expected <= set(machine.result.removed)
    world.now_ms += 8 * DAY_MS
    second = world.reaping()
    second.end()
    seen = set()
    for operations in (*machine.transactions(), *second.transactions()):
        for op in operations:
            versioned = (world.paths.ledgers, world.paths.apps, world.paths.pages)
            if type(op).__name__ == "DeleteOp" and op.path.startswith(versioned) and op.path.count("/") <= 5:
                assert any(isinstance(one, SetOp) and one.path == world.paths.head for one in operations)
                seen.add(op.path)
    assert {world.paths.page(7), world.paths.run("app", "r0"), world.paths.app("uuid")} <= seen
    del orphan


def test_a_new_run_keeps_its_empty_znode_while_it_makes_its_first_ledger() -> None:
    world = ReapWorld()
    world.ensure(world.paths.runs_at("app"), world.paths.run("app", "r0"))
    world.reap_for(5 * HOUR_MS)
    assert world.zk.read(world.paths.run("app", "r0")) is not None
    # The one that commits keeps it however long it is idle.
    ledger = world.ledger()
    world.commit(0, (ledger, 0, 9))
    world.commit(1, overwrite=True)
    world.now_ms += 7 * DAY_MS
    world.reap_for(2 * HOUR_MS)
    assert not world.ledgers.exists(ledger)
    world.now_ms += 30 * DAY_MS
    world.reap()
    assert world.zk.read(world.paths.run("app", "r0")) is not None


@pytest.mark.parametrize("again", [False, True])
def test_l5_the_log_is_deleted_while_the_reaper_is_stopped_anywhere(again: bool) -> None:
    """And made again, with a ledger of its own under the same id, application and run."""

    def make() -> tuple[ReapWorld, Machine[ReapReport]]:
        world, _, _ = retired_world()
        world.reap()
        world.ledger(run="r0")
        world.now_ms += 2 * HOUR_MS
        return world, world.reaping()

    def delete(world: ReapWorld) -> None:
        delete_all(world)
        if again:
            world.make_log()
            # The same names and versions as in the old log; the registration is condemned by nobody.
            world.ensure(world.paths.runs_at("app"), world.paths.run("app", "r0"))
            ids = range(101, 105)
            registrations = [world.paths.registration("app", "r0", ledger_id) for ledger_id in ids]
            data = encode_registration(LedgerRegistration())
            world.zk.transact([CreateOp(path, data) for path in registrations])

    place = 0
    while True:
        world, machine = make()
        if not machine.steps(place):
            break
        delete(world)
        before = {path: world.zk.read(path) for path in world.all_paths()}
        error = machine.end()
        if error is not None:
            # A server that is behind shows the time between the two logs.
            assert isinstance(error, LogReplacedError | NoSuchLogError if again else NoSuchLogError)
        # What was condemned while there was a log may still be fenced.
        assert before.keys() == set(world.all_paths())
        assert all(world.zk.read(path) == znode for path, znode in before.items() if path.startswith("/logs/"))
        place += 1
    assert place > 10


def test_l5_a_condemnation_for_the_old_log_does_not_hold_for_the_new_one_whose_versions_are_the_same() -> None:
    world = ReapWorld()
    ledger = world.ledger()
    world.now_ms += 8 * DAY_MS
    reaper = world.reaping()
    reaper.to(Transact)
    old = world.paths
    delete_all(world)
    world.make_log()
    run_path, path = world.paths.run("app", "r0"), world.paths.registration("app", "r0", ledger)
    world.ensure(world.paths.runs_at("app"), run_path)
    world.zk.transact([CreateOp(path, encode_registration(LedgerRegistration()))])
    action = reaper.next_action
    assert isinstance(action, Transact)
    for op in action.operations:
        znode = world.zk.read(op.path)
        if op.path != old.identity:
            assert znode is not None
            assert znode.version == getattr(op, "version", None), "only the identity tells the two logs apart"
    assert isinstance(reaper.end(), LogReplacedError)
    znode = world.zk.read(path)
    assert znode is not None
    assert znode.version == 0


def delete_all(world: ReapWorld) -> None:
    """The log is gone without a trace; its ledgers stay."""
    from bk_spark.protocol.metadata.znodes import DeleteOp

    below = [path for path in world.all_paths() if path.startswith(world.paths.head)]
    world.zk.transact([DeleteOp(world.paths.identity)])
    for path in sorted(below, key=len, reverse=True):
        if path != world.paths.identity:
            world.zk.on_change = lambda changes: None
            world.zk.transact([DeleteOp(path)])


# --- applications without a name ---


def test_batch_writes_without_a_name_are_looked_at_a_bounded_number_at_a_time() -> None:
    """And each has its turn in some round."""
    world = ReapWorld()
    limits = replace(LIMITS, max_applications=4)
    for number in range(12):
        world.commit(
            0, (world.ledger(app=f"uuid{number}", run="b"), 0, 9), app=f"uuid{number}", run="b", anonymous=True
        )
    world.now_ms += 8 * DAY_MS
    apps = f"{world.paths.apps}/"
    rounds = 0
    while world.zk.children(world.paths.apps):
        reaper = world.reaping(limits)
        report = reaper.finish()
        read = {path for one in reaper.done if isinstance(one, Read) for path in one.paths if path.startswith(apps)}
        assert report.failed == ()
        assert len(report.removed) == len(read) == 4, "of the others not even the znode is read"
        rounds += 1
        assert report.complete == (rounds == 3)
    assert rounds == 3


def test_what_is_closed_is_not_opened_to_be_condemned_and_deleted() -> None:
    world, _, orphan = retired_world()
    closing = world.machine(_close(orphan))
    closing.finish()
    for _ in range(2):
        reaper = world.reaping()
        report = reaper.finish()
        assert not any(isinstance(one, RecoverLedger) for one in reaper.done)
        world.now_ms += 2 * 60 * MINUTE_MS
    assert report.deleted == (orphan,)


def _close(ledger_id: int) -> Steps[bool]:
    yield RecoverLedger(ledger_id)
    return True


def anonymous_world() -> tuple[ReapWorld, int, int]:
    world = ReapWorld()
    listed, orphan = world.ledger(app="uuid", run="b"), world.ledger(app="uuid", run="b")
    world.commit(0, (listed, 0, 9), app="uuid", run="b", anonymous=True)
    return world, listed, orphan


def test_an_application_without_a_name_is_forgotten_and_its_batch_still_refused() -> None:
    world, listed, orphan = anonymous_world()
    assert [one.ledger_id for one in world.reap().condemned] == [orphan]
    world.now_ms += 7 * DAY_MS
    report = world.reap()
    assert world.paths.app("uuid") in report.removed
    assert world.application("uuid") is None
    registration = world.registration(listed)
    assert registration is not None
    assert registration.last_committed_entry == 9
    with pytest.raises(LedgerRefusedError, match="in the log already"):
        world.commit(0, (listed, 0, 9), app="uuid", run="b", anonymous=True)
    assert world.ledgers.exists(listed)

    world.commit(0, (world.ledger(), 0, 9), overwrite=True)
    world.reap_for(2 * HOUR_MS)
    assert not world.ledgers.exists(listed)
    with pytest.raises(LedgerRefusedError, match="no ledger is registered|not registered"):
        world.commit(0, (listed, 0, 9), app="uuid", run="b", anonymous=True)
    world.now_ms += 8 * DAY_MS
    assert world.paths.runs_at("uuid") in world.reap().removed


def test_l4_a_batch_write_that_sleeps_over_the_end_of_its_application_appends_nothing_twice() -> None:
    """Its transaction took effect, the reply was lost, and it sleeps for a week before each of its next steps."""
    for slept in range(6):
        world = ReapWorld()
        ledger = world.ledger(app="uuid", run="b")
        writer = world.committing(world.request(0, (ledger, 0, 9), app="uuid", run="b", anonymous=True))
        writer.to(Transact)
        writer.step("applied")
        writer.steps(slept)
        world.now_ms += 8 * DAY_MS
        world.reap_for(2 * HOUR_MS)
        assert world.application("uuid") is None
        error = writer.end()
        assert error is None or isinstance(error, LedgerRefusedError)
        assert [segment.ledger_id for segment in world.segments()] == [ledger]


def test_an_application_is_not_forgotten_while_a_ledger_of_it_is_undecided() -> None:
    world, _, orphan = anonymous_world()
    world.now_ms += 8 * DAY_MS
    limits = ReapLimits(max_ledgers=0)
    assert world.paths.app("uuid") not in world.reap(limits).removed
    assert not world.is_condemned(orphan)
    assert world.paths.app("uuid") in world.reap().removed


# --- what is not sure ---


def test_metadata_that_were_not_made_with_the_registration_are_left_alone() -> None:
    """Another cluster's, or of a ledger made again under the same id by somebody else."""
    from bk_spark.protocol.metadata.znodes import DeleteOp

    world, _, orphan = retired_world()
    path = ledger_path(orphan)
    znode = world.zk.read(path)
    assert znode is not None
    world.zk.on_change = lambda changes: None
    world.zk.transact([DeleteOp(path)])
    world.zk.transact([CreateOp(path, znode.data)])
    machine = world.reaping()
    machine.end()
    world.now_ms += 2 * HOUR_MS
    later = world.reaping()
    later.end()
    assert later.result is not None
    assert later.result.deleted == ()
    assert "was not made with this registration" in later.result.failed[0][1]
    assert world.ledgers.exists(orphan)
    assert not [one for one in (*machine.done, *later.done) if isinstance(one, RecoverLedger)]


def test_a_registration_whose_ledger_was_deleted_by_others_goes_without_recovery() -> None:
    from bk_spark.protocol.metadata.znodes import DeleteOp

    world, _, orphan = retired_world()
    world.zk.on_change = lambda changes: None
    world.zk.transact([DeleteOp(ledger_path(orphan))])
    world.reap()
    world.now_ms += 2 * HOUR_MS
    assert world.reap().deleted == (orphan,)
    assert world.registration(orphan) is None


def test_a_ledger_that_cannot_be_recovered_is_not_deleted() -> None:
    world, _, orphan = retired_world()
    report = bookies_away(world)
    assert [one.ledger_id for one in report.condemned] == [orphan]
    world.now_ms += 2 * HOUR_MS
    report = bookies_away(world)
    assert (report.deleted, report.waiting) == ((), (orphan,))
    assert "could not be closed" in report.failed[0][1]
    assert not report.complete
    assert world.reap().deleted == (orphan,)


def test_a_round_stops_recovering_after_a_bounded_number_of_failures() -> None:
    """Each may have waited for bookies that do not answer."""
    world, _, orphan = retired_world()
    orphans = [orphan, *(world.ledger() for _ in range(9))]
    report = bookies_away(world, replace(LIMITS, max_failures=4))
    assert sorted(one.ledger_id for one in report.condemned) == orphans
    assert (len(report.failed), report.complete) == (4, False)


def test_ledgers_whose_ids_bookies_know_with_another_password_do_not_stay_nor_stop_a_round() -> None:
    """Whoever may write to bookies may have used the ids of as many leftovers as they like."""
    world, _, orphan = retired_world()
    refused = [world.ledger(entries=0) for _ in range(12)]
    for ledger_id in refused:
        world.ledgers.all[ledger_id].used_before = True
    behind = world.ledger()
    limits = replace(LIMITS, max_failures=4)
    report = world.reap(limits)
    assert sorted(one.ledger_id for one in report.condemned) == [orphan, *refused, behind]
    assert (sorted(report.refused), report.failed, report.complete) == (refused, (), True)
    assert world.ledgers.all[behind].fenced
    world.now_ms += 2 * HOUR_MS
    report = world.reap(limits)
    assert sorted(report.deleted) == [orphan, *refused, behind]
    assert world.reap(limits).refused == ()


def bookies_away(world: ReapWorld, limits: ReapLimits = LIMITS) -> ReapReport:
    machine = world.reaping(limits)
    while not machine.ended:
        machine.session.weather.ledgers = 2.0 if isinstance(machine.next_action, RecoverLedger) else 0.0
        machine.step()
    assert machine.result is not None
    return machine.result


def test_a_registration_that_is_not_understood_is_left_and_the_others_are_not() -> None:
    world, _, orphan = retired_world()
    strange = world.ledger()
    path = world.paths.registration("app", "r0", strange)
    world.zk.transact([SetOp(path, b"\x08\x07", -1)])
    report = world.reap()
    assert [one.ledger_id for one in report.condemned] == [orphan]
    assert [what for what, _ in report.failed] == [path]
    assert "format version 7" in report.failed[0][1]


def test_what_a_later_release_registers_is_left_alone() -> None:
    world = ReapWorld()
    strange = world.ledger_at("+later", "x")
    world.ensure(f"{world.paths.run_at('+later', 'x')}/name")
    world.now_ms += 100 * DAY_MS
    report = world.reap()
    assert (report.condemned, report.removed) == ((), ())
    assert world.ledgers.exists(strange)


def test_without_a_whole_list_nothing_is_done() -> None:
    from bk_spark.protocol.metadata.znodes import DeleteOp

    world, _, orphan = retired_world()
    page = world.paths.page(0)
    world.zk.on_change = lambda changes: None
    world.zk.transact([DeleteOp(page)])
    machine = world.reaping()
    assert isinstance(machine.end(), MetadataFormatError)
    assert machine.transactions() == []
    assert not world.is_condemned(orphan)


def test_an_application_that_is_not_understood_keeps_its_ledgers() -> None:
    world, _, orphan = retired_world()
    world.zk.transact([SetOp(world.paths.app("app"), b"\x08\x07", -1)])
    world.now_ms += 8 * DAY_MS
    report = world.reap()
    assert report.condemned == ()
    assert any("format version 7" in why for _, why in report.failed)
    assert not world.is_condemned(orphan)


def test_a_log_whose_head_changes_all_the_time_is_left_for_another_round() -> None:
    world, _, orphan = retired_world()
    writer = world.ledger(app="busy", run="b", entries=10_000)
    reaper = world.reaping()
    batch = 0
    while not reaper.ended:
        if isinstance(reaper.next_action, Transact):
            # Others that do not wait for anybody.
            world.commit(batch, (writer, 10 * batch, 10 * batch + 9), app="busy", run="b")
            world.now_ms += 7_000
            batch += 1
        reaper.step()
    assert batch >= MIN_CONFLICTS
    assert reaper.result is not None
    assert reaper.result.condemned == ()
    assert "changed by others" in reaper.result.failed[0][1]
    assert [one.ledger_id for one in world.reap().condemned] == [orphan]


# --- bounds ---


def test_many_registrations_are_paged_through_in_bounded_steps() -> None:
    world = ReapWorld()
    kept = world.ledger()
    world.commit(0, (kept, 0, 9))
    orphans = [world.ledger(entries=0) for _ in range(600)]
    world.commit(1, (world.ledger(run="r1"), 0, 9), run="r1")
    limits = ReapLimits(max_ledgers=280)
    condemned = 0
    for _ in range(3):
        machine = world.reaping(limits)
        machine.end()
        assert machine.result is not None
        assert len(machine.result.condemned) <= 280
        assert machine.result.complete == (condemned + len(machine.result.condemned) == 600)
        condemned += len(machine.result.condemned)
        for action in machine.done:
            # Commits wait while ZooKeeper works on a transaction of the reaper.
            assert len(getattr(action, "paths", ())) <= 2 * 64
            assert len(getattr(action, "operations", ())) <= 3 * 64 + 5
    assert condemned == 600
    world.now_ms += 2 * HOUR_MS
    deleted = [len(world.reap(limits).deleted) for _ in range(4)]
    assert deleted == [280, 280, 40, 0]
    assert all(not world.ledgers.exists(ledger_id) for ledger_id in orphans)
    assert world.ledgers.exists(kept)


def test_many_runs_are_looked_at_in_turns() -> None:
    world = ReapWorld()
    orphans = []
    for number in range(40):
        orphans.append(world.ledger(app=f"app{number}", run="r0", entries=0))
        world.commit(0, app=f"app{number}", run="r0")
        world.commit(1, app=f"app{number}", run="r1")
    limits = ReapLimits(max_runs=10)
    assert not world.reap(limits).complete
    for _ in range(40):
        world.reap(limits)
    assert all(map(world.is_condemned, orphans))


def test_a_dry_run_tells_and_does_nothing() -> None:
    world, _, orphan = retired_world()
    machine = world.reaping(dry_run=True)
    machine.end()
    assert machine.result is not None
    assert machine.result.dry_run
    assert [one.ledger_id for one in machine.result.condemned] == [orphan]
    assert not world.is_condemned(orphan)
    world.reap()
    world.now_ms += 2 * HOUR_MS
    later = world.reaping(dry_run=True)
    later.end()
    assert later.result is not None
    assert later.result.deleted == (orphan,)
    assert world.ledgers.exists(orphan)
    assert not [one for one in (*machine.done, *later.done) if isinstance(one, Transact | RecoverLedger)]


# --- whose turn it is ---


def claiming(world: ReapWorld, token: bytes, *, force: bool = False) -> Machine[bool]:
    return world.machine(change_steps(ClaimMaintenance(world.paths, token, force=force), world.clock))


def test_one_of_two_that_come_at_once_does_maintenance() -> None:
    place = 0
    while True:
        world = ReapWorld()
        first = claiming(world, b"1")
        if not first.steps(place):
            break
        second = claiming(world, b"2").finish()
        assert second != first.finish()
        place += 1
    assert place == 2
    assert claiming(world, b"3", force=True).finish()
    begun_ms = world.now_ms
    world.now_ms = begun_ms + INTERVAL_MS - 100
    assert not claiming(world, b"4").finish()
    world.now_ms = begun_ms + INTERVAL_MS
    assert claiming(world, b"5").finish()


@pytest.mark.parametrize("fate", FATES)
def test_l4_whose_reply_was_lost_knows_that_it_is_its_turn(fate: str) -> None:
    world = ReapWorld()
    first = claiming(world, b"1")
    first.to(Transact)
    first.step(fate)
    assert first.finish()
    assert not claiming(world, b"2").finish()
    assert first.deliver_late() == 0
