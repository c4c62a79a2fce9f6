"""Record batches of a task."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from bk_spark.datasource.split_rows import joined

KIB = 1 << 10
SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("value", pa.binary())])


def _batch(first: int, rows: int, value_bytes: int) -> pa.RecordBatch:
    ids = pa.array(range(first, first + rows), pa.int64())
    return pa.record_batch([ids, pa.array([bytes(value_bytes)] * rows, pa.binary())], schema=SCHEMA)


@pytest.mark.parametrize("seed", range(20))
def test_joining_keeps_rows_and_their_order(seed: int) -> None:
    rng = random.Random(seed)
    batches, rows = [], 0
    for _ in range(rng.randint(0, 60)):
        count = rng.choice([0, 1, 5, 100])
        batches.append(_batch(rows, count, rng.choice([0, 10, 2 * KIB, 100 * KIB])).slice(0, count))
        rows += count
    found = list(joined(iter(batches)))
    assert [one for batch in found for one in batch.column(0).to_pylist()] == list(range(rows))
    assert all(batch.schema == SCHEMA for batch in found)
    assert all(small.nbytes <= 1100 * KIB or small in batches for small in found)


def test_few_bytes_become_one_batch_and_many_stay_as_they_are() -> None:
    small, large = [_batch(n, 1, 100) for n in range(1000)], _batch(1000, 10, 100 * KIB)
    found = list(joined([*small, large, *small[:3]]))
    assert [batch.num_rows for batch in found] == [1000, 10, 3]
    assert found[1] is large
