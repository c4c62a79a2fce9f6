"""The messages of some entries as rows: which ones there are, and the Arrow array of each column.

A row belongs to an entry, its owner, and maybe to a message of the entry's batch. What all messages of an entry share
is repeated by numpy. Key and properties of a message in a batch come from the message alone: the entry's metadata has
those of the first one. Times, nulls and sequence ids that a message lacks are the entry's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bk_spark.protocol.arrays import Bools, Int64s
from bk_spark.protocol.pulsar.columns import ENCRYPTION, TIME
from bk_spark.protocol.pulsar.message_ids import MessageIdData
from bk_spark.protocol.pulsar.messages.batches import BatchMessages, SingleField
from bk_spark.protocol.pulsar.messages.encryption_columns import encrypted_entries, encryption_column
from bk_spark.protocol.pulsar.messages.entries import Entries
from bk_spark.protocol.pulsar.messages.entry_frames import BrokerField, MetadataField
from bk_spark.protocol.pulsar.messages.field_columns import FieldColumns, Spans
from bk_spark.protocol.pulsar.messages.gathering import base64_decoded, gathered, last_of_equal, matched, text_of
from bk_spark.protocol.pulsar.messages.message_id_columns import message_id_bytes
from bk_spark.protocol.pulsar.messages.words import UInt64s
from bk_spark.protocol.pulsar.topics.topic_names import TopicName

#: Later times do not fit Spark's microseconds. A writer that sends one does not mean a time.
_MAX_MS: Final = np.uint64((1 << 63) // 1000)
_VERSION_BYTES: Final = 8


class Rows:
    """The messages of entries, as rows.

    Parameters
    ----------
    topic
        The topic of the messages.
    entries
        The entries.
    messages
        The messages of those that are batches; their owners count batches alone.
    """

    def __init__(self, topic: TopicName, entries: Entries, messages: BatchMessages) -> None:
        self._topic = topic
        self._entries = entries
        self._messages = messages
        self._owners: Int64s = np.repeat(np.arange(len(entries.counts)), np.where(entries.is_batch, entries.counts, 1))
        self._of_batch: Bools = entries.is_batch[self._owners]
        #: Whether all rows are messages of batches, as most are.
        self._batches_only = bool(entries.is_batch.all())
        #: The message of each row of a batch. For other rows it means nothing.
        self._message: Int64s | slice = slice(0, len(self._owners))
        if not self._batches_only:
            self._message = np.maximum(np.cumsum(self._of_batch) - 1, 0)
        holes = messages.fields.number(SingleField.COMPACTED_OUT) > 0
        if holes.any():
            kept = np.ones(len(self._owners), np.bool_)
            kept[self._of_batch] = ~holes
            self._owners, self._of_batch = self._owners[kept], self._of_batch[kept]
            if isinstance(self._message, slice):
                self._message = np.flatnonzero(kept)
            else:
                self._message = self._message[kept]

    def __len__(self) -> int:
        return len(self._owners)

    def part(self, first: int, last: int) -> Rows:
        """Return some of the rows, from ``first`` up to and without ``last``."""
        found = copy(self)
        found._owners, found._of_batch = self._owners[first:last], self._of_batch[first:last]
        message = self._message
        found._message = (
            slice(message.start + first, message.start + last) if isinstance(message, slice) else message[first:last]
        )
        return found

    def repeated_bytes(self, columns: Iterable[str]) -> Int64s:
        """Return how many bytes each row takes in columns that repeat what its entry has once."""
        size = len(self._topic.full) if "__topic" in columns else 0
        sizes = np.full(len(self), size)
        if "__producerName" in columns:
            sizes += self._entries.metadata.span(MetadataField.PRODUCER_NAME).sizes[self._of_entries()]
        return sizes

    def record_batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """Return columns of the rows."""
        if not len(schema):
            return pa.RecordBatch.from_struct_array(pa.array([{}] * len(self), pa.struct([])))
        return pa.RecordBatch.from_arrays([_COLUMNS[one](self) for one in schema.names], schema=schema)

    def _of_entries(self) -> Int64s:
        """The index in the entries' metadata of each row."""
        return self._entries.chosen[self._owners]

    def _merged(self, of_entries: _Array, of_messages: _Array) -> _Array:
        """Values of rows: those of messages in batches, and those of entries for the other rows."""
        found: _Array
        if self._batches_only:
            found = of_messages[self._message]
            return found
        found = of_entries[self._owners]
        if self._of_batch.any():
            found[self._of_batch] = of_messages[self._in_batches()]
        return found

    def _in_batches(self) -> Int64s | slice:
        """The message of each row that is one of a batch."""
        message = self._message
        return message if isinstance(message, slice) else message[self._of_batch]

    def _number(self, of_entry: MetadataField, of_message: SingleField) -> UInt64s:
        """A number that is the entry's where the message has none."""
        fields, which = self._messages.fields, self._in_batches()
        own = fields.present(of_message)[which]
        if self._batches_only and own.all():
            found: UInt64s = fields.number(of_message)[which]
            return found
        found = self._entries.metadata.number(of_entry)[self._of_entries()]
        if own.any():
            rows = self._of_batch.copy()
            rows[rows] = own
            found[rows] = fields.number(of_message)[which][own]
        return found

    def _of_metadata(self, field: MetadataField) -> tuple[Spans, Bools]:
        """Where a field of bytes is, and which entries have it, by the index among the entries."""
        entries = self._entries
        span = entries.metadata.span(field)
        begins = span.begins[entries.chosen] + entries.moved
        return Spans(begins, span.sizes[entries.chosen]), entries.metadata.present(field)[entries.chosen]

    def value(self) -> pa.Array:
        """The payloads. A message with a null value (a tombstone) is null."""
        entries, messages = self._entries, self._messages
        begins = self._merged(entries.payload_begins, messages.value_begins)
        sizes = self._merged(entries.payload_ends - entries.payload_begins, messages.value_sizes)
        null = self._number(MetadataField.NULL_VALUE, SingleField.NULL_VALUE) > 0
        return gathered(entries.words.data, begins, sizes, ~null)

    def _bytes(self, of_entry: MetadataField, of_message: SingleField) -> tuple[Spans, Bools]:
        """Where bytes are that a message of a batch has of its own, and which rows have them."""
        fields = self._messages.fields
        span, present = self._of_metadata(of_entry)
        own = fields.span(of_message)
        found = Spans(self._merged(span.begins, own.begins), self._merged(span.sizes, own.sizes))
        return found, self._merged(present, fields.present(of_message))

    def key(self) -> pa.Array:
        """The keys, decoded if they are in base64. Null without a key, and for a null key."""
        entries, fields = self._entries, self._messages.fields
        span, there = self._bytes(MetadataField.PARTITION_KEY, SingleField.PARTITION_KEY)
        null, encoded = (
            self._merged(entries.metadata.number(of_entry)[entries.chosen], fields.number(of_message)) > 0
            for of_entry, of_message in (
                (MetadataField.NULL_PARTITION_KEY, SingleField.NULL_PARTITION_KEY),
                (MetadataField.PARTITION_KEY_B64_ENCODED, SingleField.PARTITION_KEY_B64_ENCODED),
            )
        )
        found = gathered(entries.words.data, span.begins, span.sizes, there & ~null)
        return base64_decoded(found, encoded) if encoded.any() else found

    def ordering_key(self) -> pa.Array:
        """The keys by which ``Key_Shared`` subscriptions share. Null without one."""
        span, there = self._bytes(MetadataField.ORDERING_KEY, SingleField.ORDERING_KEY)
        return gathered(self._entries.words.data, span.begins, span.sizes, there)

    def topic(self) -> pa.Array:
        """The full name, of the partition."""
        return pa.repeat(pa.scalar(self._topic.full, pa.string()), len(self))

    def message_id(self) -> pa.Array:
        """The message ids, as Java's ``MessageId.toByteArray()``. The id of a chunked message names its first chunk,
        too."""
        entries = self._entries
        partition = self._topic.partition_index
        sizes = np.where(entries.is_batch, entries.counts, 0)
        found = message_id_bytes(
            entries.ledger_ids, entries.entry_ids, partition, sizes, self._owners, self._index_in_batch()
        )
        if entries.first_chunks:
            texts = found.to_pylist()
            for row, owner in enumerate(self._owners.tolist()):
                first = entries.first_chunks.get(owner)
                if first is not None:
                    number = -1 if partition is None else partition
                    place = int(entries.ledger_ids[owner]), int(entries.entry_ids[owner])
                    texts[row] = MessageIdData(*place, number, first_chunk=first).to_bytes()
            found = pa.array(texts, pa.binary())
        return found

    def publish_time(self) -> pa.Array:
        """When the producer sent the entry, by its clock."""
        return _times(self._entries.metadata.number(MetadataField.PUBLISH_TIME)[self._of_entries()])

    def event_time(self) -> pa.Array:
        """The time that the producer set for the message. Null without one, which Pulsar writes as 0."""
        found = self._number(MetadataField.EVENT_TIME, SingleField.EVENT_TIME)
        return _times(found, found > 0)

    def deliver_at(self) -> pa.Array:
        """When a delayed message is due. Null for others."""
        metadata, which = self._entries.metadata, self._of_entries()
        field = MetadataField.DELIVER_AT_TIME
        return _times(metadata.number(field)[which], metadata.present(field)[which])

    def encryption(self) -> pa.Array:
        """What is needed to decrypt ``value``. Null for messages that are not encrypted."""
        entries, which = self._entries, self._of_entries()
        there = encrypted_entries(entries.metadata)[which]
        if not there.any():
            return pa.nulls(len(self), ENCRYPTION)
        # An encrypted entry makes one row: its messages cannot be told apart.
        moved = entries.moved if isinstance(entries.moved, int) else entries.moved[self._owners[there]]
        found = encryption_column(entries.words, entries.metadata, which[there], moved, entries.error)
        return found.take(pa.array(np.cumsum(there) - 1, mask=~there))

    def properties(self) -> pa.Array:
        """Maps of text to text. If a key is repeated in one message, the last one counts. Raises the error of a
        malformed entry."""
        rows, pairs = self._pairs()
        if not len(rows):
            none = pa.array([], pa.string())
            return pa.MapArray.from_arrays(pa.array(np.zeros(len(self) + 1, np.int32)), none, none)
        read = FieldColumns(self._entries.words, pairs.begins, pairs.begins + pairs.sizes, spans=(_KEY, _VALUE))
        if read.malformed.any():
            owner = self._owners[rows[int(np.argmax(read.malformed))]]
            raise self._entries.error(int(self._entries.chosen[owner]), "a property that is not a protobuf message")
        data = self._entries.words.data
        keys, values = (
            text_of(gathered(data, span.begins, span.sizes, read.present(field))).fill_null("")
            for field, span in ((_KEY, read.span(_KEY)), (_VALUE, read.span(_VALUE)))
        )
        kept = last_of_equal(rows, keys)
        if kept is not None:
            rows, keys, values = rows[kept], keys.take(pa.array(kept)), values.take(pa.array(kept))
        offsets = np.searchsorted(rows, np.arange(len(self) + 1)).astype(np.int32)
        return pa.MapArray.from_arrays(pa.array(offsets), keys, values)

    def _pairs(self) -> tuple[Int64s, Spans]:
        """The properties of all rows: the row of each, ascending, and where it is."""
        entries = self._entries
        whole = entries.metadata.repeated(MetadataField.PROPERTIES)
        own = self._messages.fields.repeated(SingleField.PROPERTIES)
        if not len(whole.owners) and not len(own.owners):
            none = np.zeros(0, np.int64)
            return none, Spans(none, none)
        singles, batched = np.flatnonzero(~self._of_batch), np.flatnonzero(self._of_batch)
        of_entry, entry_rows = matched(whole.owners, self._of_entries()[singles], singles)
        of_message, message_rows = matched(
            own.owners, np.arange(len(self._messages.indexes))[self._in_batches()], batched
        )
        begins = whole.values.begins[of_entry]
        if not isinstance(entries.moved, int):
            begins = begins + entries.moved[self._owners[entry_rows]]
        rows = np.concatenate([entry_rows, message_rows])
        order = np.argsort(rows, kind="stable")
        begins = np.concatenate([begins, own.values.begins[of_message]])
        sizes = np.concatenate([whole.values.sizes[of_entry], own.values.sizes[of_message]])
        return rows[order], Spans(begins[order], sizes[order])

    def ledger_id(self) -> pa.Array:
        """The ledger of the entry. A chunked message is where its last chunk is."""
        return pa.array(self._entries.ledger_ids[self._owners], pa.int64())

    def entry_id(self) -> pa.Array:
        """The entry. A chunked message is where its last chunk is."""
        return pa.array(self._entries.entry_ids[self._owners], pa.int64())

    def _index_in_batch(self) -> Int64s:
        """The number of each message in its batch, or -1."""
        if self._batches_only:
            return self._messages.indexes[self._message]
        found = np.full(len(self), -1)
        found[self._of_batch] = self._messages.indexes[self._in_batches()]
        return found

    def batch_index(self) -> pa.Array:
        """The number of the message in its batch, from 0. Null if it is in none."""
        return _fixed(pa.int32(), self._index_in_batch().astype(np.int32), self._of_batch)

    def partition(self) -> pa.Array:
        """The number of the partition. Null if the topic has no partitions."""
        return pa.repeat(pa.scalar(self._topic.partition_index, pa.int32()), len(self))

    def sequence_id(self) -> pa.Array:
        """The producer's number of the message, as Java's signed long."""
        found = self._number(MetadataField.SEQUENCE_ID, SingleField.SEQUENCE_ID)
        return pa.array(found.view(np.int64), pa.int64())

    def producer_name(self) -> pa.Array:
        """The name of the producer. Empty if the entry has none."""
        if not len(self):
            return pa.array([], pa.string())
        first, last = int(self._owners[0]), int(self._owners[-1])
        span, present = self._of_metadata(MetadataField.PRODUCER_NAME)
        part = slice(first, last + 1)
        names = text_of(gathered(self._entries.words.data, span.begins[part], span.sizes[part], present[part]))
        names = names.fill_null("")
        return names if len(names) == len(self) else names.take(pa.array(self._owners - first))

    def schema_version(self) -> pa.Array:
        """The version of the message's schema. Null if it is absent or shorter than eight bytes."""
        span, _ = self._of_metadata(MetadataField.SCHEMA_VERSION)
        valid = span.sizes >= _VERSION_BYTES
        versions = np.zeros(len(valid), np.int64)
        versions[valid] = self._entries.words.big_endian_64(span.begins[valid])
        return _fixed(pa.int64(), versions[self._owners], valid[self._owners])

    def broker_time(self) -> pa.Array:
        """When the broker took the entry. Null if brokers do not add this."""
        found, present = self._of_broker(BrokerField.TIMESTAMP)
        return _times(found, present)

    def index(self) -> pa.Array:
        """The number of the message in its topic or partition, from 0. Null if brokers do not add this."""
        # The broker counts messages, and notes the number of the last one.
        found, present = self._of_broker(BrokerField.INDEX)
        behind = self._entries.counts[self._owners] - 1 - self._index_in_batch()
        return _fixed(pa.int64(), found.view(np.int64) - np.where(self._of_batch, behind, 0), present)

    def _of_broker(self, field: BrokerField) -> tuple[UInt64s, Bools]:
        broker, which = self._entries.broker, self._of_entries()
        if broker is None:
            return np.zeros(len(self), np.uint64), np.zeros(len(self), np.bool_)
        return broker.number(field)[which], broker.present(field)[which]


_Array = TypeVar("_Array", Int64s, UInt64s, Bools)
_KEY: Final = 1
_VALUE: Final = 2
_COLUMNS: Final[dict[str, Callable[[Rows], pa.Array]]] = {
    "value": Rows.value,
    "__key": Rows.key,
    "__topic": Rows.topic,
    "__messageId": Rows.message_id,
    "__publishTime": Rows.publish_time,
    "__eventTime": Rows.event_time,
    "__messageProperties": Rows.properties,
    "__ledgerId": Rows.ledger_id,
    "__entryId": Rows.entry_id,
    "__batchIndex": Rows.batch_index,
    "__partition": Rows.partition,
    "__sequenceId": Rows.sequence_id,
    "__producerName": Rows.producer_name,
    "__schemaVersion": Rows.schema_version,
    "__brokerTime": Rows.broker_time,
    "__index": Rows.index,
    "__orderingKey": Rows.ordering_key,
    "__deliverAt": Rows.deliver_at,
    "__encryption": Rows.encryption,
}


def _fixed(kind: pa.DataType, values: npt.NDArray[Any], valid: Bools | None = None) -> pa.Array:
    """Return numbers as an array, with nulls where they are not ``valid``."""
    bits = None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [bits, pa.py_buffer(np.ascontiguousarray(values))])


def _times(milliseconds: UInt64s, valid: Bools | None = None) -> pa.Array:
    """Return times. What does not fit Spark's type of times is null."""
    fits = milliseconds <= _MAX_MS
    micros = np.where(fits, milliseconds, np.uint64(0)).view(np.int64) * 1000
    return _fixed(TIME, micros, fits if valid is None else fits & valid)
