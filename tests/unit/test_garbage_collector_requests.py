"""What operators and disks may ask of garbage collection, and what is refused because it would not be done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.errors import MetadataUnavailableError
from bk_spark.protocol.metadata.ledger_paths import LedgerManager
from bookie_server.config.collection import CompactionSettings
from bookie_server.gc.garbage_collector import DISKS, MAJOR, MINOR, OPERATOR, CollectionRefusedError, GarbageCollector
from bookie_server.identity.cluster_identity import ClusterIdentity
from tests.support.bookie_settings import bookie_config, major, minor
from tests.support.collected_storage import SmallStorage


class HeldStorage(SmallStorage):
    """Holds a pass at its first look at the ledgers, until the test lets it go on."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def local_ledgers(self) -> Int64s:
        await self.go_on.wait()
        return await super().local_ledgers()


class NoZooKeeper:
    """A session that has no server."""

    def __getattr__(self, name: str) -> Any:
        raise MetadataUnavailableError("ZooKeeper cannot be reached")


class NoMetadata:
    """A metadata store that cannot be reached."""

    root = "/ledgers"
    manager = LedgerManager.HIERARCHICAL
    zk = NoZooKeeper()


class Running:
    """A running collector. Nothing can be collected, since ZooKeeper is not there; compaction needs none."""

    def __init__(self, directory: Path, **config: Any) -> None:
        self.storage = HeldStorage(directory)
        self.failures: list[Exception] = []
        self.collector = GarbageCollector(
            cast(Any, self.storage),
            bookie_config(**config),
            cast(LedgerStore, NoMetadata()),
            cast(ClusterIdentity, SimpleNamespace(bookie_id="b:1")),
            self.failures.append,
        )

    async def passes(self, count: int) -> None:
        """Wait for so many passes since the start, good or bad."""
        timing = self.collector.counters.passes
        async with asyncio.timeout(30):
            while timing.done + timing.failed < count or self.collector.status().forced:
                await asyncio.sleep(0.001)


@asynccontextmanager
async def running(directory: Path, **config: Any) -> AsyncIterator[Running]:
    here = Running(directory, **config)
    here.collector.start()
    try:
        yield here
    finally:
        here.storage.go_on.set()
        await here.collector.stop()
        here.storage.close()
    assert not here.failures


def test_a_pass_is_forced_from_the_request_to_its_end(tmp_path: Path) -> None:
    async def check() -> None:
        async with running(tmp_path) as here:
            here.storage.go_on.clear()
            assert not here.collector.status().forced
            here.collector.force(major=None, minor=None)
            assert here.collector.status().forced
            await asyncio.sleep(0)
            assert here.collector.status().forced
            here.storage.go_on.set()
            await here.passes(1)
            status = here.collector.status()
            assert (status.forced, status.major_count, status.minor_count) == (False, 1, 0)
            assert "ZooKeeper cannot be reached" in status.problem
            here.collector.force(major=False, minor=None)
            await here.passes(2)
            assert here.collector.status().minor_count == 1
            here.collector.force(major=False, minor=False)
            await here.passes(3)
            status = here.collector.status()
            assert (status.major_count, status.minor_count) == (1, 1)

    asyncio.run(check())


def test_what_would_not_be_done_is_refused(tmp_path: Path) -> None:
    off = {**minor(CompactionSettings(0, 0.2)), **major(CompactionSettings(1000, 0))}

    async def check() -> None:
        async with running(tmp_path, **off) as here:
            for wanted in ({"major": True, "minor": None}, {"major": None, "minor": True}):
                with pytest.raises(CollectionRefusedError, match="compaction is off"):
                    here.collector.force(**wanted)
            assert not here.collector.status().forced
        async with running(tmp_path, **off, force_allow_compaction=True) as here:
            here.collector.force(major=None, minor=True)
            with pytest.raises(CollectionRefusedError, match="major compaction is off"):
                here.collector.force(major=True, minor=None)
            await here.passes(1)
            assert here.collector.status().minor_count == 1
        async with running(tmp_path) as here:
            here.collector.suspend(MAJOR, OPERATOR, True)
            with pytest.raises(CollectionRefusedError, match="major compaction is suspended; resume it first"):
                here.collector.force(major=True, minor=None)
            here.collector.force(major=None, minor=None)  # without the suspended compaction
            await here.passes(1)
            assert (here.collector.status().major_count, here.collector.status().minor_count) == (0, 1)
        with pytest.raises(CollectionRefusedError, match="is not running"):
            here.collector.force(major=None, minor=None)

    asyncio.run(check())


def test_operators_and_disks_do_not_undo_each_other(tmp_path: Path) -> None:
    async def check() -> None:
        async with running(tmp_path) as here:
            collector = here.collector

            def suspended() -> tuple[bool, bool]:
                return collector.is_suspended(MAJOR), collector.is_suspended(MINOR)

            collector.suspend(MINOR, OPERATOR, True)
            for compaction in (MINOR, MAJOR):
                collector.suspend(compaction, DISKS, True)
            with pytest.raises(CollectionRefusedError, match="a disk is too full"):
                collector.force(major=True, minor=None)
            for compaction in (MINOR, MAJOR):
                collector.suspend(compaction, OPERATOR, False)
            assert suspended() == (True, True)
            collector.force(major=None, minor=None)
            await here.passes(1)
            assert (collector.status().major_count, collector.status().minor_count) == (0, 0)
            collector.suspend(MINOR, OPERATOR, True)
            for compaction in (MINOR, MAJOR):
                collector.suspend(compaction, DISKS, False)
            assert suspended() == (False, True)
            collector.force_by_disks(True)
            await here.passes(2)
            assert collector.status().major_count == 1

    asyncio.run(check())


def test_g3_a_word_releases_what_waits_for_it_and_begins_a_pass(tmp_path: Path) -> None:
    async def check() -> None:
        async with running(tmp_path, gc_brake_share=0.5, gc_brake_ledgers=2) as here:
            with pytest.raises(CollectionRefusedError, match="word 'tea': no collection is stopped"):
                here.collector.release("tea")
            brake, _ = here.collector.brakes
            stopped = brake.stops(np.arange(3), 4)
            assert stopped is not None
            with pytest.raises(CollectionRefusedError, match=rf"the word is {stopped.word} \(deleted\)"):
                here.collector.release("tea")
            assert (brake.released, here.collector.status().forced) == (0, False)
            assert here.collector.release(stopped.word) is brake
            assert (brake.released, here.collector.status().forced) == (3, True)
            await here.passes(1)

    asyncio.run(check())
