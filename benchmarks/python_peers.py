"""Minimal sources and sinks in Python: the lower bound for anything in Python."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType


class LeastSource(DataSource):
    """``format("least")``: the same ``rows`` rows in each batch, in one partition."""

    @classmethod
    def name(cls) -> str:
        return "least"

    def schema(self) -> str:
        return "value binary"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's)
        return _LeastReader(int(self.options["rows"]))


class _LeastReader(DataSourceStreamReader):
    def __init__(self, rows: int) -> None:
        self._rows = rows

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 (Spark's)
        return {"batch": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 (Spark's)
        return {"batch": start["batch"] + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [] if start == end else [InputPartition(end["batch"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": pa.array([b"0123456789"] * self._rows, pa.binary())})


class DiscardingSink(DataSource):
    """``format("discarding")``: reads the rows and discards them."""

    @classmethod
    def name(cls) -> str:
        return "discarding"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _DiscardingBatchWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 (Spark's)
        return _DiscardingWriter()


class _DiscardingWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's)
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's)
        pass


class _DiscardingBatchWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class MemorySource(DataSource):
    """``format("memory-file")``: the batches of the Arrow file ``path``, which stays in memory, in ``tasks`` tasks.

    With the option ``rows``, so many rows: each task has the batches again and again. It does nothing but hand them to
    Spark, so no source in Python is faster with batches like these.
    """

    @classmethod
    def name(cls) -> str:
        return "memory-file"

    def schema(self) -> StructType:
        with pa.ipc.open_file(pa.memory_map(self.options["path"])) as file:
            return from_arrow_schema(file.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        rows = self.options.get("rows")
        return _MemoryReader(self.options["path"], int(self.options["tasks"]), None if rows is None else int(rows))


class _MemoryReader(DataSourceReader):
    def __init__(self, path: str, tasks: int, rows: int | None) -> None:
        self._path, self._tasks, self._rows = path, tasks, rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.ipc.open_file(pa.memory_map(self._path)) as file:
            if self._rows is None:
                for number in range(partition.value, file.num_record_batches, self._tasks):
                    yield file.get_batch(number)
                return
            batches, left = file.read_all().to_batches(), self._rows // self._tasks
        for batch in itertools.cycle(batches):
            if left <= 0:
                return
            yield batch.slice(0, min(left, batch.num_rows))
            left -= batch.num_rows
