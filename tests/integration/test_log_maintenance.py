"""Maintenance on real bookies: what nothing refers to goes, what the log holds stays, and zombies are fenced."""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from unittest.mock import patch

import pytest

from bk_spark.bookie.blocking import BlockingClient, BlockingWriter
from bk_spark.bookie.client import Client
from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.metadata.cluster_clock import unix_time_ms
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.reading.read_handle import ReadHandle
from bk_spark.log import CommitMessage, CommitRequest, EntryFormat, LedgerRange, Log, LogSettings, LogStore, background
from bk_spark.log.background import start_in_background
from bk_spark.log.formats.names import WRITERS
from bk_spark.log.formats.znodes import Policy
from bk_spark.log.gc.maintenance import INTERVAL_MS
from bk_spark.log.gc.reap_rules import Reason
from bk_spark.log.io.ledgers import LogLedgers
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import (
    BookKeeperError,
    LedgerFencedError,
    LedgerRefusedError,
    NoSuchLedgerError,
    NoSuchLogError,
)
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalCluster
from tests.support.registrations import mend
from tests.support.zookeeper_proxy import Break, ZooKeeperProxy

PASSWORD = b"secret"
RAW = LogSettings.create(Quorum(3, 3, 2), DigestType.CRC32C, EntryFormat.RAW, PASSWORD)
HOUR_MS = 60 * 60_000
DAY_MS = 24 * HOUR_MS
BATCHES_BESIDE_A_REAPER = 35


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[BlockingClient]:
    with BlockingClient(cluster.metadata_service_uri, ClientConfig(explicit_lac_interval_ms=100)) as one:
        yield one


@dataclass
class LogWithClock:
    """A log whose clock can be put forward."""

    client: BlockingClient
    name: str = field(default_factory=lambda: f"log-{uuid.uuid4().hex[:12]}")
    ahead_ms: int = 0

    def __post_init__(self) -> None:
        self.store = LogStore(self.client.zookeeper, client=self.client, now_ms=self.now_ms)
        self.log = self.store.create_log(self.name, RAW, PASSWORD)

    def now_ms(self) -> int:
        return unix_time_ms() + self.ahead_ms

    def ledger(self, *payloads: bytes, app: str = "app", run: str = "r0") -> BlockingWriter:
        """A ledger of a task, open, with these entries."""
        writer = self.log.create_ledger(app, run)
        if payloads:
            writer.append_many(list(payloads))
            writer.flush()
        return writer

    def commit(
        self, batch_id: int, *parts: tuple[BlockingWriter, int, int], run: str = "r0", overwrite: bool = False
    ) -> None:
        log_id = self.log.log_id
        messages = [
            CommitMessage(
                log_id, "app", run, "query", batch_id, task, (LedgerRange(writer.ledger_id, first, last, 1, 1),)
            )
            for task, (writer, first, last) in enumerate(parts)
        ]
        self.log.commit(CommitRequest(log_id, "app", run, "query", batch_id, tuple(messages), overwrite))

    def exists(self, ledger_id: int) -> bool:
        try:
            self.client.metadata(ledger_id)
        except NoSuchLedgerError:
            return False
        return True

    def close(self, *writers: BlockingWriter) -> None:
        for writer in writers:
            self.log.ledgers.abandon(writer.ledger_id)


def too_slow() -> AbstractContextManager[object]:
    """Commits do not get to close the ledgers of the runs that they retire, and leave them to the reaper."""
    return patch.object(LogLedgers, "recover_all", lambda self, ledger_ids, timeout_s: ({}, ledger_ids))


@pytest.fixture
def one(client: BlockingClient) -> LogWithClock:
    return LogWithClock(client)


def append_and_flush(writer: BlockingWriter, payload: bytes) -> None:
    writer.append(payload)
    writer.flush()


def content(log: Log) -> list[bytes]:
    """Read with the ledger client alone."""
    found: list[bytes] = []
    for segment in log.snapshot().segments():
        assert segment.last_entry is not None
        reader = log.ledgers.reader(segment.ledger_id)
        for block in reader.read_blocks(segment.first_entry, segment.last_entry, known_to_exist=True):
            found += map(bytes, block.payloads)
    return found


def test_of_a_retired_run_only_what_is_open_is_recovered_and_several_at_once(one: LogWithClock) -> None:
    closed, gone, *opened = (one.ledger(b"x") for _ in range(8))
    closed.close()
    one.client.delete(gone.ledger_id)
    recovered: list[int] = []
    under_way = most = 0
    recover_and_open = Client.recover_and_open

    async def recover(client: Client, ledger_id: int, password: bytes = b"") -> ReadHandle:
        nonlocal under_way, most
        recovered.append(ledger_id)
        under_way += 1
        most = max(most, under_way)
        try:
            return await recover_and_open(client, ledger_id, password)
        finally:
            under_way -= 1

    ledger_ids = [writer.ledger_id for writer in (closed, gone, *opened)]
    with patch.object(Client, "recover_and_open", recover):
        assert one.log.ledgers.recover_all(ledger_ids, 30.0) == ({}, [])
    assert sorted(recovered) == [writer.ledger_id for writer in opened]
    assert most == len(opened)
    for writer in opened:
        with pytest.raises(LedgerFencedError):
            append_and_flush(writer, b"y")


def test_a_recovery_that_hangs_does_not_hold_up_the_others_nor_its_caller(one: LogWithClock) -> None:
    hangs, *others = (one.ledger(b"x") for _ in range(20))
    recover_and_open = Client.recover_and_open

    async def recover(client: Client, ledger_id: int, password: bytes = b"") -> ReadHandle:
        if ledger_id == hangs.ledger_id:
            await asyncio.Event().wait()
        return await recover_and_open(client, ledger_id, password)

    with patch.object(Client, "recover_and_open", recover):
        failed, left = one.log.ledgers.recover_all([hangs.ledger_id, *(writer.ledger_id for writer in others)], 5.0)
    assert (failed, left) == ({}, [hangs.ledger_id])


def test_s2_leftovers_of_a_retired_run_are_gone_two_hours_later_and_the_log_is_whole(one: LogWithClock) -> None:
    kept, orphan, of_r1 = one.ledger(b"a", b"b", b"late"), one.ledger(b"x"), one.ledger(b"c", run="r1")
    one.commit(0, (kept, 0, 1))
    with too_slow():
        one.commit(1, (of_r1, 0, 0), run="r1")

    report = one.log.maintain()
    assert report.begun
    assert report.failed == ()
    assert report.reaped is not None
    assert [(r.ledger_id, r.reason) for r in report.reaped.condemned] == [(orphan.ledger_id, Reason.RUN_RETIRED)]
    # The zombie's task, still at work.
    with pytest.raises(LedgerFencedError):
        append_and_flush(orphan, b"y")
    assert kept.append(b"the reaper does not fence what is in the list") == 3
    kept.flush()

    while one.ahead_ms < 2 * HOUR_MS:
        one.ahead_ms += INTERVAL_MS
        report = one.log.maintain(force=True)
        assert report.reaped is not None
        assert report.reaped.failed == ()
    assert not one.exists(orphan.ledger_id)
    assert one.log.run_ledgers("app", "r0") == [kept.ledger_id]
    assert content(one.log) == [b"a", b"b", b"c"]
    with pytest.raises(LedgerRefusedError):
        one.commit(2, (orphan, 0, 0), run="r1")
    one.close(kept, orphan, of_r1)


def test_a_ledger_in_use_is_kept_over_truncation_and_goes_when_its_application_is_idle(one: LogWithClock) -> None:
    first = one.ledger(b"a", b"b", b"c")
    one.commit(0, (first, 0, 1))
    one.log.truncate(2)
    one.ahead_ms = 3 * HOUR_MS
    one.log.maintain()
    one.commit(1, (first, 2, 2))
    assert content(one.log) == [b"c"]

    one.log.truncate(3)
    one.ahead_ms += 8 * DAY_MS
    report = one.log.maintain()
    assert report.reaped is not None
    assert [r.reason for r in report.reaped.condemned] == [Reason.APPLICATION_IDLE]
    one.ahead_ms += HOUR_MS
    one.log.maintain()
    assert not one.exists(first.ledger_id)
    assert one.log.run_ledgers("app", "r0") == []
    one.close(first)


def test_retention_is_applied_and_a_log_writer_goes_on_while_its_old_ledgers_go(one: LogWithClock) -> None:
    one.log.set_policy(Policy(retention_size_bytes=1))
    with one.log.open_writer(roll_entries=10) as writer:
        writer.append_many([b"entry"] * 35)
        writer.flush()
        dropped = [s.ledger_id for s in one.log.snapshot().segments()][:-1]
        tail = one.log.snapshot().open_tail
        assert dropped
        assert tail is not None
        one.ahead_ms = HOUR_MS
        report = one.log.maintain()
        assert report.first_offset is not None
        assert report.first_offset > 0
        one.ahead_ms += HOUR_MS
        one.log.maintain()
        assert not any(map(one.exists, dropped))
        assert writer.append_many([b"entry"] * 35) == range(35, 70)
        writer.flush()
    assert {r.ledger_id for r in one.log.snapshot().segments()} <= {
        ledger_id
        for run in one.client.zookeeper.children(f"{one.log.paths.ledgers}/{WRITERS}") or ()
        for ledger_id in map(int, one.client.zookeeper.children(one.log.paths.run_at(WRITERS, run)) or ())
    }


def test_a_dry_run_changes_nothing(one: LogWithClock) -> None:
    kept, orphan, of_r1 = one.ledger(b"a"), one.ledger(b"x"), one.ledger(b"c", run="r1")
    one.commit(0, (kept, 0, 0))
    one.commit(1, (of_r1, 0, 0), run="r1")
    one.log.maintain()
    one.ahead_ms = 8 * DAY_MS
    other = one.ledger(b"z", run="r0")
    report = one.log.maintain(dry_run=True)
    assert report.reaped is not None
    assert report.reaped.deleted == (orphan.ledger_id,)
    assert [r.ledger_id for r in report.reaped.condemned] == [other.ledger_id]
    assert one.exists(orphan.ledger_id)
    other.append(b"not fenced")
    other.flush()
    one.close(kept, orphan, of_r1, other)


def test_maintenance_is_done_every_ten_minutes_by_whoever_comes_first(one: LogWithClock) -> None:
    assert one.log.maintain().begun
    other = LogStore.of(one.client).open_log(one.name, password=PASSWORD)
    report = other.maintain()
    assert (report.begun, report.reaped) == (False, None)
    assert other.maintain(force=True).begun
    one.ahead_ms = INTERVAL_MS + 60_000
    assert one.log.maintain().begun


def test_in_the_background_it_is_done_once_and_never_raises(
    one: LogWithClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, orphan, of_r1 = one.ledger(b"a"), one.ledger(b"x"), one.ledger(b"c", run="r1")
    one.commit(0, (kept, 0, 0))
    one.commit(1, (of_r1, 0, 0), run="r1")
    with caplog.at_level(logging.INFO, "bk_spark.log.background"):
        thread = start_in_background(one.log)
        assert thread is not None
        assert start_in_background(one.log) is None
        thread.join(30)
    assert "1 ledgers condemned, 0 deleted" in caplog.text
    assert start_in_background(one.log) is None

    monkeypatch.setattr(background, "_BACKGROUND", {})
    one.store.delete_log(one.name, PASSWORD)
    with caplog.at_level(logging.WARNING, "bk_spark.log"):
        thread = start_in_background(one.log)
        assert thread is not None
        thread.join(60)
    assert "was not done" in caplog.text
    one.close(kept, orphan, of_r1)


def test_l5_maintenance_of_a_log_that_was_deleted_touches_nothing(one: LogWithClock) -> None:
    kept = one.ledger(b"a")
    one.commit(0, (kept, 0, 0))
    old = one.log
    one.store.delete_log(one.name, PASSWORD)
    with pytest.raises(NoSuchLogError):
        old.maintain()
    one.log = one.store.create_log(one.name, RAW, PASSWORD)
    again = one.ledger(b"b")
    one.commit(0, (again, 0, 0))
    with pytest.raises(BookKeeperError, match="created again"):
        old.maintain(force=True)
    one.ahead_ms = 8 * DAY_MS
    one.log.maintain()
    assert content(one.log) == [b"b"]
    one.close(kept, again)


@pytest.mark.parametrize("at", [Break.BEFORE, Break.AFTER])
def test_l4_lost_replies_of_condemning_and_deleting_are_settled(
    one: LogWithClock, cluster: LocalCluster, at: Break
) -> None:
    kept, orphan, of_r1 = one.ledger(b"a"), one.ledger(b"x"), one.ledger(b"c", run="r1")
    one.commit(0, (kept, 0, 0))
    one.commit(1, (of_r1, 0, 0), run="r1")
    with ZooKeeperProxy(cluster.zookeepers[0].id) as proxy:
        shaky = ZooKeeper(proxy.address)
        shaky.start()
        try:
            store = LogStore(shaky, client=one.client, now_ms=one.now_ms)
            log = store.open_log(one.name, password=PASSWORD)
            for number in (1, 2):
                proxy.breaks[:] = [None, at]
                report = log.maintain(force=True)
                assert proxy.broken == number
                assert report.failed == ()
                assert report.reaped is not None
                assert report.reaped.failed == ()
                deleted = report.reaped.deleted
                one.ahead_ms += HOUR_MS
            assert deleted == (orphan.ledger_id,)
        finally:
            shaky.close()
    assert not one.exists(orphan.ledger_id)
    assert content(one.log) == [b"a", b"c"]
    one.close(kept, orphan, of_r1)


def test_a_ledger_whose_bookies_are_away_waits_for_them(one: LogWithClock, mended_cluster: LocalCluster) -> None:
    orphan, of_r1 = one.ledger(b"x"), one.ledger(b"c", run="r1")
    one.commit(0)
    with too_slow():
        one.commit(1, (of_r1, 0, 0), run="r1")
    one.close(orphan)
    for bookie in mended_cluster.bookies:
        bookie.kill()
    for _ in range(2):
        report = one.log.maintain(force=True)
        assert report.reaped is not None
        assert report.reaped.deleted == ()
        assert "could not be closed" in report.reaped.failed[0][1]
        one.ahead_ms += 2 * HOUR_MS
    assert one.exists(orphan.ledger_id)
    mend(mended_cluster)
    report = one.log.maintain(force=True)
    assert report.reaped is not None
    assert report.reaped.deleted == (orphan.ledger_id,)
    one.close(of_r1)


@pytest.mark.parametrize("seed", [1, 2])
def test_commits_truncation_and_a_reaper_that_waits_for_nothing_never_lose_an_entry(
    one: LogWithClock, seed: int
) -> None:
    """The reaper's clock is eight days ahead: every ledger that is not in the list at the moment is old enough."""
    hasty = LogStore(one.client.zookeeper, client=one.client, now_ms=lambda: unix_time_ms() + 8 * DAY_MS)
    one.log.set_policy(Policy(delete_grace_ms=0))
    hasty_log = hasty.open_log(one.name, password=PASSWORD)
    ends, errors = threading.Event(), []

    def reap() -> None:
        while not ends.is_set():
            try:
                hasty_log.maintain(force=True)
            except Exception as error:
                errors.append(error)

    reaper = threading.Thread(target=reap)
    reaper.start()
    committed: list[bytes] = []
    refused = 0
    batch = 0
    try:
        while batch < BATCHES_BESIDE_A_REAPER:
            payload = b"%d-%d" % (seed, batch)
            writer = one.ledger(payload)
            try:
                one.commit(batch, (writer, 0, 0))
            except LedgerRefusedError:
                refused += 1
                one.close(writer)
                continue
            committed.append(payload)
            one.close(writer)
            batch += 1
            if batch % 7 == 0:
                one.log.truncate(batch - 3)
    finally:
        ends.set()
        reaper.join()
    assert errors == []
    snapshot = one.log.snapshot()
    assert content(one.log) == committed[snapshot.first_offset :]
    one.ahead_ms = 9 * DAY_MS
    one.log.maintain(force=True)
    assert content(one.log) == committed[snapshot.first_offset :]
