"""Runs a commit's machine against ZooKeeper, in the caller's thread."""

from __future__ import annotations

import random
import time
from typing import Final

from bk_spark.bookie.zookeeper import TransactionConflictError, ZooKeeper
from bk_spark.log.commit_steps import (
    Action,
    Conflict,
    Done,
    Event,
    Found,
    OutcomeUnknown,
    Pause,
    Read,
    Steps,
    Sync,
    TakeLock,
    Transact,
    Unavailable,
)
from bk_spark.log.lock import AdvisoryLock
from bk_spark.log.plan import CommitResult
from bk_spark.protocol.errors import MetadataUnavailableError, OutcomeUnknownError

_JITTER: Final = random.Random()


def run_steps(zk: ZooKeeper, steps: Steps, lock_path: str) -> CommitResult:
    """The machine's result. Raises what the machine raises; releases the lock in any case."""
    with AdvisoryLock(zk, lock_path) as lock:
        session = 0
        try:
            action = next(steps)
            while True:
                if isinstance(action, Sync):
                    session = zk.session_id
                event = _perform(zk, action, lock)
                if isinstance(action, Sync | Read) and zk.session_id != session:
                    # The new session's server may be behind what the old one was synced to.
                    event = Unavailable("the session with ZooKeeper ended")
                action = steps.send(event)
        except StopIteration as end:
            result: CommitResult = end.value
            return result


def _perform(zk: ZooKeeper, action: Action, lock: AdvisoryLock) -> Event:
    match action:
        case Sync(path):
            try:
                zk.sync(path)
            except MetadataUnavailableError as error:
                return Unavailable(str(error))
        case Read(paths):
            try:
                return Found({path: zk.get(path) for path in paths})
            except MetadataUnavailableError as error:
                return Unavailable(str(error))
        case Transact(operations):
            try:
                zk.transaction(operations)
            except TransactionConflictError as error:
                return Conflict(str(error))
            except OutcomeUnknownError as error:
                return OutcomeUnknown(str(error))
        case TakeLock():
            lock.try_take()
        case Pause(about_ms):
            time.sleep(about_ms * _JITTER.uniform(0.5, 1.5) / 1000)
    return Done()
