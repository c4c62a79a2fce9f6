"""Ledgers by state. A closed ledger stays closed, so each collection reads only those that may have changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.protocol.errors import MetadataFormatError
from bk_spark.protocol.metadata import ledger_metadata
from bk_spark.protocol.metadata.ledger_metadata import LedgerState

#: The most ledgers that are listed, and the time for it. Clients may choose ids that are far apart: each of them is in
#: a znode of its own.
MAX_LISTED: Final = 100_000
_LIST_S: Final = 5.0
#: Metadata that one collection reads.
MAX_READ: Final = 5_000
#: Listing takes long, so a list is used for this time.
_LIST_FOR_S: Final = 20.0


class Ledgers:
    """Counts the ledgers of ``store``."""

    def __init__(self, store: LedgerStore, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._now_s = now_s
        self._listed_s = -_LIST_FOR_S
        self._ids: set[int] = set()
        self._more = False
        #: States that were read last. Those that are closed are final.
        self._states: dict[int, str] = {}

    def collect(self) -> dict[str, Any]:
        """Return the numbers."""
        if self._now_s() - self._listed_s >= _LIST_FOR_S:
            self._list()
        self._read()
        counts = {state.name.lower(): 0 for state in LedgerState} | {"unreadable": 0}
        for state in self._states.values():
            counts[state] += 1
        return {
            "total": len(self._ids),
            "more": self._more,
            "states": counts,
            "unread": len(self._ids) - len(self._states),
        }

    def _list(self) -> None:
        """List the newest ledgers: the oldest are the ones that are closed."""
        ids: set[int] = set()
        self._more = False
        began_s = self._now_s()
        for batch in self._store.list_ledgers(descending=True):
            ids.update(batch[: MAX_LISTED - len(ids)])
            if len(ids) >= MAX_LISTED or self._now_s() - began_s > _LIST_S:
                self._more = True
                break
        self._ids, self._listed_s = ids, self._now_s()
        for gone in self._states.keys() - ids:
            del self._states[gone]

    def _read(self) -> None:
        closed = LedgerState.CLOSED.name.lower()
        changing = [each for each, state in self._states.items() if state != closed]
        unknown = sorted(self._ids - self._states.keys(), reverse=True)
        wanted = [*changing[: MAX_READ // 2], *unknown][:MAX_READ]
        paths = {self._store.manager.ledger_path(self._store.root, each): each for each in wanted}
        for path, found in self._store.zk.get_many(list(paths)).items():
            if found is None:
                self._ids.discard(paths[path])
                self._states.pop(paths[path], None)
                continue
            # What changed is read first the next time, after the others that may.
            self._states.pop(paths[path], None)
            try:
                self._states[paths[path]] = ledger_metadata.decode(found.data).state.name.lower()
            except MetadataFormatError:
                self._states[paths[path]] = "unreadable"
