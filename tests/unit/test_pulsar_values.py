"""Values by schema type, as Pulsar's Java client encodes them, and values that have another form."""

from __future__ import annotations

import base64
import datetime
import io
import json
import pickle
from decimal import Decimal
from typing import Any, Final

import fastavro
import pyarrow as pa
import pytest

from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.pulsar.choices import ValueErrors
from bk_spark.protocol.pulsar.columns import TIME
from bk_spark.protocol.pulsar.topics.schemas import SchemaLocator, SchemaType, StoredSchema
from bk_spark.protocol.pulsar.values import ValueDecodeError, decode_values, value_type
from tests.support.fixtures import golden

_GOLDEN: Final = golden("pulsar/schema-values")
_TOPICS: Final = golden("pulsar/topics")
_UTC: Final = datetime.UTC
_NANOS: Final = datetime.datetime(2023, 11, 14, 22, 13, 20, 123456, _UTC)
#: What the texts of the golden values are here.
_VALUES: Final[dict[str, list[Any]]] = {
    "BOOLEAN": [True, False],
    "INT8": [5, -5],
    "INT16": [258, -2],
    "INT32": [16909060, -2],
    "INT64": [1099511627776, -2],
    "FLOAT": [1.5, pytest.approx(-0.1)],
    "DOUBLE": [1.5, -0.1],
    "STRING": ["aä€", ""],
    "DATE": [datetime.datetime(2023, 11, 14, 22, 13, 20, 123000, _UTC)],
    "TIME": [datetime.datetime(2023, 11, 14, 22, 13, 20, 123000, _UTC)],
    "TIMESTAMP": [datetime.datetime(2023, 11, 14, 22, 13, 20, 123000, _UTC)],
    "INSTANT": [_NANOS, datetime.datetime(1969, 12, 31, 23, 59, 59, 0, _UTC)],
    "LOCAL_DATE": [datetime.date(2024, 2, 29), datetime.date(1960, 1, 1)],
    "LOCAL_TIME": [((13 * 60 + 14) * 60 + 15) * 10**9 + 123456789],
    "LOCAL_DATE_TIME": [datetime.datetime(2024, 2, 29, 13, 14, 15, 123456)],
    "JSON": ['{"x":1,"label":"one"}', '{"x":2}'],
    "AVRO": [{"label": "one", "x": 1}, {"label": None, "x": 2}],
    "KEY_VALUE": [{"key": 7, "value": "seven"}, {"key": None, "value": "no key"}, {"key": 7, "value": None}],
}


def _schema(name: str) -> StoredSchema:
    one = _GOLDEN[name]
    return StoredSchema(SchemaType(one["type"]), one["schema"].encode(), one["properties"])


def _encoded(name: str) -> list[bytes]:
    return [base64.b64decode(value["bytes"]) for value in _GOLDEN[name]["values"]]


def _column(values: list[bytes | None]) -> pa.BinaryArray:
    return pa.array(values, pa.binary())


def test_every_type_of_the_golden_values_is_tested() -> None:
    assert set(_VALUES) == set(_GOLDEN)


@pytest.mark.parametrize("name", sorted(_VALUES))
def test_values_are_what_java_encoded(name: str) -> None:
    found = decode_values(_schema(name), _column(_encoded(name)))
    assert found.type == value_type(_schema(name))
    assert found.to_pylist() == _VALUES[name]


@pytest.mark.parametrize("name", sorted(_VALUES))
def test_nulls_stay_null_and_a_column_may_be_a_slice(name: str) -> None:
    column = _column([b"before", None, *_encoded(name), None, b"after"])[1:-1]
    assert decode_values(_schema(name), column).to_pylist() == [None, *_VALUES[name], None]
    assert decode_values(_schema(name), _column([])).to_pylist() == []
    assert decode_values(_schema(name), _column([None])).to_pylist() == [None]


_WRONG: Final = sorted(set(_VALUES) - {"STRING", "JSON"})


@pytest.mark.parametrize("name", _WRONG)
def test_a_value_of_another_form_is_an_error_that_names_its_row_or_null(name: str) -> None:
    first = _encoded(name)[0]
    for wrong in (first + b"\0", first[:-1], b"\xff" * 33):
        column = _column([first, None, wrong, first])
        with pytest.raises(ValueDecodeError, match=f"{len(wrong)} bytes.* of type {name}") as raised:
            decode_values(_schema(name), column)
        assert raised.value.row == 2
        copy = pickle.loads(pickle.dumps(raised.value))
        assert (copy.row, str(copy)) == (2, str(raised.value))
        found = decode_values(_schema(name), column, on_error=ValueErrors.NULL).to_pylist()
        assert found == [_VALUES[name][0], None, None, _VALUES[name][0]]


def test_text_that_is_no_utf8_is_replaced_as_java_does() -> None:
    assert decode_values(_schema("STRING"), _column([b"a\xffb", None])).to_pylist() == ["a\ufffdb", None]


@pytest.mark.parametrize("data", [b"\x7f" + b"\xff" * 7, b"\x80" + bytes(7)])
@pytest.mark.parametrize("name", ["TIMESTAMP", "LOCAL_DATE"])
def test_times_that_spark_cannot_hold_are_no_values(name: str, data: bytes) -> None:
    assert decode_values(_schema(name), _column([data]), on_error=ValueErrors.NULL).to_pylist() == [None]


@pytest.mark.parametrize("kind", [SchemaType.NONE, SchemaType.PROTOBUF, SchemaType.PROTOBUF_NATIVE, 99])
def test_types_that_are_not_decoded_stay_bytes(kind: SchemaType | int) -> None:
    schema = StoredSchema(kind, b"")
    assert value_type(schema) == pa.binary()
    assert decode_values(schema, _column([b"x", None])).to_pylist() == [b"x", None]


def _stored(topic: str) -> list[StoredSchema]:
    one = _TOPICS["schemas"][f"/schemas/golden/ns1/{topic}"]
    locator = SchemaLocator.parse(base64.b64decode(one["locator"]))
    entries = {version["version"]: base64.b64decode(version["entries"][0]) for version in one["versions"]}
    return [StoredSchema.parse(entries[found.version], found.version) for found in locator.versions]


def test_stored_schemas_have_the_types_of_clients_not_one_more() -> None:
    """Type numbers in ZooKeeper's ledgers are one higher."""
    kinds = {topic: [one.type for one in _stored(topic)] for topic in ("avro", "json", "int64", "string")}
    assert kinds["avro"] == [SchemaType.AVRO] * 2
    assert [kinds[topic] for topic in ("json", "int64", "string")] == [
        [SchemaType.JSON], [SchemaType.INT64], [SchemaType.STRING]
    ]  # fmt: skip
    assert not any(one.deleted for one in _stored("avro"))
    assert _stored("avro")[1].properties["__alwaysAllowNull"] == "true"


@pytest.mark.parametrize("topic", ["avro", "json", "int64", "string", "keyvalue-inline", "keyvalue-separated"])
def test_values_of_topics_are_what_java_decoded(topic: str) -> None:
    schemas, java = _stored(topic), _TOPICS["topics"][topic]["java"]
    assert len(java) > 1
    for one in java:
        if "schemaVersion" not in one:
            continue
        schema = schemas[int.from_bytes(base64.b64decode(one["schemaVersion"]), "big")]
        value = None if one["value"] is None else base64.b64decode(one["value"])
        key = base64.b64decode(one["keyBytes"]) if "keyBytes" in one else None
        found = decode_values(schema, _column([value]), keys=_column([key]), read_as=schemas[-1])
        assert found.type == value_type(schemas[-1])
        _check_decoded(topic, found[0].as_py(), one.get("decoded"))


def _check_decoded(topic: str, found: Any, decoded: Any) -> None:
    """What Java decoded is text, of Avro the record with the fields of the version that wrote it."""
    if topic == "avro":
        assert {name: found[name] for name in json.loads(decoded)} == json.loads(decoded)
        assert set(found) == {"label", "weight", "x"}
    elif topic.startswith("keyvalue"):
        assert found == {"key": decoded["key"], "value": json.loads(decoded["value"])}
    else:
        assert str(found) == decoded


_MILLIS: Final = {"type": "long", "logicalType": "timestamp-millis"}
_TIMES: Final = {"type": "record", "name": "R", "fields": [{"name": "t", "type": _MILLIS}]}
_NEW_YEAR: Final = datetime.datetime(2024, 1, 1, 0, 0, 0, 6000, _UTC)
_TYPES: Final[list[tuple[Any, pa.DataType, Any]]] = [
    (_MILLIS, TIME, _NEW_YEAR),
    ({"type": "long", "logicalType": "timestamp-micros"}, TIME, _NEW_YEAR.replace(microsecond=6)),
    ({"type": "int", "logicalType": "date"}, pa.date32(), datetime.date(1999, 12, 31)),
    ({"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}, pa.decimal128(5, 2), Decimal("-1.25")),
    ({"type": "array", "items": ["null", "int"]}, pa.list_(pa.int32()), [1, None, 3]),
    ({"type": "map", "values": "double"}, pa.map_(pa.string(), pa.float64()), [("a", 1.5)]),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, pa.string(), "B"),
    ({"type": "fixed", "name": "F", "size": 2}, pa.binary(), b"ab"),
    (["null", "string"], pa.string(), None),
    ({"type": "array", "items": _TIMES}, pa.list_(pa.struct([("t", TIME)])), [{"t": _NEW_YEAR}]),
]


@pytest.mark.parametrize(("kind", "expected", "value"), _TYPES)
def test_types_of_avro(kind: Any, expected: pa.DataType, value: Any) -> None:
    definition = {"type": "record", "name": "Top", "namespace": "n", "fields": [{"name": "c", "type": kind}]}
    schema = StoredSchema(SchemaType.AVRO, json.dumps(definition).encode())
    assert value_type(schema) == pa.struct([("c", expected)])
    out = io.BytesIO()
    fastavro.schemaless_writer(
        out,
        fastavro.parse_schema(definition),
        {"c": dict(value) if expected == pa.map_(pa.string(), pa.float64()) else value},
    )
    assert decode_values(schema, _column([out.getvalue()])).to_pylist() == [{"c": value}]


@pytest.mark.parametrize(
    ("definition", "why"),
    [
        ("nonsense", "not an Avro schema"),
        ('{"type":"record","name":"L","fields":[{"name":"next","type":["null","L"]}]}', "value.next contains itself"),
        (
            '{"type":"record","name":"U","fields":[{"name":"u","type":["int","string"]}]}',
            "value.u is a union of 2 types",
        ),
        ('{"type":"record","name":"U","fields":[{"name":"u","type":"Unknown"}]}', "unknown type Unknown"),
        ('{"type":"array","items":"null"}', "array of values without bytes"),
        ('{"type":"bytes","logicalType":"decimal","precision":50}', "more than 38 digits"),
        ("[" * 500 + "]" * 500, "not an Avro schema|nests too deep|union of 0"),
        ('{"type":"record","name":"R"}', "record without fields"),
    ],
)
def test_avro_schemas_without_a_type_of_spark_are_refused(definition: str, why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=why) as raised:
        value_type(StoredSchema(SchemaType.AVRO, definition.encode()))
    assert "read value as bytes" in str(raised.value)


def test_a_time_beyond_sparks_is_no_value_and_others_are_kept() -> None:
    definition = (
        '{"type":"record","name":"T","fields":[{"name":"t","type":{"type":"long","logicalType":"timestamp-millis"}}]}'
    )
    schema = StoredSchema(SchemaType.AVRO, definition.encode())
    values = []
    for number in (0, 2**62):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, {"type": "long"}, number)
        values.append(out.getvalue())
    found = decode_values(schema, _column(values), on_error=ValueErrors.NULL).to_pylist()
    assert found == [{"t": datetime.datetime(1970, 1, 1, tzinfo=_UTC)}, None]


def test_separated_pairs_need_keys_and_have_them() -> None:
    properties = {"kv.encoding.type": "SEPARATED", "key.schema.type": "INT32", "value.schema.type": "STRING"}
    schema = StoredSchema(SchemaType.KEY_VALUE, bytes(8), properties)
    keys = _column([b"\0\0\0\7", b"\0\0\0\7", None, b"\0"])
    values = _column([b"seven", None, None, b"x"])
    found = decode_values(schema, values, keys=keys, on_error=ValueErrors.NULL).to_pylist()
    assert found == [{"key": 7, "value": "seven"}, {"key": 7, "value": None}, None, None]
    with pytest.raises(InvalidArgumentError, match="keys"):
        decode_values(schema, values)


def test_values_of_another_type_than_the_newest_schema_are_no_values() -> None:
    old, new = StoredSchema(SchemaType.INT64, b""), StoredSchema(SchemaType.STRING, b"", version=1)
    assert decode_values(old, _column([bytes(8)]), read_as=new, on_error=ValueErrors.NULL).to_pylist() == [None]
    with pytest.raises(ValueDecodeError):
        decode_values(old, _column([bytes(8)]), read_as=new)
