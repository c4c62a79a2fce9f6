"""Chooses the bookie that a tail polls next (:mod:`bk_spark.protocol.ledger.reading.tail`).

A round asks each bookie of the last segment once. It ends early when a bookie has news, or waited the full time without
news. A round in which no bookie waited is followed by a pause, which gets longer each time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from bk_spark.protocol.ledger.reading.read_settings import Suspects

#: Pauses after something failed, or after no bookie had the ledger yet.
_FIRST_PAUSE_MS: Final = 50
_MAX_QUIET_PAUSE_MS: Final = 1_000
_MAX_FAILURE_PAUSE_MS: Final = 5_000


@dataclass(slots=True)
class Poll:
    """A long poll under way. It is slow, and gets a second one beside it, after ``slow_after_ms``."""

    bookie_id: str
    previous_lac: int
    slow_after_ms: int
    slow: bool = False
    #: The bookie has not yet waited for half the time that it was asked to.
    early: bool = True
    #: The LAC that the bookie claims, once it has answered.
    claimed_lac: int | None = None


class PollRounds:
    """The order of polls. ``suspects`` are asked last. Bookies that fail are added to them."""

    def __init__(self, suspects: Suspects) -> None:
        self._suspects = suspects
        self._turn = 0
        #: Bookies of this round without news, and those that failed (with the reason).
        self._quiet: set[str] = set()
        self._failed: dict[str, str] = {}
        self._quiet_rounds = 0
        #: The number of consecutive rounds in which every bookie failed.
        self.failed_rounds = 0

    def candidate(self, ensemble: tuple[str, ...], last_add_confirmed: int, polled: Collection[str]) -> str | None:
        """Return the bookie to ask next. None if all bookies of this round were asked, or are ``polled``.

        The first one holds both the entry after the LAC and the one after that.
        """
        turn = (last_add_confirmed + 2 + self._turn) % len(ensemble)
        taken = {*polled, *self._quiet, *self._failed}
        free = [bookie for bookie in (*ensemble[turn:], *ensemble[:turn]) if bookie not in taken]
        return min(free, key=lambda bookie: bookie in self._suspects, default=None)

    @property
    def has_quiet(self) -> bool:
        """Whether a bookie of this round answered without news. Then the round may end before all have answered."""
        return bool(self._quiet)

    @property
    def failures(self) -> str:
        """Return the failures of this round's bookies, for an error's text."""
        return "; ".join(f"{bookie} {reason}" for bookie, reason in self._failed.items())

    def on_news(self) -> None:
        """Record a higher LAC. The next round begins at once, with the first bookie."""
        self._turn = self._quiet_rounds = self.failed_rounds = 0
        self._begin()

    def on_silence(self, bookie_id: str, *, waited: bool) -> None:
        """Record an answer without news."""
        self.failed_rounds = 0
        if waited:
            self._turn += 1
            self._begin()
        else:
            self._quiet.add(bookie_id)

    def on_failure(self, bookie_id: str, reason: str) -> None:
        """Record that a bookie did not answer, or answered with an error. ``reason`` is for an error's text."""
        self._suspects.add(bookie_id)
        self._failed[bookie_id] = reason

    def end(self) -> int:
        """End the round, after every bookie was asked. Return the pause before the next round, in ms."""
        if self._quiet:
            self._quiet_rounds += 1
            pause_ms = growing_pause_ms(self._quiet_rounds, _MAX_QUIET_PAUSE_MS)
        else:
            self.failed_rounds += 1
            pause_ms = growing_pause_ms(self.failed_rounds)
        self._begin()
        return pause_ms

    def _begin(self) -> None:
        self._quiet.clear()
        self._failed.clear()


def growing_pause_ms(times: int, at_most_ms: int = _MAX_FAILURE_PAUSE_MS) -> int:
    """Return a pause: :data:`_FIRST_PAUSE_MS` the first time, then twice the previous one."""
    return min(at_most_ms, _FIRST_PAUSE_MS << min(times - 1, 16))
