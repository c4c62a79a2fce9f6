"""Offsets of a streaming read, as stored in Spark's checkpoint. Pure.

JSON, version 1, for a read of logs and for a read of a ledger::

    {"v": 1, "logs": {"flights": {"id": "<log id>", "offset": 120, "from": 100, "lost": 30}}}
    {"v": 1, "ledger": {"id": 17, "entry": 120, "from": 0}}

Positions are half-open: ``offset`` (``entry``) is the first one not read. Logs are sorted by name, so that equal
offsets have equal texts. Two fields may be absent:

``from``
    Where the batch that ends here began, for the first batch of a log. Spark does not store the start of a query's
    first batch. When it repeats that batch it asks for the initial offset again, and ``latest`` would have moved by
    then. So the end of the batch records where it began. The same applies to a log that is found later.
``lost``
    How many offsets were skipped so far because they were gone (``failOnDataLoss=false``).

Other versions and unknown fields are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bk_spark.protocol.errors import MetadataFormatError

OFFSET_VERSION: Final = 1
_MAX_OFFSET: Final = (1 << 63) - 1
#: Characters of an offset shown in error texts.
_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class Position:
    """How far one log or ledger was read. ``identity`` is the id of the log or ledger."""

    identity: str | int
    offset: int
    start: int | None = None
    lost: int = 0

    def __post_init__(self) -> None:
        assert self.start is None or self.start <= self.offset


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Positions by log name. A ledger is the only position, under the name from :func:`ledger_name`."""

    positions: Mapping[str, Position]

    @property
    def ledger_id(self) -> int | None:
        """The ledger's id if the read is of a ledger, else None."""
        for position in self.positions.values():
            if isinstance(position.identity, int):
                return position.identity
        return None

    def begin(self, name: str, end: StreamOffset) -> int:
        """Return where the batch from here to ``end`` begins in ``name``, which must be in ``end``."""
        position = end.positions[name]
        if position.start is not None:
            return position.start
        before = self.positions.get(name)
        if before is None:
            raise MetadataFormatError(
                f"the offset in the checkpoint does not say where its first batch of log {name} began: it was not "
                "written by this data source"
            )
        return before.offset

    def to_json(self) -> dict[str, Any]:
        """Return the value that Spark writes as JSON."""
        if self.ledger_id is not None:
            (position,) = self.positions.values()
            return {"v": OFFSET_VERSION, "ledger": _fields(position, "entry")}
        logs = {name: _fields(self.positions[name], "offset") for name in sorted(self.positions)}
        return {"v": OFFSET_VERSION, "logs": logs}


def ledger_name(ledger_id: int) -> str:
    """Return a name that no log can have."""
    return f"ledger {ledger_id}"


def parse_offset(found: object) -> StreamOffset:
    """Parse the result of :meth:`StreamOffset.to_json`. Raises MetadataFormatError."""
    found = version_checked(found)
    match found:
        case {"logs": dict(logs), **rest} if rest.keys() == {"v"}:
            return StreamOffset({name: _position(found, name, logs[name], str, "offset") for name in sorted(logs)})
        case {"ledger": dict(ledger), **rest} if rest.keys() == {"v"}:
            position = _position(found, "ledger", ledger, int, "entry")
            assert isinstance(position.identity, int)
            return StreamOffset({ledger_name(position.identity): position})
    raise refused(found, "names neither logs nor a ledger: is the checkpoint that of a read of topics?")


def version_checked(found: object) -> dict[Any, Any]:
    """Return the fields of an offset of this version. Raises MetadataFormatError."""
    if not isinstance(found, dict) or "v" not in found:
        raise refused(found, "is not an offset of this data source: is the checkpoint that of another source?")
    version = found["v"]
    if type(version) is not int or version != OFFSET_VERSION:
        raise refused(
            found,
            f"has format version {version!r}; this release knows {OFFSET_VERSION}: use the release that wrote the "
            "checkpoint, or a later one",
        )
    return found


def _fields(position: Position, unit: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"id": position.identity, unit: position.offset}
    if position.start is not None:
        fields["from"] = position.start
    if position.lost:
        fields["lost"] = position.lost
    return fields


def _position(whole: object, name: object, fields: object, kind: type[str] | type[int], unit: str) -> Position:
    if not isinstance(name, str) or not isinstance(fields, dict):
        raise refused(whole, f"is damaged at {name!r}")
    unknown = fields.keys() - {"id", unit, "from", "lost"}
    if unknown:
        raise refused(whole, f"has the unknown field {min(map(str, unknown))} at {name}")
    identity = fields.get("id")
    numbers = [fields.get(unit), fields.get("from", 0), fields.get("lost", 0)]
    if not isinstance(identity, kind) or isinstance(identity, bool) or not all(map(is_count, numbers)):
        raise refused(whole, f"is damaged at {name}")
    start = fields.get("from")
    if start is not None and start > fields[unit]:
        raise refused(whole, f"ends before it begins at {name}")
    return Position(identity, fields[unit], start, fields.get("lost", 0))


def is_count(value: object) -> bool:
    """Whether a value of an offset can be a number of entries."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_OFFSET


def refused(found: object, what: str) -> MetadataFormatError:
    """Return the error for an offset that ``what``."""
    text = repr(found)
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return MetadataFormatError(f"the offset in the query's checkpoint {what}: {shown}")
