"""Entries of a topic that make rows: whole, without compression, with what is known about each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bk_spark.protocol.arrays import Bools, Int64s
from bk_spark.protocol.pulsar.messages.field_columns import FieldColumns
from bk_spark.protocol.pulsar.messages.words import Words
from bk_spark.protocol.pulsar.transactions import Position


@dataclass(frozen=True, slots=True)
class Entries:
    """Entries that make rows, restored: without compression, chunks joined.

    Parameters
    ----------
    words
        The buffer in which all of them are, in order.
    ledger_ids, entry_ids
        Where each of them is.
    metadata
        Their metadata, of all entries that were read together.
    chosen
        The indexes of these entries in ``metadata``.
    moved
        How far each entry is from where ``metadata`` says.
    payload_begins, payload_ends
        Where the payloads are.
    counts
        How many messages each batch has, 0 for entries that are not batches.
    broker
        The broker's metadata of all entries that were read together, or None if no column needs it.
    first_chunks
        Where chunked messages begin, by the index among these entries.
    error
        Makes the error of an entry from its index in ``metadata`` and what is wrong.
    """

    words: Words
    ledger_ids: Int64s
    entry_ids: Int64s
    metadata: FieldColumns
    chosen: Int64s
    moved: Int64s | int
    payload_begins: Int64s
    payload_ends: Int64s
    counts: Int64s
    is_batch: Bools
    broker: FieldColumns | None
    first_chunks: dict[int, Position]
    error: Callable[[int, str], Exception]
