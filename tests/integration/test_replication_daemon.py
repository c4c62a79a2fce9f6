"""The daemon of self-healing on a real ZooKeeper. Bookies are registrations, and repairs are scripted here."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.replication.auditor_election import AuditorElection
from bk_spark.bookie.replication.replication_switches import ReplicationSwitches
from bk_spark.bookie.replication.under_replication_store import LockedLedger, UnderReplicationStore
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, Segment
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.metadata.replication_notes import (
    RepairFailure,
    audited_delay_path,
    decode_audited_delay,
    reason_path,
)
from bk_spark.protocol.metadata.under_replication import Mark
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.replication.actions import (
    FragmentProblem,
    NothingBad,
    Repaired,
    RepairResult,
    Unrepairable,
)
from bookie_server.local import LocalCluster
from bookie_server.metrics.exposition import exposition
from bookie_server.metrics.metrics import MetricsRegistry
from bookie_server.replication.access import ReplicationAccess
from bookie_server.replication.auditing.auditor import AuditorSettings
from bookie_server.replication.daemon import ReplicationDaemon, ReplicationSettings
from bookie_server.replication.replication_metrics import ReplicationMetrics
from bookie_server.replication.worker import WorkerSettings
from bookie_server.replication.worker_performer import RepairLedger
from tests.support.replication_model import ledger
from tests.support.zookeeper_sessions import expire

BOOKIES = ("b1:1", "b2:1", "b3:1")


class Cluster:
    """Registrations, ledgers, and daemons whose repairs return ``result`` for each ledger."""

    def __init__(self, zk_only: LocalCluster, zookeeper: ZooKeeper, root: str) -> None:
        self.uri = MetadataServiceUri(zk_only.zookeepers[0].id, root, "hierarchical")
        self.zk, self.root = zookeeper, root
        self.store = UnderReplicationStore(zookeeper, root)
        self.switches = ReplicationSwitches(zookeeper, root)
        self.election = AuditorElection(zookeeper, root)
        self.ledgers = LedgerStore(zookeeper, self.uri)
        self.result: RepairResult | None = NothingBad()
        self.tried: list[int] = []
        self.sessions: list[ReplicationAccess] = []
        self.cancelled: list[int] = []
        self.registry = MetricsRegistry()
        for bookie in BOOKIES:
            zookeeper.create(f"{root}/available/{bookie}", make_parents=True)
            zookeeper.create(f"{root}/cookies/{bookie}", make_parents=True)

    def make_repair(self, access: ReplicationAccess) -> RepairLedger:
        self.sessions.append(access)

        async def repair(ledger_id: int, mark: Mark, unreadable: frozenset[int], found: LockedLedger) -> RepairResult:
            self.tried.append(ledger_id)
            if self.result is None:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    self.cancelled.append(ledger_id)
                    raise
            assert self.result is not None
            return self.result

        return repair

    @contextlib.asynccontextmanager
    async def daemon(self, bookie_id: str = "b1:1", ledgers_interval_ms: int = 0) -> AsyncIterator[ReplicationDaemon]:
        settings = ReplicationSettings(
            self.uri,
            bookie_id,
            auditor=AuditorSettings(ledgers_interval_ms=ledgers_interval_ms),
            worker=WorkerSettings(at_once=4, backoff_ms=100, longest_pause_ms=3_200),
        )
        self.registry = MetricsRegistry()
        daemon = ReplicationDaemon(settings, self.make_repair, ReplicationMetrics(self.registry))
        daemon.start()
        try:
            yield daemon
        finally:
            await daemon.stop()

    def metrics(self) -> dict[str, float]:
        """The metrics of the last daemon."""
        self.registry.sample_gauges()
        lines = exposition(self.registry.families()).splitlines()
        return {name: float(value) for name, value in (each.rsplit(" ", 1) for each in lines if each[0] != "#")}

    async def lose(self, bookie: str) -> None:
        await asyncio.to_thread(self.zk.delete, f"{self.root}/available/{bookie}")

    def make_ledgers(self, *bookies: str, count: int = 1) -> list[int]:
        return [self.ledgers.create(ledger(*bookies, closed=True))[0] for _ in range(count)]

    def marks(self) -> dict[int, Mark]:
        return {each: mark for page in self.store.marks() for each, mark in page.items()}

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not await asyncio.to_thread(condition):
                await asyncio.sleep(0.05)


@pytest.fixture
def cluster(zk_only: LocalCluster, zookeeper: ZooKeeper, ledgers_root: str) -> Cluster:
    return Cluster(zk_only, zookeeper, ledgers_root)


def test_a_note_of_another_release_does_not_hide_that_an_audit_was_asked_for(cluster: Cluster) -> None:
    note = audited_delay_path(cluster.root)

    async def run() -> None:
        (ledger_id,) = cluster.make_ledgers("b1:1", "b2:1")
        cluster.switches.set_recovery_delay(86_400)
        cluster.zk.create(note, b"bk_spark delay 2\nanything\n", make_parents=True)
        cluster.zk.delete(f"{cluster.root}/available/b2:1")
        async with cluster.daemon() as daemon:
            await cluster.until(lambda: ledger_id in cluster.tried)
            await cluster.until(lambda: daemon.auditor is not None and bool(daemon.auditor.counters.reports))
        found = cluster.zk.get(note)
        assert found is not None
        assert decode_audited_delay(found.data)[0] == 86_400_000

    asyncio.run(run())


def test_a_lost_bookies_ledgers_are_marked_and_repaired(cluster: Cluster) -> None:
    async def run() -> None:
        wanted, others = cluster.make_ledgers("b1:1", "b2:1", count=40), cluster.make_ledgers("b1:1", "b3:1")
        async with cluster.daemon() as daemon:
            await cluster.until(lambda: daemon.auditor is not None and bool(daemon.auditor.counters.reports))
            assert daemon.auditor is not None
            assert cluster.marks() == {}
            await cluster.lose("b2:1")
            await cluster.until(lambda: set(cluster.tried) == set(wanted))
            await cluster.until(lambda: not cluster.marks() and not cluster.store.locks())
            counters = daemon.auditor.counters
            # A scan counts when it ends, which may be after the repairs.
            await cluster.until(lambda: counters.ledgers_marked == 40)
            assert daemon.worker is not None
            assert daemon.worker.counters.repaired == 40
            assert not set(others) & set(cluster.tried)
        assert not cluster.election.votes()
        assert cluster.zk.children(f"{cluster.root}/underreplication/workers") == []

    asyncio.run(run())


def test_an_audit_that_was_asked_for_while_no_auditor_ran_is_done_by_the_next(cluster: Cluster) -> None:
    async def run() -> None:
        (ledger_id,) = cluster.make_ledgers("b1:1", "b2:1")
        cluster.switches.set_recovery_delay(3600)
        async with cluster.daemon() as daemon:
            await cluster.until(lambda: daemon.auditor is not None and bool(daemon.auditor.counters.reports))
        await cluster.lose("b2:1")
        await asyncio.to_thread(cluster.switches.trigger_audit)
        async with cluster.daemon():
            await cluster.until(lambda: ledger_id in cluster.tried)

    asyncio.run(run())


def test_a_daemon_without_work_asks_zookeeper_nothing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def noted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(zk: ZooKeeper, *args: Any, **named: Any) -> Any:
            if cluster.sessions and zk is cluster.sessions[-1].zk:
                asked.append(f"{real.__name__} {args[:1]}")
            return real(zk, *args, **named)

        return call

    for name in ("get", "get_many", "exists", "children", "sync", "create", "set", "delete", "transaction"):
        monkeypatch.setattr(ZooKeeper, name, noted(getattr(ZooKeeper, name)))

    async def run() -> None:
        (wanted,) = cluster.make_ledgers("b1:1", "b2:1")
        async with cluster.daemon() as daemon:
            await cluster.until(lambda: daemon.auditor is not None and bool(daemon.auditor.counters.reports))
            for _ in range(2):
                cluster.tried.clear()
                await asyncio.to_thread(cluster.store.mark, wanted, [])
                await cluster.until(lambda: cluster.tried == [wanted] and not any(cluster.store.marks()))
                deadline = time.monotonic() + 60
                asked.append("something may follow the repair")
                while asked:
                    assert time.monotonic() < deadline, asked
                    asked.clear()
                    # Ten times as long as the pause between two looks at the marks.
                    await asyncio.sleep(1)

    asyncio.run(run())


def test_what_cannot_be_repaired_is_tried_again_with_its_reason_stored(cluster: Cluster) -> None:
    async def run() -> None:
        (lost,) = cluster.make_ledgers("b1:1", "b2:1")
        cluster.result = Unrepairable("entry 3 is lost")
        async with cluster.daemon():
            await cluster.lose("b2:1")
            await cluster.until(lambda: len(cluster.tried) >= 3)
            found = cluster.zk.get(reason_path(cluster.root, lost))
            assert found is not None
            failure = RepairFailure.decode(found.data)
            assert failure.reason == "entry 3 is lost"
            assert failure.attempts >= 2
            assert list(cluster.marks()) == [lost]
            assert cluster.marks()[lost].missing == ("b2:1",)
            cluster.result = NothingBad()
            await cluster.until(lambda: not cluster.marks() and not cluster.store.locks())
            assert cluster.zk.get(reason_path(cluster.root, lost)) is None

    asyncio.run(run())


def test_nothing_is_begun_while_replication_is_disabled(cluster: Cluster) -> None:
    async def run() -> None:
        lost = cluster.make_ledgers("b1:1", "b2:1", count=3)
        cluster.result = None
        async with cluster.daemon() as daemon:
            await cluster.lose("b2:1")
            await cluster.until(lambda: len(cluster.tried) == 3)
            await asyncio.to_thread(cluster.switches.disable)
            await cluster.until(lambda: not cluster.store.locks())
            assert sorted(cluster.cancelled) == sorted(lost)
            assert sorted(cluster.marks()) == sorted(lost)
            assert daemon.worker is not None
            assert daemon.worker.repairing == ()
            cluster.result = NothingBad()
            await asyncio.to_thread(cluster.switches.enable)
            await cluster.until(lambda: not cluster.marks())

    asyncio.run(run())


def test_r4_another_daemon_audits_when_the_auditors_session_ends(cluster: Cluster) -> None:
    async def run() -> None:
        lost = cluster.make_ledgers("b1:1", "b2:1", count=5)
        async with cluster.daemon("b1:1") as first:
            await cluster.until(lambda: first.auditor is not None)
            async with cluster.daemon("b3:1") as second:
                await cluster.until(lambda: second.worker is not None and len(cluster.election.votes()) == 2)
                assert second.auditor is None
                await asyncio.to_thread(expire, cluster.sessions[0].zk, comes_back=False)
                await cluster.until(lambda: second.auditor is not None)
                await cluster.until(lambda: len(cluster.election.votes()) == 2 and first.worker is not None)
                assert first.auditor is None
                await cluster.lose("b2:1")
                await cluster.until(lambda: set(cluster.tried) == set(lost) and not cluster.marks())
                auditor = await asyncio.to_thread(cluster.election.auditor)
                assert auditor is not None
                assert auditor.bookie_id == "b3:1"

    asyncio.run(run())


def test_metrics_survive_the_session_and_its_auditor(cluster: Cluster) -> None:
    async def run() -> None:
        first, second = cluster.make_ledgers("b1:1", "b2:1", count=5), cluster.make_ledgers("b1:1", "b3:1", count=3)
        cluster.result = Repaired(fragments=1, entries=10, size_bytes=1000)

        def shows(name: str, value: float) -> Callable[[], bool]:
            return lambda: cluster.metrics()[name] >= value

        repaired = "replication_worker_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED"
        async with cluster.daemon() as daemon:
            assert cluster.metrics()["auditor_elected"] == 0
            await cluster.until(shows('auditor_AUDIT_BOOKIES_TIME_count{success="true"}', 1))
            await cluster.lose("b2:1")
            await cluster.until(shows(repaired, 5))
            await cluster.until(shows('auditor_NUM_UNDER_REPLICATED_LEDGERS_sum{success="true"}', 5))
            assert cluster.metrics()["auditor_lost_bookies"] == 1
            await asyncio.to_thread(cluster.zk.create, f"{cluster.root}/available/b2:1")
            await asyncio.to_thread(expire, cluster.sessions[0].zk, comes_back=False)
            await cluster.until(lambda: len(cluster.sessions) == 2 and daemon.auditor is not None)
            found = cluster.metrics()
            assert (found[repaired], found["auditor_election_attempts"], found["auditor_elected"]) == (5, 2, 1)
            problem = FragmentProblem(0, 9, ("b3:1",), "lost", (3, 4))
            cluster.result = Unrepairable("lost", (problem,))
            await cluster.lose("b3:1")
            await cluster.until(shows("replication_worker_NUM_DEFER_LEDGER_LOCK_RELEASE_OF_FAILED_LEDGER", 3))
            found = cluster.metrics()
            assert found[repaired] == 5
            assert found['replication_worker_rereplicate_count{success="true"}'] == 5
            failed = found['replication_worker_rereplicate_count{success="false"}']
            assert failed >= 3
            assert found["replication_worker_NUM_ENTRIES_UNABLE_TO_READ_FOR_REPLICATION"] == 2 * failed
            assert set(cluster.tried) == {*first, *second}

    asyncio.run(run())


def test_metrics_tell_how_few_copies_are_left_and_that_repairs_are_disabled(cluster: Cluster) -> None:
    none, below_ack, below_write = (
        f"auditor_NUM_LEDGERS_HAVING_{name}_OF_AN_ENTRY"
        for name in ("NO_REPLICA", "LESS_THAN_AQ_REPLICAS", "LESS_THAN_WQ_REPLICAS")
    )

    def make(ack_quorum_size: int, *bookies: str) -> int:
        quorum = Quorum(len(bookies), len(bookies), ack_quorum_size)
        return cluster.ledgers.create(LedgerMetadata(quorum, (Segment(0, bookies),)).closed(9, 90))[0]

    async def run() -> None:
        make(1, "b2:1")
        make(2, "b1:1", "b2:1")
        for _ in range(3):
            make(1, "b2:1", "b3:1")
        make(2, "b1:1", "b3:1")
        cluster.result = Unrepairable("the marks stay")
        async with cluster.daemon() as daemon:
            await cluster.until(lambda: daemon.auditor is not None and bool(daemon.auditor.counters.reports))
            assert [cluster.metrics()[each] for each in (none, below_ack, below_write)] == [0, 0, 0]
            await cluster.lose("b2:1")
            await cluster.until(lambda: cluster.metrics()[none] == 1)
            assert [cluster.metrics()[each] for each in (none, below_ack, below_write)] == [1, 1, 3]
            assert cluster.metrics()["replication_worker_disabled"] == 0
            await asyncio.to_thread(cluster.switches.disable)
            await cluster.until(lambda: cluster.metrics()["replication_worker_disabled"] == 1)
            # The auditor stays the auditor.
            assert cluster.metrics()["auditor_elected"] == 1
            cluster.result = NothingBad()
            await asyncio.to_thread(cluster.switches.enable)
            # They count until no ledger is marked.
            await cluster.until(lambda: cluster.metrics()[none] == 0)
            assert not cluster.marks()
            found = cluster.metrics()
            assert [found[each] for each in (below_ack, below_write)] == [0, 0]
            assert found["replication_worker_disabled"] == 0

    asyncio.run(run())


def test_a_triggered_audit_finds_a_bookie_that_is_waited_for(cluster: Cluster) -> None:
    async def run() -> None:
        (lost,) = cluster.make_ledgers("b1:1", "b2:1")
        await asyncio.to_thread(cluster.switches.set_recovery_delay, 3_600)
        async with cluster.daemon() as daemon:
            await cluster.until(lambda: daemon.auditor is not None and bool(daemon.auditor.counters.reports))
            await cluster.lose("b2:1")
            await cluster.until(lambda: daemon.auditor is not None and daemon.auditor.counters.audits_delayed == 1)
            assert not cluster.tried
            await asyncio.to_thread(cluster.switches.trigger_audit)
            await cluster.until(lambda: cluster.tried == [lost])

    asyncio.run(run())


def test_a_check_of_all_ledgers_waits_for_a_lost_bookie_and_marks_what_others_lost(cluster: Cluster) -> None:
    checks = 'auditor_CHECK_ALL_LEDGERS_TIME_count{success="true"}'

    async def run() -> None:
        waited, lost = cluster.make_ledgers("b1:1", "b2:1") + cluster.make_ledgers("gone:1", "b2:1")
        await asyncio.to_thread(cluster.switches.set_recovery_delay, 3_600)
        cluster.result = Unrepairable("the mark stays")
        async with cluster.daemon(ledgers_interval_ms=200) as daemon:
            await cluster.until(lambda: daemon.auditor is not None and bool(daemon.auditor.counters.reports))
            await cluster.lose("b2:1")
            await cluster.until(lambda: cluster.metrics()["auditor_NUM_BOOKIE_AUDITS_DELAYED"] == 1)
            # One check may have begun before. The next one knows.
            ended = cluster.metrics()[checks]
            await cluster.until(lambda: cluster.metrics()[checks] >= ended + 2)
            marks = cluster.marks()
            assert {each: mark.missing for each, mark in marks.items()} == {lost: ("gone:1",)}
            await asyncio.to_thread(cluster.switches.trigger_audit)
            await cluster.until(lambda: waited in cluster.marks())

    asyncio.run(run())
