"""The location of an entry as one number: > 0 in an entry log (entry_log.py), < 0 in the write cache, 0 absent.

In memory: ``-1 - (half << 60 | position)``, half 0 for the active, 1 for the flushing one.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from bk_spark.protocol.arrays import Int64s

_HALF_SHIFT: Final = 60
_POSITION_MASK: Final = (1 << _HALF_SHIFT) - 1


def in_memory(half: int, positions: Int64s) -> Int64s:
    """Locations of positions in a half of the write cache."""
    locations: Int64s = -1 - (positions | (half << _HALF_SHIFT))
    return locations


def half_and_positions(locations: Int64s) -> tuple[int, Int64s]:
    """The half of the first in-memory location, and the positions of the leading locations in that half."""
    values = -1 - locations
    halves = values >> _HALF_SHIFT
    others = np.flatnonzero(halves != halves[0])
    count = int(others[0]) if len(others) else len(values)
    return int(halves[0]), values[:count] & _POSITION_MASK
