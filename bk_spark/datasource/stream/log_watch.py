"""Caches lists of logs, using watches instead of polling.

A watch fires at once when the connected ZooKeeper server sees a change. The server may be behind, and the event may
still be on its way through this process. So at most once a second, when a caller asks, the list is read again after a
``sync()``. In between, the cache costs nothing. Many logs are checked together, with one ``sync()`` and pipelined
reads (:func:`look_at_logs`).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.log.formats.names import is_log_name
from bk_spark.log.io.snapshot import LogSnapshot
from bk_spark.log.log import Log
from bk_spark.protocol.errors import BookKeeperError, MetadataUnavailableError
from bk_spark.protocol.metadata.znodes import Znode

_T = TypeVar("_T")
#: Seconds between two reads of something unchanged.
_LOOK_S: Final = 1.0
_MAX_SESSIONS: Final = 3

#: Seconds of a monotonic clock.
Clock = Callable[[], float]


class _Watched(ABC, Generic[_T]):
    """A value read from ZooKeeper and kept until it changes. For one thread at a time."""

    def __init__(self, zk: ZooKeeper, clock: Clock) -> None:
        self._zk = zk
        self._clock = clock
        self._found: _T | None = None
        self._is_watched = False
        self._looked_at = 0.0
        self._session: int | None = None

    def now(self) -> _T:
        """Return the current value. Changes of the last second may be missing. Raises what reading raises."""
        found = self._found
        if found is not None and not self._is_due:
            return found
        return self._look(sync=self._needs_sync)

    def latest(self) -> _T:
        """Return the value with every change acknowledged before the call."""
        return self._look(sync=True)

    @property
    def _is_due(self) -> bool:
        is_fresh = self._is_watched and self._clock() - self._looked_at < _LOOK_S
        return self._found is None or not is_fresh

    @property
    def _needs_sync(self) -> bool:
        # After a watch fired, the next read in the same session sees the change.
        return self._is_watched or self._session != self._zk.session_id

    def _look(self, *, sync: bool) -> _T:
        looked_at, session = self._clock(), self._zk.session_id
        set_watch = not self._is_watched
        # Before setting the watch, which may fire at once.
        self._is_watched = True
        try:
            found = self._read(sync, set_watch)
        except BaseException:
            self._is_watched = False
            raise
        self._found, self._looked_at, self._session = found, looked_at, session
        return found

    def _on_change(self, _: str) -> None:
        # Called in another thread; a plain store is enough.
        self._is_watched = False

    @abstractmethod
    def _read(self, sync: bool, set_watch: bool) -> _T:
        """Read the value, after a sync if ``sync``. With ``set_watch``, the next change calls ``_on_change``."""


class LogWatch(_Watched[LogSnapshot]):
    """A log's committed list. Raises what :meth:`bk_spark.log.log.Log.snapshot` raises."""

    def __init__(self, zk: ZooKeeper, log: Log, clock: Clock = time.monotonic) -> None:
        super().__init__(zk, clock)
        self._log = log
        #: From the last :func:`look_at_logs`: the state of the head, and the tail page if that was new.
        self._head_state: tuple[int, int] | None = None
        self._tail_page: Znode | None = None

    def looked_at(self, *, latest: bool) -> LogSnapshot:
        """Return what :func:`look_at_logs` just found, or else :meth:`latest` or :meth:`now`."""
        if self._found is not None and self._head_state is not None:
            return self._found
        return self.latest() if latest else self.now()

    def take_tail_page(self) -> Znode | None:
        """Return the tail page that was read with the snapshot, once."""
        page, self._tail_page = self._tail_page, None
        return page

    def _takes(self, head: Znode | None, looked_at: float, session: int) -> bool:
        """Record what :func:`look_at_logs` found. Returns whether there is a new snapshot."""
        state = None if head is None else (head.created_zxid, head.version)
        is_new = state is None or state != self._head_state
        if is_new:
            self._head_state = self._tail_page = None
            try:
                self._found = self._log.snapshot_at(head, session)
            except BookKeeperError:
                # Deleted, recreated, or damaged: the next read of this log reports it.
                self._is_watched = False
                return False
        self._head_state, self._looked_at, self._session = state, looked_at, session
        return is_new

    def _read(self, sync: bool, set_watch: bool) -> LogSnapshot:
        self._head_state = self._tail_page = None
        if set_watch:
            self._zk.exists(self._log.paths.head, self._on_change)
        return self._log.snapshot(sync=sync)


def look_at_logs(zk: ZooKeeper, watches: Iterable[LogWatch], *, latest: bool) -> None:
    """Check the ``watches`` that are due (with ``latest``: all of them) in one pass. If a log cannot be read, the next
    read of that log reports it."""
    due = [watch for watch in watches if latest or watch._is_due]
    if not due:
        return
    clock = due[0]._clock
    for _ in range(_MAX_SESSIONS):
        looked_at, session = clock(), zk.session_id
        if latest or any(watch._needs_sync for watch in due):
            zk.sync(due[0]._log.paths.head)
        heads = _heads(zk, due)
        new = [watch for watch in due if watch._takes(heads[watch._log.paths.head], looked_at, session)]
        found = zk.get_many([watch._found.tail_path for watch in new if watch._found is not None])
        for watch in new:
            if watch._found is not None:
                watch._tail_page = found[watch._found.tail_path]
        # The server of another session may be behind.
        if session and zk.session_id == session:
            return
    raise MetadataUnavailableError(f"sessions with ZooKeeper ended {_MAX_SESSIONS} times while heads of logs were read")


def _heads(zk: ZooKeeper, watches: list[LogWatch]) -> dict[str, Znode | None]:
    by_path = {watch._log.paths.head: watch for watch in watches}
    unwatched = [path for path, watch in by_path.items() if not watch._is_watched]

    def on_change(path: str) -> None:
        by_path[path]._on_change(path)

    # Before setting the watches, which may fire at once.
    for path in unwatched:
        by_path[path]._is_watched = True
    try:
        heads = zk.get_many(unwatched, on_change)
        heads.update(zk.get_many([path for path in by_path if path not in heads]))
    except BaseException:
        for path in unwatched:
            by_path[path]._is_watched = False
        raise
    return heads


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
            # The root does not exist yet, so no watch was set.
            self._is_watched = False
        return frozenset(filter(is_log_name, names or ()))
