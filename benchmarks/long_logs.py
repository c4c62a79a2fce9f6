"""Creates logs with very long lists, and runs a process that opens one and plans to read it.

The list is that of a stream: eight tasks, a micro-batch per second, ledgers rolled every hour. Only the list exists,
not its ledgers, since planning does not need them. It is written through the log's own change machine, without a commit
message for each task.

``python -m benchmarks.long_logs URI ROOT NAME WHAT START`` is the process. It plans ``WHAT``, the
``last`` rows or ``all``. ``START`` is when it was started, in seconds of Unix time. It prints one JSON object.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.processes import peak_resident_mib
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.log import EntryFormat, Log, LogSettings, LogSnapshot, LogStore, SegmentTable
from bk_spark.log.core.append import plan_append, read_head, read_tail
from bk_spark.log.core.index_move import move_steps
from bk_spark.log.core.plan import AlreadyDone, Plan, Readings
from bk_spark.log.entries.pieces import Pieces, cut_splits
from bk_spark.log.formats.commits import CommitKind, CommitRecord
from bk_spark.log.formats.names import LogPaths
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.metadata.znodes import CheckOp
from bk_spark.protocol.quorum import Quorum

PASSWORD: Final = b"secret"
TASKS: Final = 8
LAST_ROWS: Final = 1000
SPLIT_BYTES: Final = 128 << 20
_START_MS: Final = 1_760_000_000_000
ROLL_BATCHES: Final = 3600
_AT_ONCE: Final = 16_000 * TASKS


def stream(segments: int) -> Iterator[SegmentTable]:
    """Yield the list, in parts."""
    rng = np.random.default_rng(7)
    offset, time_ms = 0, _START_MS
    next_entry = np.zeros(TASKS, np.int64)
    for start in range(0, segments, _AT_ONCE):
        count = min(_AT_ONCE, segments - start) // TASKS
        batch = start // TASKS + np.arange(count)
        rows = rng.normal(2_000, 300, (count, TASKS)).astype(np.int64)
        size_bytes = (rows * 100 * rng.normal(1, 0.02, (count, TASKS))).astype(np.int64)
        first = next_entry + np.cumsum(rows, axis=0) - rows
        next_entry = next_entry + rows.sum(axis=0)
        base = offset + np.cumsum(rows.ravel()) - rows.ravel()
        times = time_ms + np.cumsum(1000 + rng.integers(-60, 60, count))
        offset, time_ms = int(base[-1] + rows.ravel()[-1]), int(times[-1])
        ledgers = 70_000 + TASKS * (batch // ROLL_BATCHES)[:, None] + np.arange(TASKS)
        commit_times = np.repeat(times, TASKS)
        columns = (ledgers, first, rows, base.reshape(-1, TASKS), rows, size_bytes, commit_times, 0 * rows)
        yield SegmentTable(*(column.ravel().astype(np.int64) for column in columns))


class AppendTable:
    """The change that appends segments, whatever their ledgers."""

    def __init__(self, paths: LogPaths, table: SegmentTable) -> None:
        self.paths = paths
        self.table = table

    @property
    def what(self) -> str:
        return f"appending {len(self.table)} segments to log {self.paths.name}"

    @property
    def again(self) -> str:
        return "begin anew"

    def decide(self, readings: Readings, now_ms: int, maybe: int | None) -> AlreadyDone[int] | Plan[int]:
        read = read_head(readings, self.paths)
        if read.head.next_offset == self.table.end_offset:
            return AlreadyDone(self.table.end_offset)
        time_ms = int(self.table.commit_time_ms[-1])
        # One commit for all: those of a stream take hardly more room.
        record = CommitRecord(CommitKind.APPEND, len(self.table), time_ms)
        tail = read_tail(readings, self.paths, read.head)
        append = plan_append(readings, self.paths, read, self.table, time_ms, tail, record=record)
        operations = (CheckOp(self.paths.identity, -1), *append.operations)
        return Plan(append.preparations, operations, self.table.end_offset)


def make_log(store: LogStore, name: str, segments: int, *, indexed: bool) -> Log:
    """Create a log of ``segments`` segments. Its pages are in ZooKeeper or, except the newest, in index ledgers."""
    quorum = Quorum(3, 3, 2)
    settings = LogSettings.create(quorum, DigestType.CRC32C, EntryFormat.RAW, PASSWORD)
    log = store.create_log(name, settings, PASSWORD)
    for table in stream(segments):
        log.change(AppendTable(log.paths, table))
        if indexed:
            log.run(move_steps(log.paths, lambda: 0))
    return log


def kept_bytes(zk: ZooKeeper, path: str) -> int:
    """Return the bytes of all data and paths at and below ``path``."""
    znode = zk.get(path)
    size = 0 if znode is None else len(znode.data) + len(path)
    return size + sum(kept_bytes(zk, f"{path}/{name}") for name in zk.children(path) or ())


@dataclass(frozen=True, slots=True)
class Reading:
    """The process's report after each step: seconds since its start, CPU time (all threads) so far, and highest
    resident memory."""

    seconds: dict[str, float]
    cpu_seconds: dict[str, float]
    peak_mib: dict[str, float]
    segments: int
    splits: int


def read_in_fresh_process(uri: str, root: str, name: str, *, everything: bool) -> Reading:
    """Open a log, read its tail, and plan a read of its last rows or, with ``everything``, of all rows."""
    what = "all" if everything else "last"
    command = [sys.executable, "-m", "benchmarks.long_logs", uri, root, name, what, str(time.time())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise RuntimeError(f"the reading process failed:\n{done.stderr}")
    return Reading(**json.loads(done.stdout))


def _plan(name: str, snapshot: LogSnapshot, start: int) -> tuple[int, int]:
    """Return the numbers of segments and splits."""
    end = snapshot.next_offset
    pieces = Pieces.of_segments(name, snapshot.tables(start, end), start, end)
    return len(pieces), len(cut_splits(pieces, SPLIT_BYTES))


def main(uri: str, root: str, name: str, what: str, started: str) -> None:
    seconds: dict[str, float] = {}
    cpu: dict[str, float] = {}
    peak: dict[str, float] = {}

    def note(step: str) -> None:
        seconds[step] = round(time.time() - float(started), 4)
        cpu[step] = round(time.process_time(), 4)
        peak[step] = round(peak_resident_mib(os.getpid()), 1)

    note("imports")
    with BlockingClient(uri) as client:
        snapshot = LogStore.of(client, root).open_log(name, password=PASSWORD).snapshot()
        note("open")
        *_, last = snapshot.segments(snapshot.next_offset - 1)
        assert last.end_offset == snapshot.next_offset
        note("tail")
        segments, splits = _plan(name, snapshot, snapshot.next_offset - LAST_ROWS if what == "last" else 0)
        note("plan")
    print(
        json.dumps({"seconds": seconds, "cpu_seconds": cpu, "peak_mib": peak, "segments": segments, "splits": splits})
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
