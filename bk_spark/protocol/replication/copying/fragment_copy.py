"""The machine that copies entries of one fragment to bookies that will replace others.

* Every target gets all entries that its position stores (striping), and no others.
* Entries are read from the bookies of their write set, healthy ones first. Those whose copies are bad are asked last:
  one that came back may have the only copy of an entry.
* Each entry is verified by its digest, and written as it was stored. Without a password, all bookies of the write set
  are asked, and the copies that they return must be equal.
* A position counts as copied when its target has acknowledged every entry. If an entry cannot be read anywhere, no
  position that stores it can be replaced: its old bookie may be the last one to have the entry, if it returns. The
  other positions are copied all the same.
* Entries that the check has just read and verified are not read again.
* The pace is asked before a batch is read, so that reads are spread as writes are.
* Several batches are under way. Entries and bytes in memory are bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import TypeVar

from bk_spark.protocol.codes import Code
from bk_spark.protocol.errors import BookieTimeoutError, BookieUnavailableError, BookKeeperError
from bk_spark.protocol.ledger.reading.lac import NO_ANSWER
from bk_spark.protocol.ledger.reading.read_actions import (
    BatchRead,
    BatchRefused,
    EntriesRead,
    ReadBatch,
    ReadEntries,
    ReportFailure,
    RequestFailed,
    reason_of_failure,
)
from bk_spark.protocol.machine import EndedBy, StartTimer, StopRequest, StopTimer, Succeeded, TimerFired
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.replication.actions import (
    AskPace,
    AskThrottle,
    EntriesWritten,
    PacePassed,
    RequestAction,
    RequestEvent,
    StoredEntries,
    ThrottlePassed,
    WriteEntries,
)
from bk_spark.protocol.replication.copying.copy_batches import Add, Batch, Writing
from bk_spark.protocol.replication.copying.copy_limits import CopyLimits, CopyResult
from bk_spark.protocol.replication.fragments import Fragment
from bk_spark.protocol.replication.known_entries import KnownEntries, KnownNeighbours
from bk_spark.protocol.replication.verification import key_of, reason_of_answer, right_entries
from bk_spark.protocol.wire.code_errors import AbsentError, reason_of

_P = TypeVar("_P")


class FragmentCopy:
    """Copies what the positions ``targets`` store to the bookies given there. Its result is a :class:`CopyResult`.

    Parameters
    ----------
    targets
        The new bookies, by position. They differ.
    bad
        The positions whose copies are bad.
    read_first
        Entries to begin with, because they could not be read before.
    known
        Entries that need not be read.
    request_ids
        Gives the ids of requests, unique among all machines that share a runner.
    """

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        fragment: Fragment,
        targets: Mapping[int, str],
        bad: Collection[int],
        limits: CopyLimits,
        *,
        request_ids: Iterator[int],
        read_first: Collection[int] = (),
        known: KnownEntries | None = None,
    ) -> None:
        self.outcome: Succeeded[CopyResult] | EndedBy | None = None
        self._ledger_id = ledger_id
        self._key = key_of(ledger_id, metadata)
        self._fragment = fragment
        self._bad = {fragment.ensemble[position] for position in bad}
        self._limits = limits
        self._request_ids = request_ids
        #: Positions that can still be copied as a whole.
        self._active = dict(targets)
        self._average_bytes = metadata.length / (metadata.last_entry_id + 1) if metadata.length else 0.0
        known = known or KnownEntries()
        wanted = list(fragment.series(targets))
        self._known: deque[StoredEntries] = deque()
        self._neighbours = KnownNeighbours(limits.batch_bytes // 2)
        self._series: deque[range] = deque()
        for series in wanted:
            unread = list(known.unknown(series))
            self._series += unread
            batches = known.batches(series, limits)
            self._known += [each for each in batches if not self._neighbours.take(each, series.step, unread)]
        #: Entries to read before those of ``_series``.
        read_first = sorted(each for each in read_first if each in fragment.entry_ids and each not in known)
        self._again = deque(range(each, each + 1) for each in read_first)
        self._batch_number = 0
        #: What the next batch counts for besides its own bytes.
        self._more_bytes = limits.fragment_bytes
        #: Batches that wait for the pace.
        self._paced: dict[int, Batch] = {}
        self._reads: dict[int, Batch] = {}
        self._waiting: dict[int, Writing] = {}
        self._adds: dict[int, Add] = {}
        self._open = 0
        self._held_bytes = 0
        #: Bookies that failed a read.
        self._suspects: set[str] = set()
        self._without_batch_reads: set[str] = set()
        self._unreadable: dict[int, str] = {}
        self._failed_targets: dict[str, str] = {}
        self._entries = self._size_bytes = 0
        self._actions: list[RequestAction] = []
        self._go_on()

    def take_actions(self) -> list[RequestAction]:
        """Return the new requests, timers and stops, in order."""
        actions, self._actions = self._actions, []
        return actions

    def handle(self, event: RequestEvent) -> None:
        """Take an answer, and begin what it leaves room for. Ignored after the end."""
        if self.outcome is not None:
            return
        match event:
            case EntriesRead(request_id) | BatchRead(request_id):
                self._on_read(request_id, event)
            case BatchRefused(request_id):
                self._on_refused(request_id)
            case PacePassed(request_id):
                self._on_paced(request_id)
            case ThrottlePassed(request_id):
                self._on_passed(request_id)
            case EntriesWritten(request_id, code):
                self._on_written(request_id, code)
            case RequestFailed(int(request_id), error):
                self._on_failed(request_id, error)
            case TimerFired(int(request_id)):
                self._on_timer(request_id)
        self._go_on()

    def fail(self, error: Exception) -> None:
        """End with this error. No position counts as copied then. Ignored after the end."""
        if self.outcome is None:
            self.outcome = EndedBy(error)

    # --- reading ---

    def _go_on(self) -> None:
        limits = self._limits
        while self._active and self._held_bytes < limits.pending_bytes:
            if self._open >= limits.batches_at_once(self._average_bytes):
                break
            if self._known and not self._again:
                entries = self._known.popleft()
                self._begin(Batch(entries.entry_ids, [], entries, len(entries.records)))
                continue
            entry_ids = self._next_entries()
            if not entry_ids:
                break
            if self._positions(entry_ids):
                size_bytes = int(self._average_bytes * len(entry_ids))
                self._begin(Batch(entry_ids, self._sources(entry_ids[0]), paced_bytes=size_bytes))
        if not self._active:
            self._stop_all()
        if not self._open:
            found = self._unreadable, self._failed_targets, self._entries, self._size_bytes
            self.outcome = Succeeded(CopyResult(frozenset(self._active), *found))

    def _begin(self, batch: Batch) -> None:
        self._open += 1
        if batch.known is not None:
            self._held_bytes += len(batch.known.records)
        request_id = next(self._request_ids)
        self._paced[request_id] = batch
        self._actions.append(AskPace(request_id, batch.paced_bytes + self._more_bytes))
        self._more_bytes = 0

    def _on_paced(self, request_id: int) -> None:
        batch = self._paced.pop(request_id, None)
        if batch is None:
            return
        if batch.known is not None:
            self._on_entries(batch, batch.known)
        else:
            self._ask(batch)

    def _next_entries(self) -> range:
        waiting = self._again or self._series
        if not waiting:
            return range(0)
        series = waiting.popleft()
        count = self._entries_at_once()
        if len(series) > count:
            waiting.appendleft(series[count:])
        return series[:count]

    def _entries_at_once(self) -> int:
        return 1 if self._key is None else self._limits.entries_at_once(self._average_bytes)

    def _positions(self, entry_ids: range) -> list[int]:
        """Return the positions that can still be copied and store these entries."""
        return [each for each in self._active if self._fragment.quorum.stores(each, entry_ids[0])]

    def _sources(self, entry_id: int) -> list[str]:
        """Return the write set in the order in which to ask: healthy bookies take turns, bad copies come last."""
        holders = sorted(self._fragment.holders(entry_id), key=self._fragment.ensemble.index)
        healthy = [each for each in holders if each not in self._bad | self._suspects]
        turn = self._batch_number % max(1, len(healthy))
        self._batch_number += 1
        others = [each for each in holders if each not in healthy]
        return [*healthy[turn:], *healthy[:turn], *sorted(others, key=self._bad.__contains__)]

    def _ask(self, batch: Batch) -> None:
        """Ask the next source. Without one, settle what was found."""
        if not batch.one_by_one:
            if not batch.sources:
                self._settle(batch)
                return
            batch.asked = batch.sources.pop(0)
        request_id = next(self._request_ids)
        self._reads[request_id] = batch
        limits, average, entry_ids = self._limits, self._average_bytes, batch.entry_ids
        single = limits.max_answer_bytes is None or batch.one_by_one or entry_ids.step != 1 or len(entry_ids) == 1
        if single or batch.asked in self._without_batch_reads:
            batch.asked_ids = entry_ids[: limits.single_reads_at_once(average)]
            self._actions.append(ReadEntries(request_id, batch.asked, batch.asked_ids))
        else:
            batch.asked_ids = entry_ids
            self._actions.append(ReadBatch(request_id, batch.asked, entry_ids, limits.answer_bytes(average)))
        self._actions.append(StartTimer(request_id, limits.timeout_ms))

    def _on_read(self, request_id: int, answer: EntriesRead | BatchRead) -> None:
        batch = self._ended(self._reads, request_id)
        if batch is None:
            return
        if batch.one_by_one:
            self._without_batch_reads.add(batch.asked)
            batch.one_by_one = False
        try:
            entries = right_entries(self._ledger_id, self._key, batch.asked_ids, answer)
        except (AbsentError, BookKeeperError) as error:
            self._on_source_failed(batch, reason_of_answer(error))
            return
        if self._key is None:
            batch.copies.append(entries)
            self._ask(batch)
        else:
            self._on_entries(batch, entries)

    def _on_source_failed(self, batch: Batch, reason: str) -> None:
        batch.one_by_one = False
        batch.failed[batch.asked] = reason
        self._suspects.add(batch.asked)
        self._ask(batch)

    def _on_refused(self, request_id: int) -> None:
        """Read one by one. If the bookie cannot be reached again, it died."""
        batch = self._ended(self._reads, request_id)
        if batch is not None:
            batch.one_by_one = True
            self._ask(batch)

    def _settle(self, batch: Batch) -> None:
        """Every source was asked."""
        if len({bytes(copy.records) for copy in batch.copies}) == 1:
            self._on_entries(batch, batch.copies[0])
            return
        entry_id = batch.entry_ids[0]
        if batch.copies:
            reason = "the copies differ, and without the ledger's password nobody can tell which is right"
        else:
            reason = "; ".join(f"bookie {bookie} {reason}" for bookie, reason in batch.failed.items())
        self._unreadable[entry_id] = reason
        for position in self._positions(batch.entry_ids):
            del self._active[position]
        self._open -= 1

    def _on_entries(self, batch: Batch, entries: StoredEntries) -> None:
        count = len(entries.entry_ids)
        average = len(entries.records) / count
        self._average_bytes = (self._average_bytes + average) / 2 if self._average_bytes else average
        if count < len(batch.entry_ids):
            self._again.appendleft(batch.entry_ids[count:])
        entries = self._neighbours.join(entries)
        size_bytes = len(entries.records)
        targets = {self._active[position] for position in self._positions(entries.entry_ids)}
        if not targets:
            self._open -= 1
            self._held_bytes -= 0 if batch.known is None else size_bytes
            return
        self._held_bytes += size_bytes if batch.known is None else 0
        request_id = next(self._request_ids)
        self._waiting[request_id] = Writing(entries, targets)
        self._actions.append(AskThrottle(request_id, entries, len(targets), batch.paced_bytes))

    # --- writing ---

    def _on_passed(self, request_id: int) -> None:
        writing = self._waiting.pop(request_id, None)
        if writing is None:
            return
        writing.targets &= set(self._active.values())
        for target in sorted(writing.targets):
            self._add(Add(writing, target))
        self._end_if_written(writing)

    def _add(self, add: Add) -> None:
        request_id = next(self._request_ids)
        self._adds[request_id] = add
        self._actions += [
            WriteEntries(request_id, add.target, add.writing.entries),
            StartTimer(request_id, self._limits.timeout_ms),
        ]

    def _on_written(self, request_id: int, code: Code) -> None:
        add = self._ended(self._adds, request_id)
        if add is None:
            return
        if code is Code.OK:
            self._entries += len(add.writing.entries.entry_ids)
            self._size_bytes += len(add.writing.entries.records)
        elif code is Code.TOO_MANY_REQUESTS and add.attempts < self._limits.busy_attempts:
            add.attempts += 1
            add.pausing = True
            self._adds[request_id] = add
            self._actions.append(StartTimer(request_id, self._limits.busy_pause_ms))
            return
        else:
            self._on_target_failed(add.target, reason_of(code, with_key=True))
        self._on_add_ended(add)

    def _on_add_ended(self, add: Add) -> None:
        add.writing.targets.discard(add.target)
        self._end_if_written(add.writing)

    def _end_if_written(self, writing: Writing) -> None:
        if not writing.targets:
            self._held_bytes -= len(writing.entries.records)
            self._open -= 1

    def _on_target_failed(self, target: str, reason: str) -> None:
        self._failed_targets.setdefault(target, reason)
        for position in [each for each, bookie_id in self._active.items() if bookie_id == target]:
            del self._active[position]

    def _ended(self, pending: dict[int, _P], request_id: int) -> _P | None:
        """Return what the request was for. None if it has ended already."""
        found = pending.pop(request_id, None)
        if found is not None:
            self._actions.append(StopTimer(request_id))
        return found

    # --- failures ---

    def _on_failed(self, request_id: int, error: Exception) -> None:
        batch, add = self._ended(self._reads, request_id), self._ended(self._adds, request_id)
        bookie_id = batch.asked if batch is not None else add.target if add is not None else None
        if bookie_id is not None and isinstance(error, BookieUnavailableError | BookieTimeoutError):
            self._actions.append(ReportFailure(bookie_id))
        if batch is not None:
            self._on_source_failed(batch, reason_of_failure(error))
        elif add is not None:
            self._on_target_failed(add.target, reason_of_failure(error))
            self._on_add_ended(add)
        elif self._waiting.pop(request_id, None) is not None:
            self.fail(error)

    def _on_timer(self, request_id: int) -> None:
        add = self._adds.get(request_id)
        if add is not None and add.pausing:
            del self._adds[request_id]
            add.pausing = False
            self._add(add)
        elif request_id in self._reads or add is not None:
            self._actions.append(StopRequest(request_id))
            self._on_failed(request_id, BookieTimeoutError(NO_ANSWER))

    def _stop_all(self) -> None:
        for request_id in (*self._reads, *self._adds):
            self._actions += [StopRequest(request_id), StopTimer(request_id)]
        self._actions += map(StopRequest, (*self._paced, *self._waiting))
        for pending in (self._paced, self._reads, self._adds, self._waiting):
            pending.clear()
        self._open = 0
