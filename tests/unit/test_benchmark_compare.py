"""What ``python -m benchmarks.compare`` takes for the same figure, and for a loss."""

from __future__ import annotations

import itertools
import math
import re

import pytest

from benchmarks import compare
from benchmarks.compare import Key, Values, key_of, losses, rounds_and_losses

CPU: Key = ("bookie_raw", "adds.bookie_cpu", "us/entry", "size=1024")
RATE: Key = ("bookie_raw", "adds.entries", "entries/s", "size=1024")


def test_a_figure_is_told_by_its_words_and_its_size() -> None:
    told = {"benchmark": "tls", "figure": "write.tls.cpu", "value": 7.9, "unit": "s/GB", "size": 1024, "how": "v2"}
    assert key_of(told) == ("tls", "write.tls.cpu", "s/GB", "size=1024", "how=v2")
    assert key_of(told | {"value": 8.0, "slowest_s": 0.5}) == key_of(told)
    assert key_of(told | {"size": 100}) != key_of(told)


@pytest.mark.parametrize(
    ("base", "here", "lost"),
    [
        ([5.0, 4.0], [4.9, 4.7], 0),
        # Another program may disturb any round of either side.
        ([4.0, 9.0], [4.1, 30.0], 0),
        ([4.0, 9.0], [5.0, 4.9], 1),
        # Too short to be measured.
        ([0.0, 4.0], [4.0, 4.0], 0),
    ],
)
def test_a_loss(base: list[float], here: list[float], lost: int) -> None:
    rates = {RATE: [100.0, 100.0]}
    found = losses({CPU: base} | rates, {CPU: here} | {RATE: [1.0, 1.0]}, 1.2, re.compile("cpu"), min)
    assert len(found) == lost
    assert all(key == CPU and "times the base" in each for key, each in found.items())


def test_only_figures_of_both_sides_are_compared() -> None:
    assert losses({CPU: [1.0]}, {}, 1.2, re.compile("cpu"), min) == {}
    assert losses({CPU: [1.0]}, {CPU: [9.0]}, math.inf, re.compile("cpu"), min) == {}


@pytest.mark.parametrize(
    ("base", "here", "losses_found", "rounds"),
    [
        ([4.0], [4.1, 4.2], [], 2),
        (
            [4.0],
            [5.0],
            [f"{' '.join(CPU)}: lowest 1.25 times the base (4 -> 5), medians 1.25 times the base (4 -> 5)"],
            10,
        ),
        # In one of ten rounds the base found the machine at its fastest.
        ([4.0, 3.0, 4.0], [4.1], [], 10),
        # The first rounds were disturbed, not the next ones.
        ([4.0], [5.0, 5.0, 4.1], [], 4),
    ],
)
def test_rounds_are_added_before_a_loss_counts(
    base: list[float], here: list[float], losses_found: list[str], rounds: int
) -> None:
    given = {
        side: itertools.chain(values, itertools.repeat(values[-1])) for side, values in (("base", base), ("here", here))
    }

    def run(side: str, values: Values) -> None:
        values[CPU].append(next(given[side]))

    found, lost = rounds_and_losses(run, 2, 1.2, re.compile("cpu"))
    assert lost == losses_found
    assert len(found["base"][CPU]) == len(found["here"][CPU]) == rounds


def test_a_base_that_is_no_commit() -> None:
    with pytest.raises(SystemExit, match="no-such-commit is no commit of this checkout; a shallow clone"):
        compare.main(["no-such-commit", "bookie_raw"])
