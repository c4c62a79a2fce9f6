"""Turns entries of a topic into Arrow's columns."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

import pyarrow as pa

from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import MessageEncryptedError, MessageFormatError
from bk_spark.protocol.pulsar.chunks import ChunksMissing
from bk_spark.protocol.pulsar.columns import schema_of
from bk_spark.protocol.pulsar.compression import CompressionError, decompress
from bk_spark.protocol.pulsar.fields import FieldError, Fields
from bk_spark.protocol.pulsar.message_ids import MessageIdData
from bk_spark.protocol.pulsar.topic_names import TopicName
from bk_spark.protocol.pulsar.transactions import Position, TransactionId, TransactionMet


class EncryptedPayloads(Enum):
    """What becomes of encrypted messages."""

    FAIL = "fail"
    SKIP = "skip"
    RAW = "raw"


class MessageDecoder:
    """Decodes the entries of one topic, in order."""

    def __init__(
        self,
        topic: TopicName,
        *,
        columns: frozenset[str],
        max_message_bytes: int,
        encrypted: EncryptedPayloads = EncryptedPayloads.FAIL,
        aborted: frozenset[TransactionId] | None = None,
    ) -> None:
        self.aborted = aborted
        self._topic = topic
        self._schema = schema_of(columns)
        self._max_message_bytes = max_message_bytes
        self._encrypted = encrypted
        self._open: dict[bytes, list[tuple[Position, bytes]]] = {}
        self._left_out: set[bytes] = set()

    def decode(
        self, ledger_id: int, first_entry_id: int, payloads: Payloads | Sequence[Buffer]
    ) -> Iterator[pa.RecordBatch]:
        """Decode consecutive entries."""
        parsed = [(ledger_id, first_entry_id + n, *self._parsed(bytes(p))) for n, p in enumerate(payloads)]
        missing: set[bytes] = set()
        known = {uuid: len(parts) for uuid, parts in self._open.items()}
        for ledger, entry, _, meta, _ in parsed:
            if 23 in meta and self.aborted is None:
                raise TransactionMet(ledger, entry)
            if meta.number(27) > 1:
                uuid = meta.data(26) or b""
                if meta.number(29) == 0:
                    known[uuid] = 1
                elif uuid not in known and uuid not in self._left_out:
                    missing.add(uuid)
        if missing:
            raise ChunksMissing(frozenset(missing))
        return self._batches(parsed)

    def recall(self, ledger_id: int, first_entry_id: int, payloads: Payloads | Sequence[Buffer]) -> None:
        """Take earlier entries, ascending: chunks only."""
        for n, payload in enumerate(payloads):
            _, meta, part = self._parsed(bytes(payload))
            if meta.number(27) > 1 and (23 not in meta or 20 not in meta):
                self._chunk(ledger_id, first_entry_id + n, meta, part)

    def leave_out(self, uuids: frozenset[bytes]) -> None:
        """Chunks of these messages make no rows."""
        self._left_out |= uuids

    def _parsed(self, raw: bytes) -> tuple[Fields | None, Fields, bytes]:
        try:
            broker = None
            at = 0
            if raw[:2] == b"\x0e\x02":
                size = int.from_bytes(raw[2:6], "big")
                broker = Fields(raw[6 : 6 + size])
                at = 6 + size
            if raw[at : at + 2] == b"\x0e\x01":
                at += 6
            size = int.from_bytes(raw[at : at + 4], "big")
            return broker, Fields(raw[at + 4 : at + 4 + size]), raw[at + 4 + size :]
        except FieldError as error:
            raise MessageFormatError(f"no message of Pulsar: {error}") from error

    def _chunk(self, ledger: int, entry: int, meta: Fields, part: bytes) -> tuple[Position, bytes] | None:
        uuid = meta.data(26) or b""
        if meta.number(29) == 0:
            self._open[uuid] = []
        parts = self._open.get(uuid)
        if parts is None or meta.number(29) < len(parts):
            return None
        if meta.number(29) > len(parts):
            del self._open[uuid]
            self._left_out.add(uuid)
            return None
        parts.append((Position(ledger, entry), part))
        if meta.number(29) < meta.number(27) - 1:
            return None
        del self._open[uuid]
        return parts[0][0], b"".join(p for _, p in parts)

    def _batches(self, parsed: list[tuple[int, int, Fields | None, Fields, bytes]]) -> Iterator[pa.RecordBatch]:
        rows = [row for one in parsed for row in self._rows(*one)]
        if rows:
            table = pa.Table.from_pylist(rows, self._schema)
            yield from table.combine_chunks().to_batches()

    def _rows(
        self, ledger: int, entry: int, broker: Fields | None, meta: Fields, part: bytes
    ) -> Iterator[dict[str, Any]]:
        if 20 in meta:
            return
        if 23 in meta and TransactionId(meta.number(23), meta.number(22)) in (self.aborted or ()):
            return
        first = None
        encrypted = 13 in meta
        if encrypted and self._encrypted is EncryptedPayloads.FAIL:
            raise MessageEncryptedError("the message is encrypted", ledger_id=ledger, entry_id=entry)
        if encrypted and self._encrypted is EncryptedPayloads.SKIP:
            return
        if meta.number(27) > 1 and not encrypted:
            whole = self._chunk(ledger, entry, meta, part)
            if whole is None:
                return
            first, part = whole
        data = part
        if not encrypted:
            try:
                data = bytes(decompress(meta.number(8), part, meta.number(9), self._max_message_bytes))
            except CompressionError as error:
                raise MessageFormatError(str(error), ledger_id=ledger, entry_id=entry) from error
        if 11 not in meta or encrypted:
            yield self._row(ledger, entry, broker, meta, meta, data, -1, 0, first)
            return
        at, count = 0, meta.number(11)
        for index in range(count):
            try:
                size = int.from_bytes(data[at : at + 4], "big")
                one = Fields(data[at + 4 : at + 4 + size])
                if 3 not in one:
                    raise FieldError("a message of a batch has no size")
            except FieldError as error:
                raise MessageFormatError(f"corrupt batch: {error}", ledger_id=ledger, entry_id=entry) from error
            at += 4 + size
            value = data[at : at + one.number(3)]
            at += one.number(3)
            if not one.number(4):
                yield self._row(ledger, entry, broker, meta, one, value, index, count, first)
        if at != len(data):
            raise MessageFormatError("corrupt batch: lengths do not add up", ledger_id=ledger, entry_id=entry)

    def _row(
        self,
        ledger: int,
        entry: int,
        broker: Fields | None,
        meta: Fields,
        one: Fields,
        value: bytes,
        index: int,
        count: int,
        first: Position | None,
    ) -> dict[str, Any]:
        batch = one is not meta
        key_of, properties_of, null_of = (2, 1, 9) if batch else (6, 4, 25)
        key = one.data(key_of)
        if key is not None and one.number(6 if batch else 17):
            key = base64.b64decode(key)
        if one.number(10 if batch else 30):
            key = None
        null = one.number(null_of) if null_of in one else meta.number(25)
        event = one.number(5) if batch and 5 in one else meta.number(12)
        sequence = one.signed(8) if batch and 8 in one else meta.signed(2)
        version = meta.data(16)
        number = self._topic.partition_index
        ids = MessageIdData(ledger, entry, -1 if number is None else number, index, count, first)
        broker_time = None if broker is None or 1 not in broker else broker.number(1) * 1000
        last = None if broker is None or 2 not in broker else broker.signed(2)
        return {
            "value": None if null else value,
            "__key": key,
            "__topic": self._topic.full,
            "__messageId": ids.to_bytes(),
            "__publishTime": meta.number(3) * 1000,
            "__eventTime": event * 1000 or None,
            "__messageProperties": list(one.texts(properties_of).items()),
            "__ledgerId": ledger,
            "__entryId": entry,
            "__batchIndex": index if index >= 0 else None,
            "__partition": number,
            "__sequenceId": sequence,
            "__producerName": meta.text(1),
            "__schemaVersion": None if not version or len(version) < 8 else int.from_bytes(version[:8], "big"),
            "__brokerTime": broker_time,
            "__index": None if last is None else last - (max(count, 1) - 1 - max(index, 0)),
        }
