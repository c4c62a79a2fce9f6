"""Reads a range of a log as Arrow batches: :class:`Scan`, which :meth:`bk_spark.log.log.Log.scan` makes."""

from __future__ import annotations

import datetime
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import pyarrow as pa

from bk_spark.log.entries.arrow_types import arrow_schema
from bk_spark.log.entries.columns import Schema, Struct
from bk_spark.log.entries.entry_rows import EntryRows, joined
from bk_spark.log.entries.fit import ColumnLookup
from bk_spark.log.entries.pieces import Pieces, cut_splits
from bk_spark.log.entries.schema_checks import METADATA_COLUMNS, METADATA_NAMES, RAW_SCHEMA, VALUE, with_metadata
from bk_spark.log.entries.schema_text import parse_schema
from bk_spark.log.formats.settings import EntryFormat, LogSettings
from bk_spark.log.io.ledgers import LogLedgers
from bk_spark.log.io.snapshot import LogSnapshot
from bk_spark.log.positions.bounds import Reading, Wanted, ranges_of
from bk_spark.log.positions.texts import Time, position_of
from bk_spark.log.tables.ordered_reads import Costly, OrderedReads, Source
from bk_spark.log.tables.ranges import ReadableLog, log_bounds, log_pieces
from bk_spark.protocol.errors import InvalidArgumentError, LogRangeGoneError, NoSuchLedgerError
from bk_spark.settings.kinds import did_you_mean

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

#: Where a scan starts or ends: an offset, a time, or "earliest" or "latest".
ScanPosition: TypeAlias = int | str | datetime.datetime | Time

#: Bytes of entries in one part, which one thread reads.
_PART_BYTES: Final = 8 * 1024 * 1024
_MAX_THREADS: Final = 64
_MIN_BUFFER_BYTES: Final = 1024 * 1024
_READING: Final = Reading(remedy="leave it out")


class ScannedLog(ReadableLog, Protocol):
    """A log, as scans need it: see :class:`bk_spark.log.log.Log`."""

    @property
    def settings(self) -> LogSettings:
        """What entries hold, and the versions of the schema."""
        ...

    @property
    def ledgers(self) -> LogLedgers:
        """Reads entries. Raises InvalidArgumentError if the log was opened without its password."""
        ...


class Scan:
    """Rows of a log: some columns of a range of offsets. Made by :meth:`Log.scan`.

    The range is fixed when the scan is made. Nothing is read before one of the methods is called, and each call reads
    the range again. Rows come in the order of their offsets. Anything that accepts Arrow streams accepts a scan:
    ``duckdb.sql("SELECT … FROM scan")``, ``polars.DataFrame(scan)``, ``pyarrow.table(scan)``.
    """

    def __init__(
        self, log: ScannedLog, schema: pa.Schema, pieces: Pieces, offsets: range, threads: int, buffer_bytes: int
    ) -> None:
        self._log = log
        self._schema = schema
        self._pieces = pieces
        self._offsets = offsets
        self._threads = threads
        self._buffer_bytes = buffer_bytes

    def __repr__(self) -> str:
        return f"Scan({self._log.name}, [{self._offsets.start}, {self._offsets.stop}), {', '.join(self._schema.names)})"

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._schema

    @property
    def offsets(self) -> range:
        """The offsets that are read. An offset of an arrow log is an entry with many rows."""
        return self._offsets

    def reader(self) -> pa.RecordBatchReader:
        """Read the rows as a stream.

        Returns
        -------
        pyarrow.RecordBatchReader
            The rows, in batches. Reading raises LogRangeGoneError if a ledger was deleted since the scan was made
            (after truncation, retention or an overwrite), EntryUnknownError if bookies could not return an entry, and
            InvalidArgumentError for a ``value`` that is not what its column says.
        """
        return pa.RecordBatchReader.from_batches(self._schema, self.batches())

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Read the rows batch by batch. Closing the generator ends the reading.

        Returns
        -------
        generator of pyarrow.RecordBatch
            Rows in order.
        """
        parts = cut_splits(self._pieces, _PART_BYTES)
        settings = self._log.settings
        stored = (VALUE,) if settings.entry_format is EntryFormat.RAW else parse_schema(settings.schema_json).names
        is_narrow = not {*stored} <= {*self._schema.names}
        lookup = ColumnLookup(own={self._log.name: {name: name for name in METADATA_NAMES & {*stored}}})
        sources: list[Source] = [_Part(self._log, self._schema, part, lookup, is_narrow).batches for part in parts]
        reads = OrderedReads(sources, threads=self._threads, buffer_bytes=self._buffer_bytes)
        return reads.batches()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.batches()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.reader().__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> pa.Table:
        """Read all rows.

        Returns
        -------
        pyarrow.Table
            The rows. Raises as :meth:`reader`.
        """
        return pa.Table.from_batches(list(self.batches()), self._schema)

    def to_pandas(self, **options: Any) -> pd.DataFrame:
        """Read all rows into pandas, which must be installed.

        Parameters
        ----------
        **options
            As for ``pyarrow.Table.to_pandas``.

        Returns
        -------
        pandas.DataFrame
            The rows. Raises as :meth:`reader`, and ImportError without pandas.
        """
        try:
            import pandas  # noqa: F401
        except ImportError as error:
            raise ImportError(_missing("pandas")) from error
        return self.to_arrow().to_pandas(**options)

    def to_polars(self) -> pl.DataFrame:
        """Read all rows into polars, which must be installed.

        Returns
        -------
        polars.DataFrame
            The rows. Raises as :meth:`reader`, and ImportError without polars.
        """
        try:
            import polars
        except ImportError as error:
            raise ImportError(_missing("polars")) from error
        return polars.DataFrame(self.to_arrow())


def scan_of(
    log: ScannedLog,
    snapshot: LogSnapshot,
    columns: Sequence[str] | None,
    start: ScanPosition,
    end: ScanPosition,
    *,
    include_metadata: bool,
    threads: int,
    buffer_bytes: int,
) -> Scan:
    """See :meth:`bk_spark.log.log.Log.scan`."""
    _check_size("threads", threads, 1, _MAX_THREADS)
    _check_size("buffer_bytes", buffer_bytes, _MIN_BUFFER_BYTES, None)
    schema = arrow_schema(_wanted(log, columns, include_metadata))
    begins, ends = position_of(start, "start"), position_of(end, "end")
    bounds = {log.name: log_bounds(log, snapshot, ends)}
    wanted = Wanted({log.name: begins}, "start"), Wanted({log.name: ends}, "end")
    first, stop = ranges_of(*wanted, bounds, _READING)[log.name]
    return Scan(log, schema, log_pieces(log, snapshot, first, stop), range(first, stop), threads, buffer_bytes)


def _wanted(log: ScannedLog, columns: Sequence[str] | None, include_metadata: bool) -> Schema:
    if log.settings.entry_format is EntryFormat.RAW:
        every = usual = RAW_SCHEMA
    else:
        usual = parse_schema(log.settings.schema_json)
        # A log's own column takes precedence over one that describes entries.
        own = {*usual.names}
        every = Struct((*usual.fields, *(one for one in METADATA_COLUMNS if one.name not in own)))
        if include_metadata:
            usual = with_metadata(usual)
    if columns is None:
        return usual
    if isinstance(columns, str):
        raise InvalidArgumentError(f'columns must be a list of names, such as ["{columns}"], got {columns!r}')
    if not columns:
        raise InvalidArgumentError("columns is empty, so the rows could not be counted: name at least one")
    found = {one.name: one for one in every.fields}
    for number, name in enumerate(columns):
        if name not in found:
            names = [*found]
            nearest = did_you_mean(str(name), names) or f"; it has {', '.join(names)}"
            raise InvalidArgumentError(f"log {log.name} has no column {name!r}{nearest}")
        if name in columns[:number]:
            raise InvalidArgumentError(f"columns names {name!r} twice")
    chosen = [found[name] for name in columns]
    if include_metadata:
        chosen += [one for one in METADATA_COLUMNS if one.name not in columns]
    return Struct(tuple(chosen))


def _check_size(name: str, value: int, least: int, most: int | None) -> None:
    if type(value) is not int or value < least or (most is not None and value > most):
        limits = f"at least {least}" if most is None else f"from {least} to {most}"
        raise InvalidArgumentError(f"{name} must be a whole number, {limits}, got {value!r}")


def _missing(package: str) -> str:
    return f"to_{package} needs {package}, which is not installed: pip install 'bk-spark[frames]', or use to_arrow()"


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """What one thread reads."""

    log: ScannedLog
    schema: pa.Schema
    pieces: Pieces
    lookup: ColumnLookup
    is_narrow: bool

    def batches(self) -> Generator[Costly, None, None]:
        rows = EntryRows(self.schema, self.log.settings.entry_format, self.lookup)
        sums, reached = self.pieces.entry_sums, 0
        try:
            with closing(self.log.ledgers.read_series(self.pieces.entry_ranges)) as parts:
                for payloads in parts:
                    start, reached = reached, reached + len(payloads)
                    # Batches are slices of the memory that came. A few columns should not hold on to all of it.
                    held = 0 if self.is_narrow else payloads.size_bytes
                    for batch in joined(rows.of(payloads, self.pieces.part(sums, start, reached))):
                        own = batch.copy_to(pa.default_cpu_memory_manager()) if self.is_narrow else batch
                        yield own, held + own.nbytes
                        held = 0
        except NoSuchLedgerError as error:
            lost = next(iter(self.pieces.part(sums, reached, int(sums[-1]))))
            assert lost.base_offset is not None
            raise LogRangeGoneError(
                f"offsets [{lost.base_offset}, {lost.base_offset + lost.entries}) of log {self.log.name} are gone: the "
                "ledger was deleted (after truncation, retention or overwrite) since the scan was made: make a new one",
                ledger_id=lost.ledger_id,
            ) from error
