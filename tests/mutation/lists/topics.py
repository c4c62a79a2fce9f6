"""Rules of reads of Pulsar's topics."""

from __future__ import annotations

from typing import Final

from tests.mutation.mutation import Mutation

_POSITIONS: Final = "tests/unit/test_pulsar_positions.py"
_TOPICS: Final = "tests/integration/test_pulsar_topics.py"

MUTATIONS: Final = (
    Mutation(
        "The ledgers of a topic are in the order of their ids, whatever the order of the list.",
        "bk_spark/protocol/pulsar/topics/managed_ledgers.py",
        "key=lambda one: one.ledger_id))",
        "key=lambda one: 0))",
        ("tests/unit/test_pulsar_metadata.py::test_a_broker_that_offloads_writes_the_list_in_any_order",),
    ),
    Mutation(
        "The error about offloaded ledgers says where a read can start, behind all of them.",
        "bk_spark/pulsar/entry_numbers.py",
        'f"{gone[-1].ledger_id}:{gone[-1].entries}"',
        'f"{gone[0].ledger_id}:{gone[0].entries}"',
        ("tests/unit/test_pulsar_positions.py::test_of_many_offloaded_ledgers_the_error_says_where_a_read_can_start",),
    ),
    Mutation(
        "A topic is read again if it was compacted while its list was read.",
        "bk_spark/pulsar/compacted.py",
        "            if compacted() == before:\n",
        "            if True:\n",
        (f"{_POSITIONS}::test_a_topic_and_its_compacted_ledger_are_seen_together",),
    ),
    Mutation(
        "Tasks are cut by the size of the open ledger's own entries.",
        "bk_spark/pulsar/topic_ledgers.py",
        "            if sample[0]:\n",
        "            if False:\n",
        (f"{_POSITIONS}::test_the_size_of_the_open_ledger_is_that_of_its_own_entries",),
    ),
    Mutation(
        "An open ledger that is gone with all before it counts as a loss.",
        "bk_spark/pulsar/entry_numbers.py",
        "self._end += 0 if dropped else 1",
        "self._end += 0",
        (f"{_POSITIONS}::test_an_open_ledger_that_is_gone_with_all_before_it_may_be_a_loss",),
    ),
    Mutation(
        "An empty ledger that was dropped is no loss.",
        "bk_spark/pulsar/entry_numbers.py",
        "dropped = before[-1].entries == 0 and any(",
        "dropped = before[-1].entries < 0 and any(",
        (f"{_POSITIONS}::test_an_empty_ledger_that_is_dropped_is_no_loss",),
    ),
    Mutation(
        "Entries of a checkpoint are read though this process does not know them to be confirmed.",
        "bk_spark/pulsar/entry_numbers.py",
        "is_open = one.closed_at_ms is None and one is self._ledgers[-1]",
        "is_open = False",
        (f"{_POSITIONS}::test_entries_behind_the_known_end_are_read_of_the_open_ledger_only",),
    ),
    Mutation(
        "A stream skips the first messages of a batch only in its first micro-batch.",
        "bk_spark/datasource/pulsar/positions.py",
        "one.batch_index > 0 and start == (one.ledger_id, one.entry_id)",
        "one.batch_index > 0 and start",
        (f"{_POSITIONS}::test_a_stream_skips_messages_of_a_batch_only_where_it_begins",),
    ),
    Mutation(
        "Ledgers are left out by their times with room for the clocks of producers.",
        "bk_spark/datasource/pulsar/positions.py",
        "one.closed_at_ms < time_ms - _CLOCKS_MS",
        "one.closed_at_ms < time_ms",
        (f"{_POSITIONS}::test_times_leave_out_ledgers_that_were_closed_before_and_filter_the_others",),
    ),
    Mutation(
        "The beginning of a chunked message is looked for before the entries that are read.",
        "bk_spark/pulsar/messages.py",
        "                self._decoder.recall(ledger_id, first, payloads)\n",
        "                pass\n",
        (f"{_TOPICS}::test_a_chunked_message_is_found_by_its_last_chunk_wherever_a_read_begins",),
    ),
    Mutation(
        "Nothing is read from the first message of an undecided transaction on.",
        "bk_spark/pulsar/transactions.py",
        "return numbers.end if undecided is None else min(",
        "return numbers.end if undecided is not None else min(",
        (f"{_TOPICS}::test_an_undecided_transaction_ends_a_topic_until_it_is_decided",),
    ),
    Mutation(
        "The end of an open ledger is asked for again before it is said to hide messages.",
        "bk_spark/pulsar/topic_ledgers.py",
        "self._said = _has_entry(tail, end) and tail.read_last_add_confirmed() < end",
        "self._said = True",
        (f"{_TOPICS}::test_an_open_ledger_is_followed_and_not_fenced",),
    ),
)
