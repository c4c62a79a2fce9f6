"""Arrow's arrays of bytes and text that lie scattered in a buffer, without an object per value.

Values that ascend in a buffer make an Arrow array at once: its values are, in turn, one of ours and what is between it
and the next one. Arrow then copies every other value.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bk_spark.protocol.arrays import Bools, Int64s

#: Arrow's offsets have 32 bits.
MAX_BUFFER_BYTES: Final = 2**31 - 1


def gathered(data: bytes | memoryview, begins: Int64s, sizes: Int64s, valid: Bools | None = None) -> pa.BinaryArray:
    """Return values of a buffer as an array of binary.

    Parameters
    ----------
    data
        The buffer, of less than 2 GiB.
    begins, sizes
        Where the values are. They ascend and do not overlap; places of values that are not valid do not matter.
    valid
        Which values are not null. None if none is.
    """
    count = len(begins)
    if not count:
        return pa.array([], pa.binary())
    if valid is not None and not valid.all():
        # A null is of no size, at the end of the value before it.
        ends = np.maximum.accumulate(np.where(valid, begins + sizes, 0))
        begins = np.where(valid, begins, ends)
    else:
        ends, valid = begins + sizes, None
    bounds = np.empty(2 * count, np.int32)
    bounds[::2], bounds[1::2] = begins, ends
    if (bounds[1:] < bounds[:-1]).any():
        raise ValueError("values that do not ascend in their buffer")
    scattered = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    found = scattered.take(pa.array(np.arange(0, 2 * count - 1, 2, dtype=np.int32)))
    return found if valid is None else with_nulls(found, valid)


def with_nulls(values: pa.Array, valid: Bools) -> pa.Array:
    """Return an array of bytes or text with nulls where it is not ``valid``."""
    _, offsets, data = values.buffers()
    bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(values.type, len(values), [bits, offsets, data], offset=values.offset)


def text_of(values: pa.BinaryArray) -> pa.StringArray:
    """Return bytes as text. Those that are not UTF-8 are replaced, as Java does."""
    try:
        found = values.view(pa.string())
        found.validate(full=True)
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode("utf-8", "replace") for value in values.to_pylist()]
        return pa.array(texts, pa.string())
    return found


def base64_decoded(values: pa.BinaryArray, chosen: Bools) -> pa.BinaryArray:
    """Return an array of binary in which the ``chosen`` values are decoded from base64. Others stay as they are.

    A value that is not base64 stays as it is, too: it must not make the whole topic unreadable.
    """
    _, offsets_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, len(values) + 1, 4 * values.offset).astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    sizes = np.diff(offsets)
    chosen = chosen & (sizes > 0) & (sizes % 4 == 0)
    if not chosen.any():
        return values
    data = data[offsets[0] : offsets[-1]]
    owners = np.repeat(np.arange(len(values)), sizes)
    digits = _DIGITS[data]
    # Padding: one or two at the end of a value. With any other byte that is not a digit, the value is not base64.
    last, before = offsets[1:] - offsets[0] - 1, offsets[1:] - offsets[0] - 2
    padded = np.zeros(len(data), np.bool_)
    ends = np.flatnonzero(chosen)
    one = ends[data[last[ends]] == _PADDING]
    padded[last[one]] = True
    two = one[data[before[one]] == _PADDING]
    padded[before[two]] = True
    wrong = owners[(digits > 63) & ~padded]
    chosen[wrong] = False
    kept_digits = np.where(digits > 63, 0, digits).astype(np.uint32)
    in_chosen = chosen[owners]
    four = kept_digits[in_chosen].reshape(-1, 4)
    bits = four[:, 0] << 18 | four[:, 1] << 12 | four[:, 2] << 6 | four[:, 3]
    three = np.empty((len(bits), 3), np.uint8)
    three[:, 0], three[:, 1], three[:, 2] = bits >> 16, bits >> 8 & 0xFF, bits & 0xFF
    new_sizes = sizes.copy()
    new_sizes[chosen] = sizes[chosen] // 4 * 3
    new_sizes[one] -= chosen[one]
    new_sizes[two] -= chosen[two]
    return _joined(values, data, owners, in_chosen, three.reshape(-1), padded, new_sizes)


def _joined(
    values: pa.BinaryArray,
    data: npt.NDArray[np.uint8],
    owners: Int64s,
    in_chosen: Bools,
    decoded: npt.NDArray[np.uint8],
    padded: Bools,
    sizes: Int64s,
) -> pa.BinaryArray:
    """Put decoded bytes and others together in the order of their values."""
    # Four characters give one byte less than they have characters before the padding.
    keep = np.ones(len(decoded), np.bool_)
    pads = padded[in_chosen].reshape(-1, 4)
    keep.reshape(-1, 3)[:, 1] = ~pads[:, 2]
    keep.reshape(-1, 3)[:, 2] = ~pads[:, 3]
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    from_decoded = np.zeros(len(out), np.bool_)
    chosen = np.zeros(len(sizes), np.bool_)
    chosen[owners[in_chosen]] = True
    from_decoded[np.repeat(chosen, sizes)] = True
    out[from_decoded] = decoded[keep]
    out[~from_decoded] = data[~in_chosen]
    valid: Any = values.buffers()[0]
    if valid is not None:
        valid = pa.py_buffer(np.packbits(np.asarray(values.is_valid()), bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(sizes), [valid, pa.py_buffer(offsets), pa.py_buffer(out)])


_PADDING: Final = ord("=")
_DIGITS: Final = np.full(256, 255, np.uint8)
_DIGITS[np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)] = np.arange(64)


def matched(owners: Int64s, wanted: Int64s, rows: Int64s) -> tuple[Int64s, Int64s]:
    """Return the indexes of values whose owners are ``wanted`` (ascending), and for each the row of its owner."""
    if not len(owners) or not len(wanted):
        none = np.zeros(0, np.int64)
        return none, none
    place = np.minimum(np.searchsorted(wanted, owners), len(wanted) - 1)
    found = np.flatnonzero(wanted[place] == owners)
    return found, rows[place[found]]


def last_of_equal(rows: Int64s, keys: pa.StringArray) -> Int64s | None:
    """Return the indexes of properties without those that a later one of the same row and key replaces.

    None if all stay, which is the common case.
    """
    if len(rows) < 2 or not (rows[1:] == rows[:-1]).any():
        return None
    encoded = keys.dictionary_encode()
    codes = rows * len(encoded.dictionary) + np.asarray(encoded.indices).astype(np.int64)
    order = np.argsort(codes, kind="stable")
    replaced = codes[order[1:]] == codes[order[:-1]]
    if not replaced.any():
        return None
    return np.sort(np.delete(order, np.flatnonzero(replaced)))
