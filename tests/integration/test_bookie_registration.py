"""The bookie's znode: its mode, its moves, and sessions and servers that go away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.errors import MetadataError
from bk_spark.protocol.metadata.registration import native_service_info
from bookie_server.identity.registration import BookieMode, RegistrationManager
from bookie_server.local import LocalCluster
from tests.support.cluster_identity import joined
from tests.support.tcp_proxy import Connects, TcpProxy
from tests.support.zookeeper_sessions import expire

READ_ONLY = BookieMode(read_only=True)
WRITABLE = BookieMode()


class Stage:
    """A registration with a session of its own, and another session that looks."""

    def __init__(self, session: ZooKeeper, observer: ZooKeeper, root: str, wait_ms: int = 120_000) -> None:
        self.session = session
        self.observer = observer
        self.writable = f"{root}/available/b:1"
        self.read_only = f"{root}/available/readonly/b:1"
        #: What was told before a move, with the znodes that were there then.
        self.told: list[tuple[BookieMode, bool, bool]] = []
        self.was_told = threading.Event()
        info = native_service_info("b", 1)
        self.registration = RegistrationManager(
            session, joined(session, root, "b:1"), info, wait_ms=wait_ms, before_move=self._note
        )

    def _note(self, mode: BookieMode) -> None:
        self.told.append((mode, self.there(self.writable), self.there(self.read_only)))
        self.was_told.set()

    def start(self, mode: BookieMode) -> None:
        self.registration.set_mode(mode)
        self.registration.start()

    def there(self, path: str) -> bool:
        return self.observer.exists(path) is not None

    def wait(self, path: str, *, there: bool) -> None:
        wait_until(self.observer, path, lambda: self.there(path) == there)


def wait_until(observer: ZooKeeper, path: str, reached: Callable[[], bool]) -> None:
    while True:
        changed = threading.Event()

        def wake(_path: str, changed: threading.Event = changed) -> None:
            changed.set()

        observer.exists(path, wake)
        if reached():
            return
        assert changed.wait(60)


@pytest.fixture
def session(zk_only: LocalCluster) -> Iterator[ZooKeeper]:
    session = ZooKeeper(zk_only.zookeepers[0].id, session_timeout_ms=4000)
    session.start()
    yield session
    session.close()


@pytest.fixture
def stage(session: ZooKeeper, zookeeper: ZooKeeper, ledgers_root: str) -> Iterator[Stage]:
    stage = Stage(session, zookeeper, ledgers_root)
    yield stage
    stage.registration.stop()


def test_the_znode_moves_with_the_mode_and_is_never_missing(stage: Stage) -> None:
    stage.start(WRITABLE)
    assert stage.there(stage.writable)
    assert stage.registration.status == 1
    gone_with_the_other_there: list[bool] = []

    for mode, old, new in ((READ_ONLY, stage.writable, stage.read_only), (WRITABLE, stage.read_only, stage.writable)):
        moved = threading.Event()

        def look(_path: str, moved: threading.Event = moved) -> None:
            moved.set()

        stage.observer.exists(old, look)
        stage.registration.set_mode(mode)
        assert moved.wait(60)
        gone_with_the_other_there.append(stage.there(new) and not stage.there(old))
        assert stage.registration.status in (0, 1)
    assert gone_with_the_other_there == [True, True]
    # Each mode was told before anything of it was in ZooKeeper.
    assert stage.told == [(WRITABLE, False, False), (READ_ONLY, True, False), (WRITABLE, False, True)]
    stage.registration.stop()
    assert not stage.there(stage.writable)
    assert not stage.there(stage.read_only)


def test_starts_as_read_only(stage: Stage) -> None:
    stage.start(READ_ONLY)
    assert stage.there(stage.read_only)
    assert not stage.there(stage.writable)
    assert stage.registration.status == 0
    stage.registration.stop()
    assert not stage.there(stage.read_only)


def test_a_reason_that_changes_moves_nothing_but_is_told(stage: Stage) -> None:
    stage.start(READ_ONLY)
    before = stage.observer.exists(stage.read_only)
    stage.registration.set_mode(BookieMode(read_only=True, manual=True))
    stage.registration.set_mode(WRITABLE)
    stage.wait(stage.writable, there=True)
    assert before is not None
    assert stage.told[0] == (READ_ONLY, False, False)
    assert stage.told[-1][0] == WRITABLE


@pytest.mark.parametrize("mode", [WRITABLE, READ_ONLY], ids=["writable", "read-only"])
def test_registers_again_in_its_mode_when_the_session_expired(stage: Stage, mode: BookieMode) -> None:
    stage.start(mode)
    path, other = (stage.read_only, stage.writable) if mode.read_only else (stage.writable, stage.read_only)
    before = stage.session.session_id
    expire(stage.session)

    def owned_by_the_new_session() -> bool:
        node = stage.observer.exists(path)
        return node is not None and node.owner_session == stage.session.session_id != before

    wait_until(stage.observer, path, owned_by_the_new_session)
    assert not stage.there(other)


@pytest.mark.parametrize("old", ["writable", "read_only"])
def test_waits_for_the_znode_of_an_earlier_session_in_either_mode(
    stage: Stage, zk_only: LocalCluster, old: str
) -> None:
    earlier = ZooKeeper(zk_only.zookeepers[0].id)
    earlier.start()
    path = getattr(stage, old)
    earlier.create(path, ephemeral=True, make_parents=True)
    starting = threading.Thread(target=stage.start, args=(WRITABLE,))
    starting.start()
    try:
        starting.join(1.0)
        assert starting.is_alive()
        assert stage.there(path)
    finally:
        earlier.close()
        starting.join(60)
    assert not starting.is_alive()
    node = stage.observer.exists(stage.writable)
    assert node is not None
    assert node.owner_session == stage.session.session_id
    assert not stage.there(stage.read_only)


def test_another_bookie_with_the_same_id_is_not_pushed_aside(
    session: ZooKeeper, zookeeper: ZooKeeper, ledgers_root: str
) -> None:
    stage = Stage(session, zookeeper, ledgers_root, wait_ms=500)
    zookeeper.create(stage.writable, ephemeral=True, make_parents=True)
    with pytest.raises(MetadataError, match="another bookie with this id is running"):
        stage.start(WRITABLE)
    stage.registration.stop()
    node = zookeeper.exists(stage.writable)
    assert node is not None
    assert node.owner_session == zookeeper.session_id


def test_a_move_without_zookeeper_is_made_up_for(
    zookeeper: ZooKeeper, zk_only: LocalCluster, ledgers_root: str
) -> None:
    host, _, port = zk_only.zookeepers[0].id.rpartition(":")
    with TcpProxy((host, int(port))) as proxy:
        session = ZooKeeper(f"127.0.0.1:{proxy.address[1]}", session_timeout_ms=10_000)
        session.start()
        stage = Stage(session, zookeeper, ledgers_root)
        try:
            stage.start(WRITABLE)
            proxy.set(connects=Connects.REFUSE, cut=True)
            stage.registration.set_mode(READ_ONLY)
            assert stage.there(stage.writable)
            proxy.heal()
            stage.wait(stage.read_only, there=True)
            stage.wait(stage.writable, there=False)
            proxy.set(connects=Connects.REFUSE, cut=True)
            begun = time.monotonic()
            stage.registration.stop()
            assert time.monotonic() - begun < 60
        finally:
            proxy.heal()
            stage.registration.stop()
            session.close()


def test_a_mode_that_never_reached_zookeeper_is_taken_back(
    zookeeper: ZooKeeper, zk_only: LocalCluster, ledgers_root: str
) -> None:
    """It was written down before the move, and must not be found there by the next start."""
    host, _, port = zk_only.zookeepers[0].id.rpartition(":")
    with TcpProxy((host, int(port))) as proxy:
        session = ZooKeeper(f"127.0.0.1:{proxy.address[1]}", session_timeout_ms=10_000)
        session.start()
        stage = Stage(session, zookeeper, ledgers_root)
        try:
            stage.start(WRITABLE)
            proxy.set(connects=Connects.REFUSE, cut=True)
            for mode in (BookieMode(read_only=True, manual=True), WRITABLE):
                stage.was_told.clear()
                stage.registration.set_mode(mode)
                assert stage.was_told.wait(60)
                assert stage.told[-1][0] == mode
        finally:
            proxy.heal()
            stage.registration.stop()
            session.close()


def test_a_session_that_ends_before_anybody_listens(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    listen = stage.session.add_state_listener
    before = stage.session.session_id

    def late(listener: Callable[[str], None]) -> None:
        monkeypatch.undo()
        expire(stage.session)
        while stage.session.session_id in (0, before) or not stage.session.connected:
            time.sleep(0.01)
        listen(listener)

    monkeypatch.setattr(stage.session, "add_state_listener", late)
    stage.start(WRITABLE)
    stage.wait(stage.writable, there=True)


def test_a_start_can_be_given_up(stage: Stage) -> None:
    stage.observer.create(stage.writable, ephemeral=True, make_parents=True)
    starting = threading.Thread(target=stage.start, args=(WRITABLE,))
    starting.start()
    starting.join(0.5)
    assert starting.is_alive()
    begun = time.monotonic()
    stage.registration.stop()
    starting.join(60)
    assert not starting.is_alive()
    assert time.monotonic() - begun < 60
    assert not stage.there(stage.read_only)
