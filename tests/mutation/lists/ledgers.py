"""Rules of one ledger: writer, recovery, closing and readers, the wire protocol, metadata and their store."""

from __future__ import annotations

from typing import Final

from tests.mutation.mutation import Mutation

_FIRST_ANSWERS: Final = "tests/unit/test_protocol_first_answers.py"

MUTATIONS: Final = (
    Mutation(
        "What is to go soon waits for the end of the turn.",
        "bk_spark/bookie/connection/base.py",
        "        if not soon:\n            self._feed()",
        "        if soon:\n            self._feed()",
        ("tests/unit/test_client_connections.py::test_fencing_reads_of_one_turn_go_with_one_call",),
    ),
    Mutation(
        "A few v3 frames say the size of each.",
        "bk_spark/protocol/wire/v3/add_frames_v3.py",
        "if frame_bytes != self._sizes[0]:",
        "if not self._sizes[0]:",
        ("tests/unit/test_protocol_add_frames_v3.py::test_few_frames_are_those_of_many",),
    ),
    Mutation(
        "An entry is acknowledged once an ack quorum holds it.",
        "bk_spark/protocol/ledger/add_window.py",
        "_leading(self._held[first : self._end] >= self._quorum.ack_quorum_size)",
        "_leading(self._held[first : self._end] >= self._quorum.ack_quorum_size - 1)",
        ("tests/unit/test_protocol_add_window.py::test_against_the_model",),
    ),
    Mutation(
        "A bookie that answers others is not taken for dead.",
        "bk_spark/bookie/connection/interface.py",
        "max(asked_at, self._heard_at)",
        "asked_at",
        ("tests/unit/test_client_connections.py::test_a_peer_that_answers_others_is_not_dead",),
    ),
    Mutation(
        "A writer publishes its LAC by itself only where it is asked to.",
        "bk_spark/protocol/ledger/explicit_lac.py",
        " or not self._interval_ms:",
        ":",
        ("tests/unit/test_client_deferred_sync.py::test_nothing_is_told_unless_asked_for",),
    ),
    Mutation(
        "An answer that comes twice counts once.",
        "bk_spark/protocol/ledger/add_window.py",
        "self._held[which] += states & _HELD == 0",
        "self._held[which] += 1",
        ("tests/unit/test_protocol_add_window.py::test_against_the_model",),
    ),
    Mutation(
        "Answers with gaps between them say nothing of the entries in the gaps.",
        "bk_spark/protocol/ledger/add_window.py",
        "if is_run and (entry_ids[1:] - entry_ids[:-1] == 1).all():",
        "if is_run:",
        ("tests/unit/test_protocol_add_window.py::test_against_the_model",),
    ),
    Mutation(
        "An entry of a replaced bookie counts again only when the new bookie holds it.",
        "bk_spark/protocol/ledger/add_window.py",
        "        held[new] -= column[new] & _HELD\n",
        "",
        ("tests/unit/test_protocol_add_window.py::test_against_the_model",),
    ),
    Mutation(
        "Nothing is acknowledged while an ensemble change is being published.",
        "bk_spark/protocol/ledger/writer_ensemble.py",
        "return self.state is ChangeState.NONE or (self.state is ChangeState.CHOOSING and self._search_is_slow)",
        "return self.state is not ChangeState.CHOOSING or self._search_is_slow",
        ("tests/unit/test_protocol_writer.py::test_c8_nothing_is_acknowledged_before_the_change_is_published",),
    ),
    Mutation(
        "With deferred sync, nothing is acknowledged while a failed bookie is not replaced.",
        "bk_spark/protocol/ledger/writer_ensemble.py",
        "if self._deferred_sync and self.failed:",
        "if self._deferred_sync and not self.members:",
        ("tests/unit/test_protocol_writer.py::test_with_deferred_sync_a_slow_search_acknowledges_nothing",),
    ),
    Mutation(
        "With deferred sync, a bookie is not replaced after the first acknowledged entry.",
        "bk_spark/protocol/ledger/writer_ensemble.py",
        "if self._deferred_sync and last_add_acknowledged != NO_ENTRY:",
        "if self._deferred_sync and last_add_acknowledged < NO_ENTRY:",
        ("tests/unit/test_protocol_writer.py::test_with_deferred_sync_a_failed_bookie_ends_the_writer[False]",),
    ),
    Mutation(
        "With deferred sync, entries are confirmed once every bookie of the ensemble has synced them.",
        "bk_spark/protocol/ledger/forcing.py",
        "        if missing:\n            return None\n",
        "",
        ("tests/unit/test_protocol_writer.py::test_with_deferred_sync_only_forced_entries_are_confirmed",),
    ),
    Mutation(
        "A writer whose ledger is in recovery ends.",
        "bk_spark/protocol/ledger/writer_ensemble.py",
        "elif found.state is LedgerState.IN_RECOVERY:",
        "elif found.state is LedgerState.IN_RECOVERY and not self._publish:",
        ("tests/unit/test_protocol_writer.py::test_a_conflict_with_a_recovery_ends_the_writer",),
    ),
    Mutation(
        "Nothing is acknowledged before each bookie of a ledger that was not claimed has answered.",
        "bk_spark/protocol/ledger/writer_ensemble.py",
        "        return not missing\n",
        "        return True\n",
        (f"{_FIRST_ANSWERS}::test_nothing_is_acknowledged_before_each_bookie_has_taken_an_entry",),
    ),
    Mutation(
        "A bookie that took an entry is never awaited again.",
        "bk_spark/protocol/ledger/first_answers.py",
        "entries and name not in self._heard]",
        "entries]",
        (f"{_FIRST_ANSWERS}::test_nothing_is_acknowledged_before_each_bookie_has_taken_an_entry",),
    ),
    Mutation(
        "A bookie that was sent no entry is not awaited.",
        "bk_spark/protocol/ledger/first_answers.py",
        "if entries and name not in self._heard]",
        "if name not in self._heard]",
        (f"{_FIRST_ANSWERS}::test_a_bookie_that_was_sent_nothing_is_not_awaited_until_it_is",),
    ),
    Mutation(
        "A bookie that is silent is awaited once in a ledger.",
        "bk_spark/protocol/ledger/first_answers.py",
        "        self._heard += silent\n",
        "",
        (f"{_FIRST_ANSWERS}::test_a_bookie_that_is_silent_is_awaited_once_and_not_for_long",),
    ),
    Mutation(
        "Where the password is known nobody is awaited.",
        "bk_spark/protocol/ledger/first_answers.py",
        "        if self.password_is_known:\n            return []\n",
        "",
        (f"{_FIRST_ANSWERS}::test_where_the_password_is_known_nobody_is_awaited",),
    ),
    Mutation(
        "A bookie that is awaited after others gets time of its own.",
        "bk_spark/protocol/ledger/first_answers.py",
        "        if missing and not self._awaited:\n            self._awaited = tuple(missing)\n",
        "        if missing and not ran:\n            self._awaited = tuple(missing)\n",
        (f"{_FIRST_ANSWERS}::test_time_runs_anew_for_a_bookie_that_is_awaited_after_others",),
    ),
    Mutation(
        "A writer that a bookie refuses as fenced ends.",
        "bk_spark/protocol/ledger/writer.py",
        "if Code.FENCED in codes:",
        "if codes == {Code.FENCED, Code.UNAUTHORIZED}:",
        ("tests/unit/test_protocol_writer.py::test_a_fenced_answer_ends_the_writer",),
    ),
    Mutation(
        "A ledger is closed only after every added entry was acknowledged.",
        "bk_spark/protocol/ledger/writer.py",
        "if self.outcome is not None or self.pending_entries:",
        "if self.outcome is not None:",
        ("tests/unit/test_protocol_writer_close.py::test_closing_waits_for_every_acknowledgement",),
    ),
    Mutation(
        "A recovery reads bookies only after the metadata say that the ledger is in recovery.",
        "bk_spark/protocol/ledger/recovery.py",
        "elif metadata.state is LedgerState.OPEN:\n            self._on_open(metadata, version)",
        "elif metadata.state is LedgerState.OPEN and self._marks:\n            self._on_open(metadata, version)",
        ("tests/unit/test_protocol_recovery.py::test_an_empty_ledger_is_marked_fenced_and_closed",),
    ),
    Mutation(
        "A recovery closes the ledger only after what it wrote back is acknowledged.",
        "bk_spark/protocol/ledger/recovery.py",
        "writer.last_add_confirmed == search.outcome.result",
        "writer.last_add_pushed == search.outcome.result",
        ("tests/unit/test_protocol_recovery.py::test_a_ledger_that_is_in_recovery_is_not_marked_again",),
    ),
    Mutation(
        "A recovery writes entries back with the LAC that it found at the start.",
        "bk_spark/protocol/ledger/recovery.py",
        "writer.add(Payloads.of([entry.payload for entry in entries]), last_add_confirmed)",
        "writer.add(Payloads.of([entry.payload for entry in entries]))",
        (
            "tests/unit/test_protocol_recovery.py::"
            "test_c10_what_lies_beyond_the_lac_is_written_back_with_the_lac_of_the_start[in parts]",
        ),
    ),
    Mutation(
        "Every read of a recovery's search fences the bookie.",
        "bk_spark/protocol/ledger/end_search.py",
        "Purpose.SEARCH: FlagV2.FENCING | FlagV2.HIGH_PRIORITY,",
        "Purpose.SEARCH: FlagV2.HIGH_PRIORITY,",
        (
            "tests/unit/test_protocol_end_search.py::"
            "test_c1_every_read_that_decides_where_the_ledger_ends_fences_and_carries_the_key",
        ),
    ),
    Mutation(
        "An answer that is neither yes nor no never counts as absent.",
        "bk_spark/protocol/ledger/end_search.py",
        "if code in (Code.NO_ENTRY, Code.NO_LEDGER):",
        "if code in (Code.NO_ENTRY, Code.NO_LEDGER, Code.IO_ERROR):",
        ("tests/unit/test_protocol_end_search.py::test_too_few_definite_answers_end_the_search",),
    ),
    Mutation(
        "A recovery's search never begins before the last segment.",
        "bk_spark/protocol/ledger/end_search.py",
        "return self._metadata.last_segment.first_entry_id - 1",
        "return NO_ENTRY",
        (
            "tests/unit/test_protocol_end_search.py::"
            "test_c3_the_search_starts_at_the_last_segment_and_touches_no_earlier_one",
        ),
    ),
    Mutation(
        'Qw - Qa + 1 bookies must say "absent" before an entry counts as never acknowledged.',
        "bk_spark/protocol/quorum.py",
        "return self.write_quorum_size - self.ack_quorum_size + 1",
        "return max(1, self.write_quorum_size - self.ack_quorum_size)",
        ("tests/unit/test_protocol_quorum.py::test_absent_needed_is_the_least_number_that_leaves_no_ack_quorum",),
    ),
    Mutation(
        "Fencing suffices only when no ack quorum can be made of silent bookies.",
        "bk_spark/protocol/quorum.py",
        "for k in range(quorum.write_quorum_size)) < quorum.ack_quorum_size",
        "for k in range(quorum.write_quorum_size)) <= quorum.ack_quorum_size",
        ("tests/unit/test_protocol_quorum.py::test_covered_means_that_no_ack_quorum_is_left_unheard",),
    ),
    Mutation(
        "A writer whose ledger was closed at another end is told so.",
        "bk_spark/protocol/ledger/closing.py",
        "if (found.last_entry_id, found.length) == self._end:",
        "if found.last_entry_id >= self._end[0]:",
        ("tests/unit/test_protocol_closing.py::test_closed_elsewhere[end1]",),
    ),
    Mutation(
        "A writer does not close over segments that it did not make.",
        "bk_spark/protocol/ledger/closing.py",
        "elif _first_entries(found) != _first_entries(self._base):",
        "elif len(_first_entries(found)) < len(_first_entries(self._base)):",
        ("tests/unit/test_protocol_closing.py::test_segments_of_a_second_writer_are_not_closed_over[one more]",),
    ),
    Mutation(
        "A LAC that a poll claims counts only with its proof.",
        "bk_spark/protocol/ledger/reading/tail.py",
        "poll, lac = self._polls[request_id], understand(self._ledger, told).lac",
        "poll, lac = self._polls[request_id], self._polls[request_id].claimed_lac",
        ("tests/unit/test_protocol_tail.py::test_a_claim_is_followed_as_far_as_it_is_proved",),
    ),
    Mutation(
        "A LAC with a wrong digest does not count.",
        "bk_spark/protocol/ledger/reading/lac.py",
        '        except DigestMismatchError as error:\n            wrong = f"explicit LAC: {error.message}"',
        "        except DigestMismatchError as error:\n"
        "            lac = 1 << 40\n"
        '            wrong = f"explicit LAC: {error.message}"',
        ("tests/unit/test_protocol_lac.py::test_a_wrong_digest_is_no_answer_and_its_lac_does_not_count[last entry]",),
    ),
    Mutation(
        "A tail does not miss a change of the metadata that comes while they are being read.",
        "bk_spark/protocol/ledger/reading/tail.py",
        "self._refresh_again = True\n                else",
        "self._refresh_again = False\n                else",
        ("tests/unit/test_protocol_tail.py::test_a_change_while_the_metadata_are_being_read_is_not_missed",),
    ),
    Mutation(
        "A frame above the limit is refused before memory is allocated for it.",
        "bk_spark/protocol/wire/framing.py",
        "if length + LENGTH_BYTES > max_frame_bytes:",
        "if length > 1 << 31:",
        ("tests/unit/test_protocol_framing.py::test_the_limit_counts_the_prefix",),
    ),
    Mutation(
        "A receive ends with a large frame, so that the next one begins where it has room.",
        "bk_spark/protocol/wire/framing.py",
        "            if size > self._chunk_bytes:\n",
        "            if size > self._max_frame_bytes:\n",
        ("tests/unit/test_protocol_framing.py::test_large_frames_of_about_one_size_are_not_moved",),
    ),
    Mutation(
        "An entry with another id is wrong, whatever its digest.",
        "bk_spark/protocol/entries/entry.py",
        '    right &= fields["entry"] == entry_ids\n',
        "",
        ("tests/unit/test_protocol_entry_blocks.py::test_wrong_ledger_and_gaps[3-DigestType.CRC32]",),
    ),
    Mutation(
        "Only who has an answer alone moves its payloads.",
        "bk_spark/protocol/entries/entry.py",
        "in_place = may_change and not records.readonly",
        "in_place = not records.readonly",
        (
            "tests/unit/test_protocol_entry_blocks.py::"
            "test_only_large_entries_in_records_of_ones_own_are_moved[16384-of one size-False]",
        ),
    ),
    Mutation(
        "The upper half of a stored CRC32 must be zero.",
        "bk_spark/protocol/entries/digest.py",
        "if self._digest_bytes > 4 and (stored >> 32).any():",
        "if self._digest_bytes > 8 and (stored >> 32).any():",
        ("tests/unit/test_protocol_digest_runs.py::test_right_digests_are_right_and_any_change_is_found[24-CRC32]",),
    ),
    Mutation(
        "Payloads are as before when they were checked together.",
        "bk_spark/protocol/entries/digest.py",
        "        finally:\n            firsts[which] ^= changes\n",
        "        finally:\n            pass\n",
        ("tests/unit/test_protocol_digest_runs.py::test_right_digests_are_right_and_any_change_is_found[24-CRC32C]",),
    ),
    Mutation(
        "The checksum of a header counts each byte that is not equal in all headers of an answer.",
        "bk_spark/protocol/entries/digest.py",
        "np.bitwise_or.reduce(words ^ words[:, :1], axis=1)",
        "np.bitwise_and.reduce(words ^ words[:, :1], axis=1)",
        ("tests/unit/test_protocol_digest.py::test_many_at_once_are_as_one_by_one[CRC32C-300]",),
    ),
    Mutation(
        "An answer of another protocol version is refused.",
        "bk_spark/protocol/wire/answers_v2.py",
        "if header >> 24 != V2:",
        "if header >> 24 > V2:",
        ("tests/unit/test_protocol_wire_v2.py::test_answers_of_another_version_are_refused[1-ADD-0]",),
    ),
    Mutation(
        "Metadata that lack a required field are refused.",
        "bk_spark/protocol/metadata/ledger_metadata.py",
        "if not message.IsInitialized():",
        "if version < _TEXT_VERSION:",
        ("tests/unit/test_protocol_ledger_metadata.py::test_inconsistent_metadata_are_refused",),
    ),
    Mutation(
        "An ensemble change at the first entry of a segment replaces that segment.",
        "bk_spark/protocol/metadata/ledger_metadata.py",
        "if kept[-1].first_entry_id == segment.first_entry_id:",
        "if len(kept) > 1 and kept[-1].first_entry_id == segment.first_entry_id:",
        ("tests/unit/test_protocol_ledger_metadata.py::test_segments_are_appended_or_replace_the_last",),
    ),
    Mutation(
        "A compare-and-set whose replies are lost is tried a bounded number of times.",
        "bk_spark/bookie/metadata/ledger_store.py",
        "lost: OutcomeUnknownError | None = None\n"
        "        for _ in range(_ATTEMPTS):\n"
        "            try:\n"
        "                return StoredMetadata(",
        "lost: OutcomeUnknownError | None = None\n"
        "        while True:\n"
        "            try:\n"
        "                return StoredMetadata(",
        ("tests/integration/test_ledger_store.py::test_c13_a_change_whose_requests_are_all_lost_is_given_up[set]",),
    ),
    Mutation(
        "After a lost reply, metadata of the next version are this client's only if the content is.",
        "bk_spark/bookie/metadata/ledger_store.py",
        "found.version == version + 1 and found.data == data:",
        "found.version == version + 1:",
        ("tests/integration/test_c13_lost_replies.py::test_c13_compare_and_set",),
    ),
    Mutation(
        "A delete whose reply was lost does not delete another ledger with the same id.",
        "bk_spark/bookie/metadata/ledger_store.py",
        "if now is None or now.created_zxid != found.created_zxid:",
        "if now is None:",
        (
            "tests/integration/test_c13_lost_replies.py::"
            "test_c13_delete_leaves_alone_what_another_client_made_under_the_same_id",
        ),
    ),
    Mutation(
        "A ledger found after a lost reply is this client's only with its token.",
        "bk_spark/bookie/metadata/ledger_store.py",
        "return ledger_metadata.decode(found.data).creator_token == token",
        "return ledger_metadata.decode(found.data).creator_token != 0",
        (
            "tests/integration/test_c13_lost_replies.py::"
            "test_c13_create_under_a_given_id_that_another_client_takes_meanwhile",
        ),
    ),
    Mutation(
        "A replication worker changes the metadata only of the ledger that it read.",
        "bk_spark/bookie/metadata/ledger_store.py",
        "if found is None or found.created_zxid != read.created_zxid:",
        "if found is None:",
        (
            "tests/integration/test_under_replication_store.py::"
            "test_r8_a_ledger_that_was_deleted_or_made_again_is_not_written",
        ),
    ),
    Mutation(
        "A change that needs a proof checks it in the same transaction.",
        "bk_spark/bookie/metadata/proven_changes.py",
        "checked = () if proof is None else (CheckOp(proof, -1),)",
        "checked = ()",
        ("tests/integration/test_under_replication_store.py::test_metadata_are_written_while_the_session_lives",),
    ),
    Mutation(
        "The latest state is read after a sync in the same session.",
        "bk_spark/bookie/metadata/zookeeper.py",
        "[path], watch, sync=True)",
        "[path], watch)",
        (
            "tests/integration/test_lagging_zookeeper.py::"
            "test_the_latest_metadata_are_those_that_any_server_has_acknowledged",
        ),
    ),
    Mutation(
        "Copies of an entry go to different hosts.",
        "bk_spark/bookie/placement/placement.py",
        "if len(set(hosts.values())) in (1, len(hosts)):",
        "if True:",
        ("tests/unit/test_client_placement.py::test_copies_are_on_several_hosts_as_far_as_they_can_be",),
    ),
    Mutation(
        "A bookie on another host takes the place of one that failed.",
        "bk_spark/bookie/placement/placement.py",
        "return bookie in last, sum(kind < need for kind in known), shared, -sum(known)",
        "return bookie in last, sum(kind < need for kind in known), 0, -sum(known)",
        ("tests/unit/test_client_placement.py::test_a_replacement_is_on_another_host",),
    ),
)
