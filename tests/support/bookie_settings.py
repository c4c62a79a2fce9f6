"""Configurations for bookies that tests build from parts, without a file."""

from __future__ import annotations

from typing import Any, NamedTuple

from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bookie_server.config.collection import CompactionSettings
from bookie_server.config.config import BookieConfig

OFF = CompactionSettings(0, 0.0)


def bookie_config(**settings: Any) -> BookieConfig:
    """The default configuration with ``settings``, which are fields of BookieConfig."""
    return BookieConfig(MetadataServiceUri.parse("zk://127.0.0.1:2181/ledgers"), "b:1", "b", "0.0.0.0", **settings)


def minor(compaction: CompactionSettings) -> dict[str, Any]:
    """The fields that set these values for minor compaction."""
    return _fields("minor", compaction)


def major(compaction: CompactionSettings) -> dict[str, Any]:
    """The fields that set these values for major compaction."""
    return _fields("major", compaction)


def _fields(name: str, compaction: CompactionSettings) -> dict[str, Any]:
    return {
        f"{name}_compaction_interval_ms": compaction.interval_ms,
        f"{name}_compaction_threshold": compaction.threshold,
        f"{name}_compaction_max_ms": compaction.max_time_ms,
    }


class JournalPlace(NamedTuple):
    """A configuration and the journal directories that belong to it."""

    config: BookieConfig
    directories: tuple[str, ...]
