"""Decides what each micro-batch of a streaming read of topics reads: the planner of logs, with positions of topics."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from bk_spark.datasource.options.options import SourceOptions
from bk_spark.datasource.pulsar.followed import TopicSources
from bk_spark.datasource.pulsar.offsets import TopicPosition, parse_topics, topics_to_json
from bk_spark.datasource.pulsar.positions import Edges, starts_of, stream_edges
from bk_spark.datasource.pulsar.splitting import topic_splits
from bk_spark.datasource.pulsar.topic_schemas import check_topic_read
from bk_spark.datasource.stream.offsets import Position, StreamOffset
from bk_spark.datasource.stream.plan import DataLoss
from bk_spark.datasource.stream.planner import StreamPlanner
from bk_spark.log.entries.pieces import Pieces
from bk_spark.log.positions.texts import Edge
from bk_spark.protocol.errors import NoSuchTopicError
from bk_spark.protocol.pulsar.transactions import Position as EntryPosition


class TopicLoss(DataLoss):
    """Reports messages that are gone, or may be gone."""

    def __init__(self, fail: bool, sources: TopicSources) -> None:
        super().__init__(fail)
        self._sources = sources

    def gone(self, name: str, start: int, end: int) -> None:
        """Report messages before the position that ``end`` is the number of. Raises LogRangeGoneError, or warns."""
        self._report(
            name,
            start,
            end,
            f"topic {name}: messages before {self._text(name, end)} were removed, or may have been, before the query "
            "read them (retention, truncation, or the topic was deleted and made again)",
        )

    def beyond(self, name: str, start: int, end: int) -> None:
        """Report that the topic ends before what the checkpoint has read. Raises LogRangeGoneError, or warns."""
        self._report(
            name,
            start,
            end,
            f"topic {name} ends before {self._text(name, start)}, but the checkpoint has read {end - start} entries "
            "more: was ZooKeeper set back to an older state?",
        )

    def missing(self, name: str, read_to: int) -> None:
        """Report that the topic no longer exists. Raises NoSuchTopicError, or warns."""
        self._absent(NoSuchTopicError, name, read_to, f"topic {name}, which the query has read, no longer exists")

    def _text(self, name: str, number: int) -> str:
        position = self._sources.partitions()[name].numbers.position(number)
        return f"{position.ledger_id}:{position.entry_id}"


class TopicStreamPlanner(StreamPlanner):
    """Plans a streaming read of topics. Offsets inside are numbers of entries, valid in this process only."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_topic_read(options, schema)
        self._topics = TopicSources(options)
        #: Positions of topics in the checkpoint that are not followed: deleted ones.
        self._unknown: dict[str, TopicPosition] = {}
        super().__init__(options, self._topics, TopicLoss(options.fail_on_data_loss, self._topics))

    def initial(self) -> StreamOffset:
        """Return where a new query starts: by the options, or at the end of each topic."""
        if self._initial is None:
            # Also what transactions hold back now: it comes when they are decided.
            numbers = {name: one.numbers for name, one in self._topics.now(latest=True).items()}
            ends = {name: one.end for name, one in numbers.items()}
            starts = starts_of(self._options, numbers, ends, Edge.LATEST)
            self._initial = StreamOffset({name: Position(name, one.number, one.number) for name, one in starts.items()})
        return self._initial

    def stop_at_present_end(self) -> None:
        """Stop at the present ends, transactions that are undecided now included."""
        # What is undecided now is not read, though it may be decided before the query stops.
        self._target = {name: one.numbers.end for name, one in self._topics.now(latest=True).items()}

    def parse(self, found: object) -> StreamOffset:
        """Parse positions of topics, and number them. The position of a deleted topic is only kept."""
        positions = {}
        followed = self._topics.partitions()
        for name, one in parse_topics(found).items():
            if name not in followed:
                self._unknown[name] = one
                positions[name] = Position(name, 0, None if one.start is None else 0, one.lost)
                continue
            numbers = followed[name].numbers
            if followed[name].has_transactions:
                followed[name].watch_from(one.next if one.start is None else one.start)
            end = numbers.number(one.next)
            start = None if one.start is None else min(numbers.number(one.start), end)
            positions[name] = Position(name, end, start, one.lost)
        return StreamOffset(positions)

    def to_json(self, offset: StreamOffset) -> dict[str, Any]:
        """Return positions of topics: numbers of entries mean nothing after this process."""
        followed = self._topics.partitions()
        positions = {}
        for name, one in offset.positions.items():
            if name not in followed:
                positions[name] = self._unknown[name]
                continue
            numbers = followed[name].numbers
            start = None if one.start is None else numbers.position(one.start)
            positions[name] = TopicPosition(numbers.position(one.offset), start, one.lost)
        return topics_to_json(positions)

    def _tasks(self, begun: StreamOffset, ended: StreamOffset, pieces: dict[str, Pieces]) -> list[InputPartition]:
        followed = self._topics.partitions()
        watches = {name: one.transactions for name, one in followed.items() if one.transactions is not None}
        edges: dict[str, Edges] = {}
        for name in pieces:
            is_first = ended.positions[name].start is not None
            position = followed[name].numbers.position(begun.begin(name, ended))
            found = stream_edges(self._options, name, EntryPosition(*position) if is_first else None)
            if not found.is_empty:
                edges[name] = found
        return [*topic_splits(self._options, pieces.values(), watches, edges)]

    def _tell(self, begun: StreamOffset) -> None:
        # The page of the cluster shows how far logs are read, not topics.
        for name, one in self._topics.partitions().items():
            if name in begun.positions:
                one.forget_before(one.numbers.position(begun.positions[name].offset))

    def _called(self, name: str) -> str:
        return f"topic {name}"

    def _meant(self) -> str:
        return str(self._topics.topics)
