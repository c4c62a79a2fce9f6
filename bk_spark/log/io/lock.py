"""The log's advisory lock: a queue of ephemeral znodes below ``<log>/lock``. The first in the queue holds the lock.

It keeps a change from starving when many processes write the head (:mod:`bk_spark.log.core.changes`). Correctness
depends on versions, not on the lock, so nobody waits forever. A holder that stays for ``hold_ms`` is removed: it hangs,
or its session has not expired yet. A process that is not first after ``wait_ms`` continues without the lock.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from types import TracebackType
from typing import Final

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.errors import MetadataError, NoNodeError

_LOG: Final = logging.getLogger(__name__)

#: Longer than a change of usual size needs to read and send; short for a process waiting behind one that hangs.
DEFAULT_HOLD_MS: Final = 5_000
DEFAULT_WAIT_MS: Final = 30_000


class AdvisoryLock:
    """A context manager that releases the lock on exit. For one thread."""

    def __init__(
        self, zk: ZooKeeper, path: str, *, hold_ms: int = DEFAULT_HOLD_MS, wait_ms: int = DEFAULT_WAIT_MS
    ) -> None:
        self._zk = zk
        self._path = path
        self._hold_s = hold_ms / 1000
        self._wait_s = wait_ms / 1000
        #: Distinguishes this lock's places from those of others in the same session.
        self._token = uuid.uuid4().hex
        #: Whether this lock may have a place in the queue; and the place's name, if known.
        self._asked = False
        self._place: str | None = None

    def try_take(self) -> bool:
        """Acquire the lock, waiting if necessary. Returns whether it is held now; False on ZooKeeper errors."""
        try:
            return self._take()
        except MetadataError as error:
            _LOG.info("continuing without the lock %s: %s", self._path, error)
            return False

    def release(self) -> None:
        """Leave the queue. Safe to repeat. If it fails, the session's end or a waiter's timeout removes the place."""
        if self._asked:
            self._asked, place, self._place = False, self._place, None
            with contextlib.suppress(MetadataError):
                self._leave([place] if place is not None else self._queue())

    def __enter__(self) -> AdvisoryLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _take(self) -> bool:
        if not (self._asked and any(map(self._is_mine, self._queue()))):
            # If the reply is lost, a place with an unknown name may exist.
            self._asked, self._place = True, None
            made = self._zk.create(f"{self._path}/{self._token}-", ephemeral=True, sequence=True)
            self._place = made.rpartition("/")[2]
        deadline = time.monotonic() + self._wait_s
        holder, since = "", 0.0
        while True:
            queue = self._queue()
            place = next((index for index, name in enumerate(queue) if self._is_mine(name)), None)
            if place is None:
                # Others removed this place: they assumed that its holder hangs.
                return False
            if place == 0:
                return True
            now = time.monotonic()
            if queue[0] != holder:
                holder, since = queue[0], now
            if now >= since + self._hold_s:
                _LOG.info(
                    "the lock %s was held for %.1f s: %s is removed from the queue", self._path, now - since, holder
                )
                self._remove(holder)
            elif now >= deadline:
                self.release()
                return False
            else:
                self._wait_for(queue[place - 1], min(since + self._hold_s, deadline) - now)

    def _is_mine(self, name: str) -> bool:
        return name.startswith(self._token)

    def _queue(self) -> list[str]:
        """Return the names in the queue, first one first."""
        return sorted(self._zk.children(self._path) or (), key=lambda name: name.rpartition("-")[2])

    def _wait_for(self, name: str, seconds: float) -> None:
        """Wait until ``name`` leaves the queue, or for ``seconds``."""
        left = threading.Event()
        if self._zk.exists(f"{self._path}/{name}", watch=lambda _: left.set()) is not None:
            left.wait(seconds)

    def _leave(self, names: list[str]) -> None:
        for name in filter(self._is_mine, names):
            self._remove(name)

    def _remove(self, name: str) -> None:
        with contextlib.suppress(NoNodeError):
            self._zk.delete(f"{self._path}/{name}")
