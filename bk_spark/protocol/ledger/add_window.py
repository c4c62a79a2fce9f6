"""The adds that a writer has under way: which bookies owe, hold or refused each, and which bookies delay them.

* A bookie that answers "too many requests" has not failed. Entries that it refused are sent again after a pause, even
  if they are acknowledged by then. The pause doubles while the bookie refuses everything.
* A bookie that owes adds and takes none for the add timeout has stalled.

Time is counted in ticks of a timer. A tick is a quarter of the shortest timeout, at most one second. So a timeout is
noticed at most a quarter late, and a process that was suspended for a while does not blame the bookies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.arrays import Bools, Int64s
from bk_spark.protocol.ledger.writer_actions import SendAdds, SendRefused, WriterLimits, WriterTimer
from bk_spark.protocol.machine import StartTimer
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.wire.add_frames import AddFrames

_Scalar = TypeVar("_Scalar", bound=np.generic)

#: Pause before adds that a busy bookie refused are sent again. It doubles while the bookie refuses everything.
FIRST_PAUSE_MS: Final = 20.0
LAST_PAUSE_MS: Final = 1_000.0
#: Bits of an entry at a bookie: it holds it; it was sent it and has not confirmed it; it refused it and still owes it.
_HELD, _OWED, _REFUSED = 1, 2, 4
#: Rows of a ledger that has taken few entries, of which a process may have thousands, and of one that takes more.
_FIRST_ROWS: Final = 16
_MIN_ROWS: Final = 256
#: Up to this many entries, numpy's fixed costs exceed the work.
_FEW: Final = 4


@dataclass(frozen=True, slots=True)
class _Piece:
    """Entries that were added together and that some bookie has not answered."""

    last_entry_id: int
    size_bytes: int
    added_at: int


class AddWindow:
    """The adds under way of one writer, whose ensemble has a bookie for each ``index``. Part of
    :class:`bk_spark.protocol.ledger.writer.LedgerWriter`. Methods return the actions to perform."""

    def __init__(self, quorum: Quorum, first_entry_id: int, limits: WriterLimits) -> None:
        self._limits = limits
        #: What each bookie holds and owes.
        self.pending = PendingAdds(quorum, first_entry_id)
        self._indexes = range(quorum.ensemble_size)
        timeouts = [limits.add_timeout_ms, limits.add_quorum_timeout_ms or limits.add_timeout_ms]
        self._tick_ms = min(1_000.0, min(timeouts) / 4)
        self._timer_runs = False
        #: Bytes of frames that some bookie of the ensemble has not answered.
        self._pending_bytes = 0
        self._pieces: deque[_Piece] = deque()
        self._ticks = 0
        #: For each bookie that owes adds: ticks since it took one, or since the first was sent to it.
        self._idle_ticks: dict[str, int] = {}
        #: Bookies whose refused adds wait to be sent again.
        self._busy: set[str] = set()
        #: The next pause of each, until it takes an add.
        self._pauses_ms: dict[str, float] = {}

    # --- queries ---

    @property
    def throttled(self) -> bool:
        """Whether a bookie has too many requests."""
        return bool(self._busy)

    @property
    def most_unanswered(self) -> int:
        """The number of adds that the slowest bookie owes."""
        return max(self.pending.owed)

    def has_room(self, entries: int, size_bytes: int, waiting_entries: int = 0, waiting_bytes: int = 0) -> bool:
        """Return whether ``entries`` of ``size_bytes`` may be added, after those that wait. If nothing is under way,
        the answer is yes."""
        if self._busy:
            return False
        limits, pending = self._limits, self._pending_bytes + waiting_bytes
        unanswered = self.most_unanswered + waiting_entries
        return not (
            (pending and pending + size_bytes > limits.max_pending_bytes)
            or (unanswered and unanswered + entries > limits.max_unanswered_entries)
        )

    # --- adds ---

    def add(self, frames: AddFrames, members: Sequence[str], failed: Collection[int]) -> list[SendAdds | StartTimer]:
        """Send new entries to the ``members`` of the ensemble that have not ``failed``."""
        size_bytes = frames.data.nbytes
        self._pieces.append(_Piece(frames.first_entry_id + len(frames) - 1, size_bytes, self._ticks))
        self._pending_bytes += size_bytes
        live = [index not in failed for index in self._indexes]
        actions: list[SendAdds | StartTimer] = []
        for index, (views, count) in enumerate(self.pending.append(frames, live)):
            actions += self._send(members[index], views, count)
        return actions

    def on_held(self, index: int, bookie_id: str, entry_ids: Int64s) -> None:
        """Record that the bookie at ``index`` holds ``entry_ids``."""
        self.pending.on_held(index, entry_ids)
        if not self.pending.owed[index]:
            self._idle_ticks.pop(bookie_id, None)
        elif len(entry_ids):
            self._idle_ticks[bookie_id] = 0
        if self._pauses_ms and len(entry_ids):
            self._pauses_ms.pop(bookie_id, None)

    def on_refused(self, index: int, bookie_id: str, entry_ids: Int64s) -> list[StartTimer]:
        """Record that the bookie at ``index`` is too busy for ``entry_ids``."""
        self.pending.on_refused(index, entry_ids)
        if bookie_id in self._busy:
            return []
        self._busy.add(bookie_id)
        pause_ms = self._pauses_ms.get(bookie_id, FIRST_PAUSE_MS)
        self._pauses_ms[bookie_id] = min(2 * pause_ms, LAST_PAUSE_MS)
        return [StartTimer(SendRefused(bookie_id), pause_ms)]

    def send_refused(self, index: int, bookie_id: str) -> list[SendAdds | StartTimer]:
        """Send again what the bookie at ``index`` refused. Its pause is over."""
        if bookie_id not in self._busy:
            return []
        self._busy.discard(bookie_id)
        return self._send(bookie_id, *self.pending.take_refused(index))

    def give_up(self, index: int, bookie_id: str) -> None:
        """Expect nothing more from the bookie at ``index``. The entries that it holds still count."""
        self.pending.give_up(index)
        self._idle_ticks.pop(bookie_id, None)
        self._busy.discard(bookie_id)
        self._pauses_ms.pop(bookie_id, None)

    def replace(self, index: int, bookie_id: str, first_entry_id: int) -> list[SendAdds | StartTimer]:
        """Send entries from ``first_entry_id`` on to ``bookie_id``, the new bookie at ``index``."""
        return self._send(bookie_id, *self.pending.replace(index, first_entry_id))

    def release(self, last_add_acknowledged: int) -> None:
        """Forget acknowledged entries that no bookie owes."""
        self.pending.release(last_add_acknowledged)
        pieces, first_entry_id = self._pieces, self.pending.first_entry_id
        while pieces and pieces[0].last_entry_id < first_entry_id:
            self._pending_bytes -= pieces.popleft().size_bytes

    def clear(self) -> None:
        """Forget everything."""
        self.pending.clear()
        self._pending_bytes = 0
        self._pieces.clear()
        self._idle_ticks.clear()
        self._busy.clear()
        self._pauses_ms.clear()

    def _send(self, bookie_id: str, views: list[memoryview], count: int) -> list[SendAdds | StartTimer]:
        if not count:
            return []
        self._idle_ticks.setdefault(bookie_id, 0)
        return [SendAdds(bookie_id, views, count), *self.keep_time()]

    # --- time ---

    def keep_time(self) -> list[StartTimer]:
        """Start the timer if something is under way and it does not run."""
        if self._timer_runs or not (self._idle_ticks or self._pieces):
            return []
        self._timer_runs = True
        return [StartTimer(WriterTimer.PROGRESS, self._tick_ms)]

    def on_tick(self) -> list[str]:
        """Handle the end of the timer. Return the bookies that have stalled. Then call :meth:`keep_time`."""
        self._timer_runs = False
        self._ticks += 1
        for bookie_id in self._idle_ticks:
            self._idle_ticks[bookie_id] += 1
        most = self._ticks_of(self._limits.add_timeout_ms)
        return [bookie_id for bookie_id, idle in self._idle_ticks.items() if idle >= most]

    def is_overdue(self, last_add_acknowledged: int) -> bool:
        """Return whether the oldest entry without its ack quorum has waited for the add quorum timeout."""
        limit_ms = self._limits.add_quorum_timeout_ms
        oldest = next((piece for piece in self._pieces if piece.last_entry_id > last_add_acknowledged), None)
        return limit_ms is not None and oldest is not None and self._ticks - oldest.added_at >= self._ticks_of(limit_ms)

    def _ticks_of(self, time_ms: int) -> int:
        """Return the number of ticks in at least ``time_ms``. Adds one, because the first tick may come early."""
        return int(-(-time_ms // self._tick_ms)) + 1


class PendingAdds:
    """The window over entry ids. It begins at ``first_entry_id``, the oldest entry that a bookie owes or that is not
    acknowledged.

    It has one row per entry and one column per ensemble index. A row stays until every bookie that was sent the entry
    holds it or has been given up, even after the entry is acknowledged. So an entry that a busy bookie refused can be
    sent again, and the debt of a slow bookie counts against the writer's limits.
    """

    def __init__(self, quorum: Quorum, first_entry_id: int) -> None:
        self.first_entry_id = first_entry_id
        self._quorum = quorum
        self._chunks: deque[AddFrames] = deque()
        #: Rows in use are ``_start`` up to ``_end`` of the arrays.
        self._start = self._end = 0
        self._states = np.zeros((_FIRST_ROWS, quorum.ensemble_size), np.uint8)
        self._held = np.zeros(_FIRST_ROWS, np.int16)
        self._owed = np.zeros(_FIRST_ROWS, np.int16)
        self._lengths = np.zeros(_FIRST_ROWS, np.int64)
        #: The number of entries that were sent to each index and not confirmed.
        self.owed = [0] * quorum.ensemble_size

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
            self.owed[index] += owed
        return sends

    def on_held(self, index: int, entry_ids: Int64s) -> None:
        """Record that the bookie at ``index`` holds ``entry_ids``."""
        if len(entry_ids) <= _FEW:
            for entry_id in entry_ids.tolist():
                self._on_one_held(index, entry_id)
            return
        which = self._run(entry_ids)
        if which is None:
            rows = self._rows(index, entry_ids)
            # An answer may come twice.
            which = np.unique(rows) if len(rows) > 1 and (rows[1:] <= rows[:-1]).any() else rows
        states = self._states[which, index]
        owed = states & _OWED != 0
        self._held[which] += states & _HELD == 0
        self._owed[which] -= owed
        self.owed[index] -= int(np.count_nonzero(owed))
        self._states[which, index] = _HELD

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
            self.owed[index] -= 1
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
        self.owed[index] = 0

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
        self.owed[index] = int(np.count_nonzero(member))
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
        self.owed = [0] * self._quorum.ensemble_size
        self._chunks.clear()

    def _column(self, index: int) -> npt.NDArray[np.uint8]:
        return self._states[self._start : self._end, index]

    def _rows(self, index: int, entry_ids: Int64s) -> Int64s:
        """Return the array rows of those ``entry_ids`` that are in the window and belong to ``index``."""
        rows = entry_ids - self.first_entry_id
        here = (rows >= 0) & (rows < len(self))
        if self._quorum.striped:
            here &= self._is_member(index, entry_ids)
        return np.asarray(rows[here] + self._start, np.int64)

    def _run(self, entry_ids: Int64s) -> slice | Int64s | None:
        """Return the array rows of ``entry_ids`` if they follow each other and are in the window, and every bookie
        stores them: nearly always, since a bookie answers in the order of the requests. Else None."""
        first, count = int(entry_ids[0]) - self.first_entry_id, len(entry_ids)
        is_run = not self._quorum.striped and 0 <= first <= len(self) - count
        if is_run and (entry_ids[1:] - entry_ids[:-1] == 1).all():
            return slice(self._start + first, self._start + first + count)
        return None

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
        self._held, self._owed = (_moved(counts, used, capacity) for counts in (self._held, self._owed))
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
