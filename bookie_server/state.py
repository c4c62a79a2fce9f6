"""Whether the bookie accepts adds, and the reasons if not. Source: compatibility.md §5.9.

Several parts may hold the bookie in read-only mode at once. Each has a name (the source) and removes only its own
reason: a disk that has room again does not end the read-only mode that an operator requested.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

_LOG: Final = logging.getLogger(__name__)

#: A ledger directory is full (or all of them, depending on the configuration).
DISK: Final = "disk"
#: A journal could not be written, or its directory has no room.
JOURNAL: Final = "journal"
#: Entry logs or index files could not be written.
STORAGE: Final = "storage"
#: An operator asked for it.
MANUAL: Final = "manual"
#: ``forceReadOnlyBookie``.
FORCED: Final = "forced"
_SOURCES: Final = (DISK, JOURNAL, STORAGE, MANUAL, FORCED)

#: With these reasons, high-priority adds are refused, too.
_NOTHING_CAN_BE_WRITTEN: Final = frozenset((JOURNAL, STORAGE))


class BookieState:
    """The mode of the bookie and its reasons. Belongs to the event loop."""

    def __init__(self) -> None:
        #: Source → reason in words; empty while the bookie accepts adds.
        self.reasons: dict[str, str] = {}
        #: The process is about to end.
        self.shutting_down = False
        #: The previous process ended without a clean shutdown.
        self.unclean_start = False
        self._room_for_high_priority = True
        self._takes = True
        self._takes_high_priority = True
        self._subscribers: list[Callable[[], None]] = []

    @property
    def read_only(self) -> bool:
        """Whether normal adds are refused."""
        return not self._takes

    @property
    def manually_read_only(self) -> bool:
        """Whether an operator requested read-only mode, which then does not end by itself."""
        return MANUAL in self.reasons

    @property
    def high_priority_adds(self) -> bool:
        """Whether high-priority adds are accepted now, even in read-only mode."""
        return self._takes_high_priority

    def may_add(self, high_priority: bool) -> bool:
        """Whether an add is accepted now. In read-only mode, high-priority adds are accepted while there is room."""
        return self._takes_high_priority if high_priority else self._takes

    def set_read_only(self, source: str, reason: str) -> None:
        """Be read-only because of ``reason`` until :meth:`clear` of the same source."""
        if source not in _SOURCES:
            raise ValueError(f"unknown source {source!r}")
        before = self.reasons.get(source)
        self.reasons[source] = reason
        if before is None:
            _LOG.warning("read-only: source=%s reason=%s", source, reason)
            self._update()

    def clear(self, source: str) -> None:
        """Remove the reason of ``source``, if any. The bookie accepts adds again once no reason is left."""
        if self.reasons.pop(source, None) is None:
            return
        if self.reasons:
            _LOG.info("still read-only: gone=%s left=%s", source, ",".join(self.reasons))
        else:
            _LOG.info("writable again: gone=%s", source)
        self._update()

    def set_room_for_high_priority(self, room: bool) -> None:
        """Set whether the ledger directories have room for high-priority adds (disk monitor)."""
        if room != self._room_for_high_priority:
            self._room_for_high_priority = room
            _LOG.info("adds of high priority are %s in read-only mode", "taken" if room else "refused")
            self._update()

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` in the event loop after each change of the mode or of the sources."""
        self._subscribers.append(callback)

    def _update(self) -> None:
        self._takes = not self.reasons
        self._takes_high_priority = self._takes or (
            self._room_for_high_priority and not _NOTHING_CAN_BE_WRITTEN & self.reasons.keys()
        )
        for callback in self._subscribers:
            callback()
