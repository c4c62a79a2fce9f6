"""How long the repair of a lost bookie takes: the shipped workers in model time, and T = D/(N·r) on paper."""

from __future__ import annotations

import pytest

from tests.support.repair_fleet import Loss, RepairFleet

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("workers", [1, 10])
def test_many_ledgers_take_as_long_as_their_bytes(workers: int) -> None:
    """All workers are busy until the last of many ledgers."""
    loss = Loss(400, 400e9, workers, bytes_per_s=50e6, marks_per_s=1_000)
    fleet = RepairFleet(loss)
    assert 1 <= fleet.play() / loss.on_paper_s < 1.1
    # A lock that another worker has costs one request.
    assert fleet.in_vain < 5 * loss.ledgers


def test_workers_that_outrun_the_search_wait_for_it() -> None:
    loss = Loss(300, 300e9, 100, bytes_per_s=50e6, marks_per_s=1)
    search_s = loss.ledgers / loss.marks_per_s
    one_ledger_s = loss.size_bytes / loss.ledgers / (loss.bytes_per_s / loss.settings.at_once)
    assert loss.on_paper_s < search_s / 4
    assert search_s <= RepairFleet(loss).play() < search_s + one_ledger_s + 2 * loss.settings.backoff_ms / 1000
