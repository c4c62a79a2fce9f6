"""The failed and busy bookies of a writer's ensemble, and the searches for replacements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bk_spark.protocol.ledger.writer_actions import ChooseBookies, SendRefused
from bk_spark.protocol.machine import StartTimer
from bk_spark.protocol.quorum import Quorum

#: Pause before adds that a busy bookie refused are sent again. It doubles while the bookie refuses everything.
FIRST_PAUSE_MS: Final = 20.0
LAST_PAUSE_MS: Final = 1_000.0


class FailedBookies:
    """Ensemble positions without a working bookie, bookies to avoid, and the search under way."""

    def __init__(self) -> None:
        #: Ensemble index to bookie.
        self.failed: dict[int, str] = {}
        #: Failed indexes for which no replacement was found.
        self.irreplaceable: set[int] = set()
        #: Bookies that failed this writer.
        self.quarantine: set[str] = set()
        self.search_is_slow = False
        self._search = ChooseBookies((), frozenset(), frozenset(), False)
        self._search_is_old = False

    def begin_search(self, ensemble: Sequence[str], quorum: Quorum) -> ChooseBookies:
        """Start a search for replacements of all bookies that have failed so far."""
        self._search = self._wanted(ensemble, quorum)
        self._search_is_old = self.search_is_slow = False
        return self._search

    def answers_what_is_wanted(self, ensemble: Sequence[str], quorum: Quorum) -> bool:
        """Return whether the search that ended still fits: since it began, no bookie came and none failed."""
        wanted = self._wanted(ensemble, quorum)
        same = (wanted.failed, wanted.needed) == (self._search.failed, self._search.needed)
        return same and not self._search_is_old

    def on_bookies_changed(self) -> bool:
        """Record that bookies came or went. Return whether that may help to replace an irreplaceable one."""
        self._search_is_old = True
        hope = bool(self.irreplaceable)
        if hope:
            self.irreplaceable.clear()
            self.quarantine.clear()
        return hope

    def replaced(self, index: int) -> None:
        """Record that the bookie at ``index`` was replaced."""
        self.failed.pop(index, None)
        self.irreplaceable.discard(index)

    def _wanted(self, ensemble: Sequence[str], quorum: Quorum) -> ChooseBookies:
        exclude = frozenset(ensemble)
        avoid = frozenset(self.quarantine) - exclude
        return ChooseBookies(tuple(sorted(self.failed)), exclude, avoid, not quorum.can_spare(self.failed))


class BusyBookies:
    """Bookies that refused adds because of too many requests, and the pause of each."""

    def __init__(self) -> None:
        #: Bookies whose refused adds wait to be sent again.
        self.waiting: set[str] = set()
        #: The next pause of each, until it takes an add.
        self.pauses_ms: dict[str, float] = {}

    def on_refused(self, bookie_id: str, *, took_some: bool) -> list[StartTimer]:
        if took_some:
            self.on_taken(bookie_id)
        if bookie_id in self.waiting:
            return []
        self.waiting.add(bookie_id)
        pause_ms = self.pauses_ms.get(bookie_id, FIRST_PAUSE_MS)
        self.pauses_ms[bookie_id] = min(2 * pause_ms, LAST_PAUSE_MS)
        return [StartTimer(SendRefused(bookie_id), pause_ms)]

    def on_taken(self, bookie_id: str) -> None:
        """Record that the bookie took an add."""
        self.pauses_ms.pop(bookie_id, None)

    def forget(self, bookie_id: str) -> None:
        self.waiting.discard(bookie_id)
        self.pauses_ms.pop(bookie_id, None)

    def clear(self) -> None:
        self.waiting.clear()
        self.pauses_ms.clear()
