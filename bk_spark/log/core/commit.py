"""The transactional commit of one batch, decided from what was read. No I/O.

The steps, in this order (the caller does the last one, after the transaction took effect):

1. If the run is retired, refuse the batch and name the run that took over.
2. If the application's last committed batch is this one or a later one, the batch is done. This holds only if the same
   query committed it, and that query is not past the one batch that Spark may repeat. A sink's batch that does not
   follow the last one is refused: the log has forgotten batches.
3. Every named ledger must be registered and not condemned. Every range must start after the committed entries.
   An open tail is sealed first if its log writer is gone or ``fence_tail`` is set; otherwise the commit is refused.
4. One transaction writes segments in partition order, the application and ``next_offset``; an earlier run is retired.
   If the rows have columns that the log's schema lacks, it writes a new version of the schema, too.
5. Ledgers of retired runs are recovered.

Every transaction checks the versions of everything read for it, and that the log was not replaced.

Read order matters in one place: the run's znode is read before the registrations of its ledgers. Every transaction that
changes a registration also writes the run's znode. So one check of the run's version covers all its registrations,
however many ledgers the commit names. They are read once, no matter how often other changes win.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from bk_spark.log.core.append import Append, plan_append, read_head
from bk_spark.log.core.applications import (
    LedgerChecks,
    advance,
    check_run,
    is_done,
    told_of_beginning,
    told_of_repetition,
)
from bk_spark.log.core.plan import AlreadyDone, CommitResult, CommitStatus, Plan, Readings, write_over
from bk_spark.log.core.schema_growth import growth, needs_settings
from bk_spark.log.core.tail.tail_changes import seal_tail
from bk_spark.log.formats.commits import CommitKind, CommitRecord
from bk_spark.log.formats.message import CommitRequest, LedgerRange
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.formats.segment import Segment, SegmentTable
from bk_spark.log.formats.znodes import MAX_APPLICATION_BYTES, Application, decode_application, encode_application
from bk_spark.protocol.errors import LedgerRefusedError
from bk_spark.protocol.metadata.znodes import CheckOp, SetOp, TransactionOp

_REMEDY: Final = ", or commit with fenceTail=true (fence_tail in Python), which ends that writer"


class BatchCommit:
    """The change that appends the batch of ``request`` once."""

    def __init__(self, paths: LogPaths, request: CommitRequest) -> None:
        self.paths = paths
        self._request = request
        self._segments = SegmentTable.of(_segments(request.ranges))
        self._checks = LedgerChecks()

    @property
    def what(self) -> str:
        """For error texts: names the batch, its application and the log."""
        request = self._request
        return f"commit of batch {request.batch_id} of application {request.app!r} to log {self.paths.name}"

    @property
    def again(self) -> str:
        """A repetition finds the batch in the application's znode."""
        return "commit the same batch again, it is appended once"

    def decide(
        self, readings: Readings, now_ms: int, maybe: CommitResult | None
    ) -> AlreadyDone[CommitResult] | Plan[CommitResult]:
        """Raises NoSuchLogError, LogReplacedError, RunRetiredError, BatchRefusedError, LedgerRefusedError,
        LogTailOpenError, InvalidArgumentError if the log's schema cannot hold the rows, and MetadataFormatError if a
        znode cannot be decoded."""
        return _decide(readings, self.paths, self._request, self._segments, self._checks, now_ms, maybe)


def _decide(
    readings: Readings,
    paths: LogPaths,
    request: CommitRequest,
    segments: SegmentTable,
    checks: LedgerChecks,
    now_ms: int,
    maybe: CommitResult | None,
) -> AlreadyDone[CommitResult] | Plan[CommitResult]:
    ranges = request.ranges
    app_path, run_path = paths.app(request.app), paths.run(request.app, request.run)
    readings.require(paths.head, app_path, run_path, *((paths.settings,) if needs_settings(request) else ()))
    read = read_head(readings, paths)
    app_znode = readings.get(app_path)
    application = None if app_znode is None else decode_application(app_znode.data, app_path)
    check_run(application, request.run, paths.name)
    if application is not None and is_done(application, request, paths.name):
        return AlreadyDone(_already_done(application, request, maybe, paths.name))

    run = readings.get(run_path)
    if ranges and run is None:
        raise LedgerRefusedError(
            f"log {paths.name}: no ledger is registered for application {request.app!r}, run {request.run}"
        )
    ledgers = checks.check(readings, paths, application, request)
    run_operations: tuple[TransactionOp, ...] = ()
    if run is not None and ledgers.operations:
        run_operations = (SetOp(run_path, run.data, run.version),)
    elif run is not None and ranges:
        run_operations = (CheckOp(run_path, run.version),)

    time_ms = read.head.change_time_ms(now_ms)
    schema = growth(readings, paths, request, time_ms)
    # Last, because it may fence a ledger: from here on only a conflict can refuse the batch.
    start = read.head.next_offset
    tail_operations: tuple[TransactionOp, ...] = ()
    append = Append((), (CheckOp(paths.head, read.version),), read.head)
    if ranges or request.overwrite:
        tail = seal_tail(readings, paths, read.head, fence=request.fence_tail, remedy=_REMEDY)
        start, tail_operations = tail.end_offset, tail.operations
        added = SegmentTable.concat([SegmentTable.of(tail.segments), segments.moved(start, time_ms, schema.version)])
        record = CommitRecord(
            CommitKind.OVERWRITE if request.overwrite else CommitKind.APPEND,
            len(segments),
            time_ms,
            None if request.anonymous else request.app,
            None if request.anonymous else request.batch_id,
        )
        append = plan_append(
            readings, paths, read, added, time_ms, tail.tail, record=record, overwrite=request.overwrite
        )
    end = append.head.next_offset

    app_data = _encode(advance(application, request, ledgers.in_use, time_ms, range(start, end)), paths)
    retired = () if application is None or application.run == request.run else (application.run,)
    return Plan(
        (*schema.preparations, *append.preparations),
        (
            CheckOp(paths.identity, -1),
            *append.operations,
            *schema.operations,
            *tail_operations,
            write_over(app_path, app_data, app_znode),
            *run_operations,
            *ledgers.operations,
        ),
        CommitResult(
            CommitStatus.COMMITTED,
            start,
            end,
            time_ms,
            retired,
            told_of_beginning(application, request, paths.name),
        ),
    )


def _already_done(
    application: Application, request: CommitRequest, maybe: CommitResult | None, log_name: str
) -> CommitResult:
    warning = told_of_repetition(application, request, log_name)
    if application.batch_id != request.batch_id:
        return CommitResult(CommitStatus.ALREADY_DONE, None, None, None, warning=warning)
    done = CommitResult(
        CommitStatus.ALREADY_DONE,
        application.start_offset,
        application.end_offset,
        application.commit_time_ms,
        warning=warning,
    )
    if maybe is not None and application.run == request.run:
        # The transaction with the unknown outcome took effect.
        return replace(done, status=CommitStatus.COMMITTED, retired_runs=maybe.retired_runs)
    return done


def _encode(application: Application, paths: LogPaths) -> bytes:
    data = encode_application(application)
    if len(data) > MAX_APPLICATION_BYTES:
        raise LedgerRefusedError(
            f"log {paths.name}: batch {application.batch_id} of application {application.app!r} names "
            f"{len(application.in_use)} ledgers, too many for one commit: write with fewer tasks at once"
        )
    return data


def _segments(ranges: Iterable[LedgerRange]) -> Iterable[Segment]:
    """Return the segments starting at offset 0. Their offsets and time are unknown before the log is read."""
    offset = 0
    for part in ranges:
        yield Segment(part.ledger_id, part.first_entry, part.last_entry, offset, part.rows, part.size_bytes, 0)
        offset += part.entries
