"""A client writes without pause while bookies, links and ZooKeeper fail in overlap: nothing acknowledged is lost.

``make faults SEEDS=…`` runs more of the same (see CONTRIBUTING.md).
"""

from __future__ import annotations

import os

import pytest

from tests.faults.plan import Plan
from tests.faults.run import FaultRun, Outcome
from tests.support.proxied_cluster import ProxiedCluster

#: One of each kind: 3/3/2, 4/3/2, and one in which ZooKeeper is gone for 20 s.
_SEEDS = "1-3"
_LEAST_ACKNOWLEDGED = 2_000
#: On average of the seeds: one plan may leave its ledgers' bookies alone.
_LEAST_CHANGES = 2

_outcomes: list[Outcome] = []


def seeds(text: str) -> list[int]:
    """``7``, ``1-50``, ``3,8-10``."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


@pytest.mark.parametrize("seed", seeds(os.environ.get("FAULT_SEEDS") or _SEEDS))
def test_nothing_acknowledged_is_lost(proxied_cluster: ProxiedCluster, seed: int) -> None:
    outcome = FaultRun(proxied_cluster, Plan.make(seed)).run()
    print(outcome)
    assert not outcome.problems, str(outcome)
    assert outcome.acknowledged >= _LEAST_ACKNOWLEDGED, str(outcome)
    assert outcome.seen > 0, str(outcome)
    _outcomes.append(outcome)


def test_the_plans_had_effect() -> None:
    if not _outcomes:
        pytest.skip("no plan ran to its end")
    changes = [outcome.changes for outcome in _outcomes]
    assert sum(changes) >= _LEAST_CHANGES * len(changes), f"ensemble changes by seed: {changes}"
