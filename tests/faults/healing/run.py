"""One run: a plan carried out on a real cluster that heals itself under load, then the verdict."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from bk_spark.protocol.errors import BookKeeperError
from bookie_server.local import LocalBookie
from tests.faults.checker import unexplained
from tests.faults.clients import Follower, Writer
from tests.faults.healing.checker import problems_of, remains
from tests.faults.healing.cluster import HealingCluster
from tests.faults.healing.inspector import Inspector
from tests.faults.healing.load import Claim, start_writers, write_long_ledgers, write_small_ledgers
from tests.faults.healing.plan import Fault, Moment, Plan, Step
from tests.faults.healing.watcher import Watcher
from tests.faults.timeline import Timeline

#: So long may a moment take to come. A new auditor waits, and the search for lost bookies is slow.
_MOMENT_TIMEOUT_S: Final = 25.0
_REPAIRED_TIMEOUT_S: Final = 120.0
_REGISTERED_TIMEOUT_S: Final = 120.0
_EXPIRED_TIMEOUT_S: Final = 60.0
#: Everything works again: so long may it take until writers are acknowledged again, and then end.
_HEALED_TIMEOUT_S: Final = 120.0
_HEALED_ENTRIES: Final = 20
_POLL_S: Final = 0.1
_T = TypeVar("_T")


@dataclass(slots=True)
class Outcome:
    """``hit`` are the steps that hit their moment, ``missed`` the others; ``problems`` is what a test fails for."""

    plan: Plan
    timeline: Timeline
    hit: list[Fault] = field(default_factory=list)
    missed: list[Fault] = field(default_factory=list)
    acknowledged: int = 0
    ledgers: int = 0
    seen: int = 0
    #: Copies that were there when the metadata named them.
    inspected: int = 0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join(
            [
                f"seed {self.plan.seed}: repeat with make heal-faults SEEDS={self.plan.seed}",
                f"plan: {self.plan}",
                f"{self.acknowledged} entries acknowledged while the plan ran, {self.ledgers} ledgers in all, "
                f"{self.seen} entries seen by the follower, {self.inspected} new members inspected",
                f"missed their moment: {', '.join(each.name for each in self.missed) or 'none'}",
                *self.problems,
                "",
                str(self.timeline),
            ]
        )


class HealingRun:
    def __init__(self, cluster: HealingCluster, plan: Plan) -> None:
        self._cluster = cluster
        self._plan = plan
        self._timeline = Timeline()
        self._watcher = Watcher(cluster)
        self._outcome = Outcome(plan, self._timeline)
        #: What ends when: s (monotonic), a number, what it is, and what to do.
        self._ends: list[tuple[float, int, str, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._pause = threading.Event()
        first, second = (cluster.bookies[number] for number in plan.lost)
        self._first: LocalBookie = first
        self._second: LocalBookie = second

    def run(self) -> Outcome:
        try:
            return self._run()
        finally:
            self._watcher.close()

    def _run(self) -> Outcome:
        cluster, plan, outcome, timeline = self._cluster, self._plan, self._outcome, self._timeline
        seed = plan.seed * 100
        small = write_small_ledgers(cluster.uri, seed, plan.quorum)
        long = write_long_ledgers(cluster.uri, seed + 50, plan.quorum, timeline)
        timeline.note("plan", f"{len(small.ledgers)} small ledgers and {len(long.ledgers)} long ones are written")
        inspector = Inspector(cluster)
        writers = start_writers(cluster.uri, seed, plan.quorum, timeline)
        follower = Follower(cluster.uri, writers[0], timeline)
        follower.start()
        try:
            for writer in writers:
                if not writer.wait_acknowledged(1, _HEALED_TIMEOUT_S):
                    outcome.problems.append("nothing was acknowledged before anything went wrong")
            for step in plan.steps:
                self._carry_out(step)
            self._end_all()
        finally:
            # Servers first: with them everything ends by itself.
            cluster.heal()
            timeline.note("plan", "everything is healed but lost bookies")
            outcome.acknowledged = sum(writer.acknowledged for writer in writers)
            self._stop(writers, follower)
            inspector.stop()
        outcome.inspected = inspector.inspected
        outcome.problems += inspector.problems
        claims: list[Claim] = [small, long, *writers]
        outcome.ledgers = sum(len(claim.ledgers) for claim in claims)
        outcome.seen = sum(one.entries for one in follower.seen.values())
        outcome.problems += problems_of(cluster, self._watcher, claims, follower.seen)
        timeline.note("checker", "every copy was read")
        outcome.problems += remains(cluster, self._watcher)
        return outcome

    def _stop(self, writers: list[Writer], follower: Follower) -> None:
        problems = self._outcome.problems
        for writer in writers:
            if not writer.wait_acknowledged(_HEALED_ENTRIES, _HEALED_TIMEOUT_S):
                problems.append(f"healed, but no {_HEALED_ENTRIES} further entries in {_HEALED_TIMEOUT_S:g} s")
        for who, stop in (*(("writer", writer.stop) for writer in writers), ("follower", follower.stop)):
            if not stop(_HEALED_TIMEOUT_S):
                problems.append(f"healed, but a {who} does not end in {_HEALED_TIMEOUT_S:g} s")
        for writer in writers:
            if writer.crash is not None:
                problems.append(f"a writer was ended by {writer.crash!r}")
            # A repair may fence any ledger whose writer could not replace a lost bookie.
            fenced = [written.ledger_id for written in writer.ledgers]
            problems += unexplained(writer, fenced, zookeeper_went=True)
        problems += follower.problems

    # --- steps ---

    def _carry_out(self, step: Step) -> None:
        """Wait for the step's moment, begin it, and note whether it hit."""
        fault = step.fault
        match fault:
            case Fault.LOSE:
                hit = self._lose(step, self._first)
            case Fault.LOSE_ANOTHER:
                hit = self._lose_another(step)
            case Fault.KILL_AUDITOR | Fault.SUSPEND_AUDITOR | Fault.CUT_OFF_AUDITOR:
                hit = self._strike_auditor(step)
            case Fault.KILL_WORKER | Fault.SUSPEND_WORKER | Fault.CUT_OFF_WORKER:
                hit = self._strike_worker(step)
            case Fault.RETURN:
                hit = self._return(step)
            case Fault.RETURN_EMPTY:
                hit = self._return_empty(step)
            case _:
                hit = self._strike_zookeeper(step)
        self._note(f"{fault.name} {'hit' if hit else 'missed'} its moment")
        (self._outcome.hit if hit else self._outcome.missed).append(fault)

    def _lose(self, step: Step, bookie: LocalBookie) -> bool:
        self._delay(step)
        self._note(f"{step}: {bookie.name}, {bookie.id}")
        self._cluster.lose(bookie)
        return True

    def _lose_another(self, step: Step) -> bool:
        if not self._moment(step):
            return False
        self._lose(step, self._second)
        return bool(self._look(lambda: self._watcher.naming({self._first.id}) or self._watcher.marks()))

    def _strike_auditor(self, step: Step) -> bool:
        if not self._moment(step):
            return False
        self._delay(step)
        vote = self._look(self._watcher.auditor)
        if vote is None or vote.bookie_id is None:
            return False
        self._strike(step, vote.bookie_id)
        unmarked = self._look(self._watcher.unmarked)
        self._note(f"{len(unmarked or ())} ledgers that name lost bookies are not marked")
        if step.fault is Fault.KILL_AUDITOR:
            return bool(unmarked)
        return bool(unmarked) and self._expired(vote.session_id, vote.bookie_id)

    def _strike_worker(self, step: Step) -> bool:
        # No delay: a copy takes a second or two.
        work = self._until(self._watcher.copying, _MOMENT_TIMEOUT_S)
        if work is None:
            return False
        self._strike(step, work.worker)
        in_time = bool(self._look(lambda: self._watcher.in_the_middle(work)))
        self._note(f"{work}, {'and has not changed them' if in_time else 'and has changed them'}")
        return in_time and (step.fault is Fault.KILL_WORKER or self._expired(work.session_id, work.worker))

    def _strike(self, step: Step, name: str) -> None:
        """Kill, suspend or cut off a process."""
        cluster = self._cluster
        self._note(f"{step}: {name}")
        match step.fault:
            case Fault.KILL_AUDITOR | Fault.KILL_WORKER:
                cluster.process(name).kill()
                self._end_after(step, name, lambda: cluster.start_again(name))
            case Fault.SUSPEND_AUDITOR | Fault.SUSPEND_WORKER:
                cluster.suspend(name)
                self._end_after(step, name, lambda: cluster.resume(name))
            case _:
                cluster.cut_off(name)
                self._end_after(step, name, lambda: cluster.reconnect(name))

    def _expired(self, session_id: int, name: str) -> bool:
        """Wait until ZooKeeper has ended the session of a process that still runs."""
        gone = self._until(lambda: session_id not in self._watcher.workers().values(), _EXPIRED_TIMEOUT_S)
        return bool(gone) and self._cluster.process(name).running

    def _return(self, step: Step) -> bool:
        in_time = self._moment(step)
        self._delay(step)
        self._note(f"{step}: {self._first.name}")
        self._cluster.bring_back(self._first)
        self._until(lambda: self._first.id in self._watcher.registered(), _REGISTERED_TIMEOUT_S)
        naming = self._look(lambda: self._watcher.naming({self._first.id}))
        self._note(f"{self._first.name} is registered; {len(naming or ())} ledgers still name it")
        return in_time and bool(naming)

    def _return_empty(self, step: Step) -> bool:
        """What the documentation allows: the ledgers are repaired, the cookie is deleted, and the disks are empty."""
        if not self._moment(step):
            return False
        self._note(f"{step}: {self._first.name}")
        self._cluster.empty(self._first)
        self._watcher.delete_cookie(self._first.id)
        self._cluster.bring_back(self._first)
        return bool(self._until(lambda: self._first.id in self._watcher.registered(), _REGISTERED_TIMEOUT_S))

    def _strike_zookeeper(self, step: Step) -> bool:
        if not self._moment(step):
            return False
        self._note(str(step))
        marked = self._look(self._watcher.marks)
        zookeeper = self._cluster.zookeeper
        match step.fault:
            case Fault.PAUSE_ZOOKEEPER:
                zookeeper.suspend()
                self._end_after(step, "ZooKeeper", zookeeper.resume)
            case Fault.STOP_ZOOKEEPER:
                zookeeper.kill()
                self._end_after(step, "ZooKeeper", zookeeper.start)
            case _:
                self._cluster.cut_all_off()
                self._end_after(step, "ZooKeeper", self._cluster.reconnect_all)
        # The others need ZooKeeper for their moments.
        self._end_all()
        return bool(marked)

    # --- moments and time ---

    def _moment(self, step: Step) -> bool:
        """Wait until the step's moment has come. False if it does not come in time."""
        watcher = self._watcher
        match step.fault.moment:
            case Moment.LOAD:
                found: object = True
            case Moment.SEARCH:
                found = self._until(lambda: watcher.auditor() and watcher.unmarked(), _MOMENT_TIMEOUT_S)
            case Moment.COPY:
                found = self._until(watcher.copying, _MOMENT_TIMEOUT_S)
            case Moment.REPAIRED:
                found = self._until(lambda: not watcher.naming({self._first.id}), _REPAIRED_TIMEOUT_S)
        return bool(found)

    def _until(self, look: Callable[[], _T], timeout_s: float) -> _T | None:
        """Look again and again until something is found. What is due ends meanwhile."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self._end_due()
            found = self._look(look)
            if found:
                return found
            self._pause.wait(_POLL_S)
        return None

    def _look(self, look: Callable[[], _T]) -> _T | None:
        try:
            return look()
        except BookKeeperError as error:
            self._note(f"cannot look: {error!r}")
            return None

    def _delay(self, step: Step) -> None:
        self._pause.wait(step.delay_ms / 1000)

    def _end_after(self, step: Step, name: str, end: Callable[[], None]) -> None:
        heapq.heappush(
            self._ends,
            (time.monotonic() + step.last_ms / 1000, next(self._numbers), f"end of {step.fault.name}: {name}", end),
        )

    def _end_due(self) -> None:
        while self._ends and self._ends[0][0] <= time.monotonic():
            _, _, what, end = heapq.heappop(self._ends)
            self._note(what)
            end()

    def _end_all(self) -> None:
        """Wait for the end of everything that has begun."""
        while self._ends:
            self._pause.wait(max(0.0, self._ends[0][0] - time.monotonic()))
            self._end_due()

    def _note(self, what: str) -> None:
        self._timeline.note("plan", what)
