"""Rules of self-healing: checks, copies and replacements of a repair, locks and marks, workers, auditors."""

from __future__ import annotations

from typing import Final

from tests.mutation.mutation import Mutation

MUTATIONS: Final = (
    Mutation(
        "Without a password, only equal copies are believed.",
        "bk_spark/protocol/replication/copying/fragment_copy.py",
        "if len({bytes(copy.records) for copy in batch.copies}) == 1:",
        "if batch.copies:",
        ("tests/unit/test_ledger_repair_sources.py::test_without_a_password_copies_must_agree",),
    ),
    Mutation(
        "A position with an entry that nobody returns is not replaced.",
        "bk_spark/protocol/replication/copying/fragment_copy.py",
        "        for position in self._positions(batch.entry_ids):\n            del self._active[position]\n",
        "",
        ("tests/unit/test_fragment_copy.py::test_an_entry_that_nobody_has_stops_the_positions_that_store_it",),
    ),
    Mutation(
        "A target that failed does not replace a bookie.",
        "bk_spark/protocol/replication/copying/fragment_copy.py",
        "        for position in [each for each, bookie_id in self._active.items() if bookie_id == target]:\n"
        "            del self._active[position]\n",
        "",
        ("tests/unit/test_fragment_copy.py::test_a_target_that_does_not_answer_has_failed_and_the_other_goes_on",),
    ),
    Mutation(
        "A bookie that cannot answer has no bad copy.",
        "bk_spark/protocol/replication/ledger_check.py",
        'self._decide(self._ended(request_id), "unknown", reason_of_failure(error))',
        'self._decide(self._ended(request_id), "bad", reason_of_failure(error))',
        ("tests/unit/test_ledger_repair_sources.py::test_unknown_neither_repairs_nor_counts_as_whole",),
    ),
    Mutation(
        "A bookie that came back must prove every entry.",
        "bk_spark/protocol/replication/ledger_repair.py",
        "return was_open or bookie_id in self._missing",
        "return was_open",
        ("tests/unit/test_ledger_repair.py::test_r6_a_bookie_that_returned_with_a_hole_is_replaced",),
    ),
    Mutation(
        "Metadata of another ledger with the same id are not changed.",
        "bk_spark/protocol/replication/member_replacement.py",
        "if now.created_zxid != created_zxid or changed is None:",
        "if changed is None:",
        ("tests/unit/test_ledger_repair_meanwhile.py::test_r8_a_ledger_that_was_made_again_after_a_conflict_stays",),
    ),
    Mutation(
        "After a grace period the ledger is read again.",
        "bk_spark/protocol/replication/ledger_repair.py",
        "        graced = self._graced\n        self._latest = None\n",
        "        graced = self._graced\n",
        (
            "tests/unit/test_ledger_repair_meanwhile.py::"
            "test_r5_a_writer_that_replaced_the_bookie_in_the_grace_period_is_not_fenced",
        ),
    ),
    Mutation(
        "Who does not know whether it holds a lock looks before it deletes it.",
        "bk_spark/bookie/replication/under_replication_store.py",
        "held = self._held.get(ledger_id) == proof",
        "held = True",
        (
            "tests/integration/test_under_replication_store.py::test_to_finish_again_leaves_what_others_do_with_the_ledger",
        ),
    ),
    Mutation(
        "A fragment counts in the pace besides its entries.",
        "bk_spark/protocol/replication/copying/fragment_copy.py",
        "AskPace(request_id, batch.paced_bytes + self._more_bytes)",
        "AskPace(request_id, batch.paced_bytes)",
        ("tests/unit/test_fragment_copy.py::test_a_batch_is_read_when_its_time_has_come",),
    ),
    Mutation(
        "What a batch had more or less than its estimate counts in the pace.",
        "bk_spark/bookie/replication/repair_performer.py",
        "self._repairs.pace.settle(size_bytes - action.paced_bytes)",
        "pass",
        ("tests/integration/test_ledger_repairs.py::test_r9_a_ledger_of_several_fragments_is_repaired",),
    ),
    Mutation(
        "A good copy counts only while its bookie keeps its registration.",
        "bk_spark/protocol/replication/good_copies.py",
        "if before.get(bookie_id) == zxid}",
        "if bookie_id in before}",
        (
            "tests/unit/test_ledger_repair_meanwhile.py::"
            "test_r6_a_bookie_that_comes_back_empty_after_its_check_is_checked_again",
        ),
    ),
    Mutation(
        "An open ledger is recovered only after the grace period.",
        "bk_spark/protocol/replication/ledger_repair.py",
        "if graced is None or graced[0] != metadata.last_segment or not graced[1] & bad:",
        "if graced is not None and graced[0] != metadata.last_segment:",
        (
            "tests/unit/test_ledger_repair_meanwhile.py::"
            "test_r5_a_writer_that_replaced_the_bookie_in_the_grace_period_is_not_fenced",
        ),
    ),
    Mutation(
        "A repair ends well only if the registrations stayed as they were.",
        "bk_spark/protocol/replication/ledger_repair.py",
        "if now.registrations != registered.registrations:",
        "if not now.registrations:",
        (
            "tests/unit/test_ledger_repair_meanwhile.py::"
            "test_r6_a_bookie_that_comes_back_empty_in_the_last_check_is_checked_again",
        ),
    ),
    Mutation(
        "A new copy goes to no bookie that is being replaced.",
        "bk_spark/protocol/replication/ledger_repair.py",
        "exclude = exclude.union(ensemble, self._settings.replaced)",
        "exclude = exclude.union(ensemble)",
        ("tests/unit/test_ledger_repair_targets.py::test_a_replaced_bookie_takes_no_copy",),
    ),
    Mutation(
        "A mark that was made again meanwhile is kept.",
        "bk_spark/bookie/replication/under_replication_store.py",
        "[DeleteOp(mark, version), *directory, DeleteOp(lock)]",
        "[DeleteOp(mark, -1), *directory, DeleteOp(lock)]",
        ("tests/integration/test_under_replication_store.py::test_a_ledger_that_was_marked_again_stays_marked",),
    ),
    Mutation(
        "Connections over which an answer may still come are not used for another ledger.",
        "bk_spark/bookie/replication/stored_adds.py",
        "return not self._given_up",
        "return True",
        ("tests/integration/test_ledger_repairs.py::test_a_pool_is_not_shared_while_a_late_answer_may_come",),
    ),
    Mutation(
        "A lock is given back only with the proof of the session that took it.",
        "bk_spark/bookie/replication/under_replication_store.py",
        "prove_and_change(self.zk, self._proofs.get(ledger_id), [DeleteOp(self.paths.lock(ledger_id))])",
        "prove_and_change(self.zk, None, [DeleteOp(self.paths.lock(ledger_id))])",
        ("tests/integration/test_under_replication_store.py::test_r3_a_lock_is_not_given_back_in_the_next_session",),
    ),
    Mutation(
        "A lock after a lost reply is this session's only if it owns it.",
        "bk_spark/bookie/replication/under_replication_store.py",
        'return found.owner_session == self.zk.session_id\n        raise MetadataUnavailableError("the ledger could',
        'return True\n        raise MetadataUnavailableError("the ledger could',
        (
            "tests/integration/test_c13_replication_lost_replies.py::"
            "test_c13_a_lock_that_another_takes_while_the_request_is_lost",
        ),
    ),
    Mutation(
        "A worker repairs nothing while replication is disabled.",
        "bookie_server/replication/worker.py",
        "return self._disabled is False and not self._draining",
        "return not self._draining",
        ("tests/unit/test_replication_worker.py::test_disabled_means_that_nothing_is_begun_and_repairs_stop",),
    ),
    Mutation(
        "A worker takes no ledger that another has locked.",
        "bookie_server/replication/worker.py",
        "each not in self._locked and each not in self._held]",
        "each not in self._held]",
        ("tests/unit/test_replication_worker.py::test_locked_ledgers_are_skipped",),
    ),
    Mutation(
        "A ledger that cannot be repaired rests before the next attempt.",
        "bookie_server/replication/worker.py",
        'self._start_timer(("rest", ledger_id), pause_ms * (1 - _JITTER * self._random.random()))',
        "self._release(ledger_id)",
        (
            "tests/unit/test_replication_worker.py::"
            "test_pauses_of_a_ledger_that_cannot_be_repaired_grow_and_it_keeps_its_lock",
        ),
    ),
    Mutation(
        "Copies never get slower than their limit.",
        "bk_spark/protocol/replication/copying/copy_pace.py",
        "max(self._least, self.bytes_per_s * _SLOWER)",
        "self.bytes_per_s * _SLOWER",
        ("tests/unit/test_copy_pace.py::test_however_slow_the_bookies_are_the_pace_stays_above_its_limit",),
    ),
    Mutation(
        "Copies make room for clients.",
        "bk_spark/protocol/replication/copying/copy_pace.py",
        "if _ONE_LATE_OF * self._late > self._answers:",
        "if self._late > 2 * self._answers:",
        ("tests/unit/test_copy_pace.py::test_copies_make_room_when_clients_come_and_take_it_again_when_they_are_gone",),
    ),
    Mutation(
        "What was not copied for long is not made up.",
        "bk_spark/protocol/replication/copying/copy_pace.py",
        "now_ms - _CREDIT_BYTES * 1000 / self.bytes_per_s)",
        "0.0)",
        ("tests/unit/test_copy_pace.py::test_a_long_pause_is_not_made_up",),
    ),
    Mutation(
        "What was not copied for a moment is made up.",
        "bk_spark/protocol/replication/copying/copy_pace.py",
        "_CREDIT_BYTES * 1000 / self.bytes_per_s",
        "0.0",
        ("tests/unit/test_copy_pace.py::test_a_worker_makes_up_for_a_short_pause",),
    ),
    Mutation(
        "What bookies did at rest is forgotten.",
        "bk_spark/protocol/replication/copying/copy_pace.py",
        "self._at_rest_before, self._at_rest = self._at_rest, {}",
        "pass",
        ("tests/unit/test_copy_pace.py::test_what_bookies_did_long_ago_is_forgotten",),
    ),
    Mutation(
        "A mark is deleted only after a repair that succeeded.",
        "bookie_server/replication/worker.py",
        "case RepairEnd.REPAIRED | RepairEnd.GONE:",
        "case RepairEnd.REPAIRED | RepairEnd.GONE | RepairEnd.LOCK_LOST:",
        ("tests/unit/test_replication_worker.py::test_a_repair_that_did_not_end_leaves_the_mark",),
    ),
    Mutation(
        "One lost bookie is waited for.",
        "bookie_server/replication/auditing/auditor.py",
        "if len(lost) > 1 or (lost and self._delay.delay_ms == 0):",
        "if lost:",
        ("tests/unit/test_replication_auditor.py::test_one_lost_bookie_is_waited_for",),
    ),
    Mutation(
        "An auditor marks nothing for bookies that it waits for.",
        "bookie_server/replication/auditing/auditor.py",
        "return bookies - self._registered - self._delayed if",
        "return bookies - self._registered if",
        ("tests/unit/test_replication_auditor.py::test_the_check_of_all_ledgers_waits_for_a_lost_bookie_too",),
    ),
    Mutation(
        "A round that goes around ends where it began.",
        "bookie_server/replication/auditing/scans.py",
        "page = [ledger_id for ledger_id in page if ledger_id <= round_end]",
        "page = [ledger_id for ledger_id in page if ledger_id < round_end]",
        ("tests/unit/test_replication_scans.py::test_a_scan_begins_where_the_last_auditor_stood_and_still_covers_all",),
    ),
    Mutation(
        "A scan is synced with the store before each round.",
        "bookie_server/replication/auditing/scans.py",
        "                yield from patient(SyncStore())\n",
        "",
        ("tests/unit/test_replication_scans.py::test_every_round_begins_with_a_server_that_is_up_to_date",),
    ),
    Mutation(
        "The lowest vote wins.",
        "bookie_server/replication/auditing/election.py",
        "before = [vote for vote in votes if vote.number < mine[0].number]",
        "before = [vote for vote in votes if vote.number > mine[0].number]",
        ("tests/unit/test_replication_election.py::test_the_smallest_vote_wins_and_its_owner_says_so",),
    ),
    Mutation(
        "A second vote of the same session is withdrawn.",
        "bookie_server/replication/auditing/election.py",
        "    for second in mine[1:]:\n        yield WithdrawVote(second.path)\n",
        "",
        ("tests/unit/test_replication_election.py::test_a_lost_reply_leaves_one_vote",),
    ),
    Mutation(
        "A walk goes on after the ledger where it stood.",
        "bookie_server/replication/auditing/ledger_walk.py",
        "if each > self._after]",
        "if each > self._after + 1]",
        ("tests/unit/test_replication_scans.py::test_a_walk_finds_all_ledgers_in_order_from_any_on",),
    ),
    Mutation(
        "A scan begins a new round if another bookie is lost meanwhile.",
        "bookie_server/replication/auditing/auditor.py",
        "        self._audit_wanted = True\n"
        "        if self._bookie_scan is not None:\n"
        "            self._bookie_scan.again()",
        "        self._audit_wanted = True",
        (
            "tests/unit/test_replication_auditor.py::"
            "test_a_bookie_lost_after_its_ledgers_were_judged_is_found_by_another_round",
        ),
    ),
    Mutation(
        "Marks carry the auditor's vote as their proof.",
        "bookie_server/replication/auditing/scans.py",
        "yield from patient(MarkLedgers(missing, settings.proof))",
        'yield from patient(MarkLedgers(missing, ""))',
        (
            "tests/unit/test_replication_scans.py::"
            "test_a_scan_marks_each_ledger_that_names_a_lost_bookie_in_any_fragment",
        ),
    ),
)
