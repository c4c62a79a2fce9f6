"""How histories end: with an error, or with counts of what happened."""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol


class InvariantError(AssertionError):
    """The code under test broke a promise."""


class Counts(Counter[str]):
    """How often what happened. What never happened is 0; ``update`` adds the counts of other histories.

    Histories in which nothing happens would prove nothing.
    """

    def __str__(self) -> str:
        return ", ".join(f"{count} {name}" for name, count in sorted(self.items()))


class History(Protocol):
    """A random history, determined by its seed."""

    #: Has ``story(last)``, the last events in words.
    world: Any

    def play(self) -> Counts:
        """Raises :class:`InvariantError`, or any error of the code under test."""
