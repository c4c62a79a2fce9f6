"""Ledgers that are made again under their old ids while the collector is about to delete them: a real storage in this
process, a real ZooKeeper."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bk_spark.bookie.metadata.cluster_init import init_cluster
from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.protocol.codes import Code
from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bookie_server.local import LocalCluster
from tests.support.collected_bookie import CONFIG, OTHER, SOON, Bookie, Steered, collected, create, metadata
from tests.support.running_storage import Place, in_loop, stored

LEDGERS = list(range(1, 160))
#: Made again before the reading of the znodes ends; the others while ledgers are being removed.
AT_ONCE = LEDGERS[-41:]
#: Without the brake.
CONFIG_WITHOUT = replace(CONFIG, gc_brake_share=1.0)


@pytest.fixture
def zk(zk_only: LocalCluster) -> Iterator[Steered]:
    session = Steered(zk_only.zookeepers[0].id)
    session.start()
    yield session
    session.close()


@pytest.fixture
def store(zk: Steered, fresh_root: str) -> LedgerStore:
    init_cluster(zk, fresh_root)
    return LedgerStore(zk, MetadataServiceUri.parse(f"zk://{zk.servers}{fresh_root}"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.make(tmp_path / "bookie")


@pytest.fixture
def after_read(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Sequence[str]], None]], None]:
    """Has a function called with the paths of each reading, in the collector's thread, before its answers are seen."""

    def call(look: Callable[[Sequence[str]], None]) -> None:
        get_many = Steered.get_many

        def read(session: Steered, paths: Sequence[str]) -> Any:
            found = get_many(session, paths)
            look(paths)
            return found

        monkeypatch.setattr(Steered, "get_many", read)

    return call


class Again:
    """Makes ledgers again and writes an entry to each."""

    def __init__(self, bookie: Bookie, store: LedgerStore) -> None:
        self.bookie = bookie
        self.store = store
        self.loop = asyncio.get_running_loop()
        self.acknowledged: list[int] = []
        self.refused: list[int] = []

    async def make(self, ledger_ids: Sequence[int]) -> None:
        for ledger_id in ledger_ids:
            await asyncio.to_thread(create, self.store, ledger_id)
            codes = await self.bookie.running.add(stored(ledger_id, 7, fill=b"n"))
            (self.acknowledged if codes == [Code.OK] else self.refused).append(ledger_id)

    def make_and_wait(self, ledger_ids: Sequence[int]) -> None:
        """In another thread."""
        asyncio.run_coroutine_threadsafe(self.make(ledger_ids), self.loop).result(60)

    async def lost(self) -> list[int]:
        read = self.bookie.running.read
        return [each for each in self.acknowledged if await read((each, 7)) != [stored(each, 7, fill=b"n")]]


@in_loop
async def test_g2_an_id_made_again_after_its_znode_was_read_keeps_what_was_acknowledged(
    place: Place, store: LedgerStore, after_read: Callable[[Callable[[Sequence[str]], None]], None]
) -> None:
    async with collected(place, store, CONFIG_WITHOUT) as bookie:
        await bookie.add(*LEDGERS)
        again = Again(bookie, store)
        meanwhile: list[asyncio.Task[None]] = []

        def look(paths: Sequence[str]) -> None:
            if len(paths) > 100 and not meanwhile:
                again.make_and_wait(AT_ONCE)
                rest = list(reversed(LEDGERS[: -len(AT_ONCE)]))
                again.loop.call_soon_threadsafe(lambda: meanwhile.append(asyncio.ensure_future(again.make(rest))))

        after_read(look)
        status = await bookie.collect()
        await meanwhile[0]
        print(f"{len(again.acknowledged)} acknowledged, {len(again.refused)} refused while they were being removed")
        assert status.problem == ""
        assert set(again.acknowledged) >= set(AT_ONCE)
        assert await again.lost() == []
        # Whoever was refused is served now, also with what it was refused.
        for ledger_id in again.refused:
            assert await bookie.running.add(stored(ledger_id, 7, fill=b"n")) == [Code.OK]


@in_loop
async def test_g2_a_ledger_that_was_closed_elsewhere_and_made_again_here_keeps_what_was_acknowledged(
    place: Place, store: LedgerStore, after_read: Callable[[Callable[[Sequence[str]], None]], None]
) -> None:
    """Over-replicated by what was read first; then it is deleted, and made again with this bookie."""
    ledgers = LEDGERS[:10]
    for ledger_id in ledgers:
        store.create(metadata(OTHER, state=LedgerState.CLOSED), ledger_id=ledger_id)
    async with collected(place, store, SOON) as bookie:
        await bookie.add(*ledgers)
        again = Again(bookie, store)
        seen: list[Sequence[str]] = []

        def look(paths: Sequence[str]) -> None:
            locked = [path for path in paths if "/underreplication/locks/" in path]
            if locked or again.acknowledged or len(paths) < len(ledgers) + 3:
                return
            # The second reading of all of them: the search for over-replicated ones.
            seen.append(paths)
            if len(seen) == 2:
                for ledger_id in ledgers:
                    store.delete(ledger_id)
                again.make_and_wait(ledgers)

        after_read(look)
        status = await bookie.collect()
        assert status.problem == ""
        assert again.acknowledged == ledgers
        assert await again.lost() == []
        assert bookie.collector.counters.over_replicated_deleted == 0


@in_loop
async def test_g2_a_session_replaced_while_ledgers_are_marked_removes_nothing_and_takes_the_marks_back(
    place: Place, zk: Steered, store: LedgerStore
) -> None:
    async with collected(place, store, CONFIG_WITHOUT) as bookie:
        await bookie.add(*LEDGERS)
        asked = 0

        def replaced(paths: list[str]) -> None:
            nonlocal asked
            asked += any("/00/0000/L" in path for path in paths)
            if asked == 2:  # the reading of those that are marked
                zk.other_session = 1

        zk.before_many = replaced
        assert "session" in (await bookie.collect()).problem
        assert asked == 2
        assert await bookie.ledgers() == LEDGERS
        for ledger_id in LEDGERS:
            assert await bookie.running.add(stored(ledger_id, 8)) == [Code.OK]
        zk.before_many, zk.other_session = lambda paths: None, 0
        assert (await bookie.collect()).problem == ""
        assert await bookie.ledgers() == []
