"""Entries of format arrow: sizes, rows, canonical types."""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bk_spark.bkctl.logs.rows import rows_in
from bk_spark.log.entries import arrow_checks, arrow_format
from bk_spark.log.entries.arrow_format import batches_in, entries_of, schema_in
from bk_spark.log.entries.row_places import RowPlaces
from bk_spark.log.formats.schema_merge import EXACT
from bk_spark.protocol.errors import CorruptFileError, InvalidArgumentError

KIB, MIB = 1 << 10, 1 << 20
FRAME = 5 * MIB
SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("text", pa.string())])


def _entries(
    batches: list[pa.RecordBatch],
    schema: pa.Schema = SCHEMA,
    *,
    compression: str | None = None,
    entry_bytes: int = MIB,
    max_entry_bytes: int = FRAME,
) -> list[tuple[pa.Buffer, int]]:
    return list(
        entries_of(
            iter(batches),
            schema,
            compression=compression,
            entry_bytes=entry_bytes,
            max_entry_bytes=max_entry_bytes,
            places=RowPlaces(3),
            names=EXACT,
        )
    )


def _table(entries: list[tuple[pa.Buffer, int]], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_batches(
        [batch for entry, _ in entries for batch in batches_in(memoryview(entry), "e")], schema
    )


def _batches(rows: int, batch_rows: int, text_bytes: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, rows, batch_rows):
        ids = range(start, min(start + batch_rows, rows))
        yield pa.record_batch([pa.array(ids, pa.int64()), pa.array([f"{i:>{text_bytes}}" for i in ids])], schema=SCHEMA)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("batch_rows", [1, 100, 10_000], ids=lambda n: f"{n} rows a batch")
def test_rows_are_kept_in_order(batch_rows: int, compression: str | None) -> None:
    batches = list(_batches(2_000, batch_rows, 100))
    entries = _entries(batches, entry_bytes=64 * KIB, compression=compression)
    assert sum(rows for _, rows in entries) == 2_000
    assert _table(entries).equals(pa.Table.from_batches(batches, SCHEMA))
    for entry, rows in entries:
        assert sum(batch.num_rows for batch in batches_in(memoryview(entry), "e")) == rows
        assert schema_in(memoryview(entry), "e").equals(SCHEMA)


@pytest.mark.parametrize("batch_rows", [70, 350, 1_500, 10_000])
@pytest.mark.parametrize("entry_bytes", [64 * KIB, 256 * KIB, MIB])
def test_sizes_are_near_the_target(entry_bytes: int, batch_rows: int) -> None:
    entries = _entries(list(_batches(10_000, batch_rows, 500)), entry_bytes=entry_bytes)
    sizes = [entry.size for entry, _ in entries]
    assert all(0.6 * entry_bytes <= size <= 1.25 * entry_bytes for size in sizes[:-1])
    assert sizes[-1] <= 1.25 * entry_bytes


@pytest.mark.parametrize("batch_kib", [5, 210, 420, 640, 1000, 1200, 1700, 10_000])
def test_an_entry_has_rows_of_one_batch_unless_batches_are_far_smaller(batch_kib: int) -> None:
    batches = list(_batches(12 * batch_kib, batch_kib, 1000))
    entries = _entries(batches)
    parts = [batches_in(memoryview(entry), "e") for entry, _ in entries]
    assert pa.Table.from_batches([part for found in parts for part in found]).equals(pa.Table.from_batches(batches))
    if batch_kib >= 640:
        assert all(len(found) == 1 for found in parts)
    assert max(entry.size for entry, _ in entries) <= 1.25 * MIB


def test_compression_makes_entries_smaller_not_fewer() -> None:
    batches = list(_batches(10_000, 10_000, 500))
    plain, packed = _entries(batches), _entries(batches, compression="zstd")
    assert len(packed) == len(plain)
    assert sum(entry.size for entry, _ in packed) < sum(entry.size for entry, _ in plain) / 4


def _noise(rows: int, row_bytes: int) -> pa.RecordBatch:
    chance = random.Random(rows)
    return pa.record_batch({"noise": [chance.randbytes(row_bytes) for _ in range(rows)]})


def test_what_does_not_shrink_is_not_compressed_and_seldom_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    noise, text = _noise(500, 1024), pa.record_batch({"noise": [b"all the same" * 85] * 5_000})
    written: list[str | None] = []
    new_stream = pa.ipc.new_stream

    def noting(sink: Any, schema: pa.Schema, *, options: pa.ipc.IpcWriteOptions) -> Any:
        written.append(options.compression)
        return new_stream(sink, schema, options=options)

    monkeypatch.setattr(pa.ipc, "new_stream", noting)
    entries = _entries([noise] * 10, noise.schema, compression="lz4", entry_bytes=16 * KIB)
    assert entries == _entries([noise] * 10, noise.schema, entry_bytes=16 * KIB)
    assert len(entries) > 300
    # Tried at first, and then after pauses of 1, 2, 4, … 64 entries.
    assert 8 <= written.count("lz4") <= 8 + len(entries) // 64
    # It is found out soon that other data shrink, and then each entry is compressed.
    mixed = _entries([noise, *[text] * 2], noise.schema, compression="lz4", entry_bytes=16 * KIB)
    sizes = [entry.size for entry, _ in mixed]
    assert all(size < 4 * KIB for size in sizes[-len(sizes) // 2 :])
    assert _table(mixed, noise.schema).num_rows == 10_500


def test_a_row_that_fits_only_if_it_is_compressed_is_compressed() -> None:
    """Also if it shrinks by less than a tenth, and right after others did not shrink."""
    rows = pa.record_batch({"noise": [_noise(1, 60 * KIB)["noise"][0].as_py() + bytes(5 * KIB)]})
    entries = _entries(
        [_noise(1, 100), rows, rows], rows.schema, compression="lz4", entry_bytes=1, max_entry_bytes=64 * KIB
    )
    assert [rows for _, rows in entries] == [1, 1, 1]
    with pytest.raises(InvalidArgumentError, match="makes an entry of"):
        _entries([rows], rows.schema, entry_bytes=1, max_entry_bytes=64 * KIB)


def test_no_rows_give_no_entry() -> None:
    empty = pa.RecordBatch.from_pylist([], SCHEMA)
    assert _entries([]) == []
    assert _entries([empty, empty]) == []
    ((_, rows),) = _entries([empty, *_batches(5, 5, 1), empty])
    assert rows == 5


def test_uneven_rows_never_pass_the_limit() -> None:
    rng = random.Random(7)
    sizes = [rng.choice([10, 10, 10, 1000, 900 * KIB]) for _ in range(300)]
    batch = pa.record_batch([pa.array(range(300), pa.int64()), pa.array(["x" * size for size in sizes])], schema=SCHEMA)
    entries = _entries([batch], max_entry_bytes=MIB)
    assert max(entry.size for entry, _ in entries) <= MIB
    assert _table(entries).equals(pa.Table.from_batches([batch]))


def test_a_row_that_just_fits() -> None:
    row = pa.record_batch([pa.array([1], pa.int64()), pa.array(["x" * 100_000])], schema=SCHEMA)
    ((entry, _),) = _entries([row])
    assert _entries([row], max_entry_bytes=entry.size)
    with pytest.raises(InvalidArgumentError):
        _entries([row], max_entry_bytes=entry.size - 1)


@pytest.mark.parametrize("batch_rows", [1, 9, 100])
def test_a_row_too_large_is_named_with_its_column(batch_rows: int) -> None:
    texts = ["small"] * 100
    texts[42] = "x" * 200_000
    batches = [
        pa.record_batch([pa.array([i] * len(part), pa.int64()), pa.array(part)], schema=SCHEMA)
        for i in range(0, 100, batch_rows)
        for part in [texts[i : i + batch_rows]]
    ]
    with pytest.raises(InvalidArgumentError) as raised:
        _entries(batches, max_entry_bytes=100_000)
    assert str(raised.value).startswith("row 42 of partition 3 makes an entry of 200")
    assert "column text has most" in str(raised.value)
    assert "100000" in str(raised.value)


def test_types_and_column_order_become_the_logs() -> None:
    moment = 1_700_000_000_000_000
    given = pa.record_batch(
        {
            "when": pa.array([moment, None], pa.timestamp("us", "Asia/Kolkata")),
            "text": pa.array(["a", None], pa.large_string()),
            "nested": pa.array(
                [[{"at": moment}], None], pa.list_(pa.struct([("at", pa.timestamp("us", "Asia/Kolkata"))]))
            ),
        }
    )
    schema = pa.schema(
        [
            pa.field("text", pa.string()),
            pa.field("when", pa.timestamp("us", "UTC")),
            pa.field("nested", pa.list_(pa.struct([("at", pa.timestamp("us", "UTC"))]))),
        ]
    )
    entries = _entries([given], schema)
    assert schema_in(memoryview(entries[0][0]), "e").equals(schema)
    table = _table(entries, schema)
    assert table.column("text").to_pylist() == ["a", None]
    assert table.column("when").cast(pa.int64()).to_pylist() == [moment, None]
    assert table.column("nested").to_pylist()[0][0]["at"].timestamp() == moment / 1e6


def test_slices_with_offsets() -> None:
    # Bitmaps and offsets of slices that do not start at a byte's edge.
    schema = pa.schema([pa.field("flag", pa.bool_()), pa.field("text", pa.string())])
    flags = [None if i % 7 == 0 else i % 3 == 0 for i in range(1003)]
    whole = pa.record_batch(
        [pa.array(flags), pa.array([str(i) if i % 5 else None for i in range(1003)])], schema=schema
    )
    entries = _entries([whole.slice(3, 1000)], schema, entry_bytes=1024)
    assert len(entries) > 1
    assert _table(entries, schema).equals(pa.Table.from_batches([whole.slice(3, 1000)]))


@pytest.mark.parametrize("entry", [b"", b"not arrow", bytes(1000), np.random.default_rng(1).bytes(500)], ids=range(4))
def test_what_is_not_arrow_is_said_to_be_so(entry: bytes) -> None:
    with pytest.raises(
        CorruptFileError, match="entry 7 of ledger 9 is not an Arrow stream: was it written with entryForm"
    ):
        batches_in(memoryview(entry), "entry 7 of ledger 9")
    with pytest.raises(CorruptFileError, match="entry 7 of ledger 9 is not an Arrow stream"):
        schema_in(memoryview(entry), "entry 7 of ledger 9")


def test_a_torn_entry_is_not_read_in_part() -> None:
    ((entry, _),) = _entries(list(_batches(100, 100, 10)))
    whole = memoryview(entry)
    for size in range(8, len(whole) - 8, 37):
        with pytest.raises(CorruptFileError):
            batches_in(whole[:size], "e")


def _changed(entry: memoryview | bytes, old: bytes, new: bytes) -> memoryview:
    before, found, behind = bytes(entry).rpartition(old)
    assert found
    return memoryview(before + new + behind)


def test_offsets_that_lead_out_of_the_entry_are_refused() -> None:
    """Whoever read such a text would read any memory, or end the process."""
    ((entry, _),) = _entries(list(_batches(3, 3, 7)))
    offsets = np.array([0, 7, 14, 21], np.int32)
    damaged = _changed(entry, offsets.tobytes(), np.array([0, 7, 2**30, 21], np.int32).tobytes())
    with pytest.raises(CorruptFileError, match="e is damaged: .*[Oo]ffset"):
        batches_in(damaged, "e")


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_what_an_entry_claims_is_not_believed(compression: str) -> None:
    ((entry, _),) = _entries(list(_batches(1000, 1000, 7)), compression=compression)
    before = pa.total_allocated_bytes()
    damaged = _changed(entry, (7000).to_bytes(8, "little"), (2**40).to_bytes(8, "little"))
    with pytest.raises(CorruptFileError, match=r"e has \d+ bytes and claims 10995116\d+ without compression"):
        batches_in(damaged, "e")
    assert pa.total_allocated_bytes() == before


def test_rows_without_bytes_are_bounded() -> None:
    schema = pa.schema([pa.field("nothing", pa.null())])
    ((entry, _),) = _entries([pa.record_batch([pa.nulls(123_456)], schema=schema)], schema)
    assert sum(batch.num_rows for batch in batches_in(memoryview(entry), "e")) == 123_456
    rows = (123_456).to_bytes(8, "little")
    damaged = bytes(entry).replace(rows, (2**40).to_bytes(8, "little"))
    with pytest.raises(CorruptFileError, match="e claims 1099511627776 rows"):
        batches_in(memoryview(damaged), "e")


def test_rows_that_a_reader_would_refuse_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are cut into more entries, and a single one is an error, though compression makes it small."""
    for module in (arrow_format, arrow_checks):
        monkeypatch.setattr(module, "MAX_ENTRY_MEMORY_BYTES", 100 * KIB)
    entries = _entries(list(_batches(1_000, 1_000, 500)), compression="zstd")
    assert len(entries) >= 5
    assert _table(entries).num_rows == 1_000
    with pytest.raises(InvalidArgumentError, match=r"row 0 .* takes 2\d+ bytes without compression \(column text has"):
        _entries(list(_batches(1, 1, 200 * KIB)), compression="zstd")


def test_text_that_is_not_utf8_is_read_as_it_was_written() -> None:
    """Spark's strings may hold it."""
    text = pa.array([b"\xff\xfe"]).view(pa.string())
    nested = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), text)
    batch = pa.record_batch({"text": text, "nested": nested})
    ((entry, _),) = _entries([batch], batch.schema)
    (found,) = batches_in(memoryview(entry), "e")
    assert found.column("text").view(pa.binary()).to_pylist() == [b"\xff\xfe"]


def test_bkctl_shows_values_that_python_has_no_type_for() -> None:
    """Spark writes times of any year, and text that is not UTF-8."""
    time, text = pa.array([2**62, 0], pa.timestamp("us")), pa.array([b"\xff\xfe", b"a"]).view(pa.string())
    starts = pa.array([0, 1, 2], pa.int32())
    batch = pa.record_batch(
        {
            "at": time,
            "born": pa.array([-(2**31), 0], pa.date32()),
            "inside": pa.StructArray.from_arrays([pa.ListArray.from_arrays(starts, text)], ["texts"]),
            "places": pa.MapArray.from_arrays(starts, pa.array(["a", "b"]), time),
        }
    )
    ((entry, _),) = _entries([batch], batch.schema)
    assert list(rows_in(memoryview(entry), "x", 9)) == [
        {
            "at": f"{2**62} us",
            "born": f"{-(2**31)} days",
            "inside": {"texts": [b"\xff\xfe"]},
            "places": [["a", f"{2**62} us"]],
        },
        {
            "at": datetime.datetime(1970, 1, 1),
            "born": datetime.date(1970, 1, 1),
            "inside": {"texts": ["a"]},
            "places": [("b", datetime.datetime(1970, 1, 1))],
        },
    ]


def test_bkctl_names_an_entry_that_it_cannot_read() -> None:
    with pytest.raises(CorruptFileError, match="log x: the entry at offset 9 is not an Arrow stream"):
        list(rows_in(memoryview(bytes(100)), "x", 9))


def test_a_name_of_a_column_that_is_not_text_is_damage() -> None:
    ((entry, _),) = _entries(list(_batches(3, 3, 7)))
    damaged = _changed(entry, b"text", b"te\xdft")
    for read in (batches_in, schema_in):
        with pytest.raises(CorruptFileError, match="^e is "):
            read(damaged, "e")
