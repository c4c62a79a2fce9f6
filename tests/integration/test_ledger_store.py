"""Ledger metadata in a real ZooKeeper: every layout, lost replies (C13), races between clients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from bk_spark.bookie.metadata.cluster_init import init_cluster
from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.errors import (
    InvalidArgumentError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoNodeError,
    NoSuchLedgerError,
    OutcomeUnknownError,
)
from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.metadata.znodes import CreateOp, TransactionConflictError, TransactionOp
from bookie_server.local import LocalCluster
from tests.support.ledgers import ledger

LAYOUTS = ["flat", "hierarchical", "longhierarchical"]


class Unreliable(ZooKeeper):
    """A session whose calls can be made to fail: ``lose`` runs the change and loses the reply, ``drop`` the request."""

    def __init__(self, servers: str) -> None:
        super().__init__(servers)
        self.lose: set[str] = set()
        self.drop: set[str] = set()
        self.vanishing_parents = 0

    def _unreliable(self, name: str, call: Callable[[], Any]) -> Any:
        if name in self.drop:
            self.drop.discard(name)
            raise OutcomeUnknownError("the request was lost")
        result = call()
        if name in self.lose:
            self.lose.discard(name)
            raise OutcomeUnknownError("the reply was lost")
        return result

    def transaction(self, operations: Sequence[TransactionOp]) -> None:
        self._unreliable("transaction", lambda: super(Unreliable, self).transaction(operations))

    def set(self, path: str, data: bytes, version: int) -> int:
        return int(self._unreliable("set", lambda: super(Unreliable, self).set(path, data, version)))

    def delete(self, path: str, version: int = -1) -> None:
        self._unreliable("delete", lambda: super(Unreliable, self).delete(path, version))

    def ensure_path(self, path: str) -> None:
        if self.vanishing_parents:
            self.vanishing_parents -= 1
            raise NoNodeError("znode does not exist")
        super().ensure_path(path)


@pytest.fixture
def session(zk_only: LocalCluster) -> Any:
    session = Unreliable(zk_only.zookeepers[0].id)
    session.start()
    yield session
    session.close()


def store_of(session: ZooKeeper, root: str, layout: str = "hierarchical") -> LedgerStore:
    init_cluster(session, root, layout)
    return LedgerStore(session, MetadataServiceUri.parse(f"zk+{layout}://{session.servers}{root}"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_life_of_a_ledger(session: Unreliable, fresh_root: str, layout: str) -> None:
    store = store_of(session, fresh_root, layout)
    ids = [store.create(ledger())[0] for _ in range(3)]
    assert ids == sorted(set(ids))
    ledger_id, created = store.create(ledger())
    assert (created.version, store.read(ledger_id)) == (0, created)
    written = store.write(ledger_id, ledger().in_recovery(), 0)
    assert (written.version, store.read_latest(ledger_id).metadata.state) == (1, LedgerState.IN_RECOVERY)
    with pytest.raises(MetadataConflictError):
        store.write(ledger_id, ledger(), 0)
    closed = store.update(ledger_id, lambda found: found.closed(5, 50))
    assert closed.metadata.last_entry_id == 5
    assert store.update(ledger_id, lambda found: None) == store.read(ledger_id)
    for one in (*ids, ledger_id, ledger_id):
        store.delete(one)
    with pytest.raises(NoSuchLedgerError):
        store.read(ledger_id)
    with pytest.raises(NoSuchLedgerError):
        store.write(ledger_id, ledger(), 1)
    with pytest.raises(NoSuchLedgerError):
        store.update(ledger_id, lambda found: found.in_recovery())
    # Nothing is left behind but the cluster's own znodes and the id generator.
    assert set(session.children(fresh_root) or ()) <= {"INSTANCEID", "LAYOUT", "available", "idgen"}


def test_the_uri_must_fit_the_cluster(session: Unreliable, fresh_root: str) -> None:
    store_of(session, fresh_root, "flat")
    servers = session.servers
    assert LedgerStore(session, MetadataServiceUri.parse(f"zk://{servers}{fresh_root}")).manager.value == "flat"
    with pytest.raises(InvalidArgumentError, match="the cluster uses flat"):
        LedgerStore(session, MetadataServiceUri.parse(f"zk+hierarchical://{servers}{fresh_root}"))
    with pytest.raises(MetadataUnavailableError, match="no BookKeeper cluster"):
        LedgerStore(session, MetadataServiceUri.parse(f"zk://{servers}/nowhere"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_c13_a_create_whose_reply_is_lost_is_found(session: Unreliable, fresh_root: str, layout: str) -> None:
    store = store_of(session, fresh_root, layout)
    session.lose = {"transaction"}
    ledger_id, created = store.create(ledger())
    assert store.read(ledger_id) == created
    # No second ledger was made for it (a flat generator counts all znodes of the root).
    for other in range(ledger_id + 3):
        if other != ledger_id:
            with pytest.raises(NoSuchLedgerError):
                store.read(other)


def test_c13_a_create_whose_request_is_lost_is_made_once(session: Unreliable, fresh_root: str) -> None:
    store = store_of(session, fresh_root)
    session.drop = {"transaction"}
    ledger_id, created = store.create(ledger())
    assert store.read(ledger_id) == created
    with pytest.raises(NoSuchLedgerError):
        store.read(ledger_id - 1)


def test_c13_a_delete_whose_reply_is_lost(session: Unreliable, fresh_root: str) -> None:
    store = store_of(session, fresh_root)
    ledger_id, _ = store.create(ledger())
    session.lose = {"delete"}
    store.delete(ledger_id)
    ledger_id, _ = store.create(ledger())
    session.drop = {"delete"}
    store.delete(ledger_id)
    with pytest.raises(NoSuchLedgerError):
        store.read(ledger_id)


def test_c13_an_update_whose_reply_is_lost(session: Unreliable, fresh_root: str) -> None:
    store = store_of(session, fresh_root)
    ledger_id, _ = store.create(ledger())
    for fault in (session.lose, session.drop):
        fault.add("set")
        before = store.read(ledger_id).version
        stored = store.update(ledger_id, lambda found: found.in_recovery() if found.state is LedgerState.OPEN else None)
        assert (stored.metadata.state, stored.version) == (LedgerState.IN_RECOVERY, before + 1)
        store.write(ledger_id, replace(stored.metadata, state=LedgerState.OPEN), stored.version)


@pytest.mark.parametrize("call", ["transaction", "set", "delete"])
def test_c13_a_change_whose_requests_are_all_lost_is_given_up(
    session: Unreliable, fresh_root: str, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    store = store_of(session, fresh_root)
    ledger_id, created = store.create(ledger())
    lost = 0

    def lose(*_: object, **__: object) -> None:
        nonlocal lost
        lost += 1
        assert lost <= 100, "it goes on and on"
        raise OutcomeUnknownError("the request was lost")

    monkeypatch.setattr(session, call, lose)
    changes: dict[str, Callable[[], object]] = {
        "transaction": lambda: store.create(ledger()),
        "set": lambda: store.write(ledger_id, ledger().in_recovery(), 0),
        "delete": lambda: store.delete(ledger_id),
    }
    with pytest.raises(MetadataUnavailableError):
        changes[call]()
    assert lost > 1
    assert store.read(ledger_id) == created


def test_what_is_created_with_a_ledger_is_created_or_not_with_it(session: Unreliable, fresh_root: str) -> None:
    store = store_of(session, fresh_root)
    session.ensure_path(f"{fresh_root}-log")
    ledger_id, _ = store.create(ledger(), lambda made: [CreateOp(f"{fresh_root}-log/{made}", b"mine")])
    assert session.get(f"{fresh_root}-log/{ledger_id}") is not None
    with pytest.raises(TransactionConflictError):
        store.create(ledger(), lambda made: [CreateOp(f"{fresh_root}-log/{ledger_id}")])
    with pytest.raises(NoSuchLedgerError):
        store.read(ledger_id + 1)


def test_parents_that_others_delete_meanwhile(session: Unreliable, fresh_root: str) -> None:
    store = store_of(session, fresh_root)
    session.vanishing_parents = 3
    ledger_id, created = store.create(ledger())
    assert store.read(ledger_id) == created


def test_creating_and_deleting_on_many_threads(session: Unreliable, fresh_root: str) -> None:
    store = store_of(session, fresh_root)
    ids: list[int] = []
    errors: list[Exception] = []

    def work() -> None:
        try:
            for _ in range(10):
                ledger_id, _ = store.create(ledger())
                ids.append(ledger_id)
                store.delete(ledger_id)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(set(ids)) == 60
