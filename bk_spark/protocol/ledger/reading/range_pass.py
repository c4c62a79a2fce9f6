"""The machine of one pass over a range of entries, with one state of the metadata. Source:
docs/design/compatibility.md §4.8.

The range is cut into *chunks*. A limited number of them is under way. If every bookie of the ensemble holds every entry
(E = Qw), a chunk is one part, and successive chunks begin at different replicas, to spread the load. In a striped
ledger a chunk has one part for each ensemble position, with every E-th entry.

A part is read from one replica. If that fails, or its next entry has a wrong digest, the next replica is asked. If it
returns only some of the entries (a batch read is limited in bytes), it is asked for the rest. If it is slow, the
request stays under way and the next replica is also asked for the rest. The first good answer wins, and the other
requests are stopped.

If no replica returns an entry, ``no_replica`` says what their answers mean. All entries before it are returned first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from bk_spark.protocol.codes import Code
from bk_spark.protocol.entries.entry import (
    ENTRY_HEADER_BYTES,
    EntryBlock,
    stored_in,
    verify_apart,
    verify_records,
    verify_stored,
)
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import BookieTimeoutError, BookieUnavailableError, BookKeeperError
from bk_spark.protocol.ledger.reading.lac import NO_ANSWER
from bk_spark.protocol.ledger.reading.ledger_view import LedgerKey
from bk_spark.protocol.ledger.reading.no_replica import no_replica
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
from bk_spark.protocol.ledger.reading.read_settings import ReadSettings, Suspects
from bk_spark.protocol.machine import EndedBy, StartTimer, StopRequest, StopTimer, Succeeded, TimerFired
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.quorum import Answer
from bk_spark.protocol.wire.code_errors import AbsentError, check_read

#: The maximum number of single reads sent at once. The rest of a request follows. This limits a bookie's load.
_MAX_SINGLE_READS: Final = 500
#: Entries that are this large on average are given to the caller one by one. To join them costs a copy.
APART_BYTES: Final = 256 * 1024
#: Bytes of an answer to a batch read besides the entries.
_BATCH_RESERVE_BYTES: Final = 1024

Action = ReadEntries | ReadBatch | ReportFailure | StartTimer | StopTimer | StopRequest
Event = EntriesRead | BatchRead | BatchRefused | RequestFailed | TimerFired


@dataclass(slots=True)
class _Chunk:
    """Entries that are returned together."""

    entry_ids: range
    number: int
    open_parts: int = 0
    answers: list[tuple[range, Payloads]] = field(default_factory=list)
    #: By the entry that could not be read.
    errors: dict[int, BookKeeperError] = field(default_factory=dict)

    @property
    def is_apart(self) -> bool:
        """Whether it has several answers that are too large to be joined."""
        if len(self.answers) < 2 or self.errors:
            return False
        return all(ids.step == 1 and payloads.size_bytes >= APART_BYTES for ids, payloads in self.answers)

    def first_block(self, max_lac: int) -> EntryBlock:
        """Remove the first of several answers, and return it."""
        ids, payloads = self.answers.pop(0)
        self.entry_ids = range(ids.stop, self.entry_ids.stop)
        return EntryBlock(ids.start, payloads, max_lac)

    @property
    def good_ids(self) -> range:
        """The entries before the first that could not be read."""
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
    """The part of a chunk that one replica holds: all of it, or every E-th entry."""

    chunk: _Chunk
    #: The entries not read yet.
    entry_ids: range
    #: Replicas not yet asked for the next entry, best first.
    replicas: list[str]
    #: Bookies that may still answer, by request id, and the ids of the slow requests.
    asked: dict[int, str] = field(default_factory=dict)
    slow: set[int] = field(default_factory=set)
    #: For requests that are not slow yet, by id: the time left once they become slow.
    late_after_ms: dict[int, int] = field(default_factory=dict)
    failed: dict[str, tuple[Answer, str]] = field(default_factory=dict)
    speculations: int = 0

    @property
    def wants_another(self) -> bool:
        """Whether every request under way is slow, and another replica can be asked."""
        return bool(self.replicas) and len(self.slow) == len(self.asked)


class RangePass:
    """Reads entries ``first`` to ``last`` (inclusive). Blocks come in order from :meth:`next_block`.

    Parameters
    ----------
    unconfirmed
        The entries may not exist.
    suspects
        Bookies that are asked last. Those that fail or are slow are added.
    without_batch_reads
        Bookies without batch reads. Newly found ones are added.
    request_ids
        Gives the ids of requests. They must be unique among all passes that share a runner.
    """

    def __init__(
        self,
        ledger: LedgerKey,
        metadata: LedgerMetadata,
        first: int,
        last: int,
        settings: ReadSettings,
        *,
        unconfirmed: bool = False,
        suspects: Suspects,
        without_batch_reads: set[str],
        request_ids: Iterator[int],
    ) -> None:
        self.outcome: Succeeded[None] | EndedBy | None = None
        self._ledger = ledger
        self._metadata = metadata
        self._next = first
        self._last = last
        self._settings = settings
        self._unconfirmed = unconfirmed
        self._suspects = suspects
        self._without_batch_reads = without_batch_reads
        self._request_ids = request_ids
        #: The average size of an entry in bytes, from a closed ledger's metadata. 0: not known yet.
        self._average_bytes = metadata.length / (metadata.last_entry_id + 1) if metadata.last_entry_id >= 0 else 0.0
        self._chunks: deque[_Chunk] = deque()
        self._parts: dict[int, _Part] = {}
        #: Refused batch reads that are retried one by one, at bookies that may lack batch reads.
        self._refused: set[int] = set()
        #: Starts at ``first``, so that short ranges also begin at different replicas.
        self._chunk_number = first
        self._max_lac = -1
        self._actions: list[Action] = []
        self._fill()

    def take_actions(self) -> list[Action]:
        """Return the new requests, timers and stops, in order."""
        actions, self._actions = self._actions, []
        return actions

    def next_block(self) -> EntryBlock | None:
        """Return the next entries in order, or None if they have not arrived."""
        if self.outcome is not None or not self._chunks or self._chunks[0].open_parts:
            return None
        chunk = self._chunks[0]
        is_apart = chunk.is_apart
        block = chunk.first_block(self._max_lac) if is_apart else chunk.block(self._max_lac) if chunk.good_ids else None
        if block is not None:
            average = block.payloads.size_bytes / len(block)
            self._average_bytes = average if not self._average_bytes else (self._average_bytes + average) / 2
        if is_apart:
            return block
        if chunk.errors:
            chunk.entry_ids = range(chunk.good_ids.stop, chunk.entry_ids.stop)
        else:
            self._chunks.popleft()
            self._fill()
        self._look_for_end()
        return block

    def handle(self, event: Event) -> None:
        """Handle an event. Events of ended requests are ignored."""
        match event:
            case EntriesRead(request_id) | BatchRead(request_id) if request_id in self._parts:
                self._on_answer(request_id, event)
            case BatchRefused(request_id) if request_id in self._parts:
                self._on_refused(request_id)
            case RequestFailed(int(request_id), error) if request_id in self._parts:
                broken = isinstance(error, BookieUnavailableError | BookieTimeoutError)
                self._on_error(request_id, Answer.UNKNOWN, reason_of_failure(error), failed=broken)
            case TimerFired(int(request_id)) if request_id in self._parts:
                self._on_timer(request_id)

    def fail(self, error: Exception) -> None:
        """End the pass with this error. Blocks that were not taken are lost."""
        if self.outcome is None:
            self.outcome = EndedBy(error)

    def _on_answer(self, request_id: int, event: EntriesRead | BatchRead) -> None:
        part = self._parts[request_id]
        if request_id in self._refused:
            self._without_batch_reads.add(part.asked[request_id])
        try:
            blocks = self._blocks(part.entry_ids, event)
        except AbsentError:
            self._on_error(request_id, Answer.ABSENT, "does not have it")
        except BookKeeperError as error:
            self._on_error(request_id, Answer.UNKNOWN, error.message)
        else:
            self._on_entries(request_id, blocks)

    def _blocks(self, entry_ids: range, event: EntriesRead | BatchRead) -> list[EntryBlock]:
        """Verify the first entries of an answer and return them, at least one. Large ones are not joined."""
        ledger = self._ledger
        check = ledger.ledger_id, entry_ids.start, ledger.digest_type, ledger.digest
        if isinstance(event, BatchRead):
            check_read(event.code)
            if len(event.records) >= APART_BYTES * len(entry_ids):
                stored_entries = stored_in(event.records, ledger.ledger_id)
                if stored_entries and len(event.records) >= APART_BYTES * len(stored_entries):
                    return verify_apart(stored_entries, *check)
            return [verify_records(event.records, *check, may_change=True)]
        answers = event.answers
        stored: list[memoryview] = []
        good = Code.OK
        for entry_id in entry_ids[: len(answers)]:
            answer = answers[entry_id]
            if answer.code is not good:
                if stored:
                    break
                check_read(answer.code)
            stored.append(answer.stored)
        if sum(map(len, stored)) >= APART_BYTES * len(stored):
            return verify_apart(stored, *check, entry_ids.step)
        return [verify_stored(stored, *check, entry_ids.step)]

    def _on_entries(self, request_id: int, blocks: list[EntryBlock]) -> None:
        part = self._parts[request_id]
        winner = self._forget(request_id)
        others = list(part.asked.values())
        self._stop(part)
        for block in blocks:
            self._max_lac = max(self._max_lac, block.max_lac)
            count = min(len(block), len(part.entry_ids))
            if count:
                part.chunk.answers.append((part.entry_ids[:count], block.payloads.part(0, count)))
            part.entry_ids = part.entry_ids[count:]
        if part.entry_ids:
            # Replicas that failed for an earlier entry of the part may have this one.
            part.replicas = [winner, *part.replicas, *others, *part.failed]
            part.failed, part.speculations = {}, 0
            self._ask_next(part)
        else:
            part.chunk.open_parts -= 1
            self._look_for_end()

    def _on_error(self, request_id: int, answer: Answer, reason: str, *, failed: bool = False) -> None:
        """Handle a bad answer. ABSENT: the bookie lacks the request's first entry. UNKNOWN: it failed, could not tell,
        or returned a wrong digest."""
        part = self._parts[request_id]
        bookie_id = self._forget(request_id)
        part.failed[bookie_id] = answer, reason
        if answer is not Answer.ABSENT or not self._unconfirmed:
            self._suspects.add(bookie_id)
        if failed:
            self._actions.append(ReportFailure(bookie_id))
        if part.wants_another:
            self._ask_next(part)
        elif not part.asked:
            self._give_up(part)

    def _on_refused(self, request_id: int) -> None:
        """Continue without batch reads. A bookie older than 4.17 closes the connection at a batch read. If it cannot be
        reached again, it died."""
        part = self._parts[request_id]
        self._refused.add(request_id)
        self._actions.append(ReadEntries(request_id, part.asked[request_id], part.entry_ids[:_MAX_SINGLE_READS]))

    def _on_timer(self, request_id: int) -> None:
        """Handle a request that is slow, or late. A slow one may still be answered."""
        part = self._parts[request_id]
        left_ms = part.late_after_ms.pop(request_id, None)
        if left_ms is None:
            self._actions.append(StopRequest(request_id))
            self._on_error(request_id, Answer.UNKNOWN, NO_ANSWER, failed=True)
            return
        self._actions.append(StartTimer(request_id, left_ms))
        part.slow.add(request_id)
        self._suspects.add(part.asked[request_id])
        if part.wants_another:
            part.speculations += 1
            self._ask_next(part)

    def _fill(self) -> None:
        while self._next <= self._last and len(self._chunks) < self._settings.requests_ahead:
            following = [s.first_entry_id for s in self._metadata.segments if s.first_entry_id > self._next]
            end = min(self._next + self._chunk_entries(), self._last + 1, *following)
            chunk = _Chunk(range(self._next, end), self._chunk_number)
            self._chunk_number += 1
            self._chunks.append(chunk)
            self._start(chunk)
            self._next = end

    def _chunk_entries(self) -> int:
        if not self._average_bytes:
            return self._settings.first_request_entries
        entries = int(self._settings.request_bytes / (self._average_bytes + ENTRY_HEADER_BYTES))
        return max(1, min(self._settings.max_request_entries, entries))

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
        again = bool(part.asked or part.failed)
        request_id = next(self._request_ids)
        self._parts[request_id] = part
        part.asked[request_id] = bookie_id
        entry_ids, most = part.entry_ids, self._settings.max_answer_bytes
        one_by_one = entry_ids.step != 1 or len(entry_ids) == 1 or bookie_id in self._without_batch_reads
        if most is None or one_by_one:
            self._actions.append(ReadEntries(request_id, bookie_id, entry_ids[:_MAX_SINGLE_READS], again))
        else:
            self._actions.append(ReadBatch(request_id, bookie_id, entry_ids, most - _BATCH_RESERVE_BYTES, again))
        after_ms = timeout_ms = self._settings.timeout_ms
        if part.replicas and (slow_after_ms := self._settings.speculation.wait_ms(part.speculations)) < timeout_ms:
            # One timer for each request. When it fires, it starts again for the rest of the request's time.
            part.late_after_ms[request_id] = timeout_ms - slow_after_ms
            after_ms = slow_after_ms
        self._actions.append(StartTimer(request_id, after_ms))

    def _forget(self, request_id: int) -> str:
        """Remove an ended request. Return the bookie that was asked."""
        part = self._parts.pop(request_id)
        part.slow.discard(request_id)
        self._refused.discard(request_id)
        part.late_after_ms.pop(request_id, None)
        self._actions.append(StopTimer(request_id))
        return part.asked.pop(request_id)

    def _stop(self, part: _Part) -> None:
        for request_id in list(part.asked):
            self._forget(request_id)
            self._actions.append(StopRequest(request_id))

    def _give_up(self, part: _Part) -> None:
        entry_id, chunk = part.entry_ids[0], part.chunk
        ledger_id = self._ledger.ledger_id
        chunk.errors[entry_id] = no_replica(part.failed, ledger_id, entry_id, unconfirmed=self._unconfirmed)
        chunk.open_parts -= 1
        # Entries after it are not returned.
        self._next = self._last + 1
        while self._chunks[-1] is not chunk:
            self._chunks.pop()
        for other in list(self._parts.values()):
            if other.chunk.number > chunk.number:
                self._stop(other)
        self._look_for_end()

    def _look_for_end(self) -> None:
        if self.outcome is not None:
            return
        if not self._chunks:
            self.outcome = Succeeded(None)
        elif not (head := self._chunks[0]).open_parts and head.errors and not head.good_ids:
            self.outcome = EndedBy(head.errors[min(head.errors)])
