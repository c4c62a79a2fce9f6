"""entryFormat raw: one row per entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from bk_spark.bookie.reading.arrow import binary_array
from bk_spark.log.entries.row_places import RowPlaces
from bk_spark.log.entries.schema_checks import VALUE
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import InvalidArgumentError


def rows(batches: Iterator[pa.RecordBatch], places: RowPlaces, max_value_bytes: int) -> Iterator[Payloads]:
    """Yield the values of a task's batches as payloads, without copying. Skips empty batches.

    Raises InvalidArgumentError for a null and for a value of more than ``max_value_bytes``. The error says where the
    row is, by ``places``.
    """
    row_number = 0
    for batch in batches:
        if batch.num_rows:
            column = batch.column(VALUE)
            if column.null_count:
                row = row_number + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
                raise InvalidArgumentError(
                    f"column {VALUE} is null in {places.of(row)}: entryFormat raw needs a value in "
                    f"every row; leave such rows out, for example with .where({VALUE} IS NOT NULL)"
                )
            payloads = _payloads_of(column)
            sizes = payloads.sizes
            if int(sizes.max()) > max_value_bytes:
                first = int(np.argmax(sizes > max_value_bytes))
                raise InvalidArgumentError(
                    f"column {VALUE} has {int(sizes[first])} bytes in {places.of(row_number + first)}; "
                    f"a bookie's frame limit allows {max_value_bytes}: split the value, or store it "
                    "elsewhere and write a reference to it"
                )
            yield payloads
        row_number += batch.num_rows


def value_array(payloads: Payloads, data_type: pa.DataType, where: Callable[[int], tuple[int, int]]) -> pa.Array:
    """Return payloads as a binary or string column. Raises InvalidArgumentError for bad UTF-8. ``where`` returns the
    ledger and the entry of a row."""
    values = binary_array(payloads)
    if data_type == pa.binary():
        return values
    try:
        return values.cast(data_type)
    except pa.ArrowInvalid as error:
        ledger_id, entry_id = where(_first_not_utf8(payloads))
        raise InvalidArgumentError(
            f"column {VALUE} is not UTF-8: read it as binary, not as string", ledger_id=ledger_id, entry_id=entry_id
        ) from error


def _payloads_of(column: pa.Array) -> Payloads:
    if pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type):
        width: type[np.int32 | np.int64] = np.int64
    else:
        width = np.int32
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, width, len(column) + 1, column.offset * np.dtype(width).itemsize)
    return Payloads(memoryview(data).cast("B") if data is not None else memoryview(b""), ends.astype(np.int64))


def _first_not_utf8(payloads: Payloads) -> int:
    for index, payload in enumerate(payloads):
        try:
            str(payload, "utf-8")
        except UnicodeDecodeError:
            return index
    return 0
