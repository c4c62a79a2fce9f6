"""Watches a log writer's hold on the tail: a thread checks whenever the owner's znode changed or may have changed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.log.znode_watch import ZnodeWatch
from bk_spark.protocol.errors import BookKeeperError, OutcomeUnknownError

_LOG: Final = logging.getLogger(__name__)

#: For one check. Keeps ``stop`` from waiting long.
_LOOK_MS: Final = 5_000
_PAUSE_S: Final = 1.0


class TailKeeper:
    """Calls ``look`` in its own thread when the znode ``path`` is created, changed or deleted, and after every lost
    connection. While ZooKeeper is unavailable it calls again after a pause. Any other ZooKeeper error ends the thread.

    ``look`` may send requests to ZooKeeper, for a few seconds in total.
    """

    def __init__(self, zk: ZooKeeper, path: str, look: Callable[[], object]) -> None:
        self._zk = zk
        self._path = path
        self._look = look
        self._changed = threading.Event()
        self._watch = ZnodeWatch(zk, path, self._changed)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"log-tail-keeper {path}", daemon=True)

    def start(self) -> None:
        self._changed.set()
        self._thread.start()

    def stop(self) -> None:
        """Stop. ``look`` is not called after this returns. Safe to repeat, and to call from any other thread."""
        self._stopped.set()
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._changed.wait()
            if self._stopped.is_set():
                return
            self._changed.clear()
            try:
                with self._zk.within(_LOOK_MS):
                    # Arm before the look, so that later changes are noticed.
                    self._watch.arm()
                    self._look()
            except BookKeeperError as error:
                if not error.retriable and not isinstance(error, OutcomeUnknownError):
                    return
                _LOG.info("looking after %s: %s", self._path, error)
                self._stopped.wait(_PAUSE_S)
                self._changed.set()
