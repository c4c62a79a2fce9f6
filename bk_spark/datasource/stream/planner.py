"""Decides what each micro-batch of a streaming read reads. Asks the sources and applies :mod:`.plan`."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final, Protocol

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.datasource.connections import client_of
from bk_spark.datasource.options.options import SourceOptions
from bk_spark.datasource.options.positions import start_offsets
from bk_spark.datasource.planning import splits_of
from bk_spark.datasource.stream.limits import Backlog, MinEntriesGate, ends_within
from bk_spark.datasource.stream.offsets import Position, StreamOffset, ledger_name, parse_offset
from bk_spark.datasource.stream.plan import (
    DataLoss,
    Extent,
    Waiting,
    advanced,
    batch_ranges,
    readable,
    same_log,
    waiting_entries,
)
from bk_spark.datasource.stream.progress import ProgressTeller
from bk_spark.datasource.stream.sources import Followed, Sources
from bk_spark.log.entries.pieces import Pieces
from bk_spark.log.positions.texts import Edge
from bk_spark.protocol.errors import BookKeeperError, InvalidArgumentError, LogRangeGoneError, NoSuchLogError

#: Logs of which a query reports how far it is behind.
_MOST_BEHIND: Final = 200


class AnySources(Protocol):
    """What a query follows, by name."""

    def now(self, *, latest: bool = False) -> Mapping[str, Followed]:
        """Look once, and return what is followed. ``latest``: include every change before the call."""

    def may_have(self, name: str) -> bool:
        """Whether the query's options include this name, existing or not."""

    def let_go(self, name: str) -> None:
        """Stop following what no longer exists."""


class StreamPlanner(ABC):
    """Decides what each micro-batch of one run of a query reads. For one thread.

    ``sources`` are what the query follows, and ``loss`` is told what is gone. Here is what logs, ledgers and topics
    have in common.
    """

    def __init__(self, options: SourceOptions, sources: AnySources, loss: DataLoss) -> None:
        self._options = options
        self._sources = sources
        self._loss = loss
        self._initial: StreamOffset | None = None
        #: Ends to stop at, for Trigger.AvailableNow.
        self._target: dict[str, int] | None = None
        self._known: dict[str, Extent] = {}
        #: The end of the last batch that was planned.
        self._reached: StreamOffset | None = None
        self._turn = 0
        self._gate: MinEntriesGate | None = None
        if options.min_entries_per_trigger is not None:
            self._gate = MinEntriesGate(options.min_entries_per_trigger, options.max_trigger_delay_ms)

    @abstractmethod
    def initial(self) -> StreamOffset:
        """Return where a new query starts. The same on every call."""

    @abstractmethod
    def parse(self, found: object) -> StreamOffset:
        """Parse an offset of Spark's checkpoint. Raises MetadataFormatError."""

    @abstractmethod
    def to_json(self, offset: StreamOffset) -> dict[str, Any]:
        """Return an offset as Spark's checkpoint keeps it."""

    @abstractmethod
    def _tasks(self, begun: StreamOffset, ended: StreamOffset, pieces: dict[str, Pieces]) -> list[InputPartition]:
        """Return the tasks of a batch that reads ``pieces``, by name, at least one."""

    @abstractmethod
    def _called(self, name: str) -> str:
        """Say what is meant by a name in an offset."""

    @abstractmethod
    def _meant(self) -> str:
        """Say what the options name."""

    @abstractmethod
    def _tell(self, begun: StreamOffset) -> None:
        """Tell the source that everything before ``begun`` was read."""

    def stop_at_present_end(self) -> None:
        """Return no offset beyond the present end from now on."""
        self._target = {name: extent.end for name, extent in self._extents(latest=True).items()}

    def next(self, begun: StreamOffset, *, limited: bool) -> StreamOffset:
        """Return the end of the batch that begins at ``begun``, or ``begun`` itself if nothing is to be read now."""
        self._check_meant(begun)
        try:
            end = self._next(begun, self._extents(), limited)
            self._tell(begun)
            self._reached = end
            return end
        except LogRangeGoneError:
            # The log may have been truncated while sizes were read. If not, the same error is raised again.
            self._reached = self._next(begun, self._extents(latest=True), limited)
            return self._reached

    def behind(self) -> dict[str, Any]:
        """Return what is unread after the batch that :meth:`next` planned, by name. For display: what cannot be
        determined is left out."""
        found: dict[str, Any] = {}
        if self._reached is None:
            return found
        with suppress(BookKeeperError):
            followed = self._sources.now()
            for name, extent in islice(self._known.items(), _MOST_BEHIND):
                position = self._reached.positions.get(name)
                start = extent.first if position is None else max(position.offset, extent.first)
                if name in followed:
                    found[name] = followed[name].behind(start, max(start, extent.end)).to_json()
        return found

    def _next(self, begun: StreamOffset, extents: dict[str, Extent], limited: bool) -> StreamOffset:
        self._check_there(begun, extents)
        for name, position in begun.positions.items():
            if name in extents and position.offset > extents[name].end and not extents[name].is_open:
                # Cached knowledge is not enough to report this loss.
                extents[name] = self._sources.now()[name].extent(latest=True)
        waiting = waiting_entries(begun, extents, self._loss)
        if self._target is not None:
            target = self._target
            waiting = {name: one.until(target[name]) for name, one in waiting.items() if name in target}
        ends = {name: one.end for name, one in waiting.items()}
        if limited:
            entries = sum(one.end - one.start for one in waiting.values())
            if self._gate is not None and self._target is None and not self._gate.opens(entries, _now_ms()):
                return begun
            ends = self._within_limits(waiting)
        return advanced(begun, waiting, ends)

    def latest_known(self) -> StreamOffset | None:
        """Return the ends as last found, regardless of limits. None before the first look. For display."""
        if not self._known:
            return None
        return StreamOffset({name: Position(extent.identity, extent.end) for name, extent in self._known.items()})

    def splits(self, begun: StreamOffset, ended: StreamOffset) -> list[InputPartition]:
        """Return the tasks of a batch."""
        self._check_meant(ended)
        followed = self._sources.now()
        pieces: dict[str, Pieces] = {}
        for name, (start, end) in batch_ranges(begun, ended).items():
            one = followed.get(name)
            if one is None:
                self._loss.missing(name, start)
            else:
                same_log(name, ended.positions[name].identity, one.identity)
                pieces[name] = self._pieces(one, start, end)
        return self._tasks(begun, ended, pieces) if pieces else []

    def _pieces(self, one: Followed, start: int, end: int) -> Pieces:
        """Return the part of the range that exists."""
        extent = one.extent()
        if end > extent.end and not extent.is_open:
            extent = one.extent(latest=True)
        try:
            return one.pieces(*readable(one.name, start, end, extent, self._loss))
        except LogRangeGoneError:
            # The log may have been truncated just now. If not, the same error is raised again.
            return one.pieces(*readable(one.name, start, end, one.extent(latest=True), self._loss))

    def _extents(self, *, latest: bool = False) -> dict[str, Extent]:
        """Return the extents of everything followed. A deleted log is an error, or omitted with ``logPattern``."""
        found = {}
        for name, one in list(self._sources.now(latest=latest).items()):
            try:
                found[name] = one.extent(latest=latest, looked=True)
            except NoSuchLogError:
                if self._options.log_pattern is None:
                    raise
                self._sources.let_go(name)
        self._known = found
        return found

    def _within_limits(self, waiting: Mapping[str, Waiting]) -> dict[str, int]:
        options, followed = self._options, self._sources.now()
        size_bytes = options.max_bytes_per_trigger
        backlogs = {
            name: Backlog(one.start, one.end)
            if size_bytes is None
            else followed[name].backlog(one.start, one.end, size_bytes)
            for name, one in waiting.items()
        }
        ends = ends_within(backlogs, max_entries=options.max_entries_per_trigger, max_bytes=size_bytes, turn=self._turn)
        self._turn += any(ends[name] > one.start for name, one in waiting.items())
        return ends

    def _check_meant(self, offset: StreamOffset) -> None:
        """Raise InvalidArgumentError if the checkpoint has a log or ledger that the options do not name."""
        for name in offset.positions:
            if not self._sources.may_have(name):
                raise InvalidArgumentError(
                    f"the query's checkpoint is of {self._called(name)}, which its options do not name: they read "
                    f"{self._meant()}. Give this query a checkpoint directory of its own, or "
                    "read what the checkpoint is of"
                )

    def _check_there(self, begun: StreamOffset, extents: Mapping[str, Extent]) -> None:
        for name, position in begun.positions.items():
            if name not in extents:
                self._loss.missing(name, position.offset)


class LogStreamPlanner(StreamPlanner):
    """Plans reads of logs, and of a ledger."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._logs = Sources(options, schema)
        super().__init__(options, self._logs, DataLoss(options.fail_on_data_loss))
        self._progress = ProgressTeller(lambda: _session(options), options.log_root)

    def initial(self) -> StreamOffset:
        """Return where a new query starts: by the options, or at the end of each log."""
        if self._initial is None:
            followed = self._sources.now(latest=True)
            bounds = {one.option_name: one.start_bounds() for one in followed.values()}
            starts = start_offsets(self._options, bounds, Edge.LATEST)
            positions = {}
            for name, one in followed.items():
                start = starts[one.option_name]
                positions[name] = Position(one.identity, start, start)
            self._initial = StreamOffset(positions)
        return self._initial

    def parse(self, found: object) -> StreamOffset:
        """Parse offsets of logs, or of a ledger. Raises MetadataFormatError."""
        return parse_offset(found)

    def to_json(self, offset: StreamOffset) -> dict[str, Any]:
        """Return offsets of logs, or of a ledger."""
        return offset.to_json()

    def _tasks(self, begun: StreamOffset, ended: StreamOffset, pieces: dict[str, Pieces]) -> list[InputPartition]:
        entry_format = next(iter(self._sources.now().values())).entry_format
        return [*splits_of(self._options, entry_format, pieces.values(), self._logs.lookup())]

    def _called(self, name: str) -> str:
        # No log has a name with a blank.
        return name if name.startswith("ledger ") else f"log {name}"

    def _meant(self) -> str:
        options = self._options
        if options.ledger_id is not None:
            return ledger_name(options.ledger_id)
        if options.log_pattern is not None:
            return f"logs that match {options.log_pattern!r}"
        return f"log {options.log}" if options.logs is None else f"logs {', '.join(options.logs)}"

    def _tell(self, begun: StreamOffset) -> None:
        self._progress.tell(begun, self._known)


def _now_ms() -> float:
    return time.monotonic() * 1000


def _session(options: SourceOptions) -> ZooKeeper:
    return client_of(options.metadata_service_uri, options.client).zookeeper
