"""Rows of one task go to several logs: a column names the log of each row.

Rows of a log keep their order. They gather until they fill an entry, so that many logs do not make small entries. What
gathers is bounded over all logs: beyond the bound, the log with the most waiting bytes goes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from bk_spark.log.entries.row_places import RowPlaces, RowRun
from bk_spark.log.formats.message import LedgerRange
from bk_spark.log.tables.append_ledgers import TaskLedgers
from bk_spark.log.tables.append_rows import EntryForm, TaskWriter, payloads_of
from bk_spark.protocol.errors import InvalidArgumentError

#: Bytes of rows that one task gathers for all its logs.
MAX_GATHERED_BYTES: Final = 64 << 20


@dataclass(slots=True)
class _Route:
    """One log of a task."""

    writer: TaskWriter
    form: EntryForm
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    #: Where the waiting rows were in the task.
    runs: list[RowRun] = field(default_factory=list)
    waiting_bytes: int = 0
    #: The memory that the waiting rows take, and their places.
    held_bytes: int = 0


class RoutedRows:
    """Appends a task's rows to the logs that they name.

    Parameters
    ----------
    column
        The name of the column with the logs' names. It is not stored.
    open_log
        Returns the task's ledgers in a log, and the form of its entries. Raises an error if the log cannot be written.
    max_logs
        How many logs the rows may name.
    partition
        The task's number, for error texts.
    """

    def __init__(
        self, column: str, open_log: Callable[[str], tuple[TaskLedgers, EntryForm]], max_logs: int, partition: int
    ) -> None:
        self._column = column
        self._open_log = open_log
        self._max_logs = max_logs
        self._partition = partition
        self._routes: dict[str, _Route] = {}
        self._row_number = 0
        #: What all logs' waiting rows take: a sum for each batch and log would take longer than the rows.
        self._held_bytes = 0

    def append(self, batches: Iterator[pa.RecordBatch]) -> dict[str, tuple[LedgerRange, ...]]:
        """Append all rows and return, for each log that they name, where they are.

        Raises InvalidArgumentError for a row that names no log or cannot be written, and for too many logs; errors of
        ``open_log``, RunRetiredError, errors of the ledger client. Then nothing of the task may be committed.
        """
        try:
            for batch in batches:
                if batch.num_rows:
                    self._take(batch)
                    self._row_number += batch.num_rows
            for route in self._routes.values():
                self._send(route)
            return {name: route.writer.finish() for name, route in self._routes.items()}
        except BaseException:
            for route in self._routes.values():
                route.writer.abandon()
            raise

    def _take(self, batch: pa.RecordBatch) -> None:
        position = batch.schema.get_field_index(self._column)
        names = batch.column(position)
        if names.null_count:
            row = self._row_number + int(np.argmax(names.is_null().to_numpy(zero_copy_only=False)))
            raise InvalidArgumentError(
                f"column {self._column} is null in row {row} of partition {self._partition}: it names the log of each "
                f"row (option logColumn); leave such rows out, for example with .where({self._column} IS NOT NULL)"
            )
        rest = batch.drop_columns([self._column])
        encoded = names.dictionary_encode()
        if len(encoded.dictionary) == 1:
            self._gather(encoded.dictionary[0].as_py(), rest, RowRun(self._row_number, rest.num_rows))
            return
        # One sort finds the rows of every log, in their order.
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        order = np.argsort(codes, kind="stable")
        ends = np.cumsum(np.bincount(codes, minlength=len(encoded.dictionary)))
        sorted_rows = rest.take(pa.array(order))
        start = 0
        for name, end in zip(encoded.dictionary.to_pylist(), ends.tolist(), strict=True):
            run = RowRun(self._row_number, end - start, order[start:end])
            self._gather(name, sorted_rows.slice(start, end - start), run)
            start = end

    def _gather(self, name: str, rows: pa.RecordBatch, run: RowRun) -> None:
        route = self._routes.get(name)
        if route is None:
            if len(self._routes) == self._max_logs:
                raise InvalidArgumentError(
                    f"column {self._column} names more than {self._max_logs} logs in partition {self._partition}: each "
                    "needs a ledger of its own in each task; repartition by the column, or raise option maxLogs"
                )
            ledgers, form = self._open_log(name)
            route = self._routes[name] = _Route(TaskWriter(ledgers), form)
        route.waiting.append(rows)
        route.runs.append(run)
        size_bytes = rows.nbytes
        route.waiting_bytes += size_bytes
        route.held_bytes += size_bytes + run.size_bytes
        self._held_bytes += size_bytes + run.size_bytes
        # A row of a raw log is an entry, so that nothing is gained by waiting.
        if route.form.schema is None or route.waiting_bytes >= route.form.entry_bytes:
            self._send(route)
        while self._held_bytes > MAX_GATHERED_BYTES:
            self._send(max(self._routes.values(), key=lambda one: one.held_bytes))

    def _send(self, route: _Route) -> None:
        if not route.waiting:
            return
        places = RowPlaces(self._partition, route.runs)
        for payloads, rows in payloads_of(iter(route.waiting), route.form, places):
            route.writer.append(payloads, rows)
        self._held_bytes -= route.held_bytes
        route.waiting, route.runs, route.waiting_bytes, route.held_bytes = [], [], 0, 0
