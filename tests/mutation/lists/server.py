"""Rules of a bookie's operations and of its front end: fences, keys, and limits on what peers may make it hold."""

from __future__ import annotations

from typing import Final

from tests.mutation.mutation import Mutation

MUTATIONS: Final = (
    Mutation(
        "A fencing read is answered at once only if the fence is durable.",
        "bookie_server/net/native/fences.py",
        "return fence.done() and fence.result() is Code.OK",
        "return not fence.done() or fence.result() is Code.OK",
        ("tests/unit/test_net_fences.py::test_who_recovers_a_ledger_gets_entries_in_memory_at_once[2]",),
    ),
    Mutation(
        "A fence is answered at once only if an earlier one is durable.",
        "bookie_server/bookie.py",
        "if descriptor is None or descriptor.deleting or not descriptor.fenced or descriptor.fence_group is not None:",
        "if descriptor is None or descriptor.deleting or not descriptor.fenced:",
        ("tests/unit/test_storage_journals.py::test_a_fence_is_answered_at_once_only_if_an_earlier_one_is_durable",),
    ),
    Mutation(
        "A fence of a ledger that is fenced already needs the ledger's key.",
        "bookie_server/bookie.py",
        "return Code.OK if descriptor.admits(master_key) else Code.UNAUTHORIZED",
        "return Code.OK",
        ("tests/unit/test_storage_journals.py::test_a_fence_is_answered_at_once_only_if_an_earlier_one_is_durable",),
    ),
    Mutation(
        "A fencing read that is answered at once needs the right to read.",
        "bookie_server/net/native/requests_v3.py",
        "context.access.has(READ | FENCE)",
        "context.access.has(FENCE)",
        ("tests/unit/test_net_authorization.py::test_a_fencing_read_of_a_fenced_ledger_needs_both_rights_too[v3]",),
    ),
    Mutation(
        "A fencing read of an entry in memory needs no task over v3.",
        "bookie_server/net/native/requests_v3.py",
        "if fences and self._reads is None and self._read_fenced(header.txnId, read):",
        "if False:",
        ("tests/unit/test_net_fences.py::test_who_recovers_a_ledger_gets_entries_in_memory_at_once[3]",),
    ),
    Mutation(
        "The reads of a recovery leave its adds together.",
        "bookie_server/net/native/requests_v3.py",
        "self._held.hold(self, gathered, len(body))",
        "self._held.adds.append(gathered)\n                self.store_held()",
        ("tests/unit/test_net_fences.py::test_the_reads_of_a_recovery_leave_its_adds_together",),
    ),
    Mutation(
        "Adds of a recovery do not wait for ever, though more come.",
        "bookie_server/net/native/recovery_adds.py",
        "_due_s(self._since_s, self._last_s)",
        "_due_s(self._last_s, self._last_s)",
        ("tests/unit/test_net_recovery_adds.py::test_adds_wait_for_the_next_one_and_not_for_ever",),
    ),
    Mutation(
        "Adds of recoveries that take much memory do not wait.",
        "bookie_server/net/native/recovery_adds.py",
        "if self.size_bytes >= _MOST_BYTES:",
        "if False:",
        ("tests/unit/test_net_recovery_adds.py::test_half_a_megabyte_waits_no_longer",),
    ),
    Mutation(
        "An add does not overtake those of a recovery on its connection.",
        "bookie_server/net/native/requests_v3.py",
        "        if self._held.adds:\n            self.store_held()\n",
        "",
        ("tests/unit/test_net_recovery_adds.py::test_an_add_of_the_same_connection_does_not_overtake_them[3]",),
    ),
    Mutation(
        "A bookie that ends answers the adds of recoveries that it holds.",
        "bookie_server/net/native/server.py",
        "        self.shared.recovery_adds.store()\n",
        "",
        ("tests/unit/test_net_recovery_adds.py::test_a_server_that_ends_answers_them[3]",),
    ),
    Mutation(
        "A recovery goes on while fences of other ledgers wait.",
        "bookie_server/net/native/fences.py",
        "if before is not None:",
        "if False:",
        ("tests/unit/test_net_fences.py::test_a_recovery_goes_on_while_other_fences_wait[2]",),
    ),
    Mutation(
        "A fencing read of an entry in memory needs no task.",
        "bookie_server/net/native/requests_v2.py",
        "and is_durable(fences[int(run.ledger_ids[0])])",
        "and False",
        ("tests/unit/test_net_fences.py::test_who_recovers_a_ledger_gets_entries_in_memory_at_once[2]",),
    ),
    Mutation(
        "A large buffer of an answer does not overtake small ones.",
        "bookie_server/net/native/answers.py",
        "if small and (is_large or len(buffer) + small_bytes > _JOINED_BYTES):",
        "if small and len(buffer) + small_bytes > _JOINED_BYTES:",
        ("tests/unit/test_net_answers.py::test_where_one_call_sends_many_buffers_fewer_are_copied[65536-False]",),
    ),
    Mutation(
        "Entries that do not lie at equal distances are answered with their own bytes.",
        "bk_spark/protocol/wire/stored_rows.py",
        "rows[:] = items[starts]",
        "rows[:] = items[starts[0] + np.arange(count) * (row_bytes - at + 4)]",
        ("tests/unit/test_protocol_answer_frames_v3.py::test_answers_to_reads[0-uniform-apart]",),
    ),
    Mutation(
        "An entry beyond the limit of index files is refused among others, too.",
        "bookie_server/storage/records.py",
        "if lowest >= 0 and highest <= last_entry_id and",
        "if lowest >= 0 and lowest <= last_entry_id and",
        ("tests/unit/test_entry_limit.py::test_an_add_beyond_the_limit_is_refused_alone",),
    ),
    Mutation(
        "A fence is answered once it is durable.",
        "bookie_server/bookie.py",
        "elif descriptor.fence_group is not None:",
        "elif descriptor.fence_group is not None and descriptor.deleting:",
        ("tests/unit/test_storage_adds_and_reads.py::test_fence_waits_for_its_record_and_is_journaled_once",),
    ),
    Mutation(
        "A fenced ledger takes no adds but those of a recovery.",
        "bookie_server/bookie.py",
        "if recovery or not descriptor.fenced:",
        "if recovery or not descriptor.fenced or descriptor.last_entry >= 0:",
        ("tests/unit/test_storage_deletions.py::test_c15_recovery_brings_a_deleted_ledger_again_and_it_is_fenced",),
    ),
    Mutation(
        "Only the ledger's master key writes to it.",
        "bookie_server/bookie.py",
        "if not descriptor.admits(master_key):",
        "if not descriptor.admits(master_key) and descriptor.fenced:",
        ("tests/unit/test_storage_adds_and_reads.py::test_refusals_are_per_entry",),
    ),
    Mutation(
        "A ledger that was fenced and removed is made again fenced.",
        "bookie_server/bookie.py",
        "            if deleted and if_deleted is not Code.OK:\n                return if_deleted\n",
        "",
        (
            "tests/unit/test_storage_deletions.py::"
            "test_c12_a_fenced_ledger_that_was_deleted_does_not_come_again_for_its_writer",
        ),
    ),
    Mutation(
        "Sockets are not read while adds exceed their limit.",
        "bookie_server/net/common/load.py",
        "                adds_bytes > config.adds_high_bytes\n                or 0",
        "                0",
        ("tests/unit/test_net_limits.py::test_what_waits_for_a_journal_counts_too",),
    ),
    Mutation(
        "A large frame gets a step only if as much as it holds stays free.",
        "bookie_server/net/common/large_frames.py",
        "if self.bytes + more + frame.given > self._limit_bytes and",
        "if self.bytes + more > 2 * self._limit_bytes and",
        ("tests/unit/test_bookie_large_frames.py::test_what_is_announced_costs_nothing_and_who_stalls_goes_first",),
    ),
    Mutation(
        "Incomplete frames of all connections are bounded.",
        "bookie_server/net/common/half_frames.py",
        "        self.bytes += size_bytes - before\n        if self.bytes > self._max_bytes:",
        "        self.bytes += size_bytes - before\n        if size_bytes > self._max_bytes:",
        ("tests/unit/test_net_limits.py::test_half_frames_of_all_connections_are_bounded",),
    ),
    Mutation(
        "Reads are answered at once only while the peer takes the answers.",
        "bookie_server/net/native/answers.py",
        "return self._out_bytes < self._high_bytes and self._taken.is_set() and self._load",
        "return self._load",
        ("tests/unit/test_net_limits.py::test_reads_answered_at_once_within_one_receive_are_bounded",),
    ),
    Mutation(
        "A large entry is answered at once only while peers have read enough.",
        "bookie_server/net/native/answers.py",
        "return size_bytes <= LITTLE_BYTES or self._load.has_room.is_set()",
        "return True",
        ("tests/unit/test_net_limits.py::test_a_large_entry_waits_for_room_though_it_is_in_memory",),
    ),
    Mutation(
        "One list of entries is made at a time.",
        "bookie_server/net/native/inquiries_v3.py",
        "    await slot.acquire()\n",
        "",
        ("tests/unit/test_net_limits.py::test_a_list_larger_than_a_frame_is_an_error_and_one_list_is_made_at_a_time",),
    ),
    Mutation(
        "The kernel keeps little of what a peer does not take.",
        "bookie_server/net/common/kernel_room.py",
        "socket.TCP_NOTSENT_LOWAT, LITTLE_BYTES)",
        "socket.TCP_NOTSENT_LOWAT, MUCH_BYTES)",
        ("tests/unit/test_net_turns.py::test_n1_the_kernel_keeps_little_of_what_a_peer_does_not_take",),
    ),
    Mutation(
        "A connection that waits for the bookie is not closed for a newcomer.",
        "bookie_server/net/common/connections.py",
        "if not connection.busy:",
        "if connection is not None:",
        ("tests/unit/test_net_connections.py::test_who_is_busy_stays_and_is_not_looked_at_again_soon",),
    ),
    Mutation(
        "The fences that begin in a turn are bounded.",
        "bookie_server/net/native/fences.py",
        "return self._begun < _PER_TURN and self._under_way",
        "return self._under_way",
        ("tests/unit/test_net_fences.py::test_n1_many_fencing_reads_of_unknown_ledgers_begin_a_few_in_a_turn",),
    ),
    Mutation(
        "A busy event loop gives way to the journals' threads.",
        "bookie_server/event_loop.py",
        "                time.sleep(_WAY_S)\n",
        "                pass\n",
        ("tests/unit/test_event_loop.py::test_the_loop_gives_way_once_a_millisecond_while_a_group_takes_long",),
    ),
    Mutation(
        "No fence of a new ledger begins while too many wait for index files.",
        "bookie_server/net/native/fences.py",
        "return looked_up and not self._bookie.new_ledgers_wait",
        "return looked_up",
        (
            "tests/unit/test_net_fences.py::test_fences_that_were_looked_up_wait_when_too_many_new_ledgers_have_no_index_file",
        ),
    ),
    Mutation(
        "Calls of gRPC that never sent a message go first.",
        "bookie_server/net/grpc/places.py",
        "        if silent is not None:\n            return silent\n",
        "",
        ("tests/unit/test_net_grpc_places.py::test_who_goes",),
    ),
    Mutation(
        "A call that is owed answers does not go.",
        "bookie_server/net/grpc/adds.py",
        "self.context.place.is_busy = lambda: self._batches > 0",
        "self.context.place.is_busy = lambda: False",
        ("tests/unit/test_net_grpc_places.py::test_a_call_that_waits_for_answers_is_not_ended_for_others",),
    ),
    Mutation(
        "Callers of gRPC in other lines do not wait for a flood of calls.",
        "bookie_server/net/grpc/server.py",
        "for _ in range(count - 1):",
        "for _ in range(0):",
        (
            "tests/unit/test_net_grpc_lines.py"
            "::test_n2_who_begins_many_calls_keeps_those_in_other_lines_waiting_for_none_of_them",
            "tests/unit/test_net_grpc_lines.py"
            "::test_who_takes_all_connections_of_a_line_keeps_those_in_others_from_nothing",
        ),
    ),
    Mutation(
        "The port of gRPC is shared with nobody else.",
        "bookie_server/net/grpc/server.py",
        "            check_free(host, port)",
        "            pass",
        ("tests/unit/test_net_grpc_lines.py::test_a_port_that_others_use_is_not_shared",),
    ),
    Mutation(
        "All of a network of IPv6 have one line.",
        "bookie_server/net/grpc/lines.py",
        "_IPV6_NETWORK: Final = (_IP + 8, _IP + 12)",
        "_IPV6_NETWORK: Final = (_IP + 16, _IP + 20)",
        ("tests/unit/test_net_grpc_lines.py::test_the_kernel_chooses_the_line_by_the_callers_network",),
    ),
    Mutation(
        "The first message of a call of gRPC must come in time.",
        "bookie_server/net/grpc/gate.py",
        "asyncio.timeout(None if patience_s is None else pause_s + patience_s)",
        "asyncio.timeout(None)",
        ("tests/unit/test_net_grpc_places.py::test_calls_whose_first_message_never_comes_end",),
    ),
    Mutation(
        "The kernel's table of open files has its full size from the start.",
        "bookie_server/disks/open_files.py",
        "os.close(fcntl.fcntl(any_file, fcntl.F_DUPFD_CLOEXEC, entries - 1))",
        "os.close(fcntl.fcntl(any_file, fcntl.F_DUPFD_CLOEXEC, entries // 16))",
        (
            "tests/unit/test_process_tuning.py::"
            "test_the_event_loop_need_not_import_nor_wait_for_a_longer_table_of_open_files",
        ),
    ),
    Mutation(
        "Of requests of which few are handled at a time, few are parsed.",
        "bookie_server/net/native/connection.py",
        "_PARSED_PER_HANDLED: Final = 2",
        "_PARSED_PER_HANDLED: Final = 32",
        ("tests/unit/test_net_fences.py::test_n1_of_fencing_reads_that_wait_few_more_are_parsed_than_handled",),
    ),
    Mutation(
        "A newcomer that has sent its request when it is accepted is heard at once.",
        "bookie_server/net/common/entrance/newcomers.py",
        "        self._accept_some()\n        self._notice()  # many have sent something already\n",
        "        self._accept_some()\n",
        (
            "tests/unit/test_net_connections.py::"
            "test_n1_a_newcomer_with_a_request_waits_for_few_turns_of_the_event_loop",
        ),
    ),
    Mutation(
        "Of newcomers with a first request the one that connected last is heard before those that only spoke last.",
        "bookie_server/net/common/entrance/newcomers.py",
        "while not self._newest_next:",
        "while self._number < 0:",
        (
            "tests/unit/test_net_connections.py::"
            "test_n1_who_connects_and_speaks_at_once_passes_many_that_connected_before_and_speak_together",
        ),
    ),
    Mutation(
        "Reads that waited for room begin a few in a turn.",
        "bookie_server/net/common/fair_slots.py",
        "        while self._free and self._spent < _TURN_COST:\n            line",
        "        while self._free:\n            line",
        ("tests/unit/test_net_fair_slots.py::test_n1_those_who_waited_for_room_begin_a_few_in_a_turn",),
    ),
    Mutation(
        "A large answer to a peer that is not known goes out in slices.",
        "bookie_server/net/native/answers.py",
        "(size_bytes > SLICE_BYTES and not self._reads)",
        "(size_bytes > SLICE_BYTES and self._reads)",
        (
            "tests/unit/test_net_answers.py::"
            "test_n1_large_answers_to_peers_of_which_nobody_knows_whether_they_read_go_out_a_little_in_a_turn",
        ),
    ),
    Mutation(
        "Answers that are parts of larger memory do not keep it for peers that do not read.",
        "bookie_server/net/native/answers.py",
        "return self._stalled is None or self._rest_is_urgent",
        "return self._stalled is None",
        (
            "tests/unit/test_net_answers.py::"
            "test_n1_answers_wait_without_a_copy_for_peers_that_do_not_read_unless_they_hold_more_memory[part_of_larger_memory]",
        ),
    ),
    Mutation(
        "A slice of a large frame counts before it is received.",
        "bookie_server/net/common/turns.py",
        "max(_SLICE_US, self._served(asker, begun), last_us)",
        "max(_SLICE_US, self._served(asker, begun))",
        ("tests/unit/test_net_turns.py::test_n1_slices_of_large_frames_count_before_they_are_received",),
    ),
    Mutation(
        "Many fences are written together.",
        "bookie_server/net/native/fences.py",
        "is_urgent = not self._waiting and self._under_way < _URGENT",
        "is_urgent = True",
        ("tests/unit/test_net_fences.py::test_n1_many_fences_let_the_journal_write_them_together",),
    ),
    Mutation(
        "A fence that is not urgent waits for others.",
        "bookie_server/bookie.py",
        "self._fence_now(descriptor, _resolver(outcome), urgent=urgent)",
        "self._fence_now(descriptor, _resolver(outcome))",
        ("tests/unit/test_net_fences.py::test_n1_a_fence_that_is_not_urgent_is_written_with_the_next_that_is",),
    ),
    Mutation(
        "What is in memory is answered in the turn in which the request came.",
        "bookie_server/net/native/connection.py",
        "        self.answers.gather()\n        try:\n            return self._dispatch(frames)\n"
        "        finally:\n            self.answers.flush()\n",
        "        return self._dispatch(frames)\n",
        (
            "tests/unit/test_net_connections.py::"
            "test_n1_what_is_in_memory_is_answered_in_the_turn_in_which_the_request_came",
        ),
    ),
    Mutation(
        "A newcomer is heard only after the one before it was served.",
        "bookie_server/net/common/entrance/newcomers.py",
        "_TURNS_EACH: Final = 2",
        "_TURNS_EACH: Final = 1",
        ("tests/unit/test_net_connections.py::test_n1_newcomers_come_one_by_one",),
    ),
    Mutation(
        "Of those that have sent too little, several are heard in a turn.",
        "bookie_server/net/common/entrance/newcomers.py",
        "_LOOKED_AT_ONCE: Final = 4",
        "_LOOKED_AT_ONCE: Final = 1",
        (
            "tests/unit/test_net_connections.py"
            "::test_n1_who_speaks_in_the_middle_of_many_that_send_too_little_waits_for_few_turns",
        ),
    ),
    Mutation(
        "A newcomer's request is read when it gets a transport.",
        "bookie_server/net/native/connection.py",
        "if connected is not None and tls is None:",
        "if False:",
        (
            "tests/unit/test_net_connections.py::"
            "test_n1_a_newcomers_request_is_read_and_answered_when_it_gets_a_transport",
        ),
    ),
    Mutation(
        "A flush pauses between the index files of many new ledgers.",
        "bookie_server/storage/flush.py",
        "if len(step) == HEADERS_STEP:",
        "if False:",
        ("tests/unit/test_storage_flushes.py::test_n1_a_flush_pauses_between_the_index_files_of_many_new_ledgers",),
    ),
    Mutation(
        "The front end is told when a group of a journal is through.",
        "bookie_server/storage/ledger_storage.py",
        "        self.on_answered()\n",
        "",
        ("tests/unit/test_storage_journals.py::test_n1_the_front_end_is_told_when_all_who_waited_for_a_group_were",),
    ),
    Mutation(
        "Answers that could not be sent to one connection keep nobody else's.",
        "bookie_server/net/native/outbox.py",
        "except Exception:",
        "except ValueError:",
        (
            "tests/unit/test_net_answers.py::"
            "test_n1_adds_of_a_group_are_answered_when_it_is_through_and_not_a_turn_later",
        ),
    ),
    Mutation(
        "Stalled peers are closed a few in a turn.",
        "bookie_server/net/native/server.py",
        "min(_CLOSED_AT_ONCE, len(self._stalled))",
        "len(self._stalled)",
        ("tests/unit/test_net_fair_slots.py::test_n1_stalled_connections_are_closed_a_few_in_a_turn",),
    ),
    Mutation(
        "A failed login is answered after a while.",
        "bookie_server/net/native/admission.py",
        "call_later(self._shared.pauses.failure_s(), end)",
        "call_later(0, end)",
        ("tests/unit/test_net_access.py::test_n1_a_wrong_login_is_answered_after_a_while[v2]",),
    ),
    Mutation(
        "Who asks for what it may not is not read for a while.",
        "bookie_server/net/native/connection.py",
        "        self.pause(_PAUSED_BY_REFUSAL)\n",
        "",
        (
            "tests/unit/test_net_authorization.py"
            "::test_n1_who_has_no_right_and_asks_again_at_once_is_answered_less_and_less_often[v2-read]",
        ),
    ),
    Mutation(
        "Who may do nothing is read later from the beginning.",
        "bookie_server/net/native/admission.py",
        "if gate.access is not None and not gate.access.rights:",
        "if False:",
        (
            "tests/unit/test_net_authorization.py"
            "::test_n1_who_has_no_right_and_asks_again_at_once_is_answered_less_and_less_often[v2-read]",
        ),
    ),
    Mutation(
        "So is who has the wrong role, if there are no logins.",
        "bookie_server/net/native/admission.py",
        "        else:\n            self._connection.read_nothing_for(self._shared.pauses.failure_s())\n",
        "",
        (
            "tests/unit/test_net_access.py"
            "::test_n1_who_is_refused_and_asks_again_at_once_is_answered_less_and_less_often[v3]",
        ),
    ),
    Mutation(
        "Who has the wrong role is not read for a while after a refusal.",
        "bookie_server/net/native/gate.py",
        "        self._refused()\n",
        "",
        (
            "tests/unit/test_net_access.py"
            "::test_n1_who_is_refused_and_asks_again_at_once_is_answered_less_and_less_often[v3]",
        ),
    ),
    Mutation(
        "So is who has the wrong right in a call of gRPC.",
        "bookie_server/net/grpc/gate.py",
        "                    if pause_s:\n",
        "                    if False:\n",
        (
            "tests/unit/test_net_authorization.py"
            "::test_n1_calls_without_the_right_are_answered_less_and_less_often[Add]",
        ),
    ),
    Mutation(
        "Refused calls that wait have no places.",
        "bookie_server/net/grpc/gate.py",
        "        self.refused()\n        self.leave_place()\n",
        "        self.refused()\n",
        ("tests/unit/test_net_authorization.py::test_n1_refused_calls_that_wait_keep_nobody_out_and_are_few",),
    ),
    Mutation(
        "Only entries that are in the memory of an answer as a whole are that answer.",
        "bookie_server/net/grpc/answer_room.py",
        "if entries.starts[-1] + entries.sizes[-1] != size_bytes:",
        "if False:",
        ("tests/unit/test_net_grpc_answer_room.py::test_only_what_is_in_the_memory_as_a_whole_is_the_answer",),
    ),
    Mutation(
        "The memory of an answer belongs to one answer.",
        "bookie_server/net/grpc/answer_room.py",
        "        self._memory = self._records = None\n        return",
        "        return",
        ("tests/unit/test_net_grpc_answer_room.py::test_only_what_is_in_the_memory_as_a_whole_is_the_answer",),
    ),
    Mutation(
        "Entries that do not fit are not read.",
        "bookie_server/storage/entrylog/entry_log_reader.py",
        'np.searchsorted(locations[1:], end, side="right"))',
        'np.searchsorted(locations, end, side="right"))',
        ("tests/unit/test_entry_log.py::test_neighbours_that_do_not_fit_are_not_fetched[2007-1]",),
    ),
)
