"""Many random histories of logs (see histories.py), and broken rules that few histories must find."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from bk_spark.protocol.errors import MetadataFormatError
from tests.simulation import runner
from tests.simulation.checks import check_histories, check_told_by_seed_alone, error_of_mutant
from tests.simulation.logs import mutants
from tests.simulation.logs.histories import Focus, History
from tests.simulation.logs.streaming import Driver, Query
from tests.simulation.outcomes import InvariantError

HISTORIES = 400
#: In portions, so that a test stays within its time on a busy machine.
PORTION = 200
MOST_SEEDS = 400


@pytest.mark.parametrize("first", range(0, HISTORIES, PORTION))
def test_f1_f2_l1_s1_s2_s3_t1_t2_histories_of_logs(first: int) -> None:
    least = {
        "commits": 3 * PORTION,
        "found done": PORTION / 2,
        "conflicts": PORTION,
        "acknowledged": PORTION,
        "deleted": PORTION / 4,
        "read segments": PORTION / 4,
        "followed": PORTION / 2,
        "read ranges": PORTION / 20,
        "followed tails": PORTION / 25,
        "moved pages": 0,
        "past states": PORTION / 4,
        "strays": 0,
        "schema versions": PORTION / 4,
    }
    for name in ("zombies", "lost replies", "kills", "rolls", "fenced", "retentions", "maintenances", "clocks set"):
        least[name] = PORTION / 40
    check_histories("logs", range(first, first + PORTION), least)


def test_nothing_befalls_a_run_that_begins_after_everything_healed() -> None:
    """Otherwise a query that must finish may lose its tasks forever: a false alarm."""
    history = History(1)
    history.world.healed = True
    for number in range(100):
        query = Query(history.world.paths, f"late{number}", 1)
        history.start(query)
        assert query.runs
        driver = history.world.actors[-1]
        assert isinstance(driver, Driver)
        assert driver.speculation == driver.task_kills == 0.0


def test_a_history_of_a_log_is_told_by_its_seed_alone() -> None:
    check_told_by_seed_alone("logs", 11, "transaction [")


#: Streaming queries and the reaper, with long pauses.
REAPER = Focus(
    queries=1, log_writers=0, reapers=2, movers=0, truncators=1, deleters=0, small_pages=False, jump=0.03, stop=0.03
)
#: Pages that move into index ledgers, whose bookies sometimes fail.
INDEX = Focus(
    queries=2, log_writers=0, reapers=1, movers=2, truncators=0, deleters=0, small_pages=True, ledger_faults=0.1
)
CROWD = Focus(queries=2, log_writers=2, reapers=0, movers=0, truncators=3, deleters=0, small_pages=False)
STRAYS = Focus(queries=2, log_writers=0, reapers=0, movers=0, truncators=0, deleters=0, small_pages=False)
#: Machines with wrong clocks, some of them suspended; retention, whose policy is changed.
CLOCKS = Focus(
    queries=2, log_writers=1, reapers=1, movers=0, deleters=0, retentions=2, wrong_clocks=0.5, jump=0.02, stop=0.03
)
#: Log writers that roll often, and their followers.
FOLLOW = Focus(
    queries=1, log_writers=3, reapers=1, movers=0, deleters=0, readers=0, maintenances=0, followers=2, stop=0.03
)
MAINTENANCE = Focus(
    queries=1, log_writers=0, reapers=0, movers=0, truncators=0, deleters=0, readers=0, maintenances=3, jump=0.02
)
#: Commits that grow the schema at once, most of them without rows.
GROWTH = Focus(queries=2, log_writers=0, reapers=0, movers=0, truncators=0, deleters=0, small_pages=False, growers=3)
#: Overwrites and truncations, maintenance, and readers of earlier states, over days.
PAST = Focus(
    queries=2,
    log_writers=0,
    reapers=2,
    movers=0,
    truncators=2,
    deleters=0,
    maintenances=1,
    jump=0.04,
    small_pages=False,
    records_commits=True,
    past_readers=2,
)
WRITERS = Focus(queries=1, log_writers=3, reapers=1, movers=0, truncators=0, deleters=0, small_pages=False)


@dataclass(frozen=True, slots=True)
class Mutant:
    breaks: Callable[[ExitStack], None]
    focus: Focus = field(default_factory=Focus)
    #: The error that may also expose it, besides an invariant.
    also: type[Exception] = InvariantError


MUTANTS = [
    # The three from the table of scenarios.
    Mutant(mutants.old_ledgers_are_deleted_before_the_commit, REAPER),
    Mutant(mutants.lost_replies_are_answered_by_sending_again, REAPER),
    Mutant(mutants.condemned_ledgers_are_committed, REAPER),
    # Commits.
    Mutant(mutants.the_run_is_not_checked, REAPER),
    Mutant(mutants.registrations_are_kept_whatever_becomes_of_their_run, REAPER),
    Mutant(mutants.batches_are_not_looked_for),
    Mutant(mutants.ranges_are_not_compared),
    Mutant(mutants.a_set_back_checkpoint_counts_as_done, STRAYS),
    Mutant(mutants.all_queries_count_as_one, STRAYS),
    Mutant(mutants.messages_are_taken_as_they_come),
    Mutant(mutants.versions_are_published_after_their_rows),
    Mutant(mutants.settings_are_written_whatever_they_are, GROWTH),
    Mutant(mutants.the_open_tail_is_dropped, WRITERS),
    # A page cannot hold times that decrease.
    Mutant(mutants.commit_times_are_the_drivers, also=ValueError),
    Mutant(mutants.heads_are_written_whatever_they_are, CROWD),
    # The log may have been deleted by then, and what was read of it does not fit.
    Mutant(mutants.readings_of_new_sessions_count, also=MetadataFormatError),
    # Clocks.
    Mutant(mutants.the_time_is_this_machines, CLOCKS),
    Mutant(mutants.the_time_is_counted_from_sending),
    Mutant(mutants.clocks_are_not_compared, CLOCKS),
    Mutant(mutants.a_measurement_outlives_its_session, CLOCKS),
    Mutant(mutants.the_policy_is_not_checked, CLOCKS),
    # Maintenance.
    Mutant(mutants.claims_of_others_are_ignored, MAINTENANCE),
    Mutant(mutants.claims_of_unknown_outcome_count_as_anothers, MAINTENANCE),
    # Log writers.
    Mutant(mutants.tails_are_sealed_without_recovery, WRITERS),
    Mutant(mutants.rolls_do_not_close, WRITERS),
    Mutant(mutants.entries_are_told_when_sent, WRITERS),
    Mutant(mutants.fenced_writers_are_told_of_all_they_sent, WRITERS),
    Mutant(mutants.tails_are_listed_though_condemned),
    # The reaper.
    Mutant(mutants.condemning_leaves_the_run_alone, REAPER),
    Mutant(mutants.the_reaper_checks_neither_head_nor_application, REAPER),
    Mutant(mutants.the_reaper_does_not_check_the_head),
    Mutant(mutants.ledgers_are_deleted_at_once, REAPER),
    Mutant(mutants.ledgers_are_deleted_without_recovery, REAPER),
    Mutant(mutants.ledgers_in_use_are_condemned, REAPER),
    Mutant(mutants.runs_at_work_count_as_over, REAPER),
    # Earlier states.
    Mutant(mutants.the_past_is_let_go_at_once, PAST),
    Mutant(mutants.the_past_is_let_go_by_a_policy_of_before, PAST),
    Mutant(mutants.the_reaper_takes_what_is_kept_of_the_past, PAST),
    Mutant(mutants.truncations_are_not_recorded, PAST),
    Mutant(mutants.overwritten_states_begin_where_the_log_does, PAST),
    Mutant(mutants.times_count_though_commits_may_still_come, PAST),
    # The index.
    Mutant(mutants.index_ledgers_are_not_closed, INDEX),
    Mutant(mutants.unwritten_index_ledgers_count, INDEX),
    # Readers.
    Mutant(mutants.snapshots_do_not_sync),
    Mutant(mutants.tails_are_followed_from_their_start, FOLLOW),
    Mutant(mutants.tails_are_followed_wherever_they_begin, FOLLOW),
    Mutant(mutants.lists_are_never_outdated, FOLLOW),
    Mutant(mutants.lists_taken_too_early_are_final, FOLLOW),
    Mutant(mutants.the_watch_is_set_after_the_list_was_taken, FOLLOW),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.breaks.__name__)
def test_broken_rules_of_logs_are_caught(mutant: Mutant) -> None:
    """(Two more need a long pause in one place: see test_long_pauses.py.)"""
    with ExitStack() as stack:
        mutant.breaks(stack)
        error = error_of_mutant(
            "logs", mutant.breaks.__name__, lambda seed: History(seed, mutant.focus), MOST_SEEDS, _play
        )
    assert isinstance(error, InvariantError | mutant.also)


def _play(history: History) -> None:
    try:
        history.play()
    except Exception:
        # The remaining actors must do nothing on their way out.
        for actor in list(history.world.alive):
            if not actor.ended:
                # The end of a log writer has already ended its keeper.
                actor.kill()
        raise


def test_a_failing_history_of_a_log_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MOST_FAILURES", 1)
    with ExitStack() as stack:
        mutants.ranges_are_not_compared(stack)
        summary = runner.play(range(40), "logs")
    assert len(summary.failures) == 1
    told = summary.failures[0]
    seed = told.partition(":")[0].removeprefix("seed ")
    assert f"seed {seed}: InvariantError: " in told
    assert "transaction [" in told
    assert f"again: python -m tests.simulation replay {seed} --logs" in told
