"""One log with asyncio."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bk_spark.bookie.same_docs import documented_as
from bk_spark.log.aio import reader
from bk_spark.log.aio.threads import in_thread, iterated
from bk_spark.log.core.plan import CommitResult
from bk_spark.log.io.snapshot import LogSnapshot
from bk_spark.log.log import Log
from bk_spark.log.reader import LogBlock, LogReader
from bk_spark.log.tables.scan import Scan
from bk_spark.log.writer import LogWriter
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.entries.payloads import Payloads

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


class AsyncScan:
    """A :class:`Scan` for an event loop. Made by :meth:`AsyncLog.scan`. ``async for`` gives its batches."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan

    def __repr__(self) -> str:
        return f"Async{self._scan!r}"

    @property
    @documented_as(Scan.schema)
    def schema(self) -> pa.Schema:
        return self._scan.schema

    @property
    @documented_as(Scan.offsets)
    def offsets(self) -> range:
        return self._scan.offsets

    @documented_as(Scan.batches)
    def batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        return iterated(self._scan.batches())

    def __aiter__(self) -> AsyncGenerator[pa.RecordBatch, None]:
        return self.batches()

    @documented_as(Scan.to_arrow)
    async def to_arrow(self) -> pa.Table:
        return await in_thread(self._scan.to_arrow)

    @documented_as(Scan.to_pandas)
    async def to_pandas(self, **options: Any) -> pd.DataFrame:
        return await in_thread(self._scan.to_pandas, **options)

    @documented_as(Scan.to_polars)
    async def to_polars(self) -> pl.DataFrame:
        return await in_thread(self._scan.to_polars)


class AsyncLogWriter:
    """A :class:`LogWriter` for an event loop. Made by :meth:`AsyncLog.open_writer`.

    Use it with ``async with``, or call :meth:`close` or :meth:`abandon`. An error inside abandons the writer.
    """

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer

    def __repr__(self) -> str:
        return f"Async{self._writer!r}"

    async def __aenter__(self) -> AsyncLogWriter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await in_thread(self._writer.__exit__, kind, error, traceback)

    @property
    @documented_as(LogWriter.writer_id)
    def writer_id(self) -> str:
        return self._writer.writer_id

    @property
    @documented_as(LogWriter.next_offset)
    def next_offset(self) -> int:
        return self._writer.next_offset

    @property
    @documented_as(LogWriter.acknowledged_offset)
    def acknowledged_offset(self) -> int:
        return self._writer.acknowledged_offset

    @documented_as(LogWriter.append)
    async def append(self, payload: Buffer) -> int:
        return await in_thread(self._writer.append, payload)

    @documented_as(LogWriter.append_many)
    async def append_many(self, payloads: Payloads | Sequence[Buffer]) -> range:
        return await in_thread(self._writer.append_many, payloads)

    @documented_as(LogWriter.flush)
    async def flush(self) -> int:
        return await in_thread(self._writer.flush)

    @documented_as(LogWriter.close)
    async def close(self) -> int:
        return await in_thread(self._writer.close)

    @documented_as(LogWriter.abandon)
    async def abandon(self) -> None:
        await in_thread(self._writer.abandon)


class AsyncLog:
    """A log for an event loop. Its methods are those of :class:`Log`, as coroutines and asynchronous iterators.

    Made by :meth:`AsyncBookKeeper.log`. A call that is cancelled while it changes the log may still take effect:
    cancelling waits until it has ended. Iterators read on the event loop. Close them (``contextlib.aclosing``) if you
    leave them before their end.
    """

    def __init__(self, log: Log) -> None:
        self._log = log

    def __repr__(self) -> str:
        return f"Async{self._log!r}"

    @property
    def blocking(self) -> Log:
        """The log for callers that block, with all that is not offered here."""
        return self._log

    @property
    def name(self) -> str:
        """The name of the log."""
        return self._log.name

    @documented_as(Log.snapshot)
    async def snapshot(self, *, sync: bool = True) -> LogSnapshot:
        return await in_thread(self._log.snapshot, sync=sync)

    @documented_as(LogReader.read)
    def read(self, start: int, end: int) -> AsyncGenerator[LogBlock, None]:
        return reader.read(self._log.parts, start, end)

    @documented_as(LogReader.follow)
    async def follow(self, start: int, *, max_wait_ms: int | None = None) -> AsyncGenerator[LogBlock, None]:
        async with aclosing(reader.follow(self._log.parts, start, max_wait_ms)) as blocks:
            async for block in blocks:
                yield block

    async def readable_end(self) -> int:
        """Find the end of the readable entries. If a log writer holds the tail, this asks bookies.

        Returns
        -------
        int
            The offset after the last readable entry.

        Raises
        ------
        EntryUnknownError
            If too few bookies of the open tail respond.
        """
        return await in_thread(lambda: self._log.open_reader().readable_end())

    async def open_writer(self, **options: Any) -> AsyncLogWriter:
        """Open the log for writing.

        Parameters
        ----------
        **options
            As for :meth:`Log.open_writer`.

        Returns
        -------
        AsyncLogWriter
            The writer. It holds the log's tail until it is closed. Raises as :meth:`Log.open_writer`.
        """
        return AsyncLogWriter(await in_thread(self._log.open_writer, **options))

    async def scan(self, columns: Sequence[str] | None = None, **options: Any) -> AsyncScan:
        """Choose rows to read as Arrow batches.

        Parameters
        ----------
        columns
            The names of the columns. Default: all that Spark reads.
        **options
            As for :meth:`Log.scan`.

        Returns
        -------
        AsyncScan
            The rows to read. Raises as :meth:`Log.scan`.
        """
        return AsyncScan(await in_thread(self._log.scan, columns, **options))

    async def write(self, data: object, **options: Any) -> CommitResult:
        """Write rows in one transaction.

        Parameters
        ----------
        data
            Arrow, pandas or polars data, as for :meth:`Log.write`. It is read in a thread.
        **options
            As for :meth:`Log.write`.

        Returns
        -------
        CommitResult
            The offsets, and whether this write added the rows. Raises as :meth:`Log.write`.
        """
        return await in_thread(self._log.write, data, **options)
