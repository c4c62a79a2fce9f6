"""The pieces in which a pass reads a range (:mod:`bk_spark.protocol.ledger.reading.range_pass`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from bk_spark.protocol.entries.entry_block import EntryBlock
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.quorum import Answer


@dataclass(slots=True)
class Chunk:
    """Entries that are given out together."""

    entry_ids: range
    number: int
    open_parts: int = 0
    answers: list[tuple[range, Payloads]] = field(default_factory=list)
    #: By the entry that could not be had.
    errors: dict[int, BookKeeperError] = field(default_factory=dict)

    @property
    def good_ids(self) -> range:
        """The entries before the first that could not be had."""
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
    """What one replica can give of a chunk: all of it, or every E-th entry."""

    chunk: Chunk
    #: Those not had yet.
    entry_ids: range
    #: Not yet asked for the next entry, best first.
    replicas: list[str]
    #: By request id, those that may still answer; and which of the requests take long.
    asked: dict[int, str] = field(default_factory=dict)
    slow: set[int] = field(default_factory=set)
    #: Of requests that are not slow yet, by id: the time they have left when they become slow.
    late_after_ms: dict[int, int] = field(default_factory=dict)
    failed: dict[str, tuple[Answer, str]] = field(default_factory=dict)
    speculations: int = 0
