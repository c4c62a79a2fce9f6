"""Measures a log of a million segments: open it, read its tail, plan its last rows and all of it, in fresh processes.

Its pages are in ZooKeeper alone, or in index ledgers; one run measures both, in turn. Also reports what ZooKeeper
stores of them.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.long_logs import ROLL_BATCHES, TASKS, Reading, kept_bytes, make_log, read_in_fresh_process
from benchmarks.report import figure
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.log import Log, LogStore
from bookie_server.local import LocalCluster

NAME = "log_list"
ROOT = "/bk_spark/logs"
SEGMENTS = 1_000_000
_ROUNDS = 3
_START_TIMEOUT_MS = 120_000


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {NAME}", description=__doc__)
    parser.add_argument("--segments", type=int, default=SEGMENTS)
    segments = parser.parse_args(arguments).segments
    with (
        tempfile.TemporaryDirectory() as directory,
        LocalCluster(Path(directory), bookies=3, start_timeout_ms=_START_TIMEOUT_MS) as cluster,
        BlockingClient(cluster.metadata_service_uri) as client,
    ):
        store, names = LogStore.of(client, ROOT), {"znodes": False, "index": True}
        for name, indexed in names.items():
            started = time.perf_counter()
            log = make_log(store, name, segments, indexed=indexed)
            figure(NAME, f"{name}.build", time.perf_counter() - started, "s", segments=segments)
            _tell_kept(client, name, segments)
        _tell_ledger(log, client.zookeeper)
        for everything, step in ((False, "plan_last"), (True, "plan_all")):
            found: dict[str, list[Reading]] = {name: [] for name in names}
            for _ in range(_ROUNDS):
                for name in names:
                    uri = cluster.metadata_service_uri
                    found[name].append(read_in_fresh_process(uri, ROOT, name, everything=everything))
            for name, readings in found.items():
                _tell(f"{name}.{step}", readings)


def _tell_kept(client: BlockingClient, name: str, segments: int) -> None:
    kept = kept_bytes(client.zookeeper, f"{ROOT}/{name}")
    figure(NAME, f"{name}.kept", kept / 1024, "KiB in ZooKeeper")
    figure(NAME, f"{name}.kept.segment", kept / segments, "bytes")
    figure(NAME, f"{name}.kept.micro_batch", kept / (segments / TASKS), "bytes", tasks=TASKS, aim=64)


def _tell_ledger(log: Log, zk: ZooKeeper) -> None:
    """Print what a ledger of the stream adds while its segments are in the list: its metadata and its registration."""
    register = log.ledger_registrar("stream", "run")
    before = kept_bytes(zk, log.paths.head)
    ledger_id = log.ledgers.create(register).ledger_id
    log.ledgers.close(ledger_id)
    kept = kept_bytes(zk, log.paths.head) - before + kept_bytes(zk, log.ledgers.ledger_path(ledger_id))
    figure(NAME, "ledger.kept", kept, "bytes")
    figure(NAME, "ledger.kept.micro_batch", TASKS * kept / ROLL_BATCHES, "bytes", tasks=TASKS, batches=ROLL_BATCHES)


def _tell(name: str, readings: list[Reading]) -> None:
    """Print medians. ``seconds`` count from the start of the process, so each step includes the steps before it."""
    more = {"segments": readings[0].segments, "splits": readings[0].splits}
    for step in readings[0].seconds:
        seconds = [reading.seconds[step] for reading in readings]
        cpu = statistics.median(reading.cpu_seconds[step] for reading in readings)
        figure(
            NAME, f"{name}.{step}", statistics.median(seconds), "s", fastest=min(seconds), cpu_s=round(cpu, 3), **more
        )
    figure(NAME, f"{name}.peak", max(reading.peak_mib["plan"] for reading in readings), "MiB", aim=300)
    total = statistics.median(reading.seconds["plan"] for reading in readings)
    figure(NAME, f"{name}.total", total, "s", aim=2.0)


if __name__ == "__main__":
    main()
