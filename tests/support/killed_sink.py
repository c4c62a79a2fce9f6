"""The data source with a sink whose worker dies between a task's last add and its message."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from bk_spark.datasource.options.options import SourceOptions
from bk_spark.datasource.options.parse import parse_options
from bk_spark.datasource.source import BookKeeperDataSource
from bk_spark.datasource.stream.writer import StreamWriter


def arm(checkpoint: Path) -> Path:
    """Kill the next task of partition 1 of the query with this checkpoint. The file is removed when it has died."""
    armed = checkpoint.with_suffix(".armed")
    armed.touch()
    return armed


class KilledSource(BookKeeperDataSource):
    """``format("bookkeeper-killed")``."""

    @classmethod
    def name(cls) -> str:
        return "bookkeeper-killed"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 (Spark's)
        armed = Path(self.options["checkpointlocation"]).with_suffix(".armed")
        writer = _KilledWriter(parse_options(self.options, writing=True, streaming=True), schema, overwrite, armed)
        if not self._for_commits:
            writer.prepare()
        return writer


class _KilledWriter(StreamWriter):
    def __init__(self, options: SourceOptions, schema: StructType, overwrite: bool, armed: Path) -> None:
        super().__init__(options, schema, overwrite)
        self._armed = armed

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        message = super().write(iterator)
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 1 and self._armed.exists():
            self._armed.unlink()
            os._exit(9)
        return message
