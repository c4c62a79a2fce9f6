"""Finds topics and their partitions by name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Final

from bk_spark.protocol.errors import InvalidArgumentError, NoSuchTopicError
from bk_spark.protocol.pulsar.topics.managed_ledgers import partition_count
from bk_spark.protocol.pulsar.topics.topic_names import MANAGED_LEDGERS, NamespaceName, TopicName
from bk_spark.pulsar.stores import Stores

#: Topics that one read may name, and partitions that it may have.
MAX_TOPICS: Final = 10_000


class TopicPattern:
    """All topics of one namespace whose local name, without the number of a partition, matches as a whole.

    ``persistent://tenant/namespace/REGEX``, or short as the name of a topic. Tenant and namespace are no expressions.
    System topics never match.

    Raises InvalidArgumentError.
    """

    def __init__(self, text: str) -> None:
        head, local = _namespace_and_rest(text)
        self.text = text
        self.namespace = TopicName.parse(f"{head}x").namespace_name
        try:
            self._expression = re.compile(local)
        except re.error as error:
            raise InvalidArgumentError(f"{text!r}: {local!r} is not a regular expression of Python: {error}") from None

    def matches(self, topic: TopicName) -> bool:
        """Whether the topic, or the one that it is a partition of, matches."""
        return (
            topic.namespace_name == self.namespace
            and not topic.is_system
            and any(self._expression.fullmatch(name) is not None for name in (topic.local, topic.base_local))
        )


def partitions_of(stores: Stores, topics: Sequence[TopicName]) -> dict[TopicName, list[TopicName]]:
    """Return the partitions of each topic, itself if it has none. Partitions need not have a znode yet.

    Raises NoSuchTopicError, MetadataUnavailableError, MetadataFormatError.
    """
    counts = _counts(stores, topics)
    found: dict[TopicName, list[TopicName]] = {}
    single = [topic for topic in topics if counts[topic] is None]
    there = stores.local.latest([topic.managed_ledger_path for topic in single]) if single else []
    exists = dict(zip(single, there, strict=True))
    for topic in topics:
        count = counts[topic]
        if count is not None:
            found[topic] = [topic.partition(index) for index in range(count)]
        elif exists[topic] is not None or _is_partition(stores, topic):
            found[topic] = [topic]
        else:
            raise _no_such_topic(stores, topic)
    _check_number(sum(map(len, found.values())))
    return found


def matching(stores: Stores, pattern: TopicPattern) -> list[TopicName]:
    """Return the partitions of all topics that match now, sorted, possibly none.

    Raises NoSuchTopicError if there is no such namespace, MetadataUnavailableError.
    """
    namespace = pattern.namespace
    nodes = stores.local.children(namespace.managed_ledgers_path) or []
    partitioned = stores.configuration.children(namespace.partitioned_topics_path) or []
    if not nodes and not partitioned and stores.configuration.get(namespace.policies_path) is None:
        _check_there(stores)
        raise NoSuchTopicError(
            f"there is no namespace {namespace} in {stores.configuration.address}; the pattern {pattern.text!r} names "
            "tenant and namespace as they are, and an expression for the rest"
        )
    bases = [topic for topic in map(namespace.topic, partitioned) if pattern.matches(topic)]
    _check_number(len(bases))
    found = {}
    for base, count in _counts(stores, bases).items():
        for index in range(count or 0):
            partition = base.partition(index)
            found[partition.full] = partition
    _check_number(len(found) + len(nodes))
    for topic in map(namespace.topic, nodes):
        if pattern.matches(topic):
            found.setdefault(topic.full, topic)
    return [found[name] for name in sorted(found)]


def _counts(stores: Stores, topics: Sequence[TopicName]) -> dict[TopicName, int | None]:
    """Return the number of partitions of each topic, None for those that are not partitioned."""
    nodes = stores.configuration.latest([topic.partitioned_path for topic in topics]) if topics else []
    return {
        topic: None if node is None else partition_count(node.data) for topic, node in zip(topics, nodes, strict=True)
    }


def _is_partition(stores: Stores, topic: TopicName) -> bool:
    """Whether a topic without znode is a partition that has had no message. Raises NoSuchTopicError if it is beyond the
    last one."""
    index = topic.partition_index
    if index is None:
        return False
    base = TopicName.parse(f"{topic.namespace_name}/{topic.base_local}")
    count = _counts(stores, [base])[base]
    if count is not None and index >= count:
        raise NoSuchTopicError(
            f"there is no partition {index} of {base.full}: it has {count}, 0 to {count - 1}. Name the topic without "
            "a partition to read all"
        )
    return count is not None


def _no_such_topic(stores: Stores, topic: TopicName) -> NoSuchTopicError:
    _check_there(stores)
    namespace = topic.namespace_name
    names = {
        one.base_local for one in map(namespace.topic, stores.local.children(namespace.managed_ledgers_path) or ())
    }
    if topic.local in names:
        raise NoSuchTopicError(
            f"{stores.local.address} has partitions of {topic.full}, but {stores.configuration.address} does not say "
            "how many there are: give the brokers' configurationMetadataStoreUrl as option pulsarConfigurationStore, "
            "or name a partition"
        )
    similar = difflib.get_close_matches(topic.local, names, 1)
    hint = f" ({similar[0]} is similar)" if similar else ""
    if not names and stores.configuration.get(namespace.policies_path) is None:
        hint = f", nor a namespace {namespace}"
    return NoSuchTopicError(
        f"there is no topic {topic.full} in {stores.local.address}{hint}: check the name. Pulsar deletes topics "
        "without subscriptions when nobody uses them (brokerDeleteInactiveTopicsEnabled)"
    )


def _check_there(stores: Stores) -> None:
    """Raise NoSuchTopicError if no Pulsar cluster keeps its metadata here."""
    address = stores.local.address
    if stores.local.children(MANAGED_LEDGERS) is None:
        raise NoSuchTopicError(
            f"{address} has no znode {address.chroot}{MANAGED_LEDGERS}: no Pulsar cluster keeps its topics there. Give "
            "the brokers' metadataStoreUrl as option pulsarMetadataStore. If that is etcd, Oxia or RocksDB (the "
            "default of Pulsar standalone), topics can be read only through brokers"
        )


def _check_number(count: int) -> None:
    if count > MAX_TOPICS:
        raise InvalidArgumentError(
            f"this read has {count} topics and partitions, more than {MAX_TOPICS}: name fewer, or a narrower pattern"
        )


def _namespace_and_rest(text: str) -> tuple[str, str]:
    """Split a pattern after the second slash of its path."""
    domain, separator, rest = text.partition("://")
    parts = (rest if separator else text).split("/", 2)
    if len(parts) < 3:
        if separator:
            raise InvalidArgumentError(f"{text!r} is not of the form persistent://tenant/namespace/REGEX")
        return "", text
    head = f"{NamespaceName.parse('/'.join(parts[:2]))}/"
    return (f"{domain}://{head}" if separator else head), parts[2]
