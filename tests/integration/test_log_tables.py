"""Logs as tables without Spark, on real bookies: scans and writes of Arrow, pandas and polars data."""

from __future__ import annotations

import datetime
import decimal
import gc
import json
import subprocess
import sys
import threading
import time
import tracemalloc
import uuid
from collections.abc import Iterator
from contextlib import closing

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import bk_spark
from bk_spark import BookKeeper, Log, errors
from bk_spark.log.core.plan import CommitStatus
from bk_spark.log.tables.ordered_reads import OrderedReads
from bk_spark.log.tables.scan import Scan
from bookie_server.local import LocalCluster
from tests.support.instances import instances
from tests.support.kept import kept
from tests.support.logs import registered_ledgers

pytestmark = pytest.mark.integration

METADATA = ["log", "offset", "ledgerId", "entryId", "timestamp"]
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64())])


@pytest.fixture
def bk(cluster: LocalCluster) -> Iterator[BookKeeper]:
    with bk_spark.connect(cluster.metadata_service_uri, password="secret") as one:
        yield one


@pytest.fixture
def name() -> str:
    return f"table-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def log(bk: BookKeeper, name: str) -> Log:
    return bk.create_log(name, schema=SCHEMA)


def rows(first: int, count: int, name_bytes: int = 20) -> pa.Table:
    ids = np.arange(first, first + count)
    names = pa.array([f"{number:0{name_bytes}d}" for number in range(first, first + count)], pa.string())
    return pa.table([pa.array(ids), names, pa.array(ids / 4)], schema=SCHEMA)


def raw_rows(first: int, count: int) -> pa.Table:
    return pa.table({"value": pa.array([b"row %d" % number for number in range(first, first + count)], pa.binary())})


# --- rows -------------------------------------------------------------------------------------------


class TestRoundTrip:
    def test_an_arrow_log(self, log: Log) -> None:
        first, second = rows(0, 1000), rows(1000, 500)
        result = log.write(first)
        assert (result.status, result.start_offset, result.end_offset) == (CommitStatus.COMMITTED, 0, 1)
        log.write(second)
        scan = log.scan()
        assert isinstance(scan, Scan)
        assert scan.schema == SCHEMA
        assert scan.offsets == range(2)
        assert scan.to_arrow().equals(pa.concat_tables([first, second]))
        # A scan may be read again, and has the rows of the moment when it was made.
        log.write(rows(1500, 1))
        assert scan.to_arrow().num_rows == 1500
        assert log.scan().to_arrow().num_rows == 1501

    def test_a_raw_log(self, bk: BookKeeper, name: str) -> None:
        log = bk.create_log(name)
        log.write(raw_rows(0, 300))
        # Text is bytes for a raw log.
        log.write(pa.table({"value": pa.array(["text", "ß"], pa.large_string())}))
        with log.open_writer() as writer:
            writer.append(b"appended")
        found = log.scan().to_arrow()
        assert found.column_names == ["value", *METADATA]
        values = found["value"].to_pylist()
        assert values == [*(b"row %d" % n for n in range(300)), b"text", "ß".encode(), b"appended"]
        assert found["offset"].to_pylist() == list(range(303))
        assert set(found["log"].to_pylist()) == {name}
        assert found["timestamp"].type == pa.timestamp("us", "UTC")
        assert found["timestamp"].null_count == 0
        assert log.scan(["offset"]).to_arrow().to_pydict() == {"offset": list(range(303))}

    def test_no_rows(self, log: Log) -> None:
        assert log.scan().to_arrow().equals(SCHEMA.empty_table())
        assert list(log.scan()) == []
        log.write(SCHEMA.empty_table())
        assert log.scan().to_arrow().num_rows == 0
        assert registered_ledgers(log) == {}

    def test_columns_in_the_order_wanted_and_what_says_where_rows_come_from(self, log: Log, name: str) -> None:
        log.write(rows(0, 10))
        assert log.scan(["amount", "id"]).schema.names == ["amount", "id"]
        assert log.scan(["amount", "id"]).to_arrow()["id"].to_pylist() == list(range(10))
        assert log.scan(include_metadata=True).schema.names == [*SCHEMA.names, *METADATA]
        assert log.scan(["id"], include_metadata=True).schema.names == ["id", *METADATA]
        found = log.scan(["offset", "id", "log"]).to_arrow()
        assert found.to_pydict() == {"offset": [0] * 10, "id": list(range(10)), "log": [name] * 10}


_STRUCT = pa.struct([("a", pa.int32()), ("l", pa.list_(pa.field("element", pa.string())))])


def _of_every_type() -> pa.Table:
    moment = datetime.datetime(2026, 1, 31, 12, 30, 0, 123456)
    columns: dict[str, tuple[pa.DataType, list[object]]] = {
        "b": (pa.bool_(), [True, None, False]),
        "i8": (pa.int8(), [-128, None, 127]),
        "i16": (pa.int16(), [-(2**15), None, 1]),
        "i32": (pa.int32(), [-(2**31), None, 1]),
        "i64": (pa.int64(), [-(2**63), None, 1]),
        "f32": (pa.float32(), [1.5, None, float("inf")]),
        "f64": (pa.float64(), [1e300, None, -0.0]),
        "d": (pa.decimal128(38, 18), [decimal.Decimal("1.000000000000000001"), None, decimal.Decimal(0)]),
        "s": (pa.string(), ["", None, "ß\0𝄞"]),
        "x": (pa.binary(), [b"", None, b"\xff\0"]),
        "day": (pa.date32(), [moment.date(), None, datetime.date(1, 1, 1)]),
        "t": (pa.timestamp("us", "UTC"), [moment, None, moment]),
        "n": (pa.timestamp("us"), [moment, None, moment]),
        "clock": (pa.time64("ns"), [datetime.time(23, 59, 59, 999999), None, datetime.time()]),
        "span": (pa.duration("us"), [datetime.timedelta(days=-1, microseconds=1), None, datetime.timedelta()]),
        "nothing": (pa.null(), [None, None, None]),
        "l": (pa.list_(pa.field("element", pa.int64())), [[1, None], None, []]),
        "m": (pa.map_(pa.string(), pa.field("value", pa.float64())), [[("a", 1.0)], None, []]),
        "st": (
            pa.struct([("a", pa.int32()), ("l", pa.list_(pa.field("element", pa.string())))]),
            [{"a": 1, "l": ["x"]}, None, {}],
        ),
    }
    return pa.table({key: pa.array(values, data_type) for key, (data_type, values) in columns.items()})


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_values_of_every_type(bk: BookKeeper, name: str, compression: str | None) -> None:
    table = _of_every_type()
    log = bk.create_log(name, schema=table.schema)
    log.write(table, compression=compression)
    found = log.scan().to_arrow()
    assert found.schema == table.schema
    assert found.to_pylist() == table.to_pylist()
    assert found.equals(table)


def test_types_with_the_same_values_are_cast(bk: BookKeeper, name: str) -> None:
    moment = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
    table = pa.table(
        {
            "s": pa.array(["a", "b", "a"], pa.dictionary(pa.int8(), pa.large_string())),
            "v": pa.array(["x", None, "a long text that is no inline view"], pa.string_view()),
            "t": pa.array([moment] * 3, pa.timestamp("ns", "Europe/Berlin")),
            "l": pa.array([["a"], [], None], pa.large_list(pa.large_string())),
        }
    )
    log = bk.create_log(name, schema=table.schema)
    log.write(table)
    found = log.scan().to_arrow()
    assert [str(one) for one in found.schema.types] == [
        "string",
        "string",
        "timestamp[us, tz=UTC]",
        "list<element: string>",
    ]
    assert found.to_pylist() == table.to_pylist()


# --- other libraries ----------------------------------------------------------------------------------


class TestLibraries:
    def test_pandas(self, log: Log) -> None:
        frame = rows(0, 100).to_pandas()
        log.write(frame)
        pd.testing.assert_frame_equal(log.scan().to_pandas(), frame)

    def test_an_index_of_pandas_is_not_lost(self, log: Log) -> None:
        frame = rows(0, 3).to_pandas().set_index("id")
        log.write(frame)
        assert log.scan(["id"]).to_arrow()["id"].to_pylist() == [0, 1, 2]
        with pytest.raises(errors.InvalidArgumentError, match="has no column __index_level_0__"):
            log.write(rows(0, 3).to_pandas().iloc[[2, 0]])

    def test_polars(self, log: Log) -> None:
        frame = pl.DataFrame(rows(0, 100))
        log.write(frame)
        assert log.scan().to_polars().equals(frame)
        assert pl.DataFrame(log.scan()).equals(frame)

    def test_duckdb_reads_a_scan_and_a_log_takes_what_it_returns(self, bk: BookKeeper, log: Log, name: str) -> None:
        log.write(rows(0, 1000))
        scan = log.scan(["id", "amount"])  # noqa: F841 (DuckDB finds it)
        with duckdb.connect() as duck:
            # Twice: each statement reads the log anew.
            for _ in range(2):
                found = duck.sql("SELECT count(*), sum(amount) FROM scan WHERE id % 2 = 0").fetchall()
                assert found == [(500, 62375.0)]
            halves = bk.create_log(f"{name}-halves", schema=log.scan().schema)
            halves.write(duck.sql("SELECT id, 'half' AS name, amount / 2 AS amount FROM scan"))
        assert pc.sum(halves.scan().to_arrow()["amount"]).as_py() == 499500 / 8

    def test_any_arrow_stream(self, bk: BookKeeper, log: Log, name: str) -> None:
        log.write(rows(0, 1000))
        assert pa.table(log.scan()).num_rows == 1000
        copy = bk.create_log(f"{name}-copy", schema=log.scan())
        copy.write(log.scan())
        copy.write(rows(0, 10).to_batches()[0])
        copy.write(rows(10, 10).to_reader())
        assert copy.scan().to_arrow().num_rows == 1020

    @pytest.mark.parametrize("module", ["pandas", "polars"])
    def test_without_a_library_the_error_says_what_to_install(
        self, log: Log, module: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=rf"to_{module} needs {module}.* pip install 'bk-spark\[frames\]'"):
            getattr(log.scan(), f"to_{module}")()


# --- ranges -------------------------------------------------------------------------------------------


class TestRanges:
    def test_offsets_ends_and_times(self, bk: BookKeeper, name: str) -> None:
        log = bk.create_log(name)
        log.write(raw_rows(0, 10))
        result = log.write(raw_rows(10, 10))
        assert result.commit_time_ms is not None
        second = datetime.datetime.fromtimestamp(result.commit_time_ms / 1000, datetime.UTC)
        for start, end, found in (
            (0, 20, range(20)),
            (3, 12, range(3, 12)),
            ("earliest", 5, range(5)),
            (15, "latest", range(15, 20)),
            ("latest", "latest", range(20, 20)),
            (second, "latest", range(10, 20)),
            ("earliest", second.isoformat(), range(10)),
            (str(result.commit_time_ms), "latest", range(10, 20)),
        ):
            scan = log.scan(["offset"], start=start, end=end)
            assert scan.offsets == found
            assert scan.to_arrow()["offset"].to_pylist() == list(found)

    def test_an_earlier_state_is_read_after_overwrites(self, log: Log) -> None:
        log.set_policy(bk_spark.Policy(history_ms=3_600_000))
        log.write(rows(0, 10), txn_app_id="a", txn_version=1)
        log.write(rows(10, 10), txn_app_id="a", txn_version=2)
        log.write(rows(500, 1), mode="overwrite", txn_app_id="a", txn_version=3)
        assert log.scan().to_arrow().equals(rows(500, 1))
        assert log.scan(as_of="a:2").to_arrow().equals(rows(0, 20))
        assert log.scan(as_of=0).to_arrow().equals(rows(0, 10))
        assert log.scan(["id"], as_of="a:2", start=1).to_arrow()["id"].to_pylist() == list(range(10, 20))
        with pytest.raises(errors.InvalidArgumentError, match="no commit of version 1 by application 'b'"):
            log.scan(as_of="b:1")

    def test_an_open_tail_is_read_up_to_what_is_confirmed(self, bk: BookKeeper, name: str) -> None:
        log = bk.create_log(name)
        log.write(raw_rows(0, 5))
        with log.open_writer() as writer:
            writer.append_many([b"row %d" % number for number in range(5, 9)])
            writer.flush()
            # The last ones are confirmed within the interval of explicit LACs.
            deadline_s = time.monotonic() + 60
            while (scan := log.scan(["value", "offset"])).offsets.stop < 9:
                assert time.monotonic() < deadline_s
            found = scan.to_arrow()
        assert found["value"].to_pylist() == [b"row %d" % number for number in range(9)]
        assert found["offset"].to_pylist() == list(range(9))

    @pytest.mark.parametrize(
        ("arguments", "error", "text"),
        [
            (
                {"start": 3},
                errors.LogRangeGoneError,
                "start gives log {log} offset 3: it ends at 2.*leave it out",
            ),
            ({"end": 3}, errors.LogRangeGoneError, "end gives log {log} offset 3: it ends at 2"),
            (
                {"start": 2, "end": 1},
                errors.InvalidArgumentError,
                "starts at 2, after its end at 1: check start",
            ),
            ({"start": -1}, errors.InvalidArgumentError, "start: -1 must be an offset, a time, earliest or latest"),
            ({"start": "yesterday"}, errors.InvalidArgumentError, "start: 'yesterday' must be milliseconds"),
            ({"columns": ["ids"]}, errors.InvalidArgumentError, "has no column 'ids'; did you mean id?"),
            ({"columns": ["q"]}, errors.InvalidArgumentError, "no column 'q'; it has id, name, amount, log, offset"),
            ({"columns": "id"}, errors.InvalidArgumentError, r'columns must be a list of names, such as \["id"\]'),
            ({"columns": []}, errors.InvalidArgumentError, "columns is empty"),
            ({"columns": ["id", "id"]}, errors.InvalidArgumentError, "names 'id' twice"),
            ({"threads": 0}, errors.InvalidArgumentError, "threads must be a whole number, from 1 to 64, got 0"),
            ({"buffer_bytes": 5}, errors.InvalidArgumentError, "buffer_bytes must be a whole number, at least 1048576"),
        ],
    )
    def test_what_is_wrong_is_named(
        self, log: Log, arguments: dict[str, object], error: type[Exception], text: str
    ) -> None:
        log.write(rows(0, 1))
        log.write(rows(1, 1))
        with pytest.raises(error, match=text.format(log=log.name)):
            log.scan(**arguments)  # type: ignore[arg-type]

    def test_a_log_that_was_opened_without_its_password(self, bk: BookKeeper, log: Log) -> None:
        with pytest.raises(errors.InvalidArgumentError, match="opened without its password"):
            bk.logs.open_log(log.name).scan()


# --- failures -----------------------------------------------------------------------------------------


def test_a_bookie_dies_in_the_middle_of_a_scan(mended_cluster: LocalCluster) -> None:
    with bk_spark.connect(mended_cluster.metadata_service_uri) as bk:
        log = bk.create_log(f"killed-{uuid.uuid4().hex[:8]}", schema=SCHEMA)
        for part in range(8):
            log.write(rows(part * 4000, 4000, 500), compression=None, entry_bytes=64 * 1024)
        found = []
        with closing(log.scan(threads=2, buffer_bytes=1024 * 1024).batches()) as batches:
            for batch in batches:
                if not found:
                    mended_cluster.bookies[0].kill()
                found.append(batch)
        assert pa.Table.from_batches(found)["id"].to_pylist() == list(range(32_000))


def test_a_ledger_that_is_deleted_meanwhile_is_named(log: Log, bk: BookKeeper) -> None:
    log.write(rows(0, 10))
    log.write(rows(10, 10))
    scan = log.scan(["id"])
    second = [segment.ledger_id for segment in log.snapshot().segments()][1]
    bk.delete_ledger(second)
    with pytest.raises(errors.LogRangeGoneError, match=rf"offsets \[1, 2\) of log {log.name} are gone.*make a new one"):
        scan.to_arrow()
    assert log.scan(["id"], end=1).to_arrow().num_rows == 10


_DIES = """
import os, sys
import pyarrow as pa
import bk_spark

def batches(schema):
    for number in range(50):
        columns = [pa.array(range(1000), pa.int64()), pa.array(["x" * 100] * 1000), pa.array([0.0] * 1000)]
        yield pa.record_batch(columns, schema=schema)
    print("written", flush=True)
    os.kill(os.getpid(), 9)

bk = bk_spark.connect(sys.argv[1], password="secret")
log = bk.log(sys.argv[2])
schema = log.scan().schema
log.write(pa.RecordBatchReader.from_batches(schema, batches(schema)), txn_app_id="job", txn_version=1)
"""


def test_a_process_that_dies_before_the_commit_leaves_nothing(cluster: LocalCluster, bk: BookKeeper, log: Log) -> None:
    log.write(rows(0, 10))
    died = subprocess.run(
        [sys.executable, "-c", _DIES, cluster.metadata_service_uri, log.name],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (died.returncode, died.stdout) == (-9, "written\n"), died.stderr
    assert len(registered_ledgers(log)) == 2
    assert log.scan().to_arrow().equals(rows(0, 10))
    # The same write again is done.
    assert log.write(rows(10, 5), txn_app_id="job", txn_version=1).status is CommitStatus.COMMITTED
    assert log.scan().to_arrow().equals(rows(0, 15))


def test_data_that_fails_on_the_way_leaves_nothing(log: Log) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from rows(0, 10_000).to_batches()
        raise RuntimeError("the source broke")

    log.write(rows(0, 1))
    with pytest.raises(RuntimeError, match="the source broke"):
        log.write(pa.RecordBatchReader.from_batches(SCHEMA, batches()), mode="overwrite", entry_bytes=1024)
    assert log.scan().to_arrow().num_rows == 1


# --- writes -------------------------------------------------------------------------------------------


class TestWrites:
    def test_an_overwrite_replaces_all_rows_at_once(self, log: Log) -> None:
        log.write(rows(0, 10))
        before = log.scan()
        log.write(rows(100, 3), mode="overwrite")
        assert log.scan().to_arrow().equals(rows(100, 3))
        assert before.to_arrow().equals(rows(0, 10))
        log.write(SCHEMA.empty_table(), mode="overwrite")
        assert log.scan().to_arrow().num_rows == 0

    def test_a_log_writer_holds_the_tail(self, bk: BookKeeper, name: str) -> None:
        log = bk.create_log(name)
        writer = log.open_writer()
        writer.append(b"first")
        writer.flush()
        with pytest.raises(errors.LogTailOpenError):
            log.write(raw_rows(0, 1))
        log.write(raw_rows(0, 1), fence_tail=True)
        writer.abandon()
        assert log.scan(["value"]).to_arrow()["value"].to_pylist() == [b"first", b"row 0"]

    def test_columns_that_do_not_fit_into_a_raw_log(self, bk: BookKeeper, name: str) -> None:
        log = bk.create_log(name)
        with pytest.raises(errors.InvalidArgumentError, match="needs a column named value"):
            log.write(rows(0, 1))
        with pytest.raises(errors.InvalidArgumentError, match="column value is null in row 1 of partition 0"):
            log.write(pa.table({"value": pa.array([b"a", None])}))

    def test_a_time_that_would_lose_nanoseconds(self, bk: BookKeeper, name: str) -> None:
        log = bk.create_log(name, schema=pa.schema([("t", pa.timestamp("ns"))]))
        with pytest.raises(errors.InvalidArgumentError, match=r"t does not fit into timestamp\[us\]: .*lose data"):
            log.write(pa.table({"t": pa.array([1], pa.timestamp("ns"))}))
        log.write(pa.table({"t": pa.array([1000], pa.timestamp("ns"))}))

    @pytest.mark.parametrize(
        "data",
        [[1, 2], {"id": [1]}, None, pl.LazyFrame({"id": [1]}), "orders.parquet"],
        ids=lambda one: type(one).__name__,
    )
    def test_what_is_no_table(self, log: Log, data: object) -> None:
        with pytest.raises(errors.InvalidArgumentError, match="a log takes Arrow tables.* make a pyarrow.Table of it"):
            log.write(data)

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ({"mode": "upsert"}, "mode must be append or overwrite, got 'upsert'"),
            ({"txn_app_id": "a"}, "txn_app_id and txn_version go together"),
            ({"txn_app_id": "", "txn_version": 1}, "txn_app_id must be a name"),
            ({"txn_app_id": "a", "txn_version": -1}, "txn_version must be a whole number, 0 or more, got -1"),
            ({"compression": "gzip"}, "compression must be auto, lz4, zstd or None, got 'gzip'"),
            ({"entry_bytes": 1}, "entry_bytes must be a whole number from 1024 to 67108864, got 1"),
        ],
    )
    def test_arguments_that_are_wrong(self, log: Log, arguments: dict[str, object], text: str) -> None:
        with pytest.raises(errors.InvalidArgumentError, match=text):
            log.write(rows(0, 1), **arguments)  # type: ignore[arg-type]


class TestNewLogs:
    def test_schemas_of_tables_and_frames(self, bk: BookKeeper, name: str) -> None:
        for number, given in enumerate((SCHEMA, rows(0, 1), rows(0, 1).to_pandas(), pl.DataFrame(rows(0, 1)))):
            made = bk.create_log(f"{name}-{number}", schema=given)
            assert made.scan().schema == SCHEMA
        assert json.loads(made.settings.schema_json or "")["fields"][0] == {
            "name": "id",
            "type": "long",
            "nullable": True,
            "metadata": {},
        }

    @pytest.mark.parametrize(
        ("schema", "text"),
        [
            (pa.schema([]), "the schema has no columns"),
            (pa.schema([("a", pa.int64()), ("a", pa.string())]), "2 columns named a"),
            (
                pa.schema([("a", pa.int64()), ("b", pa.uint32())]),
                "column b has Arrow type uint32, which Spark",
            ),
            ("id LONG", "a log takes Arrow tables"),
        ],
        ids=str,
    )
    def test_schemas_that_no_log_can_have(self, bk: BookKeeper, name: str, schema: object, text: str) -> None:
        with pytest.raises(errors.InvalidArgumentError, match=text):
            bk.create_log(name, schema=schema)
        assert not bk.logs.exists(name)


# --- threads and memory ---------------------------------------------------------------------------------


def test_a_scan_that_is_given_up_ends_its_threads(log: Log) -> None:
    log.write(rows(0, 10_000, 1000), compression=None, entry_bytes=64 * 1024)
    batches = log.scan(threads=3, buffer_bytes=1024 * 1024).batches()
    next(batches)
    assert any(thread.name == "bk-scan" for thread in threading.enumerate())
    batches.close()
    assert not any(thread.name == "bk-scan" for thread in threading.enumerate())


def test_memory_is_bounded_and_ledgers_roll(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """80 MB of rows. What waits for the program comes near the limit, and is never much more."""
    log.write(rows(0, 20_000, 4000), compression=None, entry_bytes=256 * 1024, roll_bytes=8 * 1024 * 1024)
    assert len(registered_ledgers(log)) > 1
    limit = 8 * 1024 * 1024
    begun = instances(monkeypatch, OrderedReads)
    scan = log.scan(threads=4, buffer_bytes=limit)
    with closing(scan.batches()) as batches:
        total = next(batches).nbytes
        (reads,) = begun
        most = 0
        for batch in batches:
            total += batch.nbytes
            most = max(most, _waiting_bytes(reads))
    assert total > 75_000_000
    assert limit / 4 < most <= limit + 2 * 1024 * 1024


def _waiting_bytes(reads: OrderedReads) -> int:
    return sum(batch.nbytes for part in kept(reads, object) for batch, _ in list(getattr(part, "waiting", ())))


def test_a_few_columns_do_not_hold_on_to_the_others(log: Log) -> None:
    log.write(rows(0, 20_000, 2000), compression=None)
    tracemalloc.start()
    try:
        found = log.scan(["id"]).to_arrow()
        gc.collect()
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.num_rows == 20_000
    # Their entries had 40 MB. What connections receive into stays, 2 MiB each.
    assert held_bytes < 10_000_000


# --- rules that are broken on purpose (tests/mutation/lists/tables.py) ---


def test_a_column_of_the_logs_own_goes_before_one_that_says_where_rows_come_from(bk: BookKeeper, name: str) -> None:
    log = bk.create_log(name, schema=pa.schema([("offset", pa.string())]))
    log.write(pa.table({"offset": ["mine"]}))
    assert log.scan(["offset", "entryId"]).to_arrow().to_pydict() == {"offset": ["mine"], "entryId": [0]}
    with pytest.raises(errors.InvalidArgumentError, match="column offset of its own"):
        log.scan(include_metadata=True)


def test_a_repeated_write_is_in_the_log_once(log: Log) -> None:
    one = log.write(rows(0, 10), txn_app_id="nightly", txn_version=7)
    again = log.write(rows(0, 10), txn_app_id="nightly", txn_version=7)
    assert (one.status, again.status) == (CommitStatus.COMMITTED, CommitStatus.ALREADY_DONE)
    assert (again.start_offset, again.end_offset) == (one.start_offset, one.end_offset)
    assert log.write(rows(10, 5), txn_app_id="nightly", txn_version=8).status is CommitStatus.COMMITTED
    assert log.write(rows(0, 10), txn_app_id="nightly", txn_version=7).status is CommitStatus.ALREADY_DONE
    assert log.scan().to_arrow().equals(rows(0, 15))


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"id": [1], "name": ["a"]}, "column amount of log {log} is missing from the data"),
        ({"id": [1], "name": ["a"], "amount": [1.0], "more": [1]}, "log {log} has no column more; it has id, name"),
        (
            {"id": ["1"], "name": ["a"], "amount": [1.0]},
            "column id is string here and bigint in log {log}: cast",
        ),
        ({"id": [1], "name": [["a"]], "amount": [1.0]}, "column name is array<string> here and string in log"),
        ({"id": pa.array([1], pa.uint64()), "name": ["a"], "amount": [1.0]}, "column id has Arrow type uint64"),
    ],
)
def test_columns_that_do_not_fit(log: Log, columns: dict[str, object], text: str) -> None:
    with pytest.raises(errors.InvalidArgumentError, match=text.format(log=log.name)):
        log.write(pa.table(columns))
    assert registered_ledgers(log) == {}
