"""Records as journals and entry logs hold them: ``i32 length`` and that many bytes, consecutively.

A data record's bytes are a stored entry (bk_spark/protocol/entries/entry.py), so its first 24 bytes are ledger id,
entry id and last add confirmed. Storage works in units of :class:`Records`: many entries in one buffer, with their ids
in arrays, so that no Python time is spent per entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.arrays import Bools, Bytes, Int64s, gather

LENGTH_BYTES: Final = 4
#: A record holds at least a ledger id and an entry id.
MIN_RECORD_BYTES: Final = 16
#: No record is longer. Guards allocations against garbage lengths. Frames are far smaller (codes.py).
MAX_RECORD_BYTES: Final = 128 * 1024 * 1024
#: Entry ids are limited because slot ``id`` of an index file lies at ``1024 + 8 * id``, and ext4 ends at 16 TiB.
MAX_ENTRY_ID: Final = (1 << 40) - 1


_ALL: Final = slice(None)


@dataclass(slots=True)
class LedgerPart:
    """The part of some records that belongs to one ledger: their positions, and the needed figures as plain numbers, so
    that a run over many ledgers costs little for each."""

    ledger_id: int
    which: Int64s | slice
    count: int
    first_entry_id: int
    last_entry_id: int
    last_add_confirmed: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Records:
    """Entries on their way to disk. Record ``i`` is ``data[offsets[i] : offsets[i + 1]]``, without gaps."""

    ledger_ids: Int64s
    entry_ids: Int64s
    last_adds_confirmed: Int64s
    data: memoryview
    offsets: Int64s

    def __len__(self) -> int:
        return len(self.entry_ids)

    @property
    def shortest_bytes(self) -> int:
        """Size of the shortest record, with its size field."""
        if len(self.entry_ids) == 1:  # from a client that waits for each answer: numpy would take longer
            return len(self.data)
        return int(np.diff(self.offsets).min())

    def wrong(self, last_entry_id: int, least_bytes: int) -> Bools | None:
        """Which records have a negative entry id, one above ``last_entry_id``, or fewer than ``least_bytes`` with the
        size field. None if there is no such record."""
        ids = self.entry_ids
        lowest, highest = (int(ids[0]),) * 2 if len(ids) == 1 else (int(ids.min()), int(ids.max()))
        if lowest >= 0 and highest <= last_entry_id and self.shortest_bytes >= least_bytes:
            return None
        return (ids < 0) | (ids > last_entry_id) | (np.diff(self.offsets) < least_bytes)

    def first(self, count: int) -> Records:
        """The first ``count`` records, over the same bytes."""
        return Records(
            self.ledger_ids[:count],
            self.entry_ids[:count],
            self.last_adds_confirmed[:count],
            self.data[: int(self.offsets[count])],
            self.offsets[: count + 1],
        )

    def select(self, wanted: npt.NDArray[np.bool_]) -> Records:
        """Only the ``wanted`` records, in a buffer of their own."""
        edges = np.flatnonzero(np.diff(wanted, prepend=False, append=False)).tolist()
        parts = [
            self.data[int(self.offsets[first]) : int(self.offsets[last])]
            for first, last in zip(edges[::2], edges[1::2], strict=True)
        ]
        offsets = np.zeros(int(wanted.sum()) + 1, np.int64)
        np.cumsum(np.diff(self.offsets)[wanted], out=offsets[1:])
        return Records(
            self.ledger_ids[wanted],
            self.entry_ids[wanted],
            self.last_adds_confirmed[wanted],
            memoryview(b"".join(parts)),
            offsets,
        )

    def by_ledger(self) -> list[LedgerPart]:
        """Split by ledger; the order within a ledger is kept."""
        ledger_ids, entry_ids, lacs = self.ledger_ids, self.entry_ids, self.last_adds_confirmed
        count = len(ledger_ids)
        first = int(ledger_ids[0])
        if count == 1:
            entry_id = int(entry_ids[0])
            return [LedgerPart(first, _ALL, 1, entry_id, entry_id, int(lacs[0]), len(self.data))]
        if bool((ledger_ids == first).all()):
            last_entry = int(entry_ids.max())
            return [LedgerPart(first, _ALL, count, int(entry_ids.min()), last_entry, int(lacs.max()), len(self.data))]
        order, starts, ends = _sort_by_ledger(ledger_ids)
        entry_ids, lacs = entry_ids[order], lacs[order]
        columns = (
            ledger_ids[order][starts].tolist(),
            starts.tolist(),
            ends.tolist(),
            np.minimum.reduceat(entry_ids, starts).tolist(),
            np.maximum.reduceat(entry_ids, starts).tolist(),
            np.maximum.reduceat(lacs, starts).tolist(),
            np.add.reduceat(np.diff(self.offsets)[order], starts).tolist(),
        )
        return [
            LedgerPart(ledger_id, order[a:b], b - a, lowest, highest, lac, size_bytes)
            for ledger_id, a, b, lowest, highest, lac, size_bytes in zip(*columns, strict=True)
        ]


def group_by_ledger(ledger_ids: Int64s) -> list[tuple[int, Int64s | slice]]:
    """(ledger id, its positions) for each ledger in ``ledger_ids``, positions ascending."""
    first = int(ledger_ids[0])
    if len(ledger_ids) == 1 or bool((ledger_ids == first).all()):
        return [(first, _ALL)]
    order, starts, ends = _sort_by_ledger(ledger_ids)
    firsts = ledger_ids[order][starts].tolist()
    return [(ledger_id, order[a:b]) for ledger_id, a, b in zip(firsts, starts.tolist(), ends.tolist(), strict=True)]


def _sort_by_ledger(ledger_ids: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """An order that groups each ledger's positions, and where each ledger starts and ends in it."""
    order = np.argsort(ledger_ids, kind="stable")
    sorted_ids = ledger_ids[order]
    cuts = np.flatnonzero(sorted_ids[1:] != sorted_ids[:-1]) + 1
    return order, np.concatenate(([0], cuts)), np.append(cuts, len(order))


def gather_int64(data: Bytes, starts: Int64s, count: int) -> Int64s:
    """Read ``count`` big-endian i64 at each of ``starts``; shape (starts, count). All must lie within ``data``."""
    values: Int64s = gather(data, starts, 8 * count).view(">i8").reshape(-1, count).astype(np.int64)
    return values


def gather_int32(data: Bytes, starts: Int64s) -> Int64s:
    """Read one big-endian i32 at each of ``starts``, widened."""
    values: Int64s = gather(data, starts, 4).view(">i4").astype(np.int64)
    return values
