"""A client whose clock is wrong, beside others, on real servers: what the policy keeps stays, and times stay true."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from unittest.mock import patch

import pytest

from bk_spark.bookie.blocking import BlockingClient, BlockingWriter
from bk_spark.log import CommitMessage, CommitRequest, EntryFormat, LedgerRange, Log, LogSettings, LogStore, Policy
from bk_spark.log.gc.reap_rules import ReapLimits
from bk_spark.log.io.blocking import BlockingLog
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import BookKeeperError, ClockDifferenceError, NoSuchLedgerError
from bk_spark.protocol.metadata.znodes import TransactionOp
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalCluster
from tests.support.clocks import DAY_MS, time_of_day

RAW = LogSettings.create(Quorum(3, 3, 2), DigestType.CRC32C, EntryFormat.RAW, b"secret")
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


class Machine:
    """A machine with a clock of its own: its client, its log, and how far its clock is ahead."""

    def __init__(self, cluster: LocalCluster, name: str = "") -> None:
        self.ahead_ms = 0
        self.client = BlockingClient(cluster.metadata_service_uri)
        store = LogStore.of(self.client)
        self.log = store.open_log(name, password=b"secret") if name else _new_log(store)

    def ledger(self, app: str, run: str, *payloads: bytes) -> BlockingWriter:
        """A ledger of a task, with these entries, still open."""
        writer = self.log.create_ledger(app, run)
        writer.append_many(list(payloads))
        writer.flush()
        return writer

    def commit(self, app: str, batch_id: int, run: str, payload: bytes) -> int:
        """The time that the batch got."""
        log = self.log
        with self.on_its_clock():
            writer = self.ledger(app, run, payload)
            written = LedgerRange(writer.ledger_id, 0, 0, 1, len(payload))
            message = CommitMessage(log.log_id, app, run, "query", batch_id, 0, (written,))
            result = log.commit(CommitRequest(log.log_id, app, run, "query", batch_id, (message,)))
            log.ledgers.close(writer.ledger_id)
        assert result.commit_time_ms is not None
        return result.commit_time_ms

    def maintain(self) -> str:
        """What was refused, in words."""
        try:
            with self.on_its_clock():
                report = self.log.maintain(force=True)
        except BookKeeperError as error:
            return str(error)
        return "; ".join(f"{part}: {why}" for part, why in report.failed)

    def on_its_clock(self) -> AbstractContextManager[None]:
        """The clock may be set inside."""
        return time_of_day(lambda: self.ahead_ms)

    def cluster_ms(self) -> int:
        """By ZooKeeper's clock, just now."""
        path = f"/clock-{uuid.uuid4().hex}"
        self.client.zookeeper.create(path)
        znode = self.client.zookeeper.get(path)
        self.client.zookeeper.delete(path)
        assert znode is not None
        return znode.mtime_ms

    def exists(self, ledger_id: int) -> bool:
        try:
            self.client.metadata(ledger_id)
        except NoSuchLedgerError:
            return False
        return True

    def close(self) -> None:
        self.client.close()


def _new_log(store: LogStore) -> Log:
    return store.create_log(f"log-{uuid.uuid4().hex[:12]}", RAW, b"secret")


@pytest.fixture
def right(cluster: LocalCluster) -> Iterator[Machine]:
    machine = Machine(cluster)
    yield machine
    machine.close()


@pytest.fixture
def wrong(cluster: LocalCluster, right: Machine) -> Iterator[Machine]:
    machine = Machine(cluster, right.log.name)
    yield machine
    machine.close()


def test_t1_a_clock_eight_days_ahead_drops_and_condemns_nothing_and_moves_no_time(
    right: Machine, wrong: Machine
) -> None:
    right.log.set_policy(Policy(retention_time_ms=7 * DAY_MS))
    right.commit("first", 0, "r0", b"a minute old")
    at_work = right.ledger("at work", "r0", b"not committed yet")

    wrong.ahead_ms = 8 * DAY_MS
    told = wrong.commit("second", 0, "r0", b"of the wrong clock")
    assert abs(told - right.cluster_ms()) < MINUTE_MS
    with wrong.on_its_clock(), pytest.raises(ClockDifferenceError, match=r"clock is 8 days ahead of ZooKeeper's"):
        wrong.log.apply_retention()
    refused = wrong.maintain()
    assert "clock is 8 days" in refused
    assert "NTP" in refused

    assert right.log.snapshot().first_offset == 0
    assert len(list(right.log.snapshot().segments())) == 2
    at_work.append(b"is not fenced")
    at_work.flush()
    last = right.commit("first", 1, "r0", b"later")
    assert told <= last <= right.cluster_ms()
    right.log.ledgers.abandon(at_work.ledger_id)


@pytest.mark.parametrize("jumps_midway", [False, True])
def test_t2_a_clock_eight_days_behind_shortens_no_grace_and_others_go_on(
    right: Machine, wrong: Machine, jumps_midway: bool
) -> None:
    orphan = right.ledger("app", "r0", b"left over")
    right.commit("app", 0, "r0", b"a")
    right.commit("app", 1, "r1", b"b")

    if jumps_midway:
        transaction = wrong.log.zookeeper.transaction

        def jump(operations: Sequence[TransactionOp]) -> None:
            wrong.ahead_ms = -8 * DAY_MS
            transaction(operations)

        with patch.object(wrong.log.zookeeper, "transaction", jump):
            wrong.maintain()
        assert wrong.ahead_ms
    else:
        wrong.ahead_ms = -8 * DAY_MS
        assert "clock is 8 days" in wrong.maintain()
    told = wrong.commit("second", 0, "r0", b"of the wrong clock")
    assert abs(told - right.cluster_ms()) < MINUTE_MS

    for _ in range(2):
        right.maintain()
        assert right.exists(orphan.ledger_id), "deleted before its grace was over"
    later = LogStore.of(right.client, now_ms=lambda: right.cluster_ms() + HOUR_MS)
    report = later.open_log(right.log.name, password=b"secret").maintain(force=True)
    assert report.reaped is not None
    assert report.reaped.deleted == (orphan.ledger_id,)
    assert not right.exists(orphan.ledger_id)
    right.log.ledgers.abandon(orphan.ledger_id)


@pytest.mark.parametrize("ahead_ms", [-8 * DAY_MS, 0, 8 * DAY_MS])
def test_the_difference_of_the_clocks_is_measured(wrong: Machine, ahead_ms: int) -> None:
    # Nothing is there yet.
    store = LogStore.of(wrong.client, f"/clocks-{uuid.uuid4().hex}/logs")
    wrong.ahead_ms = ahead_ms
    with wrong.on_its_clock():
        for _ in range(2):
            difference = store.clock_difference()
            assert difference.at_most_ms - difference.at_least_ms < MINUTE_MS / 2
            assert abs(difference.at_least_ms - ahead_ms) < MINUTE_MS / 2
            assert difference.is_small == (not ahead_ms)
    assert store.list_logs() == []


def test_a_policy_that_is_set_while_retention_is_applied_counts(right: Machine) -> None:
    right.log.set_policy(Policy(retention_size_bytes=1))
    for batch_id in range(3):
        right.commit("app", batch_id, "r0", b"row")
    snapshot = BlockingLog.snapshot

    def slow_snapshot(log: BlockingLog) -> object:
        found = snapshot(log)
        right.log.set_policy(Policy())
        return found

    with patch.object(BlockingLog, "snapshot", slow_snapshot):
        assert right.log.apply_retention() == 0
    assert len(list(right.log.snapshot().segments())) == 3


def test_how_long_ledgers_are_kept_is_the_logs_to_say_not_of_who_looks_after_it(right: Machine, wrong: Machine) -> None:
    at_work = right.ledger("at work", "r0", b"not committed yet")
    right.commit("app", 0, "r0", b"a")
    hasty = ReapLimits(orphan_retention_ms=0, delete_grace_ms=0)
    report = wrong.log.maintain(force=True, limits=hasty)
    assert report.reaped is not None
    assert report.reaped.condemned == report.reaped.deleted == ()
    # Who owns the log may say so; then it holds for everybody.
    right.log.set_policy(Policy(orphan_retention_ms=0))
    report = wrong.log.maintain(force=True)
    assert report.reaped is not None
    assert [one.ledger_id for one in report.reaped.condemned] == [at_work.ledger_id]
    right.log.ledgers.abandon(at_work.ledger_id)
