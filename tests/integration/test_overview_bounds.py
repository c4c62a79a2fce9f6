"""What the overview of the cluster reads of ZooKeeper: bounded, in parts, and what is left out is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.replication.under_replication_store import UnderReplicationStore
from bk_spark.log import EntryFormat, LogSettings, LogStore
from bk_spark.overview import ledgers as ledgers_module, logs as logs_module, repairs as repairs_module
from bk_spark.overview.ledgers import Ledgers
from bk_spark.overview.logs import Logs
from bk_spark.overview.repairs import Repairs
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.quorum import Quorum

ONE = Quorum(1, 1, 1)
OPEN = LedgerMetadata(ONE, (Segment(0, ("b1:1",)),), digest_type=DigestType.CRC32C, password=b"")
CLOSED = replace(OPEN, state=LedgerState.CLOSED, last_entry_id=0, length=1)


@pytest.fixture
def store(zookeeper: ZooKeeper, ledgers_root: str) -> LedgerStore:
    return LedgerStore(zookeeper, MetadataServiceUri.parse(f"zk://{zookeeper.servers}{ledgers_root}"))


def test_ledgers_are_read_in_parts_and_closed_ones_once(store: LedgerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers_module, "MAX_READ", 4)
    opened = [store.create(OPEN)[0] for _ in range(3)]
    for _ in range(5):
        store.create(CLOSED)
    now_s = [0.0]
    ledgers = Ledgers(store, now_s=lambda: now_s[0])
    first = ledgers.collect()
    assert (first["total"], first["unread"], first["more"]) == (8, 4, False)
    while (found := ledgers.collect())["unread"]:
        pass
    assert found["states"] == {"open": 3, "in_recovery": 0, "closed": 5, "unreadable": 0}
    store.write(opened[0], CLOSED, 0)
    store.zk.set(store.manager.ledger_path(store.root, opened[1]), b"nonsense", 0)
    store.delete(opened[2])
    for _ in range(3):
        found = ledgers.collect()
    assert (found["total"], found["states"]) == (7, {"open": 0, "in_recovery": 0, "closed": 6, "unreadable": 1})
    # New ones are seen with the next list.
    store.create(OPEN)
    assert ledgers.collect()["total"] == 7
    now_s[0] += 60
    assert ledgers.collect()["states"]["open"] == 1
    monkeypatch.setattr(ledgers_module, "MAX_LISTED", 5)
    some = Ledgers(store).collect()
    assert (some["total"], some["more"]) == (5, True)


def test_how_many_repairs_are_done(store: LedgerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    repairs, marks = Repairs(store), UnderReplicationStore(store.zk, store.root)
    assert (repairs.collect()["most"], repairs.collect()["ledgers"]) == (0, [])
    ids = [store.create(OPEN)[0] for _ in range(3)]
    marks.prepare()
    marks.mark_all({each: ["b1:1"] for each in ids})
    worker = marks.begin_worker("w")
    assert marks.lock(ids[2], proof=worker)
    monkeypatch.setattr(repairs_module, "MAX_SHOWN", 2)
    found = repairs.collect()
    assert (found["under_replicated"], found["most"], found["repairing"]) == (3, 3, 1)
    # The one that is being repaired comes first, and the list is cut.
    assert [one["ledger"] for one in found["ledgers"]] == [ids[2], ids[0]]
    mark = marks.read_mark(ids[2])
    assert mark is not None
    assert marks.finish(ids[2], mark.version, proof=worker)
    found = repairs.collect()
    assert (found["under_replicated"], found["most"]) == (2, 3)
    monkeypatch.setattr(repairs_module, "MAX_COUNTED", 1)
    assert repairs.collect()["more"]


def test_logs_beyond_the_bound_are_counted(
    zookeeper: ZooKeeper, fresh_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LogStore(zookeeper, f"{fresh_root}/logs")
    settings = LogSettings.create(ONE, DigestType.CRC32C, EntryFormat.RAW, b"")
    for name in ("a", "b", "c"):
        store.create_log(name, settings)
    head = f"{store.root}/b"
    zookeeper.set(head, b"nonsense", -1)
    logs = Logs(zookeeper, store.root)
    found, readers, others = logs.collect()
    assert ([(one["log"], one["state"]) for one in found], readers, others) == (
        [("a", "ok"), ("b", "unreadable"), ("c", "ok")], [], 0,
    )  # fmt: skip
    monkeypatch.setattr(logs_module, "MAX_LOGS", 2)
    assert logs.collect()[2] == 1
