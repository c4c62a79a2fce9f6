"""The bookie's journals: one file writer and one commit thread for each journal directory.

Journal ``ledger id mod number of journals`` holds a ledger's records (compatibility.md §5.3), so they keep their order.
group_commit.py describes how groups are formed and what a failure means.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import Callable, Collection, Sequence
from typing import Final

from bookie_server.config.config import BookieConfig
from bookie_server.storage.disk import files
from bookie_server.storage.disk.appended_file import choose_direct
from bookie_server.storage.disk.removal import Removal
from bookie_server.storage.entrylog.arrival_log import ArrivalLog
from bookie_server.storage.journal import journal
from bookie_server.storage.journal.group_commit import FinishedCallback, GroupCommit
from bookie_server.storage.journal.group_timing import JournalGroupStats
from bookie_server.storage.journal.journal import JournalEnd
from bookie_server.storage.journal.journal_writer import DoneCallback, JournalWriter
from bookie_server.storage.journal.log_mark import LogMark

_LOG: Final = logging.getLogger(__name__)


class Journals:
    """All journals of a bookie, one in each of ``directories`` (``current`` directories).

    Created before the event loop runs, with the ``ends`` that ``replay_journals`` returned. Starts a new file in each
    directory. If that fails, as on a full disk, ``on_write_error`` gets the error at :meth:`start`, and the first group
    tries again.

    Called in the event loop, with the number of the journal or the error:

    ``new_arrival_log()`` makes the log of a journal's large entries.

    ``on_failure(error)``: once; nothing more is accepted and the process should end.
    ``on_write_error(error)``: each time groups have failed and later ones may succeed.
    ``on_group(number, stats)``: for each written group.

    Raises SyncFailedError.
    """

    def __init__(
        self,
        config: BookieConfig,
        directories: Sequence[str],
        ends: Sequence[JournalEnd],
        *,
        new_arrival_log: Callable[[], ArrivalLog],
        on_failure: Callable[[Exception], None],
        on_write_error: Callable[[OSError], None],
        on_group: Callable[[int, JournalGroupStats], None] | None = None,
    ) -> None:
        self._config = config
        self._directories = tuple(directories)
        self._on_failure = on_failure
        self._failed = False
        self._commits: list[GroupCommit] = []
        self._arrival_logs: list[ArrivalLog] = []
        # Without syncs, groups are answered from the page cache.
        direct = choose_direct(directories, config.journal_direct_io and config.journal_sync_data, "journals")
        for number, (directory, end) in enumerate(zip(directories, ends, strict=True)):
            writer = JournalWriter(
                directory,
                end.next_id,
                max_file_bytes=config.journal_max_bytes,
                preallocate_bytes=config.journal_preallocate_bytes,
                remove_from_page_cache=config.journal_remove_from_page_cache,
                sync_data=config.journal_sync_data,
                direct=directory in direct,
            )
            self._arrival_logs.append(new_arrival_log())
            commit = GroupCommit(
                writer,
                self._arrival_logs[-1],
                config,
                end.mark,
                name=f"journal-{number}",
                on_failure=self._fail,
                on_write_error=on_write_error,
                on_group=None if on_group is None else functools.partial(on_group, number),
            )
            commit.open()
            self._commits.append(commit)

    # --- life --------------------------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop, finished: FinishedCallback) -> None:
        """Start accepting groups. ``finished(group, error)`` is called in ``loop``, in order for each journal."""
        for commit in self._commits:
            commit.start(loop, finished)

    def stop(self) -> None:
        """Let the threads finish what is pending, then end. Blocks, so do not call it in the event loop. Remaining
        callbacks run there afterwards."""
        for commit in self._commits:
            commit.stop()
        for commit in self._commits:
            commit.join()

    def end_arrival_logs(self) -> None:
        """Complete the logs of large entries after :meth:`stop`. Raises SyncFailedError. Blocks."""
        for commit in self._commits:
            commit.end_arrival_log()

    def close(self, *, indexed: bool = False) -> None:
        """Close the files after :meth:`stop`. Unused allocated space is released. ``indexed``: the marks are where the
        journals end."""
        for commit in self._commits:
            commit.close(indexed=indexed)

    # --- groups ------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._commits)

    def number_of(self, ledger_id: int) -> int:
        """The number of the ledger's journal."""
        return ledger_id % len(self._commits)

    def of(self, ledger_id: int) -> GroupCommit:
        """The ledger's journal."""
        return self._commits[ledger_id % len(self._commits)]

    def barrier(self, done: DoneCallback, ledger_id: int | None = None) -> bool:
        """Call ``done(ok)`` once everything added so far to the ledger's journal (None: to all) is decided and synced,
        even with ``sync_data`` off. Return False, without a call, if that is already so."""
        if ledger_id is not None:
            return self.of(ledger_id).barrier(done)
        return _all_of([commit.barrier for commit in self._commits], done)

    def sync_written(self, done: DoneCallback) -> bool:
        """Call ``done(ok)`` once all groups decided so far are synced, even while a journal cannot be written. Return
        False, without a call, if that is already so."""
        return _all_of([commit.sync_written for commit in self._commits], done)

    def probe(self, done: DoneCallback) -> bool:
        """Test whether journals whose last write failed can be written again: each allocates a whole step and writes an
        empty group. Then call ``done(ok)``. Return False, without a call, if no journal's last write failed."""
        return _all_of([commit.probe for commit in self._commits], done)

    @property
    def busy_since_s(self) -> float | None:
        """Since when the thread of a journal has had something to do, the earliest of them. In the future if none has
        yet. None: none will, unless something is added."""
        since_s = [commit.busy_since_s for commit in self._commits]
        return min((one for one in since_s if one is not None), default=None)

    @property
    def outstanding_bytes(self) -> int:
        """Bytes added whose group is not decided yet."""
        return sum(commit.outstanding_bytes for commit in self._commits)

    @property
    def queued_entries(self) -> int:
        """Entries and other records in groups that are not being written yet."""
        return sum(commit.queued_entries for commit in self._commits)

    @property
    def write_error(self) -> OSError | None:
        """Why the last write of a journal failed; None if none did, or all have been written since."""
        return next((commit.write_error for commit in self._commits if commit.write_error is not None), None)

    @property
    def failed(self) -> bool:
        """Whether ``on_failure`` was called. Then every group fails."""
        return self._failed

    def _fail(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            self._on_failure(error)

    # --- checkpoints -------------------------------------------------------------------------------

    def unindexed_logs(self) -> set[int]:
        """Entry logs with large entries that the marks have not passed."""
        return {entry_log_id for log in self._arrival_logs for entry_log_id in tuple(log.unfinished)}

    def release_logs(self, entry_log_ids: Collection[int]) -> None:
        """Note that the marks have passed all entries of these closed logs. Any thread."""
        for log in self._arrival_logs:
            log.release(entry_log_ids)

    def durable_marks(self) -> list[LogMark]:
        """For each journal, the position after the last group that is synced and whose ``finished`` callback has run.
        Call in the loop."""
        return [commit.durable_mark for commit in self._commits]

    def remove_below(self, marks: Sequence[LogMark], removal: Removal) -> None:
        """Remove files below the marks, oldest first; keep the newest ``max_backups`` of them. Blocking, any thread.
        The marks must be durable in every ledger directory. Files that cannot be removed stay until next time. Raises
        SyncFailedError."""
        for directory, mark in zip(self._directories, marks, strict=True):
            try:
                below = [journal_id for journal_id in journal.journal_ids(directory) if journal_id < mark.journal_id]
                for journal_id in below[: max(0, len(below) - self._config.journal_max_backups)]:
                    path = os.path.join(directory, journal.file_name(journal_id))
                    removal.free(removal.unlink(path))
                    _LOG.info("removed journal %s: below the mark %x:%d", path, mark.journal_id, mark.offset)
            except files.SyncFailedError:
                raise
            except OSError as error:
                _LOG.warning("old journals in %s cannot be removed yet: %s", directory, error)


def _all_of(asks: Sequence[Callable[[DoneCallback], bool]], done: DoneCallback) -> bool:
    """Call all ``asks``. Call ``done`` once every ask that accepted has reported. Return False if none accepted."""
    left, good = 1, True

    def one(ok: bool) -> None:
        nonlocal left, good
        left -= 1
        good = good and ok
        if not left:
            done(good)

    for ask in asks:
        left += 1
        if not ask(one):
            left -= 1
    left -= 1
    return left > 0
