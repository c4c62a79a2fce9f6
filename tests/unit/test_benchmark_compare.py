"""What ``python -m benchmarks.compare`` takes for the same figure, and for a loss."""

from __future__ import annotations

import math
import re

import pytest

from benchmarks import compare
from benchmarks.compare import Key, key_of, losses

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
    found = losses({CPU: base} | rates, {CPU: here} | {RATE: [1.0, 1.0]}, 1.2, re.compile("cpu"))
    assert len(found) == lost
    assert all("adds.bookie_cpu" in each and "times the base" in each for each in found)


def test_only_figures_of_both_sides_are_compared() -> None:
    assert losses({CPU: [1.0]}, {}, 1.2, re.compile("cpu")) == []
    assert losses({CPU: [1.0]}, {CPU: [9.0]}, math.inf, re.compile("cpu")) == []


def test_a_base_that_is_no_commit() -> None:
    with pytest.raises(SystemExit, match="no-such-commit is no commit of this checkout; a shallow clone"):
        compare.main(["no-such-commit", "bookie_raw"])
