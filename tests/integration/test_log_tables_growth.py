"""Columns of logs that grow with the tables written to them, without Spark (``merge_schema``), on real bookies."""

from __future__ import annotations

import asyncio
import decimal
import threading
import uuid
from collections.abc import Iterator

import pandas as pd
import pyarrow as pa
import pytest

import bk_spark
from bk_spark import BookKeeper, Log, errors
from bookie_server.local import LocalCluster

pytestmark = pytest.mark.integration

SCHEMA = pa.schema([("id", pa.int32()), ("name", pa.string())])


@pytest.fixture
def bk(cluster: LocalCluster) -> Iterator[BookKeeper]:
    with bk_spark.connect(cluster.metadata_service_uri, password="secret") as one:
        yield one


@pytest.fixture
def log(bk: BookKeeper) -> Log:
    log = bk.create_log(f"growth-{uuid.uuid4().hex[:12]}", schema=SCHEMA)
    log.write(pa.table({"id": pa.array([1], pa.int32()), "name": ["a"]}))
    return log


def test_new_columns_are_null_in_older_rows(bk: BookKeeper, log: Log) -> None:
    result = log.write(pa.table({"id": pa.array([2], pa.int32()), "name": ["b"], "amount": [1.5]}), merge_schema=True)
    assert (result.start_offset, result.end_offset) == (1, 2)
    expected = [{"id": 1, "name": "a", "amount": None}, {"id": 2, "name": "b", "amount": 1.5}]
    # The object that wrote, and others.
    assert log.scan().to_arrow().to_pylist() == expected
    assert bk.log(log.name).scan().to_arrow().to_pylist() == expected
    assert log.settings.schema_version == 1
    # And it takes such rows from now on without growing.
    log.write(pa.table({"amount": [2.5], "name": ["c"], "id": pa.array([3], pa.int32())}))
    assert log.scan(["amount"]).to_arrow()["amount"].to_pylist() == [None, 1.5, 2.5]
    assert log.settings.schema_version == 1


def test_added_columns_that_the_data_lacks_are_null(log: Log) -> None:
    log.write(pd.DataFrame({"id": [2], "name": ["b"], "amount": [1.5]}), merge_schema=True)
    log.write(pd.DataFrame({"id": [3], "name": ["c"]}), merge_schema=True)
    assert log.scan(["amount"]).to_arrow()["amount"].to_pylist() == [None, 1.5, None]
    assert log.settings.schema_version == 1


@pytest.mark.parametrize(
    ("before", "given", "value", "becomes"),
    [
        (pa.int32(), pa.int64(), 2**40, pa.int64()),
        (pa.int32(), pa.int8(), 7, pa.int32()),
        (pa.float32(), pa.float64(), 0.1, pa.float64()),
        (pa.decimal128(4, 0), pa.decimal128(12, 2), decimal.Decimal("9.25"), pa.decimal128(12, 2)),
    ],
    ids=str,
)
def test_columns_become_wider(
    bk: BookKeeper, before: pa.DataType, given: pa.DataType, value: object, becomes: pa.DataType
) -> None:
    log = bk.create_log(f"growth-{uuid.uuid4().hex[:12]}", schema=pa.schema([("x", before)]))
    log.write(pa.table({"x": pa.array([1], before)}))
    log.write(pa.table({"x": pa.array([value], given)}), merge_schema=True)
    found = log.scan().to_arrow()
    assert found.schema.field("x").type == becomes
    assert found["x"].to_pylist() == [1, value]


def test_names_that_differ_by_case_are_one_column(log: Log) -> None:
    log.write(pa.table({"ID": pa.array([2], pa.int32()), "Name": ["b"]}), merge_schema=True)
    assert log.scan().to_arrow().to_pylist() == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]


def test_what_would_lose_values_is_refused_and_changes_nothing(log: Log) -> None:
    with pytest.raises(errors.InvalidArgumentError, match=r"column name .*string.*bigint|column name .*bigint.*string"):
        log.write(pa.table({"id": pa.array([2], pa.int32()), "name": [5]}), merge_schema=True)
    with pytest.raises(
        errors.InvalidArgumentError, match="column name of log .* is missing from the data.*never drops"
    ):
        log.write(pa.table({"id": [2], "title": ["b"]}), merge_schema=True)
    with pytest.raises(errors.InvalidArgumentError, match="no column amount.*write with merge_schema=True, which adds"):
        log.write(pa.table({"id": pa.array([2], pa.int32()), "name": ["b"], "amount": [1.0]}))
    with pytest.raises(errors.InvalidArgumentError, match="id is bigint here and int in log .*merge_schema=True"):
        log.write(pa.table({"id": [2], "name": ["b"]}))
    with pytest.raises(errors.InvalidArgumentError, match="merge_schema must be True or False, got 'yes'"):
        log.write(pa.table({"id": [2], "name": ["b"]}), merge_schema="yes")  # type: ignore[arg-type]
    assert log.scan().to_arrow().num_rows == 1
    assert log.settings.schema_version == 0


def test_two_writers_that_add_columns_at_once(bk: BookKeeper, log: Log) -> None:
    """Both columns are there, whoever is first; each row has its own."""
    gate = threading.Barrier(2)

    def write(column: str) -> None:
        mine = bk.log(log.name)
        gate.wait(30)
        mine.write(pa.table({"id": pa.array([2], pa.int32()), "name": ["b"], column: [column]}), merge_schema=True)

    writers = [threading.Thread(target=write, args=(column,)) for column in ("left", "right")]
    for one in writers:
        one.start()
    for one in writers:
        one.join(60)
    found = bk.log(log.name).scan().to_arrow()
    assert sorted(found.schema.names) == ["id", "left", "name", "right"]
    assert {(row["left"], row["right"]) for row in found.slice(1).to_pylist()} == {("left", None), (None, "right")}


def test_two_writers_with_types_that_no_column_holds(bk: BookKeeper, log: Log) -> None:
    """The later one is refused by the commit, which sees what the first has added. Its rows are not there."""
    other = bk.log(log.name)
    log.write(pa.table({"id": [2], "name": ["b"], "extra": ["text"]}), merge_schema=True)
    with pytest.raises(errors.InvalidArgumentError, match="column extra"):
        other.write(pa.table({"id": [3], "name": ["c"], "extra": [b"bytes"]}), merge_schema=True)
    assert log.scan().to_arrow().num_rows == 2


def test_a_repeated_write_adds_rows_and_columns_once(log: Log) -> None:
    table = pa.table({"id": pa.array([2], pa.int32()), "name": ["b"], "extra": [1]})
    for _ in range(2):
        log.write(table, merge_schema=True, txn_app_id="job", txn_version=1)
    assert log.scan(["extra"]).to_arrow()["extra"].to_pylist() == [None, 1]
    assert log.settings.schema_version == 1


def test_with_asyncio(cluster: LocalCluster, log: Log) -> None:
    async def write() -> list[object]:
        async with await bk_spark.connect_async(cluster.metadata_service_uri, password="secret") as bk:
            mine = await bk.log(log.name)
            await mine.write(pa.table({"id": [2**40], "name": ["b"], "extra": ["c"]}), merge_schema=True)
            return [batch async for batch in await mine.scan()]

    batches = asyncio.run(write())
    found = pa.Table.from_batches(batches).to_pylist()  # type: ignore[arg-type]
    assert found == [{"id": 1, "name": "a", "extra": None}, {"id": 2**40, "name": "b", "extra": "c"}]


@pytest.mark.parametrize(
    "arguments",
    [{"compression": "zstd"}, {"compression": "lz4"}, {"entry_bytes": 4096}, {"merge_schema": True}],
    ids=str,
)
def test_a_raw_log_refuses_what_it_cannot_do(bk: BookKeeper, arguments: dict[str, object]) -> None:
    log = bk.create_log(f"growth-{uuid.uuid4().hex[:12]}")
    (name,) = arguments
    with pytest.raises(errors.InvalidArgumentError, match=f"{name} is for logs with entryFormat arrow; log .* is raw"):
        log.write(pa.table({"value": [b"a"]}), **arguments)  # type: ignore[arg-type]
    assert log.write(pa.table({"value": [b"a"]}), compression=None).end_offset == 1
