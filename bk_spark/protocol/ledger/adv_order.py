"""Sorts entries whose ids the caller chooses. Source: compatibility.md §4.12.

Entries come in any order and leave in the order of their ids, from 0 on, without a gap. An entry is sent to bookies
only after all lower ids. So a recovery finds no hole that would hide later entries, and each entry's length (payload
bytes of the ledger up to it) is right when the entry is packaged.

Entries that wait for lower ids are limited in number and bytes. A call with the next id is always accepted. Without it
nothing could leave.

A call that can go on only when lower ids leave waits for the gap timeout at most. The timer runs only while the next id
is missing: entries that are in order leave sooner or later, however slow the bookies are.
"""

from __future__ import annotations

import bisect
import itertools
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import DuplicateEntryError, EntryGapError, InvalidArgumentError
from bk_spark.protocol.machine import EndedBy, StartTimer, StopTimer, TimerFired


@dataclass(frozen=True, slots=True)
class EntryRun:
    """Consecutive entries."""

    first: int
    payloads: Payloads

    @property
    def last(self) -> int:
        """The id of the last entry of the run. One less than ``first`` if there are no payloads."""
        return self.first + len(self.payloads) - 1


@dataclass(frozen=True, slots=True)
class GapTimer:
    """Name of the timer of a call that waits for lower ids."""

    wait_id: int


class EntryOrder:
    """The reorder buffer of one ledger. A machine (:mod:`bk_spark.protocol.machine`) without a result. Its actions are
    timers of calls that wait."""

    def __init__(self, ledger_id: int, max_waiting_entries: int, max_waiting_bytes: int, gap_timeout_ms: float) -> None:
        self.outcome: EndedBy | None = None
        #: The lowest id that has not left.
        self.next_entry_id = 0
        self.waiting_entries = self.waiting_bytes = 0
        self._ledger_id = ledger_id
        self._max_waiting_entries = max_waiting_entries
        self._max_waiting_bytes = max_waiting_bytes
        self._gap_timeout_ms = gap_timeout_ms
        #: Sorted by id, with gaps between them.
        self._runs: list[EntryRun] = []
        self._wait_ids = itertools.count()
        #: What each call does that waits for lower ids, by wait id.
        self._waits: dict[int, str] = {}
        #: Waits that have ended because lower ids did not come in time.
        self._too_late: dict[int, EntryGapError] = {}
        self._actions: list[StartTimer | StopTimer] = []

    # --- the contract ---

    def take_actions(self) -> list[StartTimer | StopTimer]:
        """Return the timers to start and stop since the last call."""
        actions, self._actions = self._actions, []
        return actions

    def handle(self, event: TimerFired) -> None:
        """Let a wait fail whose gap timer has fired. Its next :meth:`waits` raises EntryGapError."""
        if isinstance(event.name, GapTimer) and event.name.wait_id in self._waits:
            self._too_late[event.name.wait_id] = self.gap_error(self._waits.pop(event.name.wait_id))

    def fail(self, error: Exception) -> None:
        """End with the error that ended the ledger's writer. From now on every :meth:`waits` raises it."""
        self.outcome = EndedBy(error)

    # --- waiting for lower ids ---

    def begin_wait(self, what: str) -> int:
        """Begin to wait until entries are in order. ``what`` names the call in its error. Return the wait's id."""
        wait_id = next(self._wait_ids)
        if not self._is_ready:
            self._waits[wait_id] = what
            self._actions.append(StartTimer(GapTimer(wait_id), self._gap_timeout_ms))
        return wait_id

    def waits(self, wait_id: int) -> bool:
        """Return whether the wait goes on. Raises EntryGapError if the missing ids did not come in time."""
        if self.outcome is not None:
            raise self.outcome.error.with_traceback(None)
        if wait_id in self._too_late:
            raise self._too_late[wait_id]
        return wait_id in self._waits

    def end_wait(self, wait_id: int) -> None:
        """Forget a wait, because its call ends."""
        self._too_late.pop(wait_id, None)
        if self._waits.pop(wait_id, None) is not None:
            self._actions.append(StopTimer(GapTimer(wait_id)))

    def gap_error(self, what: str) -> EntryGapError:
        """Return the error of a call that needs the missing ids."""
        gap, missing = self.gap, self.next_entry_id
        rest = f", and all up to {gap[-1]}" if gap is not None and len(gap) > 1 else ""
        return EntryGapError(
            f"{what}: entry {missing} is missing{rest}; {self.waiting_entries} entries with higher ids wait for it. "
            "Append the missing entries",
            ledger_id=self._ledger_id,
            entry_id=missing,
        )

    # --- entries ---

    def runs_of(self, entry_ids: Int64s, payloads: Payloads) -> list[EntryRun]:
        """Split the entries of one call into runs. Raises InvalidArgumentError, and DuplicateEntryError for an id that
        has left, waits, or occurs twice. An error takes no entry."""
        if entry_ids.ndim != 1 or len(entry_ids) != len(payloads):
            raise InvalidArgumentError(
                f"{len(payloads)} entries need as many entry ids, got an array of shape {entry_ids.shape}",
                ledger_id=self._ledger_id,
            )
        if not len(entry_ids):
            return []
        steps = np.diff(entry_ids)
        if (steps <= 0).any():
            order = np.argsort(entry_ids, kind="stable")
            entry_ids, payloads = entry_ids[order], Payloads.of([payloads[index] for index in order.tolist()])
            steps = np.diff(entry_ids)
            if (steps == 0).any():
                self._refuse(int(entry_ids[int(np.argmax(steps == 0))]), "occurs twice in this call")
        if entry_ids[0] < 0:
            raise InvalidArgumentError(f"entry id {entry_ids[0]} is negative", ledger_id=self._ledger_id)
        bounds = [0, *(np.flatnonzero(steps != 1) + 1).tolist(), len(entry_ids)]
        runs = [EntryRun(int(entry_ids[start]), payloads.part(start, end)) for start, end in itertools.pairwise(bounds)]
        self._check_new(runs)
        return runs

    def has_room(self, runs: list[EntryRun]) -> bool:
        """Return whether :meth:`put` may be called with ``runs``."""
        if not runs or runs[0].first == self.next_entry_id:
            return True
        entries = sum(len(run.payloads) for run in runs)
        size_bytes = sum(run.payloads.size_bytes for run in runs)
        return (
            self.waiting_entries + entries <= self._max_waiting_entries
            and self.waiting_bytes + size_bytes <= self._max_waiting_bytes
        )

    def put(self, runs: list[EntryRun]) -> None:
        """Copy ``runs`` into the buffer. Raises DuplicateEntryError as :meth:`runs_of` does, because another call may
        have added the ids meanwhile."""
        self._check_new(runs)
        for run in runs:
            bisect.insort(self._runs, EntryRun(run.first, run.payloads.copy()), key=_first)
            self.waiting_entries += len(run.payloads)
            self.waiting_bytes += run.payloads.size_bytes
        if self._is_ready:
            self._actions += [StopTimer(GapTimer(wait_id)) for wait_id in self._waits]
            self._waits.clear()

    def ready(self) -> EntryRun | None:
        """Return all entries from the next id up to the first gap, or None if there are none. They stay until
        :meth:`left`."""
        count, expected = 0, self.next_entry_id
        for run in self._runs:
            if run.first != expected:
                break
            count, expected = count + 1, run.last + 1
        if count > 1:
            joined = Payloads.joined([run.payloads for run in self._runs[:count]])
            self._runs[:count] = [EntryRun(self.next_entry_id, joined)]
        return self._runs[0] if count else None

    def left(self, last_entry_id: int) -> None:
        """Drop entries of the ready run up to ``last_entry_id``, which were sent."""
        count = last_entry_id + 1 - self.next_entry_id
        if count <= 0:
            return
        run = self._runs.pop(0)
        rest = run.payloads.part(count, len(run.payloads))
        if len(rest):
            self._runs.insert(0, EntryRun(last_entry_id + 1, rest))
        self.waiting_entries -= count
        self.waiting_bytes -= run.payloads.size_bytes - rest.size_bytes
        self.next_entry_id = last_entry_id + 1

    @property
    def gap(self) -> range | None:
        """The missing ids before the first entry that waits. None if no entry waits for lower ids."""
        if not self._runs or self._is_ready:
            return None
        return range(self.next_entry_id, self._runs[0].first)

    def __contains__(self, entry_id: int) -> bool:
        """Return whether the entry has left or waits."""
        if entry_id < self.next_entry_id:
            return entry_id >= 0
        at = bisect.bisect_right(self._runs, entry_id, key=_first) - 1
        return at >= 0 and entry_id <= self._runs[at].last

    @property
    def _is_ready(self) -> bool:
        """Whether entries are in order and have not left."""
        return bool(self._runs) and self._runs[0].first == self.next_entry_id

    def _check_new(self, runs: list[EntryRun]) -> None:
        for run in runs:
            if run.first < self.next_entry_id:
                self._refuse(run.first, "was added before")
            at = bisect.bisect_right(self._runs, run.first, key=_first)
            if at and self._runs[at - 1].last >= run.first:
                self._refuse(run.first, "was added before")
            if at < len(self._runs) and self._runs[at].first <= run.last:
                self._refuse(self._runs[at].first, "was added before")

    def _refuse(self, entry_id: int, why: str) -> NoReturn:
        raise DuplicateEntryError(
            f"entry {entry_id} {why}; no entry of this call was added", ledger_id=self._ledger_id, entry_id=entry_id
        )


def _first(run: EntryRun) -> int:
    return run.first
