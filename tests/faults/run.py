"""One run: a plan carried out on a real cluster while clients work, then the verdict."""

from __future__ import annotations

import heapq
import threading
import time
from dataclasses import dataclass
from typing import Final

from bookie_server.local import LocalBookie
from tests.faults.checker import problems_of, unexplained
from tests.faults.clients import Follower, Load, Writer, recover
from tests.faults.plan import Fault, Plan, Step
from tests.faults.timeline import Timeline
from tests.support.proxied_cluster import ProxiedCluster
from tests.support.tcp_proxy import STALLED, SWALLOWING, Connects, Link

#: Everything works again: so long may it take until the writer is acknowledged again, and then ends.
_HEALED_TIMEOUT_S: Final = 120.0
_HEALED_ENTRIES: Final = 1_000
#: A ledger lasts a second or so: one that begins chooses its bookies anew, and some of them are in trouble.
_ROLL_ENTRIES: Final = 2_000
#: Without ZooKeeper there is no next ledger.
_LONG_ROLL_ENTRIES: Final = 60_000
#: On average half of it after each batch, so that client, bookies and checker leave cores to others.
_PAUSE_S: Final = 0.05
#: Of so many seeds one writes as fast as it can.
_ONE_OF: Final = 4
_SLOW: Final = Link(bytes_per_s=200_000, delay_ms=20)

_LINKS: Final = {
    Fault.REFUSE: {"connects": Connects.REFUSE, "cut": True},
    Fault.SWALLOW_CONNECTS: {"connects": Connects.SWALLOW, "cut": True},
    Fault.SLOW: {"to_server": _SLOW, "to_client": _SLOW},
    Fault.STALL_REQUESTS: {"to_server": STALLED},
    Fault.STALL_ANSWERS: {"to_client": STALLED},
    Fault.LOSE_REQUESTS: {"to_server": SWALLOWING},
    Fault.LOSE_ANSWERS: {"to_client": SWALLOWING},
    Fault.LOSE_ALL: {"to_server": SWALLOWING, "to_client": SWALLOWING},
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """``acknowledged`` while things went wrong; ``changes`` of ensembles; ``problems`` is what a test fails for."""

    plan: Plan
    timeline: Timeline
    acknowledged: int
    ledgers: int
    changes: int
    seen: int
    problems: list[str]

    def __str__(self) -> str:
        return "\n".join(
            [
                f"seed {self.plan.seed}, {self.plan.quorum}: repeat with make faults SEEDS={self.plan.seed}",
                f"{self.acknowledged} entries acknowledged while the plan ran, {self.ledgers} ledgers, "
                f"{self.changes} ensemble changes, {self.seen} entries seen by the follower",
                *self.problems,
                "",
                str(self.timeline),
            ]
        )


class FaultRun:
    def __init__(self, cluster: ProxiedCluster, plan: Plan) -> None:
        self._cluster = cluster
        self._plan = plan
        self._timeline = Timeline()
        self._recoverers: list[threading.Thread] = []
        self._fenced: set[int] = set()
        self._uri = cluster.metadata_service_uri

    def run(self) -> Outcome:
        problems: list[str] = []
        plan = self._plan
        pause_s = _PAUSE_S if plan.seed % _ONE_OF else 0.0
        roll_entries = _LONG_ROLL_ENTRIES if plan.zookeeper_goes else _ROLL_ENTRIES
        load = Load(plan.seed, plan.quorum, roll_entries, pause_s=pause_s)
        writer = Writer(self._uri, load, self._timeline)
        follower = Follower(self._uri, writer, self._timeline)
        follower.start()
        try:
            if not writer.wait_acknowledged(1, _HEALED_TIMEOUT_S):
                problems.append("nothing was acknowledged before anything went wrong")
            before = writer.acknowledged
            self._carry_out(writer)
            acknowledged = writer.acknowledged - before
        finally:
            # Servers first: with them everything ends by itself.
            self._cluster.heal()
            self._timeline.note("plan", "everything is healed")
            if not writer.wait_acknowledged(_HEALED_ENTRIES, _HEALED_TIMEOUT_S):
                problems.append(f"healed, but no {_HEALED_ENTRIES} further entries in {_HEALED_TIMEOUT_S:g} s")
            for who, ended in (
                ("writer", writer.stop(_HEALED_TIMEOUT_S)),
                ("follower", follower.stop(_HEALED_TIMEOUT_S)),
            ):
                if not ended:
                    problems.append(f"healed, but the {who} does not end in {_HEALED_TIMEOUT_S:g} s")
            for thread in self._recoverers:
                thread.join(_HEALED_TIMEOUT_S)
                if thread.is_alive():
                    problems.append(f"healed, but a recovery does not end in {_HEALED_TIMEOUT_S:g} s")
        if writer.crash is not None:
            problems.append(f"the writer was ended by {writer.crash!r}")
        problems += follower.problems
        problems += unexplained(writer, self._fenced, zookeeper_went=self._plan.zookeeper_goes)
        problems += problems_of(self._cluster, self._plan.seed, writer, follower.seen, self._fenced)
        changes = sum(one.changes for one in writer.ledgers)
        seen = sum(one.entries for one in follower.seen.values())
        return Outcome(self._plan, self._timeline, acknowledged, len(writer.ledgers), changes, seen, problems)

    def _carry_out(self, writer: Writer) -> None:
        """Begin and end every step in time."""
        started = time.monotonic()
        due: list[tuple[int, int, bool, Step]] = []
        for number, step in enumerate(self._plan.steps):
            due.append((step.at_ms, number, True, step))
            due.append((step.until_ms, number, False, step))
        heapq.heapify(due)
        pause = threading.Event()
        while due:
            at_ms, _, begins, step = heapq.heappop(due)
            # The plan's time, not an event's: nothing in the cluster tells when the next thing goes wrong.
            pause.wait(max(0.0, started + at_ms / 1000 - time.monotonic()))
            if begins:
                self._timeline.note("plan", str(step))
                self._begin(step, writer)
            elif step.until_ms > step.at_ms:
                self._timeline.note("plan", f"end of {step}")
                self._end(step)

    def _begin(self, step: Step, writer: Writer) -> None:
        (zookeeper,) = self._cluster.local.zookeepers
        match step.fault:
            case Fault.RECOVER:
                self._recover(writer)
            case Fault.PAUSE_ZOOKEEPER:
                zookeeper.suspend()
            case Fault.STOP_ZOOKEEPER:
                zookeeper.kill()
            case Fault.KILL:
                self._bookie(step).kill()
            case Fault.SUSPEND:
                self._bookie(step).suspend()
            case Fault.CUT:
                self._cluster.proxy(self._bookie(step)).cut()
            case _:
                self._cluster.proxy(self._bookie(step)).set(**_LINKS[step.fault])  # type: ignore[arg-type]

    def _end(self, step: Step) -> None:
        (zookeeper,) = self._cluster.local.zookeepers
        match step.fault:
            case Fault.PAUSE_ZOOKEEPER:
                zookeeper.resume()
            case Fault.STOP_ZOOKEEPER:
                zookeeper.start()
            case Fault.KILL:
                self._bookie(step).start()
            case Fault.SUSPEND:
                self._bookie(step).resume()
            case Fault.CUT:
                self._cluster.proxy(self._bookie(step)).cut()
            case Fault.RECOVER:
                pass
            case _:
                self._cluster.proxy(self._bookie(step)).heal()

    def _recover(self, writer: Writer) -> None:
        written = writer.ledgers[-1]
        self._fenced.add(written.ledger_id)
        thread = threading.Thread(target=recover, args=(self._uri, written, self._timeline), name="fault recoverer")
        self._recoverers.append(thread)
        thread.start()

    def _bookie(self, step: Step) -> LocalBookie:
        assert step.bookie is not None
        return self._cluster.local.bookies[step.bookie]
