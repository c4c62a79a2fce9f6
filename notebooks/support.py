"""What the notebooks share: a place for their files, a quiet Spark, a query to be killed, texts without ids."""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

_TOLD = re.compile(r"batch (\d+)")


def workspace() -> Path:
    """A new directory that goes when the kernel ends. What Python programs log goes to a file there."""
    directory = Path(tempfile.mkdtemp(prefix="bk-notebook-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    logging.basicConfig(filename=directory / "python.log", force=True)
    return directory


def spark_session(directory: Path) -> SparkSession:
    """Spark as a reader would start it on one machine, but that its files and its log are in ``directory``."""
    # Tasks run in the Python that runs this. Tests give one that starts them sooner.
    python = os.environ.get("NOTEBOOK_PYTHON", sys.executable)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = python
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("bk_spark notebook")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        # Short runs: compiling quickly is worth more than compiling well.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.local.dir", str(directory / "local"))
    )
    with _output_to(directory / "spark.log"):
        return builder.getOrCreate()


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Processes started here write to ``path``, for as long as they live: the JVM, and Spark's Python workers."""
    kept = {number: os.dup(number) for number in (1, 2)}
    try:
        with path.open("ab") as log:
            for number in kept:
                os.dup2(log.fileno(), number)
        yield
    finally:
        for number, copy in kept.items():
            os.dup2(copy, number)
            os.close(copy)


class Driver:
    """A Spark driver of its own: ``program`` and all that it starts. It prints the number of each batch it ends."""

    def __init__(self, program: str, *arguments: object, log: Path) -> None:
        #: Numbers of the batches that it has told of.
        self.batches: list[int] = []
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, program, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        atexit.register(self.kill)

    def wait_for(self, batch: int) -> None:
        """Until it has told of ``batch``, or a later one."""
        while not self.batches or self.batches[-1] < batch:
            if not self._read():
                raise RuntimeError(f"the query ended, status {self._process.wait()}: see its log")

    def wait(self) -> int:
        """Until it ends by itself; its exit status."""
        while self._read():
            pass
        return self._process.wait()

    def kill(self) -> None:
        """SIGKILL to its JVM and its Python at once."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _read(self) -> bool:
        line = self._process.stdout.readline()
        if told := _TOLD.fullmatch(line.strip()):
            self.batches.append(int(told[1]))
        return bool(line)


def forget_last_commit(checkpoint: Path) -> int:
    """Take away the newest note "this batch is done" from a query's checkpoint; the number of the batch. A plan of the
    next batch goes, too: with it Spark would begin there, and repeat no batch."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    offsets = checkpoint / "offsets"
    for directory, batch in ((commits, last), (offsets, last + 1)):
        for path in (directory / str(batch), directory / f".{batch}.crc"):
            path.unlink(missing_ok=True)
    return last


def told(error: Exception) -> str:
    """Kind and text of an error, without what differs from run to run: ids, addresses, ledgers, processes."""
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<id>", str(error))
    text = re.sub(r"127\.0\.0\.1:\d+", "<bookie>", text)
    text = re.sub(r"ledger \d+", "ledger <n>", text)
    text = re.sub(r"process \d+", "process <n>", text)
    text = re.sub(r"host [^ ,;]+, ", "host <name>, ", text)
    return f"{type(error).__name__}: {text}"
