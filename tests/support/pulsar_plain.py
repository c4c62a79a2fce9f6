"""A plain decoder of a topic's entries, one message at a time: what the product's must agree with.

It uses the product's reader of single messages (``fields``), never that of many (``field_columns``).
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any

from bk_spark.protocol.pulsar.compression import Compression, CompressionError, decompress
from bk_spark.protocol.pulsar.fields import FieldError, Fields
from bk_spark.protocol.pulsar.message_ids import MessageIdData
from bk_spark.protocol.pulsar.topics.topic_names import TopicName
from bk_spark.protocol.pulsar.transactions import Position


class PlainError(Exception):
    """An entry is not what Pulsar writes."""


class PlainDecoder:
    """Decodes entries of one topic. Raw encrypted payloads, and no transactions."""

    def __init__(self, topic: TopicName, max_message_bytes: int) -> None:
        self._topic = topic
        self._max_message_bytes = max_message_bytes
        self._open: dict[bytes, list[tuple[Position, bytes]]] = {}

    def rows(self, ledger_id: int, first_entry_id: int, payloads: Sequence[bytes]) -> list[dict[str, Any]]:
        """The rows of consecutive entries."""
        try:
            return [
                row
                for entry_id, payload in enumerate(payloads, first_entry_id)
                for row in self._rows(ledger_id, entry_id, *_parts(payload))
            ]
        except (FieldError, CompressionError) as error:
            raise PlainError(str(error)) from error

    def _chunk(self, ledger: int, entry: int, meta: Fields, part: bytes) -> tuple[Position, bytes] | None:
        uuid = meta.data(26) or b""
        if meta.number(29) == 0:
            self._open[uuid] = []
        parts = self._open.get(uuid)
        if parts is None or meta.number(29) < len(parts):
            return None
        if meta.number(29) > len(parts):
            del self._open[uuid]
            return None
        parts.append((Position(ledger, entry), part))
        if meta.number(29) < meta.number(27) - 1:
            return None
        del self._open[uuid]
        whole = b"".join(part for _, part in parts)
        if meta.number(28) not in (0, len(whole)) or len(whole) > self._max_message_bytes:
            raise FieldError("chunks of another size")
        return parts[0][0], whole

    def _rows(
        self, ledger: int, entry: int, broker: Fields | None, meta: Fields, part: bytes
    ) -> Iterator[dict[str, Any]]:
        _check_kinds(
            meta, (2, 3, 8, 9, 11, 12, 17, 19, 20, 22, 23, 25, 27, 28, 29, 30), (1, 6, 13, 14, 15, 16, 18, 26), ()
        )
        if 20 in meta:
            return
        first = None
        encrypted = 13 in meta
        if meta.number(27) > 1 and not encrypted:
            whole = self._chunk(ledger, entry, meta, part)
            if whole is None:
                return
            first, part = whole
        data = part
        if not encrypted:
            data = bytes(decompress(meta.number(8), part, meta.number(9), self._max_message_bytes))
        if 11 not in meta or encrypted:
            yield self._row(ledger, entry, broker, meta, meta, data, -1, 0, first)
            return
        at, count = 0, meta.number(11)
        for index in range(count):
            if at + 4 > len(data):
                raise FieldError("too few messages")
            size = int.from_bytes(data[at : at + 4], "big")
            one = Fields(data[at + 4 : at + 4 + size])
            if 3 not in one or at + 4 + size + one.number(3) > len(data):
                raise FieldError("a message of a batch has no size, or is too long")
            at += 4 + size
            value = data[at : at + one.number(3)]
            at += one.number(3)
            _check_kinds(one, (3, 4, 5, 6, 8, 9, 10), (2, 7), (1,))
            if not one.number(4):
                yield self._row(ledger, entry, broker, meta, one, value, index, count, first)
        if at != len(data):
            raise FieldError("lengths do not add up")

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
            key = _decoded(key)
        if one.number(10 if batch else 30):
            key = None
        null = one.number(null_of) if null_of in one else meta.number(25)
        event = one.number(5) if batch and 5 in one else meta.number(12)
        sequence = one.signed(8) if batch and 8 in one else meta.signed(2)
        version = meta.data(16)
        number = self._topic.partition_index
        ids = MessageIdData(ledger, entry, -1 if number is None else number, index, count, first)
        broker_time = None if broker is None or 1 not in broker else broker.number(1)
        last = None if broker is None or 2 not in broker else broker.signed(2) - (max(count, 1) - 1 - max(index, 0))
        return {
            "value": None if null else value,
            "__key": key,
            "__topic": self._topic.full,
            "__messageId": ids.to_bytes(),
            "__publishTime": _time(meta.number(3)),
            "__eventTime": _time(event or None),
            "__messageProperties": list(one.texts(properties_of).items()),
            "__ledgerId": ledger,
            "__entryId": entry,
            "__batchIndex": index if index >= 0 else None,
            "__partition": number,
            "__sequenceId": sequence,
            "__producerName": meta.text(1),
            "__schemaVersion": None
            if not version or len(version) < 8
            else int.from_bytes(version[:8], "big", signed=True),
            "__brokerTime": _time(broker_time),
            "__index": None if last is None else (last + 2**63) % 2**64 - 2**63,
            "__orderingKey": one.data(7 if batch else 18),
            "__deliverAt": _time(meta.number(19)) if 19 in meta else None,
            "__encryption": _encryption(meta) if 13 in meta else None,
        }


def _encryption(meta: Fields) -> dict[str, Any]:
    codec, count = meta.number(8), meta.number(11)
    return {
        "keys": list({one.text(1): one.data(2) for one in meta.messages(13)}.items()),
        "param": meta.data(15),
        "algorithm": None if 14 not in meta else meta.text(14),
        "compression": Compression(codec).name if codec in list(Compression) else None,
        "uncompressedSize": meta.number(9) % 2**32,
        "batchSize": None if 11 not in meta else (count + 2**31) % 2**32 - 2**31,
    }


def _check_kinds(message: Fields, numbers: Sequence[int], data: Sequence[int], messages: Sequence[int]) -> None:
    """Refuse fields that are there as something else."""
    for number in numbers:
        message.number(number)
    for number in data:
        message.data(number)
    for number in messages:
        message.messages(number)


def _time(milliseconds: int | None) -> int | None:
    """Microseconds, or None if they do not fit Spark's."""
    return None if milliseconds is None or milliseconds > (2**63) // 1000 else milliseconds * 1000


def _decoded(key: bytes) -> bytes:
    try:
        return base64.b64decode(key, validate=True)
    except ValueError:
        return key


def _parts(raw: bytes) -> tuple[Fields | None, Fields, bytes]:
    """The broker's metadata, the message's, and the payload."""
    broker, at = None, 0
    if raw[:2] == b"\x0e\x02":
        size = int.from_bytes(raw[2:6], "big")
        at = 6 + size
        _check(at <= len(raw))
        broker = Fields(raw[6:at])
        _check_kinds(broker, (1, 2), (), ())
    if raw[at : at + 2] == b"\x0e\x01":
        at += 6
    size = int.from_bytes(raw[at : at + 4], "big")
    _check(at + 4 + size <= len(raw))
    return broker, Fields(raw[at + 4 : at + 4 + size]), raw[at + 4 + size :]


def _check(sound: bool) -> None:
    if not sound:
        raise FieldError("a part is longer than the entry")
