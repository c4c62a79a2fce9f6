"""Every order of events in small worlds (see explorer.py), and the five mutants that must be found there."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from bk_spark.protocol.quorum import Quorum
from tests.simulation import mutants
from tests.simulation.explored import Budget
from tests.simulation.explorer import explore
from tests.simulation.histories import Cast
from tests.simulation.outcomes import InvariantError
from tests.simulation.small_worlds import SMALL_WORLDS, SmallWorld

#: The fates of one entry that a recovery decides: cut off, saved though not acknowledged, acknowledged and saved.
NEVER_ACKNOWLEDGED = {(-1, LedgerState.CLOSED, -1), (-1, LedgerState.CLOSED, 0)}
ACKNOWLEDGED = (0, LedgerState.CLOSED, 0)


@pytest.mark.parametrize("name", SMALL_WORLDS)
def test_small_worlds(name: str) -> None:
    small = SMALL_WORLDS[name]
    report = explore(small.world(), small.budget)
    print(f"{name}: {report}")
    assert report.error is None, f"{report}\n{report.story}"
    assert report.complete
    if small.entries and small.recoverers:
        # An exploration that did not see every ending tested nothing.
        assert report.outcomes >= {*NEVER_ACKNOWLEDGED, ACKNOWLEDGED}


@pytest.mark.parametrize("small", [SmallWorld(Quorum(2, 2, 2), 2, 1), SmallWorld(Quorum(2, 2, 1), 2, 1)], ids=str)
def test_what_is_left_out_makes_no_difference(small: SmallWorld) -> None:
    reduced = explore(small.world(), small.budget)
    whole = explore(small.world(), small.budget, reduced=False)
    assert reduced.complete
    assert whole.complete
    assert reduced.outcomes == whole.outcomes
    assert 10 * reduced.states < whole.states


@pytest.mark.parametrize("quorum", [Quorum(2, 2, 2), Quorum(3, 3, 2)], ids=str)
def test_recovery_reads_that_do_not_fence(quorum: Quorum) -> None:
    small = SmallWorld(quorum, quorum.ensemble_size, 1)
    report = explore(small.world(Cast(recovery=mutants.ReadsDoNotFence)), small.budget)
    assert isinstance(report.error, InvariantError)
    assert "entry 0 is acknowledged, the ledger closed at -1" in str(report.error)
    assert "CLOSED at -1" in report.story
    assert "w is acknowledged up to 0" in report.story


@pytest.mark.parametrize("quorum", [Quorum(2, 2, 2), Quorum(3, 3, 2)], ids=str)
def test_unknown_counted_as_absent(quorum: Quorum) -> None:
    small = SmallWorld(quorum, quorum.ensemble_size, 1, Budget(losses=1))
    report = explore(small.world(Cast(recovery=mutants.UnknownIsAbsent)), small.budget)
    assert isinstance(report.error, InvariantError)
    assert "entry 0 is acknowledged, the ledger closed at -1" in str(report.error)
    assert "lose answer read 0" in report.story


def test_acknowledging_before_the_ensemble_is_published() -> None:
    small = SmallWorld(Quorum(2, 2, 2), 3, 1, Budget(losses=1))
    report = explore(small.world(Cast(writer=mutants.PublishesNothing)), small.budget)
    assert isinstance(report.error, InvariantError)
    assert "where readers look for entry 0" in str(report.error)


@pytest.mark.parametrize("quorum", [Quorum(2, 2, 1), Quorum(3, 3, 1)], ids=str)
def test_coverage_by_any_ack_quorum(quorum: Quorum) -> None:
    small = SmallWorld(quorum, quorum.ensemble_size, 1)
    assert explore(small.world(), small.budget).error is None
    with ExitStack() as stack:
        mutants.let_any_ack_quorum_decide(stack)
        report = explore(small.world(), small.budget)
    assert isinstance(report.error, InvariantError)
    assert "entry 0 is acknowledged, the ledger closed at -1" in str(report.error)


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(3, 3, 1), Quorum(3, 2, 1)], ids=str)
def test_c17_somebody_else_uses_the_ledgers_id(quorum: Quorum) -> None:
    small = SmallWorld(quorum, 3, 0, entries=2, closes=True, claimed=False)
    report = explore(small.world(), small.budget)
    assert report.error is None, f"{report}\n{report.story}"
    assert report.complete
    # It is refused before anything is acknowledged, or never; in between only if entry 0 has another write set.
    refused, done = {(-1, LedgerState.OPEN, -1)}, {(1, LedgerState.CLOSED, 1)}
    assert report.outcomes >= refused | done
    report = explore(small.world(Cast(writer=mutants.AwaitsNobody)), small.budget)
    assert isinstance(report.error, InvariantError)
    assert "b3 gives readers another's entry" in str(report.error)


def test_recovery_from_entry_minus_one() -> None:
    small = SMALL_WORLDS["2/2/2 after a finished segment, two lost messages"]
    report = explore(small.world(Cast(recovery=mutants.RecoversFromTheBeginning)), small.budget)
    # It writes entry 0 back to the last segment, and would start a segment that lies before the last one.
    assert isinstance(report.error, InvalidArgumentError)
    assert "increasing first entries" in str(report.error)
    assert "add 0 r1→b3" in report.story
