"""C13: ZooKeeper's connection breaks before or after each single request of a create, a delete, a compare-and-set.

A proxy cuts real connections, so that sessions, reconnecting and ``sync`` are part of what is tested.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import pytest

from bk_spark.bookie.metadata.cluster_init import init_cluster
from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.errors import (
    LedgerExistsError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    OutcomeUnknownError,
)
from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.metadata.znodes import CreateOp, TransactionConflictError
from tests.support.ledgers import ledger
from tests.support.zookeeper_proxy import (
    DELETE,
    MOST_REQUESTS,
    MULTI,
    SET_DATA,
    Break,
    ZooKeeperProxy,
    at_each_request,
)

LAYOUTS = ["flat", "hierarchical", "longhierarchical"]


def store_of(session: ZooKeeper, root: str, layout: str = "hierarchical") -> LedgerStore:
    return LedgerStore(session, MetadataServiceUri.parse(f"zk+{layout}://{session.servers}{root}"))


def all_ledgers(store: LedgerStore) -> list[int]:
    return list(chain.from_iterable(store.list_ledgers()))


@pytest.mark.parametrize("layout", [*LAYOUTS, "long ids"])
@pytest.mark.parametrize("how", Break, ids=lambda how: how.name)
def test_c13_create_makes_one_ledger_whatever_reply_is_lost(
    zookeeper: ZooKeeper, proxy: ZooKeeperProxy, shaky: ZooKeeper, fresh_root: str, layout: str, how: Break
) -> None:
    long_ids = layout == "long ids"
    layout = "hierarchical" if long_ids else layout
    init_cluster(zookeeper, fresh_root, layout)
    if long_ids:
        zookeeper.ensure_path(f"{fresh_root}/idgen-long/HOB-0000000001")
    zookeeper.ensure_path(f"{fresh_root}-log")
    plain, store = store_of(zookeeper, fresh_root, layout), store_of(shaky, fresh_root, layout)
    made: list[int] = []

    def create() -> None:
        ledger_id, created = store.create(ledger(), lambda new: [CreateOp(f"{fresh_root}-log/{new}", b"mine")])
        made.append(ledger_id)
        assert plain.read(ledger_id) == created
        assert zookeeper.get(f"{fresh_root}-log/{ledger_id}") is not None

    assert at_each_request(proxy, how, create) >= 4
    assert all(ledger_id >> 32 for ledger_id in made) == long_ids
    # Nothing else was made: no second ledger, nothing with it.
    assert sorted(made) == all_ledgers(plain)
    assert sorted(made) == sorted(map(int, zookeeper.children(f"{fresh_root}-log") or ()))


@pytest.mark.parametrize("how", Break, ids=lambda how: how.name)
def test_c13_create_under_a_given_id_knows_its_own_ledger(
    zookeeper: ZooKeeper, proxy: ZooKeeperProxy, shaky: ZooKeeper, ledgers_root: str, how: Break
) -> None:
    plain, store = store_of(zookeeper, ledgers_root), store_of(shaky, ledgers_root)
    ids = iter(range(2**40, 2**40 + MOST_REQUESTS + 1))

    def create() -> None:
        ledger_id = next(ids)
        assert store.create(ledger(), ledger_id=ledger_id) == (ledger_id, plain.read(ledger_id))
        with pytest.raises(LedgerExistsError) as taken:
            plain.create(ledger(), ledger_id=ledger_id)
        assert taken.value.ledger_id == ledger_id

    at_each_request(proxy, how, create)


def test_c13_create_under_a_given_id_that_another_client_takes_meanwhile(
    zookeeper: ZooKeeper, proxy: ZooKeeperProxy, shaky: ZooKeeper, ledgers_root: str
) -> None:
    plain, store = store_of(zookeeper, ledgers_root), store_of(shaky, ledgers_root)
    proxy.breaks = [Break.BEFORE]
    proxy.on_break = lambda: plain.create(ledger().in_recovery(), ledger_id=5)
    with pytest.raises(LedgerExistsError):
        store.create(ledger(), ledger_id=5)
    assert plain.read(5).metadata.state is LedgerState.IN_RECOVERY


def test_c13_create_with_what_does_not_hold(
    zookeeper: ZooKeeper, proxy: ZooKeeperProxy, shaky: ZooKeeper, ledgers_root: str
) -> None:
    plain, store = store_of(zookeeper, ledgers_root), store_of(shaky, ledgers_root)
    proxy.breaks = [Break.BEFORE]
    with pytest.raises(TransactionConflictError) as refused:
        store.create(ledger(), lambda new: [CreateOp(f"{ledgers_root}-none/{new}")])
    assert "-none/" in refused.value.operation.path
    assert all_ledgers(plain) == []


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("how", Break, ids=lambda how: how.name)
def test_c13_delete_whatever_reply_is_lost(
    zookeeper: ZooKeeper, proxy: ZooKeeperProxy, shaky: ZooKeeper, fresh_root: str, layout: str, how: Break
) -> None:
    init_cluster(zookeeper, fresh_root, layout)
    plain, store = store_of(zookeeper, fresh_root, layout), store_of(shaky, fresh_root, layout)
    ids = iter([plain.create(ledger())[0] for _ in range(MOST_REQUESTS + 1)])

    def delete() -> None:
        ledger_id = next(ids)
        store.delete(ledger_id)
        with pytest.raises(NoSuchLedgerError):
            plain.read(ledger_id)

    assert at_each_request(proxy, how, delete) >= 2


@pytest.mark.parametrize("how", Break, ids=lambda how: how.name)
def test_c13_delete_leaves_alone_what_another_client_made_under_the_same_id(
    zookeeper: ZooKeeper, proxy: ZooKeeperProxy, shaky: ZooKeeper, ledgers_root: str, how: Break
) -> None:
    """The request lost, another client deletes the ledger; or our delete done, its reply lost. In both cases another
    ledger of this id is there before we are back."""
    plain, store = store_of(zookeeper, ledgers_root), store_of(shaky, ledgers_root)
    plain.create(ledger(), ledger_id=77)

    def make_anew() -> None:
        plain.delete(77)
        plain.create(ledger().in_recovery(), ledger_id=77)

    proxy.kinds = frozenset({DELETE})
    proxy.breaks = [how]
    proxy.on_break = make_anew
    store.delete(77)
    assert proxy.broken == 1
    assert plain.read_latest(77).metadata.state is LedgerState.IN_RECOVERY


@pytest.mark.parametrize("how", Break, ids=lambda how: how.name)
def test_c13_compare_and_set(
    zookeeper: ZooKeeper, proxy: ZooKeeperProxy, shaky: ZooKeeper, ledgers_root: str, how: Break
) -> None:
    plain, store = store_of(zookeeper, ledgers_root), store_of(shaky, ledgers_root)
    ledger_id, created = plain.create(ledger())
    proxy.kinds = frozenset({SET_DATA})
    proxy.breaks = [how]
    written = store.write(ledger_id, created.metadata.in_recovery(), 0)
    found = plain.read_latest(ledger_id)
    assert (written.version, found.version, found.metadata.state) == (1, 1, LedgerState.IN_RECOVERY)
    # Another client's change in between wins, whether ours was applied before it or not.
    proxy.breaks = [how]
    proxy.on_break = lambda: plain.update(ledger_id, lambda found: found.closed(9, 90) if not found.length else None)
    with pytest.raises(MetadataConflictError):
        store.write(ledger_id, written.metadata, 1)
    assert plain.read(ledger_id).metadata.last_entry_id == 9
    proxy.breaks = [how]
    proxy.on_break = lambda: plain.delete(ledger_id)
    with pytest.raises(NoSuchLedgerError):
        store.write(ledger_id, written.metadata, plain.read(ledger_id).version)
    assert proxy.broken == 3


@pytest.mark.parametrize("how", Break, ids=lambda how: how.name)
def test_c13_update_takes_effect_once(
    zookeeper: ZooKeeper, proxy: ZooKeeperProxy, shaky: ZooKeeper, ledgers_root: str, how: Break
) -> None:
    plain, store = store_of(zookeeper, ledgers_root), store_of(shaky, ledgers_root)
    ledger_id, _ = plain.create(ledger())
    proxy.kinds = frozenset({SET_DATA})
    proxy.breaks = [how]
    changed = store.update(ledger_id, lambda found: found.in_recovery() if found.state is LedgerState.OPEN else None)
    found = plain.read_latest(ledger_id)
    assert (changed.version, found.version, found.metadata.state) == (1, 1, LedgerState.IN_RECOVERY)


@pytest.mark.parametrize(
    ("kind", "call", "error"),
    [
        (MULTI, lambda store: store.create(ledger()), MetadataUnavailableError),
        (MULTI, lambda store: store.create(ledger(), lambda new: [CreateOp(f"/{new}")]), OutcomeUnknownError),
        (DELETE, lambda store: store.delete(1), MetadataUnavailableError),
        (SET_DATA, lambda store: store.write(1, ledger().in_recovery(), 0), OutcomeUnknownError),
    ],
    ids=["create", "create with more", "delete", "compare-and-set"],
)
def test_c13_zookeeper_stays_away_after_a_lost_request(
    zookeeper: ZooKeeper,
    proxy: ZooKeeperProxy,
    shaky: ZooKeeper,
    ledgers_root: str,
    kind: int,
    call: Callable[[LedgerStore], object],
    error: type[MetadataUnavailableError],
) -> None:
    """Bounded in time. Retriable where doing it again does no harm: creating again makes another ledger."""
    store_of(zookeeper, ledgers_root).create(ledger(), ledger_id=1)
    store = store_of(shaky, ledgers_root)
    proxy.kinds = frozenset({kind})
    proxy.breaks = [Break.BEFORE]
    proxy.on_break = proxy.refuse
    with shaky.within(2_000), pytest.raises(error) as raised:
        call(store)
    assert type(raised.value) is error
    assert raised.value.retriable == (error is MetadataUnavailableError)
