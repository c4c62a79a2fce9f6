"""Offsets of a streaming read of topics, as stored in Spark's checkpoint. Pure.

JSON, version 1::

    {"v": 1, "topics": {"persistent://public/default/orders-partition-0":
        {"ledger": 12, "entry": 40, "from": [12, 0], "lost": 30}}}

Positions are half-open: the entry is the first one that was not read. At the end of a ledger it is the first one of the
next ledger, if there is one. A topic that had no ledger yet has ledger -1. Partitions are sorted by name. ``from`` and
``lost`` are those of a log's offset (:mod:`bk_spark.datasource.stream.offsets`); ``lost`` counts one entry where it is
not known how many there were. Other versions and unknown fields are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bk_spark.datasource.stream.offsets import OFFSET_VERSION, is_count, refused, version_checked
from bk_spark.protocol.pulsar.transactions import Position
from bk_spark.pulsar.entry_numbers import NOTHING_YET


@dataclass(frozen=True, slots=True)
class TopicPosition:
    """How far one topic or partition was read. ``start`` and ``lost`` are as for a log."""

    next: Position
    start: Position | None = None
    lost: int = 0


def topics_to_json(positions: Mapping[str, TopicPosition]) -> dict[str, Any]:
    """Return the value that Spark writes as JSON."""
    return {"v": OFFSET_VERSION, "topics": {name: _fields(positions[name]) for name in sorted(positions)}}


def parse_topics(found: object) -> dict[str, TopicPosition]:
    """Parse the result of :func:`topics_to_json`. Raises MetadataFormatError."""
    whole = version_checked(found)
    match whole:
        case {"topics": dict(topics), **rest} if rest.keys() == {"v"}:
            return {name: _position(whole, name, topics[name]) for name in sorted(topics, key=str)}
    raise refused(whole, "names no topics: is the checkpoint that of a read of logs?")


def _fields(position: TopicPosition) -> dict[str, Any]:
    fields: dict[str, Any] = {"ledger": position.next.ledger_id, "entry": position.next.entry_id}
    if position.start is not None:
        fields["from"] = [*position.start]
    if position.lost:
        fields["lost"] = position.lost
    return fields


def _position(whole: object, name: object, fields: object) -> TopicPosition:
    if not isinstance(name, str) or not isinstance(fields, dict):
        raise refused(whole, f"is damaged at {name!r}")
    unknown = fields.keys() - {"ledger", "entry", "from", "lost"}
    if unknown:
        raise refused(whole, f"has the unknown field {min(map(str, unknown))} at {name}")
    lost, start = fields.get("lost", 0), fields.get("from")
    end = _checked(whole, name, [fields.get("ledger"), fields.get("entry")])
    begun = None if start is None else _checked(whole, name, start)
    if not is_count(lost) or (begun is not None and begun > end):
        raise refused(whole, f"is damaged at {name}")
    return TopicPosition(end, begun, lost)


def _checked(whole: object, name: str, pair: object) -> Position:
    if isinstance(pair, list) and len(pair) == 2:
        if pair == [*NOTHING_YET]:
            return NOTHING_YET
        if all(map(is_count, pair)):
            return Position(*pair)
    raise refused(whole, f"is damaged at {name}")
