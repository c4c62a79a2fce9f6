"""Rules of a bookie's storage: journals, flushes, marks, index files, entry logs, compaction and collection."""

from __future__ import annotations

from typing import Final

from tests.mutation.mutation import Mutation

MUTATIONS: Final = (
    Mutation(
        "A master key record that failed is written again.",
        "bookie_server/storage/journal/group_commit.py",
        "                descriptor.key_journaled = False",
        "                descriptor.key_journaled = True",
        ("tests/unit/test_storage_failures.py::test_a_full_journal_takes_back_what_it_promised",),
    ),
    Mutation(
        "Effects of a failed group are reverted, the newest first.",
        "bookie_server/storage/journal/group_commit.py",
        "for undo in reversed(group.undo):",
        "for undo in group.undo[:0]:",
        ("tests/unit/test_group_commit.py::test_promises_are_undone_newest_first_and_before_any_answer",),
    ),
    Mutation(
        "The durable mark waits for the sync.",
        "bookie_server/storage/journal/group_commit.py",
        "return min(self._applied, self._synced)",
        "return self._applied",
        ("tests/unit/test_group_commit.py::test_b2_without_syncs_the_mark_waits_for_one",),
    ),
    Mutation(
        "A group is answered only after its sync.",
        "bookie_server/storage/journal/journal_writer.py",
        "        files.sync_data(self._fd)\n        self._note_synced()",
        "        self._note_synced()",
        ("tests/unit/test_group_commit.py::test_nothing_is_answered_before_the_sync",),
    ),
    Mutation(
        "A group that could not be written is cut off.",
        "bookie_server/storage/journal/journal_writer.py",
        "            self._cut_back(error)\n",
        "",
        ("tests/unit/test_group_commit.py::test_a_failed_write_is_cut_off_and_later_ones_succeed",),
    ),
    Mutation(
        "A direct write begins with what its first block held before.",
        "bookie_server/storage/appended_file.py",
        "            self._array[:rest] = self._array[whole : self._used]\n",
        "            pass\n",
        ("tests/unit/test_appended_file.py::test_a_journal_is_the_same_either_way",),
    ),
    Mutation(
        "After a group that was cut off, its block holds again what was before it.",
        "bookie_server/storage/appended_file.py",
        "        self._view[: self._used] = self._last_block\n",
        "",
        ("tests/unit/test_appended_file.py::test_going_back",),
    ),
    Mutation(
        "A direct write fills up its last block with zeros.",
        "bookie_server/storage/appended_file.py",
        "        self._array[used:end] = 0\n",
        "",
        ("tests/unit/test_appended_file.py::test_everything_is_there_in_order",),
    ),
    Mutation(
        "The name of a new journal is durable before it is used.",
        "bookie_server/storage/journal/journal_writer.py",
        "            files.sync_directory(self.directory)\n",
        "",
        ("tests/crash/test_crash_scenarios.py::test_b2_between_every_write_and_sync",),
    ),
    Mutation(
        "A mark never goes back.",
        "bookie_server/storage/flush.py",
        "marks = [max(mark, last) for mark, last in zip(marks, self.last_marks, strict=True)]",
        "marks = list(marks)",
        ("tests/unit/test_storage_flushes.py::test_a_mark_never_goes_back",),
    ),
    Mutation(
        "Index files are synced before the marks advance.",
        "bookie_server/storage/flush.py",
        "        self._index.sync()\n",
        "",
        ("tests/unit/test_storage_flushes.py::test_each_step_is_durable_before_the_next",),
    ),
    Mutation(
        "Marks are taken with the data, before the flush writes it.",
        "bookie_server/storage/flush.py",
        "await self._in_thread(self._finish, batch.marks)",
        "await self._in_thread(self._finish, self._durable_marks())",
        ("tests/crash/test_crash_scenarios.py::test_b1_checkpoints_are_late_while_journals_roll",),
    ),
    Mutation(
        "A ledger that was removed is left out of a flush that is tried again.",
        "bookie_server/storage/flush.py",
        "        batch.headers.pop(ledger_id, None)\n",
        "",
        ("tests/unit/test_storage_deletions.py::test_deletion_while_a_failed_flush_is_held",),
    ),
    Mutation(
        "Of several marks of a journal the highest counts.",
        "bookie_server/storage/journal/log_mark.py",
        "        max(\n            read_mark(",
        "        min(\n            read_mark(",
        ("tests/unit/test_log_mark.py::test_the_highest_mark_of_each_journal_counts",),
    ),
    Mutation(
        "A mark of a journal that is not configured is refused.",
        "bookie_server/storage/journal/log_mark.py",
        "if number >= journals:",
        "if number > journals:",
        ("tests/unit/test_log_mark.py::test_a_mark_of_a_journal_that_is_not_configured_is_refused",),
    ),
    Mutation(
        "A flush fails if no directory can keep the marks.",
        "bookie_server/storage/journal/log_mark.py",
        "if failure is not None and not written:",
        "if failure is not None and written:",
        ("tests/unit/test_log_mark.py::test_a_directory_that_cannot_be_written_keeps_its_mark",),
    ),
    Mutation(
        "The journal in which the mark lies is not removed.",
        "bookie_server/storage/journal/journals.py",
        "if journal_id < mark.journal_id]",
        "if journal_id <= mark.journal_id]",
        ("tests/unit/test_journals.py::test_old_files_are_removed_but_for_the_newest_backups",),
    ),
    Mutation(
        "A bookie does not start without the journal that its mark names.",
        "bookie_server/storage/journal/replay.py",
        "if mark.journal_id > 0 and mark.journal_id not in ids:",
        "if mark.journal_id > 0 and not ids:",
        ("tests/unit/test_replay.py::test_the_marks_journal_must_be_there",),
    ),
    Mutation(
        "A fence in the journal holds after a restart.",
        "bookie_server/storage/journal/replay.py",
        "                    descriptor.fenced = True\n",
        "                    descriptor.fenced = False\n",
        ("tests/unit/test_replay.py::test_everything_is_done_again_and_twice_changes_nothing",),
    ),
    Mutation(
        "An explicit LAC does not go back in a replay.",
        "bookie_server/storage/journal/replay.py",
        "lac < LAC_PACKET_HEADER.unpack_from(known)[1]:",
        "lac < 0:",
        ("tests/unit/test_replay.py::test_an_explicit_lac_never_goes_back",),
    ),
    Mutation(
        "A damaged journal is torn only if no journal of this bookie follows.",
        "bookie_server/storage/journal/replay.py",
        "may_end_torn=next_one is None or not is_ours(next_one)",
        "may_end_torn=True",
        ("tests/unit/test_journal_marks.py::test_h1_a_torn_end_before_a_journal_of_apaches_is_no_damage",),
    ),
    Mutation(
        "A fence is written to the index file.",
        "bookie_server/storage/index/index.py",
        "_I32.pack(_FENCED * self.fenced | _LIMBO * self.limbo)",
        "_I32.pack(_LIMBO * self.limbo)",
        ("tests/unit/test_index_files.py::test_header_bytes",),
    ),
    Mutation(
        "The names of new index files are synced up to their directory.",
        "bookie_server/storage/index/index.py",
        "self._unsynced_directories |= {inner, os.path.dirname(inner), directory}",
        "self._unsynced_directories |= {inner}",
        ("tests/unit/test_index_files.py::test_sync_covers_files_and_new_names",),
    ),
    Mutation(
        "A sync of index files that failed is owed still.",
        "bookie_server/storage/index/index.py",
        "                self._unsynced_ledgers.update(ledgers)\n",
        "",
        ("tests/unit/test_index_files.py::test_what_could_not_be_synced_is_tried_again",),
    ),
    Mutation(
        "The header of an entry log points to its map only once the map is durable.",
        "bookie_server/storage/entrylog/entry_log_writer.py",
        "        files.sync_data(self._fd)  # the header must not point to a missing map\n",
        "",
        ("tests/crash/test_crash_scenarios.py::test_b2_between_every_write_and_sync",),
    ),
    Mutation(
        "A failed append is cut off before its entry log is closed.",
        "bookie_server/storage/entrylog/entry_log_writer.py",
        "                files.truncate(self._fd, begun_at)\n",
        "                pass\n",
        ("tests/unit/test_entry_log_writer.py::test_a_failed_append_is_cut_off_and_done_elsewhere",),
    ),
    Mutation(
        "The newest copy of an entry wins.",
        "bookie_server/storage/ledger_storage.py",
        "            result = found if result is None else np.where(result == 0, found, result)",
        "            result = found if result is None else np.where(found == 0, result, found)",
        ("tests/unit/test_storage_flushes.py::test_the_newest_copy_wins_wherever_the_others_are",),
    ),
    Mutation(
        "An entry log that is being written is not removed.",
        "bookie_server/gc/entry_log_collection.py",
        "            if entry_log_id in written:\n"
        "                self._explain_unread(entry_log_id, _BEING_WRITTEN)\n"
        "            elif",
        "            if",
        ("tests/unit/test_entry_log_collection.py::test_logs_being_written_are_not_touched",),
    ),
    Mutation(
        "What a damaged entry log holds is asked of the index.",
        "bookie_server/gc/entry_log_collection.py",
        "        if not usage.problem:\n            return usage.live_ledgers(self._local)",
        "        if usage.total_bytes >= 0:\n            return usage.live_ledgers(self._local)",
        (
            "tests/unit/test_entry_log_collection.py::"
            "test_b4_a_log_that_cannot_be_told_stays_while_the_index_points_at_it",
        ),
    ),
    Mutation(
        "Of several copies in entry logs only the one that the index names is live.",
        "bookie_server/gc/live_entries.py",
        "live[which] = locations[places] == here[which]",
        "live[which] = locations[places] != 0",
        ("tests/unit/test_compaction.py::test_only_what_the_index_points_at_is_live",),
    ),
    Mutation(
        "A pointer into another entry log is newer and stays.",
        "bookie_server/gc/live_entries.py",
        "there = np.flatnonzero((old >> OFFSET_BITS == old_id) & (old != 0))",
        "there = np.flatnonzero(old != 0)",
        ("tests/unit/test_compaction.py::test_an_entry_that_moves_during_compaction_is_not_moved_back",),
    ),
    Mutation(
        "A compaction that was not complete is removed at the next start.",
        "bookie_server/gc/compaction.py",
        "int(match[1], 16) not in complete",
        "int(match[1], 16) in complete",
        ("tests/unit/test_compaction.py::test_a_crash_at_any_step_loses_nothing_and_leaves_nothing",),
    ),
    Mutation(
        "Only a closed ledger can have superfluous copies.",
        "bookie_server/gc/collection_steps.py",
        "if metadata.state is not LedgerState.CLOSED:",
        "if metadata.state is LedgerState.IN_RECOVERY:",
        ("tests/integration/test_gc_ledgers.py::test_copies_of_closed_ledgers_of_others_go",),
    ),
    Mutation(
        "A copy of a ledger that is marked as under-replicated is kept.",
        "bookie_server/gc/collection_steps.py",
        "if found.locked and not found.marked and",
        "if found.locked and",
        ("tests/integration/test_gc_ledgers.py::test_the_lock_is_as_apaches_and_the_metadata_are_read_under_it",),
    ),
    Mutation(
        "The store is asked again after the ledgers were marked.",
        "bookie_server/gc/collection_steps.py",
        "    yield from _remove(report, _absent((yield ReadLedgers(marked))))",
        "    yield from _remove(report, marked)",
        (
            "tests/integration/test_gc_ids_made_again.py::"
            "test_g2_an_id_made_again_after_its_znode_was_read_keeps_what_was_acknowledged",
        ),
    ),
    Mutation(
        '"Absent" counts only after a sync with the store.',
        "bookie_server/gc/ledger_metadata_reads.py",
        "        zk.sync(self.root)\n",
        "",
        (
            "tests/integration/test_lagging_zookeeper.py::"
            "test_a_collector_whose_server_is_behind_removes_no_ledger_that_exists",
        ),
    ),
    Mutation(
        '"Absent" counts only in the session that was synced.',
        "bookie_server/gc/ledger_metadata_reads.py",
        "if not self._session or self.store.zk.session_id != self._session:",
        "if not self._session:",
        (
            "tests/integration/test_gc_ids_made_again.py::"
            "test_g2_a_session_replaced_while_ledgers_are_marked_removes_nothing_and_takes_the_marks_back",
        ),
    ),
    Mutation(
        '"Absent" counts only in the bookie\'s cluster.',
        "bookie_server/gc/ledger_metadata_reads.py",
        "        self.identity.check(answers)\n",
        "",
        ("tests/integration/test_gc_ledgers.py::test_g1_another_cluster_is_not_believed",),
    ),
    Mutation(
        "A collection that would remove most ledgers at once waits for an operator.",
        "bookie_server/gc/brake.py",
        "many = len(unnamed) > self._limits.least and len(unnamed) > self._limits.share * held",
        "many = len(unnamed) > self._limits.least + self._limits.share * held",
        ("tests/unit/test_collection_brake.py::test_g3_what_is_too_much_at_once",),
    ),
    Mutation(
        "A ledger whose id was not given yet stops the collection.",
        "bookie_server/gc/brake.py",
        "unnamed[unnamed >= next_id]",
        "unnamed[unnamed > next_id]",
        ("tests/unit/test_collection_brake.py::test_g4_one_ledger_whose_id_was_not_given_is_enough",),
    ),
)
