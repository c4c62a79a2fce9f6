"""Reading a range of entries as a state machine without I/O. Source: compatibility.md §4.8.

The range is cut into *chunks*, a bounded number of which are under way. Where every bookie of the
ensemble holds every entry (E = Qw) a chunk is one part, and successive chunks begin at different
replicas, so that all of them serve. In a striped ledger a chunk is one part per ensemble position, each
of every E-th entry.

A part is asked for at one replica. One that fails, or whose next entry has a wrong digest, is followed
by the next; one that answered less than was asked (a batch read is bounded by bytes) is asked for the
rest; one that is slow is left under way and the rest is asked for at the next replica too. The first good
answer wins, the others are stopped.

What is left when no replica can be asked any more:

========================================== ==========================================================
entries known to exist                     *unknown*: that a replica lacks the entry proves nothing
unconfirmed, all replicas said "absent"    *absent*: not there now (a live writer may yet add it)
unconfirmed, one replica could not tell    *unknown*: it may be there
========================================== ==========================================================

Everything before the entry that could not be had is given out first.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from bk_spark.protocol.codes import Code
from bk_spark.protocol.entries.entry_block import EntryBlock
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import (
    AWAY_REMEDY,
    BookKeeperError,
    EntryUnknownError,
    InvalidArgumentError,
    NoSuchEntryError,
)
from bk_spark.protocol.ledger.speculation import Speculation, Suspects
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.quorum import Answer

#: Apache's ``firstSpeculativeReadTimeout`` and ``maxSpeculativeReadTimeout``.
DEFAULT_SPECULATION: Final = Speculation(2_000, 2_000)
_LOST_REMEDY: Final = "it was written there: were their disks or directories replaced? Bring back what they held"


@dataclass(frozen=True, slots=True)
class ReadEntries:
    """Read ``entry_ids`` at ``bookie_id``; answer with :meth:`RangeReader.on_entries` or
    :meth:`RangeReader.on_error`, and if that takes longer than ``slow_after_ms`` (None: there is nobody
    else to ask) call :meth:`RangeReader.on_slow` meanwhile."""

    request_id: int
    bookie_id: str
    entry_ids: range
    slow_after_ms: int | None


@dataclass(frozen=True, slots=True)
class StopReading:
    """The answer to this request no longer matters."""

    request_id: int


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """What lies before the entry was given out; nothing will follow."""

    error: BookKeeperError


Action = ReadEntries | StopReading | ReadFailed


@dataclass(slots=True)
class _Chunk:
    entry_ids: range
    number: int
    open_parts: int = 0
    answers: list[tuple[range, Payloads]] = field(default_factory=list)
    #: By the entry that could not be had.
    errors: dict[int, BookKeeperError] = field(default_factory=dict)

    @property
    def good_ids(self) -> range:
        """The entries before the first that could not be had."""
        return range(self.entry_ids.start, min(self.errors, default=self.entry_ids.stop))

    def block(self, max_lac: int) -> EntryBlock:
        good = self.good_ids
        if not self.errors and all(ids.step == 1 for ids, _ in self.answers):
            return EntryBlock(good.start, Payloads.joined([payloads for _, payloads in self.answers]), max_lac)
        views: dict[int, memoryview] = {}
        for entry_ids, payloads in self.answers:
            views.update(zip(entry_ids, payloads, strict=True))
        return EntryBlock(good.start, Payloads.of([views[entry] for entry in good]), max_lac)


@dataclass(slots=True)
class _Part:
    chunk: _Chunk
    #: Those not had yet.
    entry_ids: range
    #: Not yet asked for the next entry, best first.
    replicas: list[str]
    #: By request id, those that may still answer; and which of the requests take long.
    asked: dict[int, str] = field(default_factory=dict)
    slow: set[int] = field(default_factory=set)
    failed: dict[str, tuple[Answer, str]] = field(default_factory=dict)
    speculations: int = 0


class RangeReader:
    """Reads entries ``first`` to ``last`` (inclusive).

    They must be known to exist, unless ``unconfirmed``. ``chunk_entries`` may be changed between events;
    it applies to chunks not yet begun. Blocks come in order from :meth:`next_block`; at most
    ``chunks_in_flight`` chunks are under way or waiting there. ``suspects`` are asked last, and get those
    that fail or are slow.
    """

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        first: int,
        last: int,
        *,
        chunk_entries: int,
        chunks_in_flight: int,
        unconfirmed: bool = False,
        speculation: Speculation = DEFAULT_SPECULATION,
        suspects: Suspects | None = None,
    ) -> None:
        if first < 0 or last < first:
            raise InvalidArgumentError(f"cannot read entries {first}..{last}", ledger_id=ledger_id)
        self.ledger_id = ledger_id
        self.chunk_entries = chunk_entries
        #: Set together with the action ReadFailed.
        self.error: BookKeeperError | None = None
        self._metadata = metadata
        self._next = first
        self._last = last
        self._chunks_in_flight = chunks_in_flight
        self._unconfirmed = unconfirmed
        self._speculation = speculation
        self._suspects: Suspects = set() if suspects is None else suspects
        self._chunks: deque[_Chunk] = deque()
        self._parts: dict[int, _Part] = {}
        self._request_id = 0
        #: Short ranges begin at different replicas too.
        self._chunk_number = first
        self._max_lac = -1
        self._actions: list[Action] = []
        self._fill()

    def take_actions(self) -> list[Action]:
        """What is to be done now, in order; each action is given once."""
        actions, self._actions = self._actions, []
        return actions

    @property
    def finished(self) -> bool:
        """Everything was read and given out."""
        return self._next > self._last and not self._chunks

    def next_block(self) -> EntryBlock | None:
        """The next entries in order, if they are there."""
        if self.error is not None or not self._chunks or self._chunks[0].open_parts:
            return None
        chunk = self._chunks[0]
        block = chunk.block(self._max_lac) if chunk.good_ids else None
        if chunk.errors:
            chunk.entry_ids = range(chunk.good_ids.stop, chunk.entry_ids.stop)
        else:
            self._chunks.popleft()
            self._fill()
        self._look_for_failure()
        return block

    def on_entries(self, request_id: int, block: EntryBlock) -> None:
        """The first ``len(block)`` entries of the request, verified; at least one."""
        part = self._parts.pop(request_id, None)
        if part is None:
            return
        winner = part.asked.pop(request_id)
        others = list(part.asked.values())
        self._stop(part)
        self._max_lac = max(self._max_lac, block.max_lac)
        count = min(len(block), len(part.entry_ids))
        part.chunk.answers.append((part.entry_ids[:count], block.payloads.part(0, count)))
        part.entry_ids = part.entry_ids[count:]
        if part.entry_ids:
            # Replicas that failed an earlier entry of the part may well have this one.
            part.replicas = [winner, *part.replicas, *others, *part.failed]
            part.failed, part.speculations = {}, 0
            self._ask_next(part)
        else:
            part.chunk.open_parts -= 1

    def on_error(self, request_id: int, answer: Answer, reason: str) -> None:
        """The bookie said that it lacks the request's first entry (ABSENT); or it failed, could not tell, or
        gave it with a wrong digest (UNKNOWN). ``reason`` is for the error's text."""
        part = self._parts.pop(request_id, None)
        if part is None:
            return
        bookie_id = part.asked.pop(request_id)
        part.slow.discard(request_id)
        part.failed[bookie_id] = answer, reason
        if answer is not Answer.ABSENT or not self._unconfirmed:
            self._suspects.add(bookie_id)
        if self._all_slow(part) and part.replicas:
            self._ask_next(part)
        elif not part.asked:
            self._give_up(part)

    def on_slow(self, request_id: int) -> None:
        """The request was under way for its ``slow_after_ms``. It may still be answered."""
        part = self._parts.get(request_id)
        if part is None or request_id in part.slow:
            return
        part.slow.add(request_id)
        self._suspects.add(part.asked[request_id])
        if self._all_slow(part) and part.replicas:
            part.speculations += 1
            self._ask_next(part)

    def _fill(self) -> None:
        while self._next <= self._last and len(self._chunks) < self._chunks_in_flight:
            end = min(self._next + max(1, self.chunk_entries), self._last + 1)
            segments = self._metadata.segments
            following = [s.first_entry_id for s in segments if s.first_entry_id > self._next]
            if following:
                end = min(end, following[0])
            chunk = _Chunk(range(self._next, end), self._chunk_number)
            self._chunk_number += 1
            self._chunks.append(chunk)
            self._start(chunk)
            self._next = end

    def _start(self, chunk: _Chunk) -> None:
        quorum = self._metadata.quorum
        ensemble = self._metadata.segment_of(chunk.entry_ids.start).ensemble
        if not quorum.striped:
            turn = chunk.number % quorum.ensemble_size
            self._start_part(chunk, chunk.entry_ids, [*ensemble[turn:], *ensemble[:turn]])
            return
        for offset in range(min(quorum.ensemble_size, len(chunk.entry_ids))):
            entry_ids = chunk.entry_ids[offset :: quorum.ensemble_size]
            self._start_part(chunk, entry_ids, [ensemble[index] for index in quorum.write_set(entry_ids.start)])

    def _start_part(self, chunk: _Chunk, entry_ids: range, replicas: list[str]) -> None:
        chunk.open_parts += 1
        replicas.sort(key=lambda bookie: bookie in self._suspects)
        self._ask_next(_Part(chunk, entry_ids, replicas))

    def _ask_next(self, part: _Part) -> None:
        bookie_id = part.replicas.pop(0)
        self._request_id += 1
        self._parts[self._request_id] = part
        part.asked[self._request_id] = bookie_id
        slow_after_ms = self._speculation.wait_ms(part.speculations) if part.replicas else None
        self._actions.append(ReadEntries(self._request_id, bookie_id, part.entry_ids, slow_after_ms))

    @staticmethod
    def _all_slow(part: _Part) -> bool:
        """Nobody is under way of whom an answer can be expected soon."""
        return len(part.slow) == len(part.asked)

    def _stop(self, part: _Part) -> None:
        for request_id in part.asked:
            del self._parts[request_id]
            self._actions.append(StopReading(request_id))
        part.asked.clear()
        part.slow.clear()

    def _give_up(self, part: _Part) -> None:
        entry_id, chunk = part.entry_ids[0], part.chunk
        said = "; ".join(f"{bookie} {reason}" for bookie, (_, reason) in part.failed.items())
        absent = all(answer is Answer.ABSENT for answer, _ in part.failed.values())
        kind, what = (
            (NoSuchEntryError, "the entry is not there now")
            if absent and self._unconfirmed
            else (EntryUnknownError, "no replica gave the entry")
        )
        code = Code.NO_ENTRY.name if absent else None
        remedy = "" if kind is NoSuchEntryError else f"; {_LOST_REMEDY if absent else AWAY_REMEDY}"
        chunk.errors[entry_id] = kind(f"{what}: {said}{remedy}", ledger_id=self.ledger_id, entry_id=entry_id, code=code)
        chunk.open_parts -= 1
        # Nothing behind it will be given out.
        self._next = self._last + 1
        while self._chunks[-1] is not chunk:
            self._chunks.pop()
        for other in list(self._parts.values()):
            if other.chunk.number > chunk.number:
                self._stop(other)
        self._look_for_failure()

    def _look_for_failure(self) -> None:
        head = self._chunks[0] if self._chunks else None
        if self.error is None and head is not None and not head.open_parts and head.errors and not head.good_ids:
            self.error = head.errors[min(head.errors)]
            self._actions.append(ReadFailed(self.error))
