"""Pieces of topics, and how they become tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bk_spark.datasource.options.options import SourceOptions
from bk_spark.datasource.planning import cut_by_options
from bk_spark.datasource.pulsar.positions import Edges
from bk_spark.datasource.pulsar.rows import TopicSplit
from bk_spark.log.entries.pieces import Piece, Pieces
from bk_spark.protocol.pulsar.transactions import Position, TransactionId
from bk_spark.pulsar.compacted import CompactedTopic
from bk_spark.pulsar.entry_numbers import EntryNumbers, check_on_bookies
from bk_spark.pulsar.transactions import TransactionWatch


def topic_pieces(name: str, numbers: EntryNumbers, start: int, end: int) -> Pieces:
    """Return entries ``[start, end)`` of a topic. Raises InvalidArgumentError for ledgers that only tiered storage has.

    How many messages an entry has is not known, so each counts as one row.
    """
    found = []
    ranges = numbers.ranges(start, end)
    check_on_bookies(name, (one for one, _, _ in ranges))
    for one, first, last in ranges:
        entries = last - first + 1
        size = max(1, one.size_bytes * entries // max(one.entries, 1))
        found.append(Piece(one.ledger_id, first, last, size, entries, name))
    return Pieces.of(found)


def topic_splits(
    options: SourceOptions,
    pieces: Iterable[Pieces],
    watches: Mapping[str, TransactionWatch],
    edges: Mapping[str, Edges],
) -> list[TopicSplit]:
    """Cut ``pieces`` into tasks according to the options, each with what it needs of ``watches`` and ``edges``."""
    return [
        TopicSplit(
            part,
            {name: _aborted(part, number, watches[name]) for number, name in enumerate(part.logs) if name in watches},
            {name: edges[name] for name in part.logs if name in edges},
        )
        for part in cut_by_options(options, pieces)
    ]


def compacted_splits(options: SourceOptions, compacted: Mapping[str, CompactedTopic]) -> list[TopicSplit]:
    """Cut the compacted ledgers of topics into tasks according to the options."""
    pieces = Pieces.of(
        [
            Piece(one.ledger_id, 0, one.entries - 1, max(1, one.size_bytes), one.entries, name)
            for name, one in compacted.items()
            if one.entries
        ]
    )
    return [TopicSplit(part, is_compacted=True) for part in cut_by_options(options, [pieces])]


def _aborted(part: Pieces, number: int, watch: TransactionWatch) -> frozenset[TransactionId]:
    own = list(part.where(part.log == number))
    return watch.aborted_in(Position(own[0].ledger_id, own[0].first), Position(own[-1].ledger_id, own[-1].last))
