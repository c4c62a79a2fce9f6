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
    """A log that exists; made by :class:`bk_spark.log.store.LogStore`. Thread-safe.

    Every call holds for the log with this ``log_id`` alone. Where it was deleted, NoSuchLogError is raised;
    where it was made again since, LogReplacedError.
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
        return self._paths

    @property
    def zookeeper(self) -> ZooKeeper:
        return self._zk

    @property
    def ledgers(self) -> LogLedgers:
        """Raises InvalidArgumentError where the log was opened without its password."""
        if self._ledgers is None:
            raise InvalidArgumentError(f"log {self.name} was opened without its password: its ledgers are out of reach")
        return self._ledgers

    def snapshot(self, *, sync: bool = True) -> LogSnapshot:
        """The list of segments now. With ``sync`` it has every commit acknowledged before the call."""
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
        """Append the batch, exactly once however often it is asked for.

        Parameters
        ----------
        recover : called after the commit took effect with ids of the ledgers of a run that it retired, newest
            first: it should fence and close them. Its failure is logged, and never fails the commit.

        Raises
        ------
        RunRetiredError : another run of the application took over; the text names it.
        BatchRefusedError : another query committed this batch or a later one under the application's name, or this
            query's checkpoint was set back.
        LedgerRefusedError : a ledger or range in a message may not be listed.
        LogTailOpenError : a log writer that lives holds the tail open, and the request does not ask to fence it.
        MetadataConflictError, MetadataUnavailableError : nothing was changed, try again.
        OutcomeUnknownError : commit the same batch again; it is appended once.
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
        """Let the log begin at the segment that holds ``up_to_offset``, at the end of what is sealed where no sealed
        segment does; the first offset then. Never goes back. What is dropped is deleted by maintenance. With
        ``dry_run`` nothing is changed, and the result is where the log would begin.

        Raises InvalidArgumentError for an offset beyond the log's end; MetadataConflictError,
        MetadataUnavailableError, OutcomeUnknownError (do it again).
        """
        change = truncation(self, up_to_offset)
        return self.run(decision_steps(change, self._now_ms)) if dry_run else self.change(change)

    def policy(self) -> Policy:
        """What maintenance keeps of this log; all its rows where nothing was set."""
        self._zk.sync(self._paths.head)
        znode = self._pages.get(self._paths.policy)
        self._pages.head()
        return policy_of(znode, self._paths).policy

    def set_policy(self, policy: Policy) -> None:
        """Store what maintenance is to keep from now on. Raises InvalidArgumentError."""
        self.change(SetPolicy(self._paths, policy))

    def apply_retention(self, policy: Policy | None = None, *, dry_run: bool = False) -> int:
        """Truncate what ``policy`` (default: the stored one) does not ask for, see :mod:`bk_spark.log.gc.retention`;
        the first offset then. With ``dry_run`` nothing is changed, and the result is where the log would begin.

        Raises ClockDifferenceError where this machine's clock and ZooKeeper's disagree by more than a minute.
        """
        return apply_retention(self, self._now_ms, policy, dry_run=dry_run)

    def check_clock(self) -> None:
        """Measure the clock of this machine against ZooKeeper's. Raises ClockDifferenceError where they disagree."""
        self._zk.measure_time(self._paths.clock)
        self._zk.clock.check()

    def append_ledger(self, ledger_id: int) -> range:
        """Append a closed ledger that was not made for this log; the offsets of its entries. The log must be raw, and
        its password the ledger's. It is never deleted by the log: keep it as long as the log may hold it.

        Raises NoSuchLedgerError, LedgerRefusedError (also where it is in the log already), LogTailOpenError.
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
        """The one who writes at the log's tail until it is closed. Only for raw logs, and with a client whose
        ``explicit_lac_interval_ms`` is set. A ledger is followed by the next one when it has ``roll_bytes`` of payload
        or ``roll_entries``, or is ``roll_ms`` old.

        Raises LogTailOpenError where another writer that lives holds the tail; ``take_over`` ends that writer.
        """
        if self._zk.rest is not None:
            raise InvalidArgumentError(
                "a log writer needs a session with ZooKeeper that does not rest: leave zkSessionRestMs out of the "
                "client's configuration"
            )
        limits = RollLimits(roll_bytes, roll_ms, roll_entries)
        return LogWriter(self, self._now_ms, limits, take_over=take_over)

    def open_reader(self) -> LogReader:
        """A reader of this log, for one thread at a time.

        Returns
        -------
        LogReader
            Reads ranges of offsets, and follows the log as it grows.

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
        """Apply retention, move pages into an index ledger, and delete what nothing refers to: one bounded round. Where
        that was begun less than 10 minutes ago nothing is done, unless ``force``. With ``dry_run`` nothing is changed,
        and the report tells where the log would begin, and what the reaper would do as the list is now.

        Raises InvalidArgumentError where the log was opened without its password; NoSuchLogError, LogReplacedError;
        MetadataUnavailableError. What is wrong with one part does not keep the others from being done.
        """
        return maintain(self, self._now_ms, limits, force=force, dry_run=dry_run, on_progress=on_progress)

    def ledger_registrar(self, app: str, run: str) -> LedgerRegistrar:
        """For a writer of ``app`` in ``run``: ledger id -> operations that register the ledger.

        They go into the transaction that makes the ledger's own metadata, so that there is never one without
        the other; it is refused as a whole where the log is not this log any more. Makes the znodes above the
        registrations now; what it returns does no I/O.
        """
        return self.registrar_at(app_key(app), run_key(run))

    def registrar_at(self, app_key: str, run_key: str) -> LedgerRegistrar:
        """The same for znodes of these names, see :meth:`bk_spark.log.formats.names.LogPaths.run_at`."""
        run_path = self._paths.run_at(app_key, run_key)
        if self._zk.exists(run_path) is None:
            self.change(MakeZnodes(self._paths, self._paths.runs_at(app_key), run_path))
        return registrar(self._paths, run_path)

    def run_ledgers(self, app: str, run: str) -> list[int]:
        """Ledgers registered for a run, newest id first."""
        names = self._zk.children(self._paths.run(app, run)) or []
        return sorted(map(int, names), reverse=True)

    def application(self, app: str) -> Application | None:
        """What ``app`` has committed, or None where it has committed nothing (or was forgotten)."""
        self._zk.sync(self._paths.head)
        self._pages.head()
        path = self._paths.app(app)
        znode = self._pages.get(path)
        return None if znode is None else decode_application(znode.data, path)

    def check_run(self, app: str, run: str) -> None:
        """For a task whose ledger was fenced or failed: raises RunRetiredError where ``run`` is retired."""
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
