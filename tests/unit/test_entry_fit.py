"""Entries of other versions of the schema: older ones, wider ones, and only the columns that a reader wants."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest

from bk_spark.log.entries.arrow_format import batches_in, entries_of
from bk_spark.log.entries.arrow_types import arrow_schema
from bk_spark.log.entries.entry_rows import EntryRows
from bk_spark.log.entries.fit import ColumnLookup, fitted
from bk_spark.log.entries.pieces import Piece, Pieces
from bk_spark.log.entries.projection import Projection
from bk_spark.log.entries.row_places import RowPlaces
from bk_spark.log.entries.schema_text import parse_schema
from bk_spark.log.formats.schema_merge import ANY_CASE, EXACT
from bk_spark.log.formats.settings import EntryFormat, decode_settings
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import CorruptFileError, InvalidArgumentError
from tests.support.fixtures import golden
from tests.support.kept import kept

OLD: Final = golden("log-0.1.0")
WHERE: Final = "entry 3 of ledger 7"


def column(values: list[Any], data_type: pa.DataType) -> pa.Array:
    return pa.array(values, data_type)


def entry_of(*batches: pa.RecordBatch, compression: str | None = None) -> bytes:
    (entry, _), *rest = entries_of(
        iter(batches), batches[0].schema, compression=compression, entry_bytes=1 << 30, max_entry_bytes=1 << 30,
        places=RowPlaces(0), names=EXACT,
    )  # fmt: skip
    assert not rest
    return bytes(entry)


def rows_of(
    entry: bytes, schema: pa.Schema, log: str | None = "flights", lookup: ColumnLookup | None = None
) -> list[dict[str, Any]]:
    return list(_rows_of(entry, schema, log, lookup))


def _rows_of(entry: bytes, schema: pa.Schema, log: str | None, lookup: ColumnLookup | None) -> Iterator[dict[str, Any]]:
    place = (log, 30, 1_000) if log else ()
    pieces = Pieces.of([Piece(7, 3, 3, len(entry), 1, *place)])
    for batch in EntryRows(schema, EntryFormat.ARROW, lookup).of(Payloads.of([memoryview(entry)]), pieces):
        assert batch.schema.equals(schema)
        batch.validate(full=True)
        yield from batch.to_pylist()


# --- values ---


@pytest.mark.parametrize(
    ("own", "wanted", "values"),
    [
        (pa.int8(), pa.int64(), [-128, None, 127]),
        (pa.int16(), pa.int32(), [-(2**15), None]),
        (pa.int32(), pa.int64(), [2**31 - 1, -(2**31)]),
        (pa.float32(), pa.float64(), [0.5, None, float("inf"), float("-inf")]),
        (pa.decimal128(10, 2), pa.decimal128(14, 4), [decimal.Decimal("99999999.99"), None]),
        (pa.null(), pa.list_(pa.string()), [None, None]),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), [[1, None], None, []]),
        (pa.map_(pa.int8(), pa.float32()), pa.map_(pa.int32(), pa.float64()), [[(1, 0.5), (2, None)], None, []]),
    ],
)
def test_values_widen(own: pa.DataType, wanted: pa.DataType, values: list[Any]) -> None:
    array = column([*values, *values], own)
    for one, expected in ((array, [*values, *values]), (array[1:], [*values, *values][1:]), (array[:0], [])):
        found = fitted(one, wanted, EXACT)
        assert found.type == wanted
        assert found.to_pylist() == expected
        found.validate(full=True)


def test_values_narrow_if_each_fits() -> None:
    assert fitted(column([1, None, -5], pa.int64()), pa.int32(), EXACT).to_pylist() == [1, None, -5]
    floats = fitted(column([0.5, None, float("nan"), float("inf")], pa.float64()), pa.float32(), EXACT)
    assert str(floats.to_pylist()) == "[0.5, None, nan, inf]"
    fine = column([decimal.Decimal("1.2000")], pa.decimal128(14, 4))
    assert fitted(fine, pa.decimal128(10, 2), EXACT).to_pylist() == [decimal.Decimal("1.20")]
    for values, own, wanted in (
        ([2**31], pa.int64(), pa.int32()),
        ([0.5, 0.1], pa.float64(), pa.float32()),
        ([None, 1e300], pa.float64(), pa.float32()),
        ([decimal.Decimal("1.2345")], pa.decimal128(14, 4), pa.decimal128(10, 2)),
        ([[1, 2**40]], pa.list_(pa.int64()), pa.list_(pa.int32())),
        ([{"a": 2**40}], pa.struct({"a": pa.int64()}), pa.struct({"a": pa.int32()})),
    ):
        with pytest.raises(pa.ArrowException):
            fitted(column(values, own), wanted, EXACT)


def test_fields_are_found_by_name_in_any_order_and_are_null_if_they_are_younger() -> None:
    own = pa.struct({"b": pa.list_(pa.struct({"x": pa.float32()})), "a": pa.int32(), "gone": pa.string()})
    wanted = pa.struct(
        {"a": pa.int64(), "new": pa.date32(), "b": pa.list_(pa.struct({"y": pa.string(), "x": pa.float64()}))}
    )
    values = [{"b": [{"x": 0.5}, None], "a": 1, "gone": "z"}, None, {"b": None, "a": None, "gone": None}]
    expected = [
        {"a": 1, "new": None, "b": [{"y": None, "x": 0.5}, None]}, None, {"a": None, "new": None, "b": None},
    ]  # fmt: skip
    array = column([*values, *values], own)
    for one, there in ((array, expected * 2), (array[2:5], (expected * 2)[2:5])):
        found = fitted(one, wanted, EXACT)
        found.validate(full=True)
        assert found.to_pylist() == there
    mapping = pa.map_(pa.string(), own)
    found = fitted(column([[("k", values[0])], None], mapping), pa.map_(pa.string(), wanted), EXACT)
    assert found.to_pylist() == [[("k", expected[0])], None]


def test_names_of_fields_by_case() -> None:
    array = column([{"Lat": 1.0}], pa.struct({"Lat": pa.float32()}))
    wanted = pa.struct({"lat": pa.float32()})
    assert fitted(array, wanted, ANY_CASE).to_pylist() == [{"lat": 1.0}]
    assert fitted(array, wanted, EXACT).to_pylist() == [{"lat": None}]


# --- entries ---

BATCH: Final = pa.RecordBatch.from_pydict(
    {
        "id": column([1, 2], pa.int32()),
        "name": column(["a", None], pa.string()),
        "at": column([datetime.date(2026, 1, 1), None], pa.date32()),
    }
)


def test_older_rows_are_null_and_wider() -> None:
    schema = pa.schema({"extra": pa.struct({"x": pa.int32()}), "id": pa.int64(), "name": pa.string()})
    assert rows_of(entry_of(BATCH), schema) == [
        {"extra": None, "id": 1, "name": "a"},
        {"extra": None, "id": 2, "name": None},
    ]


def test_a_ledger_without_a_log_has_no_younger_columns() -> None:
    with pytest.raises(InvalidArgumentError, match="entry 3 of ledger 7 has no column extra; it has .*leave"):
        rows_of(entry_of(BATCH), pa.schema({"id": pa.int32(), "extra": pa.string()}), log=None)


def test_a_value_that_does_not_fit_is_an_error_that_says_what_to_do() -> None:
    batch = pa.RecordBatch.from_pydict({"id": column([2**40], pa.int64())})
    with pytest.raises(InvalidArgumentError, match="column id in entry 3 .* cannot be read as int32: .*wider type"):
        rows_of(entry_of(batch), pa.schema({"id": pa.int32()}))


def test_a_column_that_may_not_be_null_is_an_error_where_it_is_younger() -> None:
    schema = pa.schema([pa.field("id", pa.int32()), pa.field("extra", pa.string(), nullable=False)])
    with pytest.raises(InvalidArgumentError, match="column extra has nulls in entry 3 .* NOT NULL: leave that out"):
        rows_of(entry_of(BATCH), schema)


def test_columns_of_the_connector_are_not_those_of_the_log() -> None:
    """A log may grow a column that is called as one of the connector's."""
    batch = pa.RecordBatch.from_pydict({"id": column([1], pa.int32()), "offset": column([-9], pa.int64())})
    schema = pa.schema({"offset": pa.int64(), "id": pa.int32()})
    assert rows_of(entry_of(batch), schema) == [{"offset": 30, "id": 1}]
    lookup = ColumnLookup(own={"flights": {"offset": "offset"}})
    assert rows_of(entry_of(batch), schema, lookup=lookup) == [{"offset": -9, "id": 1}]
    assert rows_of(entry_of(BATCH), schema, lookup=lookup)[0] == {"offset": None, "id": 1}, "a younger column"
    assert rows_of(entry_of(batch), schema.set(0, pa.field("offset", pa.int64())).remove(1)) == [{"offset": 30}]


def test_a_column_of_the_log_may_differ_by_case_from_one_of_the_connector() -> None:
    batch = pa.RecordBatch.from_pydict({"id": column([1], pa.int32()), "Offset": column([-9], pa.int64())})
    schema = pa.schema({"offset": pa.int64()})
    lookup = ColumnLookup(own={"flights": {"offset": "Offset"}})
    assert rows_of(entry_of(batch), schema, lookup=lookup.for_session(ANY_CASE)) == [{"offset": -9}]
    assert rows_of(entry_of(batch), schema, lookup=lookup.for_session(EXACT)) == [{"offset": 30}]


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_what_0_1_0_wrote_is_read_as_a_later_version(compression: str | None) -> None:
    entry = bytes.fromhex(OLD["entries"][compression or "none"])
    settings = decode_settings(bytes.fromhex(OLD["settings"]), "/z")[1]
    schema = arrow_schema(parse_schema(settings.schema_json or ""))
    plain = rows_of(entry, schema)
    for row, old in zip(plain, OLD["rows"], strict=True):
        at, price = row["at"], row["price"]
        assert (None if at is None else at.isoformat(), None if price is None else str(price)) == (
            old["at"],
            old["price"],
        )
        assert [row[name] for name in ("id", "name", "ratio", "place", "tags")] == [
            old[name] for name in ("id", "name", "ratio", "place", "tags")
        ]
    grown = pa.schema(
        {
            "place": pa.struct({"lon": pa.float64(), "alt": pa.int32(), "lat": pa.float64()}),
            "id": pa.int64(),
            "price": pa.decimal128(20, 4),
            "counts": pa.map_(pa.string(), pa.int64()),
            "younger": pa.string(),
        }
    )
    for row, old in zip(rows_of(entry, grown), plain, strict=True):
        place = old["place"] and {"lon": old["place"]["lon"], "alt": None, "lat": old["place"]["lat"]}
        assert (row["place"], row["id"], row["price"]) == (place, old["id"], old["price"])
        assert (row["counts"], row["younger"]) == (old["counts"], None)


# --- projection ---


def test_only_wanted_columns_are_decoded() -> None:
    projection = Projection(["at", "id"], EXACT)
    (found,) = batches_in(memoryview(entry_of(BATCH)), WHERE, projection)
    assert found.schema.names == ["id", "at"]
    (found,) = batches_in(memoryview(entry_of(BATCH)), WHERE, projection)
    assert found.to_pylist() == BATCH.select(["id", "at"]).to_pylist()
    assert len(kept(projection, pa.ipc.IpcReadOptions)) == 1, "the schema is looked at once"
    (found,) = batches_in(memoryview(entry_of(BATCH.select(["name", "at"]))), WHERE, projection)
    assert found.schema.names == ["at"]
    assert len(kept(projection, pa.ipc.IpcReadOptions)) == 2


def test_a_damaged_column_that_nobody_wants_is_not_looked_at() -> None:
    """That is what projection saves. Whoever wants it gets the error."""
    batch = pa.RecordBatch.from_pydict({"id": column([1, 2], pa.int32()), "name": column(["a" * 40, "b"], pa.string())})
    entry = bytearray(entry_of(batch))
    at = entry.find(np.array([0, 40, 41], np.int32).tobytes())
    assert at > 0
    entry[at + 4 : at + 8] = b"\xff\xff\xff\x7f"
    assert rows_of(bytes(entry), pa.schema({"id": pa.int32()})) == [{"id": 1}, {"id": 2}]
    with pytest.raises(CorruptFileError, match="entry 3 of ledger 7 is damaged"):
        rows_of(bytes(entry), pa.schema({"name": pa.string()}))


def test_rows_are_counted_though_no_column_is_wanted() -> None:
    (found,) = batches_in(memoryview(entry_of(BATCH)), WHERE, Projection([], EXACT))
    assert (found.num_rows, found.schema.names) == (2, ["id"])
    assert rows_of(entry_of(BATCH), pa.schema({"entryId": pa.int64()})) == [{"entryId": 3}, {"entryId": 3}]
    assert rows_of(entry_of(BATCH), pa.schema({"younger": pa.string()})) == [{"younger": None}] * 2


def test_wanted_names_by_case() -> None:
    schema = pa.schema({"ID": pa.int64()})
    assert rows_of(entry_of(BATCH), schema, lookup=ColumnLookup(ANY_CASE)) == [{"ID": 1}, {"ID": 2}]
    assert rows_of(entry_of(BATCH), schema) == [{"ID": None}, {"ID": None}]


def test_schemas_that_are_known_are_bounded() -> None:
    projection = Projection(["id"], EXACT)
    for number in range(100):
        batch = pa.RecordBatch.from_pydict(
            {"id": column([number], pa.int32()), f"c{number}": column(["x"], pa.string())}
        )
        (found,) = batches_in(memoryview(entry_of(batch)), WHERE, projection)
        assert found.to_pylist() == [{"id": number}]
    assert len(kept(projection, pa.ipc.IpcReadOptions)) == 64


# --- writing ---


def test_rows_are_written_under_the_names_and_types_of_the_log() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "AT": column([None], pa.date32()),
            "s": column([{"B": 1, "a": 2}], pa.struct({"B": pa.int8(), "a": pa.int32()})),
        }
    )
    schema = pa.schema({"s": pa.struct({"a": pa.int64(), "b": pa.int16(), "c": pa.string()}), "at": pa.date32()})
    sizes = {"entry_bytes": 1 << 20, "max_entry_bytes": 1 << 20, "places": RowPlaces(0)}
    ((entry, rows),) = entries_of(iter([batch]), schema, compression=None, names=ANY_CASE, **sizes)
    (found,) = batches_in(memoryview(entry), WHERE)
    assert (rows, found.schema) == (1, schema)
    assert found.to_pylist() == [{"s": {"a": 2, "b": 1, "c": None}, "at": None}]
