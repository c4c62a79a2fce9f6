"""Log writers on real bookies: they hold the tail, roll, lose it, and leave nothing that the next cannot seal."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import socket
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pytest

from bk_spark.bookie.blocking import BlockingClient, BlockingWriter
from bk_spark.log import EntryFormat, Log, LogSettings, LogStore
from bk_spark.log.writer import LogWriter
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import (
    BookKeeperError,
    InvalidArgumentError,
    LedgerClosedError,
    LogFencedError,
    LogTailOpenError,
    UnauthorizedError,
)
from bk_spark.protocol.metadata.znodes import Znode
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalCluster
from tests.support.bookie import add_frame
from tests.support.logs import PASSWORD, RAW, TELLING, commit, entries, new_log
from tests.support.streams import wait_until
from tests.support.zookeeper_sessions import expire


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[BlockingClient]:
    with BlockingClient(cluster.metadata_service_uri, TELLING) as one:
        yield one


@pytest.fixture
def log(client: BlockingClient) -> Log:
    return new_log(client)


def append_and_flush(writer: LogWriter) -> None:
    for _ in range(1_000):
        writer.append(b"lost")
        writer.flush()


def test_what_is_appended_is_in_the_log_in_order_over_rolls(log: Log) -> None:
    expected = [b"%d" % number + bytes(number % 700) for number in range(5_000)]
    with log.open_writer(roll_entries=700) as writer:
        assert log.snapshot().open_tail is not None
        for number, payload in enumerate(expected[:1_000]):
            assert writer.append(payload) == number
        assert writer.append_many(expected[1_000:3_000]) == range(1_000, 3_000)
        assert writer.append_many(Payloads.of(expected[3_000:4_000])) == range(3_000, 4_000)
        for payload in expected[4_000:]:
            writer.append(bytearray(payload))
        assert writer.flush() == 5_000 == writer.acknowledged_offset == writer.next_offset
        assert [segment.entries for segment in log.snapshot().segments()] == [700] * 7
    assert writer.close() == 5_000
    snapshot = log.snapshot()
    assert (snapshot.next_offset, snapshot.open_tail) == (5_000, None)
    segments = list(snapshot.segments())
    assert sum(segment.size_bytes for segment in segments) == sum(map(len, expected))
    assert entries(log) == expected
    with pytest.raises(LedgerClosedError, match="is closed"):
        writer.append(b"late")


def test_single_entries_are_sent_without_flush(log: Log) -> None:
    with log.open_writer() as writer:
        writer.append(b"one")
        tail = log.snapshot().open_tail
        assert tail is not None
        (block,) = itertools.islice(log.ledgers.reader(tail.ledger_id).tail(0), 1)
        assert [bytes(payload) for payload in block.payloads] == [b"one"]


def test_ledgers_are_rolled_by_size_and_by_age(log: Log) -> None:
    with log.open_writer(roll_bytes=10_000) as writer:
        writer.append_many([bytes(1_000)] * 35)
        writer.flush()
        assert [segment.entries for segment in log.snapshot().segments()] == [10, 10, 10]
    with log.open_writer(roll_ms=50) as writer:
        writer.append(b"old")
        rolled = threading.Event()
        log.zookeeper.exists(log.paths.head, watch=lambda _: rolled.set())
        assert rolled.wait(60)
    assert [segment.entries for segment in log.snapshot().segments()] == [10, 10, 10, 5, 1]


def test_writers_come_one_after_the_other(log: Log) -> None:
    with log.open_writer() as writer:
        writer.append(b"one")
        with pytest.raises(LogTailOpenError, match=rf"log writer {writer.writer_id} \(host .*take_over"):
            log.open_writer()
        with pytest.raises(LogTailOpenError, match=rf"log writer {writer.writer_id} \(host .*fenceTail"):
            commit(log, 0, [b"refused"])
        writer.append(b"two")
    with log.open_writer():
        pass
    commit(log, 0, [b"three"])
    with log.open_writer() as writer:
        assert writer.append(b"four") == 3
    assert entries(log) == [b"one", b"two", b"three", b"four"]


@pytest.mark.parametrize("how", ["take over", "commit"])
def test_who_loses_the_tail_is_told_and_stops(log: Log, how: str) -> None:
    old = log.open_writer()
    old.append_many([b"one", b"two"])
    old.flush()
    if how == "take over":
        new = log.open_writer(take_over=True)
        new.append(b"three")
        new.close()
    else:
        commit(log, 0, [b"three"], fence_tail=True)
    assert entries(log) == [b"one", b"two", b"three"]
    with pytest.raises(LogFencedError, match=r"has lost the tail.*below offset 2 were acknowledged") as lost:
        append_and_flush(old)
    assert lost.value.acknowledged_offset == 2
    for call in (lambda: old.append(b"x"), lambda: old.append_many([b"x"]), old.flush, old.close):
        with pytest.raises(LogFencedError):
            call()
    old.abandon()
    assert log.zookeeper.exists(log.paths.owner) is None
    assert entries(log) == [b"one", b"two", b"three"]


def test_a_program_that_tries_for_ever_after_the_end_keeps_no_calls(log: Log) -> None:
    """The calls in a traceback hold their payloads, and all raise one error."""
    old = log.open_writer()
    old.append(b"one")
    commit(log, 0, [b"two"], fence_tail=True)
    with pytest.raises(LogFencedError):
        append_and_flush(old)
    calls = (lambda: old.append(b"x"), lambda: old.append_many([b"x"]), old.flush, old.close)
    depths = [[depth_of_error(call) for call in calls] for _ in range(3)]
    old.abandon()
    assert depths[2] == depths[1]


def depth_of_error(call: Callable[[], object]) -> int:
    with pytest.raises(LogFencedError) as raised:
        call()
    return len(list(traceback.walk_tb(raised.value.__traceback__)))


def test_an_idle_writer_hears_that_it_was_replaced(log: Log) -> None:
    old = log.open_writer()
    (sender,) = (thread for thread in threading.enumerate() if thread.name == f"log-writer {log.name}")
    new = log.open_writer(take_over=True)
    # It ends by itself.
    sender.join(60)
    assert not sender.is_alive()
    with pytest.raises(LogFencedError, match=f"writer {new.writer_id}"):
        old.append(b"x")
    old.abandon()
    new.close()


def test_an_abandoned_tail_is_sealed_by_who_comes_next(log: Log) -> None:
    with contextlib.suppress(RuntimeError), log.open_writer() as writer:
        writer.append(b"one")
        writer.flush()
        raise RuntimeError
    assert log.snapshot().open_tail is not None
    with pytest.raises(LedgerClosedError):
        writer.append(b"x")
    commit(log, 0, [b"two"])
    with log.open_writer() as writer:
        writer.append(b"three")
        writer.flush()
        writer.abandon()
    with log.open_writer() as writer:
        writer.append(b"four")
    assert entries(log) == [b"one", b"two", b"three", b"four"]


def owner_made_again(log: Log, uri: str, lose: Callable[[], object]) -> tuple[Znode, Znode]:
    """The owner's znode before ``lose`` and after."""
    with BlockingClient(uri) as other:
        zk, path = other.zookeeper, log.paths.owner
        before = zk.get_latest(path)
        assert before is not None
        gone, back = threading.Event(), threading.Event()
        zk.exists(path, watch=lambda _: gone.set())
        lose()
        assert gone.wait(60)
        if zk.exists(path, watch=lambda _: back.set()) is None:
            assert back.wait(60)
        after = zk.get_latest(path)
        assert after is not None
        assert after.created_zxid > before.created_zxid
        return before, after


def test_a_roll_for_which_there_are_no_bookies_is_put_off(
    mended_cluster: LocalCluster, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    with log.open_writer(roll_entries=10) as writer:
        writer.append_many([b"x"] * 25)
        writer.flush()
        mended_cluster.bookies[0].kill()
        while "no new ledger" not in caplog.text:
            writer.append_many([b"y"] * 10)
            writer.flush()
        written = writer.append_many([b"z"] * 100).stop
        assert writer.flush() == written
    *full, last = [segment.entries for segment in log.snapshot().segments()]
    assert set(full) == {10}
    assert last >= 100
    assert len(entries(log)) == written


def test_abandoning_does_not_wait_for_bookies(
    mended_cluster: LocalCluster, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = log.open_writer()
    waiting, flush_ledger = threading.Event(), BlockingWriter.flush

    def begin_to_flush(ledger: BlockingWriter) -> int:
        waiting.set()
        return flush_ledger(ledger)

    monkeypatch.setattr(BlockingWriter, "flush", begin_to_flush)
    for bookie in mended_cluster.bookies[:2]:
        bookie.suspend()
    writer.append(b"one")
    errors: list[BookKeeperError] = []

    def flush() -> None:
        try:
            writer.flush()
        except BookKeeperError as error:
            errors.append(error)

    flushing = threading.Thread(target=flush)
    flushing.start()
    assert waiting.wait(60)
    writer.abandon()
    flushing.join()
    assert isinstance(errors[0], LedgerClosedError)


def test_a_writer_whose_session_expires_keeps_its_tail(log: Log, cluster: LocalCluster) -> None:
    uri = cluster.metadata_service_uri
    with log.open_writer(roll_entries=2) as writer:
        writer.append(b"one")
        before, after = owner_made_again(log, uri, lambda: log.zookeeper.delete(log.paths.owner))
        assert (after.data, after.owner_session) == (before.data, before.owner_session)
        writer.append(b"two")
        before, after = owner_made_again(log, uri, lambda: expire(log.zookeeper))
        assert after.data == before.data
        assert after.owner_session != before.owner_session
        writer.append(b"three")
        with pytest.raises(LogTailOpenError):
            commit(log, 0, [b"refused"])
    assert entries(log) == [b"one", b"two", b"three"]


def test_a_writer_that_was_replaced_while_its_session_was_gone_is_told(log: Log, cluster: LocalCluster) -> None:
    """Its ledger was fenced; it does not make its owner's znode again, which would keep the other one out."""
    with BlockingClient(cluster.metadata_service_uri, TELLING) as client:
        other = LogStore.of(client).open_log(log.name, password=PASSWORD)
        old = log.open_writer()
        old.append(b"one")
        old.flush()
        tail = log.snapshot().open_tail
        assert tail is not None
        other.ledgers.recover(tail.ledger_id)
        expire(log.zookeeper)
        with other.open_writer(take_over=True) as new:
            new.append(b"two")
            with pytest.raises(LogFencedError) as lost:
                append_and_flush(old)
            assert lost.value.acknowledged_offset == 1
            old.abandon()
            assert other.zookeeper.get_latest(log.paths.owner) is not None, "the other's is left alone"
    assert entries(log) == [b"one", b"two"]


def test_bad_input_is_refused_and_does_no_harm(client: BlockingClient, cluster: LocalCluster, log: Log) -> None:
    store = LogStore.of(client)
    arrow = LogSettings.create(
        Quorum(3, 2, 2), DigestType.HMAC, EntryFormat.ARROW, PASSWORD, '{"type":"struct","fields":[]}'
    )
    with pytest.raises(InvalidArgumentError, match="writes raw logs only"):
        store.create_log(f"log-{uuid.uuid4().hex[:12]}", arrow, PASSWORD).open_writer()
    with BlockingClient(cluster.metadata_service_uri) as silent:
        with pytest.raises(InvalidArgumentError, match="explicitLacInterval"):
            LogStore.of(silent).open_log(log.name, password=PASSWORD).open_writer()
        with pytest.raises(InvalidArgumentError, match="without its password"):
            LogStore.of(silent).open_log(log.name).open_writer()
    for limits in ({"roll_bytes": 0}, {"roll_ms": 0}, {"roll_entries": 0}, {"roll_bytes": 1 << 50}):
        with pytest.raises(InvalidArgumentError, match=next(iter(limits))):
            log.open_writer(**limits)
    assert log.snapshot().open_tail is None
    with log.open_writer() as writer:
        writer.append(b"one")
        for call in (lambda: writer.append(bytes(1 << 24)), lambda: writer.append_many([b"x", bytes(1 << 24)])):
            with pytest.raises(InvalidArgumentError, match="frame limit"):
                call()
        assert writer.append(b"two") == 1
    assert entries(log) == [b"one", b"two"]


def test_several_threads_may_append(log: Log) -> None:
    offsets: dict[bytes, int] = {}

    def produce(writer: LogWriter, name: int) -> None:
        for number in range(300):
            payload = b"%d-%d" % (name, number)
            if number % 10:
                offsets[payload] = writer.append(payload)
            else:
                offsets[payload] = writer.append_many([payload]).start

    with log.open_writer(roll_entries=250) as writer:
        threads = [threading.Thread(target=produce, args=(writer, name)) for name in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = entries(log)
    assert [found[offset] for offset in offsets.values()] == list(offsets)
    assert len(found) == 900


def use_ids(bookies: Iterable[str], ids: range) -> None:
    """Use ids of ledgers with another password, as whoever may write to bookies may do."""
    for bookie_id in bookies:
        host, port = bookie_id.rsplit(":", 1)
        with socket.create_connection((host, int(port))) as peer:
            for ledger_id in ids:
                peer.sendall(add_frame(ledger_id, 0, size=100))
                assert peer.recv(4096)


def use_next_ids(cluster: LocalCluster, client: BlockingClient, count: int, bookies: int = 3) -> int:
    """Use the ids that come next. Returns the first."""
    last = client.create()
    last.close()
    first = last.ledger_id + 1
    use_ids([bookie.id for bookie in cluster.bookies[:bookies]], range(first, first + count))
    return first


def test_ids_of_ledgers_that_somebody_else_used_before(
    cluster: LocalCluster, client: BlockingClient, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    use_next_ids(cluster, client, 2)
    assert log.write(pa.table({"value": [b"one", b"two"]})).start_offset == 0
    # One bookie that refuses is enough: entries that the others took could not be sealed.
    first = use_next_ids(cluster, client, 2, bookies=1)
    with log.open_writer(roll_entries=2) as writer:
        tail = log.snapshot().open_tail
        assert tail is not None
        assert tail.ledger_id == first + 2
        assert writer.append(b"three") == 2
        use_next_ids(cluster, client, 4)
        assert writer.append(b"four") == 3  # now the ledger is full, and the writer takes another at once
        left = "is left unused: claim: the bookie answered UNAUTHORIZED"
        wait_until(lambda: caplog.text.count(left) == 6, "4 more ledgers that are left unused")
        assert writer.append(b"five") == 4
    assert entries(log) == [b"one", b"two", b"three", b"four", b"five"]
    assert caplog.text.count(left) == 6


def test_a_writer_for_which_too_many_ids_were_used_before_leaves_the_log_as_it_was(
    cluster: LocalCluster, client: BlockingClient, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    with log.open_writer(roll_entries=2) as writer:
        writer.append(b"one")
        use_next_ids(cluster, client, 5)
        writer.append(b"two")  # now the ledger is full, and the writer tries to take another at once
        wait_until(lambda: "no new ledger could be created, so ledger" in caplog.text, "attempt to take another ledger")
        assert writer.append(b"three") == 2
    use_next_ids(cluster, client, 5)
    with pytest.raises(UnauthorizedError, match="claim: the bookie answered UNAUTHORIZED"):
        log.open_writer()
    assert log.snapshot().open_tail is None
    assert log.zookeeper.get_latest(log.paths.owner) is None
    with log.open_writer() as writer:
        writer.append(b"four")
    assert entries(log) == [b"one", b"two", b"three", b"four"]


def test_a_bookie_that_hangs_when_a_writer_opens_and_knows_the_id_with_another_password(
    mended_cluster: LocalCluster,
) -> None:
    """It is unknown whether it knows the id, not absent. So the writer, and whoever seals the tail, do without it.

    What it holds has a right checksum. Only a digest with a key tells readers that it is not the log's.
    """
    with BlockingClient(mended_cluster.metadata_service_uri, TELLING) as client:
        log = new_log(client, dataclasses.replace(RAW, digest_type=DigestType.HMAC))
        use_next_ids(mended_cluster, client, 2, bookies=1)
        hanging = mended_cluster.bookies[0]
        hanging.suspend()
        begun = time.monotonic()
        writer = log.open_writer()
        took_s = time.monotonic() - begun
        tail = log.snapshot().open_tail
        assert tail is not None
        assert hanging.id in client.metadata(tail.ledger_id).segments[-1].ensemble
        hanging.resume()
        for entry in (b"one", b"two"):
            writer.append(entry)
            writer.flush()
        writer.abandon()
        with log.open_writer() as following:
            assert following.append(b"three") == 2
        assert entries(log) == [b"one", b"two", b"three"]
        assert took_s < TELLING.add_timeout_ms / 1000 * 0.8


def test_a_log_writer_leaves_a_ledger_of_which_a_bookie_says_nothing(cluster_of_six: LocalCluster) -> None:
    """Without a key in the digest, too, readers get nothing that somebody else wrote under the ledger's id."""
    with BlockingClient(cluster_of_six.metadata_service_uri, TELLING) as client:
        # Five of six bookies: the first ensemble most likely has the one that hangs, and the second need not.
        log = new_log(client, dataclasses.replace(RAW, quorum=Quorum(5, 3, 2)))
        first = use_next_ids(cluster_of_six, client, 2, bookies=0)
        hanging = cluster_of_six.bookies[0]
        use_ids([hanging.id], range(first, first + 2))
        hanging.suspend()
        writer = log.open_writer()
        hanging.resume()
        tail = log.snapshot().open_tail
        assert tail is not None
        assert hanging.id not in client.metadata(tail.ledger_id).segments[0].ensemble
        writer.append(b"one")
        writer.close()
        assert entries(log) == [b"one"]


def test_a_bookie_that_knows_a_ledger_with_another_password_does_not_join_it(
    cluster_of_six: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with BlockingClient(cluster_of_six.metadata_service_uri, TELLING) as client:
        log = new_log(client)
        with log.open_writer() as writer:
            writer.append(b"one")
            writer.flush()
            tail = log.snapshot().open_tail
            assert tail is not None
            members = client.metadata(tail.ledger_id).segments[-1].ensemble
            others = [bookie.id for bookie in cluster_of_six.bookies if bookie.id not in members]
            use_ids(others[:-1], range(tail.ledger_id, tail.ledger_id + 1))
            next(bookie for bookie in cluster_of_six.bookies if bookie.id == members[0]).kill()
            deadline = time.monotonic() + 60
            while others[-1] not in client.metadata(tail.ledger_id).segments[-1].ensemble:
                assert time.monotonic() < deadline
                writer.append(b"more")
                writer.flush()
        assert all(client.metadata(tail.ledger_id).segments[-1].ensemble.count(one) == 0 for one in others[:-1])
        assert entries(log)[:2] == [b"one", b"more"]


def test_an_idle_writer_whose_ledger_fails_gives_its_place_back(
    cluster: LocalCluster, client: BlockingClient, log: Log
) -> None:
    """The program appends and goes to sleep, so that no call hears of the error."""
    writer = log.open_writer()
    tail = log.snapshot().open_tail
    assert tail is not None
    with BlockingClient(cluster.metadata_service_uri, TELLING) as other:
        other.recover_and_open(tail.ledger_id, PASSWORD)
    writer.append(b"lost")
    deadline = time.monotonic() + 60
    while log.zookeeper.get_latest(log.paths.owner) is not None:
        assert time.monotonic() < deadline, "the next writer is kept out"
        time.sleep(0.02)
    with LogStore.of(client).open_log(log.name, password=PASSWORD).open_writer() as following:
        assert following.append(b"next") == 0
    with pytest.raises(LogFencedError):
        writer.append(b"too late")
    writer.abandon()
    assert entries(log) == [b"next"]
