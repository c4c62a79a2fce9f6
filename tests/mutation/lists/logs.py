"""Rules of logs: append and commit, reaping, retention and truncation."""

from __future__ import annotations

from typing import Final

from tests.mutation.mutation import Mutation

MUTATIONS: Final = (
    Mutation(
        "Pages are prepared only while the head is as it was read.",
        "bk_spark/log/core/append.py",
        "CheckOp(paths.head, head_version))",
        "CheckOp(paths.head, -1))",
        (
            "tests/unit/test_log_commit.py::"
            "test_pages_that_were_read_before_they_were_published_cannot_be_prepared_over",
        ),
    ),
    Mutation(
        "A znode is written at the version that was read.",
        "bk_spark/log/core/plan.py",
        "SetOp(path, data, read.version)",
        "SetOp(path, data, -1)",
        ("tests/unit/test_log_commit.py::test_the_transaction_checks_the_version_of_everything_read",),
    ),
    Mutation(
        "A commit checks the znode of its run, which covers the registrations.",
        "bk_spark/log/core/commit.py",
        "run_operations = (CheckOp(run_path, run.version),)",
        "run_operations = (CheckOp(run_path, -1),)",
        ("tests/unit/test_log_commit.py::test_the_transaction_checks_the_version_of_everything_read",),
    ),
    Mutation(
        "A retired run commits nothing.",
        "bk_spark/log/core/commit.py",
        "    check_run(application, request.run, paths.name)\n",
        "",
        ("tests/unit/test_log_commit.py::test_step_1_a_retired_run_is_told_its_successor",),
    ),
    Mutation(
        "Commit times never go back.",
        "bk_spark/log/core/commit.py",
        "time_ms = read.head.change_time_ms(now_ms)",
        "time_ms = now_ms",
        ("tests/unit/test_log_commit.py::test_commit_times_never_decrease",),
    ),
    Mutation(
        "A batch that was committed is not committed again.",
        "bk_spark/log/core/applications.py",
        "return application.batch_id >= request.batch_id",
        "return application.batch_id > request.batch_id",
        ("tests/unit/test_log_commit.py::test_step_2_a_batch_committed_before_is_done",),
    ),
    Mutation(
        "No entry is listed twice.",
        "bk_spark/log/core/applications.py",
        "if part.first_entry <= last_entry:",
        "if part.first_entry < last_entry:",
        ("tests/unit/test_log_commit.py::test_step_3_entries_committed_before_are_refused[9]",),
    ),
    Mutation(
        "A condemned ledger is not committed.",
        "bk_spark/log/core/applications.py",
        "if registration.condemned:",
        "if registration.condemned and registration.last_committed_entry is not None:",
        ("tests/unit/test_log_commit.py::test_step_3_a_condemned_ledger_is_refused",),
    ),
    Mutation(
        "A query whose checkpoint was set back is refused.",
        "bk_spark/log/core/applications.py",
        "if last is not None and offered is not None and offered < last:",
        "if last is not None and offered is not None and offered < last - 1:",
        ("tests/unit/test_log_commit.py::test_f2_a_query_that_goes_back_by_more_than_its_last_batch_is_refused",),
    ),
    Mutation(
        "A retired run stays retired when another run takes over.",
        "bk_spark/log/core/applications.py",
        "retired = (*retired, application.run)[-MAX_RETIRED_RUNS:]",
        "retired = (application.run,)",
        ("tests/unit/test_log_commit.py::test_step_1_a_retired_run_is_told_its_successor",),
    ),
    Mutation(
        "A transaction of unknown outcome is looked for before the change is given up or repeated.",
        "bk_spark/log/core/changes.py",
        "                        if isinstance(event, OutcomeUnknown):\n"
        "                            self.maybe = result\n",
        "",
        ("tests/unit/test_log_changes.py::test_s1_a_lost_reply_ends_as_committed_with_the_runs_it_retired",),
    ),
    Mutation(
        "A covering znode that was created again covers nothing.",
        "bk_spark/log/core/changes.py",
        "return (then.created_zxid, then.version) == (now.created_zxid, now.version)",
        "return then.version == now.version",
        (
            "tests/unit/test_log_changes.py::"
            "test_s7_registrations_are_read_again_where_the_runs_znode_is_another[made again]",
        ),
    ),
    Mutation(
        "The lock is given back when a change fails.",
        "bk_spark/log/core/changes.py",
        "    except Exception:\n        if attempts.asked_for_lock:\n            yield ReleaseLock()\n        raise",
        "    except Exception:\n        raise",
        ("tests/unit/test_log_changes.py::test_refusals_of_a_state_that_nobody_changes_are_given_up",),
    ),
    Mutation(
        "An open tail is sealed at the end of its ledger.",
        "bk_spark/log/core/append.py",
        "entries = closed.last_entry - tail.first_entry + 1",
        "entries = closed.last_entry - tail.first_entry",
        ("tests/unit/test_log_tail.py::test_a_writer_opens_rolls_and_closes",),
    ),
    Mutation(
        "Ledgers go only if the head is the one at which nothing refers to them.",
        "bk_spark/log/gc/reaping.py",
        "CheckOp(paths.head, self.read.version), *policy",
        "CheckOp(paths.head, -1), *policy",
        (
            "tests/unit/test_log_reaper.py::"
            "test_l2_the_reaper_is_stopped_anywhere_while_a_zombie_commits_what_it_is_about_to_collect",
        ),
    ),
    Mutation(
        "Condemning a ledger writes the znode of its run, which commits check.",
        "bk_spark/log/gc/reaping.py",
        "SetOp(run_path, run_znode.data, run_znode.version),\n                *writes,",
        "CheckOp(run_path, run_znode.version),\n                *writes,",
        ("tests/unit/test_log_reaper.py::test_l2_a_commit_that_read_a_ledger_before_it_was_condemned_is_refused",),
    ),
    Mutation(
        "A condemned ledger is deleted only after the grace period.",
        "bk_spark/log/gc/reaping.py",
        "                or now_ms - znode.mtime_ms < self._limits.delete_grace_ms\n",
        "",
        ("tests/unit/test_log_reaper.py::test_a_deletion_decides_for_itself",),
    ),
    Mutation(
        "A ledger is deleted only if it is closed.",
        "bk_spark/log/gc/reaping.py",
        "if ledger_id not in self._closed or not made_together(znode, metadata):",
        "if not made_together(znode, metadata):",
        ("tests/unit/test_log_reaper.py::test_a_ledger_that_cannot_be_recovered_is_not_deleted",),
    ),
    Mutation(
        "A ledger under a used id that the log did not make is not deleted.",
        "bk_spark/log/gc/reaping.py",
        "return registration.created_zxid == metadata.created_zxid",
        "return registration.created_zxid <= metadata.created_zxid",
        ("tests/unit/test_log_reaper.py::test_metadata_that_were_not_made_with_the_registration_are_left_alone",),
    ),
    Mutation(
        "A ledger that the list refers to is not deleted.",
        "bk_spark/log/gc/reaping.py",
        "                or ledger_id in known.references\n",
        "",
        ("tests/unit/test_log_reaper.py::test_a_deletion_decides_for_itself",),
    ),
    Mutation(
        "A log writer's next ledger is not condemned before it is listed.",
        "bk_spark/log/gc/reap_rules.py",
        "if age_ms < SETTLED_MS:",
        "if age_ms < 0:",
        ("tests/unit/test_log_reaper.py::test_the_next_ledger_of_the_log_writer_at_the_tail_is_left_to_it",),
    ),
    Mutation(
        "A ledger in use is not condemned while its application commits.",
        "bk_spark/log/gc/reap_rules.py",
        "return Reason.APPLICATION_IDLE if idle_ms >= limits.orphan_retention_ms else None",
        "return Reason.APPLICATION_IDLE",
        ("tests/unit/test_log_reaper.py::test_l3_a_truncated_ledger_in_use_is_kept_until_its_application_is_idle",),
    ),
    Mutation(
        "A ledger of a run that may work is not condemned before its orphan retention.",
        "bk_spark/log/gc/reap_rules.py",
        "        return Reason.RUN_RETIRED\n    return Reason.OLD if age_ms >= limits.orphan_retention_ms else None",
        "        return Reason.RUN_RETIRED\n    return Reason.OLD",
        ("tests/unit/test_log_reaper.py::test_a_run_that_is_not_retired_keeps_its_ledgers_for_the_orphan_retention",),
    ),
    Mutation(
        "A round of the reaper stops recovering after a bounded number of failures.",
        "bk_spark/log/gc/reaper.py",
        "if self.recoveries_failed >= self.limits.max_failures:",
        "if self.recoveries_failed > self.limits.max_ledgers:",
        ("tests/unit/test_log_reaper.py::test_a_round_stops_recovering_after_a_bounded_number_of_failures",),
    ),
    Mutation(
        "A round of the reaper deletes a bounded number of ledgers.",
        "bk_spark/log/gc/reaper.py",
        "room = self.limits.max_ledgers - len(self.deleted)",
        "room = self.limits.max_ledgers",
        ("tests/unit/test_log_reaper.py::test_many_registrations_are_paged_through_in_bounded_steps",),
    ),
    Mutation(
        "A page beyond the tail is removed together with a write of the head.",
        "bk_spark/log/gc/housekeeping.py",
        "guard = read.write(paths, head)",
        "guard = None",
        (
            "tests/unit/test_log_reaper.py::"
            "test_whoever_removes_a_run_or_an_application_or_a_page_beyond_the_tail_writes_the_head",
        ),
    ),
    Mutation(
        "Retention by time allows for commits that take effect late.",
        "bk_spark/log/gc/retention.py",
        "now_ms - policy.retention_time_ms - COMMIT_TIME_LAG_MS",
        "now_ms - policy.retention_time_ms",
        ("tests/unit/test_log_retention.py::test_a_segment_goes_once_everything_in_it_is_older_than_the_limit",),
    ),
    Mutation(
        "Retention by time keeps the segment before the first young one.",
        "bk_spark/log/gc/retention.py",
        "segments.offset_at(since_ms) - 1)",
        "segments.offset_at(since_ms))",
        ("tests/unit/test_log_retention.py::test_a_segment_goes_once_everything_in_it_is_older_than_the_limit",),
    ),
    Mutation(
        "Expiry of earlier states allows for commits that take effect late.",
        "bk_spark/log/gc/expiry.py",
        "now_ms - policy.history_ms - COMMIT_TIME_LAG_MS",
        "now_ms - policy.history_ms",
        ("tests/unit/test_log_expiry.py::test_the_list_begins_where_the_log_did_when_the_promise_begins",),
    ),
    Mutation(
        "Expiry goes by the policy that is there.",
        "bk_spark/log/gc/expiry.py",
        " or not is_same:",
        ":",
        ("tests/unit/test_log_expiry.py::test_another_policy_ends_it",),
    ),
    Mutation(
        "A head and a tail page from before and after a truncation are not taken together.",
        "bk_spark/log/core/append.py",
        "page.commits.last_first_offset != head.first_offset",
        "page.commits.last_first_offset < head.first_offset",
        (
            "tests/unit/test_log_expiry.py::test_a_page_that_was_read_after_a_truncation_is_not_taken_with_an_older_head",
        ),
    ),
    Mutation(
        "A time at which commits may still come names no state.",
        "bk_spark/log/history/states.py",
        "if time.time_ms > now - COMMIT_TIME_LAG_MS:",
        "if time.time_ms > now:",
        ("tests/unit/test_log_commits.py::test_a_time_at_which_commits_may_still_come",),
    ),
    Mutation(
        "A state of which rows are gone cannot be read.",
        "bk_spark/log/history/states.py",
        "        if first < kept:",
        "        if end <= kept:",
        ("tests/unit/test_log_commits.py::test_what_was_overwritten_and_let_go",),
    ),
    Mutation(
        "Truncation beyond the end is refused.",
        "bk_spark/log/gc/truncation.py",
        "if self._up_to_offset > end:",
        "if self._up_to_offset > end and not end:",
        ("tests/unit/test_log_truncation.py::test_an_offset_beyond_the_end_is_refused_and_nothing_is_dropped",),
    ),
)
