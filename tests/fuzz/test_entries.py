"""Entries of entry format arrow, compressed or not, as any writer may have made them."""

from __future__ import annotations

import datetime
import decimal
from typing import Any, Final

import pyarrow as pa
from hypothesis import strategies as st

from bk_spark.log.entries.arrow_checks import MAX_ENTRY_MEMORY_BYTES
from bk_spark.log.entries.arrow_format import batches_in, entries_of, schema_in
from bk_spark.log.entries.entry_rows import EntryRows
from bk_spark.log.entries.fit import ColumnLookup
from bk_spark.log.entries.pieces import Piece, Pieces
from bk_spark.log.entries.projection import Projection
from bk_spark.log.entries.row_places import RowPlaces
from bk_spark.log.formats.schema_merge import ANY_CASE, EXACT
from bk_spark.log.formats.settings import EntryFormat
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import CorruptFileError, InvalidArgumentError
from tests.fuzz.damage import EDGES, damaged
from tests.fuzz.fuzzing import fuzz
from tests.fuzz.guard import Refused, outcome

_WHERE: Final = "entry 3 of ledger 9"
_TEXT: Final = st.text(st.characters(codec="utf-8"), max_size=8)
#: Types that Spark writes, and others that a writer of ledgers may choose, with what a value of each may be.
_TYPES: Final[dict[pa.DataType, st.SearchStrategy[Any]]] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int8(): st.integers(-128, 127),
    pa.bool_(): st.booleans(),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): _TEXT,
    pa.binary(): st.binary(max_size=8),
    pa.decimal128(10, 2): st.integers(-(10**9), 10**9).map(lambda number: decimal.Decimal(number).scaleb(-2)),
    pa.date32(): st.dates(datetime.date(1970, 1, 1)),
    pa.timestamp("us", "UTC"): st.datetimes(datetime.datetime(1970, 1, 1), timezones=st.just(datetime.UTC)),
    pa.list_(pa.string()): st.lists(_TEXT, max_size=3),
    pa.struct([("a", pa.int32()), ("b", pa.string())]): st.fixed_dictionaries({"a": st.integers(0, 9), "b": _TEXT}),
    pa.map_(pa.string(), pa.int64()): st.dictionaries(_TEXT, st.integers(0, 9), max_size=3).map(lambda d: [*d.items()]),
    pa.list_(pa.list_(pa.int16())): st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=3),
    pa.null(): st.none(),
    pa.dictionary(pa.int8(), pa.string()): _TEXT,
    pa.large_string(): _TEXT,
    pa.large_list(pa.int64()): st.lists(st.integers(0, 9), max_size=3),
    pa.binary(4): st.binary(min_size=4, max_size=4),
    pa.string_view(): st.text("ab", max_size=30),
    pa.run_end_encoded(pa.int32(), pa.int64()): st.integers(0, 2),
}
_COMPRESSIONS: Final = st.sampled_from([None, "lz4", "zstd"])
_KINDS: Final = st.sampled_from(list(_TYPES))


@st.composite
def _batches(draw: st.DrawFn) -> pa.RecordBatch:
    rows, columns = draw(st.integers(1, 6)), []
    for kind in draw(st.lists(_KINDS, min_size=1, max_size=3)):
        values = draw(st.lists(st.none() | _TYPES[kind], min_size=rows, max_size=rows))
        if pa.types.is_run_end_encoded(kind):
            # Not by run_end_encode, which leaves some bytes as it finds them: examples would not be the same again.
            ends = pa.array(range(1, rows + 1), kind.run_end_type)
            columns.append(pa.RunEndEncodedArray.from_arrays(ends, pa.array(values, kind.value_type)))
        else:
            # Often enough rows that compression has something to do.
            columns.append(pa.array(values * draw(st.sampled_from([1, 40])), kind))
    rows = min(map(len, columns))
    return pa.RecordBatch.from_arrays([column[:rows] for column in columns], [f"c{n}" for n in range(len(columns))])


def _stream(batches: list[pa.RecordBatch], compression: str | None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return bytes(sink.getvalue())


_ENTRIES: Final = st.builds(lambda batch, compression: _stream([batch], compression), _batches(), _COMPRESSIONS)


@st.composite
def _with_claims(draw: st.DrawFn) -> bytes:
    """Entries in which a number of eight bytes, as Arrow writes sizes and offsets, is another one."""
    data = bytearray(draw(_ENTRIES))
    for _ in range(draw(st.integers(1, 3))):
        at = 8 * draw(st.integers(0, len(data) // 8 - 1))
        number = draw(st.sampled_from(EDGES) | st.integers(0, 2**40))
        data[at : at + 8] = (number & 2**64 - 1).to_bytes(8, "little")
    return bytes(data)


@fuzz(250, data=st.one_of(damaged(_ENTRIES), _with_claims(), _with_claims(), st.binary(max_size=200), _ENTRIES))
def test_arrow_entries(data: bytes) -> None:
    """Every value of what is accepted can be looked at, and the entry takes no more memory than its limit."""
    pool = pa.default_memory_pool()
    highest, before = pool.max_memory(), pool.bytes_allocated()
    found = outcome(lambda: batches_in(memoryview(data), _WHERE), CorruptFileError, names=_WHERE)
    outcome(lambda: schema_in(memoryview(data), _WHERE), CorruptFileError, names=_WHERE)
    if pool.max_memory() > highest:
        assert pool.max_memory() - before <= MAX_ENTRY_MEMORY_BYTES + 1024 * 1024
    if not isinstance(found, Refused):
        for batch in found:
            _look_at(batch)


_WANTED_TYPES: Final = (
    pa.int64(), pa.int8(), pa.float32(), pa.string(), pa.list_(pa.int64()), pa.struct({"a": pa.int8()}),
    pa.map_(pa.string(), pa.int8()), pa.list_(pa.list_(pa.int64())), pa.decimal128(12, 3),
)  # fmt: skip


@fuzz(
    150,
    data=st.one_of(damaged(_ENTRIES), _with_claims(), _ENTRIES),
    wanted=st.lists(st.sampled_from(["c0", "c1", "C0", "none"]), max_size=3, unique=True),
    types=st.lists(st.sampled_from(_WANTED_TYPES), min_size=3, max_size=3),
)
def test_arrow_entries_of_which_some_columns_are_wanted(
    data: bytes, wanted: list[str], types: list[pa.DataType]
) -> None:
    """What is left out is not looked at, and what is accepted can be, in the types that are asked for."""
    projection = Projection(wanted, ANY_CASE)
    for _ in range(2):
        found = outcome(lambda: batches_in(memoryview(data), _WHERE, projection), CorruptFileError, names=_WHERE)
        if isinstance(found, Refused):
            return
    for batch in found:
        _look_at(batch)
        assert len(batch.columns) <= max(1, len(wanted))
    schema = pa.schema(dict(zip(wanted, types, strict=False)))
    rows = EntryRows(schema, EntryFormat.ARROW, ColumnLookup(ANY_CASE))
    piece = Pieces.of([Piece(7, 3, 3, len(data), 1, "flights", 30, 1_000)])
    fitting = outcome(
        lambda: list(rows.of(Payloads.of([memoryview(data)]), piece)), CorruptFileError, InvalidArgumentError
    )
    if not isinstance(fitting, Refused):
        for batch in fitting:
            assert batch.schema.equals(schema)
            if wanted:
                _look_at(batch)


def _look_at(batch: pa.RecordBatch) -> None:
    """Touch every value, as Spark does. What Python cannot show is no damage: a year 400000, an unknown time zone."""
    _stream([batch], None)
    for column in batch.columns:
        if len(column) <= 1000:
            for value in column:
                try:
                    value.as_py()
                except (ValueError, OverflowError, KeyError):
                    continue  # KeyError: the time zone


@fuzz(40, batch=_batches(), compression=_COMPRESSIONS, entry_bytes=st.sampled_from([1024, 2**20]))
def test_arrow_entries_are_read_as_they_were_written(
    batch: pa.RecordBatch, compression: str | None, entry_bytes: int
) -> None:
    limits = {"entry_bytes": entry_bytes, "max_entry_bytes": 2**20, "places": RowPlaces(0), "names": EXACT}
    entries = entries_of(iter([batch]), batch.schema, compression=compression, **limits)
    found = [one for entry, _ in entries for one in batches_in(memoryview(entry), _WHERE)]
    assert pa.Table.from_batches(found).equals(pa.Table.from_batches([batch]))
