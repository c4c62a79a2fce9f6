"""The topics that a read names, and the stores and clients to read them with. Shared by batches, streams and tasks."""

from __future__ import annotations

from collections.abc import Sequence

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.datasource.connections import client_of, zookeeper_of
from bk_spark.datasource.options.options import SourceOptions
from bk_spark.protocol.errors import InvalidArgumentError, NoSuchTopicError
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.pulsar.topics.topic_names import TopicName
from bk_spark.pulsar.compacted import CompactedTopic, compacted_topic
from bk_spark.pulsar.stores import Store, StoreAddress, Stores
from bk_spark.pulsar.topic_ledgers import FollowedTopic, look_at_topics
from bk_spark.pulsar.topics import TopicPattern, matching, partitions_of


def bookies_of(options: SourceOptions) -> BlockingClient:
    """Return the process's client of the bookies."""
    return client_of(options.metadata_service_uri, options.client)


def stores_of(options: SourceOptions) -> Stores:
    """Return Pulsar's metadata stores. Raises InvalidArgumentError, MetadataUnavailableError."""
    uri = MetadataServiceUri.parse(options.metadata_service_uri)
    local = StoreAddress.of_cluster(uri)
    if options.pulsar_metadata_store is not None:
        local = StoreAddress.parse(options.pulsar_metadata_store, "option pulsarMetadataStore")
    configuration = local
    if options.pulsar_configuration_store is not None:
        configuration = StoreAddress.parse(options.pulsar_configuration_store, "option pulsarConfigurationStore")
    return Stores(_store(options, uri, local), _store(options, uri, configuration))


def _store(options: SourceOptions, uri: MetadataServiceUri, address: StoreAddress) -> Store:
    if address.servers == uri.servers:
        return Store(bookies_of(options).zookeeper, address)
    return Store(zookeeper_of(address.servers, options.client), address)


class NamedTopics:
    """The topics that the options name: parsed names, or a pattern. Raises InvalidArgumentError."""

    def __init__(self, options: SourceOptions) -> None:
        self.pattern: TopicPattern | None = None
        self.names: list[TopicName] = []
        if options.pulsar_topics_pattern is not None:
            self.pattern = TopicPattern(options.pulsar_topics_pattern)
            return
        texts = [options.pulsar_topic] if options.pulsar_topic is not None else options.pulsar_topics or ()
        for text in texts:
            name = TopicName.parse(text)
            if name in self.names:
                raise InvalidArgumentError(f"option pulsarTopics names {name.full} twice")
            self.names.append(name)

    def partitions(self, stores: Stores) -> list[TopicName]:
        """Return the partitions of these topics now, each once. Raises NoSuchTopicError if a named one is missing."""
        if self.pattern is not None:
            return matching(stores, self.pattern)
        found = partitions_of(stores, self.names)
        return list(dict.fromkeys(partition for topic in self.names for partition in found[topic]))

    def required(self, stores: Stores) -> list[TopicName]:
        """Like :meth:`partitions`. Raises NoSuchTopicError also if a pattern matches nothing."""
        found = self.partitions(stores)
        if not found and self.pattern is not None:
            raise NoSuchTopicError(
                f"option pulsarTopicsPattern: {self.pattern.text!r} matches no topic of namespace "
                f"{self.pattern.namespace}; it must match a topic's whole name there, without -partition-"
            )
        return found

    def may_have(self, name: str) -> bool:
        """Whether these topics include the partition with this name, existing or not."""
        topic = TopicName.parse(name)
        if self.pattern is not None:
            return self.pattern.matches(topic)
        return any(topic == one or (topic.partition_index is not None and _base(topic) == one) for one in self.names)

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"topics that match {self.pattern.text!r}"
        return f"topic {', '.join(name.full for name in self.names)}"


def _base(topic: TopicName) -> TopicName:
    return TopicName.parse(f"{topic.namespace_name}/{topic.base_local}")


def opened(options: SourceOptions, stores: Stores, topics: Sequence[TopicName]) -> dict[str, FollowedTopic]:
    """Return what is readable of each topic now, by full name."""
    client, password = bookies_of(options), options.password()
    found = {topic.full: FollowedTopic(topic, stores.local, client, password) for topic in topics}
    look_at_topics(list(found.values()), stores.local, latest=True)
    return found


def compacted_of(options: SourceOptions, stores: Stores, topics: Sequence[TopicName]) -> dict[str, CompactedTopic]:
    """Return what compaction has made of ``topics``, by full name. Those that were never compacted are not in it."""
    client, password = bookies_of(options), options.password()
    found = {topic.full: compacted_topic(topic, stores.local, client, password) for topic in topics}
    return {name: one for name, one in found.items() if one is not None}
