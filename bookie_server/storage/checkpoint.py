"""Checkpoints: what the journal holds up to a mark becomes durable in entry logs and index files.

Order, which is what makes it safe (compatibility facts §5.3): take the mark → sync the entry logs → write and
sync index files → write ``lastMark`` → remove journals. The mark only moves forward.

``<ledger dir>/current/lastMark``: i64 journal id, i64 offset.
"""

from __future__ import annotations

import asyncio
import logging
import os
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Final

from bookie_server.storage import journal
from bookie_server.storage.entry_log import EntryLogWriter
from bookie_server.storage.files import replace_file
from bookie_server.storage.handles import Handles
from bookie_server.storage.index import IndexFiles
from bookie_server.storage.journal import LogMark
from bookie_server.storage.ledger_cache import DirtyLedger, LedgerCache, PageKey

_LOG: Final = logging.getLogger(__name__)
_MARK: Final = struct.Struct(">qq")
#: Pages (8 KiB each) copied in the event loop at a time.
_BATCH_PAGES: Final = 256


def read_last_mark(directory: str) -> LogMark:
    """The mark in ``directory`` (a ``current``); (0, 0) where the file is missing or short."""
    try:
        with open(os.path.join(directory, "lastMark"), "rb") as file:
            content = file.read(_MARK.size)
    except FileNotFoundError:
        return LogMark(0, 0)
    return LogMark(*_MARK.unpack(content)) if len(content) == _MARK.size else LogMark(0, 0)


def write_last_mark(directory: str, mark: LogMark) -> None:
    replace_file(os.path.join(directory, "lastMark"), _MARK.pack(mark.journal_id, mark.offset))


class Checkpointer:
    """Runs checkpoints in the event loop; file work is done in ``executor`` (one thread)."""

    def __init__(
        self,
        *,
        journal_directory: str,
        ledger_directory: str,
        journal_max_backups: int,
        logs: EntryLogWriter,
        files: IndexFiles,
        cache: LedgerCache,
        handles: Handles,
        durable_mark: Callable[[], LogMark],
        executor: Executor,
    ) -> None:
        self._journal_directory = journal_directory
        self._ledger_directory = ledger_directory
        self._journal_max_backups = journal_max_backups
        self._logs = logs
        self._files = files
        self._cache = cache
        self._handles = handles
        self._durable_mark = durable_mark
        self._executor = executor
        self._lock = asyncio.Lock()
        self.last_mark = read_last_mark(ledger_directory)

    async def run(self) -> None:
        """One checkpoint; waits for one that is under way. Raises OSError: the bookie must stop then."""
        async with self._lock:
            mark = self._durable_mark()
            headers, pages = self._handles.dirty_headers(), self._cache.dirty_pages()
            if mark <= self.last_mark and not headers and not pages:
                return
            await self._in_thread(self._logs.sync)
            for batch in self._batches(headers, pages):
                await self._in_thread(self._write_files, batch)
                self._cache.flushed()
            written = self._cache.take_written()
            await self._in_thread(self._sync_and_mark, written, mark)
            self.last_mark = max(self.last_mark, mark)

    def run_blocking(self) -> None:
        """The same without an event loop: after replay, and when nothing else runs any more."""
        mark = self._durable_mark()
        self._logs.sync()
        for batch in self._batches(self._handles.dirty_headers(), self._cache.dirty_pages()):
            self._write_files(batch)
            self._cache.flushed()
        self._sync_and_mark(self._cache.take_written(), mark)
        self.last_mark = max(self.last_mark, mark)

    def _batches(self, headers: list[int], pages: list[PageKey]) -> Iterator[list[DirtyLedger]]:
        """What changed, in batches; each is to be written and reported as flushed before the next is drawn."""
        for first in range(0, len(pages), _BATCH_PAGES):
            yield self._cache.take_dirty(pages[first : first + _BATCH_PAGES])
        for first in range(0, len(headers), _BATCH_PAGES):
            dirty = (self._cache.take_header(ledger_id) for ledger_id in headers[first : first + _BATCH_PAGES])
            yield [item for item in dirty if item is not None]

    def _write_files(self, batch: list[DirtyLedger]) -> None:
        for ledger in batch:
            self._files.write(ledger.ledger_id, ledger.header, ledger.pages)

    def _sync_and_mark(self, written: list[int], mark: LogMark) -> None:
        self._files.sync(written)
        if mark > self.last_mark:
            write_last_mark(self._ledger_directory, mark)
            self._remove_journals(mark)

    def _remove_journals(self, mark: LogMark) -> None:
        """Remove journals below the mark, but for the newest few."""
        ids = journal.journal_ids(self._journal_directory)
        below = [journal_id for journal_id in ids if journal_id < mark.journal_id]
        for journal_id in below[: max(0, len(below) - self._journal_max_backups)]:
            path = os.path.join(self._journal_directory, journal.file_name(journal_id))
            os.remove(path)
            _LOG.info("removed journal %s: below the mark %x:%d", path, mark.journal_id, mark.offset)

    async def _in_thread(self, function: Callable[..., None], *arguments: object) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)
