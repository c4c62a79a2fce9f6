"""Ledger descriptors: a bounded in-memory cache of the bookie's state of each ledger. Event loop only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from bookie_server.storage.index.index import IndexFiles, IndexHeader

#: Share of the descriptors that is dropped at once when there are too many.
_SWEEP_SHARE: Final = 16


class PendingGroup(Protocol):
    """A journal group that is not durable yet; its callbacks get the outcome."""

    done: list[Callable[[bool], None]]


class LedgerDescriptor:
    """One ledger's state.

    ``fenced`` and ``explicit_lac`` take effect at the request and become durable with its group. ``last_entry`` and
    ``last_add_confirmed`` count durable entries only. ``last_add_confirmed`` is -1 if unknown; ``lac_loaded`` says
    whether the last entry was read to determine it. ``limbo``: the bookie may have lost entries of the ledger, so none
    is known to be absent, and nothing is known about its end. ``deleting``: the ledger is about to be removed here, so
    adds and fences are refused and the descriptor stays. ``group`` is the newest undecided group with records of the
    ledger; its entry ids lie in ``pending_first`` … ``pending_last``.
    """

    __slots__ = (
        "deleting",
        "explicit_lac",
        "fence_group",
        "fenced",
        "group",
        "header_dirty",
        "key_journaled",
        "lac_awaited",
        "lac_loaded",
        "lac_watchers",
        "last_add_confirmed",
        "last_entry",
        "ledger_id",
        "limbo",
        "master_key",
        "pending_first",
        "pending_last",
    )

    def __init__(self, ledger_id: int, master_key: bytes) -> None:
        self.ledger_id = ledger_id
        self.master_key = master_key
        self.fenced = False
        self.limbo = False
        self.explicit_lac: bytes | None = None
        self.last_add_confirmed = -1
        self.lac_loaded = False
        self.last_entry = -1
        self.key_journaled = False
        self.header_dirty = False
        self.deleting = False
        self.group: PendingGroup | None = None
        self.fence_group: PendingGroup | None = None
        self.pending_first = 0
        self.pending_last = -1
        #: Long polls to wake: callback → the LAC that must be exceeded. Fencing or removing the ledger wakes them, too.
        self.lac_watchers: dict[Callable[[], None], int] | None = None
        #: A lower bound of these LACs: no callback is due before the LAC exceeds it.
        self.lac_awaited = 0

    def __repr__(self) -> str:
        return f"LedgerDescriptor(ledger_id={self.ledger_id}, fenced={self.fenced}, last_entry={self.last_entry})"

    def header(self) -> IndexHeader:
        """The header to write to the ledger's index file."""
        return IndexHeader(self.master_key, self.fenced, self.explicit_lac, self.limbo)

    def admits(self, master_key: bytes) -> bool:
        """Whether ``master_key`` may write to the ledger. A ledger without a key takes the first one, as a new ledger
        does: its file was lost, and its metadata have no password."""
        if master_key and not self.master_key:
            self.master_key = master_key
            self.key_journaled = False
            self.header_dirty = True
        return self.master_key == master_key

    def end_limbo(self) -> None:
        """Everything of the ledger is here again. Durable with the next flush."""
        self.limbo = False
        self.lac_loaded = False
        self.header_dirty = True

    def pending(self, first: int, last: int) -> PendingGroup | None:
        """The group to wait for before entries ``first`` … ``last`` may be read."""
        if self.group is not None and first <= self.pending_last and last >= self.pending_first:
            return self.group
        return None

    def watch_lac(self, above: int, watcher: Callable[[], None]) -> None:
        """Call ``watcher`` when a LAC above ``above`` is known, or the ledger is fenced or removed."""
        if not self.lac_watchers:
            self.lac_watchers, self.lac_awaited = {}, above
        self.lac_watchers[watcher] = above
        self.lac_awaited = min(self.lac_awaited, above)

    async def wait_for_lac(self, above: int, timeout_ms: int) -> bool:
        """Wait until a LAC above ``above`` is known, or the ledger is fenced or removed. Return False after the
        timeout."""
        was_fenced = self.fenced
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def look() -> None:
            ended = (self.fenced and not was_fenced) or self.deleting
            if (self.last_add_confirmed > above or ended) and not changed.done():
                changed.set_result(None)

        self.watch_lac(above, look)
        try:
            await asyncio.wait_for(changed, timeout_ms / 1000)
        except TimeoutError:
            return False
        finally:
            if self.lac_watchers:
                self.lac_watchers.pop(look, None)
        return True

    def wake_watchers(self) -> None:
        """Call every watcher: the ledger was fenced or removed."""
        for watcher in list(self.lac_watchers or ()):
            watcher()

    def tell_watchers(self) -> None:
        """Call the watchers whose LAC was exceeded."""
        lac = self.last_add_confirmed
        if not self.lac_watchers or lac <= self.lac_awaited:
            return
        reached = [watcher for watcher, above in self.lac_watchers.items() if above < lac]
        for watcher in reached:
            del self.lac_watchers[watcher]
        self.lac_awaited = min(self.lac_watchers.values(), default=0)
        for watcher in reached:
            watcher()

    @property
    def in_use(self) -> bool:
        """Whether the descriptor must stay in memory: an index file could not restore it."""
        return (
            self.header_dirty
            or self.deleting
            or self.group is not None
            or self.fence_group is not None
            or bool(self.lac_watchers)
        )


class LedgerDescriptors:
    """LedgerDescriptors of recently used ledgers; others are read from their index files on demand.

    ``has_changes(ledger_id)`` says whether memory holds entries of the ledger that its file lacks. Such a descriptor
    stays, since it cannot be restored from the file. Descriptors that must stay may exceed ``limit``.
    """

    def __init__(self, files: IndexFiles, limit: int, has_changes: Callable[[int], bool]) -> None:
        self._files = files
        self._limit = limit
        self._has_changes = has_changes
        self._descriptors: dict[int, LedgerDescriptor] = {}
        self._sweep_at = limit
        #: New ledgers since :meth:`take_headers` was last called.
        self.unwritten = 0
        #: Number of calls of :meth:`take_headers`.
        self.flushes = 0
        #: Ledgers that are known to have no index file. Only a flush creates one.
        self._absent: frozenset[int] = frozenset()
        #: Set during replay of the journal (see IndexFiles.read_header).
        self.replaying = False

    def __iter__(self) -> Iterator[LedgerDescriptor]:
        return iter(self._descriptors.values())

    def get(self, ledger_id: int) -> LedgerDescriptor | None:
        """The descriptor; None if this bookie does not know the ledger. Raises CorruptFileError, OSError."""
        descriptor = self._descriptors.get(ledger_id)
        if descriptor is not None:
            return descriptor
        if ledger_id in self._absent:
            return None
        header = self._files.read_header(ledger_id, replaying=self.replaying)
        if header is None:
            return None
        descriptor = LedgerDescriptor(ledger_id, header.master_key)
        descriptor.fenced = header.fenced
        descriptor.limbo = header.limbo
        descriptor.explicit_lac = header.explicit_lac
        descriptor.last_entry = self._files.last_entry(ledger_id)
        self._put(descriptor)
        return descriptor

    def note_absent(self, ledger_ids: Iterable[int], flushes: int) -> None:
        """Note ledgers that had no index file and were not in memory when :attr:`flushes` was ``flushes``.

        A ledger that is not in memory is in no running flush. So only a later flush can create its file, and that
        flush forgets this.
        """
        if flushes == self.flushes:
            self._absent = frozenset(ledger_ids)

    def create(self, ledger_id: int, master_key: bytes) -> LedgerDescriptor:
        """Create a new ledger. The next checkpoint writes its file."""
        descriptor = LedgerDescriptor(ledger_id, master_key)
        descriptor.header_dirty = True
        descriptor.lac_loaded = True
        self.unwritten += 1
        if self.replaying:
            # A power failure may have lost the header of a file but kept its entries.
            descriptor.last_entry = self._files.last_entry(ledger_id)
            descriptor.lac_loaded = descriptor.last_entry < 0
        self._put(descriptor)
        return descriptor

    def reserve(self, ledger_id: int) -> LedgerDescriptor:
        """A descriptor for a ledger that is to be removed and whose header cannot be read."""
        descriptor = LedgerDescriptor(ledger_id, b"")
        descriptor.deleting = True
        self._put(descriptor)
        return descriptor

    def peek(self, ledger_id: int) -> LedgerDescriptor | None:
        """The descriptor, if it is in memory."""
        return self._descriptors.get(ledger_id)

    def drop(self, ledger_id: int) -> None:
        """Forget a ledger that was removed."""
        self._descriptors.pop(ledger_id, None)

    def take_headers(self) -> dict[int, IndexHeader]:
        """The headers to write to index files, by ledger, ascending. They count as written from now on."""
        dirty = sorted(descriptor.ledger_id for descriptor in self._descriptors.values() if descriptor.header_dirty)
        self.unwritten = 0
        self.flushes += 1
        self._absent = frozenset()
        headers = {}
        for ledger_id in dirty:
            descriptor = self._descriptors[ledger_id]
            descriptor.header_dirty = False
            headers[ledger_id] = descriptor.header()
        return headers

    def _put(self, descriptor: LedgerDescriptor) -> None:
        if len(self._descriptors) >= self._sweep_at:
            self._sweep()
        self._descriptors[descriptor.ledger_id] = descriptor

    def _sweep(self) -> None:
        """Drop the oldest descriptors that can be restored from their index files."""
        share = max(1, self._limit // _SWEEP_SHARE)
        wanted = len(self._descriptors) - self._limit + share
        idle = []
        for descriptor in self._descriptors.values():
            if not descriptor.in_use and not self._has_changes(descriptor.ledger_id):
                idle.append(descriptor.ledger_id)
                if len(idle) == wanted:
                    break
        for ledger_id in idle:
            del self._descriptors[ledger_id]
        # If few descriptors could be dropped, a sweep at every new ledger would cost too much.
        self._sweep_at = max(self._limit, len(self._descriptors) + share)
