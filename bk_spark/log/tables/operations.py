"""A log as a table: its methods ``scan`` and ``write``."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias

from bk_spark.log.core.plan import CommitResult
from bk_spark.log.core.tail.roll import RollLimits
from bk_spark.log.io.snapshot import LogSnapshot
from bk_spark.log.positions.texts import AsOf
from bk_spark.log.tables.scan import Scan, ScannedLog, ScanPosition, scan_of
from bk_spark.log.tables.write import AUTO, CommittedLog, WriteOptions, write_rows

#: Threads of one scan. They wait for bookies more than they compute.
THREADS: Final = 4
BUFFER_BYTES: Final = 64 * 1024 * 1024


#: A commit, as programs name it: an offset, a time, or a transaction.
CommitName: TypeAlias = int | str | datetime.datetime | AsOf


class TableLog(ScannedLog, CommittedLog, Protocol):
    """A log, as its methods for tables need it: see :class:`bk_spark.log.log.Log`."""

    def as_of(self, commit: CommitName) -> LogSnapshot:
        """Return the log as a commit left it. Raises LogRangeGoneError if that state is no longer kept."""
        ...


class LogTables:
    """The methods of :class:`bk_spark.log.log.Log` that make a log a table."""

    def scan(
        self: TableLog,
        columns: Sequence[str] | None = None,
        *,
        start: ScanPosition = "earliest",
        end: ScanPosition = "latest",
        as_of: CommitName | None = None,
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
        as_of
            Read the log as a commit left it: an offset (the commit that holds it), a time (the last commit then or
            before) or a transaction, as for :meth:`as_of`. Later overwrites and truncations do not change it.
        include_metadata
            Add the columns that say where a row comes from: ``log``, ``offset``, ``ledgerId``, ``entryId``,
            ``timestamp``. A raw log has them anyway.
        threads
            How many parts of the range are read at the same time, from 1 to 64.
        buffer_bytes
            About how many bytes of rows may wait for the program, at least 1 MiB. It does not include what the client
            has requested from bookies.

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
            self,
            self.snapshot() if as_of is None else self.as_of(as_of),
            columns,
            start,
            end,
            include_metadata=include_metadata,
            threads=threads,
            buffer_bytes=buffer_bytes,
        )

    def write(
        self: TableLog,
        data: object,
        *,
        mode: str = "append",
        txn_app_id: str | None = None,
        txn_version: int | None = None,
        compression: str | None = AUTO,
        entry_bytes: int | None = None,
        merge_schema: bool = False,
        fence_tail: bool = False,
        roll_bytes: int = 1 << 30,
        roll_ms: int = 3_600_000,
    ) -> CommitResult:
        """Write rows in one transaction, without Spark: readers see all of them or none.

        Rows go to ledgers of their own while they are read from ``data``, so that ``data`` may be larger than memory.
        A commit adds them to the log at the end. If the process dies before, the log does not change, and maintenance
        deletes the ledgers later.

        Parameters
        ----------
        data
            A ``pyarrow.Table``, ``RecordBatch`` or ``RecordBatchReader``, a DataFrame of pandas or polars, or anything
            else that hands over an Arrow stream, such as a :class:`Scan` or a relation of DuckDB. Its columns must be
            the log's, in any order, with the same types. Types that hold the same values, such as strings and large
            strings, count as the same. A raw log takes one column, ``value``, of binary or string.
        mode
            ``"append"``, or ``"overwrite"``: the rows replace all others, in the same transaction.
        txn_app_id, txn_version
            A name, and a number that increases with each write under that name. A write that is repeated with the same
            name and number is in the log once. Give both or neither.
        compression
            Of the entries of an arrow log: ``"lz4"``, ``"zstd"`` or None. Default: ``"auto"``, which is lz4. An entry
            that does not become a tenth smaller is written without compression. A raw log has no compression.
        entry_bytes
            The target size of an entry of an arrow log, before compression. Default: 1 MiB. A raw log has an entry for
            each row.
        merge_schema
            Let the columns of an arrow log grow with the data, in the same transaction: columns that the log lacks are
            added, nullable, and columns become wider where the data needs it (int to long, float to double, more
            digits of a decimal). Columns that were added later and that the data lacks are null in its rows. Names that
            differ only by case are the same column. Afterwards this object knows the log's new columns.
        fence_tail
            Take over an open tail instead of failing. Its writer can no longer write.
        roll_bytes, roll_ms
            Continue in a new ledger after this many bytes, or milliseconds.

        Returns
        -------
        CommitResult
            The offsets, and whether this write added the rows or an earlier one did.

        Raises
        ------
        InvalidArgumentError
            If a column is missing, unknown, of another type, or has a value that does not fit, or an argument is wrong
            or does not apply to a raw log. With ``merge_schema``: if no type holds both the log's and the data's
            values. The log has not changed.
        LogTailOpenError
            If a live log writer holds the tail, and ``fence_tail`` is not set.
        NotEnoughBookiesError
            If fewer bookies are writable than the log's ensemble needs.
        OutcomeUnknownError
            If it is unknown whether the rows were committed. With ``txn_app_id``, write them again.
        """
        options = WriteOptions(
            mode,
            txn_app_id,
            txn_version,
            compression,
            entry_bytes,
            merge_schema,
            fence_tail,
            RollLimits(roll_bytes, roll_ms),
        )
        return write_rows(self, data, options)
