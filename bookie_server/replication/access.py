"""What the performers of self-healing share: one session with ZooKeeper, its stores, threads, and watches."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from bk_spark.bookie.cluster_session import ClusterSession
from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.metadata.zookeeper import WatchCallback, ZooKeeper
from bk_spark.bookie.reading.read_access import ReadAccess
from bk_spark.bookie.replication.auditor_election import AuditorElection
from bk_spark.bookie.replication.replication_switches import ReplicationSwitches
from bk_spark.bookie.replication.under_replication_store import UnderReplicationStore
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri

_LOG: Final = logging.getLogger(__name__)
_THREADS: Final = 8
#: How often a value is read again though no watch was called.
_POLL_S: Final = 60.0
_RETRY_PAUSE_S: Final = 1.0
_T = TypeVar("_T")


class ReplicationAccess:
    """One session of self-healing. Event loop only, except for the constructor, which blocks.

    Parameters
    ----------
    session
        Connections to bookies and the session with ZooKeeper, which nobody else uses.
    uri
        The cluster.
    bookie_id
        The name of this process for votes.

    Raises
    ------
    MetadataFormatError
        If the layout below ``underreplication`` is unknown.
    MetadataUnavailableError
        If ZooKeeper does not answer, or there is no cluster.
    """

    def __init__(self, session: ClusterSession, uri: MetadataServiceUri, bookie_id: str) -> None:
        self.session = session
        self.uri = uri
        self.bookie_id = bookie_id
        self.zk: ZooKeeper = session.zookeeper
        self.ledgers = LedgerStore(self.zk, uri)
        self.store = UnderReplicationStore(self.zk, uri.root)
        self.switches = ReplicationSwitches(self.zk, uri.root)
        self.election = AuditorElection(self.zk, uri.root)
        self.reads = ReadAccess.of(session.services, session.pool, session.pool_v3, session.config)
        self.store.prepare()
        self.proof = self.store.begin_worker(bookie_id)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="replication")

    async def call(self, function: Callable[..., _T], /, *arguments: Any, **named: Any) -> _T:
        """Run what blocks in a thread."""
        work = functools.partial(function, *arguments, **named)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def follow(self, read: Callable[[WatchCallback | None], _T], tell: Callable[[_T], None]) -> None:
        """Tell the value that ``read`` returns, now and whenever it may have changed. Ends only when it is cancelled.

        ``read`` sets the watch that it is given. It is given none while one is set.
        """
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        changed.set()

        def notice(path: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(changed.set)

        while True:
            watch = notice if changed.is_set() else None
            changed.clear()
            try:
                tell(await self.call(read, watch))
            except BookKeeperError as error:
                _LOG.warning("replication: %s", error)
                changed.set()
                await asyncio.sleep(_RETRY_PAUSE_S)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await changed.wait()

    async def close(self) -> None:
        """End the session with ZooKeeper, and with it its locks and its vote. Blocks for a bounded time."""
        await self.session.close()
        await asyncio.to_thread(self.zk.close)
        await asyncio.to_thread(self._threads.shutdown)
