"""Rules of Pulsar's formats."""

from __future__ import annotations

from typing import Final

from tests.mutation.mutation import Mutation

_PULSAR: Final = "bk_spark/protocol/pulsar"
_TRAPS: Final = "tests/unit/test_pulsar_traps.py::test_"
_VALUES: Final = "tests/unit/test_pulsar_values.py::test_"
_METADATA: Final = "tests/unit/test_pulsar_metadata.py::test_"
_CORRUPT: Final = (f"{_TRAPS}a_corrupt_entry_is_one_error_that_names_it",)

MUTATIONS: Final = (
    Mutation(
        "What an encrypted entry says of its keys is looked for where the entry is now.",
        f"{_PULSAR}/messages/encryption_columns.py",
        "(moved if isinstance(moved, int) else moved[rows])",
        "(moved if isinstance(moved, int) else 0)",
        (f"{_TRAPS}what_encrypted_messages_say_of_it_is_told_for_each_entry",),
    ),
    Mutation(
        "Of keys of one name the last one counts.",
        f"{_PULSAR}/messages/encryption_columns.py",
        "    kept = last_of_equal(rows, names)\n",
        "    kept = None\n",
        (f"{_TRAPS}what_encrypted_messages_say_of_it_is_told_for_each_entry",),
    ),
    Mutation(
        "The key of a batch's metadata is the first message's, not that of all.",
        f"{_PULSAR}/messages/rows.py",
        "return found, self._merged(present, fields.present(of_message))",
        "return found, present[self._owners]",
        (f"{_TRAPS}1_the_key_of_a_batch_is_not_that_of_its_messages",),
    ),
    Mutation(
        "An entry is a batch if the number of its messages is there, also if it is 1.",
        f"{_PULSAR}/decoding.py",
        "metadata.present(MetadataField.NUM_MESSAGES_IN_BATCH) & ~self.encrypted",
        "(self.counts > 1) & ~self.encrypted",
        (f"{_TRAPS}2_one_message_may_be_a_batch",),
    ),
    Mutation(
        "Pulsar's ZLIB has no end.",
        f"{_PULSAR}/compression.py",
        "zlib.decompressobj().decompress(data, size + 1)",
        "zlib.decompress(data)",
        (f"{_TRAPS}3_zlib_has_no_end",),
    ),
    Mutation(
        "LZ4 that gives less than announced is an error, not memory of anything.",
        f"{_PULSAR}/compression.py",
        '        raise CompressionError(f"LZ4 gives fewer than the {size} bytes that are announced")',
        "        return found",
        _CORRUPT,
    ),
    Mutation(
        "SNAPPY that gives less than announced is an error, too.",
        f"{_PULSAR}/compression.py",
        "if own != size:",
        "if own > size:",
        _CORRUPT,
    ),
    Mutation(
        "An announced size is checked before it is allocated.",
        f"{_PULSAR}/compression.py",
        "if not 0 <= size <= max_bytes:",
        "if size < 0:",
        _CORRUPT,
    ),
    Mutation(
        "A gap ends a chunked message.",
        f"{_PULSAR}/chunks.py",
        "if chunk.chunk_id > len(message.parts):",
        "if chunk.chunk_id > chunk.chunk_count:",
        (f"{_TRAPS}chunks_that_come_twice_count_once_and_a_gap_ends_the_message",),
    ),
    Mutation(
        "A chunk that comes twice counts once.",
        f"{_PULSAR}/chunks.py",
        "if message is None or chunk.chunk_id < len(message.parts):",
        "if message is None:",
        (f"{_TRAPS}chunks_that_come_twice_count_once_and_a_gap_ends_the_message",),
    ),
    Mutation(
        "Chunks have the size together that their producer announced.",
        f"{_PULSAR}/chunks.py",
        "if chunk.total_bytes not in (0, message.size_bytes):",
        "if chunk.total_bytes < 0:",
        (f"{_TRAPS}chunked_messages_are_bounded_each_and_together",),
    ),
    Mutation(
        "Open chunked messages are bounded together.",
        f"{_PULSAR}/chunks.py",
        "if self._open_bytes + size_bytes > _OPEN_TIMES * limit:",
        "if self._open_bytes < 0:",
        (f"{_TRAPS}chunked_messages_are_bounded_each_and_together",),
    ),
    Mutation(
        "Markers make no rows.",
        f"{_PULSAR}/decoding.py",
        "metadata.present(MetadataField.MARKER_TYPE).copy()",
        "np.zeros(len(frames), np.bool_)",
        (f"{_TRAPS}8_markers_make_no_rows",),
    ),
    Mutation(
        "A transaction is its coordinator and its number, in this order.",
        f"{_PULSAR}/transactions.py",
        "(MetadataField.TXNID_MOST_BITS, MetadataField.TXNID_LEAST_BITS)",
        "(MetadataField.TXNID_LEAST_BITS, MetadataField.TXNID_MOST_BITS)",
        (f"{_TRAPS}a_transaction_is_told_before_anything_changes",),
    ),
    Mutation(
        "A committed transaction is not an aborted one.",
        f"{_PULSAR}/transactions.py",
        "if messages is not None and kinds[index] == _ABORTED:",
        "if messages is not None:",
        (f"{_TRAPS}a_scan_knows_committed_aborted_and_undecided_transactions",),
    ),
    Mutation(
        "A message met in a transaction of which nothing is known ends the call.",
        f"{_PULSAR}/decoding.py",
        "if self.aborted is None and block.in_transaction.any():",
        "if self.aborted is None and block.in_transaction.all():",
        (f"{_TRAPS}a_transaction_is_told_before_anything_changes",),
    ),
    Mutation(
        "The broker's index is that of the last message.",
        f"{_PULSAR}/messages/rows.py",
        "self._entries.counts[self._owners] - 1 - self._index_in_batch()",
        "0 * self._owners",
        (f"{_TRAPS}5_the_broker_may_begin_to_add_metadata_anywhere",),
    ),
    Mutation(
        "An event time of 0 is none.",
        f"{_PULSAR}/messages/rows.py",
        "return _times(found, found > 0)",
        "return _times(found)",
        (f"{_TRAPS}times_of_zero_are_null_in_events_and_those_that_do_not_fit_everywhere",),
    ),
    Mutation(
        "Of equal properties the last one counts.",
        f"{_PULSAR}/messages/gathering.py",
        "np.delete(order, np.flatnonzero(replaced))",
        "np.delete(order, np.flatnonzero(replaced) + 1)",
        (f"{_TRAPS}the_last_of_equal_properties_counts",),
    ),
    Mutation(
        "Each message of a batch ends where the next one was looked for.",
        f"{_PULSAR}/messages/batches.py",
        "sound &= after == expected",
        "sound &= after <= limits",
        _CORRUPT,
    ),
    Mutation(
        "The metadata of a message ends within its batch.",
        f"{_PULSAR}/messages/batches.py",
        "sound = within & read.present",
        "sound = read.present",
        _CORRUPT,
    ),
    Mutation(
        "A batch has no more messages than fit into its bytes.",
        f"{_PULSAR}/messages/batches.py",
        "(counts >= 0) & (counts <= room)",
        "(counts >= 0) & (counts <= room + 1)",
        _CORRUPT,
    ),
    Mutation(
        "Numbers have up to ten bytes.",
        f"{_PULSAR}/messages/field_columns.py",
        "np.where(two, tenth << np.uint64(63), _ZERO)",
        "_ZERO",
        (f"{_TRAPS}14_ids_of_64_bits_are_wrapped",),
    ),
    Mutation(
        "Base64 ends in one or two signs of padding.",
        f"{_PULSAR}/messages/gathering.py",
        "    padded[before[two]] = True\n",
        "",
        (f"{_TRAPS}10_keys_in_base64_and_odd_ones",),
    ),
    Mutation(
        "What an entry has once and rows repeat is bounded.",
        f"{_PULSAR}/decoding.py",
        "in _cuts(rows.repeated_bytes(self._repeats), BATCH_BYTES):",
        "in [(0, len(rows))]:",
        (f"{_TRAPS}batches_of_rows_are_bounded_whatever_is_compressed_or_repeated",),
    ),
    Mutation(
        "Checksums are checked if asked for.",
        f"{_PULSAR}/decoding.py",
        "if self._check_crc:",
        "if self._check_crc is None:",
        (f"{_TRAPS}checksums_of_producers_are_checked_if_asked_for",),
    ),
    Mutation(
        "Type numbers of stored schemas are one higher than those of clients.",
        f"{_PULSAR}/schemas.py",
        "_STORED_OFFSET: Final = 1",
        "_STORED_OFFSET: Final = 0",
        (f"{_VALUES}stored_schemas_have_the_types_of_clients_not_one_more",),
    ),
    Mutation(
        "The least number of 64 bits has no absolute value.",
        f"{_PULSAR}/primitive_values.py",
        "return (values >= -most) & (values <= most)",
        "return np.abs(values) <= most",
        (f"{_VALUES}times_that_spark_cannot_hold_are_no_values",),
    ),
    Mutation(
        "A few bytes of Avro cannot claim any number of values.",
        f"{_PULSAR}/avro_values.py",
        'if kind == "array" and item[2]:',
        "if not kind:",
        (f"{_VALUES}avro_schemas_without_a_type_of_spark_are_refused",),
    ),
    Mutation(
        "A value in Avro with bytes behind its end has another form.",
        f"{_PULSAR}/avro_values.py",
        "if stream.tell() != len(value):",
        "if not value:",
        (f"{_VALUES}a_value_of_another_form_is_an_error_that_names_its_row_or_null",),
    ),
    Mutation(
        "A pair of key and value ends where its value ends.",
        f"{_PULSAR}/values.py",
        "sound &= at == ends",
        "sound &= at <= ends",
        (f"{_VALUES}a_value_of_another_form_is_an_error_that_names_its_row_or_null",),
    ),
    Mutation(
        "Names of znodes are those that Java's URLEncoder writes.",
        f"{_PULSAR}/topic_names.py",
        'quote_plus(local, safe="*").replace("~", "%7E")',
        'quote_plus(local, safe="*")',
        (f"{_METADATA}odd_names_are_encoded_as_java_does",),
    ),
    Mutation(
        "A ledger is in a topic's list once.",
        f"{_PULSAR}/managed_ledgers.py",
        " or len(ids) > len(set(ids)):",
        ":",
        (f"{_METADATA}what_is_no_list_of_ledgers_is_refused_by_its_name",),
    ),
    Mutation(
        "The end of a compacted ledger's entry is the end of the original.",
        f"{_PULSAR}/compaction.py",
        "if end != len(data):",
        "if end < len(data):",
        (f"{_TRAPS}other_entries_than_those_of_a_compacted_ledger_are_refused",),
    ),
)
