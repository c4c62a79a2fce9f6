"""Compares a log of micro-batches, each with one row per task, and the same rows in one segment per task. Both are read
by one task after the other, and by Spark. Also measures the start of a query over logs without writers, its
``latestOffset``, and the planning of a batch over them.

With ``--old DIR``, another checkout of this repository, its code is also measured: in turn with this one's, on one
cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import figure
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.log import CommitMessage, CommitRequest, EntryFormat, LedgerRange, Log, LogSettings, LogStore
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalCluster

NAME = "tiny_segments"
VALUE_BYTES = 100
_ROWS_AT_ONCE = 1000
_ROOT = Path(__file__).parents[1]
_READER = Path(__file__).with_name("tiny_segments_reader.py")


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {NAME}", description=__doc__)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--tasks", type=int, default=8, help="ledgers that are written side by side")
    parser.add_argument("--logs", type=int, default=300, help="idle ones")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--spark", action="store_true", help="read with Spark, too")
    parser.add_argument("--old", type=Path, help="a checkout to measure in turn with this one")
    options = parser.parse_args(arguments)
    checkouts = {"": _ROOT} | ({"old.": options.old.resolve()} if options.old else {})
    with (
        tempfile.TemporaryDirectory(prefix="bk-bench-") as directory,
        LocalCluster(Path(directory), bookies=3) as cluster,
        BlockingClient(cluster.metadata_service_uri) as client,
    ):
        uri, store = cluster.metadata_service_uri, LogStore.of(client)
        _make(store, "tiny", options.rows, options.tasks, batch_rows=1)
        _make(store, "few", options.rows, options.tasks, batch_rows=options.rows // options.tasks)
        _make(store, "warm-up", 10, 2, batch_rows=5)
        for number in range(options.logs):
            _make(store, f"idle-{number}", 1, 1, batch_rows=1)
        for what in ["read", *(["spark"] if options.spark else [])]:
            _tell_reads(what, uri, checkouts, options.rounds)
        for prefix, checkout in checkouts.items():
            found = _run(checkout, "idle", uri, "idle-.*")
            figure(NAME, f"{prefix}latest_offset", statistics.median(found["latest_ms"]), "ms", logs=found["logs"])
            figure(NAME, f"{prefix}first_offset", found["first_s"], "s", logs=found["logs"])
            figure(NAME, f"{prefix}batch_plan", found["batch_s"], "s", logs=found["logs"])


def _tell_reads(what: str, uri: str, checkouts: dict[str, Path], rounds: int) -> None:
    seconds: dict[tuple[str, str], list[float]] = {}
    splits: dict[tuple[str, str], int] = {}
    for _ in range(rounds):
        for prefix, checkout in checkouts.items():
            for log in ("tiny", "few"):
                found = _run(checkout, what, uri, log, *(["warm-up"] if what == "spark" else []))
                seconds.setdefault((prefix, log), []).append(found["read_s"] + found.get("plan_s", 0.0))
                splits[prefix, log] = found.get("splits", 0)
    for prefix in checkouts:
        medians = {log: statistics.median(seconds[prefix, log]) for log in ("tiny", "few")}
        for log, median in medians.items():
            figure(NAME, f"{prefix}{what}.{log}", median, "s", splits=splits[prefix, log])
        figure(NAME, f"{prefix}{what}.tiny_to_few", medians["tiny"] / medians["few"], "ratio", aim=1.5)


def _run(checkout: Path, *arguments: str) -> dict[str, Any]:
    environment = os.environ | {"PYTHONPATH": str(checkout), "PYSPARK_PYTHON": sys.executable}
    # Spark's workers search their working directory for packages first.
    command = [sys.executable, str(_READER), *arguments]
    ran = subprocess.run(command, cwd=checkout, env=environment, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def _make(store: LogStore, name: str, rows: int, tasks: int, *, batch_rows: int) -> Log:
    """Create a log in one commit, with the segments of batches in which each task writes ``batch_rows`` rows."""
    settings = LogSettings.create(Quorum(3, 3, 2), DigestType.CRC32C, EntryFormat.RAW, b"")
    log = store.create_log(name, settings, b"")
    ledgers, per_task = [], rows // tasks
    for _ in range(tasks):
        writer = log.create_ledger(name, "run")
        for _ in range(0, per_task, _ROWS_AT_ONCE):
            writer.append_many([os.urandom(VALUE_BYTES)] * min(per_task, _ROWS_AT_ONCE))
        log.ledgers.close(writer.ledger_id)
        ledgers.append(writer.ledger_id)
    messages: list[CommitMessage] = []
    for first in range(0, per_task, batch_rows):
        for ledger_id in ledgers:
            part = LedgerRange(ledger_id, first, first + batch_rows - 1, batch_rows, batch_rows * VALUE_BYTES)
            messages.append(CommitMessage(log.log_id, name, "run", "batch", 0, len(messages), (part,)))
    log.commit(CommitRequest.from_messages(messages))
    return log
