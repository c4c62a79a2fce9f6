"""Reads one task's entries as Arrow record batches. Used by batches and streams."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from bk_spark.datasource.connections import client_of
from bk_spark.datasource.entries.packed_partition import PackedPartition
from bk_spark.datasource.entries.schemas import arrow_schema
from bk_spark.datasource.kept_objects import keep_objects
from bk_spark.datasource.name_case import names_of
from bk_spark.datasource.options.options import SourceOptions
from bk_spark.datasource.task_counts import counted
from bk_spark.log.entries.entry_rows import EntryRows, joined
from bk_spark.log.entries.fit import ColumnLookup
from bk_spark.log.entries.pieces import Pieces
from bk_spark.log.formats.schema_merge import ANY_CASE
from bk_spark.log.formats.settings import EntryFormat
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import InvalidArgumentError, LogRangeGoneError, NoSuchLedgerError

_LOG: Final = logging.getLogger(__name__)
#: Makes rows of the entries in some pieces.
Decode = Callable[[Payloads, Pieces], Iterator[pa.RecordBatch]]


@dataclass
class Split(PackedPartition):
    """What one task reads. Must be self-contained: Spark pickles the reader before it asks for the splits, so
    planning results reach the tasks only in the splits."""

    entry_format: EntryFormat
    pieces: Pieces
    lookup: ColumnLookup = field(default_factory=ColumnLookup)


def read_split(options: SourceOptions, schema: StructType, split: Split) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one split, many entries at a time, in exactly the Arrow form of ``schema``.

    Raises LogRangeGoneError (NoSuchLedgerError without a log) if a ledger was deleted since the split was planned. If
    failOnDataLoss is false, skips its entries with a warning instead.
    """
    names = names_of(TaskContext.get())
    if split.lookup.names == ANY_CASE and names != ANY_CASE:
        raise InvalidArgumentError(
            f"the columns {', '.join(schema.fieldNames())} differ from those of the log in the case of a name, and "
            "spark.sql.caseSensitive is true: correct the schema"
        )
    rows = EntryRows(arrow_schema(schema), split.entry_format, split.lookup.for_session(names))
    yield from read_pieces(options, split.pieces, rows.of, options.password())


def read_pieces(
    options: SourceOptions, pieces: Pieces, decode: Decode, password: bytes, part_bytes: int = 0
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that ``decode`` makes of the entries of ``pieces``, many entries at a time, in order.

    ``decode`` gets entries of about ``part_bytes`` at a time, if that is more than what comes in one answer. A deleted
    ledger is an error, or is skipped, as in :func:`read_split`.
    """
    with counted(options):
        yield from _read_pieces(options, pieces, decode, password, part_bytes)


def _read_pieces(
    options: SourceOptions, pieces: Pieces, decode: Decode, password: bytes, part_bytes: int
) -> Iterator[pa.RecordBatch]:
    client = client_of(options.metadata_service_uri, options.client)
    while len(pieces):
        sums, reached = pieces.entry_sums, 0
        try:
            with closing(client.read_series(pieces.entry_ranges, password, part_bytes=part_bytes)) as parts:
                for payloads in parts:
                    start, reached = reached, reached + len(payloads)
                    yield from joined(decode(payloads, pieces.part(sums, start, reached)))
            keep_objects()
            return
        except NoSuchLedgerError as error:
            pieces = without_first_ledger(pieces.part(sums, reached, int(sums[-1])), options, error)


def without_first_ledger(pieces: Pieces, options: SourceOptions, error: NoSuchLedgerError) -> Pieces:
    """Return ``pieces`` without the first one's ledger, which was deleted. Raises if failOnDataLoss is set."""
    piece = next(iter(pieces))
    is_left = pieces.ledger_id != piece.ledger_id
    more = len(pieces) - int(is_left.sum()) - 1
    if piece.log is None or piece.base_offset is None:
        lost = f"entries {piece.first} to {piece.last} of ledger {piece.ledger_id}"
    else:
        lost = f"offsets [{piece.base_offset}, {piece.base_offset + piece.entries}) of log {piece.log}"
    if not options.fail_on_data_loss:
        _LOG.warning(
            "%s%s are left out: ledger %d was deleted after this read was planned",
            lost,
            f" and {more} more ranges of it" if more else "",
            piece.ledger_id,
        )
        return pieces.where(is_left)
    if piece.log is None:
        raise error
    raise LogRangeGoneError(
        f"{lost} are gone: the ledger was deleted (after truncation, retention or overwrite) since this read was "
        "planned: start it again (the DataFrame, or the query), or read what is left with failOnDataLoss false",
        ledger_id=piece.ledger_id,
    ) from error
