"""Measures how long adds wait while the bookie rewrites entry logs.

Our client fills entry logs of 64 MiB of one bookie with sixteen ledgers in turn. Then it adds small entries at a steady
rate, and each waits for its acknowledgement. After a calm time every second ledger is deleted, so that each full log is
rewritten. A latency counts from when the add was due. ``growth`` compares the two times within the run; how long a sync
takes depends on the disk, and on who else uses it.

Entries of the default size are so large that ``compactionRateByEntries`` hardly slows the rewriting down: the worst
case.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.report import figure, p99
from bk_spark.bookie.blocking import BlockingClient, BlockingWriter
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalCluster

NAME: Final = "compaction"
_QUORUM: Final = Quorum(1, 1, 1)
_LEDGERS: Final = 16
_LOG_BYTES: Final = 64 << 20
_QUICK_LOG_BYTES: Final = 2 << 20
_ADDS_PER_S: Final = 200
_ADD_BYTES: Final = 1_000
_FLUSHED_S: Final = 3.0
_TIMEOUT_S: Final = 120.0


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks compaction", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=2_000, help="in entry logs; half of it is rewritten")
    parser.add_argument("--size", type=int, default=500_000, help="bytes of an entry in these logs")
    parser.add_argument("--calm", type=float, default=5.0, help="seconds")
    parser.add_argument("--quick", action="store_true", help="20 MB, and one second")
    parser.add_argument("--directory", help="where the servers' files go")
    options = parser.parse_args(arguments)
    if options.quick:
        options.megabytes, options.calm = 20, 1.0
    log_bytes = _QUICK_LOG_BYTES if options.quick else _LOG_BYTES
    settings = {
        "logSizeLimit": str(log_bytes),
        "flushInterval": "1000",
        "journalMaxBackups": "0",
        "gcWaitTime": "1000",
        "minorCompactionInterval": "0",
        "majorCompactionInterval": "2",
    }
    with (
        tempfile.TemporaryDirectory(prefix="bk-bench-", dir=options.directory) as directory,
        LocalCluster(Path(directory) / "cluster", bookies=1, bookie_settings=settings) as cluster,
        BlockingClient(cluster.metadata_service_uri) as client,
    ):
        ledger_ids = _fill(client, options.megabytes * 1_000_000 // options.size // _LEDGERS, options.size)
        time.sleep(_FLUSHED_S)
        old = [path for path in Path(directory).rglob("ledgers/**/*.log") if path.stat().st_size > log_bytes // 2]
        # The newest one is not rewritten while it may grow.
        old.remove(max(old, key=lambda path: int(path.stem, 16)))
        old_bytes = sum(path.stat().st_size for path in old)
        writer = client.create(quorum=_QUORUM)
        calm = _adds(writer, lambda seconds: seconds < options.calm)
        for ledger_id in ledger_ids[::2]:
            client.delete(ledger_id)
        _adds(writer, lambda seconds: not list(Path(directory).rglob("*.compacting")) and len(old) == _left(old))
        begun_s = time.monotonic()
        meanwhile = _adds(writer, lambda seconds: _left(old) > 0)
        took_s = time.monotonic() - begun_s
    figure(NAME, "rewritten", old_bytes / 2e6 / took_s, "MB/s", logs=len(old), seconds=round(took_s, 2))
    for name, of in (("p50", statistics.median), ("p99", p99)):
        figure(NAME, f"calm.{name}", of(calm), "ms", adds=len(calm))
        figure(NAME, f"meanwhile.{name}", of(meanwhile), "ms", adds=len(meanwhile))
        figure(NAME, f"growth.{name}", of(meanwhile) / of(calm), "ratio")


def _fill(client: BlockingClient, entries: int, size_bytes: int) -> list[int]:
    """Write ledgers of so many entries, an entry of each in turn. Return their ids."""
    writers = [client.create(quorum=_QUORUM) for _ in range(_LEDGERS)]
    payload = bytes(size_bytes)
    for _ in range(max(1, entries)):
        for writer in writers:
            writer.append(payload)
    for writer in writers:
        writer.close()
    return [writer.ledger_id for writer in writers]


def _left(paths: list[Path]) -> int:
    return sum(path.exists() for path in paths)


def _adds(writer: BlockingWriter, goes_on: Callable[[float], bool]) -> list[float]:
    """Add at the steady rate while ``goes_on(seconds since the begin)``. Return the latencies in ms."""
    payload, latencies_ms, begun_s = bytes(_ADD_BYTES), list[float](), time.monotonic()
    while goes_on(seconds := time.monotonic() - begun_s) or not latencies_ms:
        if seconds > _TIMEOUT_S:
            raise SystemExit("no log is rewritten in time")
        due_s = begun_s + len(latencies_ms) / _ADDS_PER_S
        time.sleep(max(0.0, due_s - time.monotonic()))
        writer.append(payload)
        writer.flush()
        latencies_ms.append(1000 * (time.monotonic() - due_s))
    return latencies_ms
