"""Metadata and registry for use from an event loop: ZooKeeper calls block, so they run in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from bk_spark.bookie.ledger_store import CreateWith, LedgerStore, StoredMetadata
from bk_spark.bookie.registry import BookieRegistry
from bk_spark.protocol.errors import MetadataUnavailableError
from bk_spark.protocol.ledger_metadata import LedgerMetadata

_T = TypeVar("_T")


class ClusterServices:
    """:class:`LedgerStore` and :class:`BookieRegistry` of one cluster, awaitable."""

    def __init__(self, store: LedgerStore, registry: BookieRegistry) -> None:
        self._store = store
        self._registry = registry
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="bk-metadata")
        self._closed = False

    def close(self) -> None:
        """Wait for calls under way (each bounded in time) and end the threads; later calls raise
        MetadataUnavailableError."""
        self._closed = True
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._registry.close()

    async def create(self, metadata: LedgerMetadata, create_with: CreateWith | None) -> tuple[int, StoredMetadata]:
        return await self._call(self._store.create, metadata, create_with)

    async def read(self, ledger_id: int) -> StoredMetadata:
        return await self._call(self._store.read, ledger_id)

    async def read_latest(self, ledger_id: int) -> StoredMetadata:
        return await self._call(self._store.read_latest, ledger_id)

    async def write(self, ledger_id: int, metadata: LedgerMetadata, version: int) -> StoredMetadata:
        return await self._call(self._store.write, ledger_id, metadata, version)

    async def update(self, ledger_id: int, change: Callable[[LedgerMetadata], LedgerMetadata | None]) -> StoredMetadata:
        return await self._call(self._store.update, ledger_id, change)

    async def delete(self, ledger_id: int) -> None:
        await self._call(self._store.delete, ledger_id)

    async def choose(self, count: int, exclude: Collection[str] = ()) -> tuple[str, ...]:
        return await self._call(self._registry.choose, count, exclude)

    async def address(self, bookie_id: str) -> tuple[str, int]:
        return await self._call(self._registry.address, bookie_id)

    async def _call(self, function: Callable[..., _T], *arguments: Any) -> _T:
        if self._closed:
            raise MetadataUnavailableError("the client is closed")
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
