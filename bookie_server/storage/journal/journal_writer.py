"""Writing a journal: one sealed group of records at a time, with a new file at the size limit. Format: journal.py.

A group holds the records that are written and synced together (group_commit.py). If an entry log takes a large entry,
the journal gets only its location.

Only the journal's thread uses the writer, except :attr:`JournalWriter.unsynced`, and :meth:`JournalWriter.open` before
the thread runs.

A failed write leaves the journal unchanged: the file is cut back to the end of the last group, so that no good group
and no later file ever follows a torn group. A new file that cannot be started is removed, and its id is not reused.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.errors import StorageError
from bookie_server.storage.disk import files
from bookie_server.storage.disk.appended_file import AlignedMemory, AppendedFile, BufferedFile, DirectFile
from bookie_server.storage.disk.files import Buffer
from bookie_server.storage.entrylog.arrival_log import ArrivalLog
from bookie_server.storage.journal import journal
from bookie_server.storage.journal.located_record import located_record
from bookie_server.storage.journal.log_mark import LogMark
from bookie_server.storage.ledger_descriptors import LedgerDescriptor
from bookie_server.storage.records import LedgerPart, Records

_LOG: Final = logging.getLogger(__name__)
#: Synced bytes are dropped from the page cache in steps of this size: a growing journal is never read back.
_DROP_STEP_BYTES: Final = 16 * 1024 * 1024


#: Called in the event loop when a group is decided; True if it is durable.
DoneCallback = Callable[[bool], None]


@dataclass(slots=True)
class Append:
    """Records that become readable once their group is durable. ``locations``: where they are in an entry log; None if
    their bytes are in the journal."""

    records: Records
    parts: list[tuple[LedgerDescriptor, LedgerPart]]
    locations: Int64s | None = None


@dataclass(slots=True, eq=False)
class JournalGroup:
    """Records that a journal writes and syncs together. Filled in the event loop, inside :meth:`GroupCommit.add`.

    ``large``: appends that go to an entry log if possible, and where in ``journal`` their bytes are.
    ``left_logs``: entry logs that got large entries of this group or earlier ones, and will get no more.
    ``undo``: if the group fails, called in the loop, newest first, before ``finished``.
    ``mark``: the position after the group, once it is written. ``since``, ``last``: when the first and the last came.
    ``urgent``: it has more than fences of many ledgers.
    """

    journal: list[Buffer] = field(default_factory=list)
    journal_bytes: int = 0
    entries: int = 0
    appends: list[Append] = field(default_factory=list)
    large: list[tuple[int, Append]] = field(default_factory=list)
    left_logs: list[int] = field(default_factory=list)
    keys: list[LedgerDescriptor] = field(default_factory=list)
    done: list[DoneCallback] = field(default_factory=list)
    undo: list[Callable[[], None]] = field(default_factory=list)
    mark: LogMark | None = None
    since: float = 0.0
    last: float = 0.0
    must_sync: bool = False
    probes: bool = False
    urgent: bool = False

    def add_journal(self, record: Buffer, entries: int = 1) -> None:
        """Append one record, or ``entries`` consecutive ones, to the journal."""
        self.journal.append(record)
        self.journal_bytes += len(record)
        self.entries += entries

    def add_append(self, append: Append, *, large: bool) -> None:
        """Append records that become readable; ``large`` ones without their bytes, if possible."""
        if large:
            self.large.append((len(self.journal), append))
        self.add_journal(append.records.data, len(append.records))
        self.appends.append(append)

    def add_key(self, descriptor: LedgerDescriptor) -> None:
        """Append the ledger's master key record unless the journal already has it."""
        if not descriptor.key_journaled:
            self.add_journal(journal.master_key_record(descriptor.ledger_id, descriptor.master_key))
            descriptor.key_journaled = True
            self.keys.append(descriptor)


class JournalWriter:
    """Appends groups to journals in ``directory``; the first new file gets the id ``next_id``.

    ``max_file_bytes``: the write that exceeds this is the file's last. ``preallocate_bytes``: space is allocated in
    steps of this size, if possible. ``sync_data``: the caller syncs each group before it writes the next. ``direct``:
    groups do not go through the page cache (appended_file.py).

    After SyncFailedError or StorageError only :meth:`close` may be called. After any other OSError the writer can still
    be used.
    """

    def __init__(
        self,
        directory: str,
        next_id: int,
        *,
        max_file_bytes: int,
        preallocate_bytes: int,
        remove_from_page_cache: bool = True,
        sync_data: bool = True,
        direct: bool = False,
    ) -> None:
        self.directory = directory
        self._next_id = next_id
        self._max_file_bytes = max_file_bytes
        self._preallocate_bytes = preallocate_bytes
        self._remove_from_page_cache = remove_from_page_cache
        self._sync_data = sync_data
        self._nonce = b""
        #: Whether new files may say where entries are in entry logs, and whether the current one may.
        self._locates = False
        self._file_locates = False
        self._memory = AlignedMemory() if direct else None
        self._file: AppendedFile | None = None
        self._fd = -1
        self._journal_id = 0
        self._position = 0
        self._allocated = 0
        self._dropped = 0
        #: Everything before this position is durable. (0, 0) before there is a file.
        self.synced = LogMark(0, 0)
        #: Whether something was written since the last sync.
        self.unsynced = False

    def open(self) -> LogMark:
        """Start a new file. Return where its groups begin. Raises OSError with no file left, SyncFailedError."""
        journal_id, self._next_id = self._next_id, self._next_id + 1
        path = os.path.join(self.directory, journal.file_name(journal_id))
        nonce = journal.new_nonce()
        fd = files.create_file(path, direct=self._memory is not None)
        file = BufferedFile(fd, 0) if self._memory is None else DirectFile(fd, self._memory)
        try:
            allocated = self._allocate(fd, 0, journal.HEADER_BYTES)
            file.put([journal.file_header(nonce, sync_data=self._sync_data, locates=self._locates)])
            file.finish()
            files.sync_file(fd)
            files.sync_directory(self.directory)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):  # an empty journal does no harm
                files.remove(path)
            if self._file is not None:
                self._file.back_to(self._position)  # the new file has used its memory
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._file, self._journal_id = fd, file, journal_id
        self._position, self._allocated = journal.HEADER_BYTES, allocated
        self._dropped = 0
        self._nonce, self._file_locates = nonce, self._locates
        self.synced = LogMark(journal_id, self._position)
        return self.synced

    def write(self, buffers: Sequence[Buffer], size_bytes: int) -> LogMark:
        """Append ``buffers`` (``size_bytes`` in total) as one group, without a sync. Return where the next one begins.

        Raises OSError with the journal unchanged, SyncFailedError, StorageError if the journal could not be restored.
        """
        file = self._have_file()
        ending = journal.group_end(self._nonce, self._position, buffers, size_bytes)
        end = self._position + size_bytes + len(ending)
        if end > self._allocated:
            self._allocated = self._allocate(self._fd, self._allocated, end)
        try:
            file.put([*buffers, ending])
            file.finish()
        except OSError as error:
            self._cut_back(error)
            file.back_to(self._position)
            raise
        self._position = end
        self.unsynced = True
        return LogMark(self._journal_id, end)

    def write_group(self, group: JournalGroup, arrival_log: ArrivalLog) -> int:
        """:meth:`write` a group, its large entries to ``arrival_log`` if possible. They are durable there before the
        journal says so. Return the group's bytes here, and set its ``mark``. Raises as :meth:`write`."""
        buffers, size_bytes = self._without_large(group, arrival_log)
        group.mark = self.write(buffers, size_bytes)
        return size_bytes

    def _without_large(self, group: JournalGroup, arrival_log: ArrivalLog) -> tuple[list[Buffer], int]:
        buffers, size_bytes = group.journal, group.journal_bytes
        if not group.large:
            return buffers, size_bytes
        try:
            self.begin_to_locate()
            located = arrival_log.append_records([append.records for _, append in group.large])
        except OSError as error:
            group.left_logs = arrival_log.take_left()
            if not files.may_pass(error):
                raise
            _LOG.warning("large entries cannot be written to an entry log, and go to the journal: %s", error)
            return buffers, size_bytes
        group.left_logs = arrival_log.take_left()
        buffers = list(buffers)
        for (at, append), locations in zip(group.large, located, strict=True):
            append.locations = locations
            record = located_record(append.records, locations)
            size_bytes += len(record) - len(buffers[at])
            buffers[at] = record
        return buffers, size_bytes

    def begin_to_locate(self) -> None:
        """Make sure that the next group may have records of entries in entry logs: they are not put into a file that
        Apache's bookie would read. Raises OSError, SyncFailedError."""
        self._locates = True
        if self._fd >= 0 and not self._file_locates:
            self._complete()
            self.open()

    def reserve(self) -> None:
        """Make sure that the disk has room for another step. Raises OSError, SyncFailedError."""
        self._have_file()
        files.allocate(self._fd, self._position, self._preallocate_bytes)
        self._allocated = max(self._allocated, self._position + self._preallocate_bytes)

    def sync(self) -> None:
        """Make everything written durable. Raises SyncFailedError."""
        if not self.unsynced:
            return
        files.sync_data(self._fd)
        self._note_synced()
        if self._memory is None and self._remove_from_page_cache and self._position - self._dropped >= _DROP_STEP_BYTES:
            os.posix_fadvise(self._fd, self._dropped, self._position - self._dropped, os.POSIX_FADV_DONTNEED)
            self._dropped = self._position

    def close(self, *, intact: bool = True, indexed: bool = False) -> None:
        """Close the current file. ``intact``: no write or sync has failed for good, so written data is synced and
        unused allocated space is released. ``indexed``: the marks are at the end of the file, so whatever it says about
        entry logs is in the index, and Apache's bookie may go on from here. Raises OSError."""
        if self._fd < 0:
            return
        try:
            if intact:
                self._complete()
        finally:
            os.close(self._fd)
            self._fd, self._file = -1, None
        if intact and indexed and self._file_locates:
            self._let_apaches_read()

    def _let_apaches_read(self) -> None:
        """Give the closed file the version that Apache's bookie knows. The header lies in one sector."""
        fd = files.open_file(os.path.join(self.directory, journal.file_name(self._journal_id)))
        try:
            files.write_at(fd, [journal.file_header(self._nonce, sync_data=self._sync_data)], 0)
            files.sync_data(fd)
        finally:
            os.close(fd)

    def _have_file(self) -> AppendedFile:
        """The file to append to, a new one after the size limit. The old file is completed first."""
        if self._file is None:
            self.open()
        elif self._position > self._max_file_bytes:
            self._complete()
            self.open()
        assert self._file is not None
        return self._file

    def _complete(self) -> None:
        files.truncate(self._fd, self._position)
        self._allocated = self._position
        files.sync_file(self._fd)
        self._note_synced()

    def _note_synced(self) -> None:
        self.synced = LogMark(self._journal_id, self._position)
        self.unsynced = False

    def _allocate(self, fd: int, allocated: int, end: int) -> int:
        """Allocate space up to at least ``end`` in whole steps, so that syncs need not touch metadata. Return its end.
        If that fails, the write will show whether there is room; these steps are not allocated again."""
        steps = -(-(end - allocated) // self._preallocate_bytes)
        size_bytes = steps * self._preallocate_bytes
        with contextlib.suppress(OSError):
            files.allocate(fd, allocated, size_bytes)
        return allocated + size_bytes

    def _cut_back(self, error: OSError) -> None:
        try:
            files.truncate(self._fd, self._position)
        except OSError as cut_error:
            raise StorageError(
                f"journal {self._journal_id:x} in {self.directory}: a group could not be written ({error}), and its "
                f"written part could not be cut off ({cut_error})"
            ) from error
        self._allocated = self._position
