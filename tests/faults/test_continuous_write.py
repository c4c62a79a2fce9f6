"""A client writes while bookies, links and ZooKeeper fail in overlap: nothing acknowledged is lost.

``make faults SEEDS=…`` runs more of the same (see CONTRIBUTING.md).
"""

from __future__ import annotations

import pytest

from tests.faults.plan import Plan
from tests.faults.run import FaultRun
from tests.faults.seeds import wanted
from tests.support.proxied_cluster import ProxiedCluster

#: One of each kind: 3/3/2, 4/3/2, and one in which ZooKeeper is gone for 20 s.
_SEEDS = [1, 2, 3]
_LEAST_ACKNOWLEDGED = 1_000
#: On average of the seeds: one plan may leave its ledgers' bookies alone.
_LEAST_CHANGES = 1


@pytest.mark.timeout(1_800)
def test_nothing_acknowledged_is_lost(proxied_cluster: ProxiedCluster) -> None:
    """One test for all seeds, because whether the plans had an effect is a question about all of them."""
    failed: list[str] = []
    changes: list[int] = []
    for seed in wanted("FAULT_SEEDS") or _SEEDS:
        outcome = FaultRun(proxied_cluster, Plan.make(seed)).run()
        print(outcome)
        changes.append(outcome.changes)
        if outcome.problems or outcome.acknowledged < _LEAST_ACKNOWLEDGED or not outcome.seen:
            failed.append(str(outcome))
    assert not failed, "\n\n".join(failed)
    assert sum(changes) >= _LEAST_CHANGES * len(changes), f"ensemble changes by seed: {changes}"
