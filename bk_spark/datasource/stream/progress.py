"""Tells ZooKeeper how far a query has read, for the page of the cluster.

Nothing depends on it: a query's position is in its checkpoint. One ephemeral znode for each query's source is written
at most once in ten seconds, and only if something changed, or if another session began: the znode ended with the old
one. A query that runs for less than ten seconds writes nothing.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Final

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.datasource.stream.offsets import StreamOffset
from bk_spark.datasource.stream.plan import Extent
from bk_spark.log.formats.names import readers_path
from bk_spark.log.formats.progress import MAX_POSITIONS, LogProgress, Progress, encode_progress
from bk_spark.protocol.errors import MetadataError, NoNodeError

_LOG: Final = logging.getLogger(__name__)
#: The time between two writes, and after one that failed.
EVERY_S: Final = 10.0
_AGAIN_S: Final = 60.0
#: The limit of one write. It holds up the query.
_TIMEOUT_MS: Final = 2_000
_ANY_VERSION: Final = -1


class ProgressTeller:
    """Tells the progress of one query. For one thread.

    Parameters
    ----------
    zookeeper
        Returns the session.
    log_root
        The znode that holds the logs.
    now_s
        Returns a monotonic time in seconds.
    """

    def __init__(
        self, zookeeper: Callable[[], ZooKeeper], log_root: str, *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._zookeeper = zookeeper
        self._path = f"{readers_path(log_root)}/{uuid.uuid4().hex}"
        self._now_s = now_s
        self._next_s = now_s() + EVERY_S
        self._began_ms = time.time_ns() // 1_000_000
        self._told = b""
        #: The session that the znode ends with.
        self._session_id = 0

    def tell(self, begun: StreamOffset, extents: Mapping[str, Extent]) -> None:
        """Report that everything before ``begun`` was read, and where the readable ``extents`` end. Errors are only
        logged."""
        if self._now_s() < self._next_s:
            return
        positions = [
            LogProgress(name, position.identity, position.offset, extents[name].end)
            for name, position in begun.positions.items()
            if isinstance(position.identity, str) and name in extents
        ]
        if not positions:
            return
        positions.sort(key=lambda one: (one.read_to - one.end, one.log))
        left_out = max(0, len(positions) - MAX_POSITIONS)
        known = tuple(positions[:MAX_POSITIONS])
        told = encode_progress(Progress(socket.gethostname(), os.getpid(), self._began_ms, known, left_out))
        self._next_s = self._now_s() + EVERY_S
        try:
            zookeeper = self._zookeeper()
            session_id = zookeeper.session_id
            # 0: there is no session now. A query without news does not begin one.
            if told == self._told and session_id in (0, self._session_id):
                return
            with zookeeper.within(_TIMEOUT_MS):
                self._write(zookeeper, told)
            self._told, self._session_id = told, session_id
        except MetadataError as error:
            # For example, the user may only read.
            _LOG.debug("the progress of this query is not told: %s", error)
            self._next_s = self._now_s() + _AGAIN_S

    def _write(self, zookeeper: ZooKeeper, told: bytes) -> None:
        try:
            zookeeper.set(self._path, told, _ANY_VERSION)
        except NoNodeError:
            # The first time, or after another session began.
            zookeeper.ensure_path(self._path.rpartition("/")[0])
            zookeeper.create(self._path, told, ephemeral=True)
