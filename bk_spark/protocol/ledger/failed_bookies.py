"""Which bookies of a writer's ensemble failed or are busy, and what was tried to replace them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bk_spark.protocol.ledger.writer_actions import ChooseBookies, SendRefused
from bk_spark.protocol.machine import StartTimer
from bk_spark.protocol.quorum import Quorum

#: Pause before a bookie gets again what it refused for being busy. It doubles while the bookie refuses everything.
FIRST_PAUSE_MS: Final = 20.0
LAST_PAUSE_MS: Final = 1_000.0


class FailedBookies:
    """Positions without a bookie in use, bookies to avoid, and the search under way."""

    def __init__(self) -> None:
        #: Ensemble index to bookie.
        self.failed: dict[int, str] = {}
        #: Failed indexes for which no replacement was to be had.
        self.irreplaceable: set[int] = set()
        #: Bookies that failed this writer.
        self.quarantine: set[str] = set()
        self.search_is_slow = False
        self._search = ChooseBookies((), frozenset(), frozenset(), False)
        self._search_is_old = False

    def begin_search(self, ensemble: Sequence[str], quorum: Quorum) -> ChooseBookies:
        """Look for all that failed so far."""
        self._search = self._wanted(ensemble, quorum)
        self._search_is_old = self.search_is_slow = False
        return self._search

    def answers_what_is_wanted(self, ensemble: Sequence[str], quorum: Quorum) -> bool:
        """Whether the search that ended is the one that would begin now: no bookie came, and none failed, since."""
        wanted = self._wanted(ensemble, quorum)
        same = (wanted.failed, wanted.needed) == (self._search.failed, self._search.needed)
        return same and not self._search_is_old

    def on_bookies_changed(self) -> bool:
        """Bookies came or went; whether that may help with what was not to be replaced."""
        self._search_is_old = True
        hope = bool(self.irreplaceable)
        if hope:
            self.irreplaceable.clear()
            self.quarantine.clear()
        return hope

    def replaced(self, index: int) -> None:
        """Another bookie took the place at ``index``."""
        self.failed.pop(index, None)
        self.irreplaceable.discard(index)

    def _wanted(self, ensemble: Sequence[str], quorum: Quorum) -> ChooseBookies:
        exclude = frozenset(ensemble)
        avoid = frozenset(self.quarantine) - exclude
        return ChooseBookies(tuple(sorted(self.failed)), exclude, avoid, not quorum.can_spare(self.failed))


class BusyBookies:
    """Bookies that refused adds for having too many requests, and how long each is left alone."""

    def __init__(self) -> None:
        #: Those whose refused adds wait to be sent again.
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
        """The bookie took an add."""
        self.pauses_ms.pop(bookie_id, None)

    def forget(self, bookie_id: str) -> None:
        self.waiting.discard(bookie_id)
        self.pauses_ms.pop(bookie_id, None)

    def clear(self) -> None:
        self.waiting.clear()
        self.pauses_ms.clear()
