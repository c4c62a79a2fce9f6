"""All ledgers of a cluster, ascending and in pages, from any ledger on. Paths: compatibility.md §3.2."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

import numpy as np

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.machine import StartTimer
from bk_spark.protocol.metadata.ledger_paths import LedgerManager
from bookie_server.replication.actions import Children, ListChildren
from bookie_server.replication.auditing.patience import patient

#: Reads for which a scan pauses at once.
_READS_PER_PAUSE: Final = 100


class ReadPace:
    """Keeps a scan below ``per_s`` reads a second: it pauses as long as they should have taken."""

    def __init__(self, per_s: float) -> None:
        self._ms_per_read = 1000 / per_s
        self._unpaid = 0

    def pay(self, reads: int) -> Generator[StartTimer, Any, None]:
        """Count reads that were made. After every hundred or so, pause for as long as they should have taken."""
        self._unpaid += reads
        if self._unpaid >= _READS_PER_PAUSE:
            reads, self._unpaid = self._unpaid, 0
            yield StartTimer("pace", reads * self._ms_per_read)


class LedgerWalk:
    """A walk through the ledgers whose id is greater than ``after``.

    It keeps the children of one znode: at most 10,000 ids, all ids in the flat layout. Ledgers that are created or
    deleted meanwhile may or may not be found.
    """

    def __init__(self, manager: LedgerManager, root: str, pace: ReadPace, after: int = -1) -> None:
        self._manager = manager
        self._pace = pace
        self._after = after
        #: Znodes to list, the next one last: path, digits of the id that it spells, number of digits of an id.
        self._branches = [(root, "", 0)]
        self._ids: Int64s = np.empty(0, np.int64)

    def next_page(self, most: int) -> Generator[ListChildren | StartTimer, Any, list[int]]:
        """Return the next ids, none at the end."""
        while not len(self._ids) and self._branches:
            path, digits, width = self._branches.pop()
            found: Children = yield from patient(ListChildren(path))
            yield from self._pace.pay(1)
            names = found.names or ()
            if self._manager.is_leaf(digits):
                ids = [int(digits + name[1:]) for name in names if self._manager.is_ledger(digits, name)]
                self._ids = np.unique(np.array([each for each in ids if each > self._after], np.int64))
            else:
                self._branch(path, digits, width, [each for each in names if self._manager.is_branch(digits, each)])
        page: list[int] = self._ids[:most].tolist()
        self._ids = self._ids[most:]
        return page

    def _branch(self, path: str, digits: str, width: int, names: list[str]) -> None:
        # Shorter names come first, because their ids are lower. The next branch is the last one of the list.
        for name in sorted(names, key=lambda name: (len(name), name), reverse=True):
            name_width = width or (10 if len(name) == 2 else 19)
            if int((digits + name).ljust(name_width, "9")) > self._after:
                self._branches.append((f"{path}/{name}", digits + name, name_width))
