"""Tasks of the sink against real bookies: ledgers fenced in mid-task, runs retired, sessions that ended meanwhile."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.datasource.connections import LogPlace, client_of, log_at
from bk_spark.datasource.writing.idle_ledgers import IdleLedgers, LedgerKey
from bk_spark.log.core.plan import CommitStatus
from bk_spark.log.core.tail.roll import RollLimits
from bk_spark.log.formats.message import CommitMessage, CommitRequest, LedgerRange
from bk_spark.log.formats.settings import EntryFormat, LogSettings
from bk_spark.log.formats.znodes import decode_registration
from bk_spark.log.log import Log
from bk_spark.log.store import LogStore
from bk_spark.log.tables.append_ledgers import TaskLedgers
from bk_spark.log.tables.append_rows import TaskWriter
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import LogReplacedError, NoSuchLogError, RunRetiredError
from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from bk_spark.protocol.quorum import Quorum
from tests.support.spark_process import own_clients
from tests.support.zookeeper_sessions import expire

PASSWORD = b"secret"
SETTINGS = LogSettings.create(Quorum(3, 3, 2), DigestType.CRC32C, EntryFormat.RAW, PASSWORD)
ROLL = RollLimits(1 << 30, 3_600_000)
APP = "query"


@pytest.fixture
def client(metadata_service_uri: str) -> Iterator[BlockingClient]:
    """Somebody else."""
    with BlockingClient(metadata_service_uri) as client:
        yield client


@pytest.fixture
def store(client: BlockingClient) -> LogStore:
    return LogStore.of(client)


@pytest.fixture
def log(store: LogStore, metadata_service_uri: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    """A new log as a worker process of Spark has it: from the process's cache, which is empty at first."""
    name = f"writes-{uuid.uuid4().hex[:8]}"
    made = store.create_log(name, SETTINGS)
    with own_clients(monkeypatch):
        yield log_at(_place(metadata_service_uri, made), PASSWORD, SETTINGS)


@pytest.fixture
def cache() -> Iterator[IdleLedgers]:
    cache = IdleLedgers()
    yield cache
    cache.close_all()


def _place(uri: str, log: Log) -> LogPlace:
    return LogPlace(uri, log.paths.root, log.name, log.log_id)


def _task(uri: str, log: Log, run: str = "run-1", cache: IdleLedgers | None = None) -> TaskWriter:
    kept = None if cache is None else cache.of(LedgerKey(_place(uri, log), APP, run))
    return TaskWriter(TaskLedgers(log, APP, run, ROLL, kept))


def _rows(first: int, count: int) -> Payloads:
    return Payloads.of([b"row %06d" % number for number in range(first, first + count)])


def _request(log: Log, batch: int, ranges: tuple[LedgerRange, ...], run: str = "run-1") -> CommitRequest:
    message = CommitMessage(log.log_id, APP, run, "query id", batch, 0, ranges)
    return CommitRequest.from_messages([message])


def _read(client: BlockingClient, log: Log) -> list[bytes]:
    rows: list[bytes] = []
    for segment in log.snapshot().segments():
        assert segment.last_entry is not None
        reader = client.open_for_reading(segment.ledger_id, PASSWORD, read_lac=False)
        for block in reader.read_blocks(segment.first_entry, segment.last_entry, known_to_exist=True):
            rows += map(bytes, block.payloads)
    return rows


def test_a_ledger_stays_open_over_tasks_and_batches(
    metadata_service_uri: str, log: Log, client: BlockingClient, cache: IdleLedgers
) -> None:
    for batch in range(5):
        task = _task(metadata_service_uri, log, cache=cache)
        task.append(_rows(batch * 10, 10), 10)
        log.commit(_request(log, batch, task.finish()))
    segments = list(log.snapshot().segments())
    assert [(one.first_entry, one.last_entry) for one in segments] == [(n, n + 9) for n in range(0, 50, 10)]
    (ledger_id,) = {one.ledger_id for one in segments}
    assert client.metadata(ledger_id).state is LedgerState.OPEN
    assert _read(client, log) == list(map(bytes, _rows(0, 50)))
    cache.close_all()
    assert client.metadata(ledger_id).state is LedgerState.CLOSED
    assert client.metadata(ledger_id).last_entry_id == 49


def test_fenced_in_mid_task(metadata_service_uri: str, log: Log, client: BlockingClient, cache: IdleLedgers) -> None:
    """Twice; each time the range ends where acknowledgement ended, and the rest goes to another ledger."""
    task = _task(metadata_service_uri, log, cache=cache)
    for part in range(20):
        task.append(_rows(part * 1000, 1000), 1000)
        if part in (5, 12):
            (newest, *_) = log.run_ledgers(APP, "run-1")
            client.recover_and_open(newest, PASSWORD)
    ranges = task.finish()
    assert len(ranges) == 3
    assert sum(one.rows for one in ranges) == 20_000
    for one in ranges[:2]:
        assert client.metadata(one.ledger_id).last_entry_id >= one.last_entry
    log.commit(_request(log, 0, ranges))
    assert _read(client, log) == list(map(bytes, _rows(0, 20_000)))


def test_a_ledger_that_was_fenced_while_it_waited(
    metadata_service_uri: str, log: Log, client: BlockingClient, cache: IdleLedgers
) -> None:
    first = _task(metadata_service_uri, log, cache=cache)
    first.append(_rows(0, 3), 3)
    log.commit(_request(log, 0, first.finish()))
    client.recover_and_open(log.run_ledgers(APP, "run-1")[0], PASSWORD)
    second = _task(metadata_service_uri, log, cache=cache)
    second.append(_rows(3, 3), 3)
    ranges = second.finish()
    log.commit(_request(log, 1, ranges))
    assert [(one.first_entry, one.last_entry) for one in ranges] == [(0, 2)]
    assert _read(client, log) == list(map(bytes, _rows(0, 6)))


def test_a_zombies_task_is_told_who_took_over(
    metadata_service_uri: str, log: Log, client: BlockingClient, cache: IdleLedgers
) -> None:
    """The new run's first commit fences what the old one writes to; its task then asks, and fails."""
    zombie = _task(metadata_service_uri, log, cache=cache)
    zombie.append(_rows(0, 10), 10)
    log.commit(_request(log, 0, zombie.finish()))
    zombie = _task(metadata_service_uri, log, cache=cache)
    zombie.append(_rows(10, 10), 10)

    successor = _task(metadata_service_uri, log, run="run-2")
    successor.append(_rows(10, 10), 10)
    ranges = successor.finish()

    log.commit(_request(log, 1, ranges, run="run-2"))
    zombie.append(_rows(20, 10), 10)
    with pytest.raises(RunRetiredError, match="run run-2 took over"):
        zombie.finish()
    assert _read(client, log) == list(map(bytes, _rows(0, 20)))


def test_cached_clients_survive_the_end_of_their_session(
    metadata_service_uri: str, log: Log, client: BlockingClient, cache: IdleLedgers
) -> None:
    """As when a process was suspended for longer than its session lasts: tasks and commits go on, also with a new
    ledger."""
    task = _task(metadata_service_uri, log, cache=cache)
    task.append(_rows(0, 3), 3)
    log.commit(_request(log, 0, task.finish()))
    expire(client_of(metadata_service_uri).zookeeper)
    task = _task(metadata_service_uri, log, cache=cache)
    task.append(_rows(3, 3), 3)
    log.commit(_request(log, 1, task.finish()))
    expire(client_of(metadata_service_uri).zookeeper)
    task = _task(metadata_service_uri, log)
    task.append(_rows(6, 3), 3)
    assert log.commit(_request(log, 2, task.finish())).status is CommitStatus.COMMITTED
    assert _read(client, log) == list(map(bytes, _rows(0, 9)))


def test_a_log_made_again_is_another_one(
    metadata_service_uri: str, log: Log, store: LogStore, cache: IdleLedgers
) -> None:
    """L5: what a process has cached is of no use for the log that has the name now, and says so."""
    task = _task(metadata_service_uri, log, cache=cache)
    task.append(_rows(0, 3), 3)
    request = _request(log, 0, task.finish())
    store.delete_log(log.name, PASSWORD)
    with pytest.raises(NoSuchLogError):
        log.commit(request)
    remade = store.create_log(log.name, SETTINGS)
    with pytest.raises(LogReplacedError):
        log.commit(request)
    with pytest.raises(LogReplacedError):
        _task(metadata_service_uri, log).append(_rows(0, 1), 1)
    with pytest.raises(LogReplacedError):
        remade.commit(request)
    assert log_at(_place(metadata_service_uri, remade), PASSWORD).snapshot().next_offset == 0


def test_a_job_that_ends_right_after_its_commit_has_looked_after_the_log(
    log: Log, client: BlockingClient, metadata_service_uri: str
) -> None:
    """Its process dies as soon as the commit returns, as those of Spark do."""
    writer = log.create_ledger(APP, "run-0")
    log.commit(_request(log, 0, (), "run-0"))
    script = f"""
import os
from bk_spark.datasource.connections import LogPlace, log_at
from bk_spark.datasource.options.parse import parse_options
from bk_spark.datasource.writing.write_task import commit_batch
from bk_spark.log.formats.message import CommitMessage, CommitRequest
place = LogPlace({metadata_service_uri!r}, {LogStore.of(client).root!r}, {log.name!r}, {log.log_id!r})
options = parse_options(
    {{"metadataServiceUri": {metadata_service_uri!r}, "log": {log.name!r}}}, writing=True, streaming=False
)
message = CommitMessage({log.log_id!r}, {APP!r}, "run-1", "query id", 1, 0, ())
request = CommitRequest({log.log_id!r}, {APP!r}, "run-1", "query id", 1, (message,))
commit_batch(log_at(place, {PASSWORD!r}), request, options)
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    registration = client.zookeeper.get(log.paths.registration(APP, "run-0", writer.ledger_id))
    assert registration is not None
    assert decode_registration(registration.data, "").condemned
    log.ledgers.abandon(writer.ledger_id)


def test_what_a_worker_has_imported_is_not_searched_for_garbage(metadata_service_uri: str) -> None:
    """Spark's workers search after each task, which took more CPU than a small task. Tasks that write, that
    read and that write to several logs leave their objects out of the search."""
    name = f"frozen-{uuid.uuid4().hex[:8]}"
    script = f"""
import gc, pyarrow as pa
from pyspark.sql.types import StringType, StructType
from bk_spark.datasource.source import BookKeeperDataSource
schema = StructType().add("value", StringType())
source = BookKeeperDataSource({{"metadataServiceUri": {metadata_service_uri!r}, "log": {name!r}, "entryFormat": "raw"}})
writer = source.writer(schema, False)
assert not gc.get_freeze_count()
message = writer.write(iter([pa.RecordBatch.from_pylist([{{"value": "a"}}])]))
assert (written := gc.get_freeze_count()) > 10_000, written
writer.commit([message])
reader = source.reader(source.schema())
gc.unfreeze()
from bk_spark.datasource.kept_objects import keep_objects
keep_objects.cache_clear()
(split,) = reader.partitions()
assert [batch.num_rows for batch in reader.read(split)] == [1]
assert gc.get_freeze_count() > 10_000
gc.unfreeze()
keep_objects.cache_clear()
source = BookKeeperDataSource({{"metadataServiceUri": {metadata_service_uri!r}, "logColumn": "to"}})
writer = source.writer(StructType().add("value", StringType()).add("to", StringType()), False)
writer.commit([writer.write(iter([pa.RecordBatch.from_pylist([{{"value": "a", "to": {name!r}}}])]))])
assert gc.get_freeze_count() > 10_000
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_a_process_of_spark_keeps_freed_memory_once_a_task_reads(metadata_service_uri: str) -> None:
    """Answers of bookies cost it new pages otherwise. A driver does not: it may be somebody's large program.

    In a process of its own, since it is about the whole process.
    """
    script = f"""
from pyspark import TaskContext
from bk_spark.bookie.connection.allocator import keep_freed_memory
from bk_spark.datasource.connections import client_of

for in_task in (False, True):
    if in_task:
        TaskContext._getOrCreate()
    with client_of({metadata_service_uri!r}):
        print(keep_freed_memory.cache_info().currsize)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["0", "1"], done.stderr
