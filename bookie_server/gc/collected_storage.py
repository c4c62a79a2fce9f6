"""What the collector needs of the storage that it cleans up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from bk_spark.protocol.arrays import Int64s
from bookie_server.storage.directories import LedgerDirectories

_T = TypeVar("_T")


class RunBlocking(Protocol):
    """Runs a function in the collector's thread; waits for it in the event loop."""

    def __call__(self, function: Callable[..., _T], /, *arguments: object) -> Awaitable[_T]: ...


class CollectedStorage(Protocol):
    """The part of LedgerStorage that the collector uses, in the event loop unless it says otherwise."""

    directories: LedgerDirectories

    def local_ledgers(self) -> Awaitable[Int64s]:
        """All ledgers that exist here, ascending. Raises OSError rather than give a part."""

    def mark_ledger(self, ledger_id: int) -> bool:
        """Take nothing more of the ledger until it is removed or unmarked; False where it is not here.

        Raises OSError."""

    async def settle(self) -> None:
        """Wait until all that was taken before is decided."""

    async def remove_ledger(self, ledger_id: int) -> None:
        """Forget a marked ledger and remove its index file. Raises OSError."""

    def unmark_ledger(self, ledger_id: int) -> None:
        """A ledger that was marked serves again. One that was removed is none."""

    async def sync_deletions(self) -> None:
        """Make the deletions so far durable. Raises OSError, SyncFailedError."""

    async def locations_of(self, ledger_id: int, entry_ids: Int64s) -> Int64s:
        """Where the index has entries (ids ascending), 0 for absent ones. Raises OSError."""

    async def replace_locations(self, ledger_id: int, entry_ids: Int64s, old: Int64s, new: Int64s) -> int:
        """Set those entries (ids ascending) to ``new`` that the index has at ``old``; how many. Raises OSError."""

    def allocate_entry_log_id(self) -> int:
        """An id for a new entry log. Any thread."""

    def entry_logs_being_written(self) -> set[int]:
        """Logs that the index does not speak of completely yet."""

    async def remove_entry_log(self, entry_log_id: int) -> None:
        """Remove an entry log's file, durably. Raises OSError."""

    def entry_log_path(self, entry_log_id: int) -> str:
        """Any thread. Raises FileNotFoundError."""

    def entry_log_ids(self) -> list[int]:
        """Ids of the entry logs in all directories. Any thread. Raises OSError."""

    def index_path(self, ledger_id: int) -> str | None:
        """The ledger's index file; None where it has none. Any thread."""

    async def flush(self) -> None:
        """Make everything that is in memory durable and let the marks pass it. Raises OSError, SyncFailedError."""

    async def sync_index(self) -> None:
        """Make what the index says durable, whatever is in memory. Raises OSError, SyncFailedError."""
