"""Log readers on real bookies: every entry once and in order, over segments, rolls, commits and dead writers."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.log import Log, LogStore
from bk_spark.log.formats.znodes import decode_head, encode_head
from bk_spark.log.io.blocking import BlockingLog
from bk_spark.log.io.snapshot import LogSnapshot
from bk_spark.log.reader import LogBlock
from bk_spark.protocol.errors import (
    InvalidArgumentError,
    LogRangeGoneError,
    LogTailOpenError,
    NoSuchLogError,
)
from bookie_server.local import LocalCluster
from tests.support.logs import PASSWORD, TELLING, commit, entries, new_log


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[BlockingClient]:
    with BlockingClient(cluster.metadata_service_uri, TELLING) as one:
        yield one


@pytest.fixture
def log(client: BlockingClient) -> Log:
    return new_log(client)


def payload_of(offset: int) -> bytes:
    return b"%d " % offset + bytes(offset % 300)


def payloads(start: int, end: int) -> list[bytes]:
    return [payload_of(offset) for offset in range(start, end)]


def take(blocks: Iterator[LogBlock], start: int, end: int) -> int:
    """Check that the next entries are those at ``[start, end)``, and perhaps more; where they end."""
    offset = start
    while offset < end:
        block = next(blocks)
        assert block.base_offset == offset
        for payload in block.payloads:
            assert bytes(payload) == payload_of(offset)
            offset += 1
        assert block.end_offset == offset
    return offset


class Follower:
    """Follows a log from its beginning in a thread of its own, with a client of its own."""

    def __init__(self, uri: str, log: Log) -> None:
        self.next_offset = 0
        self.error: BaseException | None = None
        self._uri = uri
        self._log = log
        self._progress = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with BlockingClient(self._uri) as client:
                reader = LogStore.of(client).open_log(self._log.name, password=PASSWORD).open_reader()
                while not self._stopped:
                    with closing(reader.follow(self.next_offset, max_wait_ms=200)) as blocks:
                        for block in blocks:
                            take(iter([block]), self.next_offset, block.end_offset)
                            with self._progress:
                                self.next_offset = block.end_offset
                                self._progress.notify_all()
        except BaseException as error:
            self.error = error
            with self._progress:
                self._progress.notify_all()

    def reached(self, offset: int) -> None:
        with self._progress:
            assert self._progress.wait_for(lambda: self.error or self.next_offset >= offset, 60), self.next_offset
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        self._stopped = True
        self._thread.join()
        if self.error is not None:
            raise self.error


@pytest.fixture
def follower(cluster: LocalCluster, log: Log) -> Iterator[Follower]:
    one = Follower(cluster.metadata_service_uri, log)
    try:
        yield one
    finally:
        one.stop()


def test_ranges_are_read_over_segments_of_writers_and_commits(log: Log) -> None:
    with log.open_writer(roll_entries=100) as writer:
        writer.append_many(payloads(0, 450))
    for batch_id in range(30):
        commit(log, batch_id, payloads(450 + 5 * batch_id, 455 + 5 * batch_id))
    with log.open_writer() as writer:
        writer.append_many(payloads(600, 5_000))
    reader = log.open_reader()
    assert reader.readable_end() == 5_000
    for start, end in ((0, 5_000), (99, 101), (0, 1), (449, 600), (599, 3_000), (4_999, 5_000), (7, 7)):
        blocks = reader.read(start, end)
        assert take(blocks, start, end) == end
        assert next(blocks, None) is None
    with closing(reader.read(0, 5_000)) as blocks:
        next(blocks)
    segments = list(log.snapshot().segments())
    times = {block.ledger_id: block.commit_time_ms for block in reader.read(0, 5_000)}
    assert times == {segment.ledger_id: segment.commit_time_ms for segment in segments}
    assert reader.offset_at(0) == 0
    assert reader.offset_at(segments[-1].commit_time_ms + 1) == 5_000
    for start, end in ((4_999, 5_001), (6_000, 6_001)):
        with pytest.raises(LogRangeGoneError, match="not written yet"):
            reader.read(start, end)
    with pytest.raises(InvalidArgumentError, match="end before they start"):
        reader.read(5, 4)


def test_an_open_tail_is_read_up_to_what_is_confirmed(log: Log) -> None:
    reader = log.open_reader()
    commit(log, 0, payloads(0, 3))
    with log.open_writer() as writer:
        assert reader.readable_end() == 3
        writer.append_many(payloads(3, 10))
        writer.flush()
        writer.append(payload_of(10))
        writer.flush()
        # The entry after them tells that they are confirmed.
        snapshot = log.snapshot()
        assert snapshot.next_offset == 3
        end = reader.readable_end(snapshot)
        assert end >= 10
        assert take(reader.read(1, end), 1, end) == end
        assert take(reader.read(4, 9), 4, 9) == 9
        with pytest.raises(LogRangeGoneError, match="not written yet, the log can be read up to"):
            reader.read(0, 12)
    assert reader.readable_end(snapshot) == 3, "sealed since: what the snapshot has is certain"
    assert reader.readable_end() == 11


def test_a_follower_sees_all_that_writers_and_commits_add(log: Log, follower: Follower) -> None:
    commit(log, 0, payloads(0, 10))
    follower.reached(10)
    with log.open_writer(roll_entries=50) as writer:
        for start in range(10, 400, 13):
            writer.append_many(payloads(start, min(400, start + 13)))
            writer.flush()
        follower.reached(400)  # also the last ones: an idle writer tells
    commit(log, 1, payloads(400, 405))
    follower.reached(405)
    with log.open_writer() as writer:
        follower.reached(405)
    with log.open_writer() as old:
        old.append_many(payloads(405, 420))
        old.flush()
        commit(log, 2, payloads(420, 430), fence_tail=True)
        old.abandon()
    follower.reached(430)
    with log.open_writer() as old:
        old.append_many(payloads(430, 440))
        old.flush()
        with log.open_writer(take_over=True) as new:
            old.abandon()
            new.append_many(payloads(440, 450))
            follower.reached(450)
    assert entries(log) == payloads(0, 450)


def test_a_tail_that_is_sealed_right_after_the_list_was_read(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read of the tail lies beyond the end of such a list, but not of the log."""
    reader = log.open_reader()
    with log.open_writer(roll_entries=50) as writer:
        writer.append_many(payloads(0, 45))
        writer.flush()
        with closing(reader.follow(0)) as blocks:
            assert take(blocks, 0, 45) == 45
        taken = BlockingLog.snapshot

        def sealed_since(self: BlockingLog, *, sync: bool = True) -> LogSnapshot:
            snapshot = taken(self, sync=sync)
            monkeypatch.setattr(BlockingLog, "snapshot", taken)
            writer.append_many(payloads(45, 60))
            writer.flush()
            assert (snapshot.next_offset, snapshot.open_tail) == (0, None)
            return snapshot

        monkeypatch.setattr(BlockingLog, "snapshot", sealed_since)
        with closing(reader.follow(45)) as blocks:
            assert take(blocks, 45, 60) == 60


def test_a_head_that_went_back_is_an_error(client: BlockingClient, log: Log) -> None:
    """Not a list that grows while it is read."""
    commit(log, 0, payloads(0, 3))
    commit(log, 1, payloads(3, 6))
    znode = client.zookeeper.get(log.paths.head)
    assert znode is not None
    head = replace(decode_head(znode.data, log.paths.head), next_offset=3)
    client.zookeeper.set(log.paths.head, encode_head(head), znode.version)
    with pytest.raises(LogRangeGoneError, match=r"offset 6 is beyond the log's end, 3"):
        next(log.open_reader().follow(6))


def test_following_ends_when_nothing_comes(log: Log) -> None:
    reader = log.open_reader()
    for expected in ([], [(0, 3)], [(0, 3)]):
        assert [(block.base_offset, block.end_offset) for block in reader.follow(0, max_wait_ms=0)] == expected
        if not expected:
            commit(log, 0, payloads(0, 3))
    assert list(reader.follow(3, max_wait_ms=50)) == []
    with log.open_writer() as writer:
        assert list(reader.follow(3, max_wait_ms=50)) == []
        writer.append_many(payloads(3, 9))
        writer.flush()
        blocks = reader.follow(2)
        assert take(blocks, 2, 9) == 9
        blocks.close()
        assert list(reader.follow(9, max_wait_ms=50)) == []
    with pytest.raises(LogRangeGoneError, match=r"offset 10 is beyond the log's end, 9"):
        list(reader.follow(10, max_wait_ms=0))
    with pytest.raises(InvalidArgumentError, match="max_wait_ms"):
        next(reader.follow(0, max_wait_ms=-1))


def test_what_was_truncated_is_named(log: Log) -> None:
    commit(log, 0, payloads(0, 3))
    commit(log, 1, payloads(3, 6))
    reader = log.open_reader()
    began = reader.read(0, 6)
    first = next(iter(log.snapshot().segments()))
    assert log.truncate(4) == 3
    log.ledgers.client.delete(first.ledger_id)
    for blocks in (began, reader.follow(0)):
        with pytest.raises(LogRangeGoneError, match=r"offsets \[0, 3\)"):
            next(blocks)
    assert take(reader.follow(3), 3, 6) == 6


def test_a_truncation_takes_offsets_in_an_open_tail_and_refuses_those_beyond_it(log: Log) -> None:
    commit(log, 0, payloads(0, 3))
    with log.open_writer() as writer:
        writer.append_many(payloads(3, 8))
        writer.flush()
        with closing(log.open_reader().follow(0)) as blocks:
            assert take(blocks, 0, 8) == 8
        with pytest.raises(InvalidArgumentError, match="ends at offset 8: it cannot be truncated up to 9;"):
            log.truncate(9)
        assert log.snapshot().first_offset == 0
        assert log.truncate(8, dry_run=True) == 3
        assert log.truncate(8) == 3
        assert take(log.open_reader().read(3, 8), 3, 8) == 8


def test_a_deleted_log_ends_its_followers(client: BlockingClient, log: Log) -> None:
    reader = log.open_reader()
    commit(log, 0, payloads(0, 3))
    blocks = reader.follow(0)
    assert take(blocks, 0, 3) == 3
    deleting = threading.Thread(target=LogStore.of(client).delete_log, args=(log.name, PASSWORD))
    deleting.start()
    with pytest.raises(NoSuchLogError):
        next(blocks)
    deleting.join()


KILLED = """
import sys
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.log import LogStore
from tests.support.logs import PASSWORD, TELLING

uri, name = sys.argv[1:]
client = BlockingClient(uri, TELLING)
writer = LogStore.of(client).open_log(name, password=PASSWORD).open_writer(roll_entries=40)
number = 0
while True:
    writer.append_many([b"%d " % n + bytes(n % 300) for n in range(number, number + 10)])
    number += 10
    print(writer.flush(), flush=True)
"""


def test_the_tail_of_a_killed_process_is_sealed_by_the_next_writer(
    cluster: LocalCluster, log: Log, follower: Follower
) -> None:
    command = [sys.executable, "-c", KILLED, cluster.metadata_service_uri, log.name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        acknowledged = 0
        for line in itertools.islice(process.stdout, 25):
            acknowledged = int(line)
        with pytest.raises(LogTailOpenError, match=f"process {process.pid}"):
            log.open_writer()
        process.kill()
        acknowledged = max([acknowledged, *map(int, process.stdout.read().split())])
    # That its last batch is confirmed, the killed writer may have told nobody: it said so of those before.
    follower.reached(acknowledged - 10)
    # Its session has not ended yet: taking over does not wait for it.
    with log.open_writer(take_over=True) as writer:
        start = writer.next_offset
        assert start >= acknowledged >= 250
        writer.append_many(payloads(start, start + 20))
        follower.reached(start + 20)
    assert entries(log) == payloads(0, start + 20)
