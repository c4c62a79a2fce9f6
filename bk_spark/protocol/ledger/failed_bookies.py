"""Which bookies of a writer's ensemble failed, and what was tried to replace them."""

from __future__ import annotations

from collections.abc import Sequence

from bk_spark.protocol.ledger.writer_actions import ChooseBookies
from bk_spark.protocol.quorum import Quorum


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
