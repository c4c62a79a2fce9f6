"""Named scenarios of logs, L1 to L5, each in every window where it can happen.

The watch (invariants.py) checks everything after every change; the tests assert the final state.
"""

from __future__ import annotations

from contextlib import ExitStack
from unittest.mock import patch

import pytest

from bk_spark.log.core import applications
from bk_spark.log.core.plan import CommitStatus
from bk_spark.log.core.steps import Transact
from bk_spark.protocol.errors import LedgerRefusedError, LogReplacedError, NoSuchLogError
from tests.simulation.logs import mutants
from tests.simulation.logs.play import (
    WINDOWS,
    all_there,
    condemns,
    delete_and_make_again,
    go,
    go_until,
    maintain,
    new_world,
    old_run_with_uncommitted_ledgers,
    start_query,
    start_run,
    steps_of,
    truncate_all,
)
from tests.simulation.logs.readers import LogReader
from tests.simulation.logs.streaming import Query
from tests.simulation.logs.world import World
from tests.simulation.logs.writers import LogWriter
from tests.simulation.logs.zookeeper import FATES
from tests.simulation.outcomes import InvariantError

# --- L1 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("take_over", [False, True])
def test_l1_two_log_writers_and_a_session_that_expires_in_every_window(take_over: bool) -> None:
    """The first writer's session ends after each number of its actions; another opens, rolls and closes; then the
    first continues. Everything reported to it as written is in the log, and it learns that it has lost its place."""
    fenced = closed = windows = 0
    for window in range(0, 200, 2):
        world = new_world()
        first = LogWriter(world, "first", world.paths, appends=6, roll_entries=2)
        second = LogWriter(world, "second", world.paths, appends=5, roll_entries=2, take_over=take_over)
        world.add(first)
        world.add(second)
        for _ in range(window):
            if first.runnable:
                world.step(first)
        ended_before = bool(first.ended)
        if not ended_before:
            if not take_over:
                world.expire(first.session)
            windows += 1
        world.run(second)
        assert second.endings == ["close"], window
        world.run(first)
        assert first.endings in (["close"], ["fenced"]), window
        fenced += first.endings == ["fenced"]
        closed += first.endings == ["close"]
        log = world.watch.logs[world.paths.log_id]
        assert log.open_tail is None
        assert not log.promised
        assert len(second.acknowledged) == 5
        if ended_before:
            break
    else:
        pytest.fail("the windows do not end")
    assert windows > 20
    assert fenced > 10
    assert closed >= 1


def test_l1_writers_take_over_from_one_another_in_any_order() -> None:
    """Three writers, each of which takes the tail from its holder, in 30 random orders."""
    fenced = 0
    for number in range(30):
        world = World(f"take-overs {number}")
        world.weather.metadata = 0.05
        writers = [
            LogWriter(world, f"w{n}", world.paths, appends=8, roll_entries=3, take_over=True, lives=2) for n in range(3)
        ]
        for writer in writers:
            world.add(writer)
        world.run()
        fenced += sum(writer.endings.count("fenced") for writer in writers)
        assert sum(len(writer.acknowledged) for writer in writers) > 0
    assert fenced > 30


# --- L2 ---------------------------------------------------------------------------------------------


def test_l2_the_old_run_commits_before_its_ledgers_are_condemned() -> None:
    world = new_world()
    old, reaper = old_run_with_uncommitted_ledgers(world)
    world.advance(reaper, condemns)
    world.step(old)  # wakes, and its transaction takes effect
    world.run(reaper)
    assert reaper.condemned == 0
    assert go(world, old).ended == "finished"
    maintain(world)
    all_there(world, old.query)


def test_l2_the_old_run_commits_after_its_ledgers_were_condemned() -> None:
    world = new_world()
    old, reaper = old_run_with_uncommitted_ledgers(world)
    world.advance(reaper, condemns)
    world.run(reaper)
    assert reaper.condemned > 0
    assert go(world, old).ended == "failed"
    assert any(isinstance(how, LedgerRefusedError) for _, _, _, how in world.trace)
    assert go(world, start_run(old.query, world)).ended == "finished"
    all_there(world, old.query)


@pytest.mark.parametrize("window", range(0, WINDOWS, 3))
def test_l2_the_old_run_wakes_while_a_new_run_commits_and_recovers_its_ledgers(window: int) -> None:
    world = new_world()
    query = start_query(world, roll_entries=2)
    old = start_run(query, world)
    go_until(world, old, commit=2)
    new = start_run(query, world)
    steps_of(world, new, window)
    go(world, old)
    go(world, new)
    assert {old.ended, new.ended} <= {"finished", "refused"}
    all_there(world, query)
    maintain(world)
    assert world.watch.left_over(world.paths, retired_only=True) == []


def test_l2_who_deletes_before_the_commit_is_caught() -> None:
    caught = 0
    with ExitStack() as stack:
        mutants.old_ledgers_are_deleted_before_the_commit(stack)
        for window in range(0, WINDOWS, 3):
            try:
                test_l2_the_old_run_wakes_while_a_new_run_commits_and_recovers_its_ledgers(window)
            except InvariantError:
                caught += 1
    assert caught > 0


# --- L3 ---------------------------------------------------------------------------------------------


def test_l3_a_ledger_in_use_outlives_the_truncation_of_all_its_segments() -> None:
    """Hours later its worker appends to it, and the next commit lists it."""
    world = new_world()
    query = start_query(world, batches=6, workers=1)
    driver = start_run(query, world)
    go_until(world, driver, commit=3)
    world.step(driver)
    truncate_all(world)
    maintain(world)
    ledgers = set(world.ledgers.all)
    assert all(map(world.ledgers.exists, ledgers))
    assert go(world, driver).ended == "finished"
    assert set(world.ledgers.all) == ledgers, "the worker went on with the ledger it had"
    all_there(world, query)


def test_l3_a_ledger_that_is_not_in_use_is_refused_once_it_is_condemned() -> None:
    """The application has room only for the last batch's ledgers, so a worker's ledger leaves it when a batch does
    not use it. Its segments are truncated while the driver is stopped before a commit that names the ledger again."""
    refused = 0
    for commit in range(2, 11):
        world = new_world()
        query = start_query(world, batches=10)
        with patch.object(applications, "IN_USE_KEPT", 0):
            driver = start_run(query, world)
            go_until(world, driver, commit=commit)
            truncate_all(world)
            maintain(world)
            go(world, driver)
            if driver.ended == "failed":
                errors = [how for _, who, what, how in world.trace if (who, what) == (driver.name, "error")]
                assert all(isinstance(error, LedgerRefusedError) for error in errors)
                refused += 1
                assert go(world, start_run(query, world)).ended == "finished"
        assert query.runs[-1].ended == "finished"
        all_there(world, query)
    assert refused > 0


# --- L4 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("expires", [False, True])
def test_l4_the_reply_to_a_commit_is_lost_and_the_next_server_lags(fate: str, batch: int, expires: bool) -> None:
    """The transaction took effect, or did not, or does so later: the driver syncs and reads, and ends as committed."""
    world = new_world()
    query = start_query(world, batches=5)
    driver = start_run(query, world)
    go_until(world, driver, commit=batch)
    driver.session.next_fate = fate
    world.step(driver)
    if expires:
        world.expire(driver.session)
    steps_of(world, driver, 2)
    while world.zk.late:
        world.zk.deliver_late(world.random)
    assert go(world, driver).ended == "finished"
    assert [result.status for result in driver.results] == [CommitStatus.COMMITTED] * 5
    all_there(world, query)


def test_l4_who_sends_again_blindly_is_caught() -> None:
    """It gets a conflict with its own work and treats it as failure, and its query continues without the batch."""
    with ExitStack() as stack:
        mutants.lost_replies_are_answered_by_sending_again(stack)
        with pytest.raises((InvariantError, AssertionError)):
            test_l4_the_reply_to_a_commit_is_lost_and_the_next_server_lags("applied", 2, expires=False)


# --- L5 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True])
def test_l5_a_query_of_a_log_that_was_made_again_is_refused_in_every_window(late: bool) -> None:
    windows = 0
    for window in range(0, 150, 2):
        world = new_world()
        query = start_query(world, batches=3)
        driver = start_run(query, world)
        if not steps_of(world, driver, window) or len(driver.results) == 3:
            break
        windows += 1
        if late and isinstance(driver.next, Transact):
            driver.session.next_fate = "late"
            world.step(driver)
        delete_and_make_again(world)
        while world.zk.late:
            world.zk.deliver_late(world.random)
        go(world, driver)
        # Refused at the commit, or by the transaction that would have created a ledger.
        # (A query that read the head before the deletion finds its ledgers gone.)
        errors = [how for _, who, what, how in world.trace if (who, what) == (driver.name, "error")]
        assert all(isinstance(error, LogReplacedError | NoSuchLogError | LedgerRefusedError) for error in errors)
        assert errors or "CheckOp of /logs/flights/id-" in driver.ended, window
        _nothing_in(world)
    assert windows > 20


def _nothing_in(world: World) -> None:
    log = world.watch.logs[world.paths.log_id]
    assert log.head.next_offset == 0
    assert world.zk.children(world.paths.apps) == ()
    assert list(world.watch.registrations(world.paths)) == []
    assert world.watch.unknown() == []


def test_l5_a_log_writer_of_a_log_that_was_made_again_is_refused_in_every_window() -> None:
    windows = 0
    for window in range(0, 100, 2):
        world = new_world()
        writer = LogWriter(world, "writer", world.paths, appends=4, roll_entries=2)
        world.add(writer)
        for _ in range(window):
            if writer.runnable:
                world.step(writer)
        if writer.ended:
            break
        windows += 1
        delete_and_make_again(world)
        world.run(writer)
        assert writer.endings[0] in ("refused", "fenced", "failed"), window
        _nothing_in(world)
    assert windows > 10


def test_l5_a_reader_with_a_checkpoint_of_the_old_log_is_refused_in_every_window() -> None:
    refused = 0
    for window in range(40):
        world = new_world()
        world.healed = True  # nobody is slow any more
        query = start_query(world, batches=3)
        assert go(world, start_run(query, world)).ended == "finished"
        reader = LogReader(world, "reader", world.paths, times=2)
        world.add(reader)
        for _ in range(window):
            if reader.runnable:
                world.step(reader)
        if reader.ended:
            break
        delete_and_make_again(world)
        again = Query(world.paths, "app", 3)
        assert go(world, start_run(again, world)).ended == "finished"
        world.run(reader)
        # (In the last windows it had asked all that it had to ask.)
        assert reader.ended == "refused" or (window > 5 and reader.done == 2), window
        refused += reader.ended == "refused"
    assert refused > 5
