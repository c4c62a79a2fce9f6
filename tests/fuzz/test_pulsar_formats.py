"""Znodes, ids and values of Pulsar: a value, or the error that the decoder promises."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from bk_spark.protocol.errors import BookKeeperError, InvalidArgumentError, MessageFormatError, MetadataFormatError
from bk_spark.protocol.pulsar.choices import ValueErrors
from bk_spark.protocol.pulsar.compression import CompressionError, decompress
from bk_spark.protocol.pulsar.message_ids import MessageIdData
from bk_spark.protocol.pulsar.topics.compaction import originals
from bk_spark.protocol.pulsar.topics.cursors import Cursor
from bk_spark.protocol.pulsar.topics.managed_ledgers import ManagedLedger, partition_count
from bk_spark.protocol.pulsar.topics.schemas import SchemaLocator, SchemaType, StoredSchema
from bk_spark.protocol.pulsar.topics.topic_names import TopicName
from bk_spark.protocol.pulsar.values import decode_values, value_type
from tests.fuzz.damage import EDGES, INT64, deep, hostile
from tests.fuzz.fuzzing import fuzz
from tests.fuzz.guard import Refused, bounded, outcome
from tests.support.pulsar_entries import compressed, message, properties

_LIMIT_BYTES: Final = 4 * 1024 * 1024
_ID: Final = INT64
_PAIRS: Final = st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=3).map(properties)
_OFFLOAD: Final = st.builds(
    lambda pairs, done: message({1: 5, 2: 6, 3: done, 6: message({1: b"aws-s3", 2: pairs})}), _PAIRS, st.integers(0, 1)
)
_LEDGER: Final = st.builds(
    lambda numbers, offload: message({**dict(enumerate(numbers, 1)), 5: offload}), st.lists(_ID, max_size=4), _OFFLOAD
)
_LIST: Final = st.builds(
    lambda ledgers, pairs, end: message({1: ledgers, 3: pairs, **({2: message({1: 4, 2: 5})} if end else {})}),
    *(st.lists(_LEDGER, max_size=4), _PAIRS, st.booleans()),
)


def _packed(content: bytes, codec: int, more: int) -> bytes:
    header = message({1: codec, 2: len(content) + more})
    return b"\x47\x78" + len(header).to_bytes(4, "big") + header + compressed(codec, content)


_ZNODE: Final = _LIST | st.builds(_packed, _LIST, st.integers(1, 4), st.sampled_from([0, 0, 1, -1, 2**40]))
_CURSOR: Final = st.builds(
    lambda numbers, pairs: message({**dict(enumerate(numbers, 1)), 5: pairs}), st.lists(_ID, max_size=3), _PAIRS
)
_LOCATOR: Final = st.builds(
    lambda versions: message({2: [message({1: one, 2: message({1: one, 2: 0}), 3: b"hash"}) for one in versions]}),
    st.lists(_ID, max_size=4),
)
_SCHEMA: Final = st.builds(
    lambda kind, definition, pairs: message({2: message({3: kind, 4: definition, 7: pairs}), 5: b""}),
    *(st.integers(0, 30), st.binary(max_size=20), _PAIRS),
)
_JSON: Final = st.sampled_from([b'{"partitions":3,"deleted":false}', b'{"partitions":"x"}', b"[]"]) | deep()

_DECODERS: Final[dict[str, tuple[SearchStrategy[bytes], Callable[[bytes], Any]]]] = {
    "ledgers": (_ZNODE, lambda data: ManagedLedger.parse(data, "/a/znode")),
    "cursor": (_CURSOR, lambda data: Cursor.parse(data, "/a/znode")),
    "cursor-entry": (_CURSOR, lambda data: Cursor.parse_entry(data, "/a/znode")),
    "locator": (_LOCATOR, lambda data: SchemaLocator.parse(data, "/a/znode")),
    "schema": (_SCHEMA, lambda data: StoredSchema.parse(data, 0, "/a/znode")),
    "partitions": (_JSON, lambda data: partition_count(data, "/a/znode")),
}


@pytest.mark.parametrize("name", sorted(_DECODERS))
@fuzz(40, draw=st.data())
def test_znodes_and_entries_of_metadata(name: str, draw: st.DataObject) -> None:
    valid, decode = _DECODERS[name]
    data = draw.draw(hostile(valid))
    outcome(lambda: decode(data), MetadataFormatError, names="/a/znode", limit_bytes=_LIMIT_BYTES)


@fuzz(60, data=st.binary(max_size=300), size=st.integers(-1, 300) | st.sampled_from(EDGES), codec=st.integers(0, 6))
def test_payloads_of_any_size_are_decompressed_or_refused(data: bytes, size: int, codec: int) -> None:
    """Whatever size is announced: as many bytes as that, which were in the data, or an error."""
    refusals: list[str] = []
    for payload in (data, compressed(codec % 5, data)):
        with bounded(_LIMIT_BYTES):
            try:
                found = decompress(codec % 5 if payload is not data else codec, payload, size, 100_000)
            except CompressionError as error:
                refusals.append(str(error))
                continue
        if payload is not data and codec % 5:
            assert bytes(found) == data
            assert len(found) == size
    assert all(refusals)


@fuzz(60, data=hostile(st.builds(lambda one: MessageIdData(*one).to_bytes(), st.tuples(_ID.map(abs), _ID.map(abs)))))
def test_ids_in_bytes(data: bytes) -> None:
    found = outcome(lambda: MessageIdData.parse(data), InvalidArgumentError, names="not a message id")
    if not isinstance(found, Refused):
        assert MessageIdData.parse(found.to_bytes()) == found
        assert MessageIdData.parse_text(str(found)).entry_id == found.entry_id


@fuzz(60, text=st.text(max_size=40) | st.from_regex(r"\A(persistent://)?[a-z./-]{0,20}/[a-z]+/.{0,9}\Z"))
def test_names_of_topics_and_ids_in_text(text: str) -> None:
    topic = outcome(lambda: TopicName.parse(text), InvalidArgumentError)
    if not isinstance(topic, Refused):
        assert TopicName.parse(topic.full) == topic
        assert topic.namespace_name.topic(topic.node) == topic
        assert "/" not in topic.node
    outcome(lambda: MessageIdData.parse_text(text), InvalidArgumentError, names="not a message id")


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


_COMPACTED: Final = st.builds(
    lambda one, entry: _sized(MessageIdData(*one).to_bytes()) + _sized(entry),
    *(st.tuples(st.integers(0, 99), st.integers(0, 99)), st.binary(max_size=20)),
)


@fuzz(60, entries=st.lists(hostile(_COMPACTED), min_size=1, max_size=3))
def test_entries_of_compacted_ledgers(entries: list[bytes]) -> None:
    found = outcome(lambda: originals(7, 0, entries), MessageFormatError, names="ledger 7")
    if not isinstance(found, Refused):
        assert [len(column) for column in found] == [len(entries)] * 3


_AVRO: Final = {
    "type": "record", "name": "R", "fields": [
        {"name": "a", "type": ["null", "string"]}, {"name": "b", "type": {"type": "array", "items": "long"}},
        {"name": "c", "type": {"type": "map", "values": "bytes"}}, {"name": "d", "type": "double"},
        {"name": "e", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "f", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "g", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
    ]
}  # fmt: skip
_AVRO_VALUE: Final = b"\x02\x06abc\x04\x02\x04\x00\x02\x02k\x04xy\x00" + bytes(8) + b"\x80\x01\x02\x05\x02"
_PAIR: Final = {"kv.encoding.type": "INLINE", "key.schema.type": "INT32", "value.schema.type": "STRING"}
_SCHEMAS: Final = {
    **{
        kind.name: StoredSchema(kind, b"") for kind in SchemaType if kind not in (SchemaType.AVRO, SchemaType.KEY_VALUE)
    },
    "AVRO": StoredSchema(SchemaType.AVRO, json.dumps(_AVRO).encode()),
    "KEY_VALUE": StoredSchema(SchemaType.KEY_VALUE, bytes(8), _PAIR),
}
_ENCODED: Final = st.one_of(
    st.sampled_from([b"", b"\0", bytes(2), bytes(4), bytes(8), bytes(12), bytes(16), b"\xff" * 8, b"\x7f" * 12]),
    st.sampled_from([b"\0\0\0\x04" + bytes(4) + b"\0\0\0\x01v", b"\xff" * 8, _AVRO_VALUE]),
)


@pytest.mark.parametrize("name", sorted(_SCHEMAS))
@fuzz(25, values=st.lists(st.none() | hostile(_ENCODED), max_size=6))
def test_values_of_each_schema(name: str, values: list[bytes | None]) -> None:
    """Errors name rows; without them there is a column of the type that the schema promises."""
    schema, column = _SCHEMAS[name], pa.array(values, pa.binary())
    found = outcome(
        lambda: decode_values(schema, column, on_error=ValueErrors.NULL), BookKeeperError, limit_bytes=_LIMIT_BYTES
    )
    assert not isinstance(found, Refused), found.error
    found.validate(full=True)
    assert found.type == value_type(schema)
    assert len(found) == len(values)
    assert not any(found[row].is_valid for row, value in enumerate(values) if value is None)
    strict = outcome(lambda: decode_values(schema, column), MessageFormatError, limit_bytes=_LIMIT_BYTES)
    if isinstance(strict, Refused):
        assert values[strict.error.row] is not None
    else:
        # By bytes: a number that is none does not equal itself.
        assert [_bytes(one) for one in strict.buffers()] == [_bytes(one) for one in found.buffers()]


def _bytes(buffer: pa.Buffer | None) -> bytes | None:
    return None if buffer is None else buffer.to_pybytes()


@fuzz(80, definition=st.one_of(hostile(st.just(json.dumps(_AVRO).encode())), deep()))
def test_definitions_of_avro(definition: bytes) -> None:
    outcome(lambda: value_type(StoredSchema(SchemaType.AVRO, definition)), InvalidArgumentError, names="Avro")


# Arrow imports pandas with the first array, which no decoder is to blame for; Avro's package is imported by need.
decode_values(_SCHEMAS["AVRO"], pa.array([_AVRO_VALUE], pa.binary()))
