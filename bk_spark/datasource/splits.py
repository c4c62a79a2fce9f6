"""Cutting what is to be read into tasks, by bytes. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.entry import ENTRY_HEADER_BYTES

Int64s = npt.NDArray[np.int64]

#: A part of a split's size: a cut this close to a piece's end is made there.
_NEAR: Final = 0.05


@dataclass(frozen=True, slots=True)
class Piece:
    """Entries ``first`` to ``last`` (inclusive) of a ledger, of about ``size_bytes``.

    ``base_offset`` is the log offset of ``first`` and ``timestamp_ms`` its segment's commit time; both
    None where a ledger is read without a log.
    """

    ledger_id: int
    first: int
    last: int
    size_bytes: int
    base_offset: int | None = None
    timestamp_ms: int | None = None

    @property
    def entries(self) -> int:
        return self.last - self.first + 1

    def cut(self, entries: int) -> tuple[Piece, Piece]:
        """The first ``entries`` entries, and the rest; neither is empty."""
        middle = self.first + entries
        size = self.size_bytes * entries // self.entries
        base = None if self.base_offset is None else self.base_offset + entries
        return (
            Piece(self.ledger_id, self.first, middle - 1, size, self.base_offset, self.timestamp_ms),
            Piece(self.ledger_id, middle, self.last, self.size_bytes - size, base, self.timestamp_ms),
        )


def cut_splits(pieces: Iterable[Piece], split_bytes: int, min_splits: int = 1) -> list[tuple[Piece, ...]]:
    """Splits of about ``split_bytes`` (payload and entry headers), in order, of neighbouring pieces; at least
    ``min_splits`` as far as there are entries. One entry is never cut."""
    todo = list(pieces)
    if not todo:
        return []
    entries = _running_sum([piece.entries for piece in todo])
    weights = _running_sum([piece.size_bytes + piece.entries * ENTRY_HEADER_BYTES for piece in todo])
    all_entries, all_bytes = int(entries[-1]), int(weights[-1])
    # As many splits as needed, then all of one size: the last task does not get a crumb.
    count = min(max(-(-all_bytes // split_bytes), min_splits), all_entries)
    numbers = np.arange(1, count)
    cuts = _cuts(entries, weights, numbers, all_bytes / count)
    # Each split has an entry at least.
    cuts = np.maximum.accumulate(np.maximum(cuts, 1) - numbers) + numbers
    cuts = np.minimum(cuts, all_entries - count + numbers)
    todo.reverse()
    return [_take(todo, int(size)) for size in np.diff(cuts, prepend=0, append=all_entries)]


def _cuts(entries: Int64s, weights: Int64s, numbers: Int64s, split_bytes: float) -> Int64s:
    """The entry number at each multiple of ``split_bytes``; a piece's end where one is near: one ledger less to
    open."""
    targets = numbers * split_bytes
    after = np.searchsorted(weights, targets)
    nearest = np.where(targets - weights[after - 1] < weights[after] - targets, after - 1, after)
    is_near = np.abs(weights[nearest] - targets) <= _NEAR * split_bytes
    exact = np.rint(np.interp(targets, weights, entries)).astype(np.int64)
    return np.where(is_near, entries[nearest], exact)


def _take(todo: list[Piece], entries: int) -> tuple[Piece, ...]:
    """The next ``entries`` entries, off the end of ``todo``."""
    taken = []
    while entries:
        piece = todo.pop()
        if piece.entries > entries:
            piece, rest = piece.cut(entries)
            todo.append(rest)
        taken.append(piece)
        entries -= piece.entries
    return tuple(taken)


def _running_sum(values: list[int]) -> Int64s:
    return np.cumsum([0, *values], dtype=np.int64)
