"""Options of Spark's Kafka source and Pulsar's connector, and their equivalents here."""

from __future__ import annotations

from typing import Final

_PAGE: Final = "docs/kafka-migration.md goes through all of them"
#: Their option, in lower case -> ours.
OURS: Final = {
    "topic": "log, or pulsarTopic for a topic of Pulsar",
    "topics": "logs, or pulsarTopics for topics of Pulsar",
    "topicspattern": "logPattern, or pulsarTopicsPattern for topics of Pulsar",
    "startingtime": "startingTimestamp",
    "endingtime": "endingTimestamp",
    "subscribe": "log, or logs for several",
    "subscribepattern": "logPattern",
    "maxoffsetspertrigger": "maxEntriesPerTrigger",
    "minoffsetspertrigger": "minEntriesPerTrigger",
    "bootstrap.servers": "metadataServiceUri, with ZooKeeper's address",
    "kafka.bootstrap.servers": "metadataServiceUri, with ZooKeeper's address",
    "service.url": "metadataServiceUri, with ZooKeeper's address",
    "admin.url": "metadataServiceUri, with ZooKeeper's address",
    "kafka.acks": "ackQuorumSize",
    "kafka.compression.type": "compression",
}
#: Options without an equivalent here, and why.
_NONE: Final = {
    "assign": "a log has no partitions to choose from",
    "includeheaders": "an entry has no headers",
    "groupidprefix": "there are no consumer groups, the checkpoint says how far a query has read",
    "kafka.group.id": "there are no consumer groups, the checkpoint says how far a query has read",
    "kafkaconsumer.polltimeoutms": "timeouts and retries are the client's own",
    "fetchoffset.numretries": "timeouts and retries are the client's own",
    "fetchoffset.retryintervalms": "timeouts and retries are the client's own",
}


def foreign_option(key: str) -> str | None:
    """Return what to use instead of the option ``key``, or None if it is not an option of Kafka or Pulsar."""
    lowered = key.lower()
    if lowered in OURS:
        return f"use {OURS[lowered]} here ({_PAGE})"
    if lowered in _NONE:
        return f"leave it out, {_NONE[lowered]} ({_PAGE})"
    if lowered.startswith("kafka."):
        return (
            "it is for Kafka, leave it out. Here metadataServiceUri says where the cluster is, and log what to read or "
            f"write ({_PAGE})"
        )
    return None
