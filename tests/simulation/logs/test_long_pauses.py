"""Rules of logs whose violation shows only after a long pause in one place, and tests that find it."""

from __future__ import annotations

from contextlib import ExitStack
from unittest.mock import patch

import pytest

from bk_spark.log.core.steps import Read
from bk_spark.log.formats import page
from bk_spark.protocol.metadata.znodes import CreateOp
from tests.simulation.logs import mutants
from tests.simulation.logs.chores import IndexMover
from tests.simulation.logs.play import (
    go,
    maintain,
    new_world,
    old_run_with_uncommitted_ledgers,
    start_query,
    start_run,
)
from tests.simulation.logs.readers import Reaper
from tests.simulation.logs.streaming import Driver
from tests.simulation.logs.world import DAY_MS, HOUR_MS, World
from tests.simulation.outcomes import InvariantError


def _removed_run(world: World) -> Driver:
    """A commit stops before its transaction. Meanwhile its ledger is condemned and deleted, and the run's znode is
    deleted and created again by a worker."""
    old, _ = old_run_with_uncommitted_ledgers(world)
    world.pass_time(8 * DAY_MS)
    maintain(world)
    world.pass_time(8 * DAY_MS)
    maintain(world, hours=1)
    run_path = world.paths.run("app", old.run)
    assert world.zk.read(run_path) is None
    world.pass_time(DAY_MS)
    parent = run_path.rpartition("/")[0]
    if world.zk.read(parent) is None:
        world.zk.transact([CreateOp(parent)])
    world.zk.transact([CreateOp(run_path)])
    return go(world, old)


def test_a_run_that_was_removed_and_made_again_is_not_the_run_that_was_read() -> None:
    assert _removed_run(new_world()).ended == "failed"


def test_who_removes_runs_without_writing_the_head_is_caught() -> None:
    with ExitStack() as stack:
        mutants.runs_are_removed_without_writing_the_head(stack)
        with pytest.raises(InvariantError, match="exist"):
            _removed_run(new_world())


def _move_that_stops(world: World) -> IndexMover:
    """A move of pages stops for an hour between writing its ledger and publishing it."""
    query = start_query(world, batches=12)
    with patch.object(page, "MAX_PAGE_BYTES", 64), patch.object(page, "_FULL_BYTES", 50):
        assert go(world, start_run(query, world)).ended == "finished"
    mover = IndexMover(world, "mover", world.paths)
    world.add(mover)
    ledgers = len(world.ledgers.all)
    world.advance(mover, lambda action: isinstance(action, Read) and len(world.ledgers.all) > ledgers)
    world.pass_time(HOUR_MS)
    reaper = Reaper(world, "reaper", world.paths)
    world.add(reaper)
    world.run(reaper)
    assert reaper.condemned == 1
    world.run(mover)
    return mover


def test_an_index_ledger_that_was_condemned_is_not_published() -> None:
    world = new_world()
    assert _move_that_stops(world).moved == 0
    maintain(world)
    assert world.watch.left_over(world.paths, retired_only=True) == []


def test_who_publishes_a_condemned_index_ledger_is_caught() -> None:
    with ExitStack() as stack:
        mutants.moves_are_published_though_condemned(stack)
        with pytest.raises(InvariantError, match="condemned"):
            _move_that_stops(new_world())
