"""C13 for replication: the connection breaks before or after each single request of each call.

A proxy cuts real connections, so that sessions, reconnecting and ``sync`` are part of what is tested.
"""

from __future__ import annotations

import pytest

from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.replication.auditor_election import AuditorElection
from bk_spark.bookie.replication.replication_switches import ReplicationSwitches
from bk_spark.bookie.replication.under_replication_store import UnderReplicationStore
from bk_spark.protocol.errors import MetadataConflictError, MetadataUnavailableError, SessionLostError
from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.metadata.under_replication import Mark
from tests.support.ledgers import ledger
from tests.support.zookeeper_proxy import DELETE, MULTI, Break, ZooKeeperProxy, at_each_request
from tests.support.zookeeper_sessions import take_over

BREAKS = pytest.mark.parametrize("how", Break, ids=lambda how: how.name)
LEDGER = 7


@pytest.fixture
def store(shaky: ZooKeeper, plain: UnderReplicationStore) -> UnderReplicationStore:
    """The store whose connection breaks."""
    return UnderReplicationStore(shaky, plain.paths.root, wall_ms=lambda: 1000)


@pytest.fixture
def plain(zookeeper: ZooKeeper, ledgers_root: str) -> UnderReplicationStore:
    """The same znodes over a connection that holds."""
    plain = UnderReplicationStore(zookeeper, ledgers_root, wall_ms=lambda: 2000)
    plain.prepare()
    return plain


@BREAKS
def test_c13_prepare(proxy: ZooKeeperProxy, shaky: ZooKeeper, ledgers_root: str, how: Break) -> None:
    assert at_each_request(proxy, how, UnderReplicationStore(shaky, ledgers_root).prepare) >= 5


@BREAKS
def test_c13_mark(
    proxy: ZooKeeperProxy, plain: UnderReplicationStore, store: UnderReplicationStore, how: Break
) -> None:
    ids = iter(range(100))

    def mark() -> None:
        ledger_id = next(ids)
        store.mark(ledger_id, ["b1:1"])
        plain.zk.sync("/")
        found = plain.read_mark(ledger_id)
        assert found is not None
        assert (found.missing, found.ctime_ms) == (("b1:1",), 1000)

    assert at_each_request(proxy, how, mark) >= 3


@BREAKS
def test_c13_merging_a_mark(
    proxy: ZooKeeperProxy, plain: UnderReplicationStore, store: UnderReplicationStore, how: Break
) -> None:
    numbers = iter(range(100))
    plain.mark(LEDGER, ["b:1"])
    names = ["b:1"]

    def mark() -> None:
        names.append(f"b{next(numbers)}:1")
        store.mark(LEDGER, [names[-1]])
        plain.zk.sync("/")
        found = plain.read_mark(LEDGER)
        assert found is not None
        assert list(found.missing) == names

    assert at_each_request(proxy, how, mark) >= 2


@BREAKS
def test_c13_marking_many_ledgers(
    proxy: ZooKeeperProxy, plain: UnderReplicationStore, store: UnderReplicationStore, how: Break
) -> None:
    """The reads of a transaction's marks are sent together, so that the first break hits all of them."""
    numbers = iter(range(100))
    plain.mark(3, ["b:1"])

    def mark() -> None:
        name = f"b{next(numbers)}:1"
        store.mark_all(dict.fromkeys(range(0, 10, 3), (name,)))
        plain.zk.sync("/")
        marks = [plain.read_mark(ledger_id) for ledger_id in range(0, 10, 3)]
        assert all(mark is not None and name in mark.missing for mark in marks)
        for ledger_id in (0, 6, 9):
            plain.zk.delete(plain.paths.mark(ledger_id))

    assert at_each_request(proxy, how, mark) >= 5


@BREAKS
def test_c13_a_lock_is_had_once_and_known(
    proxy: ZooKeeperProxy, plain: UnderReplicationStore, store: UnderReplicationStore, how: Break
) -> None:
    proof = store.begin_worker("w")
    ids = iter(range(100))

    def lock() -> None:
        ledger_id = next(ids)
        assert store.lock(ledger_id, proof=proof)
        plain.zk.sync("/")
        assert plain.locks()[ledger_id].session_id == store.zk.session_id

    assert at_each_request(proxy, how, lock) >= 1


def test_c13_a_lock_that_another_takes_while_the_request_is_lost(
    proxy: ZooKeeperProxy, plain: UnderReplicationStore, store: UnderReplicationStore
) -> None:
    proof, other_proof = store.begin_worker("w1"), plain.begin_worker("w2")
    proxy.kinds = frozenset({MULTI})
    proxy.breaks = [Break.BEFORE]
    proxy.on_break = lambda: plain.lock(LEDGER, proof=other_proof)
    assert not store.lock(LEDGER, proof=proof)
    assert proxy.broken == 1
    assert plain.locks()[LEDGER].session_id == plain.zk.session_id


def test_c13_a_lock_that_was_perhaps_taken_is_given_back(
    proxy: ZooKeeperProxy, plain: UnderReplicationStore, store: UnderReplicationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply is lost, and ZooKeeper cannot be asked before the time is over."""
    proof = store.begin_worker("w")

    def away(path: str) -> None:
        raise MetadataUnavailableError("away")

    for recover in (store.release_unwanted, lambda: store.lock(LEDGER, proof=proof) and store.release(LEDGER)):
        proxy.kinds = frozenset({MULTI})
        proxy.breaks = [Break.AFTER]
        with monkeypatch.context() as patch:
            patch.setattr(store.zk, "get_latest", away)
            with pytest.raises(MetadataUnavailableError):
                store.lock(LEDGER, proof=proof)
        plain.zk.sync("/")
        assert list(plain.locks()) == [LEDGER]
        recover()
        plain.zk.sync("/")
        assert plain.locks() == {}


@BREAKS
def test_r3_the_session_expires_with_the_request_that_locks(
    proxy: ZooKeeperProxy, plain: UnderReplicationStore, store: UnderReplicationStore, how: Break
) -> None:
    proof = store.begin_worker("w")
    proxy.kinds = frozenset({MULTI})
    proxy.breaks = [how]
    proxy.on_break = lambda: take_over(store.zk, plain.zk.servers)
    with pytest.raises(SessionLostError):
        store.lock(LEDGER, proof=proof)
    assert proxy.broken == 1
    plain.zk.sync("/")
    assert plain.locks() == {}
    # In its new session it begins anew.
    assert store.lock(LEDGER, proof=store.begin_worker("w"))
    store.release_unwanted()
    plain.zk.sync("/")
    assert list(plain.locks()) == [LEDGER]


@BREAKS
def test_c13_release(
    proxy: ZooKeeperProxy, plain: UnderReplicationStore, store: UnderReplicationStore, how: Break
) -> None:
    proof = store.begin_worker("w")

    def release() -> None:
        planned, proxy.breaks = proxy.breaks, []
        assert store.lock(LEDGER, proof=proof)
        proxy.breaks = planned
        store.release(LEDGER)
        plain.zk.sync("/")
        assert plain.locks() == {}

    at_each_request(proxy, how, release)


@BREAKS
def test_c13_finish(
    proxy: ZooKeeperProxy, plain: UnderReplicationStore, store: UnderReplicationStore, how: Break
) -> None:
    proof = store.begin_worker("w")

    def finish() -> None:
        planned, proxy.breaks = proxy.breaks, []
        plain.mark(LEDGER, ["b1:1"])
        assert store.lock(LEDGER, proof=proof)
        proxy.breaks = planned
        assert store.finish(LEDGER, 0, proof=proof)
        plain.zk.sync("/")
        assert plain.read_mark(LEDGER) is None
        assert plain.locks() == {}

    at_each_request(proxy, how, finish)


@BREAKS
def test_c13_finish_keeps_a_mark_that_is_made_again(
    proxy: ZooKeeperProxy, plain: UnderReplicationStore, store: UnderReplicationStore, how: Break
) -> None:
    """The request lost: the mark was merged. The reply lost: it was made anew, with the version that was deleted."""
    proof = store.begin_worker("w")
    plain.mark(LEDGER, ["b1:1"])
    assert store.lock(LEDGER, proof=proof)
    proxy.kinds = frozenset({MULTI})
    proxy.breaks = [how]
    proxy.on_break = lambda: plain.mark(LEDGER, ["b2:1"])
    assert not store.finish(LEDGER, 0, proof=proof)
    plain.zk.sync("/")
    found = plain.read_mark(LEDGER)
    assert found == (Mark(("b2:1",), 2000, 0) if how is Break.AFTER else Mark(("b1:1", "b2:1"), 2000, 1))
    assert plain.locks() == {}


@BREAKS
def test_r3_the_session_ends_with_the_request_that_finishes(
    proxy: ZooKeeperProxy, plain: UnderReplicationStore, store: UnderReplicationStore, how: Break
) -> None:
    proof = store.begin_worker("w")
    plain.mark(LEDGER, ["b1:1"])
    assert store.lock(LEDGER, proof=proof)
    proxy.kinds = frozenset({MULTI})
    proxy.breaks = [how]
    # Its session ends: lock and proof go.
    proxy.on_break = lambda: [
        plain.zk.delete(path) for path in (proof, *([plain.paths.lock(LEDGER)] if how is Break.BEFORE else ()))
    ]
    with pytest.raises(SessionLostError):
        store.finish(LEDGER, 0, proof=proof)
    plain.zk.sync("/")
    assert (plain.read_mark(LEDGER) is None) == (how is Break.AFTER)


@BREAKS
def test_c13_metadata_are_written_once(
    proxy: ZooKeeperProxy, plain: UnderReplicationStore, store: UnderReplicationStore, how: Break
) -> None:
    uri = f"zk://{plain.zk.servers}{plain.paths.root}"
    others = LedgerStore(plain.zk, MetadataServiceUri.parse(uri))
    ledgers = LedgerStore(store.zk, MetadataServiceUri.parse(uri))
    proof = store.begin_worker("w")
    ledger_id, _ = others.create(ledger())
    read = ledgers.read_latest(ledger_id)
    proxy.kinds = frozenset({MULTI})
    proxy.breaks = [how]
    written = ledgers.write_proven(ledger_id, read.metadata.in_recovery(), read, proof)
    found = others.read_latest(ledger_id)
    assert (written.version, found.version, found.metadata.state) == (1, 1, LedgerState.IN_RECOVERY)
    # Another client's change in between wins, whether ours was applied before it or not.
    proxy.breaks = [how]
    proxy.on_break = lambda: others.update(ledger_id, lambda now: now.closed(9, 90) if not now.length else None)
    with pytest.raises(MetadataConflictError):
        ledgers.write_proven(ledger_id, written.metadata, written, proof)
    # The session ends, and nothing is sent again.
    read = ledgers.read_latest(ledger_id)
    assert read.metadata.last_entry_id == 9
    proxy.breaks = [Break.BEFORE]
    proxy.on_break = lambda: plain.zk.delete(proof)
    with pytest.raises(SessionLostError):
        ledgers.write_proven(ledger_id, read.metadata.in_recovery(), read, proof)
    assert others.read_latest(ledger_id).version == read.version
    assert proxy.broken == 3


@BREAKS
def test_c13_a_worker_and_a_vote_are_had_once(
    proxy: ZooKeeperProxy, plain: UnderReplicationStore, store: UnderReplicationStore, how: Break
) -> None:
    election, others = AuditorElection(store.zk, store.paths.root), AuditorElection(plain.zk, store.paths.root)

    def vote() -> None:
        mine = election.vote("b1:1")
        plain.zk.sync("/")
        assert others.votes() == [mine]
        planned, proxy.breaks = proxy.breaks, []
        election.withdraw(mine)
        proxy.breaks = planned

    def begin() -> None:
        path = store.begin_worker("w")
        plain.zk.sync("/")
        found = plain.zk.get(path)
        assert found is not None
        assert found.owner_session == store.zk.session_id

    assert at_each_request(proxy, how, vote) >= 3
    assert at_each_request(proxy, how, begin) >= 1


@BREAKS
def test_c13_switches(
    proxy: ZooKeeperProxy, plain: UnderReplicationStore, store: UnderReplicationStore, how: Break
) -> None:
    switches = ReplicationSwitches(store.zk, store.paths.root)
    others = ReplicationSwitches(plain.zk, store.paths.root)
    numbers = iter(range(100))

    def switch() -> None:
        assert switches.disable()
        plain.zk.sync("/")
        assert others.is_disabled()
        assert switches.enable()
        plain.zk.sync("/")
        assert not others.is_disabled()

    def delay() -> None:
        seconds = next(numbers)
        switches.set_recovery_delay(seconds)
        plain.zk.sync("/")
        found = others.recovery_delay()
        assert found is not None
        assert found.seconds == seconds

    assert at_each_request(proxy, how, switch) >= 2
    assert at_each_request(proxy, how, delay) >= 2


@BREAKS
def test_c13_withdrawing_a_vote(
    proxy: ZooKeeperProxy, plain: UnderReplicationStore, store: UnderReplicationStore, how: Break
) -> None:
    election = AuditorElection(store.zk, store.paths.root)
    vote = election.vote("b1:1")
    proxy.kinds = frozenset({DELETE})
    proxy.breaks = [how]
    election.withdraw(vote)
    assert proxy.broken == 1
    plain.zk.sync("/")
    assert AuditorElection(plain.zk, store.paths.root).votes() == []
