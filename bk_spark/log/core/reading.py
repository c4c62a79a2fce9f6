"""Reads for machines. If ZooKeeper could not answer, they sync and read again.

Each read is at least as new as the ``Sync`` before it. Two reads need not be consistent with each other. A decision
that depends on several znodes is made by a :class:`bk_spark.log.core.changes.Change`, whose transaction checks their
versions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from bk_spark.log.core.append import ReadHead, head_of
from bk_spark.log.core.changes import (
    CONFLICT_PAUSE_MS,
    MAX_UNAVAILABLE,
    UNAVAILABLE_PAUSE_MS,
    Change,
    step_of,
)
from bk_spark.log.core.plan import AlreadyDone, Need, NeedClosed, Plan, Readings
from bk_spark.log.core.steps import (
    Answered,
    AskList,
    Done,
    Event,
    Found,
    ListChildren,
    Listed,
    MeasureClock,
    Pause,
    Read,
    SegmentList,
    Steps,
    Sync,
    Unavailable,
)
from bk_spark.log.formats.names import LogPaths
from bk_spark.protocol.errors import MetadataConflictError, MetadataUnavailableError
from bk_spark.protocol.metadata.znodes import Znode

#: Attempts to read a consistent state for a dry run.
_MAX_READINGS: Final = 20

_T = TypeVar("_T")


def sync_steps(paths: LogPaths) -> Steps[None]:
    """Sync. Like all functions here, raises MetadataUnavailableError if ZooKeeper stays unavailable."""
    yield from _until_answered(paths, Sync(paths.head))


def head_steps(paths: LogPaths) -> Steps[ReadHead]:
    """Read the current head. Also raises NoSuchLogError, LogReplacedError, MetadataFormatError."""
    event = yield from _until_answered(paths, Read((paths.head,), after_sync=True))
    assert isinstance(event, Found), event
    return head_of(event.znodes[paths.head], paths)


def read_steps(paths: LogPaths, names: tuple[str, ...]) -> Steps[Mapping[str, Znode | None]]:
    """Read the znodes ``names``."""
    if not names:
        return {}
    event = yield from _until_answered(paths, Read(names))
    assert isinstance(event, Found), event
    return event.znodes


def children_steps(paths: LogPaths, path: str) -> Steps[tuple[str, ...]]:
    """List the names of the children of ``path``. Empty if there is no such znode."""
    event = yield from _until_answered(paths, ListChildren(path))
    assert isinstance(event, Listed), event
    return event.names or ()


def measure_clock_steps(paths: LogPaths) -> Steps[None]:
    """Measure the current difference between this machine's clock and the cluster's."""
    yield from _until_answered(paths, MeasureClock())


def ask_steps(question: Callable[[SegmentList], _T]) -> Steps[_T]:
    """Ask the current segment list a question. Raises the errors of the question and of reading the list."""
    event = yield AskList(question)
    assert isinstance(event, Answered), event
    answer: _T = event.answer
    return answer


def _until_answered(paths: LogPaths, action: Sync | Read | ListChildren | MeasureClock) -> Steps[Event]:
    event = yield action
    for attempt in range(1, MAX_UNAVAILABLE + 1):
        if not isinstance(event, Unavailable):
            return event
        yield Pause(UNAVAILABLE_PAUSE_MS * attempt)
        event = yield Sync(paths.head)
        if isinstance(event, Done) and not isinstance(action, Sync):
            event = yield action
    if isinstance(event, Unavailable):
        raise MetadataUnavailableError(f"log {paths.name}: ZooKeeper cannot be reached ({event.reason})")
    return event


def decision_steps(change: Change[_T], now_ms: Callable[[], int]) -> Steps[_T]:
    """Return what ``change`` would result in now, without sending anything. Raises its errors, and
    MetadataConflictError if no consistent state could be read."""
    for _ in range(_MAX_READINGS):
        yield from sync_steps(change.paths)
        znodes: dict[str, Znode | None] = {}
        step = step_of(change, Readings(znodes), now_ms())
        while isinstance(step, Need):
            znodes.update((yield from read_steps(change.paths, step.paths)))
            step = step_of(change, Readings(znodes), now_ms())
        if isinstance(step, Plan | AlreadyDone):
            return step.result
        assert not isinstance(step, NeedClosed), f"{change.what} is not decided without closing ledgers"
        yield Pause(CONFLICT_PAUSE_MS)
    raise MetadataConflictError(f"{change.what}: the log was changed by others while it was read")
