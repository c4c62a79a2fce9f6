"""Bookies come, go, turn read-only, fail and change racks: what the client's choices make of it. Real ZooKeeper, no
bookies: registrations are all that counts here."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.metadata.cluster_init import init_cluster
from bk_spark.bookie.metadata.zookeeper import LOST, ZooKeeper
from bk_spark.bookie.placement.placement import Spread
from bk_spark.bookie.services import ClusterServices
from bk_spark.protocol.errors import BookieUnavailableError, MetadataUnavailableError, NotEnoughBookiesError
from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.metadata.registration import native_service_info
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalCluster
from tests.support.ledgers import ledger
from tests.support.zookeeper_sessions import expire

ONE, TWO, THREE = Quorum(1, 1, 1), Quorum(2, 2, 2), Quorum(3, 3, 2)


class Stage:
    """Services of a cluster of its own, and the registrations in it, which another session makes."""

    def __init__(
        self,
        services: ClusterServices,
        session: ZooKeeper,
        other: ZooKeeper,
        root: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        self.services = services
        self.session = session
        self.other = other
        self.root = root
        self._caplog = caplog

    @property
    def logged(self) -> list[str]:
        return [record.getMessage() for record in self._caplog.records]

    def register(self, *bookies: str, read_only: bool = False) -> None:
        for bookie_id in bookies:
            host, _, port = bookie_id.partition(":")
            info = native_service_info(host, int(port)).encode()
            self.other.create(self._path(bookie_id, read_only), info, ephemeral=True)

    def unregister(self, *bookies: str, read_only: bool = False) -> None:
        for bookie_id in bookies:
            self.other.delete(self._path(bookie_id, read_only))

    def _path(self, bookie_id: str, read_only: bool) -> str:
        return f"{self.root}/available/{'readonly/' if read_only else ''}{bookie_id}"

    async def chosen(self) -> set[str]:
        """Who is chosen for ledgers of one bookie."""
        found = set()
        for _ in range(25):
            try:
                found.update(await self.services.choose_ensemble(ONE))
            except NotEnoughBookiesError:
                found.add("nobody")
        return found

    async def fail(self, bookie_id: str) -> None:
        """As a client that looked it up and was refused."""
        await self.services.address(bookie_id)
        self.services.bookie_failed(bookie_id)

    async def writable(self) -> list[str]:
        return [bookie.bookie_id for bookie in await self.services.bookies() if not bookie.read_only]

    async def read_only(self) -> list[str]:
        return [bookie.bookie_id for bookie in await self.services.bookies() if bookie.read_only]


Play = Callable[[Stage], Coroutine[Any, Any, None]]


@pytest.fixture
def other(zk_only: LocalCluster) -> Iterator[ZooKeeper]:
    session = ZooKeeper(zk_only.zookeepers[0].id)
    session.start()
    yield session
    session.close()


@pytest.fixture
def topology_script(tmp_path: Path) -> Path:
    """Host h4 is in a rack of its own."""
    path = tmp_path / "topology.sh"
    path.write_text('#!/bin/sh\nfor host in "$@"; do [ "$host" = h4 ] && echo /b || echo /a; done\n')
    path.chmod(0o755)
    return path


def staged(**settings: Any) -> Callable[[Play], Callable[..., None]]:
    """A test over a :class:`Stage`; in text settings ``{root}`` and ``{script}`` stand for the test's own."""

    def decorate(play: Play) -> Callable[..., None]:
        async def run(
            session: ZooKeeper, other: ZooKeeper, root: str, script: Path, caplog: pytest.LogCaptureFixture
        ) -> None:
            given = {
                name: value.format(root=root[1:], script=script) if isinstance(value, str) else value
                for name, value in settings.items()
            }
            config = ClientConfig(**{"metadata_timeout_ms": 10_000, **given})
            uri = MetadataServiceUri.parse(f"zk://{session.servers}{root}")
            services = await asyncio.to_thread(ClusterServices, session, uri, config)
            try:
                async with asyncio.timeout(60):
                    await play(Stage(services, session, other, root, caplog))
            finally:
                await asyncio.to_thread(services.close)

        @functools.wraps(play)
        def test(
            zookeeper: ZooKeeper,
            other: ZooKeeper,
            fresh_root: str,
            topology_script: Path,
            caplog: pytest.LogCaptureFixture,
        ) -> None:
            init_cluster(other, fresh_root)
            with caplog.at_level(logging.WARNING):
                asyncio.run(run(zookeeper, other, fresh_root, topology_script, caplog))

        del test.__wrapped__  # type: ignore[attr-defined]
        return test

    return decorate


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """A watch's event arrives when it arrives; the test's time limit is the bound."""
    while not await condition():
        await asyncio.sleep(0.01)


@staged()
async def test_bookies_that_come_and_go_are_followed(stage: Stage) -> None:
    assert await stage.chosen() == {"nobody"}
    stage.register("h1:1", "h2:1")
    await until(lambda: _is(stage.chosen, {"h1:1", "h2:1"}))
    stage.unregister("h1:1")
    await until(lambda: _is(stage.chosen, {"h2:1"}))
    stage.register("h1:1", "h3:1")
    await until(lambda: _is(stage.writable, ["h1:1", "h2:1", "h3:1"]))


@staged()
async def test_read_only_bookies_are_never_chosen(stage: Stage) -> None:
    stage.register("h1:1", "h2:1")
    stage.register("h3:1", read_only=True)
    assert await stage.chosen() == {"h1:1", "h2:1"}
    # Going read-only: registered as such first, then no more as writable. In between it is both.
    stage.register("h1:1", read_only=True)
    await until(lambda: _is(stage.chosen, {"h2:1"}))
    stage.unregister("h1:1")
    assert await stage.chosen() == {"h2:1"}
    found = {bookie.bookie_id: (bookie.read_only, bookie.address) for bookie in await stage.services.bookies()}
    assert found == {"h1:1": (True, ("h1", 1)), "h2:1": (False, ("h2", 1)), "h3:1": (True, ("h3", 1))}
    # And back.
    stage.register("h1:1")
    stage.unregister("h1:1", read_only=True)
    await until(lambda: _is(stage.chosen, {"h1:1", "h2:1"}))


@staged()
async def test_bookies_that_are_read_only_are_told_of_where_a_ledger_needs_them(stage: Stage) -> None:
    """Their disks are full, for one: to start more is one remedy, to make room the other."""
    with pytest.raises(NotEnoughBookiesError, match="1 writable bookies are needed, 0 are registered: start bookies"):
        await stage.services.choose_ensemble(ONE)
    stage.register("h1:1", "h2:1", "h3:1", read_only=True)
    await until(lambda: _is(stage.read_only, ["h1:1", "h2:1", "h3:1"]))
    told = "3 writable bookies are needed, 0 are registered, and 3 more are read-only: make room on their disks"
    with pytest.raises(NotEnoughBookiesError, match=told):
        await stage.services.choose_ensemble(THREE)
    with pytest.raises(NotEnoughBookiesError, match="replace h9:1, which failed; 3 are read-only: make room on their"):
        await stage.services.choose_replacement(THREE, ("h7:1", "h8:1", "h9:1"), 2, ())


@staged()
async def test_copies_go_to_several_hosts(stage: Stage) -> None:
    """Where a host runs several bookies, its failure takes one copy of an entry. No registration is read for it."""
    stage.register(*(f"h{host}:{port}" for host in range(3) for port in range(4)))
    for _ in range(25):
        ensemble = await stage.services.choose_ensemble(THREE)
        assert {bookie.partition(":")[0] for bookie in ensemble} == {"h0", "h1", "h2"}
    ensemble = ("h0:1", "h1:1", "h2:1")
    found = {await stage.services.choose_replacement(THREE, ensemble, 1, ()) for _ in range(25)}
    assert found == {"h1:0", "h1:2", "h1:3"}
    chosen, _ = await stage.services.choose_target(THREE, ensemble, 2, ())
    assert chosen in {"h2:0", "h2:2", "h2:3"}


@staged()
async def test_replacements_are_not_of_the_ensemble(stage: Stage) -> None:
    stage.register("h1:1", "h2:1", "h3:1", "h4:1", "h5:1")
    ensemble = ("h1:1", "h2:1", "h3:1")
    found = {await stage.services.choose_replacement(THREE, ensemble, 1, ()) for _ in range(25)}
    assert found == {"h4:1", "h5:1"}
    assert await stage.services.choose_replacement(THREE, ensemble, 1, {"h4:1"}) == "h5:1"
    with pytest.raises(NotEnoughBookiesError):
        await stage.services.choose_replacement(THREE, ensemble, 1, {"h4:1", "h5:1"})


@staged()
async def test_subscribers_hear_of_changes_until_they_unsubscribe(stage: Stage) -> None:
    heard = asyncio.Event()
    unsubscribe = stage.services.subscribe(heard.set)
    assert await stage.writable() == []
    stage.register("h1:1")
    await heard.wait()
    assert await stage.writable() == ["h1:1"]
    heard.clear()
    # Nobody has to ask in between for the next change to be heard of.
    stage.unregister("h1:1")
    await heard.wait()
    heard.clear()
    stage.register("h2:1")
    await heard.wait()
    unsubscribe()
    heard.clear()
    stage.register("h3:1")
    await until(lambda: _is(stage.writable, ["h2:1", "h3:1"]))
    assert not heard.is_set()


@staged()
async def test_a_watched_ledger(stage: Stage) -> None:
    ledger_id, stored = await stage.services.create(ledger(), None)
    changes: asyncio.Queue[int] = asyncio.Queue()
    found = await stage.services.read_watched(ledger_id, lambda: changes.put_nowait(1))
    assert found == stored
    assert changes.empty()
    await stage.services.write(ledger_id, ledger().in_recovery(), 0)
    await changes.get()
    # Once: whoever wants to hear more reads again.
    await stage.services.write(ledger_id, ledger().closed(1, 1), 1)
    found = await stage.services.read_watched(ledger_id, lambda: changes.put_nowait(2))
    assert found.metadata.state is LedgerState.CLOSED
    await stage.services.delete(ledger_id)
    assert await changes.get() == 2
    assert changes.empty()


@staged()
async def test_all_ledgers_are_listed(stage: Stage) -> None:
    for ledger_id in (2**40, 12345, 0, 2**31 - 2, 2**31 - 1, 7, 10_000):
        await stage.services.create(ledger(), None, ledger_id)
    made, _ = await stage.services.create(ledger(), None)
    found = [ledger_id async for batch in stage.services.ledger_batches() for ledger_id in batch]
    assert found == sorted({0, 7, 10_000, 12345, 2**31 - 2, 2**31 - 1, 2**40, made})


@pytest.mark.parametrize("layout", ["flat", "longhierarchical"])
def test_ledgers_are_listed_in_other_layouts(zookeeper: ZooKeeper, fresh_root: str, layout: str) -> None:
    init_cluster(zookeeper, fresh_root, layout)

    async def run() -> list[int]:
        uri = MetadataServiceUri.parse(f"zk://{zookeeper.servers}{fresh_root}")
        services = await asyncio.to_thread(ClusterServices, zookeeper, uri, ClientConfig())
        try:
            assert [batch async for batch in services.ledger_batches() if batch] == []
            for ledger_id in (2**40, 12345, 0, 2**31 - 1):
                await services.create(ledger(), None, ledger_id)
            return [ledger_id async for batch in services.ledger_batches() for ledger_id in batch]
        finally:
            await asyncio.to_thread(services.close)

    assert asyncio.run(run()) == [0, 12345, 2**31 - 1, 2**40]


# --- failing bookies ---


@staged()
async def test_a_bookie_that_failed_is_chosen_last_and_an_answer_sets_it_free(stage: Stage) -> None:
    stage.register("h1:1", "h2:1")
    await stage.fail("h1:1")
    assert await stage.chosen() == {"h2:1"}
    assert await stage.services.choose_replacement(TWO, ("x:1", "h2:1"), 0, ()) == "h1:1"
    assert set(await stage.services.choose_ensemble(TWO)) == {"h1:1", "h2:1"}
    stage.services.bookie_answered("h1:1")
    assert await stage.chosen() == {"h1:1", "h2:1"}


@staged()
async def test_a_bookie_that_registers_anew_is_free(stage: Stage) -> None:
    stage.register("h1:1", "h2:1")
    assert await stage.services.address("h1:1") == ("h1", 1)
    for _ in range(2):
        # The second time no answer would do.
        stage.services.bookie_failed("h1:1")
        stage.services.bookie_answered("h1:1")
    stage.services.bookie_failed("h1:1")
    assert await stage.chosen() == {"h2:1"}
    heard = asyncio.Event()
    unsubscribe = stage.services.subscribe(heard.set)
    stage.unregister("h1:1")
    stage.register("h1:1")
    await heard.wait()
    unsubscribe()
    await until(lambda: _is(stage.chosen, {"h1:1", "h2:1"}))


@staged()
async def test_a_bookie_that_was_not_registered_when_it_failed_is_free_when_it_is(stage: Stage) -> None:
    stage.register("h1:1")
    with pytest.raises(BookieUnavailableError, match="not registered"):
        await stage.services.address("h2:1")
    stage.services.bookie_failed("h2:1")
    stage.register("h2:1")
    await until(lambda: _is(stage.chosen, {"h1:1", "h2:1"}))


@staged()
async def test_an_operator_switches_quarantines_off(stage: Stage) -> None:
    stage.register("h1:1", "h2:1")
    await stage.fail("h1:1")
    assert await stage.chosen() == {"h2:1"}
    stage.other.create(f"{stage.root}/disableHealthCheck")
    await until(lambda: _is(stage.chosen, {"h1:1", "h2:1"}))
    stage.other.delete(f"{stage.root}/disableHealthCheck")
    await until(lambda: _is(stage.chosen, {"h2:1"}))


@staged(bookie_health_check_enabled=False)
async def test_quarantines_switched_off_by_a_setting(stage: Stage) -> None:
    stage.register("h1:1", "h2:1")
    await stage.fail("h1:1")
    assert await stage.chosen() == {"h1:1", "h2:1"}


# --- racks ---

RACKS = {
    "default": {
        "h1:1": {"rack": "/rack1", "hostname": "h1"},
        "h2:1": {"rack": "/rack1", "hostname": "h2"},
        "h3:1": {"rack": "/rack1", "hostname": "h3"},
        "h4:1": {"rack": "/rack2", "hostname": "h4"},
    }
}


def racks_with(**changed: str) -> bytes:
    group = {**RACKS["default"], **{f"{host}:1": {"rack": rack} for host, rack in changed.items()}}
    return json.dumps({"default": group}).encode()


async def always_in(stage: Stage, bookie_id: str) -> bool:
    """Whether every ensemble of two has the bookie, as it must when it alone is in a rack of its own."""
    return all([bookie_id in await stage.services.choose_ensemble(TWO) for _ in range(10)])


@staged(rack_mapping_znode="/bookies-{root}")
async def test_racks_from_zookeeper_are_followed(stage: Stage) -> None:
    znode = f"/bookies-{stage.root[1:]}"
    stage.register("h1:1", "h2:1", "h3:1", "h4:1")
    # No znode, no knowledge.
    assert not await always_in(stage, "h4:1")
    stage.other.create(znode, racks_with())
    await until(lambda: always_in(stage, "h4:1"))
    # For a failed bookie that has gone altogether: its rack is known by its id.
    assert await stage.services.choose_replacement(TWO, ("h1:1", "h9:1"), 1, ()) == "h4:1"
    # A malformed change leaves the knowledge as it is, and is reported once.
    stage.other.set(znode, b"{not json", -1)
    await until(lambda: _is(lambda: _malformed_reports(stage), 1))
    assert await always_in(stage, "h4:1")
    assert await _malformed_reports(stage) == 1
    stage.other.set(znode, racks_with(h4="/rack1", h1="/rack2"), -1)
    await until(lambda: always_in(stage, "h1:1"))
    stage.other.delete(znode)
    await until(lambda: _is(lambda: always_in(stage, "h1:1"), False))


@staged(rack_mapping_znode="/bookies-{root}", enforce_min_racks_per_write_quorum=True)
async def test_racks_that_are_enforced(stage: Stage) -> None:
    znode = f"/bookies-{stage.root[1:]}"
    stage.register("h1:1", "h2:1", "h3:1", "h4:1")
    with pytest.raises(NotEnoughBookiesError, match="/default-rack has 4"):
        await stage.services.choose_ensemble(TWO)
    stage.other.create(znode, racks_with())
    await until(lambda: _can_choose(stage))
    assert await always_in(stage, "h4:1")
    assert (await stage.services.choose_ensemble(ONE))[0]
    with pytest.raises(NotEnoughBookiesError, match="of the remaining bookies, /rack1 has 2"):
        await stage.services.choose_replacement(TWO, ("h1:1", "h4:1"), 1, ())
    # A dead bookie is not better than none: the spread needs it.
    await stage.fail("h4:1")
    assert await always_in(stage, "h4:1")


@staged(rack_mapping_znode="/bookies-{root}", enforce_min_racks_per_write_quorum=True)
async def test_r11_racks_never_stop_a_repair(stage: Stage) -> None:
    stage.other.create(f"/bookies-{stage.root[1:]}", racks_with())
    stage.register("h1:1", "h2:1", "h3:1")
    await until(lambda: _is(lambda: stage.services.choose_target(TWO, ("h1:1", "h4:1"), 1, ("h2:1",)), ("h3:1", 1)))
    with pytest.raises(NotEnoughBookiesError):
        await stage.services.choose_replacement(TWO, ("h1:1", "h4:1"), 1, ("h2:1",))
    with pytest.raises(NotEnoughBookiesError, match="no writable bookie is left"):
        await stage.services.choose_target(TWO, ("h1:1", "h4:1"), 1, ("h2:1", "h3:1"))
    # The other rack is back. Read-only bookies are sources, and never targets.
    stage.register("h4:1")
    await until(lambda: _is(lambda: stage.services.choose_target(TWO, ("h1:1", "h2:1"), 1, ()), ("h4:1", 0)))
    assert await stage.services.find_misplaced(TWO, ("h1:1", "h4:1")) == (0, 0)
    assert await stage.services.find_misplaced(TWO, ("h1:1", "h2:1")) == (0, 1)
    ensembles = [(TWO, ("h1:1", "h4:1")), (TWO, ("h2:1", "h1:1"))]
    assert await stage.services.judge_spread(ensembles) == [Spread.SPREAD, Spread.MISPLACED]
    stage.register("h5:1", read_only=True)
    await until(lambda: _is(lambda: _ids_seen(stage), _ids("h1:1 h2:1 h3:1 h4:1", "h5:1")))
    seen = await stage.services.look_at_bookies(("h1:1", "h5:1", "h6:1"))
    assert seen.zxids.keys() == {"h1:1", "h5:1"}
    # Nothing is known of a bookie that is in no list of racks. Without h4, one rack is left.
    assert await stage.services.judge_spread([(TWO, ("h1:1", "h9:1"))]) == [Spread.UNKNOWN]
    assert await stage.services.find_misplaced(TWO, ("h8:1", "h9:1")) == (0, 0)
    stage.unregister("h4:1")
    await until(lambda: _is(lambda: stage.services.judge_spread(ensembles), [Spread.SPREAD, Spread.UNMOVABLE]))


async def _ids_seen(stage: Stage) -> tuple[frozenset[str], frozenset[str]]:
    seen = await stage.services.look_at_bookies(())
    return seen.writable, seen.read_only


def _ids(writable: str, read_only: str) -> tuple[frozenset[str], frozenset[str]]:
    return frozenset(writable.split()), frozenset(read_only.split())


@staged(bookie_racks="h1=/a, h2:1=/a, h3=/a")
async def test_racks_from_a_setting(stage: Stage) -> None:
    stage.register("h1:1", "h2:1", "h3:1", "h4:1")
    assert await always_in(stage, "h4:1")


@staged(network_topology_script="{script}")
async def test_racks_from_a_script(stage: Stage) -> None:
    stage.register("h1:1", "h2:1", "h3:1", "h4:1")
    assert await always_in(stage, "h4:1")


async def _malformed_reports(stage: Stage) -> int:
    await stage.services.choose_ensemble(TWO)
    return sum("is not used for racks" in text for text in stage.logged)


async def _can_choose(stage: Stage) -> bool:
    try:
        await stage.services.choose_ensemble(TWO)
    except NotEnoughBookiesError:
        return False
    return True


# --- lost sessions ---


@staged(rack_mapping_znode="/bookies-{root}")
async def test_everything_is_followed_again_after_the_session_expired(stage: Stage) -> None:
    znode = f"/bookies-{stage.root[1:]}"
    stage.register("h1:1", "h2:1", "h3:1", "h4:1")
    stage.other.create(znode, racks_with())
    await until(lambda: always_in(stage, "h4:1"))
    ledger_id, stored = await stage.services.create(ledger(), None)
    watched, heard = asyncio.Event(), asyncio.Event()
    assert await stage.services.read_watched(ledger_id, watched.set) == stored
    unsubscribe = stage.services.subscribe(heard.set)
    before = stage.session.session_id
    await asyncio.to_thread(expire, stage.session)
    assert stage.session.session_id != before
    # A lost watch is told, not passed over.
    await watched.wait()
    assert await stage.services.read_latest(ledger_id) == stored
    heard.clear()
    stage.unregister("h1:1")
    await heard.wait()
    await until(lambda: _is(stage.writable, ["h2:1", "h3:1", "h4:1"]))
    stage.other.set(znode, racks_with(h4="/rack1", h2="/rack2"), -1)
    await until(lambda: always_in(stage, "h2:1"))
    with pytest.raises(BookieUnavailableError):
        await stage.services.address("h1:1")
    await stage.services.delete(ledger_id)
    unsubscribe()


@staged()
async def test_what_changed_while_the_session_was_lost_is_seen(stage: Stage) -> None:
    stage.register("h1:1")
    assert await stage.chosen() == {"h1:1"}
    heard = asyncio.Event()
    unsubscribe = stage.services.subscribe(heard.set)

    def change() -> None:
        stage.unregister("h1:1")
        stage.register("h2:1")
        stage.session.remove_state_listener(on_lost)

    def on_lost(state: str) -> None:
        if state == LOST:
            threading.Thread(target=change).start()

    stage.session.add_state_listener(on_lost)
    await asyncio.to_thread(expire, stage.session)
    await heard.wait()
    await until(lambda: _is(stage.chosen, {"h2:1"}))
    unsubscribe()


@staged()
async def test_after_closing_calls_are_refused_at_once(stage: Stage) -> None:
    await asyncio.to_thread(stage.services.close)
    with pytest.raises(MetadataUnavailableError, match="closed"):
        await stage.services.choose_ensemble(ONE)
    stage.services.bookie_failed("h1:1")


async def _is(read: Callable[[], Awaitable[Any]], expected: object) -> bool:
    return bool(await read() == expected)
