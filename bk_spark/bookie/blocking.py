"""The blocking client: the asyncio client on a thread of its own.

Spark's tasks and command line tools block, so this facade runs the asyncio handles for them. While the caller prepares
its next batch, the thread sends, receives and acknowledges.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from bk_spark.bookie.blocking_reader import BlockingReader, iterate
from bk_spark.bookie.blocking_writer import BlockingAdvWriter, BlockingWriter
from bk_spark.bookie.client import DEFAULT_QUORUM, Client
from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.loop_thread import LoopThread
from bk_spark.bookie.metadata.ledger_store import CreateWith
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.placement.registry import RegisteredBookie
from bk_spark.bookie.same_docs import documented_as
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.ledger.reading.range_windows import EntryRange, EntryRanges
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.wire.wire_v3 import BookieInfo

_T = TypeVar("_T")


class BlockingClient:
    """The client of one cluster, for callers that block. It creates, reads, recovers and deletes ledgers.

    It runs a :class:`Client` on a thread of its own, and connects when it is created. Use it as a context manager, or
    call :meth:`close`. It is thread-safe. A forked process must create its own.

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
    MetadataUnavailableError
        If ZooKeeper does not answer within ``connect_timeout_ms``.
    """

    def __init__(
        self, metadata_service_uri: str, config: ClientConfig | None = None, *, zookeeper: ZooKeeper | None = None
    ) -> None:
        self._client = Client(metadata_service_uri, config, zookeeper=zookeeper)
        self._thread = LoopThread("bk-client")
        try:
            self._run(self._client.start())
        except BaseException:
            self._thread.close()
            raise

    def close(self) -> None:
        """Close all connections and end all handles. Safe to repeat.

        Calls under way in other threads raise LedgerClosedError. A ledger whose writer was not closed stays open until
        a client recovers it.
        """
        try:
            self._thread.finish(self._client.close())
        finally:
            self._thread.close()

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def metadata_service_uri(self) -> str:
        """The URI of the cluster."""
        return str(self._client.uri)

    @property
    def root(self) -> str:
        """The root of the cluster's znodes."""
        return self._client.uri.root

    @property
    def config(self) -> ClientConfig:
        """Limits and timeouts."""
        return self._client.config

    @property
    @documented_as(Client.zookeeper)
    def zookeeper(self) -> ZooKeeper:
        return self._client.zookeeper

    @documented_as(Client.create)
    def create(
        self,
        *,
        quorum: Quorum = DEFAULT_QUORUM,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        custom_metadata: Mapping[str, bytes] | None = None,
        create_with: CreateWith | None = None,
        deferred_sync: bool = False,
    ) -> BlockingWriter:
        handle = self._run(
            self._client.create(
                quorum=quorum,
                digest_type=digest_type,
                password=password,
                custom_metadata=custom_metadata,
                create_with=create_with,
                deferred_sync=deferred_sync,
            )
        )
        return BlockingWriter(self._thread, handle)

    @documented_as(Client.create_adv)
    def create_adv(
        self,
        *,
        quorum: Quorum = DEFAULT_QUORUM,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        custom_metadata: Mapping[str, bytes] | None = None,
        create_with: CreateWith | None = None,
        deferred_sync: bool = False,
        ledger_id: int | None = None,
    ) -> BlockingAdvWriter:
        handle = self._run(
            self._client.create_adv(
                quorum=quorum,
                digest_type=digest_type,
                password=password,
                custom_metadata=custom_metadata,
                create_with=create_with,
                deferred_sync=deferred_sync,
                ledger_id=ledger_id,
            )
        )
        return BlockingAdvWriter(self._thread, handle)

    @documented_as(Client.check_enough_bookies)
    def check_enough_bookies(self, quorum: Quorum) -> None:
        self._run(self._client.check_enough_bookies(quorum))

    @documented_as(Client.open_for_reading)
    def open_for_reading(self, ledger_id: int, password: bytes = b"", *, read_lac: bool = True) -> BlockingReader:
        return BlockingReader(
            self._thread, self._run(self._client.open_for_reading(ledger_id, password, read_lac=read_lac))
        )

    @documented_as(Client.read_series)
    def read_series(
        self, ranges: EntryRanges | Iterable[EntryRange], password: bytes = b""
    ) -> Generator[Payloads, None, None]:
        return iterate(self._thread, self._client.read_series(ranges, password))

    @documented_as(Client.recover_and_open)
    def recover_and_open(self, ledger_id: int, password: bytes = b"") -> BlockingReader:
        return BlockingReader(self._thread, self._run(self._client.recover_and_open(ledger_id, password)))

    def recover_all(
        self, ledger_ids: Sequence[int], password: bytes = b"", *, timeout_s: float
    ) -> tuple[dict[int, BookKeeperError], list[int]]:
        """Fence and close many ledgers, 16 at the same time. A ledger that does not exist counts as done.

        Parameters
        ----------
        ledger_ids
            The ledgers, in the order in which to start them.
        password
            The password of all these ledgers.
        timeout_s
            Stop after this many seconds.

        Returns
        -------
        failed : dict of int to BookKeeperError
            The ledgers that failed, and why.
        left : list of int
            The ledgers that were not done in time.
        """
        return self._run(self._client.recover_all(ledger_ids, password, timeout_s=timeout_s))

    @documented_as(Client.delete)
    def delete(self, ledger_id: int) -> None:
        self._run(self._client.delete(ledger_id))

    @documented_as(Client.list_ledgers)
    def list_ledgers(self) -> Iterator[int]:
        batches = self._client.ledger_batches()
        while (batch := self._run(_next(batches))) is not None:
            yield from batch

    @documented_as(Client.bookies)
    def bookies(self) -> tuple[RegisteredBookie, ...]:
        return self._run(self._client.bookies())

    @documented_as(Client.disk_space)
    def disk_space(self, timeout_ms: int = 5_000) -> dict[str, BookieInfo | BookKeeperError]:
        return self._run(self._client.disk_space(timeout_ms))

    @documented_as(Client.metadata)
    def metadata(self, ledger_id: int) -> LedgerMetadata:
        return self._run(self._client.metadata(ledger_id))

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self._thread.run(work)


async def _next(batches: AsyncIterator[list[int]]) -> list[int] | None:
    return await anext(batches, None)
