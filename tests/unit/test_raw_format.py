"""Entries of format raw: values to payloads and back, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from bk_spark.log.entries.raw_format import rows, value_array
from bk_spark.log.entries.row_places import RowPlaces
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import InvalidArgumentError

VALUES = [b"", b"one", "zwölf, 十二".encode(), b"", bytes(5000)]
TYPES = (pa.binary(), pa.large_binary(), pa.string(), pa.large_string())


def _batch(values: Sequence[bytes | None], data_type: pa.DataType = TYPES[0]) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.binary()).cast(data_type)})


def _written(*batches: pa.RecordBatch, limit: int = 1 << 20) -> list[bytes]:
    return [bytes(payload) for payloads in rows(iter(batches), RowPlaces(2), limit) for payload in payloads]


@pytest.mark.parametrize("data_type", TYPES, ids=str)
def test_values_become_payloads(data_type: pa.DataType) -> None:
    assert _written(_batch(VALUES, data_type)) == VALUES
    assert _written(_batch(VALUES, data_type).slice(1, 3)) == VALUES[1:4]
    assert _written(_batch([]), _batch(VALUES[:2], data_type), _batch([]), _batch(VALUES[2:], data_type)) == VALUES
    assert _written(_batch([b"", b""], data_type)) == [b"", b""]
    assert _written() == []


@pytest.mark.parametrize("data_type", TYPES, ids=str)
def test_a_null_is_named_by_row_and_partition(data_type: pa.DataType) -> None:
    with pytest.raises(InvalidArgumentError, match="column value is null in row 7 of partition 2"):
        _written(_batch(VALUES, data_type), _batch([b"", b"x", None, None], data_type))
    with pytest.raises(InvalidArgumentError, match=r"row 0 .*IS NOT NULL"):
        _written(_batch([b"", None], data_type).slice(1))


@pytest.mark.parametrize("data_type", TYPES, ids=str)
def test_a_value_too_large_is_named_by_row_and_partition(data_type: pa.DataType) -> None:
    assert _written(_batch(VALUES, data_type), limit=5000) == VALUES
    with pytest.raises(InvalidArgumentError, match="column value has 5000 bytes in row 9 of partition 2") as raised:
        _written(_batch([b""] * 5, data_type), _batch(VALUES, data_type), limit=4999)
    assert "allows 4999" in str(raised.value)


def test_rows_before_a_wrong_batch_are_given_first() -> None:
    batches = rows(iter([_batch([b"good"]), _batch([None])]), RowPlaces(0), 100)
    assert [bytes(payload) for payload in next(batches)] == [b"good"]
    with pytest.raises(InvalidArgumentError):
        next(batches)


def _payloads(values: list[bytes], skipped: bytes = b"") -> Payloads:
    """Payloads that begin within a larger buffer."""
    offsets = len(skipped) + np.cumsum([0, *map(len, values)])
    return Payloads(memoryview(skipped + b"".join(values) + b"more"), offsets)


def _where(index: int) -> tuple[int, int]:
    return 5, 100 + index


@pytest.mark.parametrize("skipped", [b"", b"skipped"])
def test_payloads_become_values(skipped: bytes) -> None:
    assert value_array(_payloads(VALUES, skipped), pa.binary(), _where).to_pylist() == VALUES
    texts = value_array(_payloads(VALUES, skipped), pa.string(), _where)
    assert texts.type == pa.string()
    assert texts.to_pylist() == [value.decode() for value in VALUES]


@pytest.mark.parametrize("wrong", [b"\xff\xfe", b"cut short \xe5\x8d", "\ud800".encode("utf-8", "surrogatepass")])
def test_bytes_that_are_not_utf8_are_named_by_entry(wrong: bytes) -> None:
    values = [*VALUES, wrong, b"good", wrong]
    assert value_array(_payloads(values), pa.binary(), _where).to_pylist() == values
    with pytest.raises(InvalidArgumentError, match="not UTF-8: read it as binary") as raised:
        value_array(_payloads(values), pa.string(), _where)
    assert (raised.value.ledger_id, raised.value.entry_id) == (5, 105)


def test_text_cut_within_a_character_at_an_entry_s_end_is_found() -> None:
    # Together the two are valid: each has to be looked at alone.
    first, second = "十".encode()[:1], "十".encode()[1:]
    with pytest.raises(InvalidArgumentError) as raised:
        value_array(_payloads([first, second]), pa.string(), _where)
    assert raised.value.entry_id == 100
