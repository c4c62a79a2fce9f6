"""The entries that a ledger writer has under way: which bookies owe, hold or refused each.

A window over entry ids with one row per entry and one column per ensemble index. A row stays until every bookie that
was sent the entry holds it or has been given up, even after the entry is acknowledged. So an entry that a busy bookie
refused can be sent again, and the debt of a slow bookie counts against the writer's limits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.arrays import Bools, Int64s
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.wire.add_frames import AddFrames

_Scalar = TypeVar("_Scalar", bound=np.generic)

#: The bookie holds the entry.
_HELD: Final = 1
#: The entry was sent to the bookie, which has not confirmed it.
_OWED: Final = 2
#: The bookie refused the entry for now. It still owes it.
_REFUSED: Final = 4
_MIN_ROWS: Final = 256
#: Up to this many entries, numpy's fixed costs exceed the work.
_FEW: Final = 4


class PendingAdds:
    """The window. It begins at ``first_entry_id``, the oldest entry that a bookie owes or that is not acknowledged."""

    def __init__(self, quorum: Quorum, first_entry_id: int) -> None:
        self.first_entry_id = first_entry_id
        self._quorum = quorum
        self._chunks: deque[AddFrames] = deque()
        #: Rows in use are ``_start`` up to ``_end`` of the arrays.
        self._start = self._end = 0
        self._states = np.zeros((_MIN_ROWS, quorum.ensemble_size), np.uint8)
        self._held = np.zeros(_MIN_ROWS, np.int16)
        self._owed = np.zeros(_MIN_ROWS, np.int16)
        self._lengths = np.zeros(_MIN_ROWS, np.int64)
        #: The number of entries that each index owes.
        self._owed_by = [0] * quorum.ensemble_size

    def __len__(self) -> int:
        return self._end - self._start

    def append(self, frames: AddFrames, live: Sequence[bool]) -> list[tuple[list[memoryview], int]]:
        """Add entries for the ``live`` indexes of their write sets. Return for each index the frames to send, and their
        number."""
        count = len(frames)
        if self._end + count > len(self._held):
            self._move(count)
        rows = slice(self._end, self._end + count)
        self._end += count
        self._lengths[rows] = frames.lengths
        self._held[rows] = 0
        self._chunks.append(frames)
        if not self._quorum.striped:
            self._states[rows] = [_OWED if alive else 0 for alive in live]
            self._owed[rows] = sum(live)
            sends = [([frames.data], count) if alive else ([], 0) for alive in live]
        else:
            entry_ids = np.arange(frames.first_entry_id, frames.first_entry_id + count)[:, None]
            sent = self._is_member(np.arange(len(live))[None, :], entry_ids) & np.array(live)[None, :]
            self._states[rows] = np.where(sent, _OWED, 0)
            self._owed[rows] = sent.sum(axis=1)
            sends = [(frames.select(column), int(np.count_nonzero(column))) for column in sent.T]
        for index, (_, owed) in enumerate(sends):
            self._owed_by[index] += owed
        return sends

    def owed(self, index: int) -> int:
        """Return the number of entries that were sent to ``index`` and not confirmed."""
        return self._owed_by[index]

    def on_held(self, index: int, entry_ids: Int64s) -> None:
        """Record that the bookie at ``index`` holds ``entry_ids``."""
        if len(entry_ids) <= _FEW:
            for entry_id in entry_ids.tolist():
                self._on_one_held(index, entry_id)
            return
        rows = self._rows(index, entry_ids)
        if len(rows) > 1 and (rows[1:] <= rows[:-1]).any():
            # An answer may come twice.
            rows = np.unique(rows)
        states = self._states[rows, index]
        owed = rows[states & _OWED != 0]
        self._held[rows[states & _HELD == 0]] += 1
        self._owed[owed] -= 1
        self._owed_by[index] -= len(owed)
        self._states[rows, index] = _HELD

    def _on_one_held(self, index: int, entry_id: int) -> None:
        row = entry_id - self.first_entry_id
        if not 0 <= row < len(self) or not self._quorum.stores(index, entry_id):
            return
        row += self._start
        state = self._states[row, index]
        if not state & _HELD:
            self._held[row] += 1
        if state & _OWED:
            self._owed[row] -= 1
            self._owed_by[index] -= 1
        self._states[row, index] = _HELD

    def on_refused(self, index: int, entry_ids: Int64s) -> None:
        """Record that the bookie at ``index`` is too busy for ``entry_ids``."""
        rows = self._rows(index, entry_ids)
        rows = rows[self._states[rows, index] & _OWED != 0]
        self._states[rows, index] |= _REFUSED

    def take_refused(self, index: int) -> tuple[list[memoryview], int]:
        """Return the frames that ``index`` refused, to send them again, and their number."""
        column = self._column(index)
        refused = column & _REFUSED != 0
        column[refused] = _OWED
        return self._frames(refused)

    def give_up(self, index: int) -> None:
        """Expect nothing more from the bookie at ``index``. The entries that it holds still count."""
        column = self._column(index)
        self._owed[self._start : self._end][column & _OWED != 0] -= 1
        column &= _HELD
        self._owed_by[index] = 0

    def replace(self, index: int, first_entry_id: int) -> tuple[list[memoryview], int]:
        """Replace the bookie at ``index`` from ``first_entry_id`` on. Return the frames for the new one, and their
        number."""
        self.give_up(index)
        column = self._column(index)
        new = slice(max(0, first_entry_id - self.first_entry_id), len(self))
        held, owed = self._held[self._start : self._end], self._owed[self._start : self._end]
        held[new] -= column[new] & _HELD
        member = self._is_member(index, np.arange(self.first_entry_id + new.start, self.first_entry_id + new.stop))
        column[new] = np.where(member, _OWED, 0)
        owed[new] += member
        self._owed_by[index] = int(np.count_nonzero(member))
        return self._frames(column & _OWED != 0)

    def complete_through(self, last_add_confirmed: int) -> int:
        """Return the end of the run of entries after ``last_add_confirmed`` that an ack quorum holds."""
        first = self._start + last_add_confirmed + 1 - self.first_entry_id
        if first >= self._end or self._held[first] < self._quorum.ack_quorum_size:
            return last_add_confirmed
        return last_add_confirmed + _leading(self._held[first : self._end] >= self._quorum.ack_quorum_size)

    def length_at(self, entry_id: int) -> int:
        """Return the ledger's payload bytes up to and including ``entry_id``."""
        return int(self._lengths[self._start + entry_id - self.first_entry_id])

    def release(self, last_add_confirmed: int) -> None:
        """Forget acknowledged entries that no bookie owes."""
        end = self._start + last_add_confirmed + 1 - self.first_entry_id
        if end == self._start or self._owed[self._start]:
            return
        count = _leading(self._owed[self._start : end] == 0)
        self._start += count
        self.first_entry_id += count
        while self._chunks and self._chunks[0].first_entry_id + len(self._chunks[0]) <= self.first_entry_id:
            self._chunks.popleft()

    def clear(self) -> None:
        """Forget everything."""
        self._start = self._end = 0
        self._owed_by = [0] * self._quorum.ensemble_size
        self._chunks.clear()

    def _column(self, index: int) -> npt.NDArray[np.uint8]:
        return self._states[self._start : self._end, index]

    def _rows(self, index: int, entry_ids: Int64s) -> Int64s:
        """Return the array rows of those ``entry_ids`` that are in the window and belong to ``index``."""
        rows = entry_ids - self.first_entry_id
        here = (rows >= 0) & (rows < len(self)) & self._is_member(index, entry_ids)
        return np.asarray(rows[here] + self._start, np.int64)

    def _is_member(self, index: int | Int64s, entry_ids: Int64s) -> Bools:
        quorum = self._quorum
        return np.asarray((index - entry_ids) % quorum.ensemble_size < quorum.write_quorum_size)

    def _frames(self, wanted: Bools) -> tuple[list[memoryview], int]:
        views: list[memoryview] = []
        for chunk in self._chunks:
            begin = chunk.first_entry_id - self.first_entry_id
            part = wanted[max(0, begin) : begin + len(chunk)]
            if part.any():
                inside = np.zeros(len(chunk), np.bool_)
                inside[len(chunk) - len(part) :] = part
                views += chunk.select(inside)
        return views, int(np.count_nonzero(wanted))

    def _move(self, more: int) -> None:
        """Make room for ``more`` rows after those in use."""
        used = slice(self._start, self._end)
        count = len(self)
        capacity = max(_MIN_ROWS, 2 * (count + more))
        self._states = _moved(self._states, used, capacity)
        self._held = _moved(self._held, used, capacity)
        self._owed = _moved(self._owed, used, capacity)
        self._lengths = _moved(self._lengths, used, capacity)
        self._start, self._end = 0, count


def _leading(wanted: Bools) -> int:
    """Count the leading true values of ``wanted``."""
    if len(wanted) <= _FEW:
        values = wanted.tolist()
        return values.index(False) if False in values else len(values)
    return len(wanted) if wanted.all() else int(np.argmin(wanted))


def _moved(old: npt.NDArray[_Scalar], used: slice, capacity: int) -> npt.NDArray[_Scalar]:
    new = np.zeros((capacity, *old.shape[1:]), old.dtype)
    new[: used.stop - used.start] = old[used]
    return new
