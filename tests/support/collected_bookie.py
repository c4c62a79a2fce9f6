"""A running storage in this process with its collector, over a ZooKeeper whose answers a test can change."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.metadata.zookeeper import WatchCallback, ZooKeeper
from bk_spark.protocol.codes import Code
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from bk_spark.protocol.quorum import Quorum
from bookie_server.config.config import BookieConfig
from bookie_server.gc.collector_status import GarbageCollectorStatus
from bookie_server.gc.garbage_collector import GarbageCollector
from tests.support.bookie_settings import OFF, bookie_config, major, minor
from tests.support.cluster_identity import joined
from tests.support.running_storage import Place, Running, running, stored

BOOKIE = "127.0.0.1:3181"
OTHER = "127.0.0.1:3182"
CONFIG = bookie_config(gc_interval_ms=3_600_000, gc_over_replicated_interval_ms=0, **minor(OFF), **major(OFF))
SOON = replace(CONFIG, gc_over_replicated_interval_ms=1)
Listed = Callable[[list[str] | None], list[str] | None]


class Steered(ZooKeeper):
    """A session whose answers the test can change."""

    def __init__(self, servers: str) -> None:
        super().__init__(servers)
        self.listed: Listed = lambda names: names
        self.before_many: Callable[[list[str]], None] = lambda paths: None
        self.other_session = 0

    def children(self, path: str, watch: WatchCallback | None = None) -> list[str] | None:
        return self.listed(super().children(path, watch))

    def get_many(self, paths: Any) -> Any:
        self.before_many(list(paths))
        return super().get_many(paths)

    @property
    def session_id(self) -> int:
        return super().session_id + self.other_session


class Bookie:
    """A running storage with its collector."""

    def __init__(
        self, bookie: Running, collector: GarbageCollector, store: LedgerStore, failures: list[Exception]
    ) -> None:
        self.running = bookie
        self.collector = collector
        self.store = store
        self.failures = failures

    async def add(self, *ledger_ids: int) -> None:
        codes = await self.running.add(*(stored(ledger_id, entry) for ledger_id in ledger_ids for entry in range(3)))
        assert set(codes) == {Code.OK}

    async def ledgers(self) -> list[int]:
        ledgers: list[int] = (await self.running.upkeep.local_ledgers()).tolist()
        return ledgers

    async def collect(self) -> GarbageCollectorStatus:
        return await self.collector.run()


@contextlib.asynccontextmanager
async def collected(place: Place, store: LedgerStore, config: BookieConfig = CONFIG) -> AsyncIterator[Bookie]:
    failures: list[Exception] = []
    async with running(place) as bookie:
        collector = GarbageCollector(
            bookie.upkeep, config, store, joined(store.zk, store.root, BOOKIE), failures.append
        )
        collector.start()
        try:
            yield Bookie(bookie, collector, store, failures)
        finally:
            await collector.stop()


def metadata(*ensemble: str, state: LedgerState = LedgerState.OPEN) -> LedgerMetadata:
    made = LedgerMetadata(Quorum(len(ensemble), len(ensemble), 1), (Segment(0, ensemble),))
    return made.closed(2, 192) if state is LedgerState.CLOSED else replace(made, state=state)


def create(store: LedgerStore, *ledger_ids: int, ensemble: tuple[str, ...] = (BOOKIE,)) -> None:
    for ledger_id in ledger_ids:
        store.create(metadata(*ensemble), ledger_id=ledger_id)
