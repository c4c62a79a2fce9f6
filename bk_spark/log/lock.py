"""The log's advisory lock: ``<log>/lock``, an ephemeral znode whose content is a token of its holder.

It only saves work where many commit at once. Correctness rests on versions, so nobody waits for it for
long: a lock that one holder keeps for the whole wait is broken (its release may have been lost).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from types import TracebackType
from typing import Final

from bk_spark.bookie.zookeeper import Znode, ZooKeeper
from bk_spark.protocol.errors import MetadataError, NodeExistsError

_LOG: Final = logging.getLogger(__name__)

DEFAULT_WAIT_MS: Final = 5_000


class AdvisoryLock:
    """A context manager that releases the lock, if :meth:`try_take` was called and got it. For one thread."""

    def __init__(self, zk: ZooKeeper, path: str, wait_ms: int = DEFAULT_WAIT_MS) -> None:
        self._zk = zk
        self._path = path
        self._wait_ms = wait_ms
        # Tells this holder from others of the same session.
        self._token = uuid.uuid4().bytes
        self._asked = False

    def try_take(self) -> bool:
        """Whether the lock is held after waiting ``wait_ms`` for it. ZooKeeper's failures count as no."""
        self._asked = True
        try:
            first = holder = self._create()
            deadline = time.monotonic() + self._wait_ms / 1000
            while (holder is None or holder.data != self._token) and time.monotonic() < deadline:
                if holder is None or self._left(deadline):
                    holder = self._create()
            if holder is not None and first is not None and holder.data == first.data != self._token:
                self._delete_if(first.data)
                holder = self._create()
        except MetadataError as error:
            _LOG.info("going on without the lock %s: %s", self._path, error)
            return False
        return holder is not None and holder.data == self._token

    def __enter__(self) -> AdvisoryLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._asked:
            # The session's end, or another who wants the lock, removes it where this fails.
            with contextlib.suppress(MetadataError):
                self._delete_if(self._token)

    def _create(self) -> Znode | None:
        """The holder's znode after an attempt to make it, or None where it was just released."""
        with contextlib.suppress(NodeExistsError):
            self._zk.create(self._path, self._token, ephemeral=True)
        return self._zk.get(self._path)

    def _left(self, deadline: float) -> bool:
        """Whether the holder released the lock before ``deadline``."""
        released = threading.Event()
        if self._zk.exists(self._path, watch=lambda _: released.set()) is None:
            return True
        return released.wait(max(0.0, deadline - time.monotonic()))

    def _delete_if(self, token: bytes) -> None:
        znode = self._zk.get(self._path)
        if znode is not None and znode.data == token:
            self._zk.delete(self._path, znode.version)
