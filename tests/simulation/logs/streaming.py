"""Queries that write to the log: drivers that commit batches, and executors' workers that keep ledgers across batches.

They behave like Spark. A query's run (a driver with its workers) goes from batch to batch, and notes finished batches
in a checkpoint. A restarted query begins after the last batch noted. It does not know whether the batch after that is
already in the log. A batch has the same rows in every run. Of two attempts at a task the driver takes one.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from bk_spark.log.core.applications import check_run
from bk_spark.log.core.changes import SeenTail
from bk_spark.log.core.plan import CommitResult
from bk_spark.log.core.registrations import registrar
from bk_spark.log.core.steps import (
    CloseLedger,
    Created,
    CreateLedger,
    Found,
    Read,
    Sync,
    Transact,
)
from bk_spark.log.core.tail.writer_actions import Acknowledged, FlushLedger, SendEntries, Sent
from bk_spark.log.core.takeover import commit_steps
from bk_spark.log.formats.message import CommitMessage, CommitRequest, LedgerRange
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.formats.znodes import decode_application
from bk_spark.protocol.errors import (
    BatchRefusedError,
    BookieUnavailableError,
    LedgerRefusedError,
    LogReplacedError,
    LogTailOpenError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchLogError,
    OutcomeUnknownError,
    RunRetiredError,
)
from bk_spark.protocol.metadata.znodes import CheckOp, CreateOp, TransactionOp
from tests.simulation.logs.invariants import Row, batch_rows, require
from tests.simulation.logs.ledgers import ENTRY_BYTES
from tests.simulation.logs.schemas import columns_of
from tests.simulation.logs.world import Actor, Script, Wait, World

#: Spark's limit of attempts at a task.
TASK_TRIES = 4

#: With these errors a query fails, and may be started again.
FAILURES = (
    BookieUnavailableError,
    LedgerRefusedError,
    LogTailOpenError,
    MetadataConflictError,
    MetadataUnavailableError,
    OutcomeUnknownError,
)
#: With these errors the query is over.
REFUSALS = (RunRetiredError, BatchRefusedError, NoSuchLogError, LogReplacedError)


@dataclass(eq=False)
class Query:
    """The part of a query that outlives its runs: its checkpoint."""

    paths: LogPaths
    app: str
    batches: int
    #: The last batch noted as done in the checkpoint, and the last one noted as begun. Spark repeats that one.
    noted: int = -1
    begun: int = -1
    #: A batch write: one batch, with a drawn name as its application.
    anonymous: bool = False
    overwrite: bool = False
    #: foreachBatch with user threads: each batch is a write with its own run, under one application.
    foreach_batch: bool = False
    fence_tail: bool = False
    workers: int = 2
    roll_entries: int = 1_000
    #: With option skipCommittedBatches.
    skip_committed: bool = False
    #: The checkpoint's identity, beyond the query's name.
    checkpoint: str = "checkpoint"
    #: The query has an old checkpoint, or a new one under an old name: none of its batches may be accepted or count as
    #: done.
    stray: bool = False
    runs: list[Driver] = field(default_factory=list)

    @property
    def query_id(self) -> str:
        return f"query of {self.app}, {self.checkpoint}"

    @property
    def next_batch(self) -> int:
        return self.begun if self.begun > self.noted else self.noted + 1

    def lose_last_commit(self) -> None:
        """A user deletes the newest file of the checkpoint's commits."""
        self.noted = max(-1, self.noted - 1)

    @property
    def finished(self) -> bool:
        return self.noted >= self.batches - 1


@dataclass(eq=False)
class Task:
    """One attempt at one partition of a batch. ``message`` is the result; ``failed`` is reported to Spark instead."""

    batch_id: int
    run: str
    rows: list[Row]
    partition: int
    worker: Worker
    message: CommitMessage | None = None
    failed: str = ""


class TaskFailedError(Exception):
    """A task's error."""


class Worker(Actor):
    """An executor's Python worker: one task at a time, and one ledger that stays open across tasks and batches."""

    kind: ClassVar[str] = "worker"

    def __init__(self, world: World, name: str, query: Query) -> None:
        super().__init__(world, name)
        self._query = query
        self.tasks: list[Task] = []
        self.told_to_end = False
        self._run = ""
        self._ledger: int | None = None
        #: Probability, per piece of a task, that the task is killed while the worker survives.
        self.task_kills = 0.0

    def script(self) -> Script:
        while True:
            yield Wait(lambda: bool(self.tasks) or self.told_to_end, "task")
            if not self.tasks:
                if self._ledger is not None:
                    yield from self._close()
                return "idle"
            task = self.tasks[0]
            try:
                ranges = yield from self._write(task)
            except TaskFailedError as error:
                task.failed = str(error)
            except (*FAILURES, *REFUSALS) as error:
                task.failed = f"{type(error).__name__}: {error}"
            else:
                query = self._query
                task.message = CommitMessage(
                    query.paths.log_id,
                    query.app,
                    task.run,
                    query.query_id,
                    task.batch_id,
                    task.partition,
                    tuple(ranges),
                    task.batch_id,
                )
            self.tasks.remove(task)

    def _write(self, task: Task) -> Generator[Any, Any, list[LedgerRange]]:
        ranges: list[LedgerRange] = []
        if task.run != self._run:
            self._run, self._ledger = task.run, None
        done = 0
        while done < len(task.rows):
            if self._ledger is not None and len(self._entries()) >= self._query.roll_entries:
                yield from self._close()
            if self._ledger is None:
                self._ledger = yield from self._open(task.run)
            ledger_id = self._ledger
            part = tuple(task.rows[done : done + self.world.random.randint(1, 3)])
            sent = yield SendEntries(ledger_id, part)
            if self.world.random.random() < self.task_kills:
                raise TaskFailedError("killed")
            event = (yield FlushLedger(ledger_id)) if isinstance(sent, Sent) else sent
            told = self.world.ledgers.all[ledger_id].acknowledged
            first = sent.last_entry + 1 - len(part) if isinstance(sent, Sent) else told
            safe = max(0, min(told - first, len(part)))
            if safe:
                ranges.append(LedgerRange(ledger_id, first, first + safe - 1, safe, safe * ENTRY_BYTES))
                done += safe
            if not isinstance(event, Acknowledged):
                # Fenced or failed: by a successor, by the reaper, or because bookies are unavailable.
                self._ledger = None
                yield from self._check_run(task.run)
        return ranges

    def _entries(self) -> list[object]:
        assert self._ledger is not None
        return self.world.ledgers.all[self._ledger].entries

    def _check_run(self, run: str) -> Generator[Any, Any, None]:
        yield Sync(self._query.paths.head)
        path = self._query.paths.app(self._query.app)
        event = yield Read((path,))
        if not isinstance(event, Found):
            raise TaskFailedError("ZooKeeper is away")
        znode = event.znodes[path]
        check_run(None if znode is None else decode_application(znode.data, path), run, self._query.paths.name)

    def _open(self, run: str) -> Generator[Any, Any, int]:
        paths = self._query.paths
        run_path = paths.run(self._query.app, run)
        yield from ensure_steps(paths, run_path)
        event = yield CreateLedger(registrar(paths, run_path))
        if not isinstance(event, Created):
            raise TaskFailedError(f"no ledger: {event}")
        return event.ledger_id

    def _close(self) -> Generator[Any, Any, None]:
        assert self._ledger is not None
        ledger_id, self._ledger = self._ledger, None
        yield CloseLedger(ledger_id)


def ensure_steps(paths: LogPaths, run_path: str) -> Generator[Any, Any, None]:
    """Create the znodes above registrations, like Log.ledger_registrar. Raises TaskFailedError if it is impossible."""
    for path in (run_path.rpartition("/")[0], run_path):
        event = yield Read((path,))
        if not isinstance(event, Found):
            yield Sync(paths.head)
            event = yield Read((path,))
        if not isinstance(event, Found):
            raise TaskFailedError("ZooKeeper is away")
        if event.znodes[path] is None:
            operations: tuple[TransactionOp, ...] = (CheckOp(paths.identity, -1), CreateOp(path))
            # It does not matter who created it. If nobody did, the ledger's own transaction fails.
            yield Transact(operations)


class Driver(Actor):
    """One run of a query."""

    kind: ClassVar[str] = "driver"

    def __init__(self, world: World, name: str, query: Query) -> None:
        super().__init__(world, name)
        self.query = query
        self.seen_tail = SeenTail()
        self.run = name.replace("/", "-")
        self.workers: list[Worker] = []
        self.results: list[CommitResult] = []
        #: Probability, per task, that a second attempt is started.
        self.speculation = 0.0
        self.task_kills = 0.0
        self._spawned = 0
        query.runs.append(self)

    def script(self) -> Script:
        query = self.query
        try:
            for batch_id in range(query.next_batch, query.batches):
                query.begun = max(query.begun, batch_id)
                yield from self._batch(batch_id)
                query.noted = max(query.noted, batch_id)
        except TaskFailedError as error:
            return f"failed: {error}"
        except (*FAILURES, *REFUSALS) as error:
            self.world.tell(self.name, "error", error)
            return "refused" if isinstance(error, REFUSALS) else "failed"
        finally:
            for worker in self.workers:
                worker.told_to_end = True
        return "finished"

    def _batch(self, batch_id: int) -> Generator[Any, Any, None]:
        query = self.query
        run = f"{self.run}-{batch_id}" if query.foreach_batch else self.run
        messages = []
        tasks: list[Task] = []
        for partition, rows in enumerate(batch_rows(query.app, batch_id)):
            tasks.append(self._start_task(batch_id, run, partition, rows))
            if self.world.random.random() < self.speculation:
                tasks.append(self._start_task(batch_id, run, partition, rows))
        for partition, rows in enumerate(batch_rows(query.app, batch_id)):
            mine = [task for task in tasks if task.partition == partition]
            while True:
                yield Wait(lambda mine=mine: any(t.message for t in mine) or all(map(self._over, mine)), "tasks")
                ready = [task.message for task in mine if task.message is not None]
                if ready:
                    break
                if len(mine) >= TASK_TRIES:
                    raise TaskFailedError(f"a task failed {len(mine)} times: {mine[-1].failed}")
                mine.append(self._start_task(batch_id, run, partition, rows))
            messages.append(ready[0])
        self.world.random.shuffle(messages)
        request = CommitRequest.from_messages(
            messages,
            overwrite=query.overwrite,
            anonymous=query.anonymous,
            fence_tail=query.fence_tail,
            skip_committed=query.skip_committed,
            consecutive=not (query.anonymous or query.foreach_batch),
            merge_schema=columns_of(query.app, batch_id),
        )
        yield from self._commit(request)

    def _commit(self, request: CommitRequest) -> Generator[Any, Any, None]:
        paths = self.query.paths
        for tries_left in (1, 0):
            try:
                result = (yield from commit_steps(paths, request, self.now_ms, self.seen_tail)).result
                break
            except OutcomeUnknownError:
                # "The same batch may be committed again at any time, and is appended once."
                if not tries_left:
                    raise
            except FAILURES as error:
                self._check_error(request, error)
                raise
        require(
            not self.query.stray,
            f"{self.name}, of {request.query_id}, was told that batch {request.batch_id} is {result.status.value}",
        )
        self.results.append(result)
        self.world.tell(self.name, f"batch {request.batch_id}", result.status.value)
        self.world.watch.committed(paths, request.app, request.batch_id, result.start_offset, result.end_offset)

    def _check_error(self, request: CommitRequest, error: Exception) -> None:
        """A refusal was right: the batch was not in the log when the machine began to read."""
        path = self.query.paths.app(request.app)
        znode = self.world.zk.read(path, self.session.synced_zxid)
        if znode is not None and self.world.watch.logs[request.log_id].paths == self.world.paths:
            application = decode_application(znode.data, path)
            require(
                (application.run, application.batch_id) != (request.run, request.batch_id),
                f"{self.name} was told that batch {request.batch_id} failed, and it is in the log: {error}",
            )

    def _start_task(self, batch_id: int, run: str, partition: int, rows: list[Row]) -> Task:
        alive = [worker for worker in self.workers if not worker.ended]
        if len(alive) < self.query.workers:
            self._spawned += 1
            worker = Worker(self.world, f"{self.name}.w{self._spawned}", self.query)
            worker.task_kills = self.task_kills
            self.world.add(worker)
            self.workers.append(worker)
        else:
            worker = min(alive, key=lambda w: len(w.tasks))
        task = Task(batch_id, run, rows, partition, worker)
        worker.tasks.append(task)
        return task

    def _over(self, task: Task) -> bool:
        return task.message is not None or task.failed != "" or task.worker.ended != ""
