"""Measures what the tasks of one micro-batch cost the driver in our code: their plan, and the commit of their messages.

Spark calls a source's ``partitions`` and a sink's ``commit`` in Python processes beside the driver, and carries
partitions and messages as pickles. This does the same without Spark, for one task and for many, whose rows two workers
have written. The floor in the same run is a source and a sink in Python that do nothing. Figures are milliseconds by
the clock and CPU of this process, medians of the rounds; ``of_a_task`` is what each further task costs, in µs. To run
the tasks is Spark's part, which ``stream_batches --tasks`` measures.
"""

from __future__ import annotations

import argparse
import pickle
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import InputPartition, WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StructField, StructType

from benchmarks.python_peers import DiscardingSink
from benchmarks.report import figure
from bk_spark.datasource.options.parse import parse_options
from bk_spark.datasource.source import BookKeeperDataSource
from bk_spark.datasource.writing.idle_ledgers import IdleLedgers
from bk_spark.datasource.writing.target_log import find_or_make_log
from bk_spark.datasource.writing.write_task import TaskMessage, write_task
from bk_spark.log.formats.message import CommitMessage
from bk_spark.log.formats.schema_merge import ANY_CASE
from bookie_server.local import LocalCluster

NAME: Final = "stream_driver"
_SCHEMA: Final = StructType([StructField("value", BinaryType())])
_WORKERS: Final = 2
#: As Spark pickles partitions.
_pickled: Final[Callable[[object], bytes]] = cloudpickle.dumps


@dataclass(frozen=True, slots=True)
class Cost:
    took_ms: float
    cpu_ms: float


def _cost(work: Callable[[], object]) -> Cost:
    cpu_s, began_s = time.process_time(), time.perf_counter()
    work()
    return Cost((time.perf_counter() - began_s) * 1e3, (time.process_time() - cpu_s) * 1e3)


class Writes:
    """A query that writes to a log of its own, in batches of ``tasks`` tasks with one row each."""

    def __init__(self, uri: str, tasks: int) -> None:
        self.log = f"bench-{uuid.uuid4().hex[:12]}"
        raw = {"metadataServiceUri": uri, "log": self.log, "entryFormat": "raw"}
        self._options = parse_options(raw, writing=True, streaming=True)
        self._target = find_or_make_log(self._options, _SCHEMA)
        self._writer = BookKeeperDataSource(raw).streamWriter(_SCHEMA, overwrite=False)
        self._tasks = tasks
        self._query, self._run = str(uuid.uuid4()), str(uuid.uuid4())
        self._caches = [IdleLedgers() for _ in range(_WORKERS)]
        self._batch_id = 0

    def commit(self) -> Cost:
        """Write a batch, and return what its commit cost."""
        messages = [pickle.dumps(self._task(partition)) for partition in range(self._tasks)]
        batch_id, self._batch_id = self._batch_id, self._batch_id + 1
        return _cost(lambda: self._writer.commit([pickle.loads(each) for each in messages], batch_id))

    def _task(self, partition: int) -> WriterCommitMessage:
        rows = pa.record_batch({"value": pa.array([b"0123456789"], pa.binary())})
        cache = self._caches[partition % _WORKERS]
        ranges, version = write_task(
            iter([rows]), self._target, self._options, self._query, self._run, partition, cache, ANY_CASE
        )
        about = self._target.place.log_id, self._query, self._run, self._query, self._batch_id, partition
        return TaskMessage(CommitMessage(*about, ranges, self._batch_id, version, False))


class Reads:
    """A query that reads what was written to ``log``, all of it in one batch of ``tasks`` tasks or a few more."""

    def __init__(self, uri: str, log: str, tasks: int) -> None:
        raw = {"metadataServiceUri": uri, "log": log, "startingOffsets": "earliest", "minPartitions": str(tasks)}
        self._reader: Any = BookKeeperDataSource(raw).streamReader(_SCHEMA)
        self._start = self._reader.initialOffset()
        self._end = self._reader.latestOffset(self._start, ReadAllAvailable())
        self._tasks = tasks

    def partitions(self) -> Cost:
        """Return what the plan of the batch cost."""

        def plan() -> None:
            found = [_pickled(each) for each in self._reader.partitions(self._start, self._end)]
            assert self._tasks <= len(found) <= self._tasks + _WORKERS, len(found)

        return _cost(plan)


def _floor_commit(tasks: int) -> Cost:
    message = pickle.dumps(WriterCommitMessage())
    writer = DiscardingSink({}).streamWriter(_SCHEMA, overwrite=False)
    return _cost(lambda: writer.commit([pickle.loads(message) for _ in range(tasks)], 0))


def _floor_partitions(tasks: int) -> Cost:
    return _cost(lambda: [_pickled(InputPartition(number)) for number in range(tasks)])


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(
        prog=f"benchmarks {NAME}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="bk-bench-") as directory,
        LocalCluster(Path(directory), bookies=3) as cluster,
    ):
        uri = cluster.metadata_service_uri
        written = {tasks: Writes(uri, tasks) for tasks in (1, options.tasks)}
        for each in written.values():
            each.commit()  # the first batch makes connections and ledgers
        full = written[options.tasks].log
        read = {tasks: Reads(uri, full, tasks) for tasks in written}
        ways: dict[str, Callable[[int], Cost]] = {
            "commit": lambda tasks: written[tasks].commit(),
            "partitions": lambda tasks: read[tasks].partitions(),
            "commit.floor": _floor_commit,
            "partitions.floor": _floor_partitions,
        }
        for name, way in ways.items():
            _tell(name, options.tasks, {tasks: [way(tasks) for _ in range(options.rounds)] for tasks in written})


def _tell(name: str, many: int, costs: dict[int, list[Cost]]) -> None:
    took_ms = {tasks: statistics.median(cost.took_ms for cost in found) for tasks, found in costs.items()}
    cpu_ms = {tasks: statistics.median(cost.cpu_ms for cost in found) for tasks, found in costs.items()}
    for tasks in costs:
        figure(NAME, f"{name}.{tasks}", took_ms[tasks], "ms", cpu_ms=round(cpu_ms[tasks], 2))
    further = many - 1
    figure(
        NAME,
        f"{name}.of_a_task",
        (took_ms[many] - took_ms[1]) / further * 1e3,
        "µs",
        cpu_us=round((cpu_ms[many] - cpu_ms[1]) / further * 1e3, 1),
    )
