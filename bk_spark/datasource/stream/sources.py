"""The logs, or the ledger being written, that a streaming read follows. Used in the process that plans batches."""

from __future__ import annotations

import logging
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import islice
from typing import Final

import numpy as np
from pyspark.sql.types import StructType

from bk_spark.bookie.blocking import BlockingReader
from bk_spark.datasource.connections import client_of
from bk_spark.datasource.options.options import SourceOptions
from bk_spark.datasource.planning import (
    check_alike,
    check_ledger_schema,
    column_lookup,
    known_size,
    open_ledger,
    open_logs,
    open_named,
)
from bk_spark.datasource.stream.behind import Behind
from bk_spark.datasource.stream.limits import Backlog
from bk_spark.datasource.stream.log_watch import LogNamesWatch, LogWatch, look_at_logs
from bk_spark.datasource.stream.offsets import ledger_name
from bk_spark.datasource.stream.plan import Extent
from bk_spark.log.entries.fit import ColumnLookup
from bk_spark.log.entries.pieces import Piece, Pieces
from bk_spark.log.formats.segment import Segment
from bk_spark.log.formats.settings import EntryFormat
from bk_spark.log.io.snapshot import LogSnapshot
from bk_spark.log.log import Log
from bk_spark.log.positions.bounds import Bounds
from bk_spark.log.tables.ranges import bounds_until, log_pieces
from bk_spark.protocol.errors import NoSuchLedgerError, PeerError
from bk_spark.protocol.metadata.ledger_metadata import LedgerState

#: Pages of a list that are read to say how far a query is behind.
_MAX_BEHIND_PAGES: Final = 8
_LOG: Final = logging.getLogger(__name__)

#: Seconds between two requests for a ledger's last add confirmed. The second applies after an unanswered request.
_LAC_S: Final = 0.05
_LAC_RETRY_S: Final = 1.0
#: Attempts in a row to read a list that grows meanwhile.
_MAX_LOOKS: Final = 5


class Followed(ABC):
    """One log or ledger. For one thread."""

    name: str
    identity: str | int
    entry_format: EntryFormat

    @property
    def option_name(self) -> str:
        """The name in startingOffsets."""
        return str(self.identity) if isinstance(self.identity, int) else self.name

    @abstractmethod
    def extent(self, *, latest: bool = False, looked: bool = False) -> Extent:
        """Return what is readable now. ``latest``: include everything acknowledged, and confirmed, before the call.
        ``looked``: use what :meth:`Sources.now`, called just before with the same ``latest``, found."""

    @abstractmethod
    def start_bounds(self) -> Bounds:
        """Return the bounds for a new query's start. Call after :meth:`Sources.now` with ``latest``."""

    @abstractmethod
    def pieces(self, start: int, end: int) -> Pieces:
        """Return offsets ``[start, end)``. Raises LogRangeGoneError if they no longer exist."""

    @abstractmethod
    def backlog(self, start: int, end: int, size_bytes: int) -> Backlog:
        """Return the same range for limiting, with sizes for at least the first ``size_bytes``."""

    def behind(self, start: int, end: int) -> Behind:
        """Return what offsets ``[start, end)`` hold, for people."""
        return Behind(end - start)


class FollowedLog(Followed):
    """A log: its committed entries and the confirmed ones in its open tail."""

    def __init__(self, log: Log) -> None:
        self.name = log.name
        self.identity = log.log_id
        self.entry_format = log.settings.entry_format
        self._log = log
        self.watch = LogWatch(log.zookeeper, log)
        self._snapshot: LogSnapshot | None = None
        #: Whether the list grew while it was read.
        self._is_outdated = False
        self._tail: Segment | None = None
        self._confirmed: _Confirmed | None = None

    def extent(self, *, latest: bool = False, looked: bool = False) -> Extent:
        """Return what is readable, with the confirmed entries of an open tail. Asks its bookies at most every 50 ms."""
        try:
            return self._extent(latest, looked)
        except NoSuchLedgerError:
            # The tail was sealed, truncated and deleted meanwhile. The latest list shows this.
            return self._extent(latest=True, looked=False)

    def _extent(self, latest: bool, looked: bool) -> Extent:
        snapshot = self._look(latest, looked)
        if self._tail is None or self._confirmed is None:
            return Extent(self.identity, snapshot.first_offset, snapshot.next_offset, is_open=self._is_outdated)
        entries = self._confirmed.last(latest) - self._tail.first_entry + 1
        return Extent(self.identity, snapshot.first_offset, snapshot.next_offset + max(0, entries), is_open=True)

    def start_bounds(self) -> Bounds:
        """Return the bounds for a new query's start. Their end includes the confirmed entries of an open tail."""
        end = self.extent(latest=True, looked=True).end
        assert self._snapshot is not None
        return bounds_until(self._snapshot, end)

    def pieces(self, start: int, end: int) -> Pieces:
        """Return offsets ``[start, end)``. Raises LogRangeGoneError if they no longer exist."""
        return log_pieces(self._log, self._look(latest=False), start, end)

    def backlog(self, start: int, end: int, size_bytes: int) -> Backlog:
        """Return the range with sizes of its first segments. Those of an open tail are estimates."""
        snapshot = self._look(latest=False)
        parts, found_bytes = [], 0
        committed = min(end, snapshot.next_offset)
        if start < committed:
            for table in snapshot.tables(start, committed):
                part = Pieces.of_segments(self.name, [table], start, committed)
                parts.append(part)
                found_bytes += int(part.size_bytes.sum())
                if found_bytes >= size_bytes:
                    break
        if end > committed and found_bytes < size_bytes:
            parts.append(log_pieces(self._log, snapshot, max(start, committed), end))
        known = Pieces.concat(parts)
        return Backlog(start, end, known.entries, known.size_bytes)

    def behind(self, start: int, end: int) -> Behind:
        """Return what offsets ``[start, end)`` hold. What is beyond the first pages, or in an open tail, is
        extrapolated."""
        snapshot = self._look(latest=False)
        committed = min(end, snapshot.next_offset)
        parts: list[Pieces] = []
        if start < committed:
            for table in islice(snapshot.tables(start, committed), _MAX_BEHIND_PAGES):
                parts.append(Pieces.of_segments(self.name, [table], start, committed))
        known = Pieces.concat(parts)
        return Behind.of(end - start, known.entries, known.size_bytes, known.rows)

    def _look(self, latest: bool, looked: bool = False) -> LogSnapshot:
        """Read the list, and update the tail and its ledger."""
        if looked:
            snapshot = self.watch.looked_at(latest=latest)
        else:
            snapshot = self.watch.latest() if latest else self.watch.now()
        if snapshot is not self._snapshot:
            tail, is_outdated = snapshot.look_at_tail(self.watch.take_tail_page())
            for _ in range(_MAX_LOOKS):
                if not is_outdated:
                    break
                # A tail was sealed after the list was read. Readers may have seen its entries.
                known, snapshot = snapshot.next_offset, self.watch.latest()
                tail, is_outdated = snapshot.look_at_tail()
                if snapshot.next_offset <= known:
                    # The list did not grow: the head was set back.
                    is_outdated = False
            self._is_outdated = is_outdated
            if tail is None:
                self._confirmed = None
            elif self._tail is None or self._tail.ledger_id != tail.ledger_id or self._confirmed is None:
                self._confirmed = _Confirmed(self._log.ledgers.reader(tail.ledger_id), f"log {self.name}")
            self._tail, self._snapshot = tail, snapshot
        return snapshot


class FollowedLedger(Followed):
    """The confirmed entries of a ledger, open or closed."""

    def __init__(self, options: SourceOptions, schema: StructType, ledger_id: int) -> None:
        self.name = ledger_name(ledger_id)
        self.identity = ledger_id
        self.entry_format = options.entry_format or EntryFormat.RAW
        self._ledger_id = ledger_id
        self._reader = open_ledger(options, ledger_id)
        check_ledger_schema(options, schema, self._reader)
        self._confirmed = _Confirmed(self._reader, self.name)
        self._entry_bytes: int | None = None

    def extent(self, *, latest: bool = False, looked: bool = False) -> Extent:
        """Return the confirmed entries. The ledger is open until its metadata says CLOSED."""
        end = self._confirmed.last(latest) + 1
        return Extent(self.identity, 0, end, is_open=self._reader.metadata.state is not LedgerState.CLOSED)

    def start_bounds(self) -> Bounds:
        """Return the bounds for a new query's start: a ledger has no times."""
        return Bounds(0, self.extent(latest=True).end)

    def pieces(self, start: int, end: int) -> Pieces:
        """Return entries ``[start, end)`` as one piece. Its size is an estimate, and its rows are its entries."""
        if start >= end:
            return Pieces.of(())
        entries = end - start
        return Pieces.of([Piece(self._ledger_id, start, end - 1, entries * self._bytes_of_one(), entries)])

    def backlog(self, start: int, end: int, size_bytes: int) -> Backlog:
        """Return the range as one segment of estimated size."""
        entries = end - start
        if not entries:
            return Backlog(start, end)
        return Backlog(start, end, np.array([entries]), np.array([entries * self._bytes_of_one()]))

    def _bytes_of_one(self) -> int:
        """Estimate the bytes of one entry."""
        if self._reader.last_add_confirmed < 0:
            return 1
        # For an open ledger this reads entries, so do it only once.
        if self._entry_bytes is None or self._reader.metadata.state is LedgerState.CLOSED:
            size_bytes, entries = known_size(self._reader)
            self._entry_bytes = max(1, size_bytes // entries)
        return self._entry_bytes


class _Confirmed:
    """The last add confirmed of a ledger that may still be written. It never decreases."""

    def __init__(self, reader: BlockingReader, what: str) -> None:
        self._reader = reader
        self._what = what
        self._ask_at: float | None = None

    def last(self, latest: bool) -> int:
        """Return the last add confirmed. ``latest``: ask the bookies now, and raise if they cannot tell. Otherwise
        return the last known value if they cannot tell."""
        reader = self._reader
        if reader.metadata.state is LedgerState.CLOSED or not (latest or self._is_due()):
            return reader.last_add_confirmed
        self._ask_at = time.monotonic() + _LAC_S
        try:
            return reader.read_last_add_confirmed()
        except PeerError as error:
            if latest or not error.retriable:
                raise
            _LOG.warning("%s: its end cannot be determined now, so nothing new is read: %s", self._what, error)
            self._ask_at = time.monotonic() + _LAC_RETRY_S
            return reader.last_add_confirmed

    def _is_due(self) -> bool:
        return self._ask_at is None or time.monotonic() >= self._ask_at


class Sources:
    """Everything that a query reads, by name. With ``logPattern`` each look may find more logs."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._logs: dict[str, Log] = {}
        self._lookup: ColumnLookup | None = None
        self._followed: dict[str, Followed] = {}
        self._pattern = None if options.log_pattern is None else re.compile(options.log_pattern)
        if options.ledger_id is not None:
            ledger = FollowedLedger(options, schema, options.ledger_id)
            self._followed[ledger.name] = ledger
        elif self._pattern is not None:
            zk = client_of(options.metadata_service_uri, options.client).zookeeper
            self._names = LogNamesWatch(zk, options.log_root)
        else:
            for log in open_logs(options, schema).values():
                self._follow(log)

    def now(self, *, latest: bool = False) -> Mapping[str, Followed]:
        """Check all lists once and return what is followed. ``latest``: include every change before the call.

        Raises InvalidArgumentError if a new log cannot be read together with the others."""
        if self._pattern is not None:
            names = self._names.latest() if latest else self._names.now()
            new = [name for name in sorted(names - self._followed.keys()) if self._pattern.fullmatch(name)]
            if new:
                self._take_in(new)
        if self._logs:
            watches = [one.watch for one in self._followed.values() if isinstance(one, FollowedLog)]
            look_at_logs(next(iter(self._logs.values())).zookeeper, watches, latest=latest)
        return self._followed

    def lookup(self) -> ColumnLookup:
        """Return how tasks find the columns of the query's schema, as the logs were when this run began to follow them.

        Columns that are added to a log later are not part of the query."""
        if self._lookup is None:
            self._lookup = column_lookup(self._options, self._schema, self._logs.values())
        return self._lookup

    def may_have(self, name: str) -> bool:
        """Whether the query's options include this log or ledger, existing or not."""
        return name in self._followed or (self._pattern is not None and self._pattern.fullmatch(name) is not None)

    def let_go(self, name: str) -> None:
        """Stop following a log that no longer exists."""
        del self._followed[name]
        del self._logs[name]
        self._lookup = None

    def _take_in(self, names: list[str]) -> None:
        # A log that is left out was just deleted, or is being deleted.
        found = open_named(self._options, names)
        if not found:
            return
        check_alike(self._options, dict([*islice(self._logs.items(), 1), *found.items()]), self._schema)
        for log in found.values():
            self._follow(log)

    def _follow(self, log: Log) -> None:
        self._lookup = None
        self._logs[log.name] = log
        self._followed[log.name] = FollowedLog(log)
