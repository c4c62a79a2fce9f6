"""Batch reads of topics: the plan, and the class that Spark calls."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bk_spark.datasource.options.options import SourceOptions
from bk_spark.datasource.plain_errors import plain_errors, plain_errors_in
from bk_spark.datasource.pulsar.places import NamedTopics, bookies_of, compacted_of, opened, stores_of
from bk_spark.datasource.pulsar.positions import ranges_of
from bk_spark.datasource.pulsar.rows import TopicSplit, read_topic_split
from bk_spark.datasource.pulsar.splitting import compacted_splits, topic_pieces, topic_splits
from bk_spark.datasource.pulsar.topic_schemas import check_topic_read
from bk_spark.protocol.pulsar.transactions import Position
from bk_spark.pulsar.compacted import CompactedTopic, seen_together
from bk_spark.pulsar.topic_ledgers import FollowedTopic, warn_of_hidden
from bk_spark.pulsar.transactions import TransactionWatch, may_have_transactions


class TopicBatchReader(DataSourceReader):
    """Reads the messages of topics that are confirmed when the read is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        """Return the tasks: the snapshot that every action on this DataFrame reads."""
        check_topic_read(self._options, self._schema)
        return [*batch_splits(self._options)]

    @plain_errors_in
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one split, a block of entries at a time."""
        if isinstance(partition, TopicSplit):
            yield from read_topic_split(self._options, self._schema, partition)


def batch_splits(options: SourceOptions) -> list[TopicSplit]:
    """Return the tasks of a batch. Raises NoSuchTopicError, LogRangeGoneError, InvalidArgumentError, and any error from
    reading metadata and open ledgers."""
    stores = stores_of(options)
    names = NamedTopics(options).required(stores)
    compacted: dict[str, CompactedTopic] = {}
    if options.pulsar_read_compacted:
        topics, compacted = seen_together(
            lambda: compacted_of(options, stores, names), lambda: opened(options, stores, names)
        )
    else:
        topics = opened(options, stores, names)
    warn_of_hidden(topics.values(), now=True)
    numbers = {name: topic.numbers for name, topic in topics.items()}
    ends = {name: one.end for name, one in numbers.items()}
    ranges = ranges_of(options, numbers, ends)
    for name, one in compacted.items():
        # What the compacted ledger stands for may have been trimmed.
        behind = numbers[name].number(Position(one.horizon.ledger_id, one.horizon.entry_id + 1))
        start, end, edges = ranges[name]
        ranges[name] = (min(max(start, behind), end), end, edges)
    namespaces = {topic.topic.namespace_name for topic in topics.values()}
    transactional = {one for one in namespaces if may_have_transactions(stores.local, one)}
    watches = {}
    for name, topic in topics.items():
        start, end, edges = ranges[name]
        if topic.topic.namespace_name in transactional and start < end:
            watch = watches[name] = _decided(options, topic, start)
            ranges[name] = (start, max(start, min(end, watch.end(topic.numbers))), edges)
    pieces = [topic_pieces(name, numbers[name], start, end) for name, (start, end, _) in ranges.items()]
    edges_of = {name: edges for name, (_, _, edges) in ranges.items() if not edges.is_empty}
    return [*compacted_splits(options, compacted), *topic_splits(options, pieces, watches, edges_of)]


def _decided(options: SourceOptions, topic: FollowedTopic, start: int) -> TransactionWatch:
    watch = TransactionWatch(
        topic.topic,
        bookies_of(options),
        options.password(),
        topic.numbers.position(start),
        fail_on_data_loss=options.fail_on_data_loss,
    )
    watch.read_on(topic.numbers)
    return watch
