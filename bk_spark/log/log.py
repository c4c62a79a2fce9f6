"""One log: its settings, its segment list, commits to it, its writers and readers, and the ledgers of its runs."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import Final, TypeVar

from bk_spark.bookie.blocking import BlockingWriter
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.same_docs import documented_as
from bk_spark.log.core.append import head_of
from bk_spark.log.core.append_ledger import AppendLedger, registered_steps
from bk_spark.log.core.changes import Change
from bk_spark.log.core.plan import CommitResult
from bk_spark.log.core.steps import LedgerRegistrar, Steps
from bk_spark.log.core.tail.roll import RollLimits
from bk_spark.log.core.takeover import commit_steps
from bk_spark.log.formats.message import CommitRequest
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.formats.settings import EntryFormat, LogSettings
from bk_spark.log.formats.znodes import Application, Policy
from bk_spark.log.gc.maintenance import MaintenanceReport
from bk_spark.log.gc.reap_rules import ReapLimits
from bk_spark.log.gc.reaper import OnReapProgress
from bk_spark.log.history.commits import Commit
from bk_spark.log.io.blocking import BlockingLog
from bk_spark.log.io.ledgers import LogLedgers
from bk_spark.log.io.snapshot import LogSnapshot
from bk_spark.log.past import LogPast
from bk_spark.log.reader import LogReader
from bk_spark.log.runs import LogRuns
from bk_spark.log.tables.operations import CommitName, LogTables
from bk_spark.log.upkeep import LogUpkeep
from bk_spark.log.writer import LogWriter
from bk_spark.protocol.errors import InvalidArgumentError, LedgerRefusedError, LogReplacedError
from bk_spark.protocol.metadata.znodes import Znode

_LOG: Final = logging.getLogger(__name__)
_TOKEN_BYTES: Final = 16

_T = TypeVar("_T")


class Log(LogTables):
    """A log: its settings, its list of segments, and the ways to write, read and maintain it. Thread-safe.

    Every call applies to the log with this ``log_id``. If that log was deleted, calls raise NoSuchLogError. If a new
    log has its name, they raise LogReplacedError. Created by :class:`LogStore`.
    """

    def __init__(
        self,
        zk: ZooKeeper,
        paths: LogPaths,
        settings: LogSettings,
        now_ms: Callable[[], int],
        ledgers: LogLedgers | None = None,
    ) -> None:
        self.name = paths.name
        self.log_id = paths.log_id
        self._log = BlockingLog(zk, paths, settings, now_ms, ledgers)
        self._zk = zk
        self._paths = paths
        self._now_ms = now_ms
        self._pages = self._log.pages
        self._past = LogPast(self._log)
        self._runs = LogRuns(self._log)
        self._upkeep = LogUpkeep(self._log)

    def __repr__(self) -> str:
        return f"Log({self.name}, {self.log_id})"

    @property
    def settings(self) -> LogSettings:
        """The log's settings, as this object last read them."""
        return self._log.settings

    def learn_settings(self) -> None:
        """Read the settings anew: columns may have been added or have become wider.

        Raises MetadataUnavailableError, MetadataFormatError.
        """
        self._log.learn_settings()

    @property
    def parts(self) -> BlockingLog:
        """What the log's readers and writers are made of."""
        return self._log

    @property
    def paths(self) -> LogPaths:
        """The paths of the log's znodes."""
        return self._paths

    @property
    def zookeeper(self) -> ZooKeeper:
        """The session with ZooKeeper."""
        return self._zk

    @property
    def ledgers(self) -> LogLedgers:
        """The log's ledgers. Raises InvalidArgumentError if the log was opened without its password."""
        return self._log.ledgers

    def snapshot(self, *, sync: bool = True) -> LogSnapshot:
        """Read the current segment list.

        Parameters
        ----------
        sync
            Include every commit acknowledged before the call. Costs one more request to ZooKeeper.

        Returns
        -------
        LogSnapshot
            The list.

        Raises
        ------
        NoSuchLogError
            If the log was deleted.
        MetadataUnavailableError
            If ZooKeeper does not answer.
        """
        return self._log.snapshot(sync=sync)

    def snapshot_at(self, head: Znode | None, session: int) -> LogSnapshot:
        """Return the list at ``head``.

        ``head`` is this log's head, read in ZooKeeper session ``session`` after a sync. Raises NoSuchLogError,
        LogReplacedError.
        """
        found = head_of(head, self._paths).head
        self._pages.synced(session)
        return LogSnapshot(self.name, found, self._pages)

    @documented_as(LogPast.as_of)
    def as_of(self, commit: CommitName) -> LogSnapshot:
        return self._past.as_of(commit)

    @documented_as(LogPast.measured_now_ms)
    def measured_now_ms(self) -> int:
        return self._past.measured_now_ms()

    @documented_as(LogPast.history)
    def history(self, limit: int = 1_000) -> tuple[int, list[Commit]]:
        return self._past.history(limit)

    def commit(self, request: CommitRequest) -> CommitResult:
        """Append a batch exactly once, even if the same batch is committed several times.

        If this commit takes over from another run of the application, it then fences and closes that run's ledgers.
        If that fails, the error is logged and the commit stands.

        Parameters
        ----------
        request
            The batch.

        Returns
        -------
        CommitResult
            The batch's offsets, and whether this commit appended it.

        Raises
        ------
        RunRetiredError
            If another run of the application took over. The error names it.
        BatchRefusedError
            If another query committed this batch or a later one under the application's name, if this query's
            checkpoint was set back, or if the log was and lacks batches before this one.
        LedgerRefusedError
            If a ledger or a range in a message cannot become part of the log.
        LogTailOpenError
            If a live log writer holds the tail, and the request does not ask to fence it.
        InvalidArgumentError
            If the rows' columns cannot be merged into the log's schema without loss, or the log has no such version.
        MetadataConflictError, MetadataUnavailableError
            Nothing was changed. Retry.
        OutcomeUnknownError
            The outcome is unknown. Commit the same batch again.
        """
        if request.log_id != self.log_id:
            raise LogReplacedError(
                f"log {self.name} was deleted and created again: its id is {self.log_id}, the batch was written for "
                f"{request.log_id}"
            )
        committed = self.run(commit_steps(self._paths, request, self._now_ms, self._log.seen_tail))
        if committed.result.warning:
            _LOG.warning("%s", committed.result.warning)
        for problem in committed.problems:
            _LOG.warning("log %s: %s", self.name, problem)
        return committed.result

    def change(self, change: Change[_T]) -> _T:
        """Make one change to this log. Raises what :func:`bk_spark.log.core.changes.change_steps` raises."""
        return self._log.change(change)

    def run(self, steps: Steps[_T]) -> _T:
        """Run a machine on this log and return its result."""
        return self._log.run(steps)

    @documented_as(LogUpkeep.truncate)
    def truncate(self, up_to_offset: int, *, dry_run: bool = False) -> int:
        return self._upkeep.truncate(up_to_offset, dry_run=dry_run)

    @documented_as(LogUpkeep.give_up_tail)
    def give_up_tail(self, entries: int, *, dry_run: bool = False) -> range:
        return self._upkeep.give_up_tail(entries, dry_run=dry_run)

    @documented_as(LogUpkeep.policy)
    def policy(self) -> Policy:
        return self._upkeep.policy()

    @documented_as(LogUpkeep.set_policy)
    def set_policy(self, policy: Policy) -> None:
        self._upkeep.set_policy(policy)

    @documented_as(LogUpkeep.apply_retention)
    def apply_retention(self, policy: Policy | None = None, *, dry_run: bool = False) -> int:
        return self._upkeep.apply_retention(policy, dry_run=dry_run)

    @documented_as(LogUpkeep.maintain)
    def maintain(
        self,
        *,
        force: bool = False,
        dry_run: bool = False,
        limits: ReapLimits | None = None,
        on_progress: OnReapProgress | None = None,
    ) -> MaintenanceReport:
        return self._upkeep.maintain(force=force, dry_run=dry_run, limits=limits, on_progress=on_progress)

    def append_ledger(self, ledger_id: int) -> range:
        """Append a closed ledger that was not made for this log. The log must be raw.

        The log never deletes the ledger. Keep the ledger as long as the log may contain it.

        Parameters
        ----------
        ledger_id
            The ledger. Its password must be the log's.

        Returns
        -------
        range
            The offsets of its entries.

        Raises
        ------
        NoSuchLedgerError
            If there is no such ledger.
        LedgerRefusedError
            If the ledger is open, is in the log already, or has another password.
        LogTailOpenError
            If a log writer holds the tail.
        """
        if self.settings.entry_format is not EntryFormat.RAW:
            raise LedgerRefusedError(
                f"log {self.name} has entryFormat {self.settings.entry_format.value}: only a raw log takes ledgers "
                "that were not made for it",
                ledger_id=ledger_id,
            )
        registration = self.run(registered_steps(self._paths, ledger_id))
        if registration is not None:
            raise LedgerRefusedError(
                f"log {self.name}: the ledger was made for this log and belongs to one of its writers "
                f"({registration}), which commits it",
                ledger_id=ledger_id,
            )
        token = secrets.token_bytes(_TOKEN_BYTES)
        change = AppendLedger(self._paths, ledger_id, self.ledgers.ledger_path(ledger_id), token)
        self.ledgers.check_readable(ledger_id)
        return self.change(change)

    def open_writer(
        self,
        *,
        take_over: bool = False,
        roll_bytes: int = 1 << 30,
        roll_ms: int = 3_600_000,
        roll_entries: int | None = None,
    ) -> LogWriter:
        """Open the log for writing. The log must be raw, and the client needs an ``explicit_lac_interval_ms``.

        Parameters
        ----------
        take_over
            If another writer holds the tail, end that writer.
        roll_bytes
            Start a new ledger after this many bytes of payload.
        roll_ms
            Start a new ledger after this many milliseconds.
        roll_entries
            Start a new ledger after this many entries. Default: no limit.

        Returns
        -------
        LogWriter
            The writer. It holds the log's tail until it is closed.

        Raises
        ------
        LogTailOpenError
            If another live writer holds the tail. The error names it.
        InvalidArgumentError
            If the log is not raw, was opened without its password, or the client's settings do not allow log writers.
        NotEnoughBookiesError
            If fewer bookies are writable than the log's ensemble needs.
        """
        if self._zk.rest is not None:
            raise InvalidArgumentError(
                "a log writer needs a session with ZooKeeper that does not rest: leave zkSessionRestMs out of the "
                "client's configuration"
            )
        limits = RollLimits(roll_bytes, roll_ms, roll_entries)
        return LogWriter(self._log, limits, take_over=take_over)

    def open_reader(self) -> LogReader:
        """Open the log for reading.

        Returns
        -------
        LogReader
            A reader. Use it from one thread at a time. It reads ranges of offsets, and follows the log as it grows.

        Raises
        ------
        InvalidArgumentError
            If the log was opened without its password.
        """
        return LogReader(self._log)

    @documented_as(LogRuns.ledger_registrar)
    def ledger_registrar(self, app: str, run: str) -> LedgerRegistrar:
        return self._runs.ledger_registrar(app, run)

    @documented_as(LogRuns.create_ledger)
    def create_ledger(self, app: str, run: str) -> BlockingWriter:
        return self._runs.create_ledger(app, run)

    @documented_as(LogRuns.run_ledgers)
    def run_ledgers(self, app: str, run: str) -> list[int]:
        return self._runs.run_ledgers(app, run)

    @documented_as(LogRuns.application)
    def application(self, app: str) -> Application | None:
        return self._runs.application(app)

    @documented_as(LogRuns.check_run)
    def check_run(self, app: str, run: str) -> None:
        self._runs.check_run(app, run)
