"""The asyncio client of a BookKeeper cluster.

There is no bare ``open``: :meth:`Client.open_for_reading` does not fence, and :meth:`Client.recover_and_open` does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType

from bk_spark.bookie.client_counts import ClientCounts
from bk_spark.bookie.cluster_session import ClusterSession
from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.ledger_handles import LedgerHandles
from bk_spark.bookie.metadata.ledger_store import CreateWith
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.placement.disk_space import disk_space
from bk_spark.bookie.placement.registry import RegisteredBookie
from bk_spark.bookie.reading.range_series import RangeSeries, together
from bk_spark.bookie.reading.read_handle import ReadHandle
from bk_spark.bookie.recover_many import recover_many
from bk_spark.bookie.same_docs import documented_as
from bk_spark.bookie.writing.adv_write_handle import AdvWriteHandle
from bk_spark.bookie.writing.write_handle import WriteHandle
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.ledger.reading.range_windows import EntryRange, EntryRanges
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.wire.v3.wire_v3 import BookieInfo

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
        self._ledgers: LedgerHandles | None = None

    async def start(self) -> None:
        """Connect to ZooKeeper. Connections to bookies are opened when they are needed.

        Raises
        ------
        MetadataUnavailableError
            If ZooKeeper does not answer within ``connect_timeout_ms``.
        """
        session = await ClusterSession.connect_in_thread(self.uri, self.config, self._shared_zookeeper)
        self._ledgers = LedgerHandles(session)

    async def close(self) -> None:
        """Close all connections and end all handles. Safe to repeat.

        A ledger whose writer was not closed stays open until a client recovers it.
        """
        if self._ledgers is not None:
            await self._ledgers.abandon()
            await self._ledgers.session.close()
            self._ledgers = None

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
        return self._started.session.zookeeper

    @property
    def counts(self) -> ClientCounts:
        """What the client has done since it was started: a copy."""
        return dataclasses.replace(self._started.session.services.counts)

    async def create(
        self,
        *,
        quorum: Quorum = DEFAULT_QUORUM,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        custom_metadata: Mapping[str, bytes] | None = None,
        create_with: CreateWith | None = None,
        deferred_sync: bool = False,
        ensemble: Sequence[str] | None = None,
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
        ensemble
            The ids of the ledger's first bookies. By default the client chooses them. If one of them fails, the writer
            replaces it as usual.

        Returns
        -------
        WriteHandle or BlockingWriter
            The writer of the new ledger. The cluster chooses the ledger's id and the ids of its entries.

        Raises
        ------
        InvalidArgumentError
            If ``ensemble`` does not name as many different bookies as the quorum needs.
        NotEnoughBookiesError
            If fewer bookies are writable than the ensemble needs.
        MetadataUnavailableError
            If ZooKeeper does not answer.
        """
        return await self._started.create(
            quorum,
            digest_type,
            password,
            custom_metadata,
            create_with,
            deferred_sync=deferred_sync,
            ensemble=ensemble,
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
        quorum, digest_type, password, custom_metadata, create_with, deferred_sync
            As for :meth:`create`.
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
        handle = await self._started.create(
            quorum, digest_type, password, custom_metadata, create_with, ledger_id, deferred_sync=deferred_sync
        )
        return AdvWriteHandle(handle, self.config)

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
        await self._started.session.services.choose_ensemble(quorum)

    @documented_as(LedgerHandles.open_for_reading)
    async def open_for_reading(self, ledger_id: int, password: bytes = b"", *, read_lac: bool = True) -> ReadHandle:
        return await self._started.open_for_reading(ledger_id, password, read_lac=read_lac)

    def read_series(
        self, ranges: EntryRanges | Iterable[EntryRange], password: bytes = b"", *, part_bytes: int = 0
    ) -> AsyncGenerator[Payloads, None]:
        """Read ranges of several ledgers, one after another. The next ranges are read ahead.

        Parameters
        ----------
        ranges
            The ranges, in order. Their entries must be known to exist.
        password
            The password of all these ledgers.
        part_bytes
            Join smaller batches until they have about this many bytes. The first ones are smaller, so that the caller
            has something to do soon.

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
        series = RangeSeries(lambda ledger_id: self._started.known(ledger_id, password), columns)
        return together(series.payloads(), part_bytes) if part_bytes else series.payloads()

    @documented_as(LedgerHandles.recover_and_open)
    async def recover_and_open(self, ledger_id: int, password: bytes = b"") -> ReadHandle:
        return await self._started.recover_and_open(ledger_id, password)

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
        return await recover_many(
            lambda ledger_id: self.recover_and_open(ledger_id, password),
            ledger_ids,
            timeout_s=timeout_s,
            at_once=at_once,
        )

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
        await self._started.session.services.delete(ledger_id)

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

    def ledger_batches(self) -> AsyncGenerator[list[int], None]:
        """List all ledgers as :meth:`list_ledgers` does, in batches.

        Returns
        -------
        iterator of list of int
            Ids, ascending. A batch holds at most 10,000, except with the flat ledger manager. Batches may be empty.
        """
        return self._started.session.services.ledger_batches()

    async def bookies(self) -> tuple[RegisteredBookie, ...]:
        """List all registered bookies.

        Returns
        -------
        tuple of RegisteredBookie
            The bookies by id, writable and read-only.

        Raises
        ------
        MetadataUnavailableError
            If ZooKeeper does not answer.
        """
        return await self._started.session.services.bookies()

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
        return await disk_space(bookies, self._started.session.pool_v3, timeout_ms)

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
        return (await self._started.session.services.read_latest(ledger_id)).metadata

    @property
    def _started(self) -> LedgerHandles:
        assert self._ledgers is not None, "the client is not started"
        return self._ledgers
