"""What goes wrong with a streaming query, and when: a plan made from a seed."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass
from typing import Final

BATCHES: Final = 14
#: Batches before the first fault and after the last.
_QUIET: Final = 1


class Fault(enum.Enum):
    KILL_EXECUTOR = "kill -9 of an executor"
    KILL_WORKER = "kill -9 of a Python process"
    KILL_DRIVER = "kill -9 of the driver"
    KILL_DRIVER_AT_COMMIT = "kill -9 of the driver as a commit reaches ZooKeeper"
    LOSE_LAST_COMMIT = "kill -9 of the driver, and the newest file of checkpoint/commits is deleted"
    PAUSE_DRIVER = "SIGSTOP of the driver and its executors, SIGCONT when a second driver has committed"
    KILL_BOOKIE = "kill -9 of a bookie, started again later"
    KILL_LEADER = "kill -9 of ZooKeeper's leader, started again later"
    MAINTAIN = "the reaper runs, with no grace and two hours ahead"


@dataclass(frozen=True, slots=True)
class Step:
    """``fault`` when ``at_batch`` is committed and ``delay_ms`` have passed; ``which`` picks among its targets;
    what is started again is so after ``down_ms``."""

    at_batch: int
    delay_ms: int
    fault: Fault
    which: int = 0
    down_ms: int = 0

    def __str__(self) -> str:
        return f"after batch {self.at_batch} and {self.delay_ms} ms: {self.fault.name}, {self.fault.value}"


@dataclass(frozen=True, slots=True)
class Plan:
    """``from_log``: rows come from another log, not from Spark's rate source. ``executors``: 1 or 2."""

    seed: int
    from_log: bool
    partitions: int
    rows_per_batch: int
    batches: int
    steps: tuple[Step, ...]
    executors: int = 2

    @classmethod
    def make(cls, seed: int) -> Plan:
        """Odd seeds read Spark's numbered rows, even ones a log. Two to four faults; two of them may overlap."""
        chance = random.Random(seed)
        steps = []
        for _ in range(chance.randint(2, 4)):
            fault = chance.choice(list(Fault))
            steps.append(
                Step(
                    chance.randint(_QUIET, BATCHES - 2 - _QUIET),
                    chance.randrange(0, 1_200),
                    fault,
                    chance.randrange(1_000),
                    chance.randrange(500, 5_000),
                )
            )
        steps.sort(key=lambda step: (step.at_batch, step.delay_ms))
        return cls(
            seed,
            from_log=seed % 2 == 0,
            partitions=chance.choice((1, 2, 3)),
            rows_per_batch=chance.choice((30, 100, 500)),
            batches=BATCHES,
            steps=tuple(steps),
        )
