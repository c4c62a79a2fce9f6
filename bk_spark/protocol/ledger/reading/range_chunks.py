"""The pieces of a range that a pass reads (:mod:`bk_spark.protocol.ledger.reading.range_pass`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from bk_spark.protocol.entries.entry import EntryBlock
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.quorum import Answer


@dataclass(slots=True)
class Chunk:
    """Entries that are returned together."""

    entry_ids: range
    number: int
    open_parts: int = 0
    answers: list[tuple[range, Payloads]] = field(default_factory=list)
    #: By the entry that could not be read.
    errors: dict[int, BookKeeperError] = field(default_factory=dict)

    @property
    def good_ids(self) -> range:
        """The entries before the first that could not be read."""
        return range(self.entry_ids.start, min(self.errors, default=self.entry_ids.stop))

    def block(self, max_lac: int) -> EntryBlock:
        good = self.good_ids
        if not self.errors and all(ids.step == 1 for ids, _ in self.answers):
            return EntryBlock(good.start, Payloads.joined([payloads for _, payloads in self.answers]), max_lac)
        views: dict[int, memoryview] = {}
        for entry_ids, payloads in self.answers:
            views.update(zip(entry_ids, payloads, strict=True))
        return EntryBlock(good.start, Payloads.of([views[entry] for entry in good]), max_lac)


@dataclass(slots=True)
class Part:
    """The part of a chunk that one replica holds: all of it, or every E-th entry."""

    chunk: Chunk
    #: The entries not read yet.
    entry_ids: range
    #: Replicas not yet asked for the next entry, best first.
    replicas: list[str]
    #: Bookies that may still answer, by request id, and the ids of the slow requests.
    asked: dict[int, str] = field(default_factory=dict)
    slow: set[int] = field(default_factory=set)
    #: For requests that are not slow yet, by id: the time left once they become slow.
    late_after_ms: dict[int, int] = field(default_factory=dict)
    failed: dict[str, tuple[Answer, str]] = field(default_factory=dict)
    speculations: int = 0
