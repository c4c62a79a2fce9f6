"""One log: its settings, its list of segments, commits to it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.log.appending import append_ledger
from bk_spark.log.blocking import run_steps
from bk_spark.log.core.append import head_of
from bk_spark.log.core.applications import check_run
from bk_spark.log.core.changes import Change, change_steps
from bk_spark.log.core.commit import BatchCommit
from bk_spark.log.core.plan import CommitResult
from bk_spark.log.core.reading import decision_steps
from bk_spark.log.core.registrations import MakeZnodes, registrar
from bk_spark.log.core.steps import LedgerRegistrar, Steps
from bk_spark.log.formats.message import CommitRequest
from bk_spark.log.formats.names import LogPaths, app_key, run_key
from bk_spark.log.formats.settings import LogSettings
from bk_spark.log.formats.znodes import Application, Policy, decode_application
from bk_spark.log.gc.maintenance import MaintenanceReport, maintain
from bk_spark.log.gc.reap_rules import ReapLimits
from bk_spark.log.gc.reaper import OnReapProgress
from bk_spark.log.gc.retention import SetPolicy, apply_retention, policy_of
from bk_spark.log.gc.truncation import truncation
from bk_spark.log.ledgers import LogLedgers
from bk_spark.log.page_reader import PageReader
from bk_spark.log.reader import LogReader
from bk_spark.log.rolling import RollLimits
from bk_spark.log.snapshot import LogSnapshot
from bk_spark.log.writer import LogWriter
from bk_spark.protocol.errors import InvalidArgumentError, LogReplacedError
from bk_spark.protocol.metadata.znodes import Znode

_LOG: Final = logging.getLogger(__name__)

_T = TypeVar("_T")


class Log:
    """A log: its settings, its list of segments, and the ways to write, read and maintain it. Thread-safe.

    Every call is for the log with this ``log_id``. If it was deleted, calls raise NoSuchLogError. If a new log has its
    name since, they raise LogReplacedError. A :class:`LogStore` makes these objects.
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
        self.settings = settings
        self._ledgers = ledgers
        self._zk = zk
        self._paths = paths
        self._now_ms = now_ms
        self._pages = PageReader(zk, paths, ledgers)

    def __repr__(self) -> str:
        return f"Log({self.name}, {self.log_id})"

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
        if self._ledgers is None:
            raise InvalidArgumentError(f"log {self.name} was opened without its password: its ledgers are out of reach")
        return self._ledgers

    def snapshot(self, *, sync: bool = True) -> LogSnapshot:
        """Read the list of segments as it is now.

        Parameters
        ----------
        sync
            Include every commit that was acknowledged before the call. It costs one more request to ZooKeeper.

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
        if sync:
            self._zk.sync(self._paths.head)
        return LogSnapshot(self.name, self._pages.head(), self._pages)

    def snapshot_at(self, head: Znode | None, session: int) -> LogSnapshot:
        """The list as ``head`` tells, this log's head as it was read in ``session`` of ZooKeeper, which was synced
        before. Raises NoSuchLogError, LogReplacedError."""
        found = head_of(head, self._paths).head
        self._pages.synced(session)
        return LogSnapshot(self.name, found, self._pages)

    def commit(
        self, request: CommitRequest, *, recover: Callable[[Sequence[int]], object] | None = None
    ) -> CommitResult:
        """Append a batch, exactly once however often the same batch is committed.

        Parameters
        ----------
        request
            The batch.
        recover
            Called after the commit took effect, with the ids of the ledgers of each run that it took over from, newest
            first. It should fence and close them. If it fails, the error is logged and the commit stands.

        Returns
        -------
        CommitResult
            The batch's offsets, and whether this commit appended it.

        Raises
        ------
        RunRetiredError
            If another run of the application took over. The error names it.
        BatchRefusedError
            If another query committed this batch or a later one under the application's name, or this query's
            checkpoint was set back.
        LedgerRefusedError
            If a ledger or a range in a message cannot become part of the log.
        LogTailOpenError
            If a log writer holds the tail and lives, and the request does not ask to fence it.
        MetadataConflictError, MetadataUnavailableError
            Nothing was changed. Retry.
        OutcomeUnknownError
            The outcome is unknown. Commit the same batch again.
        """
        if request.log_id != self.log_id:
            raise LogReplacedError(
                f"log {self.name} was deleted and made again: its id is {self.log_id}, the batch was written for "
                f"{request.log_id}"
            )
        result = self.change(BatchCommit(self._paths, request))
        if result.warning:
            _LOG.warning("%s", result.warning)
        if recover is not None:
            for run in result.retired_runs:
                self._recover(request.app, run, recover)
        return result

    def change(self, change: Change[_T]) -> _T:
        """Carry out one change of this log. Raises what :func:`bk_spark.log.core.changes.change_steps` raises."""
        return self.run(change_steps(change, self._now_ms))

    def run(self, steps: Steps[_T]) -> _T:
        """The result of a machine that works on this log."""
        return run_steps(self._zk, steps, self._paths, self._ledgers)

    def truncate(self, up_to_offset: int, *, dry_run: bool = False) -> int:
        """Drop the oldest segments. Maintenance deletes their ledgers later. A log's first offset never decreases.

        Parameters
        ----------
        up_to_offset
            Drop whole sealed segments that end at or below this offset.
        dry_run
            Change nothing.

        Returns
        -------
        int
            The log's first offset, after this call or, with ``dry_run``, after a real one.

        Raises
        ------
        InvalidArgumentError
            If the offset is beyond the log's end.
        MetadataConflictError, MetadataUnavailableError, OutcomeUnknownError
            Retry.
        """
        change = truncation(self, up_to_offset)
        return self.run(decision_steps(change, self._now_ms)) if dry_run else self.change(change)

    def policy(self) -> Policy:
        """Read the log's policy.

        Returns
        -------
        Policy
            What maintenance keeps. Without a policy that is everything.
        """
        self._zk.sync(self._paths.head)
        znode = self._pages.get(self._paths.policy)
        self._pages.head()
        return policy_of(znode, self._paths).policy

    def set_policy(self, policy: Policy) -> None:
        """Set the log's policy.

        Parameters
        ----------
        policy
            What maintenance keeps from now on.

        Raises
        ------
        InvalidArgumentError
            If a value is out of bounds.
        """
        self.change(SetPolicy(self._paths, policy))

    def apply_retention(self, policy: Policy | None = None, *, dry_run: bool = False) -> int:
        """Truncate the log as a policy asks for.

        Parameters
        ----------
        policy
            The policy. Default: the log's own.
        dry_run
            Change nothing.

        Returns
        -------
        int
            The log's first offset, after this call or, with ``dry_run``, after a real one.

        Raises
        ------
        ClockDifferenceError
            If the clocks of this machine and of ZooKeeper differ by more than a minute.
        """
        return apply_retention(self, self._now_ms, policy, dry_run=dry_run)

    def check_clock(self) -> None:
        """Measure this machine's clock against ZooKeeper's.

        Raises
        ------
        ClockDifferenceError
            If they differ by more than a minute.
        """
        self._zk.measure_time(self._paths.clock)
        self._zk.clock.check()

    def append_ledger(self, ledger_id: int) -> range:
        """Append a closed ledger that was not made for this log. The log must be raw.

        The log never deletes the ledger. Keep it as long as the log may hold it.

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
        return append_ledger(self, ledger_id)

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
            If another writer holds the tail, end it.
        roll_bytes
            Start a new ledger after so many bytes of payload.
        roll_ms
            Start a new ledger after so many milliseconds.
        roll_entries
            Start a new ledger after so many entries. Default: no limit.

        Returns
        -------
        LogWriter
            The writer. It holds the log's tail until it is closed.

        Raises
        ------
        LogTailOpenError
            If another writer holds the tail and lives. The error names it.
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
        return LogWriter(self, self._now_ms, limits, take_over=take_over)

    def open_reader(self) -> LogReader:
        """Open the log for reading.

        Returns
        -------
        LogReader
            A reader for one thread at a time. It reads ranges of offsets, and follows the log as it grows.

        Raises
        ------
        InvalidArgumentError
            If the log was opened without its password.
        """
        return LogReader(self)

    def maintain(
        self,
        *,
        force: bool = False,
        dry_run: bool = False,
        limits: ReapLimits | None = None,
        on_progress: OnReapProgress | None = None,
    ) -> MaintenanceReport:
        """Run one bounded round of maintenance: apply retention, move pages of the list into an index ledger, delete
        unused ledgers.

        An error in one part does not stop the others.

        Parameters
        ----------
        force
            Run even if another round began less than 10 minutes ago.
        dry_run
            Change nothing. The report says what a real round would do.
        limits
            Bounds of the reaper's part.
        on_progress
            Called as the reaper makes progress.

        Returns
        -------
        MaintenanceReport
            What was done, and what failed.

        Raises
        ------
        InvalidArgumentError
            If the log was opened without its password.
        NoSuchLogError
            If the log was deleted.
        MetadataUnavailableError
            If ZooKeeper does not answer.
        """
        return maintain(self, self._now_ms, limits, force=force, dry_run=dry_run, on_progress=on_progress)

    def ledger_registrar(self, app: str, run: str) -> LedgerRegistrar:
        """Prepare to register the ledgers of a writer. It creates the znodes above the registrations, if they do not
        exist.

        A ledger is registered in the transaction that creates its metadata, so neither exists without the other. The
        transaction fails if the log is not this one any more.

        Parameters
        ----------
        app
            The name of the application.
        run
            The id of the run.

        Returns
        -------
        callable
            Takes a ledger id and returns operations for that transaction. It does no I/O.
        """
        return self.registrar_at(app_key(app), run_key(run))

    def registrar_at(self, app_key: str, run_key: str) -> LedgerRegistrar:
        """The same for znodes of these names, see :meth:`bk_spark.log.formats.names.LogPaths.run_at`."""
        run_path = self._paths.run_at(app_key, run_key)
        if self._zk.exists(run_path) is None:
            self.change(MakeZnodes(self._paths, self._paths.runs_at(app_key), run_path))
        return registrar(self._paths, run_path)

    def run_ledgers(self, app: str, run: str) -> list[int]:
        """List the ledgers that are registered for a run.

        Parameters
        ----------
        app
            The name of the application.
        run
            The id of the run.

        Returns
        -------
        list of int
            Their ids, newest first.
        """
        names = self._zk.children(self._paths.run(app, run)) or []
        return sorted(map(int, names), reverse=True)

    def application(self, app: str) -> Application | None:
        """Read what an application has committed.

        Parameters
        ----------
        app
            The name of the application.

        Returns
        -------
        Application or None
            Its last batch and its runs. None if it has committed nothing, or was forgotten.
        """
        self._zk.sync(self._paths.head)
        self._pages.head()
        path = self._paths.app(app)
        znode = self._pages.get(path)
        return None if znode is None else decode_application(znode.data, path)

    def check_run(self, app: str, run: str) -> None:
        """Check that a run may still commit. For tasks whose ledger was fenced.

        Parameters
        ----------
        app
            The name of the application.
        run
            The id of the run.

        Raises
        ------
        RunRetiredError
            If another run took over.
        """
        check_run(self.application(app), run, self.name)

    def _recover(self, app: str, run: str, recover: Callable[[Sequence[int]], object]) -> None:
        try:
            ledgers = self.run_ledgers(app, run)
            if ledgers:
                recover(ledgers)
        except Exception as error:  # the commit has taken effect: nothing that follows may fail it
            _LOG.warning(
                "log %s: ledgers of retired run %s of application %r were not all recovered, and are left to the "
                "reaper: %s",
                self.name,
                run,
                app,
                error,
            )
