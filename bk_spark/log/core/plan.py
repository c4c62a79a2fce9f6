"""Types for decisions about a log: what was read, what to read next, what to send.

A decision is a function of what is known so far. It asks for what is missing. So the reading code (a blocking client, a
simulator) need not know what a change depends on.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from bk_spark.log.core.steps import Closed
from bk_spark.protocol.metadata.znodes import CreateOp, SetOp, TransactionOp, Znode

_T = TypeVar("_T")


class CommitStatus(enum.Enum):
    """Whether a commit appended its batch, or found it in the log."""

    COMMITTED = "committed"
    ALREADY_DONE = "already done"


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The outcome of a commit: the batch is in the log.

    Parameters
    ----------
    status
        Whether this commit appended the batch, or an earlier one did.
    start_offset, end_offset
        The batch is at the offsets ``[start_offset, end_offset)``. None if the application has committed later batches.
    commit_time_ms
        When the batch was committed, in Unix milliseconds. None if the application has committed later batches.
    retired_runs
        The runs that this commit took over from. Their ledgers must be recovered.
    warning
        Usually empty. Otherwise a warning: the batch that counts as done may be a different one, or the log may lack
        batches before this one.
    """

    status: CommitStatus
    start_offset: int | None
    end_offset: int | None
    commit_time_ms: int | None
    retired_runs: tuple[str, ...] = ()
    warning: str = ""


@dataclass(frozen=True, slots=True)
class Need:
    """Read these znodes too, in this order, and decide again.

    ``covered_by`` is a znode that was read before them. Every transaction that changes or deletes one of these also
    writes that one. So while that znode is unchanged, what was read of these stays valid.
    """

    paths: tuple[str, ...]
    covered_by: str | None = None


@dataclass(frozen=True, slots=True)
class NeedClosed:
    """Fence and close this ledger, and decide again with its end known."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class AlreadyDone(Generic[_T]):
    """The requested state already holds: nothing is sent."""

    result: _T


@dataclass(frozen=True, slots=True)
class Stale:
    """Two znodes are inconsistent: one was changed between the reads. Read everything again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Plan(Generic[_T]):
    """Transactions to send. ``preparations`` write pages that nothing refers to yet. ``transaction`` makes the change.
    If one is refused, the rest must not be sent."""

    preparations: tuple[tuple[TransactionOp, ...], ...]
    transaction: tuple[TransactionOp, ...]
    result: _T


class MissingError(Exception):
    """Raised inside a decision for znodes that were not read yet. Becomes :class:`Need`."""

    def __init__(self, paths: Iterable[str], covered_by: str | None = None) -> None:
        super().__init__()
        self.paths = tuple(paths)
        self.covered_by = covered_by


class NotClosedError(Exception):
    """Raised inside a decision. Becomes :class:`NeedClosed`."""

    def __init__(self, ledger_id: int) -> None:
        super().__init__()
        self.ledger_id = ledger_id


class StaleError(Exception):
    """Raised inside a decision. Becomes :class:`Stale`."""


def write_over(path: str, data: bytes, read: Znode | None) -> CreateOp | SetOp:
    """Return the operation that writes ``data`` over what was ``read`` at ``path``. None: nothing is there."""
    return CreateOp(path, data) if read is None else SetOp(path, data, read.version)


def is_unchanged(then: Znode | None, now: Znode | None) -> bool:
    """Whether a znode was neither written nor created again between two reads."""
    if then is None or now is None:
        return then is now
    return (then.created_zxid, then.version) == (now.created_zxid, now.version)


class Readings:
    """What is known so far: path -> znode (None if there is none), and the ends of ledgers recovered for this
    decision."""

    def __init__(self, znodes: Mapping[str, Znode | None], ends: Mapping[int, Closed] | None = None) -> None:
        self._znodes = znodes
        self._ends = ends or {}
        self._covered: set[str] = set()
        #: The paths that were requested, in order, except those covered by another znode.
        self.used: dict[str, None] = {}

    def require(self, *paths: str) -> None:
        """Request all ``paths`` at once, except those read already."""
        self.used.update(dict.fromkeys(paths))
        missing = [path for path in dict.fromkeys(paths) if path not in self._znodes]
        if missing:
            raise MissingError(missing)

    def require_covered(self, by: str, *paths: str) -> None:
        """Like :meth:`require`, for znodes that are never changed or deleted without writing ``by``, see :class:`Need`.
        The decision's transaction must check the version of ``by``."""
        self.require(by)
        self._covered.update(paths)
        missing = [path for path in dict.fromkeys(paths) if path not in self._znodes]
        if missing:
            raise MissingError(missing, by)

    def get(self, path: str) -> Znode | None:
        """Return what is known about ``path``: its znode, or None if there is none. Requests it if it was not read
        yet."""
        if path not in self._covered:
            self.require(path)
        return self._znodes[path]

    def closed(self, ledger_id: int) -> Closed:
        """Return where the ledger ends, now that nobody can write to it."""
        if ledger_id not in self._ends:
            raise NotClosedError(ledger_id)
        return self._ends[ledger_id]
