"""A streaming query goes on while its processes, bookies and ZooKeeper's leader are killed: every row once, in order.

``make stream-faults SEEDS=…`` runs more of the same (see CONTRIBUTING.md).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie_server.local import LocalCluster
from tests.faults.streams.plan import Fault, Plan, Step
from tests.faults.streams.run import Outcome, StreamRun
from tests.faults.test_continuous_write import seeds
from tests.support.servers import BOOKIE_SETTINGS, start_timeout_ms

_SEEDS = "2"


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three ZooKeeper servers and four bookies."""
    with LocalCluster(
        tmp_path_factory.mktemp("ensemble"),
        bookies=4,
        zookeepers=3,
        bookie_settings=BOOKIE_SETTINGS,
        start_timeout_ms=start_timeout_ms(),
    ) as running:
        yield running


def carry_out(cluster: LocalCluster, plan: Plan, directory: Path) -> Outcome:
    outcome = StreamRun(cluster, plan, directory).run()
    print(outcome)
    assert not outcome.problems, str(outcome)
    return outcome


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", seeds(os.environ.get("STREAM_FAULT_SEEDS") or _SEEDS))
def test_every_row_once_whatever_is_killed(ensemble: LocalCluster, seed: int, tmp_path: Path) -> None:
    carry_out(ensemble, Plan.make(seed), tmp_path)


@pytest.mark.timeout(600)
def test_s1_a_commit_reached_zookeeper_and_the_driver_died(ensemble: LocalCluster, tmp_path: Path) -> None:
    """Its newest commit is lost as well, so that batches are run again whose commits Spark had or had not noted. The
    second driver, which goes with that, has not begun: a start is what takes time here."""
    steps = (Step(2, 0, Fault.KILL_DRIVER_AT_COMMIT), Step(3, 0, Fault.LOSE_LAST_COMMIT))
    outcome = carry_out(ensemble, Plan(1001, False, 2, 100, 7, steps), tmp_path)
    assert outcome.starts == 3


@pytest.mark.timeout(600)
def test_s2_tasks_die_between_their_adds_and_their_messages(ensemble: LocalCluster, tmp_path: Path) -> None:
    steps = tuple(
        Step(batch, 150 * batch, fault, batch)
        for batch, fault in enumerate((Fault.KILL_WORKER, Fault.KILL_EXECUTOR, Fault.KILL_WORKER), start=1)
    )
    carry_out(ensemble, Plan(1002, True, 3, 500, 7, steps), tmp_path)


@pytest.mark.timeout(600)
def test_s3_a_second_driver_on_the_checkpoint_of_a_paused_one(ensemble: LocalCluster, tmp_path: Path) -> None:
    outcome = carry_out(ensemble, Plan(1003, False, 2, 100, 6, (Step(2, 200, Fault.PAUSE_DRIVER),)), tmp_path)
    assert (outcome.starts, outcome.taken_over) == (2, 1)
