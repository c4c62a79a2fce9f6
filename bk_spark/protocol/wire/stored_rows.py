"""Copies stored entries of one size into the rows of a table of answers, wherever they lie."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.arrays import Bytes, Int64s

#: Larger entries are sent from where they are. To copy them costs more than a buffer of their own.
_COPIED_BYTES: Final = 4 * 1024


def copied_size(sizes: Int64s) -> int | None:
    """Return the size of entries that are to be copied. None if they have many sizes, or are large."""
    size = int(sizes[0])
    return size if size <= _COPIED_BYTES and bool((sizes == size).all()) else None


def put_stored(table: npt.NDArray[np.uint8], at: int, data: Bytes, starts: Int64s) -> None:
    """Fill the columns of ``table`` from ``at`` on with the bytes of ``data`` from each of ``starts`` on.

    Entries of one batch are neighbours in memory, but not those of two. So the bytes are taken as overlapping items,
    one at every byte, which costs the same wherever they start.
    """
    count, row_bytes = table.shape
    item = f"V{row_bytes - at}"
    items: npt.NDArray[np.void] = np.ndarray((len(data) - row_bytes + at + 1,), item, data.data, strides=(1,))
    rows: npt.NDArray[np.void] = np.ndarray((count,), item, table.data, offset=at, strides=(row_bytes,))
    rows[:] = items[starts]
