"""Confirmation of commands that remove rows or ledgers. They print what would be removed and ask."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, dataclass

from bk_spark.log.io.snapshot import LogSnapshot
from bk_spark.protocol.errors import InvalidArgumentError


def add_options(command: argparse.ArgumentParser) -> None:
    """Add ``--yes`` and ``--dry-run``."""
    command.add_argument(
        "--yes", action="store_true", help="do not ask for confirmation; required where there is no terminal"
    )
    command.add_argument("--dry-run", action="store_true", help="change nothing, print what would be removed")


def require(options: argparse.Namespace, loss: str) -> None:
    """Return if ``loss`` is confirmed, by ``--yes`` or at the terminal. Raises InvalidArgumentError otherwise."""
    if options.yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidArgumentError(f"{loss}: give --yes to do so")
    print(f"{loss}. Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise InvalidArgumentError("not confirmed; nothing was changed")


@dataclass(frozen=True, slots=True)
class Dropped:
    """What a log loses if its first offset moves from ``start`` to ``end``."""

    start: int
    end: int
    segments: int
    rows: int
    size_bytes: int

    @classmethod
    def by_beginning_at(cls, snapshot: LogSnapshot, first_offset: int) -> Dropped:
        """Sum up what is before ``first_offset``, which may be outside of the log."""
        start = snapshot.first_offset
        end = max(start, min(first_offset, snapshot.next_offset))
        segments = rows = size_bytes = 0
        for table in snapshot.tables(start, end):
            segments += len(table)
            rows += int(table.rows.sum())
            size_bytes += int(table.size_bytes.sum())
        return cls(start, end, segments, rows, size_bytes)

    @property
    def entries(self) -> int:
        """The number of entries."""
        return self.end - self.start

    def __str__(self) -> str:
        return (
            f"{self.entries} entries (offsets {self.start} to {self.end}; {self.segments} segments, {self.rows} rows, "
            f"{self.size_bytes} bytes)"
        )

    def record(self) -> dict[str, int]:
        """Return the fields of the JSON form."""
        return asdict(self) | {"entries": self.entries}
