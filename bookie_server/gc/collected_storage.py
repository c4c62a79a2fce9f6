"""The interface of the storage that garbage collection cleans up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from bk_spark.protocol.arrays import Int64s
from bookie_server.storage.disk.directories import LedgerDirectories

_T = TypeVar("_T")


class RunBlocking(Protocol):
    """Runs a function in the collector's thread. The event loop awaits its result."""

    def __call__(self, function: Callable[..., _T], /, *arguments: object) -> Awaitable[_T]:
        """Call ``function`` in the thread. Its exception is raised at the await."""


class CollectedStorage(Protocol):
    """The operations that the collector uses. Called in the event loop unless stated otherwise."""

    directories: LedgerDirectories

    def local_ledgers(self) -> Awaitable[Int64s]:
        """All ledgers of this bookie, ascending. Raises OSError rather than return a part."""

    def mark_ledger(self, ledger_id: int) -> bool:
        """Refuse adds and fences of the ledger until it is removed or unmarked. Return False if it is not here.

        Raises OSError."""

    async def settle(self) -> None:
        """Wait until everything accepted before is durable or has failed."""

    async def remove_ledger(self, ledger_id: int) -> None:
        """Remove a marked ledger and its index file. Raises OSError."""

    def unmark_ledger(self, ledger_id: int) -> None:
        """Serve a marked ledger again. Does nothing for a removed one."""

    async def sync_deletions(self) -> None:
        """Make the deletions so far durable. Raises OSError, SyncFailedError."""

    async def locations_of(self, ledger_id: int, entry_ids: Int64s) -> Int64s:
        """Locations of entries (ids ascending) in the index; 0 for absent ones. Raises OSError."""

    async def replace_locations(self, ledger_id: int, entry_ids: Int64s, old: Int64s, new: Int64s) -> int:
        """Set entries (ids ascending) that the index has at ``old`` to ``new``. Returns how many. Raises OSError."""

    def allocate_entry_log_id(self) -> int:
        """Take an id for a new entry log. Any thread."""

    def entry_logs_being_written(self) -> set[int]:
        """Entry logs with entries that are not in the index yet."""

    async def remove_entry_log(self, entry_log_id: int) -> None:
        """Remove an entry log's file, durably. Raises OSError."""

    def entry_log_path(self, entry_log_id: int) -> str:
        """Any thread. Raises FileNotFoundError."""

    def entry_log_ids(self) -> list[int]:
        """Ids of the entry logs in all directories. Any thread. Raises OSError."""

    def index_path(self, ledger_id: int) -> str | None:
        """Path of the ledger's index file; None if it has none. Any thread."""

    async def flush(self) -> None:
        """Make everything in memory durable and advance the marks. Raises OSError, SyncFailedError."""

    async def sync_index(self) -> None:
        """Sync the index files, without a flush of memory. Raises OSError, SyncFailedError."""
