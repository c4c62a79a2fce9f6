"""Runs the machines that change a log against ZooKeeper and bookies, in the caller's thread."""

from __future__ import annotations

import random
import time
from typing import Final, TypeVar

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.log.core.steps import (
    Action,
    CloseLedger,
    Conflict,
    Created,
    CreateLedger,
    Done,
    EntryRead,
    Event,
    Failed,
    Found,
    ListChildren,
    Listed,
    OutcomeUnknown,
    Pause,
    Read,
    ReadEntry,
    ReadTimer,
    RecoverLedger,
    ReleaseLock,
    Steps,
    Sync,
    TakeLock,
    TimerRead,
    Transact,
    Unavailable,
    WriteLedger,
)
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.ledgers import LogLedgers
from bk_spark.log.lock import AdvisoryLock
from bk_spark.protocol.errors import (
    BookKeeperError,
    InvalidArgumentError,
    MetadataUnavailableError,
    OutcomeUnknownError,
)
from bk_spark.protocol.metadata.znodes import TransactionConflictError

_JITTER: Final = random.Random()
_T = TypeVar("_T")


def run_steps(zk: ZooKeeper, steps: Steps[_T], paths: LogPaths, ledgers: LogLedgers | None) -> _T:
    """The result of a machine that works on the log at ``paths``. Raises what the machine raises; lets go of the lock
    whatever happens.

    Without ``ledgers`` actions on ledgers fail with InvalidArgumentError.
    """
    with AdvisoryLock(zk, paths.lock) as lock:
        session = 0
        try:
            action = next(steps)
            while True:
                if isinstance(action, Sync):
                    session = zk.session_id
                event = _perform(zk, action, paths, lock, ledgers)
                if isinstance(action, Sync | Read | ListChildren) and zk.session_id != session:
                    # The new session's server may be behind what the old one was synced to.
                    event = Unavailable("the session with ZooKeeper ended")
                action = steps.send(event)
        except StopIteration as end:
            result: _T = end.value
            return result


def _perform(zk: ZooKeeper, action: Action, paths: LogPaths, lock: AdvisoryLock, ledgers: LogLedgers | None) -> Event:
    match action:
        case Sync() | Read() | ListChildren():
            return _read(zk, action, paths)
        case Transact(operations):
            try:
                zk.transaction(operations)
            except TransactionConflictError as error:
                return Conflict(str(error))
            except OutcomeUnknownError as error:
                return OutcomeUnknown(str(error))
            except MetadataUnavailableError as error:
                return Unavailable(str(error))
        case TakeLock():
            lock.try_take()
        case ReleaseLock():
            lock.release()
        case ReadTimer():
            return TimerRead(time.monotonic_ns() // 1_000_000)
        case Pause(about_ms):
            time.sleep(about_ms * _JITTER.uniform(0.5, 1.5) / 1000)
        case _:
            return _perform_on_ledger(action, ledgers)
    return Done()


def _read(zk: ZooKeeper, action: Sync | Read | ListChildren, paths: LogPaths) -> Event:
    try:
        match action:
            case Sync(path):
                zk.sync(path)
                if not zk.clock.is_fresh(zk.session_id):
                    zk.measure_time(paths.clock)
                return Done()
            case Read(names):
                return Found(zk.get_many(names))
            case ListChildren(path):
                children = zk.children(path)
                return Listed(None if children is None else tuple(children))
    except MetadataUnavailableError as error:
        return Unavailable(str(error))


def _perform_on_ledger(
    action: CreateLedger | CloseLedger | RecoverLedger | WriteLedger | ReadEntry, ledgers: LogLedgers | None
) -> Event:
    try:
        if ledgers is None:
            raise InvalidArgumentError(
                "this needs the log's ledgers: open the log with its password, from a store that has a client"
            )
        match action:
            case CreateLedger(register):
                return Created(ledgers.create(register).ledger_id)
            case CloseLedger(ledger_id):
                return ledgers.close(ledger_id)
            case RecoverLedger(ledger_id):
                return ledgers.recover(ledger_id)
            case WriteLedger(register, entries):
                return Created(ledgers.write(register, entries))
            case ReadEntry(ledger_id, entry_id):
                return EntryRead(ledgers.read_entry(ledger_id, entry_id))
    except TransactionConflictError as error:
        return Conflict(str(error))
    except BookKeeperError as error:
        return Failed(error)
