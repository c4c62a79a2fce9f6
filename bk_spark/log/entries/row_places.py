"""Where the rows of a task are, for error texts. Pure.

A task counts its rows from 0. Those that are written to one of several logs are some of them, so that a row has another
number among the rows of its log. Users know the task's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class RowRun:
    """Rows that were taken from one batch of a task.

    Parameters
    ----------
    first_row
        The number of the batch's first row in the task.
    rows
        How many rows there are.
    positions
        The rows' positions in the batch. None: they are the whole batch, in its order.
    """

    first_row: int
    rows: int
    positions: npt.NDArray[np.int64] | None = None

    @property
    def size_bytes(self) -> int:
        """The memory that the positions take."""
        return 0 if self.positions is None else self.positions.nbytes

    def number(self, row: int) -> int:
        """Return the number in the task of one of these rows."""
        return self.first_row + (row if self.positions is None else int(self.positions[row]))


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """Tells which rows of a task are written.

    Parameters
    ----------
    partition
        The task's number.
    runs
        The rows that are written, in order. None: all rows of the task.
    """

    partition: int
    runs: Sequence[RowRun] | None = None

    def of(self, row: int) -> str:
        """Return the place of a row that is written, counted from 0, as text: ``row 7 of partition 2``."""
        return f"row {self._number(row)} of partition {self.partition}"

    def _number(self, row: int) -> int:
        if self.runs is None:
            return row
        for run in self.runs:
            if row < run.rows:
                return run.number(row)
            row -= run.rows
        raise IndexError(f"{row} more rows than were given")
