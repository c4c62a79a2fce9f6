"""A log as a table: its methods ``scan`` and ``write``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from bk_spark.log.tables.scan import Scan, ScannedLog, ScanPosition, scan_of

#: Threads of one scan. They wait for bookies more than they compute.
THREADS: Final = 4
BUFFER_BYTES: Final = 64 * 1024 * 1024


class TableLog(ScannedLog, Protocol):
    """A log, as its methods for tables need it: see :class:`bk_spark.log.log.Log`."""


class LogTables:
    """Its methods are those of :class:`bk_spark.log.log.Log`."""

    def __init__(self, log: TableLog) -> None:
        self._log = log

    def scan(
        self,
        columns: Sequence[str] | None = None,
        *,
        start: ScanPosition = "earliest",
        end: ScanPosition = "latest",
        include_metadata: bool = False,
        threads: int = THREADS,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> Scan:
        """Choose rows to read as Arrow batches, without Spark: some columns of a range of offsets.

        Parameters
        ----------
        columns
            The names of the columns, in the order wanted. Default: those that Spark reads: all of an arrow log, and
            ``value``, ``log``, ``offset``, ``ledgerId``, ``entryId`` and ``timestamp`` of a raw one. An arrow log has
            the last five, too, if they are named.
        start, end
            The first offset, and the offset after the last one. Instead of an offset: ``"earliest"``, ``"latest"``, or
            a time (a datetime, or text in ISO 8601, UTC if it names no zone, or milliseconds since 1970 as text),
            which means the first entry committed then or later. ``"latest"`` includes what is confirmed now in an
            open tail.
        include_metadata
            Add the columns that say where a row comes from: ``log``, ``offset``, ``ledgerId``, ``entryId``,
            ``timestamp``. A raw log has them anyway.
        threads
            How many parts of the range are read at the same time, from 1 to 64.
        buffer_bytes
            About the most bytes of rows that wait for the program, at least 1 MiB. It does not include what the client
            has asked bookies for.

        Returns
        -------
        Scan
            The rows to read. The range is fixed now, and nothing is read yet.

        Raises
        ------
        InvalidArgumentError
            If there is no such column, a position is wrong, ``start`` is after ``end``, or the log was opened without
            its password.
        LogRangeGoneError
            If an offset is not, or no longer, in the log.
        MetadataUnavailableError
            If ZooKeeper does not answer.
        EntryUnknownError
            If too few bookies of an open tail answer.
        """
        return scan_of(
            self._log,
            self._log.snapshot(),
            columns,
            start,
            end,
            include_metadata=include_metadata,
            threads=threads,
            buffer_bytes=buffer_bytes,
        )
