"""Measures the CPU that Spark's Python workers spend on small tasks: batch writes and reads of ten rows a task.

The peer is the same code in workers that search everything they have imported for garbage after each task, as Spark
has it: there ``gc.freeze`` does nothing. Both run in sessions of their own, in turn. The median of the ratios of the
rounds is printed. Processor time is less disturbed by other work than time is.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from benchmarks.processes import cpu_seconds, spark_workers
from benchmarks.report import figure
from benchmarks.spark_session import session
from bookie_server.local import LocalCluster

NAME: Final = "small_tasks"
_TASKS: Final = 4
_ROWS: Final = 10 * _TASKS
_WARM_UPS: Final = 3
#: Python imports this module at each start.
_SEARCHING: Final = "import gc\ngc.freeze = lambda: None\n"


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {NAME}", description=__doc__)
    parser.add_argument("--jobs", type=int, default=20, help="writes and reads of four tasks each")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    found: dict[str, list[dict[str, float]]] = {"now": [], "peer": []}
    with (
        tempfile.TemporaryDirectory(prefix="bk-bench-") as text,
        LocalCluster(Path(text) / "cluster", bookies=3, start_timeout_ms=120_000) as cluster,
    ):
        directory = Path(text)
        (directory / "searching").mkdir()
        (directory / "searching" / "sitecustomize.py").write_text(_SEARCHING)
        for number in range(options.rounds):
            for name in sorted(found, reverse=number % 2 == 1):
                paths = [str(Path(__file__).parents[1]), *([str(directory / "searching")] if name == "peer" else [])]
                ran = subprocess.run(
                    [sys.executable, "-m", "benchmarks.small_tasks", cluster.metadata_service_uri, str(options.jobs)],
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                found[name].append(json.loads(ran.stdout.splitlines()[-1]))
    for kind in ("write", "read"):
        for name, runs in found.items():
            values = [run[kind] for run in runs]
            figure(NAME, f"{name}.{kind}", statistics.median(values), "ms of CPU a task", values=values)
        ratios = [now[kind] / peer[kind] for now, peer in zip(found["now"], found["peer"], strict=True)]
        figure(NAME, f"{kind}.ratio", statistics.median(ratios), "ratio", ratios=[round(each, 3) for each in ratios])


def _run(uri: str, jobs: int) -> None:
    with tempfile.TemporaryDirectory(prefix="bk-bench-") as directory, session(Path(directory)) as spark:
        options = {"metadataServiceUri": uri, "log": f"small-{os.getpid()}"}

        def write() -> None:
            rows = spark.range(0, _ROWS, 1, _TASKS).selectExpr("cast(id as string) as value")
            rows.write.format("bookkeeper").options(**options, entryFormat="raw").mode("append").save()

        def read() -> None:
            assert spark.read.format("bookkeeper").options(**options, minPartitions=_TASKS).load().count()

        def ms_a_task(job: Callable[[], None]) -> float:
            before_s = _workers_s()
            for _ in range(jobs):
                job()
            return round((_workers_s() - before_s) * 1000 / jobs / _TASKS, 2)

        for _ in range(_WARM_UPS):
            write()
            read()
        print(json.dumps({"write": ms_a_task(write), "read": ms_a_task(read)}))


def _workers_s() -> float:
    """Processor seconds so far of the workers for tasks."""
    total_s = 0.0
    for pid in spark_workers():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            total_s += cpu_seconds(pid)
    return total_s


if __name__ == "__main__":
    _run(sys.argv[1], int(sys.argv[2]))
