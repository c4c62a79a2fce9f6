"""Vocabulary of decisions about a log: what was read, what is still to be read, what to send.

A decision is a function of znodes read so far. It asks for what it lacks, so that who does the reading
(a blocking client, a simulator) need not know what a change depends on.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bk_spark.bookie.zookeeper import TransactionOp, Znode
from bk_spark.log.formats import Application


class CommitStatus(enum.Enum):
    COMMITTED = "committed"
    ALREADY_DONE = "already done"


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The batch is in the log, at offsets ``[start_offset, end_offset)``.

    Offsets and time are None for a batch older than the application's last one. ``retired_runs`` are runs
    that this commit took over from: their ledgers are to be recovered.
    """

    status: CommitStatus
    start_offset: int | None
    end_offset: int | None
    commit_time_ms: int | None
    retired_runs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Need:
    """Read these znodes too, in this order, and ask again."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AlreadyDone:
    """The batch, or a later one, is in the log."""

    application: Application


@dataclass(frozen=True, slots=True)
class Stale:
    """Two znodes do not fit each other: one was changed between the readings. Read all again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Transactions to send: ``preparations`` write pages that nothing refers to yet, ``transaction`` makes
    the change. Whatever is refused, the rest must not be sent."""

    preparations: tuple[tuple[TransactionOp, ...], ...]
    transaction: tuple[TransactionOp, ...]
    result: CommitResult


class MissingError(Exception):
    """Raised inside of a decision for znodes not read yet; ends as :class:`Need`."""

    def __init__(self, paths: Iterable[str]) -> None:
        super().__init__()
        self.paths = tuple(paths)


class StaleError(Exception):
    """Raised inside of a decision; ends as :class:`Stale`."""


class Readings:
    """Znodes read so far: path -> znode, or None where there is none."""

    def __init__(self, znodes: Mapping[str, Znode | None]) -> None:
        self._znodes = znodes

    def require(self, *paths: str) -> None:
        """Ask for all of ``paths`` at once, as far as they are not read."""
        missing = [path for path in dict.fromkeys(paths) if path not in self._znodes]
        if missing:
            raise MissingError(missing)

    def get(self, path: str) -> Znode | None:
        self.require(path)
        return self._znodes[path]
