"""Rules of the storage broken on purpose. The harness must find each of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from bk_spark.protocol.arrays import Int64s
from bookie_server.gc import compaction
from bookie_server.identity import cookies
from bookie_server.integrity import marking
from bookie_server.integrity.own_ledgers import OwnLedgers
from bookie_server.storage import flush
from bookie_server.storage.disk import files
from bookie_server.storage.entrylog import entry_log, entry_log_writer
from bookie_server.storage.entrylog.arrival_log import ArrivalLog
from bookie_server.storage.entrylog.entry_log_writer import EntryLogWriter
from bookie_server.storage.flush import Flusher
from bookie_server.storage.index import index
from bookie_server.storage.index.index import IndexFiles
from bookie_server.storage.journal import journal, journal_writer
from bookie_server.storage.journal.group_commit import GroupCommit
from bookie_server.storage.journal.journal_writer import JournalGroup, JournalWriter
from bookie_server.storage.journal.located_record import LocatedRecord
from bookie_server.storage.journal.log_mark import LogMark
from bookie_server.storage.ledger_storage import LedgerStorage
from bookie_server.storage.records import Records
from bookie_server.storage.replayed_records import ReplayedRecords
from bookie_server.storage.upkeep import StorageUpkeep


def _nothing(*_: object) -> None:
    pass


def _without(stack: ExitStack, module: ModuleType, *names: str) -> None:
    """``module`` calls functions of storage/disk/files.py, but for ``names``, which do nothing."""
    functions = {name: value for name, value in vars(files).items() if not name.startswith("__")}
    stack.enter_context(patch.object(module, "files", SimpleNamespace(**functions | dict.fromkeys(names, _nothing))))


def answers_before_the_sync(stack: ExitStack) -> None:
    stack.enter_context(patch.object(JournalWriter, "sync", JournalWriter._note_synced))


def marks_before_the_index_is_synced(stack: ExitStack) -> None:
    finish, sync = Flusher._finish, IndexFiles.sync

    def finish_and_sync(flusher: Flusher, *arguments: Any) -> None:
        finish(flusher, *arguments)
        sync(flusher._index)

    stack.enter_context(patch.object(IndexFiles, "sync", _nothing))
    stack.enter_context(patch.object(Flusher, "_finish", finish_and_sync))


def marks_before_entry_logs_are_synced(stack: ExitStack) -> None:
    _without(stack, entry_log_writer, "sync_data")


def journals_go_before_the_index_is_written(stack: ExitStack) -> None:
    write = Flusher._write_index

    def remove_and_write(flusher: Flusher, batch: Any, *pause: Any) -> None:
        flusher._remove_journals(batch.marks)
        write(flusher, batch, *pause)

    stack.enter_context(patch.object(Flusher, "_write_index", remove_and_write))


def the_header_points_at_a_map_to_come(stack: ExitStack) -> None:
    def leave(writer: EntryLogWriter) -> None:
        if writer._fd < 0:
            return
        pointer = entry_log.map_pointer(writer._position, len(writer._ledger_bytes))
        files.write_at(writer._fd, [pointer], entry_log.MAP_POINTER_AT)
        files.sync_data(writer._fd)
        files.write_at(writer._fd, [entry_log.ledgers_map(writer._ledger_bytes)], writer._position)
        files.sync_file(writer._fd)
        writer.close()

    stack.enter_context(patch.object(EntryLogWriter, "leave", leave))


def compaction_removes_the_old_log_before_the_index_is_durable(stack: ExitStack) -> None:
    async def not_now(upkeep: StorageUpkeep) -> None:
        pass

    stack.enter_context(patch.object(StorageUpkeep, "sync_index", not_now))


def the_name_of_a_compacted_log_is_not_synced(stack: ExitStack) -> None:
    _without(stack, compaction, "sync_directory")


def the_name_of_a_journal_is_not_synced(stack: ExitStack) -> None:
    _without(stack, journal_writer, "sync_directory")


def the_name_of_an_entry_log_is_not_synced(stack: ExitStack) -> None:
    _without(stack, entry_log_writer, "sync_directory")


def the_name_of_an_index_file_is_not_synced(stack: ExitStack) -> None:
    _without(stack, index, "sync_directory", "sync_file_system")


def files_are_replaced_without_a_sync(stack: ExitStack) -> None:
    def replace_file(path: str, content: bytes) -> None:
        with contextlib.suppress(FileNotFoundError):
            files.remove(path + ".tmp")
        fd = files.create_file(path + ".tmp")
        files.write_at(fd, [content], 0)
        os.close(fd)
        files.rename(path + ".tmp", path)
        files.sync_directory(os.path.dirname(path))

    stack.enter_context(patch.object(files, "replace_file", replace_file))


def fences_are_answered_before_they_are_durable(stack: ExitStack) -> None:
    append = LedgerStorage.append_journal

    def answer_and_append(
        storage: LedgerStorage, descriptor: Any, record: bytes, done: Any, undo: Any = None, **urgent: bool
    ) -> JournalGroup:
        group = append(storage, descriptor, record, lambda ok: setattr(descriptor, "fence_group", None), undo, **urgent)
        done(True)
        return group

    stack.enter_context(patch.object(LedgerStorage, "append_journal", answer_and_append))


def a_key_record_that_failed_is_not_written_again(stack: ExitStack) -> None:
    fail = GroupCommit._fail

    def keep_keys(commit: GroupCommit, groups: list[JournalGroup], error: Exception) -> None:
        for group in groups:
            group.keys.clear()
        fail(commit, groups, error)

    stack.enter_context(patch.object(GroupCommit, "_fail", keep_keys))


def a_failed_group_is_left_in_the_journal(stack: ExitStack) -> None:
    """The next group is written behind it."""

    def skip(writer: JournalWriter, error: OSError) -> None:
        writer._position += 512

    stack.enter_context(patch.object(JournalWriter, "_cut_back", skip))


def marks_are_taken_at_the_end_of_a_flush(stack: ExitStack) -> None:
    finish = Flusher._finish

    def finish_with_newer(flusher: Flusher, marks: Sequence[LogMark], *rest: Any) -> None:
        finish(flusher, flusher._durable_marks(), *rest)

    stack.enter_context(patch.object(Flusher, "_finish", finish_with_newer))


def a_failed_sync_is_tried_again(stack: ExitStack) -> None:
    def sync(writer: JournalWriter) -> None:
        try:
            files.sync_data(writer._fd)
        except files.SyncFailedError:
            files.sync_data(writer._fd)
        writer._note_synced()

    stack.enter_context(patch.object(JournalWriter, "sync", sync))


def marks_move_though_a_flush_failed(stack: ExitStack) -> None:
    write = Flusher._write_logs

    def write_or_not(flusher: Flusher, batch: Any, *steps: Any) -> None:
        try:
            write(flusher, batch, *steps)
        except files.SyncFailedError:
            raise
        except OSError:
            batch.entries = type(batch.entries)([], *(column[:0] for column in _columns(batch.entries)))

    stack.enter_context(patch.object(Flusher, "_write_logs", write_or_not))


def _columns(entries: Any) -> list[Any]:
    return [entries.entry_ids, entries.positions, entries.sizes]


def every_journal_has_the_same_nonce(stack: ExitStack) -> None:
    """One that clients know."""
    stack.enter_context(patch.object(journal, "new_nonce", lambda: bytes(journal.NONCE_BYTES)))


def ledgers_are_not_marked_after_a_loss(stack: ExitStack) -> None:
    stack.enter_context(patch.object(marking, "_mark_ledgers", _nothing))


def open_ledgers_are_not_fenced_after_a_loss(stack: ExitStack) -> None:
    stack.enter_context(patch.object(marking, "votes_about_end", lambda metadata, bookie_id: False))


def lost_directories_are_stamped_before_the_marks(stack: ExitStack) -> None:
    stack.enter_context(patch.object(cookies, "_UNCHECKED_FILE", cookies._VERSION_FILE))


def marks_of_ledgers_are_not_synced(stack: ExitStack) -> None:
    class Unsynced(IndexFiles):
        def sync(self) -> None:
            pass

    stack.enter_context(patch.object(marking, "IndexFiles", Unsynced))


def marks_of_lost_journals_stay(stack: ExitStack) -> None:
    stack.enter_context(patch.object(marking, "forget_marks", _nothing))


def lost_entry_logs_are_believed_in(stack: ExitStack) -> None:
    stack.enter_context(patch.object(OwnLedgers, "_end", lambda own, entry_log_id: 1 << 32))


def a_force_is_answered_before_the_sync(stack: ExitStack) -> None:
    stack.enter_context(patch.object(GroupCommit, "barrier", lambda commit, done: False))


def marks_pass_what_is_synced(stack: ExitStack) -> None:
    """Two guards have to be gone: marks end at what is synced, and a flush has the journals synced before it."""
    stack.enter_context(patch.object(GroupCommit, "durable_mark", property(lambda commit: commit._applied)))
    stack.enter_context(patch.object(GroupCommit, "sync_written", lambda commit, done: False))


def a_run_that_did_not_sync_counts_as_safe(stack: ExitStack) -> None:
    stack.enter_context(patch.object(marking, "may_have_lost", lambda directories: False))


def large_entries_are_answered_before_their_log_is_synced(stack: ExitStack) -> None:
    stack.enter_context(patch.object(ArrivalLog, "append_records", EntryLogWriter._append_in_order))


def marks_pass_large_entries_that_no_index_has(stack: ExitStack) -> None:
    stack.enter_context(patch.object(flush, "locations_of", lambda positions: positions * 0))


def a_replay_leaves_out_large_entries(stack: ExitStack) -> None:
    stack.enter_context(patch.object(ReplayedRecords, "replay_located", _nothing))


def a_replay_of_large_entries_stops_early(stack: ExitStack) -> None:
    replay = ReplayedRecords.replay_located

    def replay_first(storage: ReplayedRecords, entries: LocatedRecord, parts: list[tuple[Any, Int64s]]) -> None:
        replay(storage, entries, [(descriptor, which[:1]) for descriptor, which in parts])

    stack.enter_context(patch.object(ReplayedRecords, "replay_located", replay_first))


def logs_are_compacted_before_an_index_has_their_large_entries(stack: ExitStack) -> None:
    stack.enter_context(patch.object(LedgerStorage, "unindexed_logs", lambda storage: set()))


def large_entries_of_a_failed_write_count_as_written(stack: ExitStack) -> None:
    """The journal names places in an entry log that took nothing."""
    append = EntryLogWriter.append_records

    def append_or_not(log: ArrivalLog, some: Sequence[Records]) -> list[Int64s]:
        log_id, position = max(log.entry_log_id, 0), log._position
        try:
            return append(log, some)
        except files.SyncFailedError:
            raise
        except OSError:
            first = (log_id << entry_log.OFFSET_BITS) | max(position, entry_log.HEADER_BYTES)
            return [records.offsets[:-1] + 4 + first for records in some]

    stack.enter_context(patch.object(ArrivalLog, "append_records", append_or_not))


def the_name_of_an_arrival_log_is_not_synced(stack: ExitStack) -> None:
    append = EntryLogWriter._append_in_order

    def without_names(log: ArrivalLog, some: Sequence[Records]) -> list[Int64s]:
        with ExitStack() as inner:
            _without(inner, entry_log_writer, "sync_directory")
            return append(log, some)

    stack.enter_context(patch.object(ArrivalLog, "_append_in_order", without_names))


@dataclass(frozen=True, slots=True)
class Mutant:
    """A rule broken by ``breaks``. It is looked for in histories (histories.py) of ``steps``, from ``seed`` on. One of
    ``losses`` disks loses directories."""

    breaks: Callable[[ExitStack], None]
    steps: tuple[str, ...]
    seed: int = 1
    losses: int = 0


_FLUSHES: Final = ("add", "checkpoint")
_COMPACTIONS: Final = ("add", "checkpoint", "compact")

MUTANTS: Final = {
    "answers before the sync": Mutant(answers_before_the_sync, ("add",)),
    "marks before the index is synced": Mutant(marks_before_the_index_is_synced, _FLUSHES),
    "marks before entry logs are synced": Mutant(marks_before_entry_logs_are_synced, _FLUSHES),
    "journals go before the index is written": Mutant(journals_go_before_the_index_is_written, _FLUSHES, seed=8),
    "the header points at a map to come": Mutant(the_header_points_at_a_map_to_come, _FLUSHES),
    "compaction removes the old log too early": Mutant(
        compaction_removes_the_old_log_before_the_index_is_durable, _COMPACTIONS, seed=22
    ),
    "the name of a compacted log is not synced": Mutant(
        the_name_of_a_compacted_log_is_not_synced, _COMPACTIONS, seed=22
    ),
    "the name of a journal is not synced": Mutant(the_name_of_a_journal_is_not_synced, ("add",)),
    "the name of an entry log is not synced": Mutant(the_name_of_an_entry_log_is_not_synced, _FLUSHES, seed=13),
    "the name of an index file is not synced": Mutant(the_name_of_an_index_file_is_not_synced, _FLUSHES),
    "files are replaced without a sync": Mutant(files_are_replaced_without_a_sync, _FLUSHES),
    "fences are answered before they are durable": Mutant(
        fences_are_answered_before_they_are_durable, ("add", "fence")
    ),
    "a force is answered before the sync": Mutant(a_force_is_answered_before_the_sync, ("add", "force"), seed=5),
    "marks pass what is synced": Mutant(marks_pass_what_is_synced, _FLUSHES, seed=15),
    "a run that did not sync counts as safe": Mutant(
        a_run_that_did_not_sync_counts_as_safe, _FLUSHES, seed=5, losses=1
    ),
    "a key record that failed is not written again": Mutant(
        a_key_record_that_failed_is_not_written_again, ("add", "fail journal")
    ),
    "a failed group is left in the journal": Mutant(a_failed_group_is_left_in_the_journal, ("add", "fail journal")),
    "marks are taken at the end of a flush": Mutant(
        marks_are_taken_at_the_end_of_a_flush, ("add", "checkpoint and adds")
    ),
    "a failed sync is tried again": Mutant(a_failed_sync_is_tried_again, ("add", "fail sync")),
    "marks move though a flush failed": Mutant(marks_move_though_a_flush_failed, ("add", "fail flush")),
    "every journal has the same nonce": Mutant(every_journal_has_the_same_nonce, ("add", "add forged")),
    "ledgers are not marked after a loss": Mutant(ledgers_are_not_marked_after_a_loss, ("add",), losses=1),
    "open ledgers are not fenced after a loss": Mutant(open_ledgers_are_not_fenced_after_a_loss, ("add",), losses=1),
    "lost directories are stamped before the marks": Mutant(
        lost_directories_are_stamped_before_the_marks, ("add",), losses=1
    ),
    "marks of ledgers are not synced": Mutant(marks_of_ledgers_are_not_synced, ("add",), losses=1),
    "marks of lost journals stay": Mutant(marks_of_lost_journals_stay, _FLUSHES, losses=1),
    "large entries are answered before their log is synced": Mutant(
        large_entries_are_answered_before_their_log_is_synced, ("add large",), seed=2
    ),
    "marks pass large entries that no index has": Mutant(
        marks_pass_large_entries_that_no_index_has, ("add large", "checkpoint"), seed=2
    ),
    "a replay leaves out large entries": Mutant(a_replay_leaves_out_large_entries, ("add large",), seed=2),
    "a replay of large entries stops early": Mutant(a_replay_of_large_entries_stops_early, ("add large",), seed=2),
    "logs are compacted before an index has their large entries": Mutant(
        logs_are_compacted_before_an_index_has_their_large_entries, ("add large", "compact"), seed=2
    ),
    "large entries of a failed write count as written": Mutant(
        large_entries_of_a_failed_write_count_as_written, ("add large", "fail large"), seed=2
    ),
    "the name of an arrival log is not synced": Mutant(
        the_name_of_an_arrival_log_is_not_synced, ("add large",), seed=2
    ),
    "lost entry logs are believed in": Mutant(lost_entry_logs_are_believed_in, _FLUSHES, seed=9, losses=1),
}
