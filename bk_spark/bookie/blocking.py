"""The blocking client: the asyncio client on a thread of its own.

Spark's tasks and command line tools block; this facade runs the same handles for them. While the
caller prepares its next batch, the thread sends, receives and acknowledges.
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
from bk_spark.bookie.reading.range_windows import EntryRange, EntryRanges
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.wire.wire_v3 import BookieInfo

_T = TypeVar("_T")


class BlockingClient:
    """A started client. Methods as in :class:`bk_spark.bookie.client.Client`; thread-safe.

    Use as a context manager, or call :meth:`close`. Not usable in a process forked from its creator's.
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
        """Let go of everything; safe to repeat. Calls under way in other threads raise LedgerClosedError."""
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
        """The cluster's root in ZooKeeper."""
        return self._client.uri.root

    @property
    def config(self) -> ClientConfig:
        return self._client.config

    @property
    def zookeeper(self) -> ZooKeeper:
        return self._client.zookeeper

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

    def check_enough_bookies(self, quorum: Quorum) -> None:
        self._run(self._client.check_enough_bookies(quorum))

    def open_for_reading(self, ledger_id: int, password: bytes = b"", *, read_lac: bool = True) -> BlockingReader:
        return BlockingReader(
            self._thread, self._run(self._client.open_for_reading(ledger_id, password, read_lac=read_lac))
        )

    def read_series(
        self, ranges: EntryRanges | Iterable[EntryRange], password: bytes = b""
    ) -> Generator[Payloads, None, None]:
        return iterate(self._thread, self._client.read_series(ranges, password))

    def recover_and_open(self, ledger_id: int, password: bytes = b"") -> BlockingReader:
        return BlockingReader(self._thread, self._run(self._client.recover_and_open(ledger_id, password)))

    def recover_all(
        self, ledger_ids: Sequence[int], password: bytes = b"", *, timeout_s: float
    ) -> tuple[dict[int, BookKeeperError], list[int]]:
        return self._run(self._client.recover_all(ledger_ids, password, timeout_s=timeout_s))

    def delete(self, ledger_id: int) -> None:
        self._run(self._client.delete(ledger_id))

    def list_ledgers(self) -> Iterator[int]:
        batches = self._client.ledger_batches()
        while (batch := self._run(_next(batches))) is not None:
            yield from batch

    def bookies(self) -> tuple[RegisteredBookie, ...]:
        return self._run(self._client.bookies())

    def disk_space(self, timeout_ms: int = 5_000) -> dict[str, BookieInfo | BookKeeperError]:
        return self._run(self._client.disk_space(timeout_ms))

    def metadata(self, ledger_id: int) -> LedgerMetadata:
        return self._run(self._client.metadata(ledger_id))

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self._thread.run(work)


async def _next(batches: AsyncIterator[list[int]]) -> list[int] | None:
    return await anext(batches, None)
