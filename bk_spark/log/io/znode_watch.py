"""Reports changes of one znode."""

from __future__ import annotations

from typing import Protocol

from bk_spark.bookie.metadata.zookeeper import ZooKeeper


class Change(Protocol):
    """Where a change is noted: an event of threads, or one that wakes another event loop."""

    def set(self) -> None:
        """Note the change. Any thread may call it, and it must not block."""
        ...


class ZnodeWatch:
    """Sets ``changed`` when the znode ``path`` is created, changed or deleted, and after every lost connection.

    A ZooKeeper watch cannot be withdrawn, so there is never more than one. For one thread at a time.
    """

    def __init__(self, zk: ZooKeeper, path: str, changed: Change) -> None:
        self._zk = zk
        self._path = path
        self._changed = changed
        self._armed = False

    def arm(self) -> None:
        """Make sure that the next change sets ``changed``."""
        if not self._armed:
            # Set before the watch, which may fire at once.
            self._armed = True
            try:
                self._zk.exists(self._path, watch=self._on_change)
            except BaseException:
                self._armed = False
                raise

    def _on_change(self, _: str) -> None:
        self._armed = False
        self._changed.set()
