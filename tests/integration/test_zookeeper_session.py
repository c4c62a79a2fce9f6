"""What a broken connection to ZooKeeper must not break: watches, cached lists, clients that share a session."""

from __future__ import annotations

import threading
from collections.abc import Callable

from bk_spark.bookie.metadata.cluster_init import init_cluster
from bk_spark.bookie.metadata.zookeeper import CONNECTED, SUSPENDED, ZooKeeper
from bk_spark.bookie.placement.registry import RegistrationClient
from bk_spark.protocol.metadata.registration import native_service_info
from bookie_server.local import LocalCluster
from tests.support.zookeeper_sessions import cut


def break_connection(session: ZooKeeper) -> None:
    """Cut the session's TCP connection and wait until it has another."""
    lost, back = threading.Event(), threading.Event()

    def listener(state: str) -> None:
        if state == SUSPENDED:
            lost.set()
        elif state == CONNECTED and lost.is_set():
            back.set()

    session.add_state_listener(listener)
    cut(session)
    assert lost.wait(60)
    assert back.wait(60)
    session.remove_state_listener(listener)


class Changes:
    """Counts calls, and waits for one."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self.paths: list[str] = []

    def __call__(self, path: str = "") -> None:
        with self._condition:
            self.paths.append(path)
            self._condition.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self._condition:
            assert self._condition.wait_for(condition, 60)


def test_watches_are_called_when_the_connection_breaks(zookeeper: ZooKeeper, fresh_root: str) -> None:
    """ZooKeeper's client forgets its watches then: whoever relies on one must look again."""
    zookeeper.ensure_path(f"{fresh_root}/child")
    data, children, exists = Changes(), Changes(), Changes()
    zookeeper.get(f"{fresh_root}/child", watch=data)
    zookeeper.children(fresh_root, watch=children)
    zookeeper.exists(f"{fresh_root}/none", watch=exists)
    break_connection(zookeeper)
    for changes in (data, children, exists):
        changes.wait_for(lambda changes=changes: bool(changes.paths))
    assert (data.paths, children.paths, exists.paths) == (
        [f"{fresh_root}/child"],
        [fresh_root],
        [f"{fresh_root}/none"],
    )


def test_the_list_of_bookies_is_read_anew_after_a_broken_connection(
    zookeeper: ZooKeeper, ledgers_root: str, zk_only: LocalCluster
) -> None:
    changed = Changes()
    registry = RegistrationClient(zookeeper, ledgers_root, on_stale=changed)
    assert registry.writable() == ()
    break_connection(zookeeper)
    changed.wait_for(lambda: bool(changed.paths))
    other = ZooKeeper(zk_only.zookeepers[0].id)
    other.start()
    try:
        other.create(f"{ledgers_root}/available/b1:1", native_service_info("127.0.0.1", 1).encode(), ephemeral=True)
        zookeeper.sync(ledgers_root)
        assert registry.writable() == ("b1:1",)
        assert registry.address("b1:1") == ("127.0.0.1", 1)
        before = len(changed.paths)
        break_connection(zookeeper)
        changed.wait_for(lambda: len(changed.paths) >= before + 2)
    finally:
        other.close()
    # The other session is over, and its bookie with it.
    changed.wait_for(lambda: registry.writable() == ())
    registry.close()


def test_a_missing_list_of_bookies_is_not_remembered(zookeeper: ZooKeeper, fresh_root: str) -> None:
    registry = RegistrationClient(zookeeper, fresh_root)
    assert registry.writable() == ()
    init_cluster(zookeeper, fresh_root)
    zookeeper.create(f"{fresh_root}/available/b1:1", ephemeral=True)
    assert registry.writable() == ("b1:1",)
    registry.close()
