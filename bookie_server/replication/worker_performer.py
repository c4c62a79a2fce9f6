"""Performs the actions of the replication worker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from random import SystemRandom
from typing import Any, Final, Protocol

from bk_spark.bookie.metadata.proven_changes import put
from bk_spark.bookie.replication.under_replication_store import LockedLedger
from bk_spark.bookie.shielded import shielded
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.metadata.replication_notes import RepairFailure, reason_path
from bk_spark.protocol.metadata.under_replication import Mark, locked_ledger
from bk_spark.protocol.replication.actions import Gone, LockLost, NothingBad, Repaired, RepairResult, Unrepairable
from bookie_server.replication.access import ReplicationAccess
from bookie_server.replication.actions import DisabledRead
from bookie_server.replication.replication_metrics import ReplicationMetrics
from bookie_server.replication.worker_actions import (
    Finish,
    Lock,
    Locked,
    LocksRead,
    MarksChanged,
    MarksRead,
    NoteReason,
    NotLocked,
    ReadLocks,
    ReadMarks,
    Release,
    Released,
    Repair,
    RepairEnd,
    RepairEnded,
    StopRepair,
    WatchSwitch,
    WorkFailed,
)

_LOG: Final = logging.getLogger(__name__)
#: Ledgers whose unreadable entries are remembered.
_MAX_UNREADABLE: Final = 1_000


class RepairLedger(Protocol):
    """Repairs one ledger whose lock is held, from what was read under it. ``unreadable`` are entries that an earlier
    repair could not read.

    If it is cancelled, it ends when nothing of it is under way any more.
    """

    def __call__(
        self, ledger_id: int, mark: Mark, unreadable: frozenset[int], found: LockedLedger
    ) -> Coroutine[Any, Any, RepairResult]:
        """Repair the ledger. ``mark`` and ``found`` were read under the lock."""


class WorkerPerformer:
    """Performs the actions of a worker. ``tell`` receives what the worker watches."""

    def __init__(
        self,
        access: ReplicationAccess,
        repair: RepairLedger,
        tell: Callable[[Any], None],
        metrics: ReplicationMetrics,
    ) -> None:
        self._access = access
        self._repair_ledger = repair
        self._tell = tell
        self._metrics = metrics
        #: The pages of marks being read.
        self._pages: Iterator[dict[int, Mark]] = iter(())
        #: What was read of locked ledgers under the lock.
        self._locked: dict[int, LockedLedger] = {}
        self._repairs: dict[int, asyncio.Task[RepairResult]] = {}
        #: Entries that no bookie returned, by ledger.
        self._unreadable: dict[int, frozenset[int]] = {}
        self._random = SystemRandom()

    def __call__(self, action: Any) -> Coroutine[Any, Any, Any] | None:
        """Begin an action. Returns the coroutine whose result is its event, or None if it has no answer."""
        match action:
            case WatchSwitch():
                return self._watch()
            case StopRepair(ledger_id):
                if (task := self._repairs.get(ledger_id)) is not None:
                    task.cancel()
                return None
            case NoteReason():
                return self._note(action)
        return self._answered(action)

    async def _watch(self) -> None:
        access = self._access
        async with asyncio.TaskGroup() as group:
            group.create_task(access.follow(lambda watch: DisabledRead(access.switches.is_disabled(watch)), self._tell))
            group.create_task(access.follow(lambda watch: MarksChanged(access.store.any_marks(watch)), self._tell))

    async def stop(self) -> None:
        """Cancel all repairs and wait for their end."""
        tasks = list(self._repairs.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answered(self, action: Any) -> Any:
        try:
            return await self._do(action)
        except Exception as error:
            if not isinstance(error, BookKeeperError):
                _LOG.exception("replication: %s failed", action)
            return WorkFailed(action, error)

    async def _do(self, action: Any) -> Any:
        access, store = self._access, self._access.store
        match action:
            case ReadLocks():
                names = await access.call(access.zk.children, store.paths.locks) or ()
                return LocksRead(frozenset(each for name in names if (each := locked_ledger(name)) is not None))
            case ReadMarks(first):
                if first:
                    self._pages = store.marks(rng=self._random)
                page = await access.call(next, self._pages, None)
                return MarksRead(tuple(page or ()), more=page is not None)
            case Lock(ledger_id):
                return await self._lock(ledger_id)
            case Repair(ledger_id):
                return await self._repair(ledger_id)
            case Finish(ledger_id, version):
                await access.call(self._finish, ledger_id, version)
                return Released(ledger_id)
            case Release(ledger_id):
                await access.call(store.release, ledger_id)
                return Released(ledger_id)
        raise AssertionError(action)

    async def _lock(self, ledger_id: int) -> Locked | NotLocked:
        found = await self._access.call(self._lock_and_read, ledger_id)
        if found is None:
            return NotLocked(ledger_id)
        if found.mark is None:
            return Locked(ledger_id, None)
        self._locked[ledger_id] = found
        return Locked(ledger_id, found.mark.version)

    def _lock_and_read(self, ledger_id: int) -> LockedLedger | None:
        """Blocking."""
        access = self._access
        if not access.store.lock(ledger_id, proof=access.proof):
            return None
        return access.store.read_locked(ledger_id, access.ledgers.path_of(ledger_id))

    async def _repair(self, ledger_id: int) -> RepairEnded:
        found = self._locked.pop(ledger_id)
        assert found.mark is not None
        work = self._repair_ledger(ledger_id, found.mark, self._unreadable.pop(ledger_id, frozenset()), found)
        task = asyncio.get_running_loop().create_task(work)
        self._repairs[ledger_id] = task
        began = time.monotonic()
        result: RepairResult | None = None
        try:
            result = await shielded(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                task.cancel()
                raise
            return RepairEnded(ledger_id, RepairEnd.STOPPED)
        finally:
            del self._repairs[ledger_id]
            self._metrics.repair_ended(
                time.monotonic() - began,
                ok=isinstance(result, Repaired | NothingBad | Gone),
                changed=isinstance(result, Repaired) and result.fragments > 0,
                moved=isinstance(result, Repaired) and result.moved > 0,
                unreadable=len(result.unreadable) if isinstance(result, Unrepairable) else 0,
            )
        match result:
            case Repaired(fragments, entries, size_bytes):
                _LOG.info(
                    "ledger %d is repaired: %d fragments, %d entries, %d bytes",
                    ledger_id, fragments, entries, size_bytes,
                )  # fmt: skip
                return RepairEnded(ledger_id, RepairEnd.REPAIRED)
            case NothingBad():
                return RepairEnded(ledger_id, RepairEnd.REPAIRED)
            case Gone():
                return RepairEnded(ledger_id, RepairEnd.GONE)
            case LockLost():
                return RepairEnded(ledger_id, RepairEnd.LOCK_LOST)
            case Unrepairable(reason):
                if result.unreadable and len(self._unreadable) < _MAX_UNREADABLE:
                    self._unreadable[ledger_id] = result.unreadable
                return RepairEnded(ledger_id, RepairEnd.UNREPAIRABLE, reason)

    def _finish(self, ledger_id: int, version: int) -> None:
        """Blocking."""
        access = self._access
        access.store.forget_reason(ledger_id)
        access.store.finish(ledger_id, version, proof=access.proof)

    async def _note(self, note: NoteReason) -> None:
        access = self._access
        _LOG.warning(
            "ledger %d cannot be repaired, attempt %d: %s; tried again after a pause",
            note.ledger_id, note.attempts, note.reason,
        )  # fmt: skip
        path, data = reason_path(access.uri.root, note.ledger_id), RepairFailure(note.reason, note.attempts).encode()
        with contextlib.suppress(BookKeeperError):
            await access.call(put, access.zk, path, lambda _: data, access.proof)
