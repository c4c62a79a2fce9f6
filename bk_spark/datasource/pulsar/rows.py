"""Reads one task's messages as Arrow record batches. Used by batches and streams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from bk_spark.datasource.entries.packed_partition import PackedPartition
from bk_spark.datasource.entries.schemas import arrow_schema
from bk_spark.datasource.entries.split_rows import read_pieces
from bk_spark.datasource.options.options import SourceOptions
from bk_spark.datasource.options.pulsar_options import Values
from bk_spark.datasource.pulsar.places import bookies_of, opened, stores_of
from bk_spark.datasource.pulsar.positions import Edges
from bk_spark.log.entries.entry_rows import as_batch
from bk_spark.log.entries.pieces import Pieces
from bk_spark.log.entries.schema_checks import VALUE
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.pulsar.chunks import ChunksMissing
from bk_spark.protocol.pulsar.decoding import MessageDecoder
from bk_spark.protocol.pulsar.topics.compaction import originals
from bk_spark.protocol.pulsar.topics.topic_names import TopicName
from bk_spark.protocol.pulsar.transactions import Position, TransactionId
from bk_spark.pulsar.compacted import COMPACTED_PASSWORD
from bk_spark.pulsar.entry_numbers import EntryNumbers
from bk_spark.pulsar.messages import MessageReader

if TYPE_CHECKING:
    from bk_spark.datasource.pulsar.decoded_values import DecodedValues

#: The largest message, decompressed and joined from its chunks. Brokers accept entries of 5 MiB.
MAX_MESSAGE_BYTES: Final = 256 * 1024 * 1024
#: Entries of this many bytes are decoded together: each call has a fixed cost.
_DECODED_BYTES: Final = 3 * 1024 * 1024 // 2
_POSITION: Final = ("__ledgerId", "__entryId", "__batchIndex")
_TIME: Final = "__publishTime"


@dataclass
class TopicSplit(PackedPartition):
    """What one task reads. Self-contained, as a split of logs is.

    ``aborted`` has, for each topic that may have transactions, those whose messages are left out. ``edges`` has what is
    left out at the ends of the read, for the topics that need it. ``is_compacted``: the ledgers are those that
    compaction made.
    """

    pieces: Pieces
    aborted: dict[str, frozenset[TransactionId]] = field(default_factory=dict)
    edges: dict[str, Edges] = field(default_factory=dict)
    is_compacted: bool = False


def read_topic_split(options: SourceOptions, schema: StructType, split: TopicSplit) -> Iterator[pa.RecordBatch]:
    """Yield the messages of one split, in exactly the Arrow form of ``schema``.

    Raises LogRangeGoneError if a ledger was deleted since the split was planned (with failOnDataLoss false, its entries
    are skipped with a warning), MessageFormatError for entries that are no messages, MessageEncryptedError.
    """
    rows = {name: _TopicRows(options, arrow_schema(schema), name, split) for name in split.pieces.logs}

    def decode(payloads: Payloads, pieces: Pieces) -> Iterator[pa.RecordBatch]:
        start = 0
        for piece in pieces:
            assert piece.log is not None
            yield from rows[piece.log].of(piece.ledger_id, piece.first, payloads.part(start, start + piece.entries))
            start += piece.entries

    password = COMPACTED_PASSWORD if split.is_compacted else options.password()
    yield from read_pieces(options, split.pieces, decode, password, _DECODED_BYTES)


class _TopicRows:
    """Turns entries of one topic into batches of ``schema``."""

    def __init__(self, options: SourceOptions, schema: pa.Schema, name: str, split: TopicSplit) -> None:
        topic = TopicName.parse(name)
        self._topic = topic
        self._schema = schema
        self._edges = split.edges.get(name, Edges())
        columns = set(schema.names)
        if self._edges.first is not None or self._edges.last is not None:
            columns.update(_POSITION)
        if self._edges.since_ms is not None or self._edges.until_ms is not None:
            columns.add(_TIME)

        self._values: DecodedValues | None = None
        if options.pulsar_values is Values.SCHEMA and VALUE in columns:
            from bk_spark.datasource.pulsar.decoded_values import DecodedValues

            self._values = DecodedValues(options, topic, schema.field(VALUE).type)
            columns.update(self._values.columns)

        def numbers() -> EntryNumbers:
            (found,) = opened(options, stores_of(options), [topic]).values()
            return found.numbers

        decoder = self._decoder = MessageDecoder(
            topic,
            columns=frozenset(columns),
            max_message_bytes=MAX_MESSAGE_BYTES,
            encrypted=options.pulsar_encrypted,
            # Compaction takes no messages of aborted or open transactions.
            aborted=frozenset() if split.is_compacted else split.aborted.get(name),
            check_crc=options.pulsar_check_crc,
        )
        self._is_compacted = split.is_compacted
        self._reader = MessageReader(
            topic,
            decoder,
            bookies_of(options),
            options.password(),
            numbers,
            fail_on_data_loss=options.fail_on_data_loss,
        )

    def of(self, ledger_id: int, first_entry_id: int, payloads: Payloads) -> Iterator[pa.RecordBatch]:
        """Yield the rows of consecutive entries of a ledger."""
        where = f"topic {self._topic.full}, entries from {first_entry_id} of ledger {ledger_id}"
        batches = self._originals if self._is_compacted else self._reader.batches
        for batch in batches(ledger_id, first_entry_id, payloads):
            kept = self._without_edges(batch)
            if kept.num_rows:
                yield self._projected(kept, where)

    def _originals(self, ledger_id: int, first_entry_id: int, payloads: Payloads) -> Iterator[pa.RecordBatch]:
        """Yield the messages in entries of a compacted ledger."""
        found = originals(ledger_id, first_entry_id, payloads)
        try:
            rows = self._decoder.decode_at(*found)
        except ChunksMissing as missing:
            # Compaction does not know chunks. It keeps the last chunk of a message, which is not a message by itself.
            self._decoder.leave_out(missing.uuids)
            rows = self._decoder.decode_at(*found)
        yield from rows

    def _without_edges(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        edges = self._edges
        if edges.is_empty:
            return batch
        keep = np.ones(batch.num_rows, np.bool_)
        if edges.first is not None:
            keep &= ~_before(batch, *edges.first)
        if edges.last is not None:
            keep &= _before(batch, *edges.last)
        if edges.since_ms is not None or edges.until_ms is not None:
            times = batch.column(_TIME).cast(pa.int64()).to_numpy(zero_copy_only=False)
            if edges.since_ms is not None:
                keep &= times >= edges.since_ms * 1000
            if edges.until_ms is not None:
                keep &= times < edges.until_ms * 1000
        return batch if keep.all() else batch.filter(pa.array(keep))

    def _projected(self, batch: pa.RecordBatch, where: str) -> pa.RecordBatch:
        columns = []
        for one in self._schema:
            if one.name == VALUE and self._values is not None:
                columns.append(self._values.of(batch))
            else:
                columns.append(_as_text(batch.column(one.name), one, where))
        return as_batch(columns, self._schema, where)


def _as_text(column: pa.Array, wanted: pa.Field, where: str) -> pa.Array:
    """Return a binary column that is read as a string. Raises InvalidArgumentError if it is not UTF-8."""
    if column.type != pa.binary() or wanted.type != pa.string():
        return column
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise InvalidArgumentError(
            f"column {wanted.name} is not UTF-8 in {where}: read it as binary, not as string"
        ) from error


def _before(batch: pa.RecordBatch, position: Position, index: int) -> npt.NDArray[np.bool_]:
    """Return which messages come before message ``index`` of an entry."""
    ledgers, entries, batches = (batch.column(name) for name in _POSITION)
    ledger_ids, entry_ids = ledgers.to_numpy(zero_copy_only=False), entries.to_numpy(zero_copy_only=False)
    indexes = pc.fill_null(batches, 0).to_numpy(zero_copy_only=False)
    same = ledger_ids == position.ledger_id
    found: npt.NDArray[np.bool_] = (
        (ledger_ids < position.ledger_id)
        | (same & (entry_ids < position.entry_id))
        | (same & (entry_ids == position.entry_id) & (indexes < index))
    )
    return found
