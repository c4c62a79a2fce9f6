"""Actions and events of the replication worker."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class RepairEnd(enum.Enum):
    """How the repair of one ledger ended. The lock is still held, except after LOCK_LOST."""

    #: No copy is bad any more, or none was.
    REPAIRED = "repaired"
    #: The ledger does not exist.
    GONE = "gone"
    #: Something is lost, or cannot be repaired now.
    UNREPAIRABLE = "unrepairable"
    #: The lock went to another worker.
    LOCK_LOST = "lock lost"
    #: The worker asked for it.
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class WatchSwitch:
    """Report the disable switch, and whether any ledger is marked, now and after each change."""


@dataclass(frozen=True, slots=True)
class ReadLocks:
    """Answered by :class:`LocksRead`."""


@dataclass(frozen=True, slots=True)
class LocksRead:
    """Ledgers that some worker or bookie has locked."""

    ledger_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class ReadMarks:
    """Read the next page of marks, or the first one. Each time, pages come in another random order.

    Answered by :class:`MarksRead`.
    """

    first: bool


@dataclass(frozen=True, slots=True)
class MarksRead:
    """Marked ledgers. ``more``: there are further pages."""

    ledger_ids: Sequence[int]
    more: bool


@dataclass(frozen=True, slots=True)
class Lock:
    """Take the ledger's lock, and then read its mark. Answered by :class:`Locked` or :class:`NotLocked`."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class Locked:
    """``mark_version`` is the version of the mark, None if the ledger is not marked any more."""

    ledger_id: int
    mark_version: int | None


@dataclass(frozen=True, slots=True)
class NotLocked:
    """Another session has the lock."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class Repair:
    """Repair a ledger under its lock. Answered by :class:`RepairEnded`, also after :class:`StopRepair`."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class StopRepair:
    """End the repair soon. The lock must stay until nothing of it is under way."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class RepairEnded:
    """The answer to :class:`Repair`. ``reason`` says why the ledger could not be repaired."""

    ledger_id: int
    end: RepairEnd
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Finish:
    """Delete the reason and, if it still has this version, the mark. Then give the lock back.

    Answered by :class:`Released`.
    """

    ledger_id: int
    mark_version: int


@dataclass(frozen=True, slots=True)
class NoteReason:
    """Store for operators why a ledger could not be repaired. It has no answer, and may fail."""

    ledger_id: int
    reason: str
    attempts: int


@dataclass(frozen=True, slots=True)
class Release:
    """Give the lock back if it belongs to this session. Answered by :class:`Released`."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class Released:
    """The lock does not belong to this session any more."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class MarksChanged:
    """``some``: whether any ledger may be marked. While none is, marks are not read."""

    some: bool


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """An action failed: ZooKeeper did not answer, or a repair had an error. It may have taken effect."""

    action: ReadLocks | ReadMarks | Lock | Repair | Finish | Release
    error: Exception
