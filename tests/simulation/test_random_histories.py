"""Many random histories (see histories.py), and mutants that few histories must find."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.ledger import end_search
from bk_spark.protocol.quorum import Quorum
from tests.simulation import __main__ as command_line, mutants, runner
from tests.simulation.checks import check_histories, check_told_by_seed_alone, error_of_mutant, stories
from tests.simulation.histories import Cast, History
from tests.simulation.outcomes import InvariantError
from tests.simulation.tails import TailActor

ROOT = Path(__file__).parents[2]
HISTORIES = 5_000
#: In portions, so that a test stays within its time on a busy machine.
PORTION = 1_250
MOST_SEEDS = 2_000


@pytest.mark.parametrize("first", range(0, HISTORIES, PORTION))
def test_histories(first: int) -> None:
    least = {
        "steps": 50 * PORTION,
        "acknowledged": PORTION,
        "read": PORTION,
        "followed": PORTION / 2,
        "recoveries": PORTION,
        "faults": PORTION,
        "ensemble changes": PORTION / 4,
    }
    check_histories("ledgers", range(first, first + PORTION), least)


def test_tails_that_are_chased() -> None:
    check_histories("chases", range(150), {"followed": 150, "ensemble changes": 15})


def test_fences_that_are_late() -> None:
    check_histories("late-fences", range(150), {"acknowledged": 150, "recoveries": 150})


def test_a_history_is_told_by_its_seed_alone() -> None:
    check_told_by_seed_alone("ledgers", 4711, "is acknowledged up to")


@dataclass(frozen=True, slots=True)
class Mutant:
    cast: Cast = field(default_factory=Cast)
    #: Drawn if None.
    quorum: Quorum | None = field(default_factory=lambda: Quorum(2, 2, 2))
    breaks: Callable[[ExitStack], None] = lambda stack: None
    play: Callable[[History], object] = History.play_a_race


def _tail(kind: type[TailActor]) -> Mutant:
    return Mutant(Cast(tail=kind), None, play=History.play_a_chase)


def _tail_rule(breaks: Callable[[ExitStack], None]) -> Mutant:
    return Mutant(quorum=None, breaks=breaks, play=History.play_a_chase)


MUTANTS = {
    "publishes nothing": Mutant(Cast(writer=mutants.PublishesNothing)),
    "acknowledges before the ensemble is published": Mutant(
        Cast(writer=mutants.AcknowledgesUnpublished), play=History.play_a_change
    ),
    "takes conflicts for its own change": Mutant(
        Cast(writer=mutants.TakesConflictsForItsOwn), play=History.play_a_change
    ),
    "sends replacements nothing": Mutant(Cast(writer=mutants.SendsReplacementsNothing), play=History.play_a_change),
    "closes before it is drained": Mutant(Cast(writer=mutants.ClosesUndrained), play=History.play_a_change),
    "a second close trusts the first": Mutant(Cast(writer=mutants.TrustsTheFirstClose), play=History.play_a_change),
    "goes on after a failed force": Mutant(
        Cast(writer=mutants.GoesOnAfterAFailedForce, deferred_sync=True), play=History.play
    ),
    "replaces bookies with deferred sync": Mutant(
        Cast(writer=mutants.ReplacesBookiesWithDeferredSync, deferred_sync=True), play=History.play
    ),
    "confirms what is not forced": Mutant(Cast(writer=mutants.ConfirmsUnforced, deferred_sync=True), play=History.play),
    "recovery reads do not fence": Mutant(Cast(recovery=mutants.ReadsDoNotFence), play=History.play_a_late_fence),
    "recovery does not fence": Mutant(Cast(recovery=mutants.DoesNotFence)),
    "recovery does not mark the ledger": Mutant(Cast(recovery=mutants.DoesNotMark)),
    "recovery goes on after a conflict": Mutant(Cast(recovery=mutants.GoesOnAfterAConflict)),
    "errors count as absent": Mutant(Cast(recovery=mutants.ErrorsAreAbsent), play=History.play),
    "unknown counts as absent": Mutant(Cast(recovery=mutants.UnknownIsAbsent)),
    "write-backs carry the newest LAC": Mutant(Cast(recovery=mutants.WritesBackTheNewestLac)),
    "any ack quorum decides": Mutant(quorum=Quorum(2, 2, 1), breaks=mutants.let_any_ack_quorum_decide),
    "no floor under the LAC": Mutant(Cast(recovery=mutants.RecoversFromTheBeginning)),
    "forces go over any connection": Mutant(
        Cast(deferred_sync=True), breaks=mutants.let_forces_go_over_any_connection, play=History.play
    ),
    "a reader keeps old metadata": Mutant(
        quorum=Quorum(1, 1, 1), breaks=mutants.let_old_metadata_stay, play=History.play_a_change
    ),
    "a reader takes an old LAC for the end": Mutant(quorum=None, breaks=mutants.let_old_ends_count, play=History.play),
    "a tail takes polls at their word": _tail(mutants.TakesPollsAtTheirWord),
    "a tail trusts any digest": _tail_rule(mutants.let_tails_trust_any_digest),
    "a tail reads beyond the LAC": _tail(mutants.ReadsBeyondTheLac),
    "a tail ends though the ledger is open": _tail(mutants.EndsWhereItHasCaughtUp),
    "a tail keeps polls of old fragments": _tail(mutants.KeepsPollsOfOldFragments),
    "a tail reads a failed range again": _tail(mutants.ReadsAFailedRangeAgain),
    "a tail reads metadata once": _tail(mutants.ReadsMetadataOnce),
    "a tail waits for metadata for ever": _tail(mutants.WaitsForMetadataForEver),
    "a tail forgets changes while it reads metadata": _tail_rule(mutants.let_watches_be_forgotten),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name: str) -> None:
    mutant = MUTANTS[name]
    with ExitStack() as stack:
        mutant.breaks(stack)
        error = error_of_mutant(
            "ledgers",
            name,
            lambda seed: History(seed, cast=mutant.cast, quorum=mutant.quorum),
            MOST_SEEDS,
            mutant.play,
        )
    if name == "no floor under the LAC" and isinstance(error, InvalidArgumentError):
        # It would write a segment before the last one.
        assert "increasing first entries" in str(error)
    else:
        assert isinstance(error, InvariantError)


def test_a_failing_history_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody_is_covered(quorum: Quorum, answers: object) -> bool:
        return False

    monkeypatch.setattr(end_search, "covered", nobody_is_covered)
    monkeypatch.setattr(runner, "MOST_FAILURES", 2)
    summary = runner.play(range(30))
    assert len(summary.failures) == 2
    told = summary.failures[0]
    seed = told.partition(":")[0].removeprefix("seed ")
    assert f"seed {seed}: InvariantError: " in told
    assert "ends: EntryUnknownError" in told
    assert "who holds what:" in told
    assert f"again: python -m tests.simulation replay {seed}" in told


def test_the_command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "tests.simulation", "run", "3..8", "--jobs", "2"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("5 histories, ")
    monkeypatch.setattr(sys, "argv", ["tests.simulation", "replay", "3", "--last", "5", "--logs"])
    assert command_line.main() == 0
    assert capsys.readouterr().out.startswith("seed 3 holds\n")


def test_another_process_plays_the_same_histories() -> None:
    """It hashes strings otherwise, so its sets have another order."""
    command = [sys.executable, "-c", "from tests.simulation.checks import stories; print(stories(3))"]
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    there = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert there.stdout == f"{stories(3)}\n", there.stderr
