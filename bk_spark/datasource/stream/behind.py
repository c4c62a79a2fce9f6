"""How far a streaming read is behind, for display. Pure.

It is part of what a query reports as the latest offset, which Spark shows in ``lastProgress`` and gives to listeners::

    {"v": 1, "logs": {…}, "behind": {"flights": {"entries": 120, "rows": 4000, "bytes": 300000}}}

Spark never passes it back, so it is in no checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bk_spark.protocol.arrays import Int64s


@dataclass(frozen=True, slots=True)
class Behind:
    """Unread entries, and their rows and bytes, which are None if they are not known.

    ``is_estimate``: rows and bytes are those of the first entries, extrapolated, because the rest of a long list, or an
    open tail, was not looked at.
    """

    entries: int
    rows: int | None = None
    size_bytes: int | None = None
    is_estimate: bool = False

    @classmethod
    def of(cls, total: int, entries: Int64s, size_bytes: Int64s, rows: Int64s) -> Behind:
        """Return what ``total`` entries hold. The first of them are known, in columns of their parts."""
        known = int(entries.sum())
        if not known:
            return cls(total) if total else cls(0, 0, 0)
        known_rows, known_bytes = int(rows.sum()), int(size_bytes.sum())
        if known >= total:
            return cls(total, known_rows, known_bytes)
        return cls(total, known_rows * total // known, known_bytes * total // known, is_estimate=True)

    def to_json(self) -> dict[str, Any]:
        """Return the value in the reported offset."""
        fields: dict[str, Any] = {"entries": self.entries, "rows": self.rows, "bytes": self.size_bytes}
        fields = {name: value for name, value in fields.items() if value is not None}
        return fields | {"estimate": True} if self.is_estimate else fields
