"""How named scenarios bring the actors of a world to the point that a scenario is about."""

from __future__ import annotations

from collections.abc import Callable

from bk_spark.log.core.steps import Transact
from bk_spark.protocol.metadata.znodes import SetOp
from tests.simulation.logs.chores import Deleter, Truncator
from tests.simulation.logs.invariants import batch_rows
from tests.simulation.logs.readers import Reaper
from tests.simulation.logs.streaming import Driver, Query
from tests.simulation.logs.world import DAY_MS, MINUTE_MS, World

#: More actions than any actor here has. A window beyond the last action shows that all were tried.
WINDOWS = 90


def new_world() -> World:
    return World("named")


def start_query(world: World, batches: int = 4, **options: int) -> Query:
    return Query(world.paths, "app", batches, **options)  # type: ignore[arg-type]


def start_run(query: Query, world: World) -> Driver:
    driver = Driver(world, f"r{len(query.runs)}", query)
    world.add(driver)
    return driver


def go(world: World, driver: Driver) -> Driver:
    """Run the driver and its workers until the driver ends."""
    while not driver.ended:
        ready = [actor for actor in (driver, *driver.workers) if actor.runnable]
        assert ready, f"{driver} is stuck"
        world.step(world.random.choice(ready))
    return driver


def commits(action: object) -> bool:
    """Whether it is the transaction of a commit."""
    return isinstance(action, Transact) and any("/apps/" in op.path for op in action.operations)


def condemns(action: object) -> bool:
    return isinstance(action, Transact) and any(
        isinstance(op, SetOp) and "/ledgers/" in op.path and op.path.rpartition("/")[2].isdecimal()
        for op in action.operations
    )


def go_until(world: World, driver: Driver, until: Callable[[object], bool] = commits, commit: int = 1) -> None:
    """Run the driver and its workers until the driver's next action is the ``commit``-th that satisfies ``until``."""
    seen = 0
    while True:
        assert not driver.ended, driver
        if until(driver.next):
            seen += 1
            if seen == commit:
                return
        ready = [actor for actor in (driver, *driver.workers) if actor.runnable]
        world.step(world.random.choice(ready))


def steps_of(world: World, driver: Driver, count: int) -> bool:
    """Run ``count`` steps of a driver and its workers; False if it ended before."""
    for _ in range(count):
        ready = [actor for actor in (driver, *driver.workers) if actor.runnable]
        if driver.ended or not ready:
            return False
        world.step(world.random.choice(ready))
    return True


def all_there(world: World, query: Query) -> None:
    """Every batch that has rows is in the log, once (the watch checks for duplicates)."""
    there = world.watch.logs[query.paths.log_id].batches.get(query.app, {})
    assert sorted(there) == [n for n in range(query.batches) if any(batch_rows(query.app, n))]


def maintain(world: World, hours: int = 2) -> None:
    for _ in range(hours * 6):
        world.pass_time(10 * MINUTE_MS)
        reaper = world.add(Reaper(world, "maintenance", world.paths))
        world.run(reaper)
        assert isinstance(reaper, Reaper)
        assert reaper.done


def truncate_all(world: World) -> None:
    end = world.watch.logs[world.paths.log_id].head.next_offset
    truncator = Truncator(world, "truncator", world.paths, up_to=end)
    world.add(truncator)
    world.run(truncator)
    head = world.watch.logs[world.paths.log_id].head
    assert head.first_offset == head.next_offset == end


def delete_and_make_again(world: World) -> None:
    deleter = Deleter(world, "deleter", world.paths)
    old = world.paths
    world.add(deleter)
    world.run(deleter)
    assert deleter.done
    assert world.paths != old


def old_run_with_uncommitted_ledgers(world: World) -> tuple[Driver, Reaper]:
    """A run that has been about to commit its first batch for more than a week, and the reaper."""
    query = start_query(world)
    old = start_run(query, world)
    go_until(world, old)
    world.pass_time(8 * DAY_MS)
    reaper = Reaper(world, "reaper", world.paths, 2)
    world.add(reaper)
    return old, reaper
