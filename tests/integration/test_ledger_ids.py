"""The counter of ledger ids: what comes next, and how ids are skipped after ZooKeeper was restored."""

from __future__ import annotations

import json

import pytest

from bk_spark.bkctl import main
from bk_spark.bookie.metadata.cluster_init import init_cluster
from bk_spark.bookie.metadata.ledger_ids import MOST_SKIPPED_ID, coming_ledger_id, next_ledger_id, skip_ledger_ids
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.errors import InvalidArgumentError, MetadataError
from bk_spark.protocol.metadata.ledger_paths import LedgerManager


def skip(zk: ZooKeeper, root: str, manager: LedgerManager, last_id: int) -> list[int]:
    return list(skip_ledger_ids(zk, root, manager, last_id))


@pytest.mark.parametrize("manager", [LedgerManager.FLAT, LedgerManager.HIERARCHICAL])
def test_new_ids_are_above_the_skipped_ones(zookeeper: ZooKeeper, fresh_root: str, manager: LedgerManager) -> None:
    init_cluster(zookeeper, fresh_root, manager.value)
    first = next_ledger_id(zookeeper, fresh_root, manager)
    assert coming_ledger_id(zookeeper, fresh_root, manager) == first + 1
    children = zookeeper.children(fresh_root)
    assert skip(zookeeper, fresh_root, manager, 1000)[-1] == 1001
    assert next_ledger_id(zookeeper, fresh_root, manager) == 1001
    # Ids never go back.
    assert skip(zookeeper, fresh_root, manager, 10) == [1002]
    assert next_ledger_id(zookeeper, fresh_root, manager) == 1002
    assert zookeeper.children(fresh_root) == children
    with pytest.raises(InvalidArgumentError, match="Give the highest id below that"):
        skip(zookeeper, fresh_root, manager, 2**31)
    assert coming_ledger_id(zookeeper, fresh_root, manager) == 1003


def test_before_the_first_ledger(zookeeper: ZooKeeper, ledgers_root: str) -> None:
    manager = LedgerManager.HIERARCHICAL
    assert zookeeper.exists(f"{ledgers_root}/idgen") is None
    assert coming_ledger_id(zookeeper, ledgers_root, manager) == 0
    assert skip(zookeeper, ledgers_root, manager, 0) == [0, 1]
    assert next_ledger_id(zookeeper, ledgers_root, manager) == 1


def test_long_ids(zookeeper: ZooKeeper, ledgers_root: str) -> None:
    manager = LedgerManager.HIERARCHICAL
    zookeeper.create(f"{ledgers_root}/idgen-long/HOB-0000000001", make_parents=True)
    first = next_ledger_id(zookeeper, ledgers_root, manager)
    assert first == 1 << 32
    assert coming_ledger_id(zookeeper, ledgers_root, manager) == first + 1
    assert skip(zookeeper, ledgers_root, manager, first) == [first + 1]
    last = (7 << 32) + 123
    assert skip(zookeeper, ledgers_root, manager, last) == [8 << 32]
    assert next_ledger_id(zookeeper, ledgers_root, manager) == 8 << 32


@pytest.mark.parametrize("last", [MOST_SKIPPED_ID + 1, 2**63 - 2**32 - 1, 2**63 - 2**32, 2**63 - 1])
def test_ids_that_would_leave_the_counter_too_few_are_refused(
    zookeeper: ZooKeeper, ledgers_root: str, last: int
) -> None:
    manager = LedgerManager.HIERARCHICAL
    zookeeper.create(f"{ledgers_root}/idgen-long/HOB-0000000001", make_parents=True)
    with pytest.raises(InvalidArgumentError, match=f"ledger {last} has .*: ids up to {2**62 - 1} can be skipped"):
        skip(zookeeper, ledgers_root, manager, last)
    assert zookeeper.children(f"{ledgers_root}/idgen-long") == ["HOB-0000000001"]
    assert coming_ledger_id(zookeeper, ledgers_root, manager) == 1 << 32
    # The last id that can be skipped leaves half of all ids.
    assert skip(zookeeper, ledgers_root, manager, MOST_SKIPPED_ID) == [2**62]
    assert next_ledger_id(zookeeper, ledgers_root, manager) == 2**62
    # Nothing is to be skipped below it.
    assert skip(zookeeper, ledgers_root, manager, MOST_SKIPPED_ID) == [2**62 + 1]


def test_no_id_has_more_than_63_bits(zookeeper: ZooKeeper, ledgers_root: str) -> None:
    manager, long_root = LedgerManager.HIERARCHICAL, f"{ledgers_root}/idgen-long"
    zookeeper.create(f"{long_root}/HOB-{2**31 - 1:010d}", make_parents=True)
    assert next_ledger_id(zookeeper, ledgers_root, manager) == 2**63 - 2**32
    zookeeper.create(f"{long_root}/HOB-{2**31:010d}")
    with pytest.raises(MetadataError, match="has used up its 63 bits"):
        next_ledger_id(zookeeper, ledgers_root, manager)


def test_the_command(zookeeper: ZooKeeper, ledgers_root: str, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        uri = f"zk://{zookeeper.servers}{ledgers_root}"
        status = main(["--metadata-service-uri", uri, "ledger", "skip-ids", *arguments])
        zookeeper.sync("/")
        printed, error = capsys.readouterr()
        return status, printed + error

    coming = coming_ledger_id(zookeeper, ledgers_root, LedgerManager.HIERARCHICAL)
    assert run("300", "--dry-run") == (0, f"the next ledger would have the id {coming}\n")
    assert coming_ledger_id(zookeeper, ledgers_root, LedgerManager.HIERARCHICAL) == coming
    assert run("300") == (0, f"skipped {301 - coming} ids: the next ledger has the id 301\n")
    assert run("300") == (0, "nothing to skip: the next ledger has the id 301\n")
    status, printed = run("301", "--json")
    assert (status, json.loads(printed)) == (0, {"dry_run": False, "next_id_before": 301, "next_id": 302})
    for options in ([], ["--dry-run"]):
        status, printed = run(str(2**31), *options)
        assert (status, "has an id that a client chose" in printed) == (1, True)
    zookeeper.create(f"{ledgers_root}/idgen-long/HOB-0000000001", make_parents=True)
    for options in ([], ["--dry-run"]):
        status, printed = run(str(2**63 - 1), *options)
        assert (status, f"ids up to {2**62 - 1} can be skipped" in printed) == (1, True)
    assert coming_ledger_id(zookeeper, ledgers_root, LedgerManager.HIERARCHICAL) == 1 << 32
