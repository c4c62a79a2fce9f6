"""Text formats for racks of bookies: as a setting (``host=/rack,host=/rack``) and in ZooKeeper.

The znode holds JSON, groups of bookies::

    {"group": {"host:port": {"rack": "/rack1", "hostname": "bookie1.example.org"}}}

A rack without a leading slash gets one. An empty rack or ``/`` means no rack. The first group (by name) with the bookie
counts. Source: apache/pulsar, org.apache.pulsar.bookie.rackawareness.BookieRackAffinityMapping and
org.apache.pulsar.common.policies.data.BookiesRackConfiguration.
"""

from __future__ import annotations

import json

from bk_spark.protocol.errors import InvalidArgumentError, MetadataFormatError


def parse_rack_table(text: str) -> dict[str, str]:
    """Parse ``host=/rack,…``. Raises InvalidArgumentError."""
    entries = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        host, equals, name = (piece.strip() for piece in part.partition("="))
        rack = normal_rack(name)
        if not equals or not host or rack is None:
            raise InvalidArgumentError(f"{part!r} in the table of racks is not of the form host=/rack")
        entries[host] = rack
    return entries


def parse_rack_mapping(data: bytes) -> dict[str, str]:
    """Parse a znode in Pulsar's format into racks by name, without unusable racks. Raises MetadataFormatError."""
    if not data.strip():
        return {}
    try:
        groups = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MetadataFormatError(f"the rack mapping is not JSON: {error}") from error
    entries: dict[str, str] = {}
    if not isinstance(groups, dict) or not all(isinstance(group, dict) for group in groups.values()):
        raise MetadataFormatError('the rack mapping is not of the form {"group": {"host:port": {"rack": "/rack"}}}')
    for _, group in sorted(groups.items()):
        for name, info in group.items():
            if not isinstance(info, dict):
                raise MetadataFormatError(f"the rack mapping has no object with a rack for {name!r}")
            rack = normal_rack(info.get("rack"))
            if rack is not None:
                entries.setdefault(name, rack)
    return entries


def normal_rack(name: object) -> str | None:
    """Return a rack's name with its leading slash. None if it is not a name."""
    if not isinstance(name, str) or name.strip() in ("", "/"):
        return None
    name = name.strip()
    return name if name.startswith("/") else "/" + name
