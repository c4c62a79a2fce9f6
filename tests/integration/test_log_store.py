"""Logs in a real ZooKeeper."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.log import (
    CommitMessage,
    CommitRequest,
    CommitStatus,
    EntryFormat,
    LedgerRange,
    Log,
    LogSettings,
    LogStore,
)
from bk_spark.log.formats.page import SegmentPage, encode_page
from bk_spark.log.formats.segment import SegmentTable
from bk_spark.log.io.lock import AdvisoryLock
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import (
    InvalidArgumentError,
    LedgerRefusedError,
    LogExistsError,
    LogRangeGoneError,
    LogReplacedError,
    MetadataFormatError,
    NoSuchLogError,
    RunRetiredError,
)
from bk_spark.protocol.metadata.znodes import CreateOp, TransactionConflictError
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalCluster
from tests.support.zookeeper_proxy import Break, ZooKeeperProxy

RAW = LogSettings.create(Quorum(3, 3, 2), DigestType.CRC32C, EntryFormat.RAW, b"secret")
ARROW = LogSettings.create(Quorum(3, 2, 2), DigestType.HMAC, EntryFormat.ARROW, b"", '{"type":"struct","fields":[]}')


@pytest.fixture
def store(zookeeper: ZooKeeper, fresh_root: str) -> LogStore:
    return LogStore(zookeeper, f"{fresh_root}/logs")


def register(zk: ZooKeeper, log: Log, app: str, run: str, *ledger_ids: int) -> None:
    registrar = log.ledger_registrar(app, run)
    for ledger_id in ledger_ids:
        zk.transaction(registrar(ledger_id))


def request(
    log: Log, batch_id: int, *parts: LedgerRange, app: str = "app", run: str = "r0", overwrite: bool = False
) -> CommitRequest:
    messages = [CommitMessage(log.log_id, app, run, "query", batch_id, n, (part,)) for n, part in enumerate(parts)]
    return CommitRequest(log.log_id, app, run, "query", batch_id, tuple(messages), overwrite)


def delete_tree(zk: ZooKeeper, path: str) -> None:
    for name in zk.children(path) or []:
        delete_tree(zk, f"{path}/{name}")
    zk.delete(path)


def test_a_log_is_made_found_and_opened(store: LogStore) -> None:
    assert store.list_logs() == []
    assert not store.exists("flights")
    with pytest.raises(NoSuchLogError, match="no log flights"):
        store.open_log("flights")

    made = store.create_log("flights", ARROW)
    store.create_log("_more.flights-2", RAW)
    assert store.list_logs() == ["_more.flights-2", "flights"]
    assert store.exists("flights")
    opened = store.open_log("flights")
    assert (opened.log_id, opened.settings) == (made.log_id, ARROW)
    assert store.open_log("flights", log_id=made.log_id).log_id == made.log_id
    with pytest.raises(LogExistsError, match="exists already"):
        store.create_log("flights", RAW)
    assert store.open_log("flights").settings == ARROW
    with pytest.raises(InvalidArgumentError, match="log name"):
        store.create_log("a/b", RAW)


def test_batches_come_back_in_order_over_many_pages(zookeeper: ZooKeeper, store: LogStore) -> None:
    log = store.create_log("flights", RAW)
    assert list(log.snapshot().segments()) == []
    register(zookeeper, log, "app", "r0", 1, 2)
    entry = {1: 0, 2: 0}
    for batch_id in range(6):
        parts = []
        for number in range(1_200):
            ledger_id = 1 + number % 2
            # Gaps and odd sizes, so that a segment takes more bytes than usual.
            first = entry[ledger_id] + 1
            entry[ledger_id] = first + number % 5 + 1
            parts.append(LedgerRange(ledger_id, first, first + number % 5, 7_919 * number, 999_983 * number))
        before = log.snapshot()
        result = log.commit(request(log, batch_id, *parts))
        assert result.status is CommitStatus.COMMITTED
        assert (result.start_offset, result.end_offset) == (before.next_offset, log.snapshot().next_offset)
        assert list(before.segments()) == list(log.snapshot().segments(before.first_offset, before.next_offset))

    segments = list(store.open_log("flights").snapshot().segments())
    assert len(segments) == 7_200
    assert len(zookeeper.children(f"{store.root}/flights/pages") or []) > 2
    assert [s.base_offset for s in segments[1:]] == [s.end_offset for s in segments[:-1]]
    snapshot = log.snapshot()
    assert sum(len(table) for table in snapshot.tables()) == 7_200
    for start, end in ((0, 1), (10_000, 10_001), (9_999, 15_001), (snapshot.next_offset - 1, snapshot.next_offset)):
        part = [s.clip(start, end) for s in snapshot.segments(start, end)]
        assert part[0].base_offset == start
        assert part[-1].end_offset == end
        assert sum(s.entries for s in part) == end - start
    assert list(snapshot.segments(500, 500)) == []


def test_offsets_outside_of_the_log_are_named(zookeeper: ZooKeeper, store: LogStore) -> None:
    log = store.create_log("flights", RAW)
    register(zookeeper, log, "app", "r0", 1)
    log.commit(request(log, 0, LedgerRange(1, 0, 9, 10, 10)))
    old = log.snapshot()
    log.commit(request(log, 1, LedgerRange(1, 10, 14, 5, 5), overwrite=True))
    snapshot = log.snapshot()
    assert (snapshot.first_offset, snapshot.next_offset) == (10, 15)
    assert [s.base_offset for s in snapshot.segments()] == [10]
    assert [s.base_offset for s in old.segments()] == [0], "an old snapshot still has its segments"
    with pytest.raises(LogRangeGoneError, match=r"offsets \[3, 10\) are gone, the log starts at 10"):
        snapshot.segments(3, 12)
    with pytest.raises(LogRangeGoneError, match=r"offsets \[15, 20\) are not written yet, the log ends at 15"):
        snapshot.segments(12, 20)
    with pytest.raises(InvalidArgumentError, match="end before they start"):
        snapshot.segments(12, 11)


def test_a_damaged_list_is_never_taken_for_a_shorter_one(zookeeper: ZooKeeper, store: LogStore) -> None:
    log = store.create_log("flights", RAW)
    register(zookeeper, log, "app", "r0", 1)
    log.commit(request(log, 0, LedgerRange(1, 0, 9, 10, 10)))
    page = f"{store.root}/flights/pages/0000000000"
    znode = zookeeper.get(page)
    assert znode is not None
    zookeeper.set(page, encode_page(SegmentPage(log.log_id, 0, 0, SegmentTable.of(()))), znode.version)
    with pytest.raises(MetadataFormatError, match="broken at offset 0"):
        list(log.snapshot().segments())
    zookeeper.delete(page)
    with pytest.raises(MetadataFormatError, match="is missing"):
        list(log.snapshot().segments())


def test_a_ledger_and_its_registration_are_made_together(zookeeper: ZooKeeper, store: LogStore) -> None:
    log = store.create_log("flights", RAW)
    registrar = log.ledger_registrar("my/app", "r0")
    metadata = f"{store.root}/metadata"
    zookeeper.transaction([CreateOp(metadata), *registrar(77)])
    assert log.run_ledgers("my/app", "r0") == [77]
    with pytest.raises(TransactionConflictError):
        zookeeper.transaction([CreateOp(f"{metadata}2"), *registrar(77)])
    assert zookeeper.exists(f"{metadata}2") is None


def test_l5_a_log_made_again_is_another_log(zookeeper: ZooKeeper, store: LogStore) -> None:
    old = store.create_log("flights", RAW)
    register(zookeeper, old, "app", "r0", 1)
    asked = request(old, 0, LedgerRange(1, 0, 9, 10, 10))
    registrar = old.ledger_registrar("app", "r0")
    delete_tree(zookeeper, f"{store.root}/flights")
    for gone in (lambda: old.commit(asked), old.snapshot, lambda: old.check_run("app", "r0")):
        with pytest.raises(NoSuchLogError):
            gone()
    with pytest.raises(NoSuchLogError):
        old.ledger_registrar("app", "r1")

    new = store.create_log("flights", RAW)
    register(zookeeper, new, "app", "r0", 1)
    for refused in (
        lambda: old.commit(asked),
        lambda: new.commit(asked),
        old.snapshot,
        lambda: old.ledger_registrar("app", "r9"),
        lambda: store.open_log("flights", log_id=old.log_id),
    ):
        with pytest.raises(LogReplacedError, match="created again"):
            refused()
    with pytest.raises(TransactionConflictError, match=f"id-{old.log_id}"):
        zookeeper.transaction(registrar(5))
    assert new.run_ledgers("app", "r0") == [1]
    assert new.snapshot().next_offset == 0


def test_s3_a_zombie_driver_is_refused_and_its_ledgers_are_handed_over(
    zookeeper: ZooKeeper, store: LogStore, caplog: pytest.LogCaptureFixture
) -> None:
    log = store.create_log("flights", RAW)
    register(zookeeper, log, "app", "r0", 1, 2, 3)
    register(zookeeper, log, "app", "r1", 11)
    register(zookeeper, log, "app", "r2", 21)
    log.commit(request(log, 0, LedgerRange(1, 0, 9, 10, 10)))
    assert caplog.text == ""
    log.check_run("app", "r0")
    result = log.commit(request(log, 1, LedgerRange(11, 0, 9, 10, 10), run="r1"))
    assert result.status is CommitStatus.COMMITTED
    # This store has no client, so nobody can close them. That does not fail the commit.
    assert "retired run r0" in caplog.text
    with pytest.raises(RunRetiredError, match="run r1 took over"):
        log.commit(request(log, 1, LedgerRange(1, 10, 19, 10, 10)))
    with pytest.raises(RunRetiredError, match="run r1 took over"):
        log.check_run("app", "r0")

    log.commit(request(log, 2, LedgerRange(21, 0, 9, 10, 10), run="r2"))
    application = log.application("app")
    assert application is not None
    assert application.retired_runs == ("r0", "r1")
    assert log.application("other") is None


def test_a_repeated_batch_with_other_rows_is_told_with_both_numbers(
    zookeeper: ZooKeeper, store: LogStore, caplog: pytest.LogCaptureFixture
) -> None:
    log = store.create_log("flights", RAW)
    register(zookeeper, log, "app", "r0", 1, 2)
    for ledger_id in (1, 2):
        log.commit(request(log, 0, LedgerRange(ledger_id, 0, 9, 10, 100)))
    assert caplog.text == ""
    log.commit(request(log, 0, LedgerRange(2, 0, 6, 7, 70)))
    assert "batch 0 of application 'app' was committed with 10 rows; this repetition has 7" in caplog.text


def test_many_writers_at_once_lose_and_repeat_nothing(
    zk_only: LocalCluster, zookeeper: ZooKeeper, store: LogStore
) -> None:
    log = store.create_log("flights", RAW)
    writers, batches = 6, 12
    for number in range(writers):
        register(zookeeper, log, f"app{number}", "r0", number)
    failures: list[BaseException] = []

    def write(number: int) -> None:
        session = ZooKeeper(zk_only.zookeepers[0].id)
        try:
            session.start()
            mine = LogStore(session, store.root).open_log("flights", log_id=log.log_id)
            for batch_id in range(batches):
                part = LedgerRange(number, batch_id * 5, batch_id * 5 + 4, 5, 50)
                asked = request(mine, batch_id, part, app=f"app{number}")
                assert mine.commit(asked).status is CommitStatus.COMMITTED
                assert mine.commit(asked).status is CommitStatus.ALREADY_DONE
        except BaseException as error:
            failures.append(error)
        finally:
            session.close()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []
    segments = list(log.snapshot().segments())
    assert len(segments) == writers * batches
    assert segments[-1].end_offset == writers * batches * 5
    for number in range(writers):
        assert [s.first_entry for s in segments if s.ledger_id == number] == [5 * n for n in range(batches)]
    assert [s.commit_time_ms for s in segments] == sorted(s.commit_time_ms for s in segments)
    assert zookeeper.children(f"{store.root}/flights/lock") == []


def test_a_commit_larger_than_a_request_may_be(zookeeper: ZooKeeper, store: LogStore) -> None:
    log = store.create_log("flights", RAW)
    register(zookeeper, log, "app", "r0", 1, 2)
    parts = [
        LedgerRange(1 + n % 2, n * 300_000, n * 300_000 + n * 997 % 200_000, n * 7_919_999, n * 99_999_989)
        for n in range(70_000)
    ]
    log.commit(request(log, 0, *parts))
    pages = zookeeper.children(f"{store.root}/flights/pages") or []
    assert len(pages) * 32 * 1024 > 1024 * 1024, "more than one request to ZooKeeper could carry"
    back = [(s.ledger_id, s.first_entry, s.last_entry, s.rows, s.size_bytes) for s in log.snapshot().segments()]
    assert back == [(p.ledger_id, p.first_entry, p.last_entry, p.rows, p.size_bytes) for p in parts]


def test_a_refused_commit_leaves_nothing_behind(zookeeper: ZooKeeper, store: LogStore) -> None:
    log = store.create_log("flights", RAW)
    register(zookeeper, log, "app", "r0", 1)
    before = zookeeper.get(f"{store.root}/flights")
    with pytest.raises(LedgerRefusedError, match="ledger 2"):
        log.commit(request(log, 0, LedgerRange(1, 0, 9, 10, 10), LedgerRange(2, 0, 9, 10, 10)))
    assert zookeeper.get(f"{store.root}/flights") == before
    assert log.application("app") is None


def test_s7_the_lock_is_a_queue(zookeeper: ZooKeeper, fresh_root: str) -> None:
    path = f"{fresh_root}/lock"
    zookeeper.ensure_path(path)
    order: list[int] = []

    def wait(number: int) -> None:
        with AdvisoryLock(zookeeper, path, hold_ms=60_000, wait_ms=60_000) as lock:
            if lock.try_take():
                order.append(number)

    with AdvisoryLock(zookeeper, path) as first:
        assert first.try_take()
        assert first.try_take(), "it is held already"
        threads = [threading.Thread(target=wait, args=(number,)) for number in range(3)]
        for number, thread in enumerate(threads):
            thread.start()
            wait_for_places(zookeeper, path, number + 2)
        assert order == []
    for thread in threads:
        thread.join(30)
    assert order == [0, 1, 2]
    assert zookeeper.children(path) == []


def test_s7_a_lock_whose_holder_hangs_is_taken_away(zookeeper: ZooKeeper, fresh_root: str) -> None:
    path = f"{fresh_root}/lock"
    zookeeper.ensure_path(path)
    with AdvisoryLock(zookeeper, path) as hangs, AdvisoryLock(zookeeper, path, hold_ms=100) as second:
        assert hangs.try_take()
        assert second.try_take()
        assert len(zookeeper.children(path) or ()) == 1
        with AdvisoryLock(zookeeper, path, wait_ms=100) as third:
            assert not third.try_take(), "it is held, and who waits does not wait for ever"
            assert len(zookeeper.children(path) or ()) == 1, "who does not wait any more keeps nobody waiting"
        assert second.try_take()
    assert zookeeper.children(path) == []


def test_s7_a_lock_that_cannot_be_had_stops_nobody(zookeeper: ZooKeeper, fresh_root: str) -> None:
    with AdvisoryLock(zookeeper, f"{fresh_root}/gone/lock") as lock:
        assert not lock.try_take()


def test_s7_a_commit_waits_behind_who_is_in_the_queue_of_the_lock(store: LogStore, zookeeper: ZooKeeper) -> None:
    log = store.create_log("flights", RAW)
    register(zookeeper, log, "app", "r0", 1)
    with AdvisoryLock(zookeeper, log.paths.lock) as other:
        assert other.try_take()
        thread = threading.Thread(target=log.commit, args=(request(log, 0, LedgerRange(1, 0, 9, 10, 10)),))
        thread.start()
        wait_for_places(zookeeper, log.paths.lock, 2)
        assert log.application("app") is None
    thread.join(30)
    assert log.application("app") is not None
    assert zookeeper.children(log.paths.lock) == []


def wait_for_places(zookeeper: ZooKeeper, path: str, count: int) -> None:
    """Until so many are in the queue."""
    while True:
        changed = threading.Event()
        if len(zookeeper.children(path, lambda _, changed=changed: changed.set()) or ()) == count:
            return
        assert changed.wait(30)


@pytest.fixture
def shaky(proxy: ZooKeeperProxy) -> Iterator[ZooKeeper]:
    """A session whose connection breaks where the proxy is told to break it."""
    session = ZooKeeper(proxy.address)
    session.start()
    yield session
    session.close()


@pytest.mark.parametrize(
    "breaks",
    [[Break.AFTER], [Break.BEFORE], [Break.BEFORE, Break.AFTER], [Break.BEFORE, Break.BEFORE, Break.AFTER]],
    ids=lambda breaks: "-".join(b.name.lower() for b in breaks),
)
def test_s1_l4_a_lost_reply_is_settled_by_reading(
    zookeeper: ZooKeeper, store: LogStore, proxy: ZooKeeperProxy, shaky: ZooKeeper, breaks: list[Break]
) -> None:
    log = store.create_log("flights", RAW)
    register(zookeeper, log, "app", "r0", 1)
    register(zookeeper, log, "app", "r1", 2)
    log.commit(request(log, 0, LedgerRange(1, 0, 9, 10, 10)))
    through_proxy = LogStore(shaky, store.root).open_log("flights")

    proxy.breaks[:] = breaks
    asked = request(log, 1, LedgerRange(2, 0, 4, 5, 50), run="r1")
    result = through_proxy.commit(asked)
    assert proxy.broken == len(breaks)
    assert result.status is CommitStatus.COMMITTED
    assert (result.start_offset, result.end_offset, result.retired_runs) == (10, 15, ("r0",))
    assert len(list(log.snapshot().segments())) == 2
    head = zookeeper.get(f"{store.root}/flights")
    assert head is not None
    assert head.version == 2, "one transaction for each batch took effect"
    assert log.commit(asked).status is CommitStatus.ALREADY_DONE


@pytest.mark.parametrize("at", [Break.BEFORE, Break.AFTER])
def test_a_lost_reply_makes_one_log(store: LogStore, proxy: ZooKeeperProxy, shaky: ZooKeeper, at: Break) -> None:
    shaky_store = LogStore(shaky, store.root)
    proxy.breaks[:] = [at]
    made = shaky_store.create_log("flights", RAW)
    assert proxy.broken == 1
    assert store.open_log("flights").log_id == made.log_id
    proxy.breaks[:] = [at]
    with pytest.raises(LogExistsError):
        shaky_store.create_log("flights", RAW)


def test_a_lost_reply_registers_a_run_once(store: LogStore, proxy: ZooKeeperProxy, shaky: ZooKeeper) -> None:
    store.create_log("flights", RAW)
    log = LogStore(shaky, store.root).open_log("flights")
    proxy.breaks[:] = [Break.BEFORE, Break.AFTER]
    run = str(uuid.uuid4())
    log.ledger_registrar("app", run)
    assert proxy.broken == 2
    before = proxy.requests
    log.ledger_registrar("app", run)
    assert proxy.requests == before, "it is there: no transaction"


def test_messages_of_another_log_are_refused(zookeeper: ZooKeeper, store: LogStore) -> None:
    log, other = store.create_log("flights", RAW), store.create_log("weather", RAW)
    register(zookeeper, log, "app", "r0", 1)
    asked = request(log, 0, LedgerRange(1, 0, 9, 10, 10))
    with pytest.raises(LogReplacedError):
        other.commit(asked)
    with pytest.raises(LogReplacedError):
        replace(asked, log_id=other.log_id)
