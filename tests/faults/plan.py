"""What goes wrong, when and for how long: a plan made from a seed."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass
from typing import Final

from bk_spark.protocol.quorum import Quorum

BOOKIES: Final = 5
#: Bookies in trouble at once; for short times one more.
_USUAL_TROUBLE: Final = 2
_PLAN_MS: Final = 8_000
_ZOOKEEPER_GONE_MS: Final = 20_000
_ZOOKEEPER_PLAN_MS: Final = 25_000


class Fault(enum.Enum):
    """To a bookie, or to the link between it and its clients."""

    KILL = "kill -9, started again later"
    SUSPEND = "SIGSTOP, later SIGCONT"
    CUT = "connections reset"
    REFUSE = "connections reset, connects refused"
    SWALLOW_CONNECTS = "connections reset, connects hang"
    SLOW = "slow both ways"
    STALL_REQUESTS = "requests arrive late"
    STALL_ANSWERS = "answers arrive late"
    LOSE_REQUESTS = "black hole for requests"
    LOSE_ANSWERS = "black hole for answers"
    LOSE_ALL = "black hole both ways"
    # To no bookie.
    PAUSE_ZOOKEEPER = "ZooKeeper gets SIGSTOP, later SIGCONT"
    STOP_ZOOKEEPER = "ZooKeeper is killed, started again later"
    RECOVER = "another client recovers the ledger that is being written"


_OF_CLUSTER: Final = (Fault.PAUSE_ZOOKEEPER, Fault.STOP_ZOOKEEPER, Fault.RECOVER)
#: Faults of processes as often as faults of links.
_OF_BOOKIES: Final = (*(fault for fault in Fault if fault not in _OF_CLUSTER), *3 * (Fault.KILL, Fault.SUSPEND))


@dataclass(frozen=True, slots=True)
class Step:
    """``fault`` from ``at_ms`` to ``until_ms`` after the start, to bookie number ``bookie`` (from 0) if to one."""

    at_ms: int
    until_ms: int
    fault: Fault
    bookie: int | None = None

    def __str__(self) -> str:
        target = "" if self.bookie is None else f"bookie {self.bookie + 1}: "
        return f"{target}{self.fault.name}, {self.fault.value}"


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    quorum: Quorum
    steps: tuple[Step, ...]
    length_ms: int

    @property
    def zookeeper_goes(self) -> bool:
        return any(step.fault in (Fault.PAUSE_ZOOKEEPER, Fault.STOP_ZOOKEEPER) for step in self.steps)

    @classmethod
    def make(cls, seed: int) -> Plan:
        """Odd seeds write 3/3/2, even ones 4/3/2; in every third ZooKeeper is gone for 20 s (stopped or killed)."""
        chance = random.Random(seed)
        steps: list[Step] = []
        length_ms = _PLAN_MS
        if seed % 3 == 0:
            length_ms = _ZOOKEEPER_PLAN_MS
            at_ms = chance.randrange(1_000, 3_000)
            fault = chance.choice((Fault.PAUSE_ZOOKEEPER, Fault.STOP_ZOOKEEPER))
            steps.append(Step(at_ms, at_ms + _ZOOKEEPER_GONE_MS, fault))
        busy_until_ms = [0] * BOOKIES
        at_ms = 500
        while at_ms < length_ms - 1_000:
            free = [number for number in range(BOOKIES) if busy_until_ms[number] <= at_ms]
            trouble = BOOKIES - len(free)
            if trouble < _USUAL_TROUBLE or (trouble == _USUAL_TROUBLE and chance.random() < 0.2):
                number = chance.choice(free)
                fault = chance.choice(_OF_BOOKIES)
                last_ms = chance.randrange(800, 4_000) if trouble < _USUAL_TROUBLE else chance.randrange(200, 800)
                until_ms = min(at_ms + last_ms, length_ms)
                steps.append(Step(at_ms, until_ms, fault, number))
                # A bookie that was killed needs a while to be back.
                busy_until_ms[number] = until_ms + (1_500 if fault is Fault.KILL else 0)
            elif chance.random() < 0.15:
                steps.append(Step(at_ms, at_ms, Fault.RECOVER))
            at_ms += chance.randrange(100, 600)
        quorum = Quorum(3, 3, 2) if seed % 2 else Quorum(4, 3, 2)
        return cls(seed, quorum, tuple(sorted(steps, key=lambda step: step.at_ms)), length_ms)
