"""The adds that a writer has under way, and the bookies that delay them.

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
from typing import Final

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.ledger.pending_adds import PendingAdds
from bk_spark.protocol.ledger.writer_actions import SendAdds, SendRefused, WriterLimits, WriterTimer
from bk_spark.protocol.machine import StartTimer
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.wire.add_frames import AddFrames

#: Pause before adds that a busy bookie refused are sent again. It doubles while the bookie refuses everything.
FIRST_PAUSE_MS: Final = 20.0
LAST_PAUSE_MS: Final = 1_000.0


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
        self._pending = PendingAdds(quorum, first_entry_id)
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
    def first_entry_id(self) -> int:
        """The oldest entry that a bookie owes or that is not acknowledged."""
        return self._pending.first_entry_id

    @property
    def throttled(self) -> bool:
        """Whether a bookie has too many requests."""
        return bool(self._busy)

    @property
    def most_unanswered(self) -> int:
        """The number of adds that the slowest bookie owes."""
        return max(map(self._pending.owed, self._indexes))

    def unanswered(self, index: int) -> int:
        """Return the number of adds that the bookie at ``index`` owes."""
        return self._pending.owed(index)

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

    def complete_through(self, last_add_acknowledged: int) -> int:
        """Return the end of the run of entries after ``last_add_acknowledged`` that an ack quorum holds."""
        return self._pending.complete_through(last_add_acknowledged)

    def length_at(self, entry_id: int) -> int:
        """Return the ledger's payload bytes up to and including ``entry_id``."""
        return self._pending.length_at(entry_id)

    # --- adds ---

    def add(self, frames: AddFrames, members: Sequence[str], failed: Collection[int]) -> list[SendAdds | StartTimer]:
        """Send new entries to the ``members`` of the ensemble that have not ``failed``."""
        size_bytes = frames.data.nbytes
        self._pieces.append(_Piece(frames.first_entry_id + len(frames) - 1, size_bytes, self._ticks))
        self._pending_bytes += size_bytes
        live = [index not in failed for index in self._indexes]
        actions: list[SendAdds | StartTimer] = []
        for index, (views, count) in enumerate(self._pending.append(frames, live)):
            actions += self._send(members[index], views, count)
        return actions

    def on_held(self, index: int, bookie_id: str, entry_ids: Int64s) -> None:
        """Record that the bookie at ``index`` holds ``entry_ids``."""
        self._pending.on_held(index, entry_ids)
        if not self._pending.owed(index):
            self._idle_ticks.pop(bookie_id, None)
        elif len(entry_ids):
            self._idle_ticks[bookie_id] = 0
        if self._pauses_ms and len(entry_ids):
            self._pauses_ms.pop(bookie_id, None)

    def on_refused(self, index: int, bookie_id: str, entry_ids: Int64s) -> list[StartTimer]:
        """Record that the bookie at ``index`` is too busy for ``entry_ids``."""
        self._pending.on_refused(index, entry_ids)
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
        return self._send(bookie_id, *self._pending.take_refused(index))

    def give_up(self, index: int, bookie_id: str) -> None:
        """Expect nothing more from the bookie at ``index``. The entries that it holds still count."""
        self._pending.give_up(index)
        self._idle_ticks.pop(bookie_id, None)
        self._busy.discard(bookie_id)
        self._pauses_ms.pop(bookie_id, None)

    def replace(self, index: int, bookie_id: str, first_entry_id: int) -> list[SendAdds | StartTimer]:
        """Send entries from ``first_entry_id`` on to ``bookie_id``, the new bookie at ``index``."""
        return self._send(bookie_id, *self._pending.replace(index, first_entry_id))

    def release(self, last_add_acknowledged: int) -> None:
        """Forget acknowledged entries that no bookie owes."""
        self._pending.release(last_add_acknowledged)
        pieces, first_entry_id = self._pieces, self._pending.first_entry_id
        while pieces and pieces[0].last_entry_id < first_entry_id:
            self._pending_bytes -= pieces.popleft().size_bytes

    def clear(self) -> None:
        """Forget everything."""
        self._pending.clear()
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
