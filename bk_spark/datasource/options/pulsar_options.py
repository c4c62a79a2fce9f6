"""Options of reads of Pulsar's topics: which topics, where their metadata are, and how their values are read."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from bk_spark.datasource.options.option import Group, Use, option
from bk_spark.datasource.options.range_options import RangeOptions
from bk_spark.datasource.options.values import NAMES, PATTERN
from bk_spark.protocol.pulsar.choices import EncryptedPayloads, ValueErrors
from bk_spark.settings.kinds import BOOLEAN, TEXT, choice


class Values(enum.Enum):
    """What the column ``value`` of a topic holds."""

    BINARY = "binary"
    SCHEMA = "schema"


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarOptions(RangeOptions):
    """Options of reads of topics."""

    pulsar_topic: str | None = option(
        "pulsarTopic",
        None,
        TEXT,
        Use.READ,
        Group.SOURCE,
        "Read this topic of Apache Pulsar instead of a log ([pulsar.md](pulsar.md)): "
        "`persistent://tenant/namespace/name`, or `name` in `public/default`. All its partitions, or one by its name.",
    )
    pulsar_topics: tuple[str, ...] | None = option(
        "pulsarTopics", None, NAMES, Use.READ, Group.SOURCE, "Names of several topics, separated by commas."
    )
    pulsar_topics_pattern: str | None = option(
        "pulsarTopicsPattern",
        None,
        PATTERN,
        Use.READ,
        Group.SOURCE,
        "All topics of a namespace whose whole name there matches a regular expression: "
        "`persistent://tenant/namespace/REGEX`. A stream also reads topics that are created later.",
    )
    pulsar_metadata_store: str | None = option(
        "pulsarMetadataStore",
        None,
        TEXT,
        Use.READ,
        Group.PULSAR,
        "Where Pulsar keeps its lists of ledgers, as `metadataStoreUrl` of its brokers says: "
        "`zk:host:port,host:port/path`. "
        "Default: the servers of metadataServiceUri, and the path above the root of the ledgers.",
    )
    pulsar_configuration_store: str | None = option(
        "pulsarConfigurationStore",
        None,
        TEXT,
        Use.READ,
        Group.PULSAR,
        "Where Pulsar keeps the numbers of partitions, as `configurationMetadataStoreUrl` of its brokers says. "
        "Default: pulsarMetadataStore.",
    )
    pulsar_values: Values = option(
        "pulsarValues",
        "binary",
        choice({one.value: one for one in Values}),
        Use.READ,
        Group.PULSAR,
        "Column `value`: `binary`, the bytes of the message, or `schema`, decoded by the topic's schema.",
    )
    pulsar_bad_values: ValueErrors = option(
        "pulsarBadValues",
        "fail",
        choice({one.value: one for one in ValueErrors}),
        Use.READ,
        Group.PULSAR,
        "With pulsarValues=schema: whether a value that does not fit the schema is an error, or `null`.",
    )
    pulsar_encrypted: EncryptedPayloads = option(
        "pulsarEncrypted",
        "fail",
        choice({one.value: one for one in EncryptedPayloads}),
        Use.READ,
        Group.PULSAR,
        "Messages that their producer encrypted: `fail`, `skip`, or `raw`, which gives each entry as one row with its "
        "cipher text.",
    )
    pulsar_read_compacted: bool = option(
        "pulsarReadCompacted",
        "false",
        BOOLEAN,
        Use.BATCH_READ,
        Group.PULSAR,
        "Read the compacted view, as a reader with `readCompacted` does: the newest message of each key up to the last "
        "compaction, and everything after it. Options that say where a read starts or ends are refused.",
    )
    pulsar_check_crc: bool = option(
        "pulsarCheckCrc",
        "false",
        BOOLEAN,
        Use.READ,
        Group.PULSAR,
        "Also check Pulsar's own checksum of each entry. The digest of the ledger is always checked.",
    )

    @property
    def reads_topics(self) -> bool:
        """Whether topics of Pulsar are read."""
        return (self.pulsar_topic or self.pulsar_topics or self.pulsar_topics_pattern) is not None
