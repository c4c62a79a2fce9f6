"""What the admin API may do with a bookie. The service creates it. Everything is called in the event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from bk_spark.protocol.arrays import Int64s
from bookie_server.gc.brake import CollectionBrake
from bookie_server.gc.collector_status import EntryLogStatus, GarbageCollectorStatus
from bookie_server.state import BookieState
from bookie_server.storage.disk.directories import LedgerDirectories
from bookie_server.storage.journal.log_mark import LogMark

if TYPE_CHECKING:
    from bookie_server.integrity.data_check import DataCheckProgress


class RefusedError(Exception):
    """The request is refused. The message says why."""


class Collection(Protocol):
    """The part of GarbageCollector that the admin API uses."""

    @property
    def brakes(self) -> Sequence[CollectionBrake]:
        """The brakes of both collections: of deleted and of over-replicated ledgers."""

    def force(self, *, major: bool | None, minor: bool | None) -> None:
        """See :meth:`GarbageCollector.force`."""

    def release(self, word: str) -> CollectionBrake:
        """See :meth:`GarbageCollector.release`."""

    def suspend(self, compaction: str, by: str, suspended: bool) -> None:
        """See :meth:`GarbageCollector.suspend`."""

    def is_suspended(self, compaction: str) -> bool:
        """See :meth:`GarbageCollector.is_suspended`."""

    def status(self) -> GarbageCollectorStatus:
        """See :meth:`GarbageCollector.status`."""

    async def entry_logs(self) -> Sequence[EntryLogStatus]:
        """See :meth:`GarbageCollector.entry_logs`."""


@dataclass(frozen=True, slots=True)
class AdminActions:
    """The parts of a bookie that the admin API uses. Directories are the ``current`` ones."""

    bookie_id: str
    state: BookieState
    directories: LedgerDirectories
    journal_directories: tuple[str, ...]
    collection: Collection
    #: Whether clients are served.
    running: Callable[[], bool]
    #: Free and total bytes on the disks of the ledger directories. None if they are unknown.
    disk_space: Callable[[], tuple[int, int] | None]
    #: Sets or ends an operator's read-only mode, which survives restarts. Raises RefusedError, and OSError if it could
    #: not be saved.
    set_read_only: Callable[[bool], Awaitable[None]]
    #: The position before which each journal is no longer needed.
    last_marks: Callable[[], Sequence[LogMark]]
    #: How far the check of ledgers in limbo has come. None: it is off, or has not begun.
    data_check: Callable[[], DataCheckProgress | None]
    #: All ledgers of this bookie, ascending. Raises OSError.
    local_ledgers: Callable[[], Awaitable[Int64s]]
