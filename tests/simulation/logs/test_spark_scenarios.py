"""Named scenarios of Spark and logs, F1, F2, S1 to S3 and S5, each in every window where it can happen."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest

from bk_spark.log.core.plan import CommitStatus
from bk_spark.log.core.steps import RecoverLedgers
from bk_spark.protocol.errors import RunRetiredError
from tests.simulation.logs import zookeeper
from tests.simulation.logs.play import (
    WINDOWS,
    all_there,
    go,
    go_until,
    maintain,
    new_world,
    start_query,
    start_run,
    steps_of,
)
from tests.simulation.logs.readers import LogReader
from tests.simulation.logs.streaming import Query
from tests.simulation.logs.world import World
from tests.simulation.logs.zookeeper import FATES

# --- S1 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 2, 4])
@pytest.mark.parametrize("commits_file_deleted", [False, True])
def test_s1_the_driver_dies_after_its_commit_took_effect(batch: int, commits_file_deleted: bool) -> None:
    """The next run repeats the batch, from ledgers of its own, and finds it done."""
    world = new_world()
    query = start_query(world, batches=5)
    first = start_run(query, world)
    go_until(world, first, commit=batch)
    first.session.next_fate = "applied"
    world.step(first)
    first.kill()
    committed = world.watch.application(world.paths, "app")
    assert committed is not None
    assert (committed.batch_id, query.noted) == (batch - 1, batch - 2), "it took effect, and nothing was noted"
    if commits_file_deleted:
        query.lose_last_commit()
    second = go(world, start_run(query, world))
    assert second.ended == "finished"
    done = [result.status for result in second.results]
    assert done.count(CommitStatus.ALREADY_DONE) == 1
    all_there(world, query)
    maintain(world)
    assert world.watch.left_over(world.paths, retired_only=True) == []


@pytest.mark.parametrize("fate", FATES)
def test_s1_a_commit_that_raised_may_have_taken_effect(fate: str) -> None:
    """ZooKeeper stays unavailable after the transaction was sent. The query fails and is started again, and no row
    is missing or duplicated."""
    world = new_world()
    query = start_query(world, batches=4)
    first = start_run(query, world)
    go_until(world, first, commit=2)
    first.session.next_fate = fate
    world.step(first)
    world.weather.metadata = 1.0
    go(world, first)
    assert first.ended == "failed"
    world.weather.metadata = 0.0
    second = go(world, start_run(query, world))
    while world.zk.late:
        world.zk.deliver_late(world.random)
    assert second.ended == "finished"
    all_there(world, query)


# --- F1, F2 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("foreach_batch", [False, True])
@pytest.mark.parametrize("back", range(1, 6))
def test_f2_a_checkpoint_that_was_set_back(back: int, foreach_batch: bool) -> None:
    """Spark itself may go back by one batch. Going back further is refused, unless an option allows it."""
    world = new_world()
    query = start_query(world, batches=5, foreach_batch=foreach_batch)
    assert go(world, start_run(query, world)).ended == "finished"
    before = world.watch.application(world.paths, "app")
    query.noted = query.begun = 4 - back
    second = go(world, start_run(query, world))
    if back > 1:
        assert second.ended == "refused"
        (error,) = [how for _, who, what, how in world.trace if (who, what) == (second.name, "error")]
        assert f"committed its batch 4 for application 'app', and now offers batch {5 - back}" in str(error)
        query.skip_committed = True
        second = go(world, start_run(query, world))
    assert second.ended == "finished"
    assert [result.status for result in second.results] == [CommitStatus.ALREADY_DONE] * back
    assert world.watch.application(world.paths, "app") == before
    all_there(world, query)


@pytest.mark.parametrize("foreach_batch", [False, True])
def test_f1_a_new_checkpoint_under_an_old_name(foreach_batch: bool) -> None:
    world = new_world()
    query = start_query(world, batches=5, foreach_batch=foreach_batch)
    assert go(world, start_run(query, world)).ended == "finished"
    for checkpoint, skip in (("new one", False), ("another", True)):
        query = replace(query, checkpoint=checkpoint, noted=-1, begun=-1, skip_committed=skip)
        assert go(world, start_run(query, world)).ended == "refused"
        errors = [how for _, _, what, how in world.trace if what == "error"]
        assert "A query with a new checkpoint needs a name of its own" in str(errors[-1])


# --- S2 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", range(1, 12))
def test_s2_an_attempt_that_ends_late_is_not_listed(window: int) -> None:
    """Two attempts at each task. One worker is stopped in the middle of its attempt, and the other's message is
    taken. The late one's entries stay out of the log, and are collected once its run is over."""
    world = new_world()
    query = start_query(world, batches=3, workers=2)
    driver = start_run(query, world)
    driver.speculation = 1.0
    steps_of(world, driver, 4)
    late = driver.workers[0]
    for _ in range(window):
        if late.runnable:
            world.step(late)
    late.stopped_until = 10_000
    steps_of(world, driver, 400)
    late.stopped_until = 0
    go(world, driver)
    world.run(*driver.workers)
    assert driver.ended == "finished"
    all_there(world, query)
    _collected_after_the_next_run(world, query)


def test_s2_a_task_that_is_killed_between_its_last_add_and_its_message_leaves_nothing() -> None:
    for number in range(20):
        world = World(f"killed tasks {number}")
        query = start_query(world, batches=4)
        driver = start_run(query, world)
        driver.task_kills = 0.2
        go(world, driver)
        if driver.ended != "finished":
            go(world, start_run(query, world))
        all_there(world, query)
        _collected_after_the_next_run(world, query)


def _collected_after_the_next_run(world: World, query: Query) -> None:
    query.batches += 1
    assert go(world, start_run(query, world)).ended == "finished"
    maintain(world)
    assert world.watch.left_over(world.paths, retired_only=True) == []


# --- S3 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", range(0, WINDOWS, 3))
def test_s3_a_driver_that_was_stopped_is_told_who_took_over(window: int) -> None:
    """SIGSTOP in every window, with its session ended; a second run on the same checkpoint finishes; SIGCONT."""
    world = new_world()
    query = start_query(world, batches=5)
    first = start_run(query, world)
    alive = steps_of(world, first, window)
    world.expire(first.session)
    second = go(world, start_run(query, world))
    assert second.ended == "finished"
    if alive:
        go(world, first)
        committed = world.watch.application(world.paths, "app")
        assert committed is not None
        errors = [how for _, who, what, how in world.trace if (who, what) == (first.name, "error")]
        if first.run in committed.retired_runs:
            assert first.ended.startswith(("refused", "failed"))
            assert all(isinstance(error, RunRetiredError) and second.run in str(error) for error in errors)
    all_there(world, query)


def test_the_old_runs_ledgers_are_recovered_after_the_commit() -> None:
    """Only then, because a zombie's workers can append no more, and what they did is known."""
    world = new_world()
    query = start_query(world, batches=4, workers=1)
    first = start_run(query, world)
    go_until(world, first, commit=2)
    ledger_ids = list(world.ledgers.all)
    second = start_run(query, world)
    go_until(world, second, lambda action: isinstance(action, RecoverLedgers))
    application = world.watch.application(world.paths, "app")
    assert application is not None
    assert application.retired_runs == (first.run,)
    go(world, second)
    assert all(world.ledgers.all[ledger_id].fenced for ledger_id in ledger_ids)
    assert go(world, first).ended == "refused"


# --- S5 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", range(30))
def test_s5_a_reader_whose_session_ends_sees_nothing_older(window: int) -> None:
    """In every window. The new session's server is so far behind that it knows no log."""
    world = new_world()
    world.healed = world.zk.lags_most = True
    query = start_query(world, batches=4)
    assert go(world, start_run(query, world)).ended == "finished"
    reader = LogReader(world, "reader", world.paths, times=2)
    world.add(reader)
    for _ in range(window):
        if reader.runnable:
            world.step(reader)
    with patch.object(zookeeper, "MOST_LAG", 10_000):
        world.expire(reader.session)
        world.run(reader)
    assert reader.done == 2
    assert reader.checkpoint == world.watch.logs[world.paths.log_id].head.next_offset
