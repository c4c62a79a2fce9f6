"""Measures how fast entries of Pulsar's topics become Arrow columns, on one core, beside protobuf's Python package.

The peer parses the metadata of each message with google.protobuf's generated classes (upb), as the Java client's wire
format has it, and makes the same columns of lists. Values have 100 bytes on average. Decoder and peer
take turns, and the fastest of the rounds counts: other programs share the machine.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from benchmarks.report import figure
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.pulsar.columns import COLUMNS
from bk_spark.protocol.pulsar.decoding import MessageDecoder
from bk_spark.protocol.pulsar.message_ids import MessageIdData
from bk_spark.protocol.pulsar.topics.topic_names import TopicName
from tests.support.pulsar_entries import NOW, batch, entry, metadata, single

NAME: Final = "pulsar_decode"
_TOPIC: Final = TopicName.parse("public/default/orders")
_VALUE_BYTES: Final = 100
_AIM: Final = 1_000_000
_MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
#: Columns of a read: the value alone, some, and all.
_READS: Final = {
    "value": frozenset({"value"}),
    "some": frozenset({"value", "__key", "__publishTime", "__eventTime"}),
    "all": frozenset(COLUMNS.names),
}


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {NAME}", description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    for name, entries in _entries(options.messages).items():
        for read, columns in _READS.items():
            _measure(name, read, Payloads.of(entries), columns, options.messages, options.rounds)


def _entries(messages: int) -> dict[str, list[bytes]]:
    chance = random.Random(1)
    even = [chance.randbytes(_VALUE_BYTES) for _ in range(messages)]
    uneven = [chance.randbytes(chance.randrange(50, 151)) for _ in range(messages)]
    keys = [{2: b"key-%d" % chance.randrange(1000), 6: 0, 8: index} for index in range(messages)]
    plain = [{8: index} for index in range(messages)]
    return {
        "batches_1000.even": _batches(even, plain, 1000),
        "batches_1000.uneven": _batches(uneven, plain, 1000),
        "batches_1000.keys": _batches(uneven, keys, 1000),
        "batches_1000.lz4": _batches(uneven, keys, 1000, codec=1),
        "batches_10.keys": _batches(uneven, keys, 10),
        "single.keys": [
            entry(metadata({2: index, 6: b"key-%d" % (index % 1000), 9: len(value), 17: 0}), value)
            for index, value in enumerate(uneven)
        ],
    }


def _batches(values: list[bytes], fields: list[dict[int, Any]], size: int, codec: int = 0) -> list[bytes]:
    messages = [single(value, more) for value, more in zip(values, fields, strict=True)]
    return [
        batch(messages[first : first + size], {2: first, 3: NOW + first, 24: first + size - 1}, codec=codec)
        for first in range(0, len(messages), size)
    ]


def _measure(name: str, read: str, payloads: Payloads, columns: frozenset[str], messages: int, rounds: int) -> None:
    decoder = MessageDecoder(_TOPIC, columns=columns, max_message_bytes=_MAX_MESSAGE_BYTES)

    def ours() -> int:
        return sum(one.num_rows for one in decoder.decode(7, 0, payloads))

    def peer() -> int:
        return len(_peer_rows(payloads, read))

    assert ours() == peer() == messages
    fastest: dict[Callable[[], int], float] = dict.fromkeys((ours, peer), float("inf"))
    for _ in range(rounds):
        for work in (ours, peer):
            fastest[work] = min(fastest[work], _cpu_seconds(work))
    rate, peer_rate = messages / fastest[ours], messages / fastest[peer]
    figure(
        NAME,
        f"{name}.{read}",
        rate,
        "messages/s and core",
        aim=_AIM,
        peer=round(peer_rate),
        ratio=round(rate / peer_rate, 2),
    )


def _cpu_seconds(work: Callable[[], int]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def _message_classes() -> tuple[Any, Any]:
    """Classes with the fields of MessageMetadata and SingleMessageMetadata that the columns need."""
    kinds = descriptor_pb2.FieldDescriptorProto
    fields = {
        "Metadata": [
            *((1, "producer_name", kinds.TYPE_STRING), (2, "sequence_id", kinds.TYPE_UINT64)),
            *((3, "publish_time", kinds.TYPE_UINT64), (4, "properties", kinds.TYPE_MESSAGE)),
            *((6, "partition_key", kinds.TYPE_STRING), (8, "compression", kinds.TYPE_INT32)),
            *((9, "uncompressed_size", kinds.TYPE_UINT32), (11, "num_messages_in_batch", kinds.TYPE_INT32)),
            *((12, "event_time", kinds.TYPE_UINT64), (16, "schema_version", kinds.TYPE_BYTES)),
            *((17, "partition_key_b64_encoded", kinds.TYPE_BOOL), (18, "ordering_key", kinds.TYPE_BYTES)),
            (19, "deliver_at_time", kinds.TYPE_INT64),
        ],
        "Single": [
            *((1, "properties", kinds.TYPE_MESSAGE), (2, "partition_key", kinds.TYPE_STRING)),
            *((3, "payload_size", kinds.TYPE_INT32), (4, "compacted_out", kinds.TYPE_BOOL)),
            *((5, "event_time", kinds.TYPE_UINT64), (6, "partition_key_b64_encoded", kinds.TYPE_BOOL)),
            *((7, "ordering_key", kinds.TYPE_BYTES), (8, "sequence_id", kinds.TYPE_UINT64)),
            (9, "null_value", kinds.TYPE_BOOL),
        ],
        "Pair": [(1, "key", kinds.TYPE_STRING), (2, "value", kinds.TYPE_STRING)],
    }
    file = descriptor_pb2.FileDescriptorProto(name="pulsar_decode.proto", package="pulsar_decode", syntax="proto2")
    for name, its_fields in fields.items():
        kind = file.message_type.add(name=name)
        for number, field, field_type in its_fields:
            repeated = field_type == kinds.TYPE_MESSAGE
            kind.field.add(
                name=field,
                number=number,
                type=field_type,
                label=kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL,
                type_name=".pulsar_decode.Pair" if repeated else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return tuple(
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"pulsar_decode.{name}"))
        for name in ("Metadata", "Single")
    )  # type: ignore[return-value]


_METADATA, _SINGLE = _message_classes()


def _peer_rows(payloads: Payloads, read: str) -> pa.RecordBatch:
    """The same columns, a message at a time."""
    rows: list[tuple[Any, ...]] = []
    put, fields_of, parse = rows.append, _FIELDS[read], _SINGLE.FromString
    for entry_id, payload in enumerate(payloads):
        size = int.from_bytes(payload[6:10], "big")
        head = _METADATA.FromString(payload[10 : 10 + size])
        data = bytes(payload[10 + size :])
        if head.compression:
            data = pa.Codec("lz4_raw").decompress(data, decompressed_size=head.uncompressed_size, asbytes=True)
        if not head.HasField("num_messages_in_batch"):
            put(fields_of(head, head, data, entry_id, None))
            continue
        at = 0
        for index in range(head.num_messages_in_batch):
            size = int.from_bytes(data[at : at + 4], "big")
            one = parse(data[at + 4 : at + 4 + size])
            at += 4 + size + one.payload_size
            put(fields_of(head, one, data[at - one.payload_size : at], entry_id, index))
    schema = pa.schema([field for field in COLUMNS if field.name in _READS[read]])
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _value(head: Any, one: Any, value: bytes, entry_id: int, index: int | None) -> tuple[Any, ...]:
    return (value,)


def _some(head: Any, one: Any, value: bytes, entry_id: int, index: int | None) -> tuple[Any, ...]:
    key = one.partition_key.encode() if one.HasField("partition_key") else None
    return value, key, head.publish_time * 1000, one.event_time * 1000 or None


def _all(head: Any, one: Any, value: bytes, entry_id: int, index: int | None) -> tuple[Any, ...]:
    value, key, published, event = _some(head, one, value, entry_id, index)
    count = head.num_messages_in_batch
    message_id = MessageIdData(7, entry_id, -1, -1 if index is None else index, count).to_bytes()
    ordering_key = one.ordering_key if one.HasField("ordering_key") else None
    deliver_at = head.deliver_at_time * 1000 if head.HasField("deliver_at_time") else None
    properties = [(pair.key, pair.value) for pair in one.properties]
    return (
        *(value, key, _TOPIC.full, message_id, published, event, properties, 7, entry_id, index, None),
        *(one.sequence_id, head.producer_name, None, None, None, ordering_key, deliver_at, None),
    )


_FIELDS: Final = {"value": _value, "some": _some, "all": _all}


if __name__ == "__main__":
    main()
