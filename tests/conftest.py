"""Fixtures for all tests: a real ZooKeeper, a real cluster, a real Spark session, each started at first use.

Every test carries the marker of its directory (``unit``, ``fuzz``, ``simulation``, ``integration``, ``spark``,
``interop``, ``faults``), and directories run in that order, cheapest first. Several test processes mix them
(:mod:`tests.support.order`). Tests in ``unit``, ``fuzz`` and
``simulation`` may not use a fixture that starts anything.
"""

from __future__ import annotations

import fcntl
import functools
import gc
import os
import signal
import sys
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bk_spark.bookie.metadata.cluster_init import init_cluster
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bookie_server.local import LocalCluster
from tests.support.environments import build_wheel
from tests.support.leaks import LeakWatch
from tests.support.nursery import QuickCluster, nursery
from tests.support.order import expected_s, rotated, spread
from tests.support.registrations import mend
from tests.support.servers import BOOKIE_SETTINGS, WITH_GRPC, spark_session, start_timeout_ms
from tests.support.turns import only_todays, whose_turn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DIRECTORIES = ("unit", "fuzz", "simulation", "crash", "integration", "spark", "interop", "faults")
_PURE = ("unit", "fuzz", "simulation", "crash")
_STARTING = {"cluster", "spark", "zk_only"}
_LEAK_CHECKED = ("integration", "interop", "faults")
#: Tests that are repeated after failures for which nobody here can do anything: pyproject.toml names them. The others
#: are many, and a test that may be repeated costs as much as two of them.
_REPEATED = ("spark", "interop", "faults")
_REPETITIONS = 2
_Report = pytest.CollectReport


def pytest_configure() -> None:
    # What a shell starts in the background ignores interrupts, and so would Python and all processes it starts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without searching for garbage, which takes a fifth of that time. No test is garbage later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, _Report, _Report]:
    """Test processes begin with different files, so that each rewrites (for ``assert``) its part of those that are new
    or changed, and finds the others in ``__pycache__``: else they would all rewrite all of them at the same time."""
    report = yield
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker and isinstance(collector, pytest.Directory):
        report.result = rotated(report.result, int(worker.removeprefix("gw")), _processes())
    return report


def _processes() -> int:
    return int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    # Tests of a file take turns as they stand there: pytest has not yet put those with the same fixtures together.
    if _processes() > 1:
        items.sort(key=lambda item: str(item.path))  # they were collected in another order in each process
    if only_todays():
        _leave_out_others_turns(config, items)
    for item in items:
        directory = _directory_of(item)
        if directory not in _DIRECTORIES:
            raise pytest.UsageError(f"{item.nodeid}: tests live in one of tests/{{{','.join(_DIRECTORIES)}}}")
        item.add_marker(directory)
        if directory in _REPEATED:
            item.add_marker(pytest.mark.flaky(reruns=_REPETITIONS))
        started = _STARTING.intersection(getattr(item, "fixturenames", ()))
        if directory in _PURE and started:
            raise pytest.UsageError(f"{item.nodeid}: a {directory} test may not use {', '.join(sorted(started))}")
    yield
    _order(items)


def _directory_of(item: pytest.Item) -> str:
    return _directory_at(item.path)


@functools.cache
def _directory_at(path: Path) -> str:
    here = Path(__file__).parent
    return path.relative_to(here).parts[0] if path.is_relative_to(here) else ""


def _order(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _DIRECTORIES.index(_directory_of(item)))
    processes = _processes()
    if processes > 1:
        # hypothesis finds fault with strategies while a thread of a client uses the module random.
        fuzz = [item for item in items if _directory_of(item) == "fuzz"]
        others = [item for item in items if _directory_of(item) != "fuzz"]
        items[:] = spread(
            [(_expected_s(item, _directory_of(item)), str(item.path), item) for item in others], processes, fuzz
        )


def _leave_out_others_turns(config: pytest.Config, items: list[pytest.Item]) -> None:
    taking = [(item, marker) for item in items if (marker := item.get_closest_marker("turns"))]
    turns = whose_turn(
        [(item.path.name, *marker.args, marker.kwargs.get("together", False)) for item, marker in taking]
    )
    others = {item for (item, _), turn in zip(taking, turns, strict=True) if not turn}
    config.hook.pytest_deselected(items=[item for item in items if item in others])
    items[:] = [item for item in items if item not in others]


def pytest_report_header() -> str | None:
    return "long tests take turns: those of today run (TEST_TURNS=all runs all)" if only_todays() else None


def _timeout_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker else 0.0


def _expected_s(item: pytest.Item, directory: str) -> float:
    if any(marker.args[:1] == (True,) for marker in item.iter_markers("skipif")):
        return 0.0  # it runs on demand, and nobody demands it
    # Where Spark runs already, a test with its session costs less.
    uses_spark = "spark" in getattr(item, "fixturenames", ())
    return expected_s("spark" if uses_spark else directory, _timeout_s(item))


def _has_spark() -> bool:
    if "pyspark" not in sys.modules:
        return False
    from tests.support.spark_inside import has_gateway

    return has_gateway()


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that leaves a thread, a socket or an asyncio task behind fails.

    Fixtures of wider scope that the test names are set up before this one; those of its own scope after it, and
    they are gone when it looks.
    """
    checked = any(request.node.get_closest_marker(directory) for directory in _LEAK_CHECKED)
    # Spark's driver opens and keeps connections as it likes, and so does what is left of it for later tests.
    if not checked or "spark" in request.fixturenames or _has_spark():
        yield
        return
    nursery()  # what it needs here is none of the test's
    watch = LeakWatch()
    try:
        yield
        leaked = watch.leaked()
    finally:
        watch.end()
    assert not leaked, "left behind by this test:\n" + "\n".join(leaked)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it is published, built of the checkout: once for all test processes."""
    own = tmp_path_factory.getbasetemp()
    directory = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "wheel"
    directory.mkdir(exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return next(directory.glob("*.whl"), None) or build_wheel(directory)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """ZooKeeper and three bookies for the whole session. Leave it as you found it, or use ``mended_cluster``."""
    directory = tmp_path_factory.mktemp("cluster")
    with QuickCluster(
        directory, bookies=3, bookie_settings={**BOOKIE_SETTINGS, **WITH_GRPC}, start_timeout_ms=start_timeout_ms()
    ) as running:
        yield running


@pytest.fixture
def mended_cluster(cluster: LocalCluster) -> Iterator[LocalCluster]:
    """The session's cluster, for tests that kill or suspend its servers: all run again afterwards."""
    yield cluster
    mend(cluster)


@pytest.fixture(scope="session")
def metadata_service_uri(cluster: LocalCluster) -> str:
    """URI of the session's cluster, as clients are given it."""
    return cluster.metadata_service_uri


@pytest.fixture(scope="session")
def zk_only(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A ZooKeeper with an initialised but empty cluster, for tests that need no bookie."""
    directory = tmp_path_factory.mktemp("zookeeper")
    with QuickCluster(directory, bookies=0, start_timeout_ms=start_timeout_ms()) as running:
        yield running


@pytest.fixture
def zookeeper(zk_only: LocalCluster) -> Iterator[ZooKeeper]:
    """A session with ``zk_only``."""
    session = ZooKeeper(zk_only.zookeepers[0].id)
    session.start()
    yield session
    session.close()


@pytest.fixture
def fresh_root(request: pytest.FixtureRequest) -> str:
    """A path that no other test uses and that does not exist yet, to put znodes under."""
    return f"/test-{request.node.originalname}-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def ledgers_root(zookeeper: ZooKeeper, fresh_root: str) -> str:
    """A new cluster's root in ``zk_only`` (hierarchical layout, no bookies)."""
    init_cluster(zookeeper, fresh_root)
    return fresh_root


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark session for all tests: local[2], UTC, two shuffle partitions, no UI."""
    session = spark_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
