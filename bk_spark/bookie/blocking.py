"""The blocking client: the asyncio client on a thread of its own.

Spark's tasks and command line tools block; this facade runs the same handles for them. While the
caller prepares its next batch, the thread sends, receives and acknowledges.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar

from bk_spark.bookie.client import DEFAULT_QUORUM, Client
from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.ledger_store import CreateWith
from bk_spark.bookie.loop_thread import LoopThread
from bk_spark.bookie.read_handle import ReadHandle
from bk_spark.bookie.write_handle import WriteHandle
from bk_spark.bookie.zookeeper import ZooKeeper
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.digest import Buffer
from bk_spark.protocol.entry_block import EntryBlock
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.ledger_metadata import LedgerMetadata
from bk_spark.protocol.payloads import Payloads
from bk_spark.protocol.quorum import Quorum

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
    ) -> BlockingWriter:
        handle = self._run(
            self._client.create(
                quorum=quorum,
                digest_type=digest_type,
                password=password,
                custom_metadata=custom_metadata,
                create_with=create_with,
            )
        )
        return BlockingWriter(self, handle)

    def check_enough_bookies(self, quorum: Quorum) -> None:
        self._run(self._client.check_enough_bookies(quorum))

    def open_for_reading(self, ledger_id: int, password: bytes = b"", *, read_lac: bool = True) -> BlockingReader:
        return BlockingReader(self, self._run(self._client.open_for_reading(ledger_id, password, read_lac=read_lac)))

    def recover_and_open(self, ledger_id: int, password: bytes = b"") -> BlockingReader:
        return BlockingReader(self, self._run(self._client.recover_and_open(ledger_id, password)))

    def delete(self, ledger_id: int) -> None:
        self._run(self._client.delete(ledger_id))

    def metadata(self, ledger_id: int) -> LedgerMetadata:
        return self._run(self._client.metadata(ledger_id))

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self._thread.run(work)


class BlockingWriter:
    """As :class:`bk_spark.bookie.write_handle.WriteHandle`; one user at a time."""

    def __init__(self, client: BlockingClient, handle: WriteHandle) -> None:
        self._client = client
        self._handle = handle

    @property
    def ledger_id(self) -> int:
        return self._handle.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._handle.metadata

    @property
    def last_add_confirmed(self) -> int:
        return self._handle.last_add_confirmed

    @property
    def last_add_pushed(self) -> int:
        return self._handle.last_add_pushed

    @property
    def length(self) -> int:
        return self._handle.length

    @property
    def error(self) -> BookKeeperError | None:
        return self._handle.error

    def append(self, payload: Buffer) -> int:
        """Append one entry; its id. Returns when it is under way, see :meth:`flush`."""
        return self._client._run(self._handle.append(payload))

    def append_many(self, payloads: Payloads) -> int:
        """Append entries in order; the id of the last. Returns when they are under way."""
        return self._client._run(self._handle.append_many(payloads))

    def flush(self) -> int:
        """Wait until everything appended is acknowledged; the last add confirmed."""
        return self._client._run(self._handle.flush())

    def close(self) -> LedgerMetadata:
        """Flush and close the ledger; its final metadata."""
        return self._client._run(self._handle.close())

    def abandon(self) -> None:
        """Let go without closing the ledger."""
        self._client._thread.finish(self._handle.abandon())


class BlockingReader:
    """As :class:`bk_spark.bookie.read_handle.ReadHandle`."""

    def __init__(self, client: BlockingClient, handle: ReadHandle) -> None:
        self._client = client
        self._handle = handle

    @property
    def ledger_id(self) -> int:
        return self._handle.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._handle.metadata

    @property
    def last_add_confirmed(self) -> int:
        return self._handle.last_add_confirmed

    def read_last_add_confirmed(self) -> int:
        return self._client._run(self._handle.read_last_add_confirmed())

    def read(self, first: int, last: int) -> list[bytes]:
        """Payloads of entries ``first`` to ``last`` (inclusive)."""
        return self._client._run(self._handle.read(first, last))

    def read_blocks(self, first: int, last: int, *, known_to_exist: bool = False) -> Iterator[EntryBlock]:
        """Entries ``first`` to ``last`` (inclusive) in order, in blocks; closing the iterator ends it."""
        blocks = self._handle.read_blocks(first, last, known_to_exist=known_to_exist)
        try:
            while True:
                try:
                    yield self._client._run(blocks.__anext__())
                except StopAsyncIteration:
                    return
        finally:
            self._client._thread.finish(blocks.aclose())
