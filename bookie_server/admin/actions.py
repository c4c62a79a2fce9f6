"""What the admin API may ask of a bookie. ``process`` fills it; everything is called in the event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from bookie_server.state import BookieState
from bookie_server.storage.directories import LedgerDirectories
from bookie_server.storage.journal.log_mark import LogMark


class RefusedError(Exception):
    """What was asked was not done, and cannot be; the message says why."""


@dataclass(frozen=True, slots=True)
class CollectionStatus:
    """How garbage collection stands. Times in milliseconds since 1970, 0 for never; counts since the start."""

    forced: bool
    in_major: bool
    in_minor: bool
    last_major_ms: int
    last_minor_ms: int
    major_count: int
    minor_count: int


@dataclass(frozen=True, slots=True)
class EntryLogState:
    """One entry log file, and why it is still there. ``live_bytes`` are of ledgers that exist; ``usage`` is their share
    as compaction counts it, 0 to 1; both None where they are not known."""

    entry_log_id: int
    directory: str
    size_bytes: int
    live_bytes: int | None
    usage: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class StoppedCollection:
    """Ledgers that a collection did not remove because they were too many at once: ``ledgers`` of ``held``, counted at
    ``counted_ms`` (since 1970). ``named`` are the first few. ``word`` releases them; ``released``: it was given."""

    kind: str
    ledgers: int
    held: int
    counted_ms: int
    named: list[int]
    word: str
    released: bool


class Collection(Protocol):
    """Garbage collection, as the admin API knows it."""

    major_suspended: bool
    minor_suspended: bool

    async def force(self, *, major: bool | None, minor: bool | None) -> None:
        """Begin a pass soon, with major or minor compaction; None: where it is not suspended. Returns before it is
        done. Raises RefusedError where it will not come."""

    def status(self) -> CollectionStatus: ...

    def problem(self) -> str:
        """What went wrong in the last pass, "" for nothing."""

    def stopped(self) -> Sequence[StoppedCollection]:
        """What waits for an operator."""

    async def release(self, word: str) -> StoppedCollection:
        """The next pass, which begins soon, may remove what waits for ``word``. Raises RefusedError where nothing
        does."""

    async def entry_logs(self) -> Sequence[EntryLogState]:
        """All entry logs, ascending. Raises OSError."""


@dataclass(frozen=True, slots=True)
class AdminActions:
    """Directories are the ``current`` ones."""

    bookie_id: str
    state: BookieState
    directories: LedgerDirectories
    journal_directories: tuple[str, ...]
    collection: Collection
    #: Whether clients are served.
    running: Callable[[], bool]
    #: Free and total bytes on the disks of the ledger directories; None where they are not known.
    disk_space: Callable[[], tuple[int, int] | None]
    #: An operator's read-only mode, on or off, and kept over restarts. Raises RefusedError, or OSError where that
    #: could not be written down.
    set_read_only: Callable[[bool], Awaitable[None]]
    #: Up to where each journal is needed no more.
    last_marks: Callable[[], Sequence[LogMark]]
