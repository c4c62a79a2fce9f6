"""Readings for machines: what ZooKeeper could not answer is asked again, after a new ``Sync``.

Each reading is at least as new as the ``Sync`` before it. Two of them need not fit each other: what depends on
several znodes at once is decided by a :class:`bk_spark.log.core.changes.Change`, whose transaction checks their
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

#: Of what a change would come to now, where they do not fit each other.
_MAX_READINGS: Final = 20

_T = TypeVar("_T")


def sync_steps(paths: LogPaths) -> Steps[None]:
    """Raises MetadataUnavailableError, as all of these do, where ZooKeeper stays away."""
    yield from _until_answered(paths, Sync(paths.head))


def head_steps(paths: LogPaths) -> Steps[ReadHead]:
    """The present head. Raises NoSuchLogError, LogReplacedError, MetadataFormatError too."""
    yield from sync_steps(paths)
    znodes = yield from read_steps(paths, (paths.head,))
    return head_of(znodes[paths.head], paths)


def read_steps(paths: LogPaths, names: tuple[str, ...]) -> Steps[Mapping[str, Znode | None]]:
    """The znodes ``names``."""
    if not names:
        return {}
    event = yield from _until_answered(paths, Read(names))
    assert isinstance(event, Found), event
    return event.znodes


def children_steps(paths: LogPaths, path: str) -> Steps[tuple[str, ...]]:
    """Names of the children of ``path``; none where there is no such znode."""
    event = yield from _until_answered(paths, ListChildren(path))
    assert isinstance(event, Listed), event
    return event.names or ()


def measure_clock_steps(paths: LogPaths) -> Steps[None]:
    """The difference between this machine's clock and the cluster's is known as it is now."""
    yield from _until_answered(paths, MeasureClock())


def ask_steps(question: Callable[[SegmentList], _T]) -> Steps[_T]:
    """The answer of the list of segments as it is now. Raises what the question and reading the list raise."""
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
    """What ``change`` would come to now; nothing is sent. Raises what it raises, and MetadataConflictError where
    readings do not fit each other."""
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
