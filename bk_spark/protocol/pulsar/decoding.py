"""Turns the entries of a topic into Arrow's columns.

The metadata of all entries of a call is read first, and all that may end the call is checked: so a call either raises
and has changed nothing, or its batches follow. They are cut so that each has a bounded size once it is decompressed.
Entries that are not compressed are read where they are. If some are, all entries of a batch are put into a new buffer,
with their payloads decompressed, so that the rest of the code sees no difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from bk_spark.protocol.arrays import Bools, Int64s
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import InvalidArgumentError, MessageEncryptedError
from bk_spark.protocol.pulsar.choices import EncryptedPayloads
from bk_spark.protocol.pulsar.chunks import Chunk, ChunkAssembly, ChunkError, ChunksMissing
from bk_spark.protocol.pulsar.columns import schema_of
from bk_spark.protocol.pulsar.compression import Compression, CompressionError, decompress
from bk_spark.protocol.pulsar.messages.batches import SingleField, read_batches
from bk_spark.protocol.pulsar.messages.encryption_columns import encrypted_entries
from bk_spark.protocol.pulsar.messages.entries import Entries
from bk_spark.protocol.pulsar.messages.entry_frames import EntryFrames, MetadataField
from bk_spark.protocol.pulsar.messages.field_columns import FieldColumns
from bk_spark.protocol.pulsar.messages.gathering import MAX_BUFFER_BYTES
from bk_spark.protocol.pulsar.messages.needed_fields import METADATA_FIELDS, SINGLE_FIELDS
from bk_spark.protocol.pulsar.messages.rows import Rows
from bk_spark.protocol.pulsar.messages.words import PADDING_BYTES, Words
from bk_spark.protocol.pulsar.topics.topic_names import TopicName
from bk_spark.protocol.pulsar.transactions import ID_FIELDS, Position, TransactionId, TransactionMet, aborted_in

#: A batch has at most about this many bytes of payload and this many messages, unless one entry alone has more.
BATCH_BYTES: Final = 8 * 1024 * 1024
BATCH_ROWS: Final = 32_768
#: One message, without compression. Arrow's offsets have 32 bits, and the metadata lies beside it.
MAX_MESSAGE_BYTES: Final = 1024 * 1024 * 1024

_CONTROL_FIELDS: Final = (
    MetadataField.COMPRESSION,
    MetadataField.UNCOMPRESSED_SIZE,
    MetadataField.NUM_MESSAGES_IN_BATCH,
    MetadataField.ENCRYPTION_KEYS,
    MetadataField.MARKER_TYPE,
    *ID_FIELDS,
    MetadataField.NUM_CHUNKS,
    MetadataField.CHUNK_ID,
    MetadataField.TOTAL_CHUNK_MSG_SIZE,
    MetadataField.UUID,
)
_BROKER_COLUMNS: Final = frozenset({"__brokerTime", "__index"})


class MessageDecoder:
    """Decodes the entries of one topic, in order.

    Parameters
    ----------
    topic
        The topic, or one partition.
    columns
        Names of ``COLUMNS`` to make. Others are not decoded.
    max_message_bytes
        The most bytes of a batch or of a chunked message, decompressed.
    encrypted
        What to do with encrypted messages.
    aborted
        Transactions that were aborted: their messages make no rows. None if nothing is known about transactions.
    check_crc
        Check the checksums that producers made. BookKeeper's digest, which is checked anyway, covers the same bytes
        from the broker on.
    """

    def __init__(
        self,
        topic: TopicName,
        *,
        columns: frozenset[str],
        max_message_bytes: int,
        encrypted: EncryptedPayloads = EncryptedPayloads.FAIL,
        aborted: frozenset[TransactionId] | None = None,
        check_crc: bool = False,
    ) -> None:
        if not 0 < max_message_bytes <= MAX_MESSAGE_BYTES:
            raise InvalidArgumentError(f"a message may have 1 to {MAX_MESSAGE_BYTES} bytes, not {max_message_bytes}")
        self.aborted = aborted
        self._topic = topic
        self._schema = schema_of(columns)
        self._max_message_bytes = max_message_bytes
        self._encrypted = encrypted
        self._check_crc = check_crc
        self._chunks = ChunkAssembly(max_message_bytes)
        needed = [field for name in self._schema.names for field in METADATA_FIELDS.get(name, ())]
        self._metadata_fields = (*_CONTROL_FIELDS, *needed)
        single = [field for name in self._schema.names for field in SINGLE_FIELDS.get(name, ())]
        self._single_fields = (SingleField.COMPACTED_OUT, *single)
        self._repeats = frozenset(self._schema.names)

    def decode(
        self, ledger_id: int, first_entry_id: int, payloads: Payloads | Sequence[Buffer]
    ) -> Iterator[pa.RecordBatch]:
        """Decode consecutive entries of a ledger.

        Parameters
        ----------
        ledger_id, first_entry_id
            Where the first entry is.
        payloads
            The entries.

        Returns
        -------
        iterator
            The messages, in batches with the columns that were asked for. Take all of them before the next call.

        Raises
        ------
        MessageFormatError
            If an entry is not what Pulsar writes. It may also come from the iterator.
        MessageEncryptedError
            If a message is encrypted and that is to fail.
        TransactionMet
            If a message belongs to a transaction and nothing is known about transactions. Nothing has changed.
        ChunksMissing
            If the beginning of a chunked message is unknown: see :meth:`recall`. Nothing has changed.
        """
        count = len(payloads)
        return self.decode_at(np.full(count, ledger_id), np.arange(first_entry_id, first_entry_id + count), payloads)

    def decode_at(
        self, ledger_ids: Int64s, entry_ids: Int64s, payloads: Payloads | Sequence[Buffer]
    ) -> Iterator[pa.RecordBatch]:
        """Decode entries that need not be consecutive, such as those of a compacted ledger. See :meth:`decode`."""
        frames = EntryFrames(payloads, ledger_ids, entry_ids)
        if self._check_crc:
            frames.check_checksums()
        block = _Block(frames, self._metadata_fields)
        if self.aborted is None and block.in_transaction.any():
            index = int(np.argmax(block.in_transaction))
            raise TransactionMet(int(ledger_ids[index]), int(entry_ids[index]))
        block.drop(aborted_in(block.metadata, block.in_transaction, self.aborted or frozenset()))
        met = block.encrypted & ~block.dropped
        if met.any() and self._encrypted is EncryptedPayloads.FAIL:
            index = int(np.argmax(met))
            raise MessageEncryptedError(
                "the message is encrypted: set option pulsarEncrypted to skip or raw",
                ledger_id=int(ledger_ids[index]),
                entry_id=int(entry_ids[index]),
            )
        if self._encrypted is EncryptedPayloads.SKIP:
            block.drop(np.flatnonzero(met))
        missing = self._chunks.missing([block.chunk(index) for index in np.flatnonzero(block.chunked).tolist()])
        if missing:
            raise ChunksMissing(missing)
        return self._batches(block)

    def recall(self, ledger_id: int, first_entry_id: int, payloads: Payloads | Sequence[Buffer]) -> None:
        """Take entries from before those to decode, ascending, for the sake of their chunks. They make no rows.

        Parameters
        ----------
        ledger_id, first_entry_id
            Where the first entry is.
        payloads
            The entries.

        Raises
        ------
        MessageFormatError
            If an entry is not what Pulsar writes.
        """
        count = len(payloads)
        entry_ids = np.arange(first_entry_id, first_entry_id + count)
        block = _Block(EntryFrames(payloads, np.full(count, ledger_id), entry_ids), _CONTROL_FIELDS)
        block.drop(aborted_in(block.metadata, block.in_transaction, self.aborted or frozenset()))
        for index in np.flatnonzero(block.chunked).tolist():
            self._add_chunk(block, index)

    def leave_out(self, uuids: frozenset[bytes]) -> None:
        """Drop the chunks of these messages, whose first chunks do not exist any more.

        Parameters
        ----------
        uuids
            Those of :class:`ChunksMissing`.
        """
        self._chunks.leave_out(uuids)

    def _batches(self, block: _Block) -> Iterator[pa.RecordBatch]:
        broker = None
        if _BROKER_COLUMNS & self._repeats and block.frames.has_broker_metadata.any():
            broker = block.frames.broker_metadata()
        for first, last in _cuts(block.sizes(), BATCH_BYTES, block.rows(), BATCH_ROWS):
            entries = self._restored(block, first, last, broker)
            rows = self._rows(entries)
            for begin, end in _cuts(rows.repeated_bytes(self._repeats), BATCH_BYTES):
                yield rows.part(begin, end).record_batch(self._schema)

    def _rows(self, entries: Entries) -> Rows:
        batches = np.flatnonzero(entries.is_batch)
        messages = read_batches(
            entries.words,
            entries.payload_begins[batches],
            entries.payload_ends[batches],
            entries.counts[batches],
            self._single_fields,
            lambda index, problem: entries.error(int(entries.chosen[batches[index]]), problem),
        )
        return Rows(self._topic, entries, messages)

    def _restored(self, block: _Block, first: int, last: int, broker: FieldColumns | None) -> Entries:
        """Return the entries from ``first`` to ``last`` that make rows, with their payloads restored."""
        frames = block.frames
        chosen = first + np.flatnonzero(~block.dropped[first:last])
        packed = (block.chunked | block.compressed)[chosen]
        words, moved = frames.words, np.zeros(len(chosen), np.int64)
        begins, ends = frames.payload_begins[chosen], frames.ends[chosen]
        first_chunks: dict[int, Position] = {}
        if packed.any():
            parts: list[Buffer] = []
            kept: list[int] = []
            places: list[tuple[int, int, int]] = []
            at, data = 0, memoryview(frames.data)
            for index, is_packed in zip(chosen.tolist(), packed.tolist(), strict=True):
                begin, payload, end = (
                    int(frames.begins[index]),
                    int(frames.payload_begins[index]),
                    int(frames.ends[index]),
                )
                restored: Buffer = data[payload:end]
                if is_packed:
                    whole = self._payload(block, index, data[payload:end])
                    if whole is None:
                        continue
                    if whole[0] is not None:
                        first_chunks[len(kept)] = whole[0]
                    restored = whole[1]
                kept.append(index)
                parts += (data[begin:payload], restored)
                places.append((at - begin, at + payload - begin, at + payload - begin + len(restored)))
                at = places[-1][2]
            if at > MAX_BUFFER_BYTES - PADDING_BYTES:
                raise frames.error(int(chosen[0]), f"{at} bytes in all, once they are decompressed")
            chosen = np.array(kept, np.int64)
            moved, begins, ends = np.array(places, np.int64).reshape(-1, 3).T
            words = Words(b"".join((*parts, bytes(PADDING_BYTES))))
        return Entries(
            words=words,
            ledger_ids=frames.ledger_ids[chosen],
            entry_ids=frames.entry_ids[chosen],
            metadata=block.metadata,
            chosen=chosen,
            moved=moved,
            payload_begins=begins,
            payload_ends=ends,
            counts=block.counts[chosen],
            is_batch=block.is_batch[chosen],
            broker=broker,
            first_chunks=first_chunks,
            error=frames.error,
        )

    def _payload(self, block: _Block, index: int, stored: memoryview) -> tuple[Position | None, Buffer] | None:
        """Return where a message begins if it was chunked, and its payload; None for a chunk that is not the last."""
        first: Position | None = None
        payload: Buffer = stored
        if block.chunked[index]:
            whole = self._add_chunk(block, index)
            if whole is None:
                return None
            first, payload = whole
        try:
            size = int(block.metadata.number(MetadataField.UNCOMPRESSED_SIZE)[index])
            codec = int(block.metadata.number(MetadataField.COMPRESSION)[index])
            return first, decompress(codec, payload, size, self._max_message_bytes)
        except CompressionError as problem:
            raise block.frames.error(index, f"a payload that cannot be decompressed: {problem}") from problem

    def _add_chunk(self, block: _Block, index: int) -> tuple[Position, bytes] | None:
        frames = block.frames
        try:
            return self._chunks.add(
                block.chunk(index), bytes(frames.data[int(frames.payload_begins[index]) : int(frames.ends[index])])
            )
        except ChunkError as problem:
            raise frames.error(index, str(problem)) from problem


class _Block:
    """The entries of one call, and what their metadata says about reading them."""

    def __init__(self, frames: EntryFrames, fields: Sequence[MetadataField]) -> None:
        self.frames = frames
        metadata = self.metadata = frames.metadata(fields)
        self.encrypted: Bools = encrypted_entries(metadata)
        #: Markers are entries of the broker's, without messages.
        self.dropped: Bools = metadata.present(MetadataField.MARKER_TYPE).copy()
        self.in_transaction: Bools = metadata.present(MetadataField.TXNID_MOST_BITS) & ~self.dropped
        self.counts: Int64s = metadata.signed(MetadataField.NUM_MESSAGES_IN_BATCH)
        self.is_batch: Bools = metadata.present(MetadataField.NUM_MESSAGES_IN_BATCH) & ~self.encrypted
        self.compressed: Bools = (metadata.number(MetadataField.COMPRESSION) != Compression.NONE) & ~self.encrypted

    @property
    def chunked(self) -> Bools:
        """Which entries are chunks of a larger message. Chunks are encrypted one by one."""
        return (self.metadata.signed(MetadataField.NUM_CHUNKS) > 1) & ~self.encrypted & ~self.dropped

    def drop(self, indexes: Int64s) -> None:
        """Drop these entries: they make no rows."""
        self.dropped[indexes] = True

    def chunk(self, index: int) -> Chunk:
        """Return what a chunk's metadata says."""
        uuid = self.metadata.span(MetadataField.UUID)
        begin = int(uuid.begins[index])
        return Chunk(
            Position(int(self.frames.ledger_ids[index]), int(self.frames.entry_ids[index])),
            bytes(self.frames.data[begin : begin + int(uuid.sizes[index])]),
            int(self.metadata.signed(MetadataField.CHUNK_ID)[index]),
            int(self.metadata.signed(MetadataField.NUM_CHUNKS)[index]),
            int(self.metadata.signed(MetadataField.TOTAL_CHUNK_MSG_SIZE)[index]),
        )

    def sizes(self) -> Int64s:
        """How many bytes the payload of each entry has once it is restored, according to its writer."""
        claimed = self.metadata.signed(MetadataField.UNCOMPRESSED_SIZE)
        stored = self.frames.ends - self.frames.begins
        restored = np.where(self.compressed, np.clip(claimed, 0, MAX_MESSAGE_BYTES), stored)
        chunks = self.chunked
        if chunks.any():
            # Only the last chunk makes a row, but which one that is depends on what came before.
            total = np.clip(self.metadata.signed(MetadataField.TOTAL_CHUNK_MSG_SIZE), 0, MAX_MESSAGE_BYTES)
            restored[chunks] = np.maximum(restored, total)[chunks]
        return restored

    def rows(self) -> Int64s:
        """How many rows each entry makes, as far as its writer says."""
        return np.where(self.is_batch, np.clip(self.counts, 0, MAX_BUFFER_BYTES), 1)


def _cuts(
    sizes: Int64s, most: int, other_sizes: Int64s | None = None, other_most: int = 0
) -> Iterator[tuple[int, int]]:
    """Yield ranges in which the sizes add up to at most ``most``, and the other sizes to at most ``other_most``.

    A range has at least one element.
    """
    sums = np.cumsum(sizes)
    other_sums = None if other_sizes is None else np.cumsum(other_sizes)
    first, count = 0, len(sizes)
    while first < count:
        last = int(np.searchsorted(sums, most + (sums[first - 1] if first else 0), side="right"))
        if other_sums is not None:
            before = other_sums[first - 1] if first else 0
            last = min(last, int(np.searchsorted(other_sums, other_most + before, side="right")))
        last = max(last, first + 1)
        yield first, last
        first = last
