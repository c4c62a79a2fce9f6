"""Tells of changes of one znode."""

from __future__ import annotations

import threading

from bk_spark.bookie.metadata.zookeeper import ZooKeeper


class ZnodeWatch:
    """Sets ``changed`` when the znode ``path`` was made, changed or deleted, and after every loss of the connection.

    A watch in ZooKeeper cannot be taken back: there is never more than one. For one thread at a time.
    """

    def __init__(self, zk: ZooKeeper, path: str, changed: threading.Event) -> None:
        self._zk = zk
        self._path = path
        self._changed = changed
        self._armed = False

    def arm(self) -> None:
        """From now on the next change is told."""
        if not self._armed:
            # Before the watch is set: it may fire at once.
            self._armed = True
            try:
                self._zk.exists(self._path, watch=self._on_change)
            except BaseException:
                self._armed = False
                raise

    def _on_change(self, _: str) -> None:
        self._armed = False
        self._changed.set()
