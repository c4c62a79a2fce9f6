"""Lists of logs that are watched instead of polled.

A watch tells at once of a change that the connected ZooKeeper server knows of. A server may be behind, and the news
of a change may still be on its way through this process; so once a second, when somebody asks, it is looked after a
``sync()``. Between that, what is cached here costs nothing.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from bk_spark.bookie.zookeeper import ZooKeeper
from bk_spark.log.log import Log
from bk_spark.log.names import is_log_name
from bk_spark.log.snapshot import LogSnapshot

_T = TypeVar("_T")
#: Between two looks at what did not change.
_LOOK_S: Final = 1.0

#: Seconds of a clock that only goes on.
Clock = Callable[[], float]


class _Watched(ABC, Generic[_T]):
    """What is read from ZooKeeper, and kept until it changes. For one thread at a time."""

    def __init__(self, zk: ZooKeeper, clock: Clock) -> None:
        self._zk = zk
        self._clock = clock
        self._found: _T | None = None
        self._is_watched = False
        self._looked_at = 0.0
        self._session: int | None = None

    def now(self) -> _T:
        """As it is now, but for changes of the last second that news has not come of yet. Raises what reading does."""
        found = self._found
        if found is not None and self._is_watched and self._clock() - self._looked_at < _LOOK_S:
            return found
        # What a watch told of is seen by the next reading in the same session.
        return self._look(sync=self._is_watched or self._session != self._zk.session_id)

    def latest(self) -> _T:
        """With every change acknowledged before the call."""
        return self._look(sync=True)

    def _look(self, *, sync: bool) -> _T:
        looked_at, session = self._clock(), self._zk.session_id
        set_watch = not self._is_watched
        # Before the watch is set: it may fire at once.
        self._is_watched = True
        try:
            found = self._read(sync, set_watch)
        except BaseException:
            self._is_watched = False
            raise
        self._found, self._looked_at, self._session = found, looked_at, session
        return found

    def _on_change(self, _: str) -> None:
        # In another thread; a plain store.
        self._is_watched = False

    @abstractmethod
    def _read(self, sync: bool, set_watch: bool) -> _T:
        """Read it, after a sync if so; ``set_watch``: have ``_on_change`` called at the first change after this."""


class LogWatch(_Watched[LogSnapshot]):
    """A log's committed list. Raises what :meth:`bk_spark.log.log.Log.snapshot` raises."""

    def __init__(self, zk: ZooKeeper, log: Log, clock: Clock = time.monotonic) -> None:
        super().__init__(zk, clock)
        self._log = log

    def _read(self, sync: bool, set_watch: bool) -> LogSnapshot:
        if set_watch:
            self._zk.exists(self._log.paths.head, self._on_change)
        return self._log.snapshot(sync=sync)


class LogNamesWatch(_Watched[frozenset[str]]):
    """Names of the logs under a root."""

    def __init__(self, zk: ZooKeeper, root: str, clock: Clock = time.monotonic) -> None:
        super().__init__(zk, clock)
        self._root = root

    def _read(self, sync: bool, set_watch: bool) -> frozenset[str]:
        if sync:
            self._zk.sync(self._root)
        names = self._zk.children(self._root, self._on_change if set_watch else None)
        if names is None:
            # There is no root yet, and so no watch.
            self._is_watched = False
        return frozenset(filter(is_log_name, names or ()))
