"""What goes wrong while lost copies are made again, and when: a plan made from a seed.

No entry may lose all copies by the plan. Two bookies are lost for good, with their data, and entries are acknowledged
by two of three. So nothing else goes wrong before the first bookie is lost, and the second is lost when the third copy
of every entry of that time has long been written. All other bookies come back with their data.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass
from typing import Final

from bk_spark.protocol.quorum import Quorum
from tests.faults.healing.cluster import BOOKIES, SESSION_TIMEOUT_MS

#: A process that must lose its session is away for so long.
EXPIRED_AFTER_MS: Final = 3 * SESSION_TIMEOUT_MS
#: In two of three seeds. The others are for continuous integration: three times the session timeout, as 20 s are twice
#: the default one.
_ZOOKEEPER_GONE_MS: Final = 20_000
_ZOOKEEPER_GONE_SHORTLY_MS: Final = 3 * SESSION_TIMEOUT_MS


class Moment(enum.Enum):
    """When a step begins."""

    LOAD = "while clients write"
    SEARCH = "a bookie is lost, and not all of its ledgers are marked"
    COPY = "a worker has copied a part of a fragment, and not yet changed the metadata"
    REPAIRED = "no ledger names the bookie that was lost first"


class Fault(enum.Enum):
    """What happens, and the moment that it must hit."""

    LOSE = "a bookie is killed for good", Moment.LOAD
    LOSE_ANOTHER = "another bookie is killed for good", Moment.COPY
    KILL_AUDITOR = "the auditor gets kill -9, and is started again later", Moment.SEARCH
    SUSPEND_AUDITOR = "the auditor gets SIGSTOP until its session has expired", Moment.SEARCH
    CUT_OFF_AUDITOR = "the auditor is cut off from ZooKeeper until its session has expired", Moment.SEARCH
    KILL_WORKER = "the worker gets kill -9, and is started again later", Moment.COPY
    SUSPEND_WORKER = "the worker gets SIGSTOP until its session has expired", Moment.COPY
    CUT_OFF_WORKER = "the worker is cut off from ZooKeeper until its session has expired", Moment.COPY
    RETURN = "the bookie that was lost first returns with its data", Moment.COPY
    RETURN_EMPTY = "the bookie that was lost first returns with empty disks and without its old cookie", Moment.REPAIRED
    PAUSE_ZOOKEEPER = "ZooKeeper gets SIGSTOP, later SIGCONT", Moment.COPY
    STOP_ZOOKEEPER = "ZooKeeper is killed, and started again later", Moment.COPY
    CUT_OFF_ZOOKEEPER = "nobody reaches ZooKeeper, and all sessions expire", Moment.COPY

    def __init__(self, what: str, moment: Moment) -> None:
        self.what = what
        self.moment = moment


_AUDITOR: Final = (Fault.KILL_AUDITOR, Fault.SUSPEND_AUDITOR, Fault.CUT_OFF_AUDITOR)
_WORKER: Final = (Fault.KILL_WORKER, Fault.SUSPEND_WORKER, Fault.CUT_OFF_WORKER)
_ZOOKEEPER: Final = (Fault.PAUSE_ZOOKEEPER, Fault.STOP_ZOOKEEPER, Fault.CUT_OFF_ZOOKEEPER)


@dataclass(frozen=True, slots=True)
class Step:
    """``fault`` begins ``delay_ms`` after its moment has come, and ends ``last_ms`` later, if it ends."""

    fault: Fault
    delay_ms: int
    last_ms: int = 0

    def __str__(self) -> str:
        return f"{self.fault.name}: {self.fault.what}" + (f", {self.last_ms} ms" if self.last_ms else "")


@dataclass(frozen=True, slots=True)
class Plan:
    """``lost`` are the numbers (from 0) of the bookies that are killed for good. Steps follow one another."""

    seed: int
    quorum: Quorum
    lost: tuple[int, int]
    steps: tuple[Step, ...]

    @classmethod
    def make(cls, seed: int) -> Plan:
        chance = random.Random(seed)
        first, second = chance.sample(range(BOOKIES), 2)

        def step(fault: Fault, last_ms: int = 0) -> Step:
            return Step(fault, chance.randrange(0, 200), last_ms)

        def away(fault: Fault) -> Step:
            killed = fault in (Fault.KILL_AUDITOR, Fault.KILL_WORKER)
            return step(fault, chance.randrange(500, 4_000) if killed else EXPIRED_AFTER_MS)

        returns = (Fault.RETURN, Fault.RETURN_EMPTY, Fault.RETURN, None)[seed % 4]
        shortly = seed % 3 == 1
        middle = [step(Fault.LOSE_ANOTHER), away(chance.choice(_WORKER))]
        if chance.random() < 0.5:
            middle.append(away(chance.choice(_WORKER)))
        middle.append(step(chance.choice(_ZOOKEEPER), _ZOOKEEPER_GONE_SHORTLY_MS if shortly else _ZOOKEEPER_GONE_MS))
        chance.shuffle(middle)
        after = 1 + [each.fault for each in middle].index(Fault.LOSE_ANOTHER)
        # Before that nothing would be left to copy.
        if returns is Fault.RETURN:
            middle.insert(chance.randrange(after, len(middle) + 1), step(returns))
        elif returns is Fault.RETURN_EMPTY:
            middle.append(step(returns))
        # The auditor is in trouble in the search for the first bookie, or for the second one.
        middle.insert(chance.choice((0, after)), away(chance.choice(_AUDITOR)))
        # Ledgers on four bookies cannot be repaired before the first one is back with its data.
        quorum = Quorum(4, 3, 2) if returns is Fault.RETURN and chance.random() < 0.5 else Quorum(3, 3, 2)
        lose = Step(Fault.LOSE, chance.randrange(200, 1_500))
        return cls(seed, quorum, (first, second), (lose, *middle))

    def __str__(self) -> str:
        first, second = (number + 1 for number in self.lost)
        steps = "\n".join(f"    {step}" for step in self.steps)
        return f"{self.quorum}, bookie {first} is lost first, bookie {second} second\n{steps}"
