"""Pages of a log in index ledgers, on real bookies: what is read is the same wherever the pages are."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.log import EntryFormat, Log, LogSettings, LogSnapshot, LogStore, Segment
from bk_spark.log.core.changes import change_steps
from bk_spark.log.core.index import walk_steps
from bk_spark.log.core.index_move import MoveReport, move_steps
from bk_spark.log.formats.names import INDEX
from bk_spark.log.formats.page import SegmentPage
from bk_spark.log.formats.znodes import Head, IndexPosition, decode_head, encode_head
from bk_spark.log.gc.truncation import SegmentStart, Truncate
from bk_spark.log.io.page_reader import PageReader
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import (
    InvalidArgumentError,
    LogRangeGoneError,
    MetadataConflictError,
    MetadataFormatError,
    UnauthorizedError,
)
from bk_spark.protocol.quorum import Quorum
from tests.support.kept import kept
from tests.support.logs import commit_made_up, let_go_of_the_past

KEPT_SEGMENTS = 60
SETTINGS = LogSettings.create(Quorum(3, 3, 2), DigestType.CRC32C, EntryFormat.RAW, b"secret")


@pytest.fixture
def client(metadata_service_uri: str) -> Iterator[BlockingClient]:
    with BlockingClient(metadata_service_uri) as running:
        yield running


@pytest.fixture
def store(client: BlockingClient, fresh_root: str) -> LogStore:
    return LogStore.of(client, f"{fresh_root}/logs")


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of about six segments; seven pages in a move; directories of twenty lines; readers that keep little."""
    monkeypatch.setattr("bk_spark.log.io.page_reader._MAX_CACHED_SEGMENTS", KEPT_SEGMENTS)
    monkeypatch.setattr("bk_spark.log.formats.page.MAX_PAGE_BYTES", 120)
    monkeypatch.setattr("bk_spark.log.formats.page._FULL_BYTES", 100)
    monkeypatch.setattr("bk_spark.log.core.index_move.MAX_MOVED_PAGES", 7)
    monkeypatch.setattr("bk_spark.log.core.index_move.MAX_LINES", 20)


class Clock:
    """Commit times: a second later at each commit."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        self.now_ms += 1_000
        return self.now_ms


@pytest.fixture
def log(store: LogStore) -> Log:
    return store.create_log("flights", SETTINGS, b"secret")


def commit(log: Log, batches: int, segments: int = 5) -> None:
    for _ in range(batches):
        commit_made_up(log, *((n % 3 + 1, 100 * n + 7) for n in range(segments)))


def move(log: Log) -> MoveReport:
    return log.run(move_steps(log.paths, lambda: 0, max_znode_pages=3, keep_pages=2))


def move_all(log: Log) -> int:
    """Moves that found something to do."""
    moves = 0
    while move(log).pages:
        moves += 1
    return moves


def head_of(client: BlockingClient, log: Log) -> Head:
    client.zookeeper.sync(log.paths.head)
    znode = client.zookeeper.get(log.paths.head)
    assert znode is not None
    return decode_head(znode.data, log.paths.head)


def set_index(client: BlockingClient, log: Log, index: IndexPosition) -> None:
    znode = client.zookeeper.get(log.paths.head)
    assert znode is not None
    head = decode_head(znode.data, log.paths.head)
    client.zookeeper.set(log.paths.head, encode_head(replace(head, index=index)), znode.version)


def reopened(store: LogStore, log: Log) -> Log:
    """With nothing in its caches."""
    return store.open_log(log.name, password=b"secret")


def pages_of(log: Log) -> PageReader:
    """With nothing in its caches."""
    return PageReader(log.ledgers.client.zookeeper, log.paths, log.ledgers)


def check_reads(log: Log, snapshot: LogSnapshot, segments: list[Segment]) -> None:
    """All ways of reading, against the plain list."""
    pages, head = pages_of(log), head_of(log.ledgers.client, log)
    assert list(snapshot.segments()) == segments
    start, end = segments[0].base_offset, segments[-1].end_offset
    assert (snapshot.first_offset, snapshot.next_offset) == (start, end)
    for low in (start, start + 1, (start + end) // 2, end - 9, end - 1):
        for high in (low, low + 1, min(low + 40, end), end):
            expected = [s for s in segments if s.end_offset > low and s.base_offset < high] if low < high else []
            assert list(snapshot.segments(low, high)) == expected
    for segment in segments[:: max(1, len(segments) // 25)]:
        for offset in (segment.base_offset, segment.end_offset - 1):
            number, found = snapshot.segment_at(offset)
            assert found == segment
            table = pages.page(number, head).table
            assert table.overlapping(offset, offset + 1).base_offset[0] == segment.base_offset
    times = sorted({segment.commit_time_ms for segment in segments})
    for time_ms in (0, *times[:: max(1, len(times) // 25)], times[-1]):
        for asked in (time_ms, time_ms + 1):
            later = (s.base_offset for s in segments if s.commit_time_ms >= asked)
            assert snapshot.offset_at(asked) == next(later, end)


def test_a_list_reads_the_same_before_and_after_its_pages_moved(
    client: BlockingClient, store: LogStore, fresh_root: str
) -> None:
    clock = Clock()
    store = LogStore(client.zookeeper, store.root, client=client, now_ms=clock)
    log = store.create_log("flights", SETTINGS, b"secret")
    commit(log, 50)
    segments = list(log.snapshot().segments())
    check_reads(log, log.snapshot(), segments)
    # These know nothing of the moves.
    caches = [pages_of(log) for _ in range(2)]
    old = [LogSnapshot(log.name, head_of(client, log), cache) for cache in caches]
    assert list(old[1].segments()) == segments

    pages = len(client.zookeeper.children(log.paths.pages) or [])
    assert pages > 20
    assert move_all(log) >= 3
    assert len(client.zookeeper.children(log.paths.pages) or []) <= 4
    head = head_of(client, log)
    assert head.index is not None
    walk = log.run(walk_steps(log.paths, head))
    assert len(walk.directories) > 1
    assert (walk.pages.first_page, walk.pages.end_page) == (0, head.index.end_page)
    assert int(walk.pages.size_bytes.sum()) == sum(
        s.size_bytes for s in segments if s.end_offset <= head.index.end_offset
    )
    registered = {
        int(ledger)
        for run in client.zookeeper.children(f"{log.paths.ledgers}/{INDEX}") or []
        for ledger in client.zookeeper.children(log.paths.run_at(INDEX, run)) or []
    }
    assert walk.ledgers == registered
    for snapshot in (log.snapshot(), reopened(store, log).snapshot(), *old):
        check_reads(log, snapshot, segments)

    commit(log, 20)
    more = list(log.snapshot().segments())
    assert more[: len(segments)] == segments
    for _ in range(3):
        move(log)
        check_reads(log, reopened(store, log).snapshot(), more)
    check_reads(log, old[0], segments)
    for cache in caches:
        assert KEPT_SEGMENTS // 2 < sum(len(page.table) for page in kept(cache, SegmentPage)) <= KEPT_SEGMENTS


def test_an_offset_is_found_near_the_tail_without_reading_the_index(
    client: BlockingClient, store: LogStore, log: Log
) -> None:
    commit(log, 60)
    move_all(log)
    unarmed = LogStore(client.zookeeper, store.root).open_log("flights")
    snapshot = unarmed.snapshot()
    assert list(snapshot.segments(snapshot.next_offset - 5))
    assert snapshot.offset_at(log.snapshot().last_commit_time_ms + 1) == snapshot.next_offset
    with pytest.raises(InvalidArgumentError, match="left ZooKeeper for index ledgers: open the log with its password"):
        list(snapshot.segments())
    with pytest.raises(UnauthorizedError):
        store.open_log("flights", password=b"wrong")


def test_a_log_may_be_truncated_and_overwritten_into_its_index(
    client: BlockingClient, store: LogStore, log: Log
) -> None:
    commit(log, 60)
    segments = list(log.snapshot().segments())
    move_all(log)
    old = log.snapshot()
    head = head_of(client, log)
    assert head.index is not None
    all_ledgers = log.run(walk_steps(log.paths, head)).ledgers
    number, segment = old.segment_at(head.index.end_offset // 2)
    start = SegmentStart(segment.base_offset, number)
    assert log.run(change_steps(Truncate(log.paths, segment.base_offset, start), lambda: 0)) == segment.base_offset
    let_go_of_the_past(log)
    head = head_of(client, log)
    assert head.index is not None
    assert 0 < head.first_page == number < head.index.end_page
    kept = [s for s in segments if s.base_offset >= segment.base_offset]
    check_reads(log, reopened(store, log).snapshot(), kept)
    assert log.run(walk_steps(log.paths, head)).ledgers < all_ledgers
    assert list(old.segments()) == segments, "an old snapshot still has its segments"

    # What is no longer needed is carried along no more.
    commit(log, 20)
    kept = list(log.snapshot().segments())
    move_all(log)
    head = head_of(client, log)
    check_reads(log, reopened(store, log).snapshot(), kept)
    needed = log.run(walk_steps(log.paths, head)).ledgers
    for ledger_id in all_ledgers - needed:
        client.delete(ledger_id)
    check_reads(log, reopened(store, log).snapshot(), kept)
    late = LogSnapshot(
        log.name,
        replace(head_of(client, log), first_offset=0, first_page=0, kept_offset=0),
        pages_of(log),
    )
    with pytest.raises(LogRangeGoneError, match="truncated or overwritten while its list was read"):
        list(late.segments())

    commit_made_up(log, (3, 30), overwrite=True)
    let_go_of_the_past(log)
    assert [s.entries for s in reopened(store, log).snapshot().segments()] == [3]
    head = head_of(client, log)
    assert head.index is not None
    assert log.run(walk_steps(log.paths, head)).ledgers == frozenset()
    commit(log, 30)
    kept = list(log.snapshot().segments())
    assert move_all(log) > 0
    assert (log.run(walk_steps(log.paths, head_of(client, log))).ledgers & all_ledgers) == frozenset()
    check_reads(log, reopened(store, log).snapshot(), kept)


def test_a_lost_or_corrupt_index_is_refused_with_where_it_lies(
    client: BlockingClient, store: LogStore, log: Log
) -> None:
    commit(log, 40)
    move_all(log)
    head = head_of(client, log)
    assert head.index is not None
    place = log.run(walk_steps(log.paths, head)).pages.place(0)

    def junk(*entries: bytes) -> int:
        return log.ledgers.write(lambda _: (), entries)

    def refused(match: str, where: str = "") -> None:
        with pytest.raises(MetadataFormatError, match=match) as caught:
            list(reopened(store, log).snapshot().segments())
        assert where in str(caught.value)

    here = head.index
    good = log.ledgers.read_entry(here.ledger_id, here.entry_id)
    for entry, match in (
        (b"", "format version 0"),
        (b"\x08\x07" + good[2:], "format version 7; this release knows 1: use the release that wrote it"),
        (good[:-3], "does not hold|damaged"),
        (b"\xff" * 40, "does not hold"),
    ):
        ledger_id = junk(*([b"page"] * here.entry_id), entry)
        set_index(client, log, replace(here, ledger_id=ledger_id))
        refused(match, f"entry {here.entry_id} of index ledger {ledger_id} of log flights")
    # The directory is whole, but the pages are not there.
    ledger_id = junk(*([b"\x08\x02page"] * here.entry_id), good)
    set_index(client, log, replace(here, ledger_id=ledger_id))
    refused(f"entry 0 of index ledger {ledger_id} of log flights")

    set_index(client, log, replace(here, entry_id=here.entry_id + 9))
    refused(f"index ledger {here.ledger_id} of log flights leads to")
    set_index(client, log, here)
    assert list(reopened(store, log).snapshot().segments())
    client.delete(place[0])
    refused(rf"page 0 of its list is lost, which entry \d+ of index ledger {here.ledger_id} of log flights leads to")


def test_lists_are_read_while_they_move(client: BlockingClient, store: LogStore, log: Log) -> None:
    """A writer, two movers and readers at once: every snapshot is whole, and goes on from the one before."""
    rounds, done = 40, threading.Event()
    failures: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)
            done.set()

    def write() -> None:
        try:
            commit(log, rounds)
        finally:
            done.set()

    def keep_moving() -> None:
        mine = reopened(store, log)
        while not done.is_set():
            with contextlib.suppress(MetadataConflictError):
                move(mine)

    def read() -> None:
        mine = reopened(store, log)
        before: list[Segment] = []
        snapshot = mine.snapshot()
        while not done.is_set():
            after = list(snapshot.segments())
            assert after[: len(before)] == before
            assert (after[-1].end_offset if after else 0) == snapshot.next_offset
            before, snapshot = after, mine.snapshot()

    threads = [threading.Thread(target=run, args=(work,)) for work in (write, keep_moving, keep_moving, read, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []
    assert len(list(log.snapshot().segments())) == 5 * rounds
    assert head_of(client, log).index is not None


def test_the_usual_limits_leave_a_short_list_alone(client: BlockingClient, log: Log) -> None:
    commit(log, 3)
    zookeeper: ZooKeeper = client.zookeeper
    before = zookeeper.get(log.paths.head)
    assert log.run(move_steps(log.paths, lambda: 0)) == MoveReport(0, None)
    assert zookeeper.get(log.paths.head) == before
    assert not isinstance(head_of(client, log).index, IndexPosition)
