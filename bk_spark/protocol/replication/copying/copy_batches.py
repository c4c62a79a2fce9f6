"""What a copy of a fragment (:mod:`.fragment_copy`) has under way."""

from __future__ import annotations

from dataclasses import dataclass, field

from bk_spark.protocol.replication.actions import StoredEntries


@dataclass(slots=True)
class Batch:
    """Entries with one write set, while they are read. ``known``: they need no read."""

    entry_ids: range
    sources: list[str]
    known: StoredEntries | None = None
    #: What the pace was asked for.
    paced_bytes: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    asked: str = ""
    asked_ids: range = range(0)
    #: The bookie broke the connection at a batch read. It may not know these.
    one_by_one: bool = False
    #: Copies of an entry whose digest is unknown.
    copies: list[StoredEntries] = field(default_factory=list)


@dataclass(slots=True)
class Writing:
    """Entries that wait for the throttle, or for their targets' answers."""

    entries: StoredEntries
    #: Targets without an answer.
    targets: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Add:
    """Adds of some entries to one target, with the number of attempts so far."""

    writing: Writing
    target: str
    attempts: int = 1
    #: The target was busy, and a pause has not ended.
    pausing: bool = False
