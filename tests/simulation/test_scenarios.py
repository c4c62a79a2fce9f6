"""Scenario texts (see scenario.py): each is played as written, and with the rule that it guards broken.

``REWRITE_SCENARIOS=1`` records again; the verdicts must still hold.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.ledger.writer import LedgerWriter
from tests.simulation import broken_rules, mutants
from tests.simulation.histories import Cast
from tests.simulation.outcomes import InvariantError
from tests.simulation.scenario import Scenario, ScenarioError

TEXTS = {path.stem: path for path in sorted((Path(__file__).parent / "scenarios").glob("*.txt"))}
REWRITE = os.environ.get("REWRITE_SCENARIOS") == "1"

#: The broken rule, and how the scenario must fail: with this violation, or with this verdict (``ScenarioError``).
Broken = tuple[Cast | Callable[[ExitStack], None], type[Exception], str]
GUARDED: dict[str, list[Broken]] = {
    "c1_the_fence_is_lost_and_the_add_arrives_after_the_read": [
        (Cast(recovery=mutants.ReadsDoNotFence), InvariantError, "entry 0 is acknowledged, the ledger closed at -1"),
    ],
    "c2_the_fence_arrives_after_the_read": [
        (Cast(recovery=mutants.ReadsDoNotFence), InvariantError, "entry 0 is acknowledged, the ledger closed at -1"),
    ],
    "c3_an_empty_last_segment": [
        (Cast(recovery=mutants.RecoversFromTheBeginning), InvalidArgumentError, "increasing first entries"),
    ],
    "c4_a_bookie_crashes_after_it_was_fenced": [
        (broken_rules.fences_are_forgotten_in_crashes, InvariantError, "acknowledged, the ledger closed at -1"),
    ],
    "c5_an_entry_is_lost_in_a_crash": [
        (Cast(recovery=mutants.UnknownIsAbsent), InvariantError, "acknowledged, the ledger closed at -1"),
        (broken_rules.limbo_is_forgotten, InvariantError, "acknowledged, the ledger closed at -1"),
    ],
    "c6_a_disk_is_wiped": [
        (Cast(recovery=mutants.UnknownIsAbsent), InvariantError, "acknowledged, the ledger closed at -1"),
        (broken_rules.limbo_is_forgotten, InvariantError, "acknowledged, the ledger closed at -1"),
    ],
    "c7_bytes_are_flipped": [
        (Cast(recovery=mutants.UnknownIsAbsent), InvariantError, "acknowledged, the ledger closed at 1"),
        (broken_rules.damaged_is_absent, InvariantError, "acknowledged, the ledger closed at 1"),
    ],
    "c8_zookeeper_stalls_while_three_bookies_fail": [
        (Cast(writer=mutants.PublishesNothing), InvariantError, "where readers look for entry 2, 1 hold it"),
    ],
    "c9_a_bookie_is_replaced_twice": [
        (broken_rules.a_place_is_filled_once, ScenarioError, "b1→w: add 0 OK"),
    ],
    "c10_write_backs_carry_the_lac_found_at_the_start": [
        (Cast(recovery=mutants.WritesBackTheNewestLac), InvariantError, "given entry 0, which is not confirmed"),
    ],
    "c11_one_closes_before_what_another_wrote_back": [
        (broken_rules.the_last_entry_is_confirmed, InvariantError, "given entry 2, which is not confirmed"),
    ],
    "c13_the_recoverers_replies_are_lost": [
        (broken_rules.no_reply_means_done, ScenarioError, "not pending fence r1→b1"),
        (broken_rules.no_reply_to_a_close_means_done, InvariantError, "r1 takes the ledger to be closed"),
    ],
    "c13_the_writers_replies_are_lost": [
        (broken_rules.no_reply_means_done, InvariantError, "where readers look for entry 1"),
        (broken_rules.no_reply_to_a_close_means_done, InvariantError, "w takes the ledger to be closed"),
    ],
    "c14_all_close_at_once": [
        (broken_rules.the_store_does_not_compare, InvariantError, "a closed ledger changed"),
    ],
    "c15_replication_of_a_fenced_ledger": [
        (
            broken_rules.copies_are_collected_during_replication,
            InvariantError,
            "where readers look for entry 0, 1 hold it",
        ),
        (broken_rules.replication_adds_as_a_writer, AssertionError, "was fenced off"),
    ],
    "c16_a_recoverer_crashes_before_it_closes": [
        (Cast(recovery=broken_rules.WritesNothingBack), ScenarioError, "end of r2 == 0"),
    ],
    "c17_a_bookie_knows_another_password": [
        (Cast(writer=mutants.AwaitsNobody), InvariantError, "b3 gives readers another's entry 0"),
    ],
}


@pytest.mark.parametrize("name", TEXTS)
def test_scenario(name: str) -> None:
    scenario = Scenario(TEXTS[name])
    played = scenario.play()
    assert any(statement.text.startswith("expect ") for statement in scenario.statements)
    assert re.match(rf"# {name.partition('_')[0].upper()}\b", scenario.text), "the text begins with its id"
    if REWRITE:
        TEXTS[name].write_text(played, "utf-8")
    elif played != scenario.text:
        lines = difflib.unified_diff(scenario.text.splitlines(), played.splitlines(), "recorded", "played", lineterm="")
        pytest.fail("\n".join(["REWRITE_SCENARIOS=1 records what is played now", *lines]))


def _cases() -> list[object]:
    def called(broken: Cast | Callable[[ExitStack], None]) -> str:
        if not isinstance(broken, Cast):
            return broken.__name__
        return (broken.recovery if broken.writer is LedgerWriter else broken.writer).__name__

    return [
        pytest.param(name, *guarded, id=f"{name}-{called(guarded[0])}")
        for name, all_guarded in GUARDED.items()
        for guarded in all_guarded
    ]


@pytest.mark.parametrize(("name", "broken", "error", "told"), _cases())
def test_the_broken_rule_is_caught(
    name: str, broken: Cast | Callable[[ExitStack], None], error: type[Exception], told: str
) -> None:
    with ExitStack() as stack:
        if not isinstance(broken, Cast):
            broken(stack)
        scenario = Scenario(TEXTS[name], broken if isinstance(broken, Cast) else None)
        verdict = f"'expect {told}': this does not hold"
        with pytest.raises(error, match=verdict if error is ScenarioError else told):
            scenario.play()


def test_every_scenario_guards_a_rule() -> None:
    assert set(GUARDED) == set(TEXTS)


_BEGINNING = "quorum 1/1/1\nbookies 1\nwriter w\nappend w 1\n"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("expect acknowledged 0", "this does not hold"),
        ("expect not pending add 0 w→b1", "this does not hold"),
        ("expect luck", "no such verdict"),
        ("add 1 w→b1", "is not pending; these are: add 0 w→b1"),
        ("explode b1", "is not pending"),
        ("bookies 2", "the world is described first"),
    ],
)
def test_a_text_that_is_wrong_fails(tmp_path: Path, line: str, told: str) -> None:
    """Recording again does not help: the text is played first."""
    path = tmp_path / "c0.txt"
    path.write_text(_BEGINNING + line + "\n", "utf-8")
    with pytest.raises(ScenarioError, match=rf"c0.txt, line 5, '{line}': .*{told}"):
        Scenario(path).play()


def test_what_was_recorded_before_makes_no_difference(tmp_path: Path) -> None:
    path = tmp_path / "c0.txt"
    path.write_text(_BEGINNING + "    w→b9: nonsense\n# a comment\nrun\n\n", "utf-8")
    played = Scenario(path).play()
    assert (
        played
        == _BEGINNING + "    w→b1: add 0\n# a comment\nrun\n    b1→w: add 0 OK\n    w is acknowledged up to 0\n\n"
    )
