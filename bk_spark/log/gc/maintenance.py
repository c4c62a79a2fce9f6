"""Maintenance of a log: retention, moving pages into index ledgers, and the reaper. No I/O.

Any process may run it at any time, even several at once: each part is safe through its own transactions.
``<log>/maintenance`` only keeps it from running more often than needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from bk_spark.log.core.append import read_head
from bk_spark.log.core.changes import change_steps
from bk_spark.log.core.index_move import move_steps
from bk_spark.log.core.plan import AlreadyDone, Plan, Readings, write_over
from bk_spark.log.core.reading import measure_clock_steps
from bk_spark.log.core.steps import Steps
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.formats.znodes import decode_maintenance, encode_maintenance
from bk_spark.log.gc.reap_rules import ReapLimits
from bk_spark.log.gc.reaper import OnReapProgress, ReapReport, reap_steps
from bk_spark.log.gc.retention import retention_steps
from bk_spark.protocol.errors import BookKeeperError, ClockDifferenceError, LogReplacedError, NoSuchLogError
from bk_spark.protocol.metadata.znodes import CheckOp

#: Minimum interval between automatic rounds.
INTERVAL_MS: Final = 10 * 60 * 1000
#: Moves into index ledgers in one round.
_MAX_MOVES: Final = 8

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class MaintenanceReport:
    """What was done: ``first_offset`` of the log after retention, how many pages were moved into index ledgers, and the
    reaper's report. ``failed`` holds pairs of a part and its error; the other parts were done.

    ``begun`` is False if another process did it less than INTERVAL_MS ago. Then there is nothing else.
    """

    begun: bool
    first_offset: int | None = None
    moved_pages: int = 0
    reaped: ReapReport | None = None
    failed: tuple[tuple[str, str], ...] = ()


class ClaimMaintenance:
    """The change that records that maintenance begins now. Its result is whether maintenance is due. ``token`` is new
    for each change."""

    def __init__(self, paths: LogPaths, token: bytes, *, force: bool) -> None:
        self.paths = paths
        self._token = token
        self._force = force

    @property
    def what(self) -> str:
        """For error texts: names the log."""
        return f"start of maintenance of log {self.paths.name}"

    @property
    def again(self) -> str:
        """Nothing is lost but time if the claim took effect: maintenance is due again after its interval."""
        return "the next round starts on its own"

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


def maintenance_steps(
    paths: LogPaths,
    ledger_path: Callable[[int], str],
    now_ms: Callable[[], int],
    check_clock: Callable[[], object],
    token: bytes,
    *,
    limits: ReapLimits | None = None,
    force: bool = False,
    dry_run: bool = False,
    on_progress: OnReapProgress | None = None,
) -> Steps[MaintenanceReport]:
    """Run one round. An error in one part does not stop the others.

    Parameters are those of :func:`bk_spark.log.gc.reaper.reap_steps` and :class:`ClaimMaintenance`. With ``dry_run``
    nothing is changed. Raises NoSuchLogError, LogReplacedError, MetadataUnavailableError; in a dry run also the errors
    of its parts.
    """

    def retain() -> Steps[int]:
        return retention_steps(paths, now_ms, check_clock, dry_run=dry_run)

    def reap() -> Steps[ReapReport]:
        return reap_steps(paths, ledger_path, now_ms, check_clock, limits, dry_run=dry_run, on_progress=on_progress)

    if dry_run:
        first_offset = yield from retain()
        return MaintenanceReport(True, first_offset, reaped=(yield from reap()))
    # A process that may not delete anything leaves the claim to others.
    if (yield from _is_clock_right(paths, check_clock)):
        begun = yield from change_steps(ClaimMaintenance(paths, token, force=force), now_ms)
        if not begun:
            return MaintenanceReport(False)
    failed: list[tuple[str, str]] = []
    kept_from = yield from _part("retention", retain(), failed)
    moved_pages = yield from _part("moving pages into an index ledger", _move_pages(paths, now_ms), failed)
    reaped = yield from _part("the reaper", reap(), failed)
    return MaintenanceReport(True, kept_from, moved_pages or 0, reaped, tuple(failed))


def _part(name: str, steps: Steps[_T], failed: list[tuple[str, str]]) -> Steps[_T | None]:
    try:
        return (yield from steps)
    except (NoSuchLogError, LogReplacedError):
        raise
    except BookKeeperError as error:
        failed.append((name, str(error)))
        return None


def _is_clock_right(paths: LogPaths, check_clock: Callable[[], object]) -> Steps[bool]:
    yield from measure_clock_steps(paths)
    try:
        check_clock()
    except ClockDifferenceError:
        return False
    return True


def _move_pages(paths: LogPaths, now_ms: Callable[[], int]) -> Steps[int]:
    moved = 0
    for _ in range(_MAX_MOVES):
        report = yield from move_steps(paths, now_ms)
        moved += report.pages
        if not report.pages:
            break
    return moved
