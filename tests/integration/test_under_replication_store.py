"""Marks, locks and proofs of under-replication in a real ZooKeeper: races, lost sessions, Apache's content."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from itertools import chain

import pytest

from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.replication.ledger_marks import MARKS_PER_PAGE
from bk_spark.bookie.replication.under_replication_store import UnderReplicationStore
from bk_spark.protocol.errors import (
    MetadataConflictError,
    MetadataFormatError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    SessionLostError,
)
from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.metadata.under_replication import Mark
from bk_spark.protocol.metadata.znodes import DeleteOp, TransactionOp
from bookie_server.local import LocalCluster
from tests.support.ledgers import ledger
from tests.support.zookeeper_sessions import Bell, expire

B1, B2, B3 = "b1:3181", "b2:3181", "b3:3181"
LEDGER = 0x123456789A


@pytest.fixture
def store(zookeeper: ZooKeeper, ledgers_root: str) -> UnderReplicationStore:
    store = UnderReplicationStore(zookeeper, ledgers_root, wall_ms=lambda: 1000)
    store.prepare()
    return store


@pytest.fixture
def other(other_session: ZooKeeper, store: UnderReplicationStore) -> UnderReplicationStore:
    """The store of another process."""
    return UnderReplicationStore(other_session, store.paths.root, wall_ms=lambda: 2000)


def all_marks(store: UnderReplicationStore) -> dict[int, Mark]:
    return {ledger_id: mark for page in store.marks() for ledger_id, mark in page.items()}


def directories(store: UnderReplicationStore) -> list[str]:
    return store.zk.children(store.paths.marks) or []


# --- the layout ---------------------------------------------------------------------------------


def test_prepare_makes_apaches_layout(zookeeper: ZooKeeper, ledgers_root: str) -> None:
    store = UnderReplicationStore(zookeeper, ledgers_root)
    for _ in range(2):
        store.prepare()
        layout = zookeeper.get(f"{ledgers_root}/underreplication/LAYOUT")
        assert layout is not None
        assert (layout.data, layout.version) == (b'type: "BASIC"\nversion: 1\n', 0)
        names = zookeeper.children(f"{ledgers_root}/underreplication") or []
        assert sorted(names) == ["LAYOUT", "auditorelection", "collectors", "ledgers", "locks", "workers"]


def test_prepare_refuses_another_layout_and_changes_nothing(zookeeper: ZooKeeper, ledgers_root: str) -> None:
    path = f"{ledgers_root}/underreplication/LAYOUT"
    zookeeper.create(path, b'type: "NEW"\nversion: 2\n', make_parents=True)
    with pytest.raises(MetadataFormatError, match=f"{path} names the layout 'NEW' version 2"):
        UnderReplicationStore(zookeeper, ledgers_root).prepare()
    assert zookeeper.children(f"{ledgers_root}/underreplication") == ["LAYOUT"]


def test_prepare_makes_nothing_where_there_is_no_cluster(zookeeper: ZooKeeper, fresh_root: str) -> None:
    with pytest.raises(MetadataUnavailableError, match="no BookKeeper cluster"):
        UnderReplicationStore(zookeeper, fresh_root).prepare()
    assert zookeeper.exists(fresh_root) is None


def test_two_processes_prepare_at_once(zookeeper: ZooKeeper, other_session: ZooKeeper, ledgers_root: str) -> None:
    stores = [UnderReplicationStore(session, ledgers_root) for session in (zookeeper, other_session)]
    at_once([store.prepare for store in stores])
    assert all_marks(stores[0]) == {}


def at_once(calls: list[Callable[[], object]]) -> list[object]:
    """The results of all calls, begun together."""
    results: list[object] = [None] * len(calls)
    barrier = threading.Barrier(len(calls))

    def run(index: int) -> None:
        barrier.wait(60)
        try:
            results[index] = calls[index]()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not [result for result in results if isinstance(result, Exception)]
    return results


# --- marks --------------------------------------------------------------------------------------


def test_a_mark_is_made_merged_and_read(store: UnderReplicationStore, other: UnderReplicationStore) -> None:
    assert store.read_mark(LEDGER) is None
    store.mark(LEDGER, [B1, B1])
    found = store.zk.get(store.paths.mark(LEDGER))
    assert found is not None
    assert found.data == b'replica: "b1:3181"\nctime: 1000\n'
    other.mark(LEDGER, [B2, B1])
    assert other.read_mark(LEDGER) == Mark((B1, B2), 2000, 1)
    store.zk.sync("/")
    assert all_marks(store) == {LEDGER: Mark((B1, B2), 2000, 1)}


def test_to_mark_again_changes_the_version_alone(store: UnderReplicationStore, other: UnderReplicationStore) -> None:
    store.mark(LEDGER, [B1])
    other.mark(LEDGER, [B1])
    assert other.read_mark(LEDGER) == Mark((B1,), 1000, 1)


def test_marks_that_apache_wrote_are_merged(store: UnderReplicationStore) -> None:
    path = store.paths.mark(LEDGER)
    store.zk.create(path, b'replica: "127.0.0.1:31832"\nctime: 1795240874891\n', make_parents=True)
    assert store.read_mark(LEDGER) == Mark(("127.0.0.1:31832",), 1795240874891)
    store.mark(LEDGER, ["127.0.0.1:31831"])
    found = store.zk.get(path)
    assert found is not None
    assert found.data == b'replica: "127.0.0.1:31832"\nreplica: "127.0.0.1:31831"\nctime: 1000\n'


def test_a_mark_that_cannot_be_parsed_is_a_mark(store: UnderReplicationStore) -> None:
    path = store.paths.mark(LEDGER)
    store.zk.create(path, b"from the future", make_parents=True)
    mark = store.read_mark(LEDGER)
    assert mark is not None
    assert mark.problem is not None
    assert path in mark.problem
    store.mark(LEDGER, [B1])
    found = store.zk.get(path)
    assert found is not None
    assert (found.data, found.version) == (b"from the future", 1)
    assert list(all_marks(store)) == [LEDGER]
    proof = store.begin_worker("w")
    assert store.lock(LEDGER, proof=proof)
    assert store.finish(LEDGER, 1, proof=proof)
    assert directories(store) == []


def test_eight_sessions_mark_one_ledger_at_once(store: UnderReplicationStore, zk_only: LocalCluster) -> None:
    sessions = [ZooKeeper(zk_only.zookeepers[0].id) for _ in range(8)]
    for session in sessions:
        session.start()
    try:
        stores = [UnderReplicationStore(session, store.paths.root) for session in sessions]
        for ledger_id in (1, 2**40, 2**63 - 1):
            at_once([lambda s=s, n=n, i=ledger_id: s.mark(i, [f"b{n}:1"]) for n, s in enumerate(stores)])
    finally:
        for session in sessions:
            session.close()
    store.zk.sync("/")
    found = all_marks(store)
    assert list(found) == [1, 2**40, 2**63 - 1]
    for mark in found.values():
        assert sorted(mark.missing) == [f"b{n}:1" for n in range(8)]
        assert mark.version == 7


def test_marking_and_finishing_neighbours_at_once(store: UnderReplicationStore, other: UnderReplicationStore) -> None:
    """Directories above a mark go with the mark beside it, while this one is being made."""
    proof = store.begin_worker("w")

    def finish() -> None:
        for ledger_id in range(0, 60, 2):
            store.mark(ledger_id << 16, [B1])
            assert store.lock(ledger_id << 16, proof=proof)
            mark = store.read_mark(ledger_id << 16)
            assert mark is not None
            assert store.finish(ledger_id << 16, mark.version, proof=proof)

    def mark() -> None:
        for ledger_id in range(1, 60, 2):
            other.mark(ledger_id << 16, [B1])

    at_once([finish, mark])
    store.zk.sync("/")
    assert sorted(all_marks(store)) == [ledger_id << 16 for ledger_id in range(1, 60, 2)]


def test_marks_come_in_pages_and_in_any_order(store: UnderReplicationStore) -> None:
    ids = [*range(600), *(1 << shift for shift in range(10, 63)), 2**63 - 1]
    store.mark_all({key: [B1] for key in ids})
    # What is no mark is passed over.
    store.zk.ensure_path(f"{store.paths.marks}/ffff/ffff/ffff/ffff")
    store.zk.ensure_path(f"{store.paths.marks}/0000/0000/0000/zzzz/urL0000000001")
    store.zk.ensure_path(f"{store.paths.marks}/0000/0000/0000/9999")
    pages = [list(page) for page in store.marks()]
    assert list(chain.from_iterable(pages)) == sorted(set(ids))
    assert max(map(len, pages)) == MARKS_PER_PAGE
    orders = [list(chain.from_iterable(store.marks(rng=random.Random(seed)))) for seed in (1, 2)]
    assert all(sorted(order) == sorted(set(ids)) for order in orders)
    assert orders[0] != orders[1]


def test_only_what_is_asked_for_is_read(store: UnderReplicationStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first page of many directories does not list the others."""
    store.mark_all({key: [B1] for key in range(0, 20 << 16, 1 << 16)})
    listed: list[str] = []
    children = store.zk.children
    monkeypatch.setattr(store.zk, "children", lambda path, watch=None: listed.append(path) or children(path, watch))
    assert list(next(store.marks())) == [0]
    assert len(listed) == 4


def test_a_watch_tells_of_new_marks_and_of_locks(store: UnderReplicationStore, other: UnderReplicationStore) -> None:
    marks, locks = Bell(), Bell()
    assert [*store.marks(watch=marks)] == []
    assert store.locks(locks) == {}
    other.mark(5, [B1])
    marks.wait()
    assert [list(page) for page in store.marks(watch=marks)] == [[5]]
    # A ledger near it: only a directory deep down changes.
    other.mark(6, [B1])
    marks.wait()
    assert locks.silent()
    assert other.lock(5, proof=other.begin_worker("w"))
    locks.wait()


def test_many_ledgers_are_marked_at_once(store: UnderReplicationStore, other: UnderReplicationStore) -> None:
    """Among ledgers without a mark: marks of both kinds, a garbled one, and a directory that was left behind."""
    other.mark(5, [B1])
    other.mark(6, [B3])
    store.zk.create(store.paths.mark(7), b"garbage", make_parents=True)
    store.zk.ensure_path(store.paths.mark(105).rpartition("/")[0])
    ids = [*range(250), *(1 << shift for shift in range(16, 63, 3))]
    store.mark_all({ledger_id: [B1, B2] for ledger_id in ids})
    found = all_marks(store)
    assert list(found) == ids
    assert found.pop(5) == Mark((B1, B2), 1000, 1)
    assert found.pop(6) == Mark((B3, B1, B2), 1000, 1)
    assert (found[7].version, found.pop(7).problem is None) == (1, False)
    assert set(found.values()) == {Mark((B1, B2), 1000, 0)}
    store.mark_all(dict.fromkeys(ids, (B2,)))
    assert {mark.version for mark in all_marks(store).values()} == {1, 2}
    store.mark_all({})


def test_marking_many_takes_few_transactions(store: UnderReplicationStore, monkeypatch: pytest.MonkeyPatch) -> None:
    transactions: list[int] = []
    transaction = store.zk.transaction
    monkeypatch.setattr(
        store.zk, "transaction", lambda operations: transactions.append(len(operations)) or transaction(operations)
    )
    for _ in range(2):
        store.mark_all(dict.fromkeys(range(1000), (B1,)))
    assert transactions == [200] * 10 + [100] * 10


def test_r4_many_ledgers_are_marked_only_with_a_proof(store: UnderReplicationStore) -> None:
    proof = store.begin_worker("w")
    store.mark_all({1: [B1]}, proof=proof)
    store.zk.delete(proof)
    with pytest.raises(SessionLostError):
        store.mark_all({1: [B2], 2: [B2]}, proof=proof)
    assert all_marks(store) == {1: Mark((B1,), 1000, 0)}


def test_two_sessions_mark_many_ledgers_at_once(store: UnderReplicationStore, other: UnderReplicationStore) -> None:
    ids = range(500)
    at_once([lambda: store.mark_all(dict.fromkeys(ids, (B1,))), lambda: other.mark_all(dict.fromkeys(ids, (B2,)))])
    store.zk.sync("/")
    found = all_marks(store)
    assert list(found) == list(ids)
    assert {frozenset(mark.missing) for mark in found.values()} == {frozenset((B1, B2))}


# --- locks --------------------------------------------------------------------------------------


def test_one_of_two_sessions_gets_the_lock(store: UnderReplicationStore, other: UnderReplicationStore) -> None:
    proofs = {one: one.begin_worker(name) for one, name in ((store, "w1"), (other, "w2"))}
    for ledger_id in range(20):
        got = at_once([lambda one=one, i=ledger_id: one.lock(i, proof=proofs[one]) for one in proofs])
        assert sorted(map(bool, got)) == [False, True]
    store.zk.sync("/")
    locks = store.locks()
    assert sorted(locks) == list(range(20))
    assert {lock.session_id for lock in locks.values()} <= {one.zk.session_id for one in proofs}
    assert all(lock.holder and lock.since_ms for lock in locks.values())


def test_the_content_of_a_lock_is_apaches(store: UnderReplicationStore) -> None:
    assert store.lock(7, proof=store.begin_worker("w"))
    found = store.zk.get(f"{store.paths.base}/locks/urL0000000007")
    assert found is not None
    assert found.data.startswith(b'bookieId: "')
    assert found.owner_session == store.zk.session_id


def test_a_lock_that_is_held_is_not_had_twice(store: UnderReplicationStore) -> None:
    proof = store.begin_worker("w")
    assert store.lock(7, proof=proof)
    assert not store.lock(7, proof=proof)
    store.release(7)
    store.release(7)
    assert store.lock(7, proof=proof)


def test_another_sessions_lock_is_not_released(store: UnderReplicationStore, other: UnderReplicationStore) -> None:
    assert other.lock(7, proof=other.begin_worker("w"))
    store.release(7)
    assert list(other.locks()) == [7]


def test_r3_a_lock_is_not_given_back_in_the_next_session(
    store: UnderReplicationStore, other: UnderReplicationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session ends after it was found to own the lock, and another worker takes the lock."""
    assert store.lock(LEDGER, proof=store.begin_worker("w1"))
    transaction = store.zk.transaction

    def expire_and_change(operations: Sequence[TransactionOp]) -> object:
        monkeypatch.undo()
        expire(store.zk)
        assert other.lock(LEDGER, proof=other.begin_worker("w2"))
        return transaction(operations)

    monkeypatch.setattr(store.zk, "transaction", expire_and_change)
    monkeypatch.setattr(store.zk, "delete", lambda path: expire_and_change([DeleteOp(path)]))
    store.release(LEDGER)
    assert list(other.locks()) == [LEDGER]
    store.release_unwanted()
    assert list(other.locks()) == [LEDGER]


def test_locks_without_a_readable_content_are_locks(store: UnderReplicationStore) -> None:
    store.zk.create(f"{store.paths.locks}/urL0000000007", b"\xff", ephemeral=True)
    store.zk.create(f"{store.paths.locks}/other", b"", ephemeral=True)
    assert {ledger_id: lock.holder for ledger_id, lock in store.locks().items()} == {7: None}
    assert not store.lock(7, proof=store.begin_worker("w"))


def test_r3_a_session_that_ends_takes_lock_and_proof_with_it(
    store: UnderReplicationStore, other: UnderReplicationStore
) -> None:
    store.mark(LEDGER, [B1])
    proof = store.begin_worker("w1")
    assert store.lock(LEDGER, proof=proof)
    expire(store.zk)
    with pytest.raises(SessionLostError, match="has ended"):
        store.lock(LEDGER, proof=proof)
    other_proof = other.begin_worker("w2")
    assert other.lock(LEDGER, proof=other_proof)
    # The first one does not know yet that it lost the lock.
    with pytest.raises(SessionLostError):
        store.finish(LEDGER, 0, proof=proof)
    with pytest.raises(SessionLostError):
        store.mark(LEDGER, [B2], proof=proof)
    assert other.read_mark(LEDGER) == Mark((B1,), 1000, 0)
    store.release(LEDGER)
    assert list(other.locks()) == [LEDGER]
    assert other.finish(LEDGER, 0, proof=other_proof)
    # A new beginning.
    assert store.lock(LEDGER, proof=store.begin_worker("w1"))


# --- the end of a repair ------------------------------------------------------------------------


def test_finish_leaves_nothing_behind(store: UnderReplicationStore) -> None:
    proof = store.begin_worker("w")
    for ledger_id in (LEDGER, LEDGER + 1, 2**62):
        store.mark(ledger_id, [B1])
    for ledger_id in (LEDGER, LEDGER + 1, 2**62):
        assert store.lock(ledger_id, proof=proof)
        assert store.finish(ledger_id, 0, proof=proof)
        assert store.read_mark(ledger_id) is None
    assert store.locks() == {}
    assert directories(store) == []


def test_the_end_of_a_repair_takes_one_transaction(store: UnderReplicationStore) -> None:
    """A deletion in vain is a transaction, too: ZooKeeper writes it to its disk."""

    def transactions() -> int:
        path = store.zk.create(f"{store.paths.root}/probe")
        found = store.zk.exists(path)
        assert found is not None
        store.zk.delete(path)
        return found.created_zxid

    proof = store.begin_worker("w")
    for ledger_id in (LEDGER, LEDGER + 1):
        store.mark(ledger_id, [B1])
    assert store.lock(LEDGER, proof=proof)
    before = transactions()
    store.forget_reason(LEDGER)
    assert store.finish(LEDGER, 0, proof=proof)
    # The deletion and the creation of the probe are two.
    assert transactions() - before == 3


def test_what_lies_beside_a_mark_does_not_keep_it(store: UnderReplicationStore) -> None:
    proof = store.begin_worker("w")
    store.mark(LEDGER, [B1])
    beside = f"{store.paths.mark(LEDGER).rpartition('/')[0]}/note"
    store.zk.create(beside)
    assert store.lock(LEDGER, proof=proof)
    assert store.finish(LEDGER, 0, proof=proof)
    assert store.read_mark(LEDGER) is None
    assert store.locks() == {}
    assert store.zk.exists(beside) is not None


def test_a_ledger_that_was_marked_again_stays_marked(
    store: UnderReplicationStore, other: UnderReplicationStore
) -> None:
    """Also with the same bookie: it was lost again after the worker had looked."""
    proof = store.begin_worker("w")
    store.mark(LEDGER, [B1])
    assert store.lock(LEDGER, proof=proof)
    mark = store.read_mark(LEDGER)
    assert mark is not None
    other.mark(LEDGER, [B1])
    assert not store.finish(LEDGER, mark.version, proof=proof)
    assert store.read_mark(LEDGER) == Mark((B1,), 1000, 1)
    assert store.locks() == {}


def test_marking_again_races_with_finishing(store: UnderReplicationStore, other: UnderReplicationStore) -> None:
    proof = store.begin_worker("w")
    outcomes = set()
    for ledger_id in range(40):
        store.mark(ledger_id, [B1])
        assert store.lock(ledger_id, proof=proof)
        finished, _ = at_once(
            [lambda i=ledger_id: store.finish(i, 0, proof=proof), lambda i=ledger_id: other.mark(i, [B2])]
        )
        store.zk.sync("/")
        left = store.read_mark(ledger_id)
        assert left is not None, "a mark was lost"
        # Made anew after the end, or merged before it.
        assert left.missing == ((B2,) if finished else (B1, B2))
        assert store.locks() == {}
        outcomes.add(finished)
    assert outcomes


def test_a_mark_that_somebody_deleted_is_finished(store: UnderReplicationStore) -> None:
    proof = store.begin_worker("w")
    store.mark(LEDGER, [B1])
    assert store.lock(LEDGER, proof=proof)
    store.zk.delete(store.paths.mark(LEDGER))
    assert store.finish(LEDGER, 0, proof=proof)
    assert store.locks() == {}


def test_a_lock_that_somebody_deleted_keeps_the_mark(store: UnderReplicationStore) -> None:
    proof = store.begin_worker("w")
    store.mark(LEDGER, [B1])
    assert store.lock(LEDGER, proof=proof)
    store.zk.delete(store.paths.lock(LEDGER))
    assert not store.finish(LEDGER, 0, proof=proof)
    assert store.read_mark(LEDGER) is not None


def test_to_finish_again_leaves_what_others_do_with_the_ledger(
    store: UnderReplicationStore, other: UnderReplicationStore
) -> None:
    """A worker that does not know that it finished. The mark has the same version again."""
    proof = store.begin_worker("w1")
    store.mark(LEDGER, [B1])
    assert store.lock(LEDGER, proof=proof)
    for _ in range(2):
        assert store.finish(LEDGER, 0, proof=proof)
    other.mark(LEDGER, [B2])
    assert not store.finish(LEDGER, 0, proof=proof)
    assert other.lock(LEDGER, proof=other.begin_worker("w2"))
    assert not store.finish(LEDGER, 0, proof=proof)
    assert other.read_mark(LEDGER) == Mark((B2,), 2000, 0)
    assert [lock.session_id for lock in other.locks().values()] == [other.zk.session_id]


def test_a_lock_is_not_given_back_while_another_thread_takes_it(
    store: UnderReplicationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    proof = store.begin_worker("w")
    path = store.paths.lock(LEDGER)
    assert store.lock(LEDGER, proof=proof)

    def away(path: str) -> None:
        raise MetadataUnavailableError("away")

    with monkeypatch.context() as patch:
        patch.setattr(store.zk, "get_latest", away)
        with pytest.raises(MetadataUnavailableError):
            store.release(LEDGER)
    deletes, taken = threading.Event(), threading.Event()
    transaction = store.zk.transaction

    def slow_transaction(operations: Sequence[TransactionOp]) -> object:
        if threading.current_thread() is giving_back:
            deletes.set()
            # Nobody takes the lock meanwhile.
            assert not taken.wait(0.5)
        return transaction(operations)

    monkeypatch.setattr(store.zk, "transaction", slow_transaction)
    giving_back = threading.Thread(target=store.release_unwanted)
    giving_back.start()
    assert deletes.wait(60)
    assert store.lock(LEDGER, proof=proof)
    taken.set()
    giving_back.join()
    assert store.zk.exists(path) is not None
    store.release_unwanted()
    assert list(store.locks()) == [LEDGER]


# --- ledgers ------------------------------------------------------------------------------------


def ledgers_of(store: UnderReplicationStore) -> LedgerStore:
    return LedgerStore(store.zk, MetadataServiceUri.parse(f"zk://{store.zk.servers}{store.paths.root}"))


def test_metadata_are_written_while_the_session_lives(store: UnderReplicationStore) -> None:
    ledgers = ledgers_of(store)
    ledger_id, _ = ledgers.create(ledger())
    proof = store.begin_worker("w")
    read = ledgers.read(ledger_id)
    written = ledgers.write_proven(ledger_id, read.metadata.in_recovery(), read, proof)
    assert (written.version, written.created_zxid) == (1, read.created_zxid)
    assert ledgers.read(ledger_id) == written
    with pytest.raises(MetadataConflictError):
        ledgers.write_proven(ledger_id, read.metadata, read, proof)
    expire(store.zk)
    with pytest.raises(SessionLostError):
        ledgers.write_proven(ledger_id, read.metadata.closed(1, 2), written, proof)
    assert ledgers.read(ledger_id).metadata.state is LedgerState.IN_RECOVERY


def test_r8_a_ledger_that_was_deleted_or_made_again_is_not_written(store: UnderReplicationStore) -> None:
    ledgers = ledgers_of(store)
    ledger_id, _ = ledgers.create(ledger())
    proof = store.begin_worker("w")
    read = ledgers.read(ledger_id)
    ledgers.delete(ledger_id)
    with pytest.raises(NoSuchLedgerError):
        ledgers.write_proven(ledger_id, read.metadata.in_recovery(), read, proof)
    # The same id and the same version, but not the same ledger.
    ledgers.create(ledger(), ledger_id=ledger_id)
    with pytest.raises(NoSuchLedgerError):
        ledgers.write_proven(ledger_id, read.metadata.in_recovery(), read, proof)
    assert ledgers.read(ledger_id).metadata.state is LedgerState.OPEN


def test_r8_a_ledger_that_is_deleted_after_it_was_compared(
    store: UnderReplicationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers = ledgers_of(store)
    ledger_id, _ = ledgers.create(ledger())
    read = ledgers.read(ledger_id)
    proof = store.begin_worker("w")
    exists = store.zk.exists

    def exists_and_delete(path: str) -> object:
        monkeypatch.undo()
        found = exists(path)
        ledgers.delete(ledger_id)
        return found

    monkeypatch.setattr(store.zk, "exists", exists_and_delete)
    with pytest.raises(NoSuchLedgerError):
        ledgers.write_proven(ledger_id, read.metadata.in_recovery(), read, proof)
