"""Measures what reads as of a commit, and writes by a log column, cost beside the plain ones, in one run.

A log of many commits, one of which overwrites, is planned as of its middle (by offset, time and transaction) and as it
is. Then the same rows are written as entries of one log, and by a column to several logs, without Spark.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from benchmarks.report import figure, timed
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.log import CommitMessage, CommitRequest, EntryFormat, LedgerRange, Log, LogSettings, LogStore
from bk_spark.log.core.tail.roll import RollLimits
from bk_spark.log.formats.znodes import Head, encode_head
from bk_spark.log.positions.texts import Time, Transaction
from bk_spark.log.tables.append_ledgers import TaskLedgers
from bk_spark.log.tables.append_rows import EntryForm, append_rows
from bk_spark.log.tables.routed_rows import RoutedRows
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.metadata.znodes import SetOp
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalCluster

NAME = "past_reads"
_SETTINGS = LogSettings.create(Quorum(3, 3, 2), DigestType.CRC32C, EntryFormat.RAW, b"")
_LEDGER = 1
_SEGMENTS_A_COMMIT = 8
_BATCH_ROWS = 10_000
_BATCHES = 20
_LOGS = 8


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {NAME}", description=__doc__)
    parser.add_argument("--commits", type=int, default=2_000)
    commits = parser.parse_args(arguments).commits
    with (
        tempfile.TemporaryDirectory() as directory,
        LocalCluster(Path(directory), bookies=3) as cluster,
        BlockingClient(cluster.metadata_service_uri) as client,
    ):
        store = LogStore.of(client)
        _past(store, commits)
        _routed(store)


def _past(store: LogStore, commits: int) -> None:
    unrecorded = store.create_log("unrecorded", _SETTINGS, b"")
    # As the first release made it.
    unrecorded.zookeeper.transaction([SetOp(unrecorded.paths.head, encode_head(Head(unrecorded.log_id)), -1)])
    log = store.create_log("past", _SETTINGS, b"")
    seconds = {one.name: 0.0 for one in (unrecorded, log)}
    for one in (unrecorded, log):
        one.zookeeper.transaction(one.ledger_registrar("app", "run")(_LEDGER + len(one.name)))
    for batch in range(commits):
        for one in (unrecorded, log):
            started = time.process_time()
            _commit(one, batch, overwrite=batch == commits // 4)
            seconds[one.name] += time.process_time() - started
    for name, spent in seconds.items():
        ratio = round(spent / seconds["unrecorded"], 2)
        figure(NAME, f"commit, {name}", 1e3 * spent / commits, "ms of processor time", commits=commits, ratio=ratio)
    middle = log.snapshot().next_offset // 2
    moment = next(commit.time_ms for commit in log.snapshot().commits() if commit.start_offset <= middle)
    plain = _planned(lambda: sum(len(table) for table in log.snapshot().tables(middle)))
    figure(NAME, "plain", plain, "ms")
    for name, as_of in (
        ("offset", middle),
        ("time", Time(moment)),
        ("transaction", Transaction("app", commits // 2)),
    ):
        found = _planned(partial(_count, log, as_of))
        figure(NAME, f"as of {name}", found, "ms", ratio=round(found / plain, 2))


def _count(log: Log, as_of: int | Time | Transaction) -> int:
    return sum(len(table) for table in log.as_of(as_of).tables())


def _commit(log: Log, batch: int, *, overwrite: bool) -> None:
    ledger_id, first = _LEDGER + len(log.name), 2 * _SEGMENTS_A_COMMIT * batch
    parts = tuple(
        LedgerRange(ledger_id, first + 2 * part, first + 2 * part, 1, 100) for part in range(_SEGMENTS_A_COMMIT)
    )
    message = CommitMessage(log.log_id, "app", "run", "q", batch, 0, parts)
    log.commit(CommitRequest.from_messages([message], overwrite=overwrite))


def _planned(work: Callable[[], object]) -> float:
    return 1e3 * timed(work, runs=9, warmups=2).median


def _routed(store: LogStore) -> None:
    names = [f"routed-{number}" for number in range(_LOGS)]
    logs = {name: store.create_log(name, _SETTINGS, b"") for name in names}
    one = store.create_log("one", _SETTINGS, b"")
    rows = [
        pa.RecordBatch.from_pydict(
            {
                "value": pa.array([b"x" * 100] * _BATCH_ROWS, pa.binary()),
                "log": [names[row % _LOGS] for row in range(_BATCH_ROWS)],
            }
        )
        for _ in range(_BATCHES)
    ]
    count = _BATCH_ROWS * _BATCHES
    plain = timed(lambda: append_rows(_without_log(rows), _ledgers(one), _form(one), 0)).median
    figure(NAME, "one log", count / plain, "rows/s")

    def routed() -> object:
        return RoutedRows("log", lambda name: (_ledgers(logs[name]), _form(logs[name])), _LOGS, 0).append(iter(rows))

    several = timed(routed).median
    figure(NAME, f"{_LOGS} logs by column", count / several, "rows/s", ratio=round(plain / several, 2))


def _without_log(rows: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (batch.drop_columns(["log"]) for batch in rows)


def _ledgers(log: Log) -> TaskLedgers:
    return TaskLedgers(log, "app", "run", RollLimits(1 << 30, 3_600_000, None))


def _form(log: Log) -> EntryForm:
    return EntryForm(None, log.ledgers.client.config.max_payload_bytes(log.settings.digest_type), None, 1 << 20)
