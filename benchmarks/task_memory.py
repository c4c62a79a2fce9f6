"""Measures the memory of a Spark task that writes or reads our logs, beyond that of a task of the ceiling.

The frames and ways are those of ``spark_peers``, in one session with two cores, two tasks at once. The ceiling is a
sink in Python that drops its batches, and a source in Python that yields them from memory: what Spark itself needs.
Each task gets a Python process of its own, so that no way finds what another has left. Memory is what is resident in
that process and belongs to no file, looked at every few milliseconds. Of each round the highest counts; figures are
medians of the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.processes import own_mib, spark_workers
from benchmarks.python_peers import DiscardingSink, MemorySource
from benchmarks.report import figure
from benchmarks.spark_peers import RAW_SIZES, Peers, memory, rows_of, saved
from benchmarks.spark_session import session
from bookie_server.local import LocalCluster

NAME: Final = "task_memory"
_LOOK_INTERVAL_S: Final = 0.005
#: To look for new processes takes longer than to look at one.
_LOOKS_FOR_EACH_SEARCH: Final = 10


class _Highest:
    """The highest memory of a worker of Spark, while it is looked at."""

    def __init__(self) -> None:
        self.mib = 0.0
        self._ended = threading.Event()

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        thread = threading.Thread(target=self._look)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _look(self) -> None:
        looks, pids = 0, list[int]()
        while not self._ended.wait(_LOOK_INTERVAL_S):
            if looks % _LOOKS_FOR_EACH_SEARCH == 0:
                pids = spark_workers()
            self.mib = max([self.mib, *map(own_mib, pids)])
            looks += 1


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(
        prog=f"benchmarks {NAME}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=0.5, help="multiplies the number of rows")
    parser.add_argument("--frames", nargs="+", choices=[*RAW_SIZES, "flights"], default=[*RAW_SIZES, "flights"])
    options = parser.parse_args(arguments)
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bk-bench-")))
        cluster = stack.enter_context(LocalCluster(directory / "cluster", bookies=3, start_timeout_ms=120_000))
        spark = stack.enter_context(session(directory, reuses_workers=False))
        spark.dataSource.register(MemorySource)
        spark.dataSource.register(DiscardingSink)
        for name in options.frames:
            file = saved(rows_of(name, options.scale), directory / f"{name}.arrow")
            frame = memory(spark, file).persist()
            frame.count()
            ways = Peers(spark, cluster, None, file).of(frame.schema)
            highest: dict[tuple[str, str], list[float]] = defaultdict(list)
            for number in range(options.rounds):
                for way_name in list(ways)[:: -1 if number % 2 else 1]:
                    way, log = ways[way_name], f"{name}-{way_name}-{number}"
                    of_write, of_read = _Highest(), _Highest()
                    with of_write.watch():
                        way.write(frame, log)
                    with of_read.watch():
                        way.read(log).write.format("noop").mode("overwrite").save()
                    highest["write", way_name].append(of_write.mib)
                    highest["read", way_name].append(of_read.mib)
            frame.unpersist()
            for (direction, way_name), mib in highest.items():
                least = statistics.median(highest[direction, "ceiling"])
                beyond = {} if way_name == "ceiling" else {"beyond_ceiling": round(statistics.median(mib) - least, 1)}
                rounds = [round(one, 1) for one in mib]
                figure(NAME, f"{name}.{direction}.{way_name}", statistics.median(mib), "MiB", rounds=rounds, **beyond)
