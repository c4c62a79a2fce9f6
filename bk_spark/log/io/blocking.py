"""Blocking access to one log: machines run in the caller's thread, against ZooKeeper and bookies."""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.runners import run_blocking
from bk_spark.log.core.changes import Change, SeenTail, change_steps
from bk_spark.log.core.steps import (
    AbandonLedger,
    Action,
    Answered,
    AskList,
    CloseLedger,
    Conflict,
    Created,
    CreateLedger,
    Done,
    EntryRead,
    Event,
    Failed,
    Found,
    InSession,
    IsLedgerOpen,
    LedgerAction,
    LimitTime,
    ListChildren,
    Listed,
    LogMachine,
    MeasureClock,
    OutcomeUnknown,
    Pause,
    Read,
    ReadEntry,
    ReadTimer,
    Recovered,
    RecoverLedger,
    RecoverLedgers,
    ReleaseLock,
    Steps,
    Sync,
    TakeLock,
    TimerRead,
    Transact,
    Unavailable,
    Warn,
    WriteLedger,
)
from bk_spark.log.core.tail.writer_actions import Claimed, ClaimLedger, WriterAction
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.formats.settings import LogSettings, decode_settings
from bk_spark.log.io.ledgers import LogLedgers
from bk_spark.log.io.lock import AdvisoryLock
from bk_spark.log.io.page_reader import PageReader
from bk_spark.log.io.snapshot import LogSnapshot
from bk_spark.protocol.errors import (
    BookKeeperError,
    InvalidArgumentError,
    MetadataUnavailableError,
    OutcomeUnknownError,
)
from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from bk_spark.protocol.metadata.znodes import TransactionConflictError, TransactionOp

_LOG: Final = logging.getLogger(__name__)
_JITTER: Final = random.Random()
_T = TypeVar("_T")

#: Performs the actions of a log writer's machines.
WriterPerformer = Callable[[WriterAction], Event]


class BlockingLog:
    """What blocking code needs for one log. Thread-safe.

    Parameters
    ----------
    now_ms
        Returns the cluster's time in Unix milliseconds, or slightly less.
    ledgers
        The log's ledgers. None if the log was opened without its password, or by a store without a client.
    """

    def __init__(
        self,
        zk: ZooKeeper,
        paths: LogPaths,
        settings: LogSettings,
        now_ms: Callable[[], int],
        ledgers: LogLedgers | None,
    ) -> None:
        self.name = paths.name
        self.zk = zk
        self.paths = paths
        self.settings = settings
        self.now_ms = now_ms
        self.pages = PageReader(zk, paths, ledgers)
        self.seen_tail = SeenTail()
        self._ledgers = ledgers

    @property
    def ledgers(self) -> LogLedgers:
        """The log's ledgers. Raises InvalidArgumentError if they are not accessible."""
        if self._ledgers is None:
            raise InvalidArgumentError(
                f"log {self.name} was opened without its password, or from a store without a client: its ledgers are "
                "not accessible. Open it with its password, from a store that has a client"
            )
        return self._ledgers

    def learn_settings(self) -> None:
        """See :meth:`bk_spark.log.log.Log.learn_settings`."""
        znode = self.zk.get(self.paths.settings)
        if znode is not None:
            log_id, settings = decode_settings(znode.data, self.paths.settings)
            # If they are those of another log, every other call says so.
            if log_id == self.paths.log_id:
                self.settings = settings

    def snapshot(self, *, sync: bool = True) -> LogSnapshot:
        """See :meth:`bk_spark.log.log.Log.snapshot`."""
        if sync:
            self.zk.sync(self.paths.head)
        return LogSnapshot(self.name, self.pages.head(), self.pages)

    def run(self, steps: Steps[_T], writer: WriterPerformer | None = None) -> _T:
        """Run a machine on this log and return its result. Raises what the machine raises. Always releases the log's
        lock."""
        with AdvisoryLock(self.zk, self.paths.lock) as lock, contextlib.ExitStack() as limits:
            return run_blocking(LogMachine(steps), _Performer(self, lock, limits, writer))

    def change(self, change: Change[_T]) -> _T:
        """Make one change. Raises what :func:`bk_spark.log.core.changes.change_steps` raises."""
        return self.run(change_steps(change, self.now_ms, self.seen_tail))


class _Performer:
    """Performs the actions of one machine in the caller's thread."""

    def __init__(
        self, log: BlockingLog, lock: AdvisoryLock, limits: contextlib.ExitStack, writer: WriterPerformer | None
    ) -> None:
        self._log = log
        self._zk = log.zk
        self._lock = lock
        self._limits = limits
        self._writer = writer

    def __call__(self, action: Action) -> Event | InSession:
        match action:
            case Sync() | Read() | ListChildren():
                before = self._zk.session_id
                event = self._read(action)
                return InSession(action, event, before, self._zk.session_id)
            case MeasureClock():
                return self._measure_clock()
            case AskList(question):
                return Answered(question(self._log.snapshot()))
            case Transact(operations):
                return self._transact(operations)
            case TakeLock():
                self._lock.try_take()
            case ReleaseLock():
                self._lock.release()
            case ReadTimer():
                return TimerRead(time.monotonic_ns() // 1_000_000)
            case Pause(about_ms):
                time.sleep(about_ms * _JITTER.uniform(0.5, 1.5) / 1000)
            case LimitTime(within_ms):
                self._limits.enter_context(self._zk.within(within_ms))
            case Warn(text):
                _LOG.warning("log %s: %s", self._log.name, text)
            case _:
                return self._on_ledger(action)
        return Done()

    def _read(self, action: Sync | Read | ListChildren) -> Event:
        zk = self._zk
        try:
            match action:
                case Sync(path):
                    self._learn_time()
                    zk.sync(path)
                    return Done()
                case Read(names, after_sync):
                    if after_sync:
                        self._learn_time()
                    return Found(zk.get_many(names, sync=after_sync))
                case ListChildren(path):
                    children = zk.children(path)
                    return Listed(None if children is None else tuple(children))
        except MetadataUnavailableError as error:
            return Unavailable(str(error))

    def _learn_time(self) -> None:
        if not self._zk.clock.is_fresh(self._zk.session_id):
            self._zk.measure_time(self._log.paths.clock)

    def _measure_clock(self) -> Event:
        try:
            self._zk.measure_time(self._log.paths.clock)
        except MetadataUnavailableError as error:
            return Unavailable(str(error))
        return Done()

    def _transact(self, operations: tuple[TransactionOp, ...]) -> Event:
        try:
            self._zk.transaction(operations)
        except TransactionConflictError as error:
            return Conflict(str(error))
        except OutcomeUnknownError as error:
            return OutcomeUnknown(str(error))
        except MetadataUnavailableError as error:
            return Unavailable(str(error))
        return Done()

    def _on_ledger(self, action: LedgerAction | WriterAction) -> Event:
        try:
            ledgers = self._log.ledgers
            match action:
                case CreateLedger(register):
                    return Created(ledgers.create(register).ledger_id)
                case ClaimLedger(ledger_id):
                    return Claimed(ledgers.claim(ledger_id))
                case CloseLedger(ledger_id):
                    return ledgers.close(ledger_id)
                case AbandonLedger(ledger_id):
                    ledgers.abandon(ledger_id)
                    return Done()
                case RecoverLedger(ledger_id):
                    return ledgers.recover(ledger_id)
                case RecoverLedgers(ledger_ids, within_ms):
                    failed, left = ledgers.recover_all(ledger_ids, within_ms / 1000)
                    return Recovered(failed, tuple(left))
                case WriteLedger(register, entries):
                    return Created(ledgers.write(register, entries))
                case ReadEntry(ledger_id, entry_id):
                    return EntryRead(ledgers.read_entry(ledger_id, entry_id))
                case IsLedgerOpen(ledger_id):
                    return Answered(ledgers.client.metadata(ledger_id).state is LedgerState.OPEN)
                case _:
                    assert self._writer is not None, f"{action} is for log writers only"
                    return self._writer(action)
        except TransactionConflictError as error:
            return Conflict(str(error))
        except BookKeeperError as error:
            return Failed(error)
