"""The ledgers in an entry log and the bytes of each, from its ledgers map or by a scan."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.arrays import Int64s
from bookie_server.storage.entrylog.entry_log import read_ledgers_map, sum_by_ledger
from bookie_server.storage.entrylog.entry_log_scan import EntryLogScan, FoundEntries
from bookie_server.storage.records import LENGTH_BYTES

#: Approximate memory of one usage beside its arrays.
_OVERHEAD_BYTES: Final = 500


@dataclass(frozen=True, slots=True)
class EntryLogUsage:
    """``ledger_ids`` (ascending) in an entry log, and ``ledger_bytes`` of each, with size fields.

    ``problem`` is "" for a sound entry log. Otherwise it says what is wrong, and the entry log may hold more than this.
    ``file_bytes`` is the file's size.
    """

    entry_log_id: int
    path: str
    file_bytes: int
    ledger_ids: Int64s
    ledger_bytes: Int64s
    problem: str
    from_map: bool

    @property
    def total_bytes(self) -> int:
        """Bytes of all entries, live or not, with size fields."""
        return int(self.ledger_bytes.sum())

    @property
    def size_in_memory(self) -> int:
        """What the usage counts for in a cache, in bytes."""
        return self.ledger_ids.nbytes + self.ledger_bytes.nbytes + _OVERHEAD_BYTES

    def live_ledgers(self, local_ledgers: Int64s) -> Int64s:
        """Ledgers of the entry log that are in ``local_ledgers`` (ascending)."""
        return self.ledger_ids[among(self.ledger_ids, local_ledgers)]

    def live_bytes(self, local_ledgers: Int64s) -> int:
        """Bytes of the entries of ``local_ledgers`` (ascending), with size fields."""
        return int(self.ledger_bytes[among(self.ledger_ids, local_ledgers)].sum())


def read_usage(entry_log_id: int, path: str, check_stop: Callable[[], None] = lambda: None) -> EntryLogUsage:
    """Read an entry log's usage. Blocking; a scan of a large one takes seconds. ``check_stop`` is called between steps
    and may raise.

    Raises OSError.
    """
    size = os.stat(path).st_size
    mapped = read_ledgers_map(path)
    if mapped is not None:
        return EntryLogUsage(entry_log_id, path, size, *mapped, problem="", from_map=True)
    scan = EntryLogScan(path)
    try:
        totals = _Totals()
        while not scan.at_end:
            check_stop()
            totals.add(scan.step())
        return EntryLogUsage(entry_log_id, path, size, *totals.result(), problem=scan.problem, from_map=False)
    finally:
        scan.close()


class EntryLogUsageCache:
    """Keeps usages up to ``limit_bytes``. If there are too many, it first drops those from ledgers maps, which cost
    little to read again."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._usages: OrderedDict[int, EntryLogUsage] = OrderedDict()
        self._size_bytes = 0

    def get(self, entry_log_id: int, path: str, check_stop: Callable[[], None]) -> EntryLogUsage:
        """Return the usage, and read it if needed. Blocking. Raises OSError."""
        found = self._usages.get(entry_log_id)
        if found is not None and found.path == path:
            self._usages.move_to_end(entry_log_id)
            return found
        self.forget(entry_log_id)
        usage = read_usage(entry_log_id, path, check_stop)
        self._usages[entry_log_id] = usage
        self._size_bytes += usage.size_in_memory
        self._shrink()
        return usage

    def forget(self, entry_log_id: int) -> None:
        """Drop the usage of an entry log that was removed or will change. Ignored if it is not kept."""
        usage = self._usages.pop(entry_log_id, None)
        if usage is not None:
            self._size_bytes -= usage.size_in_memory

    def keep_only(self, entry_log_ids: set[int]) -> None:
        """Drop the usages of all other entry logs."""
        for entry_log_id in [entry_log_id for entry_log_id in self._usages if entry_log_id not in entry_log_ids]:
            self.forget(entry_log_id)

    def _shrink(self) -> None:
        if self._size_bytes <= self._limit_bytes:
            return
        by_cost = sorted(self._usages.values(), key=lambda usage: not usage.from_map)
        for usage in by_cost:
            self.forget(usage.entry_log_id)
            if self._size_bytes <= self._limit_bytes:
                return


class _Totals:
    """Adds up bytes by ledger."""

    def __init__(self) -> None:
        self._ledger_ids = np.empty(0, np.int64)
        self._ledger_bytes = np.empty(0, np.int64)
        self._parts: list[tuple[Int64s, Int64s]] = []
        self._waiting = 0

    def add(self, entries: FoundEntries) -> None:
        if not len(entries):
            return
        part = sum_by_ledger(entries.ledger_ids, entries.sizes + LENGTH_BYTES)
        self._parts.append(part)
        self._waiting += len(part[0])
        if self._waiting > max(100_000, len(self._ledger_ids)):
            self._join()

    def result(self) -> tuple[Int64s, Int64s]:
        self._join()
        return self._ledger_ids, self._ledger_bytes

    def _join(self) -> None:
        ids = np.concatenate([self._ledger_ids, *(part[0] for part in self._parts)])
        sizes = np.concatenate([self._ledger_bytes, *(part[1] for part in self._parts)])
        self._ledger_ids, self._ledger_bytes = sum_by_ledger(ids, sizes)
        self._parts, self._waiting = [], 0


def among(ids: Int64s, sorted_ids: Int64s) -> npt.NDArray[np.bool_]:
    """Which of ``ids`` are in ``sorted_ids``."""
    if not len(sorted_ids):
        return np.zeros(len(ids), np.bool_)
    places = np.minimum(np.searchsorted(sorted_ids, ids), len(sorted_ids) - 1)
    result: npt.NDArray[np.bool_] = sorted_ids[places] == ids
    return result
