"""Fixtures of the tests with ZooKeeper alone: a second session, and one whose connection breaks.

Of tests that lose bookies: six of them. And of the tests of bkctl's offline commands: a bookie that was stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bk_spark.bkctl import main
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bookie_server.local import LocalBookie, LocalCluster
from tests.interop.apache import Bookies
from tests.interop.shelf import Shelf, bookie_settings
from tests.support.clusters import new_cluster
from tests.support.nursery import QuickCluster
from tests.support.registrations import mend
from tests.support.servers import BOOKIE_SETTINGS, WITH_GRPC, start_timeout_ms
from tests.support.stopped_bookie import Run, StoppedBookie
from tests.support.zookeeper_proxy import ZooKeeperProxy
from tests.support.zookeeper_sessions import reconnecting_soon


@pytest.fixture(scope="session")
def six(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """ZooKeeper and six bookies, for tests that lose some of them: see ``cluster_of_six``."""
    directory = tmp_path_factory.mktemp("six")
    # Nobody waits for the end of a session: see kill_and_forget.
    settings = {**BOOKIE_SETTINGS, **WITH_GRPC, "zkTimeout": "30000"}
    with QuickCluster(directory, bookies=6, bookie_settings=settings, start_timeout_ms=start_timeout_ms()) as running:
        yield running


@pytest.fixture
def cluster_of_six(six: LocalCluster) -> Iterator[LocalCluster]:
    """``six``, which all run again afterwards."""
    yield six
    mend(six)


@pytest.fixture
def other_session(zk_only: LocalCluster) -> Iterator[ZooKeeper]:
    """A session of another process with ``zk_only``."""
    session = ZooKeeper(zk_only.zookeepers[0].id)
    session.start()
    yield session
    session.close()


@pytest.fixture
def proxy(zk_only: LocalCluster) -> Iterator[ZooKeeperProxy]:
    """Between ``zk_only`` and whoever connects to its address."""
    with ZooKeeperProxy(zk_only.zookeepers[0].id) as running:
        yield running


@pytest.fixture
def shaky(proxy: ZooKeeperProxy) -> Iterator[ZooKeeper]:
    """A session whose connection breaks where the proxy is told to break it."""
    session = reconnecting_soon(ZooKeeper(proxy.address, session_timeout_ms=30_000, operation_timeout_ms=30_000))
    session.start()
    yield session
    session.close()


@pytest.fixture(scope="session")
def stopped(tmp_path_factory: pytest.TempPathFactory, zk_only: LocalCluster) -> StoppedBookie:
    """A bookie of ours with two journals and three ledger directories, and rolled files of both kinds."""
    directory = tmp_path_factory.mktemp("offline")
    uri = new_cluster(zk_only, directory.name)
    settings = bookie_settings(directory / "data", 2, 3)
    with Bookies(directory / "bookies", uri, [LocalBookie], settings) as bookies:
        shelf = Shelf(uri)
        shelf.fill(rounds=6)
        (bookie,) = bookies.bookies
        assert bookie.terminate()
        return StoppedBookie(bookie.conf_path, directory / "data", tuple(shelf.volumes))


@pytest.fixture
def damaged(stopped: StoppedBookie, tmp_path: Path) -> StoppedBookie:
    """A copy to be damaged."""
    return stopped.copied(tmp_path)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Exit status, output and errors of a command, which needs no cluster."""
    monkeypatch.delenv("BK_METADATA_SERVICE_URI", raising=False)

    def run(*arguments: object) -> tuple[int, str, str]:
        status = main(list(map(str, arguments)))
        printed, error = capfd.readouterr()
        return status, printed, error

    return run
