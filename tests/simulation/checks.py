"""What is checked of every kind of history: many hold, the seed alone determines each, and they find broken rules."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

from tests.simulation import runner
from tests.simulation.outcomes import Counts, History
from tests.support.daily import first_seed_of_today

_H = TypeVar("_H", bound=History)

#: By kind of history and mutant, the seed of a history that finds the mutant. ``make simulate-mutants`` writes it.
_FOUND: Final = Path(__file__).parent / "mutants_found.json"
_SEARCH: Final = os.environ.get("SEARCH_MUTANTS") == "1"


def check_histories(kind: str, numbers: range, least: Mapping[str, float]) -> Counts:
    """Play today's histories with these numbers. All must hold, and everything in ``least`` must happen more often than
    it says."""
    today = first_seed_of_today()
    seeds = range(today + numbers.start, today + numbers.stop)
    summary = runner.play(seeds, kind)
    again = f"again: python -m tests.simulation run {seeds.start}..{seeds.stop}{runner.option(kind)}"
    print(f"{summary}\n{again}")
    assert not summary.failures, "\n\n".join(summary.failures)
    assert summary.histories == len(seeds)
    for name, times in least.items():
        assert summary.counts[name] > times, f"{summary.counts[name]} {name}, at least {times} expected; {again}"
    return summary.counts


def check_told_by_seed_alone(kind: str, seed: int, part: str) -> None:
    """Two histories of the same seed have the same story, which has ``part`` in it."""
    stories = []
    for _ in range(2):
        history = runner.KINDS[kind](seed)
        history.play()
        stories.append(history.world.story(10_000))
    assert stories[0] == stories[1]
    assert part in stories[0]


def stories(seed: int) -> str:
    """The stories of this seed's histories, one of each kind."""
    told = []
    for kind, make in runner.KINDS.items():
        history = make(seed)
        history.play()
        told.append(f"{kind}: {history.world.story(10_000)}")
    return "\n".join(told)


def error_of_mutant(
    kind: str,
    mutant: str,
    make: Callable[[int], _H],
    most_seeds: int,
    play: Callable[[_H], object] = lambda history: history.play(),
) -> Exception:
    """The error of the first history that finds a mutant.

    The recorded seed goes first. If its history does not find the mutant, because the world or the code under test has
    changed, seeds are tried from 0 on. If none of ``most_seeds`` finds it, histories have lost their power.
    ``SEARCH_MUTANTS=1`` (``make simulate-mutants``) tries from 0 on in any case, and records the seed.
    """
    found: dict[str, dict[str, int]] = json.loads(_FOUND.read_text("utf-8"))
    recorded = None if _SEARCH else found.get(kind, {}).get(mutant)
    for seed in [*([] if recorded is None else [recorded]), *range(most_seeds)]:
        history = make(seed)
        try:
            play(history)
        except Exception as error:
            print(f"seed {seed} finds it: {type(error).__name__}: {error}")
            if seed != recorded and not _SEARCH:
                print("`make simulate-mutants` records that seed, so that nobody has to search")
            if _SEARCH:
                found.setdefault(kind, {})[mutant] = seed
                _FOUND.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n", "utf-8")
            return error
    raise AssertionError(f"not found among {most_seeds} histories")
