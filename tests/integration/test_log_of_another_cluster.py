"""Two clusters in one ZooKeeper share the default root of logs: a log is refused where its ledgers are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.metadata.cluster_init import init_cluster
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.log import EntryFormat, LogSettings, LogStore
from bk_spark.log.gc.deletion import DeletionReport
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.metadata.ledger_paths import LedgerManager
from bk_spark.protocol.metadata.znodes import CreateOp
from bk_spark.protocol.quorum import Quorum

PASSWORD = b"shared"
NAME = "shared"
SETTINGS = LogSettings.create(Quorum(1, 1, 1), DigestType.CRC32C, EntryFormat.RAW, PASSWORD)
LEDGER_ID = 0


def delete_tree(zk: ZooKeeper, path: str) -> None:
    for child in zk.children(path) or ():
        delete_tree(zk, f"{path}/{child}")
    zk.delete(path)


@pytest.fixture
def stores(zookeeper: ZooKeeper, fresh_root: str) -> Iterator[list[LogStore]]:
    """The same root of logs, with clients of two clusters."""
    with ExitStack() as stack:
        made = []
        for cluster in ("a", "b"):
            init_cluster(zookeeper, f"{fresh_root}/{cluster}")
            uri = f"zk+hierarchical://{zookeeper.servers}{fresh_root}/{cluster}"
            made.append(LogStore.of(stack.enter_context(BlockingClient(uri)), f"{fresh_root}/logs"))
        yield made


@pytest.mark.parametrize(
    "use",
    [
        lambda store: store.open_log(NAME, password=PASSWORD),
        lambda store: store.open_log(NAME),
        lambda store: store.open_logs([NAME], password=PASSWORD),
    ],
    ids=["open", "open without password", "open several"],
)
def test_a_log_of_another_cluster_is_refused(
    stores: list[LogStore], zookeeper: ZooKeeper, fresh_root: str, use: Callable[[LogStore], Any]
) -> None:
    """Its ledger ids are those of other ledgers there: reads would return their entries."""
    here, elsewhere = stores
    here.create_log(NAME, SETTINGS, PASSWORD)
    ids = [zookeeper.get_latest(f"{fresh_root}/{cluster}/INSTANCEID") for cluster in ("a", "b")]
    with pytest.raises(InvalidArgumentError, match="logRoot") as caught:
        use(elsewhere)
    for znode in ids:
        assert znode is not None
        assert znode.data.decode() in str(caught.value)
    assert here.open_log(NAME, password=PASSWORD).settings.instance_id is not None
    use(here)


def test_a_log_of_a_cluster_made_anew_is_deleted_and_its_name_used_again(
    stores: list[LogStore], zookeeper: ZooKeeper, fresh_root: str
) -> None:
    """The new cluster gives the same ledger ids again: its ledgers stay as they are."""
    store, _ = stores
    root = f"{fresh_root}/a"
    log = store.create_log(NAME, SETTINGS, PASSWORD)
    ledger = LedgerManager.HIERARCHICAL.ledger_path(root, LEDGER_ID)
    zookeeper.ensure_path(ledger.rpartition("/")[0])
    zookeeper.transaction([CreateOp(ledger), *log.ledger_registrar("app", "r0")(LEDGER_ID)])
    delete_tree(zookeeper, root)
    init_cluster(zookeeper, root)
    zookeeper.ensure_path(ledger)
    made = zookeeper.get_latest(ledger)

    with BlockingClient(f"zk+hierarchical://{zookeeper.servers}{root}") as client:
        anew = LogStore.of(client, store.root)
        with pytest.raises(InvalidArgumentError, match="otherwise bkctl log delete frees its name"):
            anew.open_log(NAME, password=PASSWORD)
        assert anew.delete_log(NAME, PASSWORD) == DeletionReport(0, ())
        assert zookeeper.get_latest(ledger) == made is not None
        again = anew.create_log(NAME, SETTINGS, PASSWORD)
        assert anew.open_log(NAME, password=PASSWORD).log_id == again.log_id != log.log_id


def test_a_store_without_client_keeps_the_cluster_that_the_caller_names(
    stores: list[LogStore], zookeeper: ZooKeeper
) -> None:
    here, _ = stores
    without_client = LogStore(zookeeper, here.root)
    without_client.create_log(NAME, replace(SETTINGS, instance_id="8f0b"))
    assert without_client.open_log(NAME).settings.instance_id == "8f0b"
    assert here.create_log("made-here", replace(SETTINGS, instance_id="8f0b")).settings.instance_id != "8f0b"
    here.open_log("made-here")


def test_a_cluster_without_id_is_not_compared(stores: list[LogStore], zookeeper: ZooKeeper, fresh_root: str) -> None:
    """Very old releases made clusters without it."""
    here, elsewhere = stores
    zookeeper.delete(f"{fresh_root}/a/INSTANCEID")
    here.create_log(NAME, SETTINGS, PASSWORD)
    assert here.open_log(NAME).settings.instance_id is None
    assert elsewhere.open_log(NAME).settings.instance_id is None
