"""The asyncio client of a BookKeeper cluster.

There is no bare ``open``: :meth:`Client.open_for_reading` does not fence, and :meth:`Client.recover_and_open` does.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType
from weakref import WeakSet

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection.base import LedgerConnection
from bk_spark.bookie.connection.pool import ConnectionPool
from bk_spark.bookie.connection.v2 import BookieConnection
from bk_spark.bookie.connection.v3 import BookieConnectionV3
from bk_spark.bookie.metadata.ledger_store import CreateWith
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.placement.disk_space import disk_space
from bk_spark.bookie.placement.registry import RegisteredBookie
from bk_spark.bookie.reading.range_series import RangeSeries, ReadHandles
from bk_spark.bookie.reading.range_windows import EntryRange, EntryRanges
from bk_spark.bookie.reading.read_access import ReadAccess
from bk_spark.bookie.reading.read_handle import ReadHandle
from bk_spark.bookie.services import ClusterServices
from bk_spark.bookie.writing.adv_write_handle import AdvWriteHandle
from bk_spark.bookie.writing.recovery import recover_ledger
from bk_spark.bookie.writing.write_handle import WriteHandle
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import BookKeeperError, NoSuchLedgerError, UnauthorizedError
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.wire.wire_v3 import BookieInfo

DEFAULT_QUORUM = Quorum(3, 3, 2)


class Client:
    """The asyncio client of one cluster. It creates, reads, recovers and deletes ledgers.

    Use it from one event loop, as ``async with``, or call :meth:`start` and :meth:`close`.

    Parameters
    ----------
    metadata_service_uri
        Where the cluster's metadata are, such as ``zk://host1:2181;host2:2181/ledgers``.
    config
        Limits and timeouts. Default: ``ClientConfig()``.
    zookeeper
        A session with ZooKeeper to share. The client does not close it. By default the client has a session of its own.

    Raises
    ------
    InvalidArgumentError
        If the URI is malformed.
    """

    def __init__(
        self, metadata_service_uri: str, config: ClientConfig | None = None, *, zookeeper: ZooKeeper | None = None
    ) -> None:
        self.uri = MetadataServiceUri.parse(metadata_service_uri)
        self.config = config or ClientConfig()
        self._shared_zookeeper = zookeeper
        self._zookeeper: ZooKeeper | None = None
        self._services: ClusterServices | None = None
        #: Connections for adds and reads, over the configured protocol.
        self._pool: ConnectionPool[LedgerConnection] | None = None
        self._pool_v3: ConnectionPool[BookieConnectionV3] | None = None
        self._read_access: ReadAccess | None = None
        #: Write handles that are still referenced. Some may be closed.
        self._handles: WeakSet[WriteHandle] = WeakSet()
        self._read_handles = ReadHandles(self._open_known)

    async def start(self) -> None:
        """Connect to ZooKeeper. Connections to bookies are opened when they are needed.

        Raises
        ------
        MetadataUnavailableError
            If ZooKeeper does not answer within ``connect_timeout_ms``.
        """
        connecting = asyncio.ensure_future(asyncio.to_thread(self._connect))
        try:
            await asyncio.shield(connecting)
        except asyncio.CancelledError:
            # A thread cannot be cancelled. Let it finish, which takes a bounded time, and undo its work.
            await asyncio.gather(connecting, return_exceptions=True)
            await self.close()
            raise

    def _connect(self) -> None:
        zookeeper = self._shared_zookeeper
        if zookeeper is None:
            zookeeper = ZooKeeper(
                self.uri.servers,
                session_timeout_ms=self.config.zk_session_timeout_ms,
                operation_timeout_ms=self.config.metadata_timeout_ms,
                rest_after_ms=self.config.zk_session_rest_ms,
            )
            zookeeper.start(self.config.connect_timeout_ms)
        try:
            services = ClusterServices(zookeeper, self.uri, self.config)
        except BaseException:
            if zookeeper is not self._shared_zookeeper:
                zookeeper.close()
            raise
        self._zookeeper = zookeeper
        self._services = services
        self._pool_v3 = ConnectionPool(BookieConnectionV3, self._services.address, self.config)
        self._pool = self._new_pool(self._services) if self.config.use_v2_wire_protocol else self._pool_v3
        self._read_access = ReadAccess.of(self._services, self._pool, self._pool_v3, self.config)

    async def close(self) -> None:
        """Close all connections and end all handles. Safe to repeat.

        A ledger whose writer was not closed stays open until a client recovers it.
        """
        for handle in list(self._handles):
            await handle.abandon()
        self._handles.clear()
        for pool in (self._pool, self._pool_v3):
            if pool is not None:
                await pool.close()
        if self._services is not None:
            own = None if self._zookeeper is self._shared_zookeeper else self._zookeeper
            await asyncio.to_thread(self._services.close, own)
        self._pool = self._pool_v3 = self._services = self._zookeeper = self._read_access = None

    async def __aenter__(self) -> Client:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def zookeeper(self) -> ZooKeeper:
        """The client's session with ZooKeeper."""
        assert self._zookeeper is not None, "the client is not started"
        return self._zookeeper

    async def create(
        self,
        *,
        quorum: Quorum = DEFAULT_QUORUM,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        custom_metadata: Mapping[str, bytes] | None = None,
        create_with: CreateWith | None = None,
        deferred_sync: bool = False,
    ) -> WriteHandle:
        """Create an empty ledger and open it for writing.

        Parameters
        ----------
        quorum
            Ensemble size, write quorum and ack quorum.
        digest_type
            The checksum of each entry.
        password
            The password of the ledger.
        custom_metadata
            Names and values to keep in the ledger's metadata.
        create_with
            Called with the new ledger's id. Returns further operations for the ZooKeeper transaction that creates the
            ledger.
        deferred_sync
            Let bookies acknowledge entries before they sync them. Entries are confirmed only by ``force`` or ``close``.

        Returns
        -------
        WriteHandle or BlockingWriter
            The writer of the new ledger. The cluster chooses the ledger's id and the ids of its entries.

        Raises
        ------
        NotEnoughBookiesError
            If fewer bookies are writable than the ensemble needs.
        MetadataUnavailableError
            If ZooKeeper does not answer.
        """
        return await self._create(
            quorum, digest_type, password, custom_metadata, create_with, deferred_sync=deferred_sync
        )

    async def create_adv(
        self,
        *,
        quorum: Quorum = DEFAULT_QUORUM,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        custom_metadata: Mapping[str, bytes] | None = None,
        create_with: CreateWith | None = None,
        deferred_sync: bool = False,
        ledger_id: int | None = None,
    ) -> AdvWriteHandle:
        """Create an empty ledger whose entry ids the caller chooses.

        Use each ledger id only once. Bookies identify a ledger by its id and its password, and keep the entries of a
        deleted ledger until garbage collection (``gcWaitTime``, longer while a bookie is down). Until then the old
        entries follow the new ones, and a recovery returns them as if they had been written to the new ledger. Apache's
        bookies do the same. If you must reuse an id, use another password. Bookies refuse it while they hold the old
        ledger.

        Parameters
        ----------
        quorum
            Ensemble size, write quorum and ack quorum.
        digest_type
            The checksum of each entry.
        password
            The password of the ledger.
        custom_metadata
            Names and values to keep in the ledger's metadata.
        create_with
            Called with the new ledger's id. Returns further operations for the ZooKeeper transaction that creates the
            ledger.
        deferred_sync
            Let bookies acknowledge entries before they sync them. Entries are confirmed only by ``force`` or ``close``.
        ledger_id
            The id of the new ledger. By default the cluster chooses it.

        Returns
        -------
        AdvWriteHandle or BlockingAdvWriter
            The writer of the new ledger.

        Raises
        ------
        LedgerExistsError
            If a ledger with the id ``ledger_id`` exists.
        NotEnoughBookiesError
            If fewer bookies are writable than the ensemble needs.
        MetadataUnavailableError
            If ZooKeeper does not answer.
        """
        handle = await self._create(
            quorum, digest_type, password, custom_metadata, create_with, ledger_id, deferred_sync=deferred_sync
        )
        return AdvWriteHandle(handle, self.config)

    async def _create(
        self,
        quorum: Quorum,
        digest_type: DigestType,
        password: bytes,
        custom_metadata: Mapping[str, bytes] | None,
        create_with: CreateWith | None,
        ledger_id: int | None = None,
        *,
        deferred_sync: bool,
    ) -> WriteHandle:
        services, pool = self._started()
        ensemble = await services.choose_ensemble(quorum)
        metadata = LedgerMetadata(
            quorum,
            (Segment(0, ensemble),),
            digest_type=digest_type,
            password=password,
            custom_metadata=dict(custom_metadata or {}),
        )
        ledger_id, stored = await services.create(metadata, create_with, ledger_id)
        handle = WriteHandle(
            ledger_id,
            stored,
            digest_type,
            password,
            services,
            pool,
            self.config,
            pool_v3=self._pool_v3,
            deferred_sync=deferred_sync,
        )
        self._handles.add(handle)
        try:
            await handle.start()
        except BaseException:
            await handle.abandon()
            raise
        return handle

    async def check_enough_bookies(self, quorum: Quorum) -> None:
        """Check that a ledger could be created now.

        Parameters
        ----------
        quorum
            Ensemble size, write quorum and ack quorum of the ledger.

        Raises
        ------
        NotEnoughBookiesError
            If fewer bookies are writable than the ensemble needs.
        """
        await self._started()[0].choose_ensemble(quorum)

    async def open_for_reading(self, ledger_id: int, password: bytes = b"", *, read_lac: bool = True) -> ReadHandle:
        """Open a ledger without fencing it. A writer of the ledger continues.

        Parameters
        ----------
        ledger_id
            The ledger to read.
        password
            The password of the ledger.
        read_lac
            Ask bookies for the last add confirmed of an open ledger. If false, no bookie is asked, and only entries
            that are known to exist can be read.

        Returns
        -------
        ReadHandle or BlockingReader
            A reader of the ledger up to its last add confirmed.

        Raises
        ------
        NoSuchLedgerError
            If there is no such ledger.
        UnauthorizedError
            If the password is wrong.
        EntryUnknownError
            If the ledger is open and too few of its bookies answer.
        """
        metadata = (await self._started()[0].read(ledger_id)).metadata
        handle = self._reader(ledger_id, metadata, password)
        if read_lac:
            await handle.read_last_add_confirmed()
        return handle

    def read_series(
        self, ranges: EntryRanges | Iterable[EntryRange], password: bytes = b""
    ) -> AsyncGenerator[Payloads, None]:
        """Read ranges of several ledgers, one after another. The next ranges are read ahead.

        Parameters
        ----------
        ranges
            The ranges, in order. Their entries must be known to exist.
        password
            The password of all these ledgers.

        Returns
        -------
        iterator of Payloads
            The payloads of all entries in order, in batches of any size.

        Raises
        ------
        NoSuchLedgerError
            If a ledger is gone.
        NoSuchEntryError
            If an entry does not exist.
        UnauthorizedError
            If the password is wrong.
        EntryUnknownError
            If no replica could give an entry.
        """
        columns = ranges if isinstance(ranges, EntryRanges) else EntryRanges.of(ranges)
        return RangeSeries(self._read_handles, columns, password).payloads()

    async def recover_and_open(self, ledger_id: int, password: bytes = b"") -> ReadHandle:
        """Fence a ledger, close it at its last entry, and open it for reading. This ends a writer of the ledger.

        Parameters
        ----------
        ledger_id
            The ledger to recover. A closed ledger is only opened.
        password
            The password of the ledger.

        Returns
        -------
        ReadHandle or BlockingReader
            A reader of the closed ledger.

        Raises
        ------
        NoSuchLedgerError
            If there is no such ledger.
        UnauthorizedError
            If the password is wrong.
        EntryUnknownError
            If too few of its bookies answer.
        NotEnoughBookiesError
            If entries must be copied and fewer bookies are writable than the ensemble needs.
        """
        services, _ = self._started()
        metadata = (await services.read_latest(ledger_id)).metadata
        digest_type = _authorize(ledger_id, metadata, password)
        if metadata.state is not LedgerState.CLOSED:
            own_pool = self._new_pool(services)
            try:
                metadata = await recover_ledger(ledger_id, digest_type, password, services, own_pool, self.config)
            finally:
                await own_pool.close()
        return self._reader(ledger_id, metadata, password)

    async def recover_all(
        self, ledger_ids: Sequence[int], password: bytes = b"", *, timeout_s: float, at_once: int = 16
    ) -> tuple[dict[int, BookKeeperError], list[int]]:
        """Fence and close many ledgers. A ledger that does not exist counts as done.

        Parameters
        ----------
        ledger_ids
            The ledgers, in the order in which to start them.
        password
            The password of all these ledgers.
        timeout_s
            Stop after this many seconds.
        at_once
            How many ledgers are recovered at the same time.

        Returns
        -------
        failed : dict of int to BookKeeperError
            The ledgers that failed, and why.
        left : list of int
            The ledgers that were not done in time.
        """
        left = dict.fromkeys(ledger_ids)
        failed: dict[int, BookKeeperError] = {}
        waiting = iter(ledger_ids)

        async def work() -> None:
            for ledger_id in waiting:
                try:
                    await self.recover_and_open(ledger_id, password)
                except NoSuchLedgerError:
                    pass
                except BookKeeperError as error:
                    failed[ledger_id] = error
                del left[ledger_id]

        workers = [asyncio.create_task(work()) for _ in range(min(at_once, len(left)))]
        try:
            if workers:
                await asyncio.wait(workers, timeout=max(0.0, timeout_s))
        finally:
            for worker in workers:
                worker.cancel()
            ended = await asyncio.gather(*workers, return_exceptions=True)
        for end in ended:
            if isinstance(end, Exception):
                raise end
        return failed, list(left)

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger. Bookies reclaim its space later.

        Parameters
        ----------
        ledger_id
            The ledger to delete. Ignored if it does not exist.

        Raises
        ------
        MetadataUnavailableError
            If ZooKeeper does not answer.
        """
        await self._started()[0].delete(ledger_id)

    async def list_ledgers(self) -> AsyncIterator[int]:
        """List all ledgers. Ledgers that are created or deleted meanwhile may or may not be listed.

        Yields
        ------
        int
            The ledgers' ids, ascending.

        Raises
        ------
        MetadataUnavailableError
            If ZooKeeper does not answer.
        """
        async for batch in self.ledger_batches():
            for ledger_id in batch:
                yield ledger_id

    def ledger_batches(self) -> AsyncIterator[list[int]]:
        """List all ledgers as :meth:`list_ledgers` does, in batches.

        Returns
        -------
        iterator of list of int
            Ids, ascending. A batch holds at most 10,000, except with the flat ledger manager. Batches may be empty.
        """
        return self._started()[0].ledger_batches()

    async def bookies(self) -> tuple[RegisteredBookie, ...]:
        """List all registered bookies.

        Returns
        -------
        tuple of BookieRegistration
            The bookies by id, writable and read-only.

        Raises
        ------
        MetadataUnavailableError
            If ZooKeeper does not answer.
        """
        return await self._started()[0].bookies()

    async def disk_space(self, timeout_ms: int = 5_000) -> dict[str, BookieInfo | BookKeeperError]:
        """Ask all registered bookies for the sizes of their disks.

        Parameters
        ----------
        timeout_ms
            How long to wait for each bookie, in milliseconds.

        Returns
        -------
        dict of str to BookieInfo or BookKeeperError
            By bookie id: total and free bytes, or the error of a bookie that did not answer.

        Raises
        ------
        MetadataUnavailableError
            If ZooKeeper does not answer.
        """
        bookies = [bookie.bookie_id for bookie in await self.bookies()]
        assert self._pool_v3 is not None, "the client is not started"
        return await disk_space(bookies, self._pool_v3, timeout_ms)

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        """Read a ledger's metadata from ZooKeeper.

        Parameters
        ----------
        ledger_id
            The ledger.

        Returns
        -------
        LedgerMetadata
            State, quorum, fragments and the rest. No password is needed.

        Raises
        ------
        NoSuchLedgerError
            If there is no such ledger.
        MetadataUnavailableError
            If ZooKeeper does not answer.
        """
        return (await self._started()[0].read_latest(ledger_id)).metadata

    async def _open_known(self, ledger_id: int, password: bytes) -> ReadHandle:
        return await self.open_for_reading(ledger_id, password, read_lac=False)

    def _reader(self, ledger_id: int, metadata: LedgerMetadata, password: bytes) -> ReadHandle:
        digest_type = _authorize(ledger_id, metadata, password)
        assert self._read_access is not None, "the client is not started"
        return ReadHandle(ledger_id, metadata, digest_type, password, self._read_access)

    def _new_pool(self, services: ClusterServices) -> ConnectionPool[LedgerConnection]:
        kind = BookieConnection if self.config.use_v2_wire_protocol else BookieConnectionV3
        return ConnectionPool(kind, services.address, self.config)

    def _started(self) -> tuple[ClusterServices, ConnectionPool[LedgerConnection]]:
        assert self._services is not None, "the client is not started"
        assert self._pool is not None
        return self._services, self._pool


def _authorize(ledger_id: int, metadata: LedgerMetadata, password: bytes) -> DigestType:
    """Check the password and return the ledger's digest type. Metadata from before 4.2 have neither."""
    if metadata.digest_type is None or metadata.password is None:
        return DigestType.CRC32
    if not hmac.compare_digest(metadata.password, password):
        what = "wrong ledger password" if password else "the ledger has a password, and none was given"
        raise UnauthorizedError(what, ledger_id=ledger_id)
    return metadata.digest_type
