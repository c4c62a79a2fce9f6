"""The topics that a streaming read follows. Used in the process that plans batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from bk_spark.datasource.options.options import SourceOptions
from bk_spark.datasource.pulsar.places import NamedTopics, bookies_of, stores_of
from bk_spark.datasource.pulsar.splitting import topic_pieces
from bk_spark.datasource.stream.limits import Backlog
from bk_spark.datasource.stream.plan import Extent
from bk_spark.datasource.stream.sources import Followed
from bk_spark.log.entries.pieces import Pieces
from bk_spark.log.positions.bounds import Bounds
from bk_spark.protocol.errors import NoSuchTopicError
from bk_spark.protocol.pulsar.topics.topic_names import NamespaceName, TopicName
from bk_spark.protocol.pulsar.transactions import Position
from bk_spark.pulsar.entry_numbers import EntryNumbers
from bk_spark.pulsar.topic_ledgers import FollowedTopic, ask_topics, look_at_topics, warn_of_hidden
from bk_spark.pulsar.transactions import TransactionWatch, may_have_transactions

#: Seconds between two looks at the lists of ledgers, and at the names of topics and partitions. A list whose last
#: ledger was closed is looked at more often: another ledger follows it.
_LOOK_S: Final = 1.0
_LOOK_BEHIND_S: Final = 0.1
_NAMES_S: Final = 5.0

Clock = Callable[[], float]


class FollowedPartition(Followed):
    """A topic that is not partitioned, or one partition. Offsets are numbers of entries (:class:`EntryNumbers`)."""

    def __init__(self, options: SourceOptions, topic: FollowedTopic) -> None:
        self.name = topic.topic.full
        #: A topic has no id. That it was made again shows in its ledgers.
        self.identity = self.name
        self.topic = topic
        #: What became of transactions, if the topic may have any.
        self.transactions: TransactionWatch | None = None
        self.has_transactions = False
        self._options = options

    @property
    def numbers(self) -> EntryNumbers:
        """The numbers of the topic's entries."""
        return self.topic.numbers

    def extent(self, *, latest: bool = False, looked: bool = False) -> Extent:
        """Return the readable entries as the last look found them. They end before the first undecided transaction."""
        del latest, looked  # TopicSources looks at all topics together
        numbers = self.numbers
        end = numbers.end
        if self.has_transactions:
            end = self._decided(end)
        return Extent(self.identity, numbers.first, end, is_open=self.topic.is_open or end < numbers.end)

    def _decided(self, end: int) -> int:
        if self.transactions is None:
            self.watch_from(self.numbers.position(self.numbers.first))
        assert self.transactions is not None
        self.transactions.read_on(self.numbers)
        return min(end, self.transactions.end(self.numbers))

    def watch_from(self, position: Position) -> None:
        """Learn which transactions were committed or aborted from this position on. Earlier ones are not read again."""
        if self.transactions is None or position < self.transactions.start:
            options = self._options
            self.transactions = TransactionWatch(
                self.topic.topic,
                bookies_of(options),
                options.password(),
                position,
                fail_on_data_loss=options.fail_on_data_loss,
            )

    def forget_before(self, position: Position) -> None:
        """Everything before a position was read, and is not read again."""
        if self.transactions is not None:
            self.transactions.forget(position)

    def start_bounds(self) -> Bounds:
        """Return the bounds for a new query's start, with what transactions hold back now."""
        return Bounds(self.numbers.first, self.numbers.end)

    def pieces(self, start: int, end: int) -> Pieces:
        """Return entries ``[start, end)``. Raises InvalidArgumentError for ledgers that only tiered storage has."""
        return topic_pieces(self.name, self.numbers, start, end)

    def backlog(self, start: int, end: int, size_bytes: int) -> Backlog:
        """Return all of the range, by ledger: the list of ledgers has their sizes."""
        del size_bytes  # the list of ledgers has all sizes
        entries, sizes = [], []
        for one, first, last in self.numbers.ranges(start, end):
            entries.append(last - first + 1)
            sizes.append(max(1, one.size_bytes * entries[-1] // max(one.entries, 1)))
        return Backlog(start, end, np.array(entries, np.int64), np.array(sizes, np.int64))


class TopicSources:
    """All partitions that a query reads, by full name. Each look may find more of them. For one thread."""

    def __init__(self, options: SourceOptions, clock: Clock = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._stores = stores_of(options)
        self._client = bookies_of(options)
        self.topics = NamedTopics(options)
        self._followed: dict[str, FollowedPartition] = {}
        self._looked_at = self._named_at = -_NAMES_S
        self._take_in(self.topics.partitions(self._stores))

    def now(self, *, latest: bool = False) -> Mapping[str, FollowedPartition]:
        """Look at all lists of ledgers, if that is due, and at the ends of open ledgers."""
        now, topics = self._clock(), [one.topic for one in self._followed.values()]
        if latest or now - self._named_at >= _NAMES_S:
            self._find_more()
            self._named_at = now
        is_behind = any(one.is_behind for one in topics)
        if latest or now - self._looked_at >= (_LOOK_BEHIND_S if is_behind else _LOOK_S):
            look_at_topics([one.topic for one in self._followed.values()], self._stores.local, latest=latest)
            self._looked_at = now
            warn_of_hidden(topics)
        else:
            ask_topics(topics)
        return self._followed

    def partitions(self) -> Mapping[str, FollowedPartition]:
        """Return what is followed, without a look."""
        return self._followed

    def may_have(self, name: str) -> bool:
        """Whether the query's options include this partition, existing or not."""
        return name in self._followed or self.topics.may_have(name)

    def let_go(self, name: str) -> None:
        """Stop following a topic."""
        del self._followed[name]

    def _find_more(self) -> None:
        try:
            found = self.topics.partitions(self._stores)
        except NoSuchTopicError:
            # A topic was deleted. Its list of ledgers, which is gone too, shows what is lost.
            return
        self._take_in(found)

    def _take_in(self, topics: list[TopicName]) -> None:
        password = self._options.password()
        new = [topic for topic in topics if topic.full not in self._followed]
        for topic in new:
            followed = FollowedTopic(topic, self._stores.local, self._client, password)
            self._followed[topic.full] = FollowedPartition(self._options, followed)
        known: dict[NamespaceName, bool] = {}
        for one in self._followed.values():
            namespace = one.topic.topic.namespace_name
            if not one.has_transactions:
                if namespace not in known:
                    known[namespace] = may_have_transactions(self._stores.local, namespace)
                one.has_transactions = known[namespace]
        if new:
            look_at_topics([self._followed[topic.full].topic for topic in new], self._stores.local, latest=True)
