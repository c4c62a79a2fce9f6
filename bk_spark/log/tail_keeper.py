"""Watches a log writer's place at the tail: a thread that looks whenever the owner's znode changed or may have."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.log.znode_watch import ZnodeWatch
from bk_spark.protocol.errors import BookKeeperError, OutcomeUnknownError

_LOG: Final = logging.getLogger(__name__)

#: For one look, so that nobody who stops the keeper waits for long.
_LOOK_MS: Final = 5_000
_PAUSE_S: Final = 1.0


class TailKeeper:
    """Calls ``look`` in a thread of its own when the znode ``path`` was made, changed or deleted, and after every loss
    of the connection; again after a pause while ZooKeeper is away, no more after any other error of it.

    ``look`` may ask ZooKeeper, for no longer than a few seconds together.
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
        """``look`` is not called any more once this returns. Safe to repeat, and from any other thread."""
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
                    # Before the look: what changes after it is told.
                    self._watch.arm()
                    self._look()
            except BookKeeperError as error:
                if not error.retriable and not isinstance(error, OutcomeUnknownError):
                    return
                _LOG.info("looking after %s: %s", self._path, error)
                self._stopped.wait(_PAUSE_S)
                self._changed.set()
