"""What garbage collection needs of the storage that it cleans up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from bk_spark.protocol.arrays import Int64s
from bookie_server.storage.directories import LedgerDirectories

_T = TypeVar("_T")


class RunBlocking(Protocol):
    """Runs a function in the collector's thread and waits for it in the event loop."""

    def __call__(self, function: Callable[..., _T], /, *arguments: object) -> Awaitable[_T]: ...


class CollectedStorage(Protocol):
    """The part of LedgerStorage that the collector uses, in the event loop unless it says otherwise."""

    directories: LedgerDirectories

    def local_ledgers(self) -> Awaitable[Int64s]:
        """All ledgers that exist here, ascending. Raises OSError rather than give a part."""

    def mark_ledger(self, ledger_id: int) -> bool:
        """Refuse adds and fences of the ledger until it is removed or unmarked. False if it is not here.

        Raises OSError."""

    async def settle(self) -> None:
        """Wait until everything accepted before is durable or failed."""

    async def remove_ledger(self, ledger_id: int) -> None:
        """Forget a marked ledger and remove its index file. Raises OSError."""

    def unmark_ledger(self, ledger_id: int) -> None:
        """A marked ledger serves again. Does nothing for one that was removed."""

    async def sync_deletions(self) -> None:
        """Make the deletions so far durable. Raises OSError, SyncFailedError."""

    async def locations_of(self, ledger_id: int, entry_ids: Int64s) -> Int64s:
        """Locations of entries (ids ascending) in the index; 0 for absent ones. Raises OSError."""

    async def replace_locations(self, ledger_id: int, entry_ids: Int64s, old: Int64s, new: Int64s) -> int:
        """Set entries (ids ascending) that the index has at ``old`` to ``new``. Returns how many. Raises OSError."""

    def allocate_entry_log_id(self) -> int:
        """An id for a new entry log. Any thread."""

    def entry_logs_being_written(self) -> set[int]:
        """Entry logs whose entries are not yet all in the index."""

    async def remove_entry_log(self, entry_log_id: int) -> None:
        """Remove an entry log's file, durably. Raises OSError."""

    def entry_log_path(self, entry_log_id: int) -> str:
        """Any thread. Raises FileNotFoundError."""

    def entry_log_ids(self) -> list[int]:
        """Ids of the entry logs in all directories. Any thread. Raises OSError."""

    def index_path(self, ledger_id: int) -> str | None:
        """The ledger's index file; None where it has none. Any thread."""

    async def flush(self) -> None:
        """Make everything in memory durable and move the marks. Raises OSError, SyncFailedError."""

    async def sync_index(self) -> None:
        """Sync the index files, without what is in memory. Raises OSError, SyncFailedError."""
