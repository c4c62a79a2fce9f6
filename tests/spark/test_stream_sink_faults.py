"""Streaming writes while processes are killed and suspended at the worst moments; and what they cost in ZooKeeper."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from bk_spark.log.store import LogStore
from tests.spark import stream_script
from tests.support.connector import Connector
from tests.support.killed_sink import KilledSource, arm
from tests.support.logs import listed_ledgers, registered_ledgers
from tests.support.process_tree import signal_tree, spark_workers
from tests.support.streams import (
    assert_numbers,
    committed,
    numbers,
    running,
    sink,
    wait_for_batch,
    wait_until,
)
from tests.support.zookeeper_proxy import CREATE, DELETE, MULTI, SET_DATA, Break, ZooKeeperProxy

ROWS, PARTITIONS = 20, 2
_PATIENCE_S = 200


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


@pytest.fixture
def proxy(connector: Connector) -> Iterator[ZooKeeperProxy]:
    """Between ZooKeeper and whoever uses :func:`_through`."""
    server = re.search(r"//([^/]+)/", connector.metadata_service_uri)
    assert server is not None
    with ZooKeeperProxy(server[1]) as proxy:
        yield proxy


def _through(proxy: ZooKeeperProxy, connector: Connector) -> str:
    return re.sub(r"//[^/]+/", f"//{proxy.address}/", connector.metadata_service_uri)


def _values(connector: Connector, log: str) -> list[int]:
    return [int(row.value) for row in connector.read(log).orderBy("offset").collect()]


# --- what a batch costs ---


def test_one_transaction_for_a_micro_batch_of_eight_tasks(
    connector: Connector, log: str, checkpoint: Path, proxy: ZooKeeperProxy, logs: LogStore
) -> None:
    """In steady state: no ledger is made, and nothing but the commit is written to ZooKeeper."""
    proxy.kinds = frozenset({MULTI, CREATE, DELETE, SET_DATA})
    frame = numbers(connector.spark, 80, 8).selectExpr("cast(number as string) as value")
    with running(sink(frame, _through(proxy, connector), log, checkpoint)) as query:
        wait_for_batch(query, 3)
        made = registered_ledgers(logs.open_log(log))
        requests, first = proxy.requests, committed(checkpoint)[-1]
        wait_for_batch(query, first + 8)
        last = committed(checkpoint)[-1]
        # One batch more may be under way.
        assert proxy.requests - requests <= last - first + 2
        assert registered_ledgers(logs.open_log(log)) == made
    assert len(made) <= 4
    assert_numbers(_values(connector, log), 80, 8)


# --- S1 ---


def test_s1_commit_fails_after_it_took_effect(
    connector: Connector, log: str, checkpoint: Path, proxy: ZooKeeperProxy, logs: LogStore
) -> None:
    """The process that commits dies when ZooKeeper has answered: Spark takes the batch for failed, calls abort and
    runs the batch again after a restart."""
    frame = numbers(connector.spark, ROWS, PARTITIONS).selectExpr("cast(number as string) as value")

    def kill_committers() -> None:
        for worker in spark_workers(os.getpid(), "python_streaming_sink_runner"):
            os.kill(worker, signal.SIGKILL)

    proxy.on_break = kill_committers
    with running(sink(frame, _through(proxy, connector), log, checkpoint)) as query:
        wait_for_batch(query, 1)
        proxy.breaks = [Break.AFTER]
        with pytest.raises(StreamingQueryException):
            query.awaitTermination(_PATIENCE_S)
    assert proxy.broken == 1
    application = logs.open_log(log).application(query.id)
    assert application is not None
    assert application.batch_id == committed(checkpoint)[-1] + 1
    end = logs.open_log(log).snapshot().next_offset

    with running(sink(frame, _through(proxy, connector), log, checkpoint)) as query:
        wait_for_batch(query, application.batch_id)
        assert committed(checkpoint)[-1] >= application.batch_id
        wait_for_batch(query, application.batch_id + 1)
    assert logs.open_log(log).snapshot().next_offset >= end + ROWS
    assert_numbers(_values(connector, log), ROWS, PARTITIONS)


def test_s1_a_lost_answer_is_found_out(connector: Connector, log: str, checkpoint: Path, proxy: ZooKeeperProxy) -> None:
    """The connection breaks around commits, before and after they took effect: the query goes on."""
    frame = numbers(connector.spark, ROWS, PARTITIONS).selectExpr("cast(number as string) as value")
    with running(sink(frame, _through(proxy, connector), log, checkpoint)) as query:
        wait_for_batch(query, 0)
        proxy.breaks = [Break.AFTER, Break.BEFORE, None, Break.AFTER]
        wait_until(lambda: proxy.broken == 3, "broken commits")
        wait_for_batch(query, committed(checkpoint)[-1] + 2)
    assert_numbers(_values(connector, log), ROWS, PARTITIONS)


# --- S2 ---


@pytest.mark.every_spark
def test_s2_killed_between_the_last_add_and_the_message(
    connector: Connector, log: str, checkpoint: Path, logs: LogStore
) -> None:
    """What the task wrote is acknowledged and in no message: it is not listed, and its ledger stays registered."""
    connector.spark.dataSource.register(KilledSource)
    frame = numbers(connector.spark, ROWS, PARTITIONS).selectExpr("cast(number as string) as value")

    def start() -> Any:
        writer = frame.writeStream.format("bookkeeper-killed").option("checkpointLocation", str(checkpoint))
        return writer.options(metadataServiceUri=connector.metadata_service_uri, log=log, entryFormat="raw").start()

    armed = arm(checkpoint)
    with running(start()) as query, pytest.raises(StreamingQueryException):
        query.awaitTermination(_PATIENCE_S)
    assert not armed.exists()
    assert logs.open_log(log).snapshot().next_offset == 0
    lost = registered_ledgers(logs.open_log(log)).keys()
    assert len(lost) >= 1
    # Of a worker that was reused, once more.
    with running(start()) as query:
        wait_for_batch(query, 1)
        armed = arm(checkpoint)
        with pytest.raises(StreamingQueryException):
            query.awaitTermination(_PATIENCE_S)
    with running(start()) as query:
        wait_for_batch(query, committed(checkpoint)[-1] + 2)
    assert_numbers(_values(connector, log), ROWS, PARTITIONS)
    listed = listed_ledgers(logs.open_log(log))
    assert not listed & lost
    assert listed <= registered_ledgers(logs.open_log(log)).keys()


# --- S3 ---


@pytest.mark.timeout(600)
def test_s3_second_driver_while_the_first_is_suspended(
    connector: Connector, log: str, checkpoint: Path, tmp_path: Path, proxy: ZooKeeperProxy, logs: LogStore
) -> None:
    """The first is suspended in its commit, before ZooKeeper has it. The second takes over; the first, resumed, fails
    and names it."""
    with _driver(tmp_path / "first", _through(proxy, connector), log, checkpoint, last_batch=10**6) as first:
        first.wait_for_batch(1)
        suspended = threading.Event()

        def suspend() -> None:
            first.signal(signal.SIGSTOP)
            suspended.set()

        proxy.on_break = suspend
        proxy.breaks = [Break.BEFORE]
        assert suspended.wait(_PATIENCE_S)
        held = committed(checkpoint)[-1] + 1
        frame = numbers(connector.spark, ROWS, PARTITIONS).selectExpr("cast(number as string) as value")
        with running(sink(frame, connector.metadata_service_uri, log, checkpoint)) as second:
            wait_for_batch(second, held + 2)
        end = logs.open_log(log).snapshot().next_offset
        first.signal(signal.SIGCONT)
        error = first.wait_for_error()
    found = re.findall(r"^bk_spark\.protocol\.errors\.(\w+): (.*)$", error, re.MULTILINE)
    kind, message = found[0]
    assert kind == "RunRetiredError", error
    assert f"run {first.run} of application" in message
    assert f"run {second.runId} took over" in message
    assert assert_numbers(_values(connector, log), ROWS, PARTITIONS) * ROWS == end


class _Driver:
    """A query in a process of its own; see stream_script."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self.run = ""
        self._log = log
        self._lines: list[dict[str, Any]] = []
        self._told = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for_batch(self, batch: int) -> None:
        self._wait_for(lambda: any(line.get("batch", -1) >= batch for line in self._lines), f"batch {batch}")

    def wait_for_error(self) -> str:
        self._wait_for(lambda: any("error" in line for line in self._lines), "error")
        return next(str(line["error"]) for line in self._lines if "error" in line)

    def signal(self, number: signal.Signals) -> None:
        signal_tree(self.process.pid, number)

    def end(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                with self._told:
                    self._lines.append(json.loads(line))
                    self.run = self._lines[-1].get("run", self.run)
                    self._told.notify_all()
        with self._told:
            self._told.notify_all()

    def _wait_for(self, holds: Any, what: str) -> None:
        with self._told:
            reached = self._told.wait_for(lambda: holds() or not self._reader.is_alive(), _PATIENCE_S)
            assert reached, f"no {what}: {self._log.read_text()[-3000:]}"
            assert holds(), f"ended without {what}: {self._lines[-1:]} {self._log.read_text()[-3000:]}"


@contextmanager
def _driver(directory: Path, uri: str, log: str, checkpoint: Path, last_batch: int) -> Iterator[_Driver]:
    process = stream_script.start(directory, uri, log, checkpoint, ROWS, PARTITIONS, last_batch)
    driver = _Driver(process, directory / "driver.log")
    try:
        yield driver
    finally:
        driver.end()
