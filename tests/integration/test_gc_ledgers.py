"""Which ledgers the collector deletes: a real storage in this process, compared with a real ZooKeeper."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bk_spark.bookie.metadata.cluster_init import init_cluster
from bk_spark.bookie.metadata.ledger_ids import skip_ledger_ids
from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.protocol.codes import Code
from bk_spark.protocol.errors import MetadataUnavailableError
from bk_spark.protocol.metadata.cookie import Cookie, encode_directories
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from bk_spark.protocol.metadata.ledger_paths import LedgerManager
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.metadata.znodes import DeleteOp, TransactionOp
from bk_spark.protocol.quorum import Quorum
from bookie_server.config.config import BookieConfig
from bookie_server.gc import collection_steps
from bookie_server.local import LocalCluster
from bookie_server.storage.disk import files
from tests.support.collected_bookie import (
    BOOKIE,
    CONFIG,
    OTHER,
    SOON,
    Listed,
    Steered,
    collected,
    create,
    metadata,
)
from tests.support.running_storage import Place, in_loop, running, stored


@pytest.fixture
def zk(zk_only: LocalCluster) -> Iterator[Steered]:
    session = Steered(zk_only.zookeepers[0].id)
    session.start()
    yield session
    session.close()


@pytest.fixture(params=["hierarchical", "longhierarchical", "flat"])
def manager(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def any_store(zk: Steered, fresh_root: str, manager: str) -> LedgerStore:
    init_cluster(zk, fresh_root, manager)
    return LedgerStore(zk, MetadataServiceUri.parse(f"zk+{manager}://{zk.servers}{fresh_root}"))


@pytest.fixture
def store(zk: Steered, fresh_root: str) -> LedgerStore:
    init_cluster(zk, fresh_root)
    return LedgerStore(zk, MetadataServiceUri.parse(f"zk://{zk.servers}{fresh_root}"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.make(tmp_path / "bookie")


@in_loop
async def test_ledgers_that_the_store_does_not_know_go(place: Place, any_store: LedgerStore) -> None:
    store = any_store
    # Ranges with many local ledgers, with few, and around where the hierarchical layout changes its form.
    known = [*range(20_000, 20_060), 7, 99_999, 2**31 - 2, 2**31 - 1, 2**40]
    unknown = [*range(20_060, 20_100), 8, 100_000, 2**31 - 3, 2**31, 2**41, 2**60]
    create(store, *known)
    async with collected(place, store) as bookie:
        await bookie.add(*known, *unknown)
        await bookie.running.storage.checkpoint()
        unflushed = [30_000, 30_001]
        create(store, 30_000)
        await bookie.add(*unflushed)
        status = await bookie.collect()
        assert status.problem == ""
        assert await bookie.ledgers() == sorted([*known, 30_000])
        assert bookie.collector.counters.ledgers_deleted == len(unknown) + 1
        store.delete(7)
        await bookie.collect()
        assert 7 not in await bookie.ledgers()
        assert await bookie.running.read((7, 0), (20_000, 2)) == [Code.NO_LEDGER, stored(20_000, 2)]
    async with running(place) as again:
        ledgers: list[int] = (await again.upkeep.local_ledgers()).tolist()
        assert ledgers == sorted([*(ledger_id for ledger_id in known if ledger_id != 7), 30_000])


@in_loop
async def test_a_ledger_that_was_deleted_does_not_come_back_with_its_old_key(
    place: Place, store: LedgerStore, tmp_path: Path
) -> None:
    """The journal holds the old ledger's records still; its id is used again by somebody else; kill -9."""
    async with collected(place, store) as bookie:
        await bookie.add(8)
        await bookie.collect()
        assert await bookie.ledgers() == []
        assert await bookie.running.add(stored(8, 0, fill=b"n"), key=bytes(20)) == [Code.OK]
        killed = place.killed(tmp_path / "killed")
    async with running(killed) as again:
        assert await again.read((8, 0), (8, 1)) == [stored(8, 0, fill=b"n"), Code.NO_ENTRY]
        assert await again.add(stored(8, 1), key=bytes(20)) == [Code.OK]


@in_loop
async def test_b8_a_partial_listing_deletes_nothing_that_lives(place: Place, zk: Steered, store: LedgerStore) -> None:
    ledgers = list(range(1, 101))
    create(store, *ledgers)
    async with collected(place, store) as bookie:
        await bookie.add(*ledgers)
        asked = []

        def part(names: list[str] | None) -> list[str] | None:
            asked.append(names)
            return names[::3] if names else names

        zk.listed = part
        answers: list[Listed] = [part, lambda _: None, lambda _: []]
        for answer in answers:
            zk.listed = answer
            assert (await bookie.collect()).problem == ""
            assert await bookie.ledgers() == ledgers
        assert asked
        store.delete(50)
        zk.listed = part
        await bookie.collect()
        assert await bookie.ledgers() == [ledger_id for ledger_id in ledgers if ledger_id != 50]


@in_loop
async def test_b8_an_error_ends_the_pass_for_what_is_not_decided(place: Place, zk: Steered, store: LedgerStore) -> None:
    """Ranges are looked at in ascending order; the second fails. All are counted before the first ledger goes."""
    low, high = list(range(100, 140)), list(range(10_100, 10_140))
    async with collected(place, store) as bookie:
        await bookie.add(*low, *high)
        listed = 0

        def fail_second(names: list[str] | None) -> list[str] | None:
            nonlocal listed
            listed += 1
            if listed == 2:
                raise MetadataUnavailableError("ZooKeeper could not be asked in time")
            return names

        zk.listed = fail_second
        assert "could not be asked" in (await bookie.collect()).problem
        assert await bookie.ledgers() == [*low, *high]
        zk.listed = lambda names: names
        assert (await bookie.collect()).problem == ""
        assert await bookie.ledgers() == []


@in_loop
async def test_unknown_is_not_absent(place: Place, zk: Steered, store: LedgerStore) -> None:
    async with collected(place, store) as bookie:
        await bookie.add(1, 2)

        def away(paths: list[str]) -> None:
            if len(paths) > 2:
                raise MetadataUnavailableError("connection lost")

        zk.before_many = away
        assert "connection lost" in (await bookie.collect()).problem

        def other_session(paths: list[str]) -> None:
            if len(paths) > 2:
                zk.other_session = 1

        zk.before_many = other_session
        assert "session" in (await bookie.collect()).problem
        zk.before_many, zk.other_session = lambda paths: None, 0
        assert await bookie.ledgers() == [1, 2]
        # Metadata that cannot be understood are metadata.
        zk.create(store.manager.ledger_path(store.root, 1), b"garbage", make_parents=True)
        assert (await bookie.collect()).problem == ""
        assert await bookie.ledgers() == [1]


OTHER_COOKIE = Cookie(BOOKIE, "/other/journal", encode_directories(["/ledgers"])).encode()


@pytest.mark.parametrize("config", [CONFIG, SOON], ids=["deleted", "over-replicated too"])
@pytest.mark.parametrize("first", [True, False], ids=["first pass", "later"])
@pytest.mark.parametrize(
    ("name", "other"),
    [("LAYOUT", LedgerManager.FLAT.layout), ("INSTANCEID", b"another"), (f"cookies/{BOOKIE}", OTHER_COOKIE)],
    ids=["layout", "instance", "cookie"],
)
@pytest.mark.parametrize("gone", [True, False], ids=["gone", "another"])
def test_g1_another_cluster_is_not_believed(
    place: Place,
    zk: Steered,
    store: LedgerStore,
    config: BookieConfig,
    first: bool,
    name: str,
    other: bytes,
    gone: bool,
) -> None:
    """Also in the first pass, and of ledgers that were closed elsewhere (2)."""

    @in_loop
    async def check() -> None:
        create(store, 1)
        store.create(metadata(BOOKIE, state=LedgerState.CLOSED), ledger_id=2)
        async with collected(place, store, config) as bookie:
            await bookie.add(1, 2)
            if not first:
                assert (await bookie.collect()).problem == ""
            store.delete(1)
            found = store.read(2)
            store.write(2, metadata(OTHER, state=LedgerState.CLOSED), found.version)
            path = f"{store.root}/{name}"
            before = zk.get(path)
            assert before is not None
            zk.delete(path)
            if not gone:
                zk.create(path, other)
            status = await bookie.collect()
            assert name in status.problem
            assert status.foreign_cluster
            assert await bookie.ledgers() == [1, 2]
            # It is the bookie's cluster again.
            if not gone:
                zk.delete(path)
            zk.create(path, before.data)
            status = await bookie.collect()
            assert (status.problem, status.foreign_cluster) == ("", False)
            assert await bookie.ledgers() == ([2] if config is CONFIG else [])

    check()


@in_loop
async def test_ledgers_that_come_during_a_pass_are_no_victims(place: Place, zk: Steered, store: LedgerStore) -> None:
    async with collected(place, store) as bookie:
        await bookie.add(1)
        loop = asyncio.get_running_loop()
        added: list[Any] = []

        def come(paths: list[str]) -> None:
            if not added:
                added.append(asyncio.run_coroutine_threadsafe(bookie.add(2), loop))
                added[0].result(60)

        zk.before_many = come
        await bookie.collect()
        assert await bookie.ledgers() == [2]


@in_loop
async def test_a_ledger_that_cannot_be_deleted_stops_nothing(
    place: Place, store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with collected(place, store) as bookie:
        await bookie.add(1, 2, 3)
        await bookie.running.storage.checkpoint()
        remove = files.remove

        def fail(path: str) -> None:
            if path.endswith("/2.idx"):
                raise OSError(errno.EIO, "Input/output error", path)
            remove(path)

        monkeypatch.setattr(files, "remove", fail)
        await bookie.collect()
        assert await bookie.ledgers() == [2]
        assert bookie.collector.counters.failed_deletions == 1
        assert await bookie.running.read((2, 1)) == [stored(2, 1)]
        monkeypatch.undo()
        await bookie.collect()
        assert await bookie.ledgers() == []


@in_loop
async def test_metadata_reads_are_throttled(place: Place, store: LedgerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection_steps, "DIRECT_READS", 1000)
    monkeypatch.setattr(collection_steps, "READS_AT_ONCE", 10)
    ledgers = list(range(100))
    create(store, *ledgers)
    config = replace(CONFIG, gc_metadata_operations_per_s=200)
    async with collected(place, store, config) as bookie:
        await bookie.add(*ledgers)
        begun = asyncio.get_running_loop().time()
        await bookie.collect()
        assert asyncio.get_running_loop().time() - begun >= 0.4
        assert await bookie.ledgers() == ledgers


# --- over-replicated ledgers -------------------------------------------------------------------------


def lock_path(store: LedgerStore, ledger_id: int) -> str:
    return f"{store.root}/underreplication/locks/urL{ledger_id:010d}"


def mark_path(store: LedgerStore, ledger_id: int) -> str:
    return f"{store.root}/underreplication/ledgers/0000/0000/0000/{ledger_id:04x}/urL{ledger_id:010d}"


@in_loop
async def test_copies_of_closed_ledgers_of_others_go(place: Place, zk: Steered, store: LedgerStore) -> None:
    closed = LedgerState.CLOSED
    store.create(metadata(OTHER, state=closed), ledger_id=1)
    store.create(metadata(OTHER), ledger_id=2)
    store.create(metadata(OTHER, state=LedgerState.IN_RECOVERY), ledger_id=3)
    store.create(metadata(OTHER, BOOKIE, state=closed), ledger_id=4)
    moved = LedgerMetadata(Quorum(1, 1, 1), (Segment(0, (BOOKIE,)), Segment(2, (OTHER,)))).closed(5, 9)
    store.create(moved, ledger_id=5)
    for ledger_id in (6, 7, 10):
        store.create(metadata(OTHER, state=closed), ledger_id=ledger_id)
    zk.create(mark_path(store, 6), b'replica: "x"\n', make_parents=True)
    zk.create(lock_path(store, 7), make_parents=True)
    async with collected(place, store, SOON) as bookie:
        await bookie.add(*range(1, 8), 10)
        status = await bookie.collect()
        assert status.problem == ""
        assert status.last_over_replicated_ms > 0
        assert await bookie.ledgers() == [2, 3, 4, 5, 6, 7]
        assert bookie.collector.counters.over_replicated_deleted == 2
        assert zk.children(f"{store.root}/underreplication/locks") == ["urL0000000007"]
        layout = zk.get(f"{store.root}/underreplication/LAYOUT")
        assert layout is not None
        assert layout.data == b'type: "BASIC"\nversion: 1\n'


@in_loop
async def test_the_lock_is_as_apaches_and_the_metadata_are_read_under_it(
    place: Place, zk: Steered, store: LedgerStore
) -> None:
    store.create(metadata(OTHER, state=LedgerState.CLOSED), ledger_id=1)
    seen = []

    def join(paths: list[str]) -> None:
        """Another takes the ledger here just before the lock is held, or marks it, or the lock is lost."""
        if lock_path(store, 1) not in paths:
            return
        seen.append(zk.get(lock_path(store, 1)))
        if len(seen) == 1:
            stored_now = store.read(1)
            store.write(1, metadata(BOOKIE, state=LedgerState.CLOSED), stored_now.version)
        elif len(seen) == 2:
            zk.create(mark_path(store, 1), make_parents=True)
        else:
            zk.delete(lock_path(store, 1))

    async with collected(place, store, SOON) as bookie:
        await bookie.add(1)
        zk.before_many = join
        await bookie.collect()
        found = store.read(1)
        store.write(1, metadata(OTHER, state=LedgerState.CLOSED), found.version)
        await bookie.collect()
        zk.delete(mark_path(store, 1))
        await bookie.collect()
        assert await bookie.ledgers() == [1]
        assert len(seen) == 3
        lock = seen[0]
        assert lock is not None
        assert lock.owner_session == zk.session_id
        assert lock.data.startswith(b'bookieId: "')
        assert lock.data.endswith(b'"\n')
        assert zk.children(f"{store.root}/underreplication/locks") == []
        zk.before_many = lambda paths: None
        await bookie.collect()
        assert await bookie.ledgers() == []


@in_loop
async def test_a_lock_that_could_not_be_given_back_is_given_back_later(
    place: Place, zk: Steered, store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create(metadata(OTHER, state=LedgerState.CLOSED), ledger_id=1)

    transaction = zk.transaction

    def away(operations: Sequence[TransactionOp]) -> object:
        if isinstance(operations[-1], DeleteOp):
            raise MetadataUnavailableError("not now")
        return transaction(operations)

    async with collected(place, store, SOON) as bookie:
        await bookie.add(1)
        monkeypatch.setattr(zk, "transaction", away)
        await bookie.collect()
        assert await bookie.ledgers() == []
        assert zk.exists(lock_path(store, 1)) is not None
        monkeypatch.undo()
        await bookie.collect()
        assert zk.exists(lock_path(store, 1)) is None


@in_loop
async def test_an_unknown_replication_layout_is_left_alone(place: Place, zk: Steered, store: LedgerStore) -> None:
    store.create(metadata(OTHER, state=LedgerState.CLOSED), ledger_id=1)
    zk.create(f"{store.root}/underreplication/LAYOUT", b'type: "OTHER"\nversion: 9\n', make_parents=True)
    async with collected(place, store, SOON) as bookie:
        await bookie.add(1)
        assert "underreplication/LAYOUT" in (await bookie.collect()).problem
        assert await bookie.ledgers() == [1]


@in_loop
async def test_c15_a_fenced_copy_that_went_can_come_again(place: Place, store: LedgerStore) -> None:
    store.create(metadata(OTHER, state=LedgerState.CLOSED), ledger_id=1)
    async with collected(place, store, SOON) as bookie:
        await bookie.add(1)
        assert await bookie.running.bookie.fence(1, bytes(range(20))) is Code.OK
        await bookie.collect()
        assert await bookie.ledgers() == []
        # The writer that was fenced is refused; re-replication is not.
        assert await bookie.running.add(stored(1, 3)) == [Code.FENCED]
        assert await bookie.running.add(stored(1, 0), stored(1, 1), recovery=True) == [Code.OK] * 2
        assert await bookie.running.read((1, 0), (1, 1)) == [stored(1, 0), stored(1, 1)]
        found = store.read(1)
        store.write(1, metadata(BOOKIE, state=LedgerState.CLOSED), found.version)
        await bookie.collect()
        assert await bookie.running.read((1, 0), (1, 1)) == [stored(1, 0), stored(1, 1)]
        assert await bookie.running.add(stored(1, 2), recovery=True) == [Code.OK]


# --- the brake ---------------------------------------------------------------------------------------

BRAKED = replace(CONFIG, gc_brake_share=0.5, gc_brake_ledgers=5)


@in_loop
async def test_g3_too_many_deleted_ledgers_at_once_wait_for_a_word(place: Place, store: LedgerStore) -> None:
    known, gone = list(range(1, 9)), list(range(10, 20))
    create(store, *known)
    async with collected(place, store, BRAKED) as bookie:
        await bookie.add(*known, *gone)
        for _ in range(2):
            assert "10 of 18 ledgers are deleted" in (await bookie.collect()).problem
            assert await bookie.ledgers() == [*known, *gone]
        brake = bookie.collector.brakes[0]
        # Those that wait serve.
        assert await bookie.running.add(stored(10, 3)) == [Code.OK]
        brake.release()
        assert (await bookie.collect()).problem == ""
        assert await bookie.ledgers() == known
        assert brake.stopped is None
        # The word is used up.
        await bookie.add(*gone)
        assert "10 of 18" in (await bookie.collect()).problem
        assert await bookie.ledgers() == [*known, *gone]
        brake.release()
    async with collected(place, store, BRAKED) as bookie:
        # A restart is no word.
        assert "10 of 18" in (await bookie.collect()).problem


@in_loop
async def test_g4_where_clients_choose_ids_the_operator_can_switch_the_rule_off(
    place: Place, store: LedgerStore
) -> None:
    """One client chooses its ids, the others take the counter's. A ledger of each kind was deleted."""
    chosen = 1 << 62
    list(skip_ledger_ids(store.zk, store.root, store.manager, 9))
    create(store, 2)
    async with collected(place, store) as bookie:
        await bookie.add(1, 2, chosen)
        told = (await bookie.collect()).problem
        assert "ids of 1 of them" in told
        assert "gcBrakeIdsNotGiven=false" in told
        assert await bookie.ledgers() == [1, 2, chosen]
    async with collected(place, store, replace(CONFIG, gc_brake_ids_not_given=False)) as bookie:
        assert (await bookie.collect()).problem == ""
        assert await bookie.ledgers() == [2]


@in_loop
async def test_g3_too_many_copies_of_others_ledgers_at_once_wait_for_a_word(place: Place, store: LedgerStore) -> None:
    ledgers = list(range(1, 11))
    for ledger_id in ledgers:
        store.create(metadata(OTHER, state=LedgerState.CLOSED), ledger_id=ledger_id)
    config = replace(BRAKED, gc_over_replicated_interval_ms=100)
    async with collected(place, store, config) as bookie:
        await bookie.add(*ledgers)
        await asyncio.sleep(0.1)  # then the search is due
        assert "10 of 10 ledgers are over-replicated" in (await bookie.collect()).problem
        assert await bookie.ledgers() == ledgers
        bookie.collector.brakes[1].release()
        # Also where this search is not due yet.
        assert (await bookie.collect()).problem == ""
        assert await bookie.ledgers() == []
