"""Ledgers are repaired on real bookies: one is killed for good, and afterwards each entry is read from each bookie of
its write set and compared, byte for byte, with what its writer stored."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.cluster_session import ClusterSession
from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.reading.read_access import ReadAccess
from bk_spark.bookie.replication.repair_performer import LedgerRepairs, copy_limits_of
from bk_spark.bookie.replication.stored_adds import StoredAdds
from bk_spark.bookie.replication.under_replication_store import UnderReplicationStore
from bk_spark.protocol.codes import Code, DigestType
from bk_spark.protocol.entries.digest import master_key
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.replication.actions import (
    LockLost,
    NothingBad,
    Repaired,
    RepairResult,
    StoredEntries,
    Unrepairable,
)
from bk_spark.protocol.replication.copying.copy_limits import CopyLimits
from bk_spark.protocol.replication.copying.copy_pace import CopyPace, CopyRequest
from bk_spark.protocol.replication.repair_settings import RepairSettings
from bookie_server.local import LocalCluster
from tests.support.registrations import kill_and_forget
from tests.support.zookeeper_sessions import note_requests

CONFIG = ClientConfig(add_timeout_ms=60_000, read_timeout_ms=60_000, connect_timeout_ms=60_000)
V3 = replace(CONFIG, use_v2_wire_protocol=False)
GRACE_MS = 300


@pytest.fixture
def cluster(cluster_of_six: LocalCluster) -> LocalCluster:
    return cluster_of_six


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[BlockingClient]:
    with BlockingClient(cluster.metadata_service_uri, CONFIG) as client:
        yield client


@dataclass
class Worker:
    """What a replication worker has in one session with ZooKeeper."""

    session: ClusterSession
    store: UnderReplicationStore
    repairs: LedgerRepairs
    proof: str

    @classmethod
    async def start(cls, cluster: LocalCluster, config: ClientConfig = CONFIG, pace: CopyPace | None = None) -> Worker:
        uri = MetadataServiceUri.parse(cluster.metadata_service_uri)
        session = await asyncio.to_thread(ClusterSession.connect, uri, config, None)
        store = UnderReplicationStore(session.zookeeper, uri.root)
        store.prepare()
        proof = store.begin_worker("test")
        reads = ReadAccess.of(session.services, session.pool, session.pool_v3, config)
        settings = RepairSettings(grace_ms=GRACE_MS, copy=copy_limits_of(reads))
        ledgers = LedgerStore(session.zookeeper, uri)
        return cls(session, store, LedgerRepairs(session, reads, ledgers, proof, settings, pace=pace), proof)

    async def repair(self, ledger_id: int, *missing: str) -> RepairResult:
        """Mark, lock, repair, and finish or release."""
        self.store.mark(ledger_id, missing)
        result = await self.repair_marked(ledger_id)
        if isinstance(result, Repaired | NothingBad):
            assert self.store.read_mark(ledger_id) is None
        return result

    async def repair_marked(self, ledger_id: int) -> RepairResult:
        """Lock, repair, and finish or release, with the calls of the daemon's worker."""
        assert self.store.lock(ledger_id, proof=self.proof)
        found = self.store.read_locked(ledger_id, self.repairs.ledgers.path_of(ledger_id))
        assert found.mark is not None
        result = await self.repairs(ledger_id, found.mark, found=found)
        if isinstance(result, Repaired | NothingBad):
            self.store.forget_reason(ledger_id)
            assert self.store.finish(ledger_id, found.mark.version, proof=self.proof)
        else:
            self.store.release(ledger_id)
        return result

    async def stored(self, ledger_id: int, metadata: LedgerMetadata, last: int) -> dict[tuple[int, str], bytes]:
        """Every entry as each bookie of its write set has it. b"" if it has none, or cannot be asked."""
        found: dict[tuple[int, str], bytes] = {}
        wanted: dict[str, list[int]] = {}
        for entry_id in range(last + 1):
            for index in metadata.quorum.write_set(entry_id):
                wanted.setdefault(metadata.segment_of(entry_id).ensemble[index], []).append(entry_id)
        for bookie_id, entry_ids in wanted.items():
            for entry_id in entry_ids:
                found[entry_id, bookie_id] = b""
            try:
                connection = await self.session.pool.get(bookie_id)
                for entry_id in entry_ids:
                    answer = (await connection.read(ledger_id, range(entry_id, entry_id + 1)))[entry_id]
                    if answer.code is Code.OK:
                        found[entry_id, bookie_id] = bytes(answer.stored)
            except BookKeeperError:
                continue
        return found

    async def assert_whole(self, ledger_id: int, before: dict[tuple[int, str], bytes]) -> None:
        metadata = self.repairs.ledgers.read_latest(ledger_id).metadata
        original = {entry_id: stored for (entry_id, _), stored in before.items() if stored}
        after = await self.stored(ledger_id, metadata, metadata.last_entry_id)
        assert {entry_id for entry_id, _ in after} == set(range(metadata.last_entry_id + 1))
        for (entry_id, bookie_id), stored in after.items():
            assert stored == original[entry_id], f"entry {entry_id} at {bookie_id}"

    async def close(self) -> None:
        await self.session.close()


class RecordedPace(CopyPace):
    """A pace that notes what it is asked and told."""

    def __init__(self, least_bytes_per_s: float) -> None:
        super().__init__(least_bytes_per_s)
        self.taken_bytes = 0
        self.requests: list[CopyRequest] = []

    def take(self, size_bytes: int, now_ms: float) -> float:
        self.taken_bytes += size_bytes
        return super().take(size_bytes, now_ms)

    def settle(self, size_bytes: int) -> None:
        self.taken_bytes += size_bytes
        super().settle(size_bytes)

    def answered(self, request: CopyRequest, took_ms: float, now_ms: float) -> None:
        assert took_ms > 0
        self.requests.append(request)
        super().answered(request, took_ms, now_ms)


def kill(cluster: LocalCluster, client: BlockingClient, bookie_id: str) -> None:
    """Kill a bookie, and wait until the client knows that its registration is gone."""
    kill_and_forget(cluster, next(one for one in cluster.bookies if one.id == bookie_id))
    deadline = time.monotonic() + 60
    while bookie_id in {one.bookie_id for one in client.bookies()}:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def write(
    client: BlockingClient, cluster: LocalCluster, quorum: Quorum, digest_type: DigestType = DigestType.CRC32C
) -> tuple[int, LedgerMetadata]:
    """A closed ledger of two fragments, with entries of different sizes, and a password."""
    writer = client.create(quorum=quorum, digest_type=digest_type, password=b"secret")
    writer.append_many([b"%d" % number * (number % 7 * 100) for number in range(300)])
    writer.flush()
    victim = writer.metadata.last_segment.ensemble[0]
    next(one for one in cluster.bookies if one.id == victim).kill()
    writer.append_many([b"x" * 1000] * 300)
    writer.flush()
    metadata = writer.close()
    assert len(metadata.segments) == 2
    return writer.ledger_id, metadata


def write_closed(client: BlockingClient) -> tuple[int, LedgerMetadata]:
    """A closed ledger of one entry at four of the six bookies."""
    writer = client.create(quorum=Quorum(4, 4, 4), password=b"secret")
    writer.append(b"entry")
    return writer.ledger_id, writer.close()


@pytest.mark.parametrize("config", [CONFIG, V3], ids=["v2", "v3"])
@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(4, 2, 2)], ids=str)
def test_r9_a_ledger_of_several_fragments_is_repaired(
    cluster: LocalCluster, client: BlockingClient, config: ClientConfig, quorum: Quorum
) -> None:
    ledger_id, metadata = write(client, cluster, quorum, DigestType.HMAC if config is V3 else DigestType.CRC32C)
    # The bookie that the writer replaced, and one that is in both fragments.
    first = metadata.segments[0].ensemble[0]
    kill(cluster, client, first)
    victims = [first]
    pace = RecordedPace(1e6)
    second = metadata.segments[1].ensemble[1] if quorum.ack_quorum_size < quorum.write_quorum_size else None

    async def play() -> None:
        worker = await Worker.start(cluster, config, pace)
        try:
            before = await worker.stored(ledger_id, metadata, metadata.last_entry_id)
            # Entries on their way when the first bookie died have fewer copies. One more may be lost of those that
            # have three.
            if second is not None and all(stored for (_, bookie_id), stored in before.items() if bookie_id != first):
                victims.append(second)
                await asyncio.to_thread(kill, cluster, client, second)
            result = await worker.repair(ledger_id, *victims)
            assert isinstance(result, Repaired)
            await worker.assert_whole(ledger_id, before)
            repaired = worker.repairs.ledgers.read_latest(ledger_id).metadata
            for segment, old in zip(repaired.segments, metadata.segments, strict=True):
                assert not set(segment.ensemble) & set(victims)
                assert segment.first_entry_id == old.first_entry_id
            copied = sum(bookie_id in victims for entry_id, bookie_id in before)
            assert result.entries == copied
            # The pace was asked once for each entry, however many bookies got it, and has heard of each answer.
            once = len({entry_id for entry_id, bookie_id in before if bookie_id in victims})
            taken_bytes = pace.taken_bytes - result.fragments * CopyLimits().fragment_bytes
            assert result.size_bytes / len(victims) <= taken_bytes <= result.size_bytes
            assert (taken_bytes < result.size_bytes) == (once < copied)
            assert sum(request.entries for request in pace.requests if request.write) == copied
            assert sum(request.size_bytes for request in pace.requests if request.write) == result.size_bytes
            assert sum(request.size_bytes for request in pace.requests if not request.write) > 0
            assert not {request.bookie_id for request in pace.requests} & set(victims)
            assert await worker.repair(ledger_id, *victims) == NothingBad()
        finally:
            await worker.close()

    asyncio.run(play())
    reader = client.open_for_reading(ledger_id, b"secret")
    assert len(reader.read(0, metadata.last_entry_id)) == 600


def test_r5_r12_an_open_ledger_with_a_silent_writer_is_fenced_and_repaired(
    cluster: LocalCluster, client: BlockingClient
) -> None:
    writer = client.create(quorum=Quorum(3, 3, 2), password=b"secret")
    writer.append_many([b"entry %d" % number for number in range(50)])
    writer.flush()
    metadata = writer.metadata
    victim = metadata.last_segment.ensemble[1]
    kill(cluster, client, victim)

    async def play() -> None:
        worker = await Worker.start(cluster)
        try:
            before = await worker.stored(writer.ledger_id, metadata, 49)
            result = await worker.repair(writer.ledger_id, victim)
            assert isinstance(result, Repaired)
            assert result.recovered
            await worker.assert_whole(writer.ledger_id, before)
        finally:
            await worker.close()

    asyncio.run(play())
    closed = client.metadata(writer.ledger_id)
    assert closed.state is LedgerState.CLOSED
    assert closed.last_entry_id == 49
    assert victim not in closed.last_segment.ensemble
    writer.append(b"one more")
    with pytest.raises(BookKeeperError):
        writer.flush()
    writer.abandon()


def test_r5_a_writer_that_goes_on_is_not_fenced(cluster: LocalCluster, client: BlockingClient) -> None:
    """It replaces the lost bookie itself. Then its first fragment is repaired under its hands, and it closes."""
    writer = client.create(quorum=Quorum(3, 3, 2), password=b"secret")
    writer.append_many([b"entry %d" % number for number in range(50)])
    writer.flush()
    victim = writer.metadata.last_segment.ensemble[1]
    kill(cluster, client, victim)
    writer.append_many([b"entry %d" % number for number in range(50, 100)])
    writer.flush()
    metadata = writer.metadata
    assert victim not in metadata.last_segment.ensemble

    async def repair() -> None:
        worker = await Worker.start(cluster)
        try:
            before = await worker.stored(writer.ledger_id, metadata, 99)
            result = await worker.repair(writer.ledger_id, victim)
            assert isinstance(result, Repaired)
            assert not result.recovered
            writer.append_many([b"entry %d" % number for number in range(100, 150)])
            assert writer.flush() == 149
            closed = await asyncio.to_thread(writer.close)
            assert len(closed.segments) == 2
            assert victim not in closed.segments[0].ensemble
            whole = {**before, **await worker.stored(writer.ledger_id, closed, 149)}
            await worker.assert_whole(writer.ledger_id, whole)
        finally:
            await worker.close()

    asyncio.run(repair())


def test_r3_a_worker_whose_session_ended_changes_nothing(cluster: LocalCluster, client: BlockingClient) -> None:
    ledger_id, metadata = write(client, cluster, Quorum(3, 3, 2))
    victim = metadata.segments[0].ensemble[0]
    kill(cluster, client, victim)

    async def play() -> None:
        worker, other = await Worker.start(cluster), await Worker.start(cluster)
        try:
            before = await worker.stored(ledger_id, metadata, metadata.last_entry_id)

            async def lose_the_session(entries: int, size_bytes: int) -> None:
                if other.store.zk.exists(worker.proof) is not None:
                    other.store.zk.delete(worker.proof)

            # The copies are made, and the proof is gone before the compare-and-set.
            worker.repairs.throttle = lose_the_session
            assert await worker.repair(ledger_id, victim) == LockLost()
            assert worker.repairs.ledgers.read_latest(ledger_id).metadata.segments == metadata.segments
            assert isinstance(await other.repair(ledger_id, victim), Repaired)
            await other.assert_whole(ledger_id, before)
        finally:
            await worker.close()
            await other.close()

    asyncio.run(play())


def test_without_enough_bookies_the_ledger_waits_with_a_reason(cluster: LocalCluster, client: BlockingClient) -> None:
    writer = client.create(quorum=Quorum(6, 6, 4), password=b"secret")
    writer.append_many([b"entry"] * 20)
    writer.flush()
    metadata = writer.close()
    victim = metadata.last_segment.ensemble[2]
    kill(cluster, client, victim)

    async def play() -> None:
        worker = await Worker.start(cluster)
        try:
            result = await worker.repair(writer.ledger_id, victim)
            assert isinstance(result, Unrepairable)
            assert "no writable bookie is left" in result.reason
            assert b"secret" not in repr(result).encode()
            mark = worker.store.read_mark(writer.ledger_id)
            assert mark is not None
            assert mark.missing == (victim,)
            assert not worker.store.locks()
        finally:
            await worker.close()

    asyncio.run(play())


def test_what_a_repair_asks_of_zookeeper(
    cluster: LocalCluster, client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, one), (second, other) = write_closed(client), write_closed(client)
    victim = min(set(one.segments[0].ensemble).intersection(other.segments[0].ensemble))
    kill(cluster, client, victim)

    async def play() -> list[str]:
        worker = await Worker.start(cluster)
        try:
            # It learns which bookies there are, and watches them.
            await worker.session.services.bookies()
            await worker.repair(first, victim)
            worker.store.mark(second, [victim])
            # A neighbour stays marked, so the directories above both stay.
            worker.store.mark(second + 1, [victim])
            asked = note_requests(worker.session.zookeeper, monkeypatch)
            assert isinstance(await worker.repair_marked(second), Repaired)
            return asked
        finally:
            monkeypatch.undo()
            assert worker.store.lock(second + 1, proof=worker.proof)
            worker.store.finish(second + 1, 0, proof=worker.proof)
            await worker.close()

    lock, replacement, end = ["Transaction", *["GetData"] * 3], ["Exists", "Transaction"], ["Transaction", "Exists"]
    assert asyncio.run(play()) == lock + replacement + end


def test_a_cancelled_repair_leaves_nothing_under_way(cluster: LocalCluster, client: BlockingClient) -> None:
    ledger_id, metadata = write(client, cluster, Quorum(3, 3, 2))
    victim = metadata.segments[0].ensemble[0]
    kill(cluster, client, victim)

    async def play() -> None:
        worker = await Worker.start(cluster)
        try:
            copying = asyncio.Event()

            async def stall(entries: int, size_bytes: int) -> None:
                copying.set()
                await asyncio.Event().wait()

            worker.repairs.throttle = stall
            repair = asyncio.ensure_future(worker.repair(ledger_id, victim))
            await copying.wait()
            repair.cancel()
            with pytest.raises(asyncio.CancelledError):
                await repair
            assert worker.repairs.ledgers.read_latest(ledger_id).metadata.segments == metadata.segments
        finally:
            await worker.close()

    asyncio.run(play())


def test_repairs_share_connections_one_after_another(cluster: LocalCluster, client: BlockingClient) -> None:
    written = [write_closed(client) for _ in range(2)]
    first, second = (metadata.last_segment.ensemble for _, metadata in written)
    victim = next(bookie_id for bookie_id in first if bookie_id in second)
    kill(cluster, client, victim)
    pools = set()

    async def play() -> None:
        worker = await Worker.start(cluster)
        try:
            for ledger_id, metadata in written:
                assert isinstance(await worker.repair(ledger_id, victim), Repaired)
                repaired = worker.repairs.ledgers.read_latest(ledger_id).metadata
                (target,) = set(repaired.last_segment.ensemble) - set(metadata.last_segment.ensemble)
                pool, other = worker.session.take_pool(), worker.session.take_pool()
                pools.add(pool)
                connection = pool.existing(target)
                assert connection is not None
                assert other.existing(target) is None
                await worker.session.give_back(pool)
        finally:
            await worker.close()
        assert connection.closed
        assert len(pools) == 1

    asyncio.run(play())


def test_a_pool_is_not_shared_while_a_late_answer_may_come(cluster: LocalCluster, client: BlockingClient) -> None:
    ledger_id, metadata = write_closed(client)
    bookie = next(one for one in cluster.bookies if one.id not in metadata.last_segment.ensemble)

    async def play() -> None:
        worker = await Worker.start(cluster)
        try:
            holder = await worker.session.pool.get(metadata.last_segment.ensemble[0])
            stored = bytes((await holder.read(ledger_id, range(1)))[0].stored)
            entries = StoredEntries(range(1), memoryview(len(stored).to_bytes(4, "big") + stored))
            pool = worker.session.take_pool()
            await pool.get(bookie.id)
            assert bookie.pid is not None
            os.kill(bookie.pid, signal.SIGSTOP)
            try:
                adds = StoredAdds(ledger_id, master_key(b"secret"), pool)
                add = asyncio.ensure_future(adds.write(bookie.id, entries))
                done, _ = await asyncio.wait([add], timeout=0.2)
                assert not done
                add.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await add
                assert not adds.end()
            finally:
                os.kill(bookie.pid, signal.SIGCONT)
            await pool.close()
            pool = worker.session.take_pool()
            again = StoredAdds(ledger_id, master_key(b"secret"), pool)
            assert await again.write(bookie.id, entries) is Code.OK
            assert again.end()
            await worker.session.give_back(pool)
        finally:
            await worker.close()

    asyncio.run(play())
