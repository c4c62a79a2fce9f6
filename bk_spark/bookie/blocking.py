"""The blocking client and its handles: the asyncio client on a thread of its own.

Spark's tasks and command line tools block, so this facade runs the asyncio handles for them. While the caller prepares
its next batch, the thread sends, receives and acknowledges.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bk_spark.bookie.client import DEFAULT_QUORUM, Client
from bk_spark.bookie.client_counts import ClientCounts
from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.loop_thread import LoopThread
from bk_spark.bookie.metadata.ledger_store import CreateWith
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.placement.registry import RegisteredBookie
from bk_spark.bookie.reading.read_handle import ReadHandle
from bk_spark.bookie.same_docs import documented_as
from bk_spark.bookie.writing.adv_write_handle import AdvWriteHandle
from bk_spark.bookie.writing.wrapped_handle import WrappedHandle
from bk_spark.bookie.writing.write_handle import WriteHandle
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.entries.entry import EntryBlock
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.ledger.reading.range_windows import EntryRange, EntryRanges
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.wire.v3.wire_v3 import BookieInfo

_H = TypeVar("_H", bound=WriteHandle | AdvWriteHandle)
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

    @property
    @documented_as(Client.counts)
    def counts(self) -> ClientCounts:
        return self._client.counts

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
        ensemble: Sequence[str] | None = None,
    ) -> BlockingWriter:
        handle = self._run(
            self._client.create(
                quorum=quorum,
                digest_type=digest_type,
                password=password,
                custom_metadata=custom_metadata,
                create_with=create_with,
                deferred_sync=deferred_sync,
                ensemble=ensemble,
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
        self, ranges: EntryRanges | Iterable[EntryRange], password: bytes = b"", *, part_bytes: int = 0
    ) -> Generator[Payloads, None, None]:
        return self._thread.iterate_ahead(self._client.read_series(ranges, password, part_bytes=part_bytes))

    @documented_as(Client.recover_and_open)
    def recover_and_open(self, ledger_id: int, password: bytes = b"") -> BlockingReader:
        return BlockingReader(self._thread, self._run(self._client.recover_and_open(ledger_id, password)))

    @documented_as(Client.recover_all)
    def recover_all(
        self, ledger_ids: Sequence[int], password: bytes = b"", *, timeout_s: float, at_once: int = 16
    ) -> tuple[dict[int, BookKeeperError], list[int]]:
        return self._run(self._client.recover_all(ledger_ids, password, timeout_s=timeout_s, at_once=at_once))

    @documented_as(Client.delete)
    def delete(self, ledger_id: int) -> None:
        self._run(self._client.delete(ledger_id))

    @documented_as(Client.list_ledgers)
    def list_ledgers(self) -> Iterator[int]:
        for batch in self._thread.iterate(self._client.ledger_batches()):
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

    async def read_series_for(
        self, ranges: EntryRanges | Iterable[EntryRange], password: bytes = b""
    ) -> AsyncGenerator[Payloads, None]:
        """:meth:`read_series` for a caller on an event loop of its own."""
        async with aclosing(self._thread.iterate_for(self._client.read_series(ranges, password))) as lists:
            async for payloads in lists:
                yield payloads

    async def tail_for(
        self, ledger_id: int, password: bytes, from_entry: int, *, max_wait_ms: int | None
    ) -> AsyncGenerator[EntryBlock, None]:
        """Open a ledger and :meth:`BlockingReader.tail` it, for a caller on an event loop of its own."""
        handle = await self._thread.run_for(self._client.open_for_reading(ledger_id, password, read_lac=False))
        async with aclosing(self._thread.iterate_for(handle.tail(from_entry, max_wait_ms=max_wait_ms))) as blocks:
            async for block in blocks:
                yield block

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self._thread.run(work)


class _BlockingWriteHandle(WrappedHandle[_H]):
    """The common part of both writers."""

    def __init__(self, thread: LoopThread, handle: _H) -> None:
        super().__init__(handle)
        self._thread = thread

    @documented_as(WriteHandle.flush)
    def flush(self) -> int:
        return self._thread.run(self._handle.flush())

    @documented_as(WriteHandle.wait_confirmed)
    def wait_confirmed(self, entry_id: int) -> None:
        self._thread.run(self._handle.wait_confirmed(entry_id))

    @documented_as(WriteHandle.force)
    def force(self) -> int:
        return self._thread.run(self._handle.force())

    @documented_as(WriteHandle.close)
    def close(self) -> LedgerMetadata:
        return self._thread.run(self._handle.close())

    @documented_as(WriteHandle.abandon)
    def abandon(self) -> None:
        self._thread.finish(self._handle.abandon())


class BlockingWriter(_BlockingWriteHandle[WriteHandle]):
    """Appends entries to one ledger, with the ids 0, 1, 2 and so on. For one thread at a time.

    Entries are sent in the background. ``append`` and ``append_many`` return when the entries are on their way, and
    wait while too many are unacknowledged. ``flush`` waits until they are acknowledged. Any failure ends the writer,
    and every later call raises the same error. Entries up to ``last_add_confirmed`` are safe.

    Create it with ``create_ledger`` of a connection, or ``create`` of a client.
    """

    @property
    @documented_as(WriteHandle.last_add_pushed)
    def last_add_pushed(self) -> int:
        return self._handle.last_add_pushed

    @documented_as(WriteHandle.append)
    def append(self, payload: Buffer) -> int:
        return self._thread.run(self._handle.append(payload))

    @documented_as(WriteHandle.append_many)
    def append_many(self, payloads: Payloads | Sequence[Buffer]) -> int:
        return self._thread.run(self._handle.append_many(payloads))

    @documented_as(WriteHandle.claim)
    def claim(self) -> tuple[str, ...]:
        return self._thread.run(self._handle.claim())

    @property
    @documented_as(WriteHandle.failure)
    def failure(self) -> BookKeeperError | None:
        return self._handle.failure

    def call_on_failure(self, call: Callable[[], None]) -> None:
        """Have ``call`` called when the writer fails, or now if it has failed.

        Parameters
        ----------
        call
            Runs on the client's thread, perhaps more than once. It must not block.
        """
        self._handle.on_failure = call
        if self._handle.failure is not None:
            call()


class BlockingAdvWriter(_BlockingWriteHandle[AdvWriteHandle]):
    """Appends entries to one ledger, with ids that the caller chooses. Several threads may use it at once.

    The ids are 0, 1, 2 and so on, in any order. An early entry waits here for all entries with lower ids. Any failure
    ends the writer, and every later call raises the same error.

    Create it with ``create_ledger_adv`` of a connection, or ``create_adv`` of a client.
    """

    @documented_as(AdvWriteHandle.append)
    def append(self, entry_id: int, payload: Buffer) -> None:
        self._thread.run(self._handle.append(entry_id, payload))

    @documented_as(AdvWriteHandle.append_many)
    def append_many(
        self, entry_ids: Sequence[int] | npt.NDArray[np.int64], payloads: Payloads | Sequence[Buffer]
    ) -> None:
        self._thread.run(self._handle.append_many(entry_ids, payloads))


class BlockingReader:
    """Reads entries of one ledger. Opening it did not fence the ledger.

    A closed ledger can be read up to ``metadata.last_entry_id``. A ledger that is being written can be read up to
    ``last_add_confirmed``. Closing an iterator (``contextlib.closing``) cancels its requests.

    Create it with ``open_ledger_for_reading`` of a connection, or ``open_for_reading`` of a client.
    """

    def __init__(self, thread: LoopThread, handle: ReadHandle) -> None:
        self._thread = thread
        self._handle = handle

    @property
    def ledger_id(self) -> int:
        """The ledger's id."""
        return self._handle.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this reader last read them."""
        return self._handle.metadata

    @property
    def last_add_confirmed(self) -> int:
        """The last add confirmed that this reader knows of. It never decreases. -1 if there is none."""
        return self._handle.last_add_confirmed

    @documented_as(ReadHandle.read_last_add_confirmed)
    def read_last_add_confirmed(self) -> int:
        return self._thread.run(self._handle.read_last_add_confirmed())

    @documented_as(ReadHandle.read_length)
    def read_length(self) -> int | None:
        return self._thread.run(self._handle.read_length())

    @documented_as(ReadHandle.read)
    def read(self, first: int, last: int) -> list[bytes]:
        return self._thread.run(self._handle.read(first, last))

    @documented_as(ReadHandle.read_range)
    def read_range(self, first: int, last: int, *, max_bytes: int | None = None) -> pa.RecordBatch:
        return self._thread.run(self._handle.read_range(first, last, max_bytes=max_bytes))

    @documented_as(ReadHandle.read_blocks)
    def read_blocks(self, first: int, last: int, *, known_to_exist: bool = False) -> Generator[EntryBlock, None, None]:
        return self._thread.iterate(self._handle.read_blocks(first, last, known_to_exist=known_to_exist))

    @documented_as(ReadHandle.read_unconfirmed)
    def read_unconfirmed(self, first: int, last: int) -> Generator[EntryBlock, None, None]:
        return self._thread.iterate(self._handle.read_unconfirmed(first, last))

    @documented_as(ReadHandle.tail)
    def tail(self, from_entry: int, *, max_wait_ms: int | None = None) -> Generator[EntryBlock, None, None]:
        return self._thread.iterate(self._handle.tail(from_entry, max_wait_ms=max_wait_ms))
