"""Cutting what is to be read into tasks, by bytes. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


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
    """Splits of about ``split_bytes``, in order, of neighbouring pieces; at least ``min_splits`` as far as
    there are entries. One entry is never cut."""
    todo = list(pieces)
    total = sum(piece.size_bytes for piece in todo)
    if min_splits > 1:
        split_bytes = min(split_bytes, max(1, total // min_splits))
    # As many splits as needed, then all of one size: the last task does not get a crumb.
    count = max(1, -(-total // split_bytes))
    target = max(1, -(-total // count))
    splits: list[tuple[Piece, ...]] = []
    current: list[Piece] = []
    current_bytes = 0
    todo.reverse()
    while todo:
        piece = todo.pop()
        room = target - current_bytes
        if piece.size_bytes > room and piece.entries > 1:
            entries = max(1, min(piece.entries - 1, round(piece.entries * room / piece.size_bytes)))
            piece, rest = piece.cut(entries)
            todo.append(rest)
        current.append(piece)
        current_bytes += piece.size_bytes
        if current_bytes >= target * 0.95:
            splits.append(tuple(current))
            current, current_bytes = [], 0
    if current:
        splits.append(tuple(current))
    return splits
