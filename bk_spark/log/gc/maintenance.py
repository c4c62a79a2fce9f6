"""Maintenance of a log: retention, moving pages into index ledgers, and the reaper.

Any process may do it at any time, also several at once: each part holds by its own transactions. ``<log>/maintenance``
only keeps it from being done more often than needed. Drivers do it after a commit, and wait for a little
(:func:`look_after`); ``bkctl log gc`` asks for it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from bk_spark.log.core.append import read_head
from bk_spark.log.core.index_move import move_steps
from bk_spark.log.core.plan import AlreadyDone, Plan, Readings, write_over
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.formats.znodes import decode_maintenance, encode_maintenance
from bk_spark.log.gc.reap_rules import ReapLimits
from bk_spark.log.gc.reaper import OnReapProgress, ReapReport, reap_steps
from bk_spark.protocol.errors import BookKeeperError, ClockDifferenceError, LogReplacedError, NoSuchLogError
from bk_spark.protocol.metadata.znodes import CheckOp

if TYPE_CHECKING:
    from bk_spark.log.log import Log

_LOG: Final = logging.getLogger(__name__)
#: Maintenance that nobody asked for is done no more often.
INTERVAL_MS: Final = 10 * 60 * 1000
#: A commit waits no longer for it: time enough for all of it, unless there is much to do. The rest goes on as long as
#: the process lives.
WAIT_S: Final = 2.0
#: Of index ledgers, in one round.
_MAX_MOVES: Final = 8

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class MaintenanceReport:
    """What was done: ``first_offset`` of the log after retention, how many pages moved into index ledgers, and the
    reaper's report. ``failed`` are pairs of a part and what was wrong: the other parts were done.

    ``begun`` is False where another process did it less than INTERVAL_MS ago: then there is nothing else.
    """

    begun: bool
    first_offset: int | None = None
    moved_pages: int = 0
    reaped: ReapReport | None = None
    failed: tuple[tuple[str, str], ...] = ()


class ClaimMaintenance:
    """The change that notes that maintenance begins now; its result is whether it is time for it. ``token`` is drawn
    for it."""

    def __init__(self, paths: LogPaths, token: bytes, *, force: bool) -> None:
        self.paths = paths
        self._token = token
        self._force = force

    @property
    def what(self) -> str:
        return f"begin of maintenance of log {self.paths.name}"

    @property
    def again(self) -> str:
        return "the next one begins in time"

    def decide(self, readings: Readings, now_ms: int, maybe: bool | None) -> AlreadyDone[bool] | Plan[bool]:
        """Raises NoSuchLogError, LogReplacedError, MetadataFormatError."""
        path = self.paths.maintenance
        readings.require(self.paths.head, path)
        read_head(readings, self.paths)
        znode = readings.get(path)
        if znode is not None:
            if maybe and decode_maintenance(znode.data, path) == self._token:
                return AlreadyDone(True)
            if not self._force and now_ms - znode.mtime_ms < INTERVAL_MS:
                return AlreadyDone(False)
        write = write_over(path, encode_maintenance(self._token), znode)
        return Plan((), (CheckOp(self.paths.identity, -1), write), True)


def maintain(
    log: Log,
    now_ms: Callable[[], int],
    limits: ReapLimits | None,
    *,
    force: bool,
    dry_run: bool,
    on_progress: OnReapProgress | None = None,
) -> MaintenanceReport:
    """Body of :meth:`bk_spark.log.log.Log.maintain`."""
    ledger_path, check_clock = log.ledgers.ledger_path, log.zookeeper.clock.check

    def reap() -> ReapReport:
        steps = reap_steps(
            log.paths, ledger_path, now_ms, check_clock, limits, dry_run=dry_run, on_progress=on_progress
        )
        return log.run(steps)

    if dry_run:
        return MaintenanceReport(True, log.apply_retention(dry_run=True), reaped=reap())
    # Who may delete nothing leaves the claim to others.
    if _is_clock_right(log) and not log.change(ClaimMaintenance(log.paths, os.urandom(16), force=force)):
        return MaintenanceReport(False)
    failed: list[tuple[str, str]] = []

    def part(name: str, do: Callable[[], _T]) -> _T | None:
        try:
            return do()
        except (NoSuchLogError, LogReplacedError):
            raise
        except BookKeeperError as error:
            _LOG.warning("maintenance of log %s: %s failed: %s", log.name, name, error)
            failed.append((name, str(error)))
            return None

    first_offset = part("retention", log.apply_retention)
    moved_pages = part("moving pages into an index ledger", lambda: _move_pages(log, now_ms))
    reaped = part("the reaper", reap)
    return MaintenanceReport(True, first_offset, moved_pages or 0, reaped, tuple(failed))


def _is_clock_right(log: Log) -> bool:
    try:
        log.check_clock()
    except ClockDifferenceError:
        return False
    return True


def _move_pages(log: Log, now_ms: Callable[[], int]) -> int:
    moved = 0
    for _ in range(_MAX_MOVES):
        pages = log.run(move_steps(log.paths, now_ms)).pages
        moved += pages
        if not pages:
            break
    return moved


_LOCK: Final = threading.Lock()
#: (process, log) -> when its maintenance was begun here last, and the thread. A forked child shares no threads.
_BACKGROUND: Final[dict[tuple[int, str], tuple[float, threading.Thread]]] = {}


def look_after(log: Log) -> None:
    """As :func:`start_in_background`, and wait WAIT_S for the end: a job that commits once may be over right after."""
    thread = start_in_background(log)
    if thread is not None:
        thread.join(WAIT_S)


def start_in_background(log: Log) -> threading.Thread | None:
    """Look after ``log`` in a thread of its own, if this process has not done so for INTERVAL_MS; else None.

    Never raises: what fails is logged. The thread ends with the process, whenever that is; what it leaves undone
    is done by the next one.
    """
    key, now = (os.getpid(), log.log_id), time.monotonic()
    with _LOCK:
        begun, running = _BACKGROUND.get(key, (None, None))
        if begun is not None and (now - begun < INTERVAL_MS / 1000 or (running is not None and running.is_alive())):
            return None
        thread = threading.Thread(target=_maintain_quietly, args=(log,), name="bk-maintenance", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            _LOG.warning("log %s: no thread for maintenance: %s", log.name, error)
            return None
        _BACKGROUND[key] = (now, thread)
        return thread


def _maintain_quietly(log: Log) -> None:
    try:
        report = log.maintain()
        if report.reaped is not None:
            _LOG.info(
                "maintenance of log %s: %d ledgers condemned, %d deleted, %d wait, %d failures",
                log.name,
                len(report.reaped.condemned),
                len(report.reaped.deleted),
                len(report.reaped.waiting),
                len(report.failed) + len(report.reaped.failed),
            )
    except Exception as error:  # nobody waits for the thread: what it leaves is done by the next one
        _LOG.warning("maintenance of log %s was not done: %s", log.name, error)
