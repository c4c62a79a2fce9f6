"""Random histories of one log, each determined by its seed.

A history draws its actors (streaming queries, batch writes, log writers, maintenance, …), what fails and how often. In
each step an actor performs one action; or a process dies, is stopped for long, or loses its session; or a query is
started a second time while its first run is still alive. At the end, or halfway, everything heals: the remaining actors
must finish, and maintenance leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import TypeVar
from unittest.mock import patch

from bk_spark.log.core import append, applications
from bk_spark.log.core.plan import CommitStatus
from bk_spark.log.formats import commits, page
from tests.simulation.logs.chores import (
    Appender,
    Chore,
    Deleter,
    Grower,
    IndexMover,
    PolicySetter,
    Truncator,
    foreign_ledger,
)
from tests.simulation.logs.followers import Follower, RangeReader
from tests.simulation.logs.readers import LogReader, Maintenance, PastReader, Reaper, Retention
from tests.simulation.logs.streaming import Driver, Query, Worker
from tests.simulation.logs.world import DAY_MS, HOUR_MS, MINUTE_MS, WRONG_TIMES_MS, Actor, World
from tests.simulation.logs.writers import Keeper, LogWriter
from tests.simulation.outcomes import Counts, InvariantError
from tests.support.page_cache import pages_decoded_once

_T = TypeVar("_T")

#: Three reapers in a long history took 4,211 until all had ended.
MOST_STEPS = 8_000
MOST_RUNS = 5


@dataclass(slots=True)
class Chances:
    """Probabilities of disturbances of processes, per step."""

    kill: float = 0.0
    stop: float = 0.0
    expire: float = 0.0
    jump: float = 0.0
    clock: float = 0.0
    successor: float = 0.0


@dataclass(frozen=True, slots=True)
class Focus:
    """The subject of a history, to make a broken rule show sooner. None: drawn."""

    queries: int | None = None
    log_writers: int | None = None
    reapers: int | None = None
    movers: int | None = None
    truncators: int | None = None
    readers: int | None = None
    deleters: int | None = None
    small_pages: bool | None = None
    jump: float | None = None
    stop: float | None = None
    ledger_faults: float | None = None
    retentions: int | None = None
    maintenances: int | None = None
    followers: int | None = None
    wrong_clocks: float | None = None
    growers: int | None = None
    records_commits: bool | None = None
    past_readers: int | None = None


def _or(focused: _T | None, drawn: _T) -> _T:
    return drawn if focused is None else focused


class History:
    """One history. Replay a failing one with ``python -m tests.simulation replay <seed> --logs``."""

    def __init__(self, seed: int | str, focus: Focus | None = None) -> None:
        self.seed = seed
        self._focus = focus = focus or Focus()
        wrong_clocks = _or(focus.wrong_clocks, Random(seed).choice([0.0, 0.0, 0.3]))
        records_commits = _or(focus.records_commits, Random(f"{seed} records").random() < 0.6)
        self.world = world = World(seed, wrong_clocks=wrong_clocks, records_commits=records_commits)
        self.random = random = world.random
        self.counts = Counts()
        world.weather.metadata = random.choice([0.0, 0.02, 0.1])
        world.weather.ledgers = _or(focus.ledger_faults, random.choice([0.0, 0.0, 0.05]))
        self.chances = Chances(
            kill=random.choice([0.0, 0.003, 0.01]),
            stop=_or(focus.stop, random.choice([0.0, 0.005, 0.02])),
            expire=random.choice([0.0, 0.005, 0.02]),
            jump=_or(focus.jump, random.choice([0.0, 0.003, 0.01, 0.02])),
            clock=random.choice([0.0, 0.005, 0.02]) if world.wrong_clocks else 0.0,
            successor=random.choice([0.0, 0.004, 0.015]),
        )
        self.small_pages = _or(focus.small_pages, random.random() < 0.4)
        self.inline_pages = random.choice([0, 8, 8])
        self.in_use_kept = random.choice([0, 1, 256])
        self.queries: list[Query] = []
        self._draw_queries()
        self._draw_chores()

    def play(self) -> Counts:
        """Raises :class:`InvariantError` or any error of a machine."""
        with self._limits():
            self._happen(self.random.randint(30, 700))
            self._heal()
        return self._count()

    # --- the actors ---

    def _draw_queries(self) -> None:
        random, paths = self.random, self.world.paths
        for number in range(_or(self._focus.queries, random.choice([0, 1, 1, 1, 2]))):
            query = Query(
                paths,
                f"app{number}",
                random.randint(2, 12 if self.small_pages else 7),
                foreach_batch=random.random() < 0.2,
                fence_tail=random.random() < 0.5,
                workers=random.randint(1, 2),
                roll_entries=random.choice([2, 5, 1_000]),
            )
            self.queries.append(query)
        for _ in range(random.choice([0, 0, 1, 2])):
            query = Query(paths, self.world.uuid(), 1, anonymous=True, overwrite=random.random() < 0.4)
            self.queries.append(query)
        for query in self.queries:
            self.start(query)

    def _draw_chores(self) -> None:
        random, world, paths, focus = self.random, self.world, self.world.paths, self._focus
        for number in range(_or(focus.truncators, random.choice([0, 1]))):
            times = random.randint(1, 4)
            world.add(Truncator(world, f"truncator{number}", paths, times, random.choice([0, 30, 100])))
        retentions = _or(focus.retentions, int(focus.truncators is None and random.random() < 0.25))
        for number in range(retentions):
            times = random.randint(2, 6)
            world.add(Retention(world, f"retention{number}", paths, times, random.choice([30, 100])))
        for number in range(_or(focus.maintenances, random.choice([0] * 7 + [1, 2]))):
            times = random.randint(2, 6)
            world.add(Maintenance(world, f"maintenance{number}", paths, times, random.choice([10, 50])))
        if retentions:
            world.add(PolicySetter(world, "policy", paths, random.randint(1, 3), random.choice([30, 100])))
        for number in range(random.choice([0, 0, 0, 0, 1, 2])):
            ledger_id = foreign_ledger(world, random.randint(1, 4))
            for twice in range(random.choice([1, 1, 2])):
                world.add(Appender(world, f"appender{number}.{twice}", paths, ledger_id, random.choice([0, 100])))
        for number in range(_or(focus.movers, random.choice([1, 1, 2]) if self.small_pages else 0)):
            times = random.randint(4, 9)
            world.add(IndexMover(world, f"mover{number}", paths, times, random.choice([10, 50])))
        for number in range(_or(focus.reapers, random.choice([0, 1, 2, 3]))):
            times = random.randint(2, 6)
            world.add(Reaper(world, f"reaper{number}", paths, times, random.choice([10, 30, 60])))
        for number in range(_or(focus.log_writers, random.choice([0, 0, 1, 2, 3]))):
            world.add(self._log_writer(f"writer{number}"))
        for number in range(_or(focus.readers, random.choice([0, 0, 0, 1, 2]))):
            times = random.randint(2, 6)
            world.add(LogReader(world, f"reader{number}", paths, times, random.choice([10, 50])))
        for number in range(_or(focus.followers, random.choice([0] * 6 + [1, 1]))):
            world.add(Follower(world, f"follower{number}", paths, random.randint(1, 3), random.choice([0, 50])))
            world.add(RangeReader(world, f"range{number}", paths, random.randint(2, 6), random.choice([10, 50])))
        if world.records_commits:
            for number in range(_or(focus.past_readers, random.choice([0, 1, 2]))):
                times = random.randint(3, 8)
                world.add(PastReader(world, f"past{number}", paths, times, random.choice([10, 50])))
                world.add(
                    PolicySetter(world, f"policy of {number}", paths, random.randint(1, 3), random.choice([5, 50]))
                )
        for number in range(_or(focus.deleters, random.choice([0] * 9 + [1, 1, 2]))):
            world.add(Deleter(world, f"deleter{number}", paths, random.choice([50, 200])))
        for number in range(_or(focus.growers, random.choice([0] * 7 + [1, 2]))):
            world.add(Grower(world, f"grower{number}", paths, random.randint(2, 6), random.choice([10, 30])))

    def _log_writer(self, name: str) -> LogWriter:
        random = self.random
        return LogWriter(
            self.world,
            name,
            self.world.paths,
            appends=random.randint(0, 12),
            roll_entries=random.choice([1, 3, 100]),
            take_over=random.random() < 0.5,
            lives=random.randint(1, 3),
            pause_steps=random.choice([0, 30, 100]),
            ends=random.choice(["close", "close", "abandon", "forget"]),
        )

    def start(self, query: Query) -> None:
        name = query.app if len(query.app) < 30 else query.app[:8]
        run = f"stray{self.counts['strays']}" if query.stray else f"r{len(query.runs)}"
        driver = Driver(self.world, f"{name}/{run}", query)
        driver.speculation = self.random.choice([0.0, 0.0, 0.3])
        driver.task_kills = self.random.choice([0.0, 0.0, 0.1])
        if self.world.healed:
            driver.speculation = driver.task_kills = 0.0
        if query.runs[:-1] and self.random.random() < 0.3:
            query.lose_last_commit()
        self.world.add(driver)

    def _stray(self, query: Query) -> None:
        """A user starts the query under its name from an old copy of its checkpoint, or from a new checkpoint."""
        committed = self.world.watch.application(query.paths, query.app)
        if committed is None:
            return
        set_back = committed.batch_id - 2 - self.random.randint(0, 2)
        if set_back < -1 or self.random.random() < 0.5:
            self.start(replace(query, noted=-1, begun=-1, checkpoint="new one", stray=True, runs=[]))
        else:
            self.start(replace(query, noted=set_back, begun=set_back, stray=True, runs=[]))
        self.counts["strays"] += 1

    # --- what happens ---

    def _happen(self, most_steps: int) -> None:
        world, random = self.world, self.random
        for _ in range(most_steps):
            self._befall()
            ready = [actor for actor in world.alive if actor.runnable]
            if ready:
                world.step(random.choice(ready))
            elif not world.alive:
                return
            else:
                world.steps += 1

    def _befall(self) -> None:
        world, random, chances = self.world, self.random, self.chances
        if world.zk.late and random.random() < 0.05:
            world.zk.deliver_late(random)
        fate = random.random()
        if fate < chances.kill:
            self._befall_one(Actor.kill)
            self.counts["kills"] += 1
        elif (fate := fate - chances.kill) < chances.stop:
            self._befall_one(self._stop)
        elif (fate := fate - chances.stop) < chances.expire:
            self._befall_one(self._expire)
        elif (fate := fate - chances.expire) < chances.jump:
            world.pass_time(random.choice([MINUTE_MS, 20 * MINUTE_MS, 2 * HOUR_MS, 2 * HOUR_MS, 8 * DAY_MS]))
        elif (fate := fate - chances.jump) < chances.clock:
            self._befall_one(self._set_clock)
        elif fate - chances.clock < chances.successor:
            self._succeed()

    def _befall_one(self, what: Callable[[Actor], object]) -> None:
        if self.world.alive:
            what(self.random.choice(self.world.alive))

    def _stop(self, actor: Actor) -> None:
        if isinstance(actor, Keeper):
            actor = actor.writer
        self.world.tell(actor.name, "is stopped", "")
        actor.stopped_until = self.world.steps + self.random.choice([30, 150, 400])
        actor.suspended = self.random.random() < 0.3
        if actor.suspended or self.random.random() < 0.5:
            self._expire(actor)

    def _set_clock(self, actor: Actor) -> None:
        ahead_ms = self.random.choice([0, *WRONG_TIMES_MS])
        self.world.tell(actor.name, "has its clock set", f"{ahead_ms} ms ahead")
        actor.clock.jump(ahead_ms)
        self.counts["clocks set"] += 1

    def _expire(self, actor: Actor) -> None:
        if self.world.zk.is_alive(actor.session.session):
            self.counts["expired"] += 1
            self.world.expire(actor.session)
            if isinstance(actor, LogWriter):
                actor.keep()

    def _succeed(self) -> None:
        """A user starts an unfinished query, whether or not its last run is still alive; or queries of a log that
        was created again."""
        if all(query.paths != self.world.paths for query in self.queries):
            self._draw_queries()
            return
        queries = [query for query in self.queries if len(query.runs) < MOST_RUNS and self._wants_a_run(query)]
        if queries:
            query = self.random.choice(queries)
            if self.random.random() < 0.1:
                self._stray(query)
            else:
                self.start(query)

    def _wants_a_run(self, query: Query) -> bool:
        return not query.anonymous and not query.finished and query.runs[-1].ended != "refused"

    # --- the end ---

    def _heal(self) -> None:
        """End all faults; damage stays. Everything must finish, and every batch must be committed."""
        world = self.world
        world.tell("world", "heals", "")
        world.healed = True
        # Clocks stay wrong, except those of the processes that maintain the log from now on.
        world.wrong_clocks = 0.0
        world.weather.metadata = world.weather.ledgers = 0.0
        while world.zk.late:
            world.zk.deliver_late(self.random)
        for actor in world.actors:
            actor.stopped_until = 0
            if isinstance(actor, Driver):
                actor.speculation = actor.task_kills = 0.0
            if isinstance(actor, Worker):
                actor.task_kills = 0.0
        world.run(most_steps=MOST_STEPS)
        for actor in world.actors:
            if actor.ended and world.zk.is_alive(actor.session.session):
                world.expire(actor.session)
        self._finish_deletions()
        for query in self.queries:
            if not query.anonymous and not query.finished and query.paths == world.paths:
                self.start(query)
                world.run(most_steps=MOST_STEPS)
                if not query.finished:
                    raise InvariantError(f"healed, and {query.runs[-1]} does not finish")
        for actor in world.actors:
            if not actor.ended:
                raise InvariantError(f"healed, and {actor} does not end")
        for session in world.sessions:
            if world.zk.is_alive(session.session):
                world.expire(session)
        self._check_all_is_there()
        self._maintain()
        unknown = world.watch.unknown()
        if unknown:
            raise InvariantError(f"healed, and nobody knows of {unknown}")

    def _finish_deletions(self) -> None:
        """A process that deleted the log may have died halfway. Deleting the log again finishes the deletion."""
        world = self.world
        log = world.watch.logs[world.paths.log_id]
        if log.deleted and world.zk.read(world.paths.head) is not None:
            deleter = Deleter(world, "last deleter", world.paths)
            world.add(deleter)
            world.run(most_steps=MOST_STEPS)
            if not deleter.done:
                raise InvariantError(f"healed, and {deleter} does not delete the log")

    def _maintain(self) -> None:
        """Two hours later nothing is left of finished runs, and after a week nothing that is not in the list."""
        world = self.world
        # This takes most of the time, so only some histories do it, and most of those with fewer rounds.
        thorough = self.random.random()
        if thorough > 0.3 or world.watch.logs[world.paths.log_id].deleted:
            return
        if world.records_commits:
            # What was kept of earlier states leaves the list first, then its ledgers get their grace.
            world.pass_time(2 * DAY_MS)
            world.run(world.add(Reaper(world, "reaper of the past", world.paths)), most_steps=MOST_STEPS)
        for retired_only in (True, False):
            if not retired_only:
                world.pass_time(8 * DAY_MS)
            for minutes in [10] * 12 if thorough < 0.03 else (20, 65, 35):
                world.pass_time(minutes * MINUTE_MS)
                reaper = Reaper(world, "maintenance", world.paths)
                world.add(reaper)
                world.run(reaper, most_steps=MOST_STEPS)
                if not reaper.done:
                    raise InvariantError(f"healed, and maintenance does not end well: {reaper}")
            left = world.watch.left_over(world.paths, retired_only=retired_only)
            if left:
                raise InvariantError(f"two hours later there still is {left}")

    def _check_all_is_there(self) -> None:
        watch = self.world.watch
        for query in self.queries:
            if query.finished and not query.anonymous and query.paths == self.world.paths:
                for batch_id in range(query.batches):
                    watch.committed(query.paths, query.app, batch_id, None, None)

    def _count(self) -> Counts:
        counts, world = self.counts, self.world
        drivers = [actor for actor in world.actors if isinstance(actor, Driver)]
        counts["steps"] = world.steps
        counts["commits"] = sum(r.status is CommitStatus.COMMITTED for d in drivers for r in d.results)
        counts["found done"] = sum(r.status is CommitStatus.ALREADY_DONE for d in drivers for r in d.results)
        counts["zombies"] = sum(driver.ended == "refused" for driver in drivers)
        for actor in world.actors:
            if isinstance(actor, LogWriter):
                counts["acknowledged"] += len(actor.acknowledged)
                counts["rolls"] += actor.rolls
                counts["kept"] += actor.kept
                counts["fenced"] += actor.endings.count("fenced")
            elif isinstance(actor, IndexMover):
                counts["moved pages"] += actor.moved
            elif isinstance(actor, Retention):
                counts["retentions"] += actor.done
            elif isinstance(actor, Maintenance):
                counts["maintenances"] += actor.begun
            elif isinstance(actor, RangeReader):
                counts["read ranges"] += actor.entries
            elif isinstance(actor, Follower):
                counts["followed"] += actor.entries
                counts["followed tails"] += actor.from_tails
            elif isinstance(actor, PastReader):
                counts["past states"] += actor.states
                counts["past states gone"] += actor.gone
            elif isinstance(actor, LogReader):
                counts["read segments"] += actor.segments
            elif isinstance(actor, Reaper):
                counts["condemned"] += actor.condemned
                counts["deleted"] += actor.deleted
        counts["conflicts"] = world.conflicts
        logs = world.watch.logs.values()
        counts["schema versions"] = sum(log.settings.schema_version for log in logs if log.settings is not None)
        counts["chores"] = sum(actor.done for actor in world.actors if isinstance(actor, Chore))
        counts["lost replies"] = sum(session.lost_replies for session in world.sessions)
        return counts

    @contextmanager
    def _limits(self) -> Iterator[None]:
        """Use small limits, so that few entries reach all of them."""
        with ExitStack() as stack:
            stack.enter_context(patch.object(applications, "IN_USE_KEPT", self.in_use_kept))
            stack.enter_context(pages_decoded_once())
            if self.small_pages:
                # A commit takes room, too.
                most = 160 if self.world.records_commits else 64
                stack.enter_context(patch.object(page, "MAX_PAGE_BYTES", most))
                stack.enter_context(patch.object(page, "_FULL_BYTES", most - 14))
                stack.enter_context(patch.object(commits, "MAX_BARE_COMMITS", 2))
                stack.enter_context(patch.object(append, "MAX_INLINE_PAGES", self.inline_pages))
            yield
