"""Lists of logs that are watched instead of polled."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence

import pytest

from bk_spark.bookie.metadata.zookeeper import WatchCallback, ZooKeeper
from bk_spark.datasource.stream.log_watch import LogNamesWatch, LogWatch, look_at_logs
from bk_spark.log import EntryFormat, LogSettings, LogStore
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import LogReplacedError, NoSuchLogError
from bk_spark.protocol.metadata.znodes import Znode
from bk_spark.protocol.quorum import Quorum
from tests.support.logs import commit_made_up
from tests.support.zookeeper_proxy import CALLS, ZooKeeperProxy
from tests.support.zookeeper_sessions import expire

RAW = LogSettings.create(Quorum(3, 3, 2), DigestType.CRC32C, EntryFormat.RAW, b"")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Told:
    """The news of a znode: can be awaited, and kept back."""

    def __init__(self) -> None:
        self.deaf = False
        self.event = threading.Event()

    def wait(self) -> None:
        assert self.event.wait(60)
        self.event.clear()


class ToldSession(ZooKeeper):
    """A session whose watches tell, by path, that they were called."""

    def __init__(self, servers: str) -> None:
        super().__init__(servers)
        self.told: defaultdict[str, Told] = defaultdict(Told)

    def exists(self, path: str, watch: WatchCallback | None = None) -> Znode | None:
        return super().exists(path, self._noting(watch))

    def get_many(self, paths: Sequence[str], watch: WatchCallback | None = None) -> dict[str, Znode | None]:
        return super().get_many(paths, self._noting(watch))

    def children(self, path: str, watch: WatchCallback | None = None) -> list[str] | None:
        return super().children(path, self._noting(watch))

    def _noting(self, watch: WatchCallback | None) -> WatchCallback | None:
        if watch is None:
            return None

        def note(path: str) -> None:
            if not self.told[path].deaf:
                watch(path)
            self.told[path].event.set()

        return note


@pytest.fixture
def store(zookeeper: ZooKeeper, fresh_root: str) -> LogStore:
    return LogStore(zookeeper, f"{fresh_root}/logs")


@pytest.fixture
def watching(proxy: ZooKeeperProxy) -> Iterator[ToldSession]:
    """A session whose requests are counted."""
    proxy.kinds = CALLS
    session = ToldSession(proxy.address)
    session.start()
    yield session
    session.close()


def test_nothing_is_asked_while_nothing_happens(
    store: LogStore, zookeeper: ZooKeeper, watching: ToldSession, proxy: ZooKeeperProxy
) -> None:
    log = store.create_log("flights", RAW)
    clock = Clock()
    watch = LogWatch(watching, LogStore(watching, store.root).open_log("flights"), clock)
    told = watching.told[log.paths.head]
    assert watch.now().next_offset == 0
    before = proxy.requests
    for _ in range(100):
        clock.now += 0.009
        assert watch.now().next_offset == 0
    assert proxy.requests == before

    commit_made_up(log, (5, 50))
    told.wait()
    assert watch.now().next_offset == 5
    after = proxy.requests
    assert after - before <= 2
    assert watch.now().next_offset == 5
    assert proxy.requests == after
    # Now and then it looks all the same: a sync and a reading.
    clock.now += 1
    assert watch.now().next_offset == 5
    assert proxy.requests == after + 2

    # The watch was set again.
    commit_made_up(log, (5, 50))
    told.wait()
    assert watch.now().next_offset == 10


def test_many_logs_are_looked_after_together(
    store: LogStore, zookeeper: ZooKeeper, watching: ToldSession, proxy: ZooKeeperProxy
) -> None:
    """One sync a pass, and of logs that did not change the head alone."""
    count, clock = 20, Clock()
    logs = [store.create_log(f"log-{number:02}", RAW) for number in range(count)]
    commit_made_up(logs[7], (5, 50))
    mine = LogStore(watching, store.root)
    watches = [LogWatch(watching, mine.open_log(log.name), clock) for log in logs]
    told = [watching.told[log.paths.head] for log in logs]

    def requests(*, latest: bool = False) -> int:
        before = proxy.requests
        look_at_logs(watching, watches, latest=latest)
        for watch in watches:
            snapshot, page = watch.looked_at(latest=latest), watch.take_tail_page()
            assert page is None or snapshot.look_at_tail(page) == (None, False)
        return proxy.requests - before

    assert requests() == 1 + 2 * count
    found = [watch.looked_at(latest=False) for watch in watches]
    assert [snapshot.next_offset for snapshot in found] == [5 if number == 7 else 0 for number in range(count)]
    assert requests() == 0
    clock.now += 1
    assert requests() == 1 + count
    assert requests(latest=True) == 1 + count
    assert [watch.looked_at(latest=False) for watch in watches] == found, "what did not change is what it was"
    # News of one needs no sync, and nothing of the others.
    commit_made_up(logs[3], (5, 50))
    told[3].wait()
    assert requests() == 2
    assert watches[3].looked_at(latest=False).next_offset == 5
    # A log that was deleted is an error to whoever asks for it, and to nobody else.
    _delete_tree(zookeeper, logs[4].paths.head)
    told[4].wait()
    look_at_logs(watching, watches, latest=True)
    with pytest.raises(NoSuchLogError):
        watches[4].looked_at(latest=True)
    assert watches[3].looked_at(latest=True).next_offset == 5


def test_a_look_at_many_logs_in_a_new_session(store: LogStore, watching: ToldSession, proxy: ZooKeeperProxy) -> None:
    """Watches went with the old session; they are set again, and the new one is synced."""
    clock = Clock()
    logs = [store.create_log(f"log-{number}", RAW) for number in range(3)]
    watches = [LogWatch(watching, LogStore(watching, store.root).open_log(log.name), clock) for log in logs]
    look_at_logs(watching, watches, latest=False)
    told = [watching.told[log.paths.head] for log in logs]
    expire(watching)
    for one in told:
        one.wait()
    commit_made_up(logs[0], (5, 50))
    look_at_logs(watching, watches, latest=False)
    assert [watch.looked_at(latest=False).next_offset for watch in watches] == [5, 0, 0]
    for log, one in zip(logs, told, strict=True):
        commit_made_up(log, (5, 50))
        one.wait()
    look_at_logs(watching, watches, latest=False)
    assert [watch.looked_at(latest=False).next_offset for watch in watches] == [10, 5, 5]


def test_what_no_news_came_of_is_seen_within_a_second(store: LogStore, watching: ToldSession) -> None:
    log = store.create_log("flights", RAW)
    clock = Clock()
    watch = LogWatch(watching, LogStore(watching, store.root).open_log("flights"), clock)
    told = watching.told[log.paths.head]
    watch.now()
    told.deaf = True
    commit_made_up(log, (5, 50))
    told.wait()
    assert watch.now().next_offset == 0
    assert watch.latest().next_offset == 5
    commit_made_up(log, (5, 50))
    assert watch.now().next_offset == 5
    clock.now += 1
    assert watch.now().next_offset == 10


def test_a_new_session_is_watched_anew(store: LogStore, zookeeper: ZooKeeper, watching: ToldSession) -> None:
    log = store.create_log("flights", RAW)
    watch = LogWatch(watching, LogStore(watching, store.root).open_log("flights"), Clock())
    told = watching.told[log.paths.head]
    names = LogNamesWatch(watching, store.root, Clock())
    told_names = watching.told[store.root]
    assert (watch.now().next_offset, names.now()) == (0, {"flights"})
    expire(watching)
    told.wait()
    told_names.wait()
    commit_made_up(log, (5, 50))
    store.create_log("trains", RAW)
    assert (watch.now().next_offset, names.now()) == (5, {"flights", "trains"})
    commit_made_up(log, (5, 50))
    told.wait()
    store.create_log("ships", RAW)
    told_names.wait()
    assert (watch.now().next_offset, names.now()) == (10, {"flights", "ships", "trains"})


def test_a_log_that_goes_is_an_error_each_time(store: LogStore, zookeeper: ZooKeeper, watching: ToldSession) -> None:
    log = store.create_log("flights", RAW)
    watch = LogWatch(watching, LogStore(watching, store.root).open_log("flights"), Clock())
    told = watching.told[log.paths.head]
    commit_made_up(log, (5, 50))
    assert watch.now().next_offset == 5
    _delete_tree(zookeeper, log.paths.head)
    told.wait()
    for _ in range(2):
        with pytest.raises(NoSuchLogError):
            watch.now()
    store.create_log("flights", RAW)
    for _ in range(2):
        with pytest.raises(LogReplacedError):
            watch.now()


def test_names_of_logs(store: LogStore, zookeeper: ZooKeeper, watching: ToldSession) -> None:
    clock = Clock()
    watch = LogNamesWatch(watching, store.root, clock)
    told = watching.told[store.root]
    assert watch.now() == set()
    store.create_log("b", RAW)
    assert watch.now() == {"b"}
    zookeeper.create(f"{store.root}/.no-log")
    told.wait()
    assert watch.now() == {"b"}
    told.deaf = True
    store.create_log("a", RAW)
    told.wait()
    assert watch.now() == {"b"}
    clock.now += 1
    assert watch.now() == {"a", "b"}


def _delete_tree(zk: ZooKeeper, path: str) -> None:
    for name in zk.children(path) or []:
        _delete_tree(zk, f"{path}/{name}")
    zk.delete(path)
