"""What the overview of the cluster reads of ZooKeeper: bounded, in parts, and what is left out is said."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.placement.racks import Racks
from bk_spark.bookie.replication.under_replication_store import UnderReplicationStore
from bk_spark.log import EntryFormat, Log, LogSettings, LogStore
from bk_spark.log.formats.names import readers_path
from bk_spark.log.formats.progress import LogProgress, Progress, encode_progress
from bk_spark.log.formats.znodes import Application, Head, IndexPosition, encode_application, encode_head
from bk_spark.overview import (
    bookies as bookies_module,
    ledgers as ledgers_module,
    logs as logs_module,
    repairs as repairs_module,
)
from bk_spark.overview.bookies import Bookies
from bk_spark.overview.http_call import caller
from bk_spark.overview.ledgers import Ledgers
from bk_spark.overview.logs import Logs
from bk_spark.overview.repairs import Repairs
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.metadata.registration import BookieServiceInfo, Endpoint
from bk_spark.protocol.quorum import Quorum

ONE = Quorum(1, 1, 1)
ID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
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
    # Of too many the newest count: those are written.
    monkeypatch.setattr(ledgers_module, "MAX_LISTED", 5)
    some = Ledgers(store).collect()
    assert (some["total"], some["more"], some["states"]["open"]) == (5, True, 1)


def test_a_list_of_ledgers_takes_no_longer_than_it_may(store: LedgerStore) -> None:
    for ledger_id in (5, 10_000_000_000, 20_000_000_000):
        store.create(CLOSED, ledger_id=ledger_id)
    assert list(store.list_ledgers(descending=True)) == [[20_000_000_000], [10_000_000_000], [5]]
    clock = itertools.count(100, 4)
    some = Ledgers(store, now_s=lambda: float(next(clock))).collect()
    assert (some["total"], some["more"]) == (2, True)
    every = Ledgers(store, now_s=lambda: 100.0).collect()
    assert (every["total"], every["more"]) == (3, False)


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
    found, readers, others, other_readers = logs.collect()
    assert ([(one["log"], one["state"]) for one in found], readers, others, other_readers) == (
        [("a", "ok"), ("b", "unreadable"), ("c", "ok")], [], 0, 0,
    )  # fmt: skip
    monkeypatch.setattr(logs_module, "MAX_LOGS", 2)
    assert logs.collect()[2] == 1


@pytest.fixture
def one_log(zookeeper: ZooKeeper, fresh_root: str) -> Log:
    settings = LogSettings.create(ONE, DigestType.CRC32C, EntryFormat.RAW, b"")
    return LogStore(zookeeper, f"{fresh_root}/logs").create_log("clicks", settings)


def test_a_damaged_head_costs_one_log(zookeeper: ZooKeeper, fresh_root: str, one_log: Log) -> None:
    logs, path = Logs(zookeeper, f"{fresh_root}/logs"), f"{fresh_root}/logs/clicks"
    # A list of as many pages as there are numbers ends, and is not complete.
    zookeeper.set(path, encode_head(Head(one_log.log_id, tail_page=(1 << 63) - 2)), -1)
    ((record,), _, _, _) = logs.collect()
    assert (record["state"], record["complete"]) == ("ok", False)
    index = IndexPosition(1, 0, end_page=9, end_offset=0)
    zookeeper.set(path, encode_head(Head(one_log.log_id, tail_page=5, index=index)), -1)
    ((record,), _, _, _) = logs.collect()
    assert (record["state"], "tail page" in record["problem"]) == ("unreadable", True)


def test_batch_writes_without_a_name_hide_nobody(
    zookeeper: ZooKeeper, fresh_root: str, one_log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs_module, "_MAX_APPLICATIONS", 3)
    logs, apps = Logs(zookeeper, f"{fresh_root}/logs"), f"{fresh_root}/logs/clicks/apps"
    zookeeper.ensure_path(apps)
    for name in ("a1", "a2", "a3", "a4", "query"):
        application = Application(name, "", 0, "run", 1000, 0, 1, anonymous=name != "query")
        zookeeper.create(f"{apps}/{name}", encode_application(application))
    assert logs.collect()[0][0]["writers"] == []
    for _ in range(2):
        ((record,), _, _, _) = logs.collect()
        assert [one["application"] for one in record["writers"]] == ["query"]
    # What one collection reads of all logs is bounded, too.
    monkeypatch.setattr(logs_module, "_MAX_ALL_APPLICATIONS", 0)
    assert logs.collect()[0][0]["writers"] == []


def test_readers_beyond_the_bound_are_counted(
    zookeeper: ZooKeeper, fresh_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = f"{fresh_root}/logs"
    zookeeper.ensure_path(readers_path(root))
    positions = tuple(LogProgress(f"log{each}", ID, 0, each) for each in range(5))
    for name in ("a", "b", "c"):
        zookeeper.create(f"{readers_path(root)}/{name}", encode_progress(Progress(name, 1, 1, positions, 10)))
    zookeeper.create(f"{readers_path(root)}/aa", b"nonsense")
    monkeypatch.setattr(logs_module, "MAX_READERS", 3)
    monkeypatch.setattr(logs_module, "MAX_POSITIONS_SHOWN", 4)
    _, readers, _, others = Logs(zookeeper, root).collect()
    shown = [(one["reader"], [log["lag_entries"] for log in one["logs"]], one["other_logs"]) for one in readers]
    # Each has the logs with its largest lag, one at least.
    assert (shown, others) == ([("a, process 1", [4, 3, 2, 1], 11), ("aa", [], 0), ("b, process 1", [4], 14)], 1)
    assert [one.get("lag_entries") for one in readers] == [10, None, 10]


def test_what_a_reader_claims_fits_into_its_field(zookeeper: ZooKeeper, fresh_root: str) -> None:
    root, most = f"{fresh_root}/logs", (1 << 63) - 1
    zookeeper.ensure_path(readers_path(root))
    positions = tuple(LogProgress(f"log{each}", ID, 0, most) for each in range(3))
    zookeeper.create(f"{readers_path(root)}/a", encode_progress(Progress("a", 1, 1, positions)))
    _, (reader,), _, _ = Logs(zookeeper, root).collect()
    assert reader["lag_entries"] == most


def test_bookies_beyond_the_bound_are_counted(
    zookeeper: ZooKeeper, ledgers_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookies_module, "MAX_SHOWN", 2)
    zookeeper.ensure_path(f"{ledgers_root}/available/readonly")
    zookeeper.ensure_path(f"{ledgers_root}/cookies")
    for bookie in ("a:1", "b:1", "c:1"):
        zookeeper.create(f"{ledgers_root}/cookies/{bookie}", b"")
    wrong = BookieServiceInfo((Endpoint("bookie", "h", 1, "bookie-rpc"), Endpoint("httpserver", "no name", 1, "http")))
    zookeeper.create(f"{ledgers_root}/available/b:1", wrong.encode())
    zookeeper.create(f"{ledgers_root}/available/readonly/d:1", b"")
    bookies = Bookies(zookeeper, ledgers_root, lambda address_of: Racks([], address_of), caller)
    records, counts = bookies.collect()
    assert counts == {"writable": 1, "read-only": 1, "not registered": 2}
    assert [(one["bookie"], one["state"], one["address"]) for one in records] == [
        ("a:1", "not registered", None), ("b:1", "writable", "h:1"),
    ]  # fmt: skip
    # Whatever one registers, the others are shown.
    assert "does not answer" in records[1]["problem"]
