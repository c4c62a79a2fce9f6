"""Values of Pulsar's primitive types, all of a column at once. Source: docs/design/pulsar.md §2.9.

Numbers are big-endian. Dates and times of ``java.util`` and ``java.sql`` are milliseconds since 1970, whatever their
name says, so they are times here. Spark has no nanoseconds: they are cut to microseconds. Not every supported Spark has
a type for a time of day: LOCAL_TIME is the number of nanoseconds since midnight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bk_spark.protocol.arrays import Bools, Int64s
from bk_spark.protocol.pulsar.columns import TIME
from bk_spark.protocol.pulsar.topics.schemas import SchemaType

_Raw = npt.NDArray[np.uint8]
#: Beyond these, times do not fit Spark's microseconds.
_MAX_MS: Final = (1 << 63) // 1000 - 1
_MAX_SECONDS: Final = (1 << 63) // 1_000_000 - 1
_MAX_DAY: Final = (1 << 31) - 1
_DAY_NS: Final = 86_400_000_000_000
_DAY_US: Final = _DAY_NS // 1000
_MAX_DAY_OF_TIME: Final = (1 << 63) // _DAY_US - 1


def _numbers(raw: _Raw, begin: int, kind: str) -> Int64s:
    """Return the big-endian numbers in some columns of the rows."""
    width = np.dtype(kind).itemsize
    return np.ascontiguousarray(raw[:, begin : begin + width]).view(f">{kind}").reshape(-1).astype(np.int64)


def _within(values: Int64s, most: int) -> Bools:
    """Which values are at most so far from 0. The least of all has no absolute value of 64 bits."""
    return (values >= -most) & (values <= most)


def _plain(kind: str) -> Callable[[_Raw], tuple[npt.NDArray[Any], Bools | None]]:
    return lambda raw: (raw.view(f">{kind}").reshape(-1).astype(kind), None)


def _boolean(raw: _Raw) -> tuple[npt.NDArray[Any], Bools | None]:
    return raw[:, 0] != 0, None


def _milliseconds(raw: _Raw) -> tuple[npt.NDArray[Any], Bools | None]:
    values = _numbers(raw, 0, "i8")
    fits = _within(values, _MAX_MS)
    return np.where(fits, values, 0) * 1000, fits


def _instant(raw: _Raw) -> tuple[npt.NDArray[Any], Bools | None]:
    seconds, nanos = _numbers(raw, 0, "i8"), _numbers(raw, 8, "i4")
    fits = _within(seconds, _MAX_SECONDS) & (nanos >= 0) & (nanos < 1_000_000_000)
    return np.where(fits, seconds, 0) * 1_000_000 + np.where(fits, nanos, 0) // 1000, fits


def _local_date(raw: _Raw) -> tuple[npt.NDArray[Any], Bools | None]:
    days = _numbers(raw, 0, "i8")
    fits = _within(days, _MAX_DAY)
    return np.where(fits, days, 0).astype(np.int32), fits


def _local_time(raw: _Raw) -> tuple[npt.NDArray[Any], Bools | None]:
    nanos = _numbers(raw, 0, "i8")
    return nanos, (nanos >= 0) & (nanos < _DAY_NS)


def _local_date_time(raw: _Raw) -> tuple[npt.NDArray[Any], Bools | None]:
    days, nanos = _numbers(raw, 0, "i8"), _numbers(raw, 8, "i8")
    fits = _within(days, _MAX_DAY_OF_TIME) & (nanos >= 0) & (nanos < _DAY_NS)
    return np.where(fits, days, 0) * _DAY_US + np.where(fits, nanos, 0) // 1000, fits


#: Bytes of a value, type of the column, and how rows of such bytes become numbers, with which of them fit.
PRIMITIVES: Final[
    dict[SchemaType, tuple[int, pa.DataType, Callable[[_Raw], tuple[npt.NDArray[Any], Bools | None]]]]
] = {
    SchemaType.BOOLEAN: (1, pa.bool_(), _boolean),
    SchemaType.INT8: (1, pa.int8(), _plain("i1")),
    SchemaType.INT16: (2, pa.int16(), _plain("i2")),
    SchemaType.INT32: (4, pa.int32(), _plain("i4")),
    SchemaType.INT64: (8, pa.int64(), _plain("i8")),
    SchemaType.FLOAT: (4, pa.float32(), _plain("f4")),
    SchemaType.DOUBLE: (8, pa.float64(), _plain("f8")),
    SchemaType.DATE: (8, TIME, _milliseconds),
    SchemaType.TIME: (8, TIME, _milliseconds),
    SchemaType.TIMESTAMP: (8, TIME, _milliseconds),
    SchemaType.INSTANT: (12, TIME, _instant),
    SchemaType.LOCAL_DATE: (8, pa.date32(), _local_date),
    SchemaType.LOCAL_TIME: (8, pa.int64(), _local_time),
    SchemaType.LOCAL_DATE_TIME: (16, pa.timestamp("us"), _local_date_time),
}


def decode_primitives(kind: SchemaType, values: pa.BinaryArray) -> tuple[pa.Array, Bools]:
    """Decode a column.

    Parameters
    ----------
    kind
        A type of :data:`PRIMITIVES`.
    values
        The encoded values.

    Returns
    -------
    tuple
        The values, and which ones do not have the form of the type; these are null.
    """
    width, column_type, decode = PRIMITIVES[kind]
    begins, sizes, data, present = scattered(values)
    sound = present & (sizes == width)
    raw = np.zeros((len(values), width), np.uint8)
    if sound.all() and len(values):
        raw[:] = data[int(begins[0]) : int(begins[-1]) + width].reshape(-1, width)
    else:
        raw[sound] = data[begins[sound][:, np.newaxis] + np.arange(width)]
    numbers, fits = decode(raw)
    if fits is not None:
        sound &= fits
    mask = None if sound.all() else ~sound
    if column_type in (TIME, pa.timestamp("us")):
        found = pa.array(numbers, pa.int64(), mask=mask).view(column_type)
    elif column_type == pa.date32():
        found = pa.array(numbers, pa.int32(), mask=mask).view(column_type)
    else:
        found = pa.array(numbers, column_type, mask=mask)
    return found, present & ~sound


def scattered(values: pa.BinaryArray) -> tuple[Int64s, Int64s, _Raw, Bools]:
    """Return where the values of an array begin, their sizes, its data, and which values are not null."""
    validity, offsets_buffer, data_buffer = values.buffers()
    if not len(values):
        none = np.zeros(0, np.int64)
        return none, none, np.zeros(0, np.uint8), np.zeros(0, np.bool_)
    offsets = np.frombuffer(offsets_buffer, np.int32, len(values) + 1, 4 * values.offset).astype(np.int64)
    data = np.zeros(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    if validity is None:
        present = np.ones(len(values), np.bool_)
    else:
        bits = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
        present = bits[values.offset : values.offset + len(values)].astype(np.bool_)
    return offsets[:-1], np.diff(offsets), data, present
