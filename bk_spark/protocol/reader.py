"""Reading a range of entries as a state machine without I/O. Source: compatibility facts §4.8.

The range is cut into *chunks*, a bounded number of which are under way. Where every bookie of the
ensemble holds every entry (E = Qw) a chunk is one request, and successive chunks begin at different
replicas, so that all of them serve. In a striped ledger a chunk is one request per ensemble position,
each for every E-th entry.

A request that fails, or whose next entry has a wrong digest, goes to the next replica; one that was
answered in part (a batch read is bounded by bytes) is continued where it stands. When no replica is
left the read fails as *unknown*: the range is known to exist, so "absent" from a replica only means
that this replica lacks the entry.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from bk_spark.protocol.entry_block import EntryBlock
from bk_spark.protocol.errors import BookKeeperError, EntryUnknownError, InvalidArgumentError
from bk_spark.protocol.ledger_metadata import LedgerMetadata
from bk_spark.protocol.payloads import Payloads


@dataclass(frozen=True, slots=True)
class ReadEntries:
    """Read ``entry_ids`` at ``bookie_id``; answer with :meth:`RangeReader.on_entries` or
    :meth:`RangeReader.on_error`."""

    request_id: int
    bookie_id: str
    entry_ids: range


@dataclass(frozen=True, slots=True)
class ReadFailed:
    error: BookKeeperError


@dataclass(slots=True)
class _Chunk:
    entry_ids: range
    replica_offset: int
    open_requests: int = 0
    parts: list[tuple[range, Payloads]] = field(default_factory=list)

    def block(self, max_lac: int) -> EntryBlock:
        if len(self.parts) == 1:
            return EntryBlock(self.entry_ids.start, self.parts[0][1], max_lac)
        views: dict[int, memoryview] = {}
        for entry_ids, payloads in self.parts:
            views.update(zip(entry_ids, payloads, strict=True))
        return EntryBlock(self.entry_ids.start, Payloads.of([views[entry] for entry in self.entry_ids]), max_lac)


@dataclass(slots=True)
class _Request:
    chunk: _Chunk
    entry_ids: range
    replicas: list[str]
    tried: dict[str, str] = field(default_factory=dict)


class RangeReader:
    """Reads entries ``first`` to ``last`` (inclusive), which must be known to exist.

    ``chunk_entries`` may be changed between events; it applies to chunks not yet begun. Blocks come in
    order from :meth:`next_block`; at most ``chunks_in_flight`` chunks are under way or waiting there.
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
    ) -> None:
        if first < 0 or last < first:
            raise InvalidArgumentError(f"cannot read entries {first}..{last}", ledger_id=ledger_id)
        self.ledger_id = ledger_id
        self.chunk_entries = chunk_entries
        self.error: BookKeeperError | None = None
        self._metadata = metadata
        self._next = first
        self._last = last
        self._chunks_in_flight = chunks_in_flight
        self._chunks: deque[_Chunk] = deque()
        self._requests: dict[int, _Request] = {}
        self._request_id = 0
        self._chunk_number = 0
        self._max_lac = -1
        self._suspect: set[str] = set()
        self._actions: list[ReadEntries | ReadFailed] = []
        self._fill()

    def take_actions(self) -> list[ReadEntries | ReadFailed]:
        """What is to be done now, in order; each action is given once."""
        actions, self._actions = self._actions, []
        return actions

    @property
    def finished(self) -> bool:
        """Everything was read and given out."""
        return self._next > self._last and not self._chunks

    def next_block(self) -> EntryBlock | None:
        """The next entries in order, if they are there."""
        if not self._chunks or self._chunks[0].open_requests:
            return None
        chunk = self._chunks.popleft()
        self._fill()
        return chunk.block(self._max_lac)

    def on_entries(self, request_id: int, block: EntryBlock) -> None:
        """The first ``len(block)`` entries of the request, verified; at least one."""
        request = self._requests.pop(request_id, None)
        if request is None or self.error is not None:
            return
        self._max_lac = max(self._max_lac, block.max_lac)
        count = min(len(block), len(request.entry_ids))
        request.chunk.parts.append((request.entry_ids[:count], block.payloads.part(0, count)))
        request.entry_ids = request.entry_ids[count:]
        if request.entry_ids:
            # The replicas that failed an earlier entry of the chunk may well have this one.
            request.replicas, request.tried = [*request.replicas, *request.tried], {}
            self._send(request)
        else:
            request.chunk.open_requests -= 1

    def on_error(self, request_id: int, reason: str) -> None:
        """The bookie failed, or its first entry was absent or wrong; ``reason`` is for the error's text."""
        request = self._requests.pop(request_id, None)
        if request is None or self.error is not None:
            return
        bookie_id = request.replicas.pop(0)
        self._suspect.add(bookie_id)
        request.tried[bookie_id] = reason
        if request.replicas:
            self._send(request)
            return
        self.error = EntryUnknownError(
            f"no replica gave the entry: {'; '.join(f'{bookie} {why}' for bookie, why in request.tried.items())}",
            ledger_id=self.ledger_id,
            entry_id=request.entry_ids[0],
        )
        self._requests.clear()
        self._actions.append(ReadFailed(self.error))

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
            turn = chunk.replica_offset % quorum.ensemble_size
            self._request(chunk, chunk.entry_ids, [*ensemble[turn:], *ensemble[:turn]])
            return
        for offset in range(min(quorum.ensemble_size, len(chunk.entry_ids))):
            entry_ids = chunk.entry_ids[offset :: quorum.ensemble_size]
            self._request(chunk, entry_ids, [ensemble[index] for index in quorum.write_set(entry_ids.start)])

    def _request(self, chunk: _Chunk, entry_ids: range, replicas: list[str]) -> None:
        chunk.open_requests += 1
        replicas.sort(key=lambda bookie: bookie in self._suspect)
        self._send(_Request(chunk, entry_ids, replicas))

    def _send(self, request: _Request) -> None:
        self._request_id += 1
        self._requests[self._request_id] = request
        self._actions.append(ReadEntries(self._request_id, request.replicas[0], request.entry_ids))
