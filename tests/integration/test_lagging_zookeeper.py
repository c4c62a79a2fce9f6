"""Clients of a ZooKeeper server that is behind: what was acknowledged by another server must count for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bk_spark.bookie.metadata.cluster_init import init_cluster
from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from tests.support.collected_bookie import collected, create
from tests.support.lagging_zookeeper import SESSION_TIMEOUT_MS, LaggingZooKeeper, lagging_zookeeper
from tests.support.running_storage import Place, in_loop
from tests.support.servers import start_timeout_ms
from tests.support.zookeeper_proxy import ZooKeeperProxy

#: ZooKeeper's request type.
SYNC = 9
LEDGER = 7


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaggingZooKeeper]:
    with lagging_zookeeper(tmp_path_factory.mktemp("ensemble")) as running:
        yield running


@pytest.fixture
def ahead(ensemble: LaggingZooKeeper, fresh_root: str) -> Iterator[LedgerStore]:
    """The cluster at the server that takes all changes.

    Its layout is flat. With others the collector also reads the counter of ids, after a sync.
    """
    session = ZooKeeper(ensemble.first.id)
    session.start(start_timeout_ms())
    init_cluster(session, fresh_root, "flat")
    yield LedgerStore(session, MetadataServiceUri.parse(f"zk+flat://{session.servers}{fresh_root}"))
    session.close()


@pytest.fixture
def syncs(ensemble: LaggingZooKeeper) -> Iterator[ZooKeeperProxy]:
    """Counts the syncs at the server that lags behind."""
    with ZooKeeperProxy(ensemble.second.id) as proxy:
        proxy.kinds = frozenset({SYNC})
        yield proxy


@pytest.fixture
def behind(ensemble: LaggingZooKeeper, syncs: ZooKeeperProxy, ahead: LedgerStore) -> Iterator[LedgerStore]:
    """The same cluster at the server that lags behind, if it is told to."""
    session = ZooKeeper(syncs.address, session_timeout_ms=SESSION_TIMEOUT_MS, operation_timeout_ms=SESSION_TIMEOUT_MS)
    session.start(start_timeout_ms())
    session.sync(ahead.root)
    yield LedgerStore(session, MetadataServiceUri.parse(f"zk+flat://{session.servers}{ahead.root}"))
    ensemble.catch_up()
    session.close()


def lag(ensemble: LaggingZooKeeper, ahead: LedgerStore, behind: LedgerStore) -> None:
    """Create a ledger that the second server does not hear of."""
    ensemble.hold_back()
    create(ahead, LEDGER)
    assert behind.zk.get(behind.manager.ledger_path(behind.root, LEDGER)) is None


def test_the_latest_metadata_are_those_that_any_server_has_acknowledged(
    ensemble: LaggingZooKeeper, ahead: LedgerStore, behind: LedgerStore, syncs: ZooKeeperProxy
) -> None:
    lag(ensemble, ahead, behind)
    before = syncs.requests
    with ThreadPoolExecutor(1) as thread:
        read = thread.submit(behind.read_latest, LEDGER)
        while not read.done() and syncs.requests == before:
            time.sleep(0.01)
        ensemble.catch_up()
        assert read.result(SESSION_TIMEOUT_MS / 1000).metadata == ahead.read(LEDGER).metadata


@in_loop
async def test_a_collector_whose_server_is_behind_removes_no_ledger_that_exists(
    tmp_path: Path, ensemble: LaggingZooKeeper, ahead: LedgerStore, behind: LedgerStore, syncs: ZooKeeperProxy
) -> None:
    async with collected(Place.make(tmp_path / "bookie"), behind) as bookie:
        lag(ensemble, ahead, behind)
        await bookie.add(LEDGER)
        before = syncs.requests
        collection = asyncio.ensure_future(bookie.collect())
        while not collection.done() and syncs.requests == before:
            await asyncio.sleep(0.01)
        ensemble.catch_up()
        status = await collection
        assert (status.problem, await bookie.ledgers()) == ("", [LEDGER])
