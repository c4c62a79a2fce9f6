"""What a streaming read decides to read, restarted wherever a query can end. No Spark yet."""

from __future__ import annotations

import json
import logging
import random
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows
from pyspark.sql.types import StructType

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.datasource.batch.planner import batch_splits
from bk_spark.datasource.entries.schemas import RAW_SCHEMA
from bk_spark.datasource.entries.split_rows import Split
from bk_spark.datasource.options.parse import parse_options
from bk_spark.datasource.pushdown import Conditions
from bk_spark.datasource.stream import progress as progress_module
from bk_spark.datasource.stream.offsets import Position, StreamOffset
from bk_spark.datasource.stream.plan import Extent
from bk_spark.datasource.stream.progress import EVERY_S, ProgressTeller
from bk_spark.datasource.stream.reader import StreamReader
from bk_spark.datasource.stream.sources import FollowedLog
from bk_spark.log import EntryFormat, Log, LogSettings, LogStore
from bk_spark.log.formats.names import readers_path
from bk_spark.log.formats.progress import decode_progress
from bk_spark.log.formats.znodes import Head, decode_head, encode_head
from bk_spark.log.io.snapshot import LogSnapshot
from bk_spark.overview.logs import Logs
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import (
    BookKeeperError,
    EntryUnknownError,
    InvalidArgumentError,
    LogRangeGoneError,
    LogReplacedError,
    MetadataFormatError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NoSuchLogError,
)
from bk_spark.protocol.metadata.znodes import Znode
from bk_spark.protocol.quorum import Quorum
from tests.support.logs import commit_made_up
from tests.support.streams import wait_until
from tests.support.zookeeper_sessions import count_round_trips

RAW = LogSettings.create(Quorum(3, 3, 2), DigestType.CRC32C, EntryFormat.RAW, b"")
ARROW = LogSettings.create(Quorum(3, 2, 2), DigestType.CRC32C, EntryFormat.ARROW, b"", '{"type":"struct","fields":[]}')
ALL: ReadLimit = ReadAllAvailable()

Offset = dict[str, Any]
#: A log's name, ledger and entry of each offset that a batch reads.
Rows = dict[tuple[str | None, int | None], tuple[int, int]]


class World:
    """Logs of one test, and readers of them as Spark makes them."""

    def __init__(self, client: BlockingClient, uri: str) -> None:
        self.client = client
        self.uri = uri
        self.store = LogStore.of(client, f"/test-{uuid.uuid4().hex}/logs")

    def log(self, name: str = "events", settings: LogSettings = RAW) -> Log:
        return self.store.create_log(name, settings, b"")

    def append(self, log: Log, *segments: tuple[int, int], overwrite: bool = False) -> list[int]:
        return commit_made_up(log, *segments, overwrite=overwrite)

    def reader(self, **options: Any) -> StreamReader:
        """As after a restart: it knows nothing of an earlier one."""
        if not {"logs", "logPattern", "ledgerId"} & options.keys():
            options.setdefault("log", "events")
        given = {"metadataServiceUri": self.uri, "logRoot": self.store.root, **options}
        raw = {name: str(value) for name, value in given.items()}
        return StreamReader(parse_options(raw, writing=False, streaming=True), RAW_SCHEMA)

    def delete(self, name: str) -> None:
        self.store.delete_log(name, b"")

    def set_head(self, log: Log, **changes: int) -> Head:
        """Change the head behind everybody's back; the head before."""
        zk, path = self.client.zookeeper, log.paths.head
        znode = zk.get(path)
        assert znode is not None
        head = decode_head(znode.data, path)
        values = {name: getattr(head, name) for name in head.__slots__} | changes
        zk.set(path, encode_head(Head(**values)), znode.version)
        return head


@pytest.fixture
def world(client: BlockingClient, metadata_service_uri: str) -> Iterator[World]:
    made = World(client, metadata_service_uri)
    yield made
    for name in made.store.list_logs():
        made.delete(name)


@pytest.fixture(autouse=True)
def up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks each time, instead of waiting for news: the watches have tests of their own."""
    monkeypatch.setattr("bk_spark.datasource.stream.log_watch._LOOK_S", 0.0)


def printed(offset: Offset) -> Offset:
    """As it comes back from a checkpoint."""
    found: Offset = json.loads(json.dumps(offset))
    return found


def next_offset(reader: StreamReader, start: Offset, limit: ReadLimit | None = None) -> Offset:
    return reader.latestOffset(printed(start), reader.getDefaultReadLimit() if limit is None else limit)


def rows_of(reader: StreamReader, start: Offset, end: Offset) -> Rows:
    """What the tasks of a batch would read. An offset in two splits is an error."""
    found: Rows = {}
    for split in reader.partitions(printed(start), printed(end)):
        assert isinstance(split, Split)
        for piece in split.pieces:
            for step in range(piece.entries):
                offset = None if piece.base_offset is None else piece.base_offset + step
                key = (piece.log, piece.first + step if offset is None else offset)
                assert key not in found
                found[key] = (piece.ledger_id, piece.first + step)
    return found


def offsets(rows: Rows, log: str | None = "events") -> list[int | None]:
    return [offset for name, offset in rows if name == log]


def at(offset: Offset, log: str = "events") -> int:
    found: int = offset["logs"][log]["offset"]
    return found


def moved(log: Log, offset: int, **more: int) -> Offset:
    return {"v": 1, "logs": {log.name: {"id": log.log_id, "offset": offset, **more}}}


# --- where a query starts ---


def test_the_first_offset(world: World) -> None:
    log = world.log()
    world.append(log, (10, 100))
    world.append(log, (5, 50))
    world.append(log, (5, 50), overwrite=True)
    world.append(log, (5, 50))
    assert world.reader().initialOffset() == moved(log, 25, **{"from": 25})
    assert at(world.reader(startingOffsets="earliest").initialOffset()) == 15
    assert at(world.reader(startingOffsets='{"events": 22}').initialOffset()) == 22
    assert at(world.reader(startingOffsets='{"events": -2}').initialOffset()) == 15
    assert at(world.reader(startingOffsets='{"events": -1}').initialOffset()) == 25
    times = [segment.commit_time_ms for segment in log.snapshot().segments()]
    assert times[0] < times[1]
    assert at(world.reader(startingTimestamp=times[0]).initialOffset()) == 15
    assert at(world.reader(startingTimestamp=times[0] + 1).initialOffset()) == 20
    assert at(world.reader(startingTimestamp=times[1] + 1).initialOffset()) == 25


def test_the_first_offset_is_asked_for_twice_and_stays(world: World) -> None:
    log = world.log()
    world.append(log, (10, 100))
    reader = world.reader(startingOffsets="latest")
    first = reader.initialOffset()
    world.append(log, (10, 100))
    assert reader.initialOffset() == first
    assert rows_of(reader, first, next_offset(reader, first)).keys() == {("events", n) for n in range(10, 20)}


@pytest.mark.parametrize("first_batch_has_rows", [True, False])
def test_the_first_batch_of_latest_is_the_same_when_it_is_run_again(world: World, first_batch_has_rows: bool) -> None:
    log = world.log()
    world.append(log, (10, 100))
    reader = world.reader()
    start = reader.initialOffset()
    if first_batch_has_rows:
        world.append(log, (3, 30))
    end = printed(next_offset(reader, start))
    expected = rows_of(reader, start, end)
    assert len(expected) == 3 * first_batch_has_rows

    # The driver dies before the batch is done. Spark kept its end, and asks anew for its start.
    world.append(log, (4, 40))
    reader = world.reader()
    start_anew = reader.initialOffset()
    assert at(start_anew) == 14 + 3 * first_batch_has_rows
    assert rows_of(reader, start_anew, end) == expected
    later = next_offset(reader, end)
    assert offsets(rows_of(reader, end, later)) == list(range(at(end), at(start_anew)))
    assert "from" not in later["logs"]["events"] or not first_batch_has_rows


def test_first_offsets_out_of_bounds(world: World, caplog: pytest.LogCaptureFixture) -> None:
    log = world.log()
    world.append(log, (10, 100))
    world.append(log, (5, 50), overwrite=True)
    with pytest.raises(LogRangeGoneError, match="startingOffsets gives log events offset 3: offsets 3 to 9 are gone"):
        world.reader(startingOffsets='{"events": 3}').initialOffset()
    with pytest.raises(LogRangeGoneError, match="it ends at 15"):
        world.reader(startingOffsets='{"events": 16}').initialOffset()
    with pytest.raises(InvalidArgumentError, match="names log other, which this read does not include"):
        world.reader(startingOffsets='{"events": 10, "other": 0}').initialOffset()
    assert at(world.reader(startingOffsets='{"events": 3}', failOnDataLoss="false").initialOffset()) == 10
    assert "continuing at 10" in caplog.text


# --- S4 ---


def test_s4_restart_at_every_offset(world: World) -> None:
    """Nothing is skipped and nothing read twice, wherever the query ended; also when the batch is run again."""
    log = world.log()
    random_of = random.Random(4)
    for _ in range(5):
        world.append(
            log, *((random_of.randint(1, 4), random_of.randint(1, 500)) for _ in range(random_of.randint(1, 4)))
        )
    end = log.snapshot().next_offset
    everything = rows_of(world.reader(), moved(log, 0), moved(log, end))
    entries = {
        ("events", segment.base_offset + step): (segment.ledger_id, segment.first_entry + step)
        for segment in log.snapshot().segments()
        for step in range(segment.entries)
    }
    assert everything == entries
    for offset in range(end + 1):
        reader = world.reader(splitBytes=1024)
        latest = next_offset(reader, moved(log, offset))
        assert at(latest) == end
        rest = rows_of(reader, moved(log, offset), latest)
        assert offsets(rest) == list(range(offset, end))
        before = rows_of(world.reader(minPartitions=3), moved(log, 0), moved(log, offset))
        assert before.keys().isdisjoint(rest)
        assert before | rest == everything


@pytest.mark.parametrize("seed", range(6))
def test_s4_a_query_that_ends_at_random_points(world: World, seed: int) -> None:
    """Batches of several logs, limited; the driver dies before, in or after any of them while the logs grow."""
    random_of = random.Random(seed)
    logs = [world.log(name) for name in ("a", "b", "c")]

    def grow() -> None:
        for log in random_of.sample(logs, random_of.randint(0, 3)):
            world.append(log, *((random_of.randint(1, 9), random_of.randint(0, 900)) for _ in range(2)))

    limits: dict[str, Any] = {}
    if seed % 3 != 0:
        limits["maxEntriesPerTrigger"] = random_of.randint(1, 20)
    if seed % 3 != 1:
        limits["maxBytesPerTrigger"] = random_of.choice([1, 1000, 4000])
    options = {"logs": "a,b,c", "startingOffsets": "earliest", **limits}

    grow()
    reader = world.reader(**options)
    start: Offset | None = None
    seen: Rows = {}
    batches = 0
    while batches < 25 or random_of.random() < 0.7:
        batches += 1
        if batches < 20:
            grow()
        if random_of.random() < 0.4:
            reader = world.reader(**options)
        begin = reader.initialOffset() if start is None else start
        end = printed(next_offset(reader, begin))
        if end == begin and start is not None:
            continue
        planned = rows_of(reader, begin, end)
        if random_of.random() < 0.5:
            # It is run again, by a driver that knows the end only.
            reader = world.reader(**options)
            grow()
            begin = reader.initialOffset() if start is None else start
            assert rows_of(reader, begin, end) == planned
        assert planned.keys().isdisjoint(seen)
        if "maxEntriesPerTrigger" in limits:
            assert len(planned) <= limits["maxEntriesPerTrigger"]
        seen |= planned
        start = end
    assert start is not None
    reader = world.reader(logs="a,b,c")
    seen |= rows_of(reader, start, next_offset(reader, start, ALL))
    ends = {log.name: log.snapshot().next_offset for log in logs}
    assert seen.keys() == {(name, offset) for name, end in ends.items() for offset in range(end)}


# --- S5 ---


def test_s5_offsets_never_move_back(world: World, caplog: pytest.LogCaptureFixture) -> None:
    log = world.log()
    world.append(log, (10, 100))
    start = moved(log, 10)
    before = world.set_head(log, next_offset=0, first_page=0, tail_page=0)
    with pytest.raises(LogRangeGoneError, match="log events ends at offset 0, but the checkpoint has read it up to 10"):
        next_offset(world.reader(), start)
    forgiving = world.reader(failOnDataLoss="false")
    assert next_offset(forgiving, start) == start
    assert "set back to an older state" in caplog.text
    world.set_head(log, next_offset=before.next_offset)
    world.append(log, (2, 20))
    assert at(next_offset(world.reader(), start)) == 12
    assert at(next_offset(world.reader(failOnDataLoss="false"), start)) == 12
    # The reader that saw the older state goes on where it was, and sees the rest when its watch has told it.
    ended_at = [10]

    def at_the_end() -> bool:
        ended_at.append(at(next_offset(forgiving, start)))
        assert ended_at == sorted(ended_at), "offsets move back"
        return ended_at[-1] == 12

    wait_until(at_the_end, "offset 12")


def test_s5_what_zookeeper_does_not_answer_is_an_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    log = world.log()
    world.append(log, (10, 100))
    reader = world.reader()
    start = moved(log, 4)
    assert at(next_offset(reader, start)) == 10

    def unavailable(*_: object, **__: object) -> None:
        raise MetadataUnavailableError("ZooKeeper did not answer in time")

    world.append(log, (10, 100))
    with monkeypatch.context() as patched:
        patched.setattr(ZooKeeper, "get_many", unavailable)
        for _ in range(3):
            with pytest.raises(MetadataUnavailableError):
                next_offset(reader, start)
    assert at(next_offset(reader, start)) == 20


def test_s5_a_list_of_logs_that_is_empty_for_a_moment(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    log = world.log()
    world.append(log, (10, 100))
    start = moved(log, 4)
    for fail in ("true", "false"):
        reader = world.reader(logPattern="ev.*", failOnDataLoss=fail)
        with monkeypatch.context() as patched:
            patched.setattr("bk_spark.datasource.stream.log_watch.LogNamesWatch._read", lambda *_: frozenset())
            if fail == "true":
                with pytest.raises(
                    NoSuchLogError, match="log events, which the query has read up to offset 4, no longer exists"
                ):
                    next_offset(reader, start)
            else:
                assert next_offset(reader, start) == start
        reader = world.reader(logPattern="ev.*", failOnDataLoss=fail)
        end = next_offset(reader, start)
        assert at(end) == 10
        assert offsets(rows_of(reader, start, end)) == list(range(4, 10))


# --- S6 ---


def test_s6_what_was_deleted_before_it_was_read_is_an_error(world: World) -> None:
    log = world.log()
    world.append(log, (10, 100))
    start, planned = moved(log, 4), moved(log, 10)
    world.append(log, (5, 50), overwrite=True)
    expected = r"log events: offsets \[4, 10\) were removed .*set the option failOnDataLoss to false"
    with pytest.raises(LogRangeGoneError, match=expected):
        next_offset(world.reader(), start)
    with pytest.raises(LogRangeGoneError, match=expected):
        world.reader().partitions(start, planned)
    # A batch that needs nothing of it goes on.
    reader = world.reader()
    assert offsets(rows_of(reader, planned, next_offset(reader, planned))) == list(range(10, 15))


def test_s6_or_skipped_and_said(world: World, caplog: pytest.LogCaptureFixture) -> None:
    log = world.log()
    world.append(log, (10, 100))
    start, planned = moved(log, 4), moved(log, 8)
    world.append(log, (5, 50), overwrite=True)
    reader = world.reader(failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        # A batch that was planned before, run again after a restart.
        assert rows_of(reader, start, planned) == {}
        end = next_offset(reader, planned)
        for _ in range(3):
            next_offset(reader, planned)
    assert end == moved(log, 15, lost=2)
    texts = [record.message for record in caplog.records if "failOnDataLoss is false" in record.message]
    assert [text.split(":")[1].split(" were ")[0].strip() for text in texts] == ["offsets [4, 8)", "offsets [8, 10)"]
    assert offsets(rows_of(reader, planned, end)) == list(range(10, 15))
    # It goes on where it is, and what was lost stays in sight.
    world.append(log, (1, 1))
    later = next_offset(reader, end)
    assert later == moved(log, 16, lost=2)
    assert offsets(rows_of(world.reader(failOnDataLoss="false"), end, later)) == [15]


def test_s6_everything_is_gone_and_nothing_new_there(world: World) -> None:
    log = world.log()
    world.append(log, (10, 100))
    start = moved(log, 0)
    world.append(log, overwrite=True)
    reader = world.reader(failOnDataLoss="false")
    end = next_offset(reader, start)
    assert end == moved(log, 10, lost=10)
    assert reader.partitions(start, end) == []
    assert next_offset(reader, end) == end


@pytest.mark.parametrize("step", ["backlog", "pieces"])
def test_s6_truncated_while_a_batch_is_planned(world: World, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    log = world.log()
    world.append(log, (10, 100))
    start, planned = moved(log, 4), moved(log, 10)
    plain = getattr(FollowedLog, step)
    truncations = [(3, 30), (3, 30)]

    def raced(*arguments: Any) -> Any:
        if truncations:
            world.append(log, truncations.pop(), overwrite=True)
        return plain(*arguments)

    for fail in ("true", "false"):
        reader = world.reader(failOnDataLoss=fail, maxBytesPerTrigger=10)
        # What it knows is older than the truncation.
        reader.initialOffset()
        if step == "backlog":
            first, end = log.snapshot().first_offset, log.snapshot().next_offset
            begun = moved(log, max(4, first))
        else:
            begun, end = moved(log, log.snapshot().next_offset - 3), log.snapshot().next_offset
        with monkeypatch.context() as patched:
            patched.setattr(FollowedLog, step, raced)
            if fail == "true":
                with pytest.raises(LogRangeGoneError, match=rf"events: offsets \[{at(begun)}, {end}\) were removed"):
                    _ = next_offset(reader, begun) if step == "backlog" else reader.partitions(begun, moved(log, end))
            elif step == "backlog":
                assert next_offset(reader, begun) == moved(log, end + 1, lost=end - at(begun))
            else:
                assert reader.partitions(begun, moved(log, end)) == []
    assert not truncations
    assert offsets(rows_of(world.reader(failOnDataLoss="false"), start, planned)) == []


# --- limits ---


def test_the_limit_that_spark_is_told(world: World) -> None:
    assert world.reader().getDefaultReadLimit() == ReadAllAvailable()
    assert world.reader(maxEntriesPerTrigger=7).getDefaultReadLimit() == ReadMaxRows(7)
    assert world.reader(maxBytesPerTrigger="7k").getDefaultReadLimit() == ReadMaxBytes(7168)
    assert world.reader(minEntriesPerTrigger=7).getDefaultReadLimit() == ReadMinRows(7)
    both = world.reader(maxEntriesPerTrigger=7, maxBytesPerTrigger="7k")
    assert both.getDefaultReadLimit() == ReadMaxRows(7)


def test_limits(world: World) -> None:
    log = world.log()
    world.append(log, (10, 1000), (10, 100))
    start = moved(log, 0)
    assert at(next_offset(world.reader(maxEntriesPerTrigger=7), start)) == 7
    assert at(next_offset(world.reader(maxBytesPerTrigger=500), start)) == 5
    assert at(next_offset(world.reader(maxBytesPerTrigger=1), start)) == 1
    assert at(next_offset(world.reader(maxBytesPerTrigger=1050), start)) == 15
    assert at(next_offset(world.reader(maxBytesPerTrigger=1050, maxEntriesPerTrigger=12), start)) == 12
    # Trigger.Once: no limit.
    assert at(next_offset(world.reader(maxEntriesPerTrigger=7), start, ALL)) == 20


def test_min_entries_and_the_delay(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = [5000.0]
    monkeypatch.setattr("bk_spark.datasource.stream.planner._now_ms", lambda: now_ms[0])
    log = world.log()
    world.append(log, (2, 20))
    reader = world.reader(minEntriesPerTrigger=10, maxTriggerDelay="1m", startingOffsets="earliest")
    offset = next_offset(reader, reader.initialOffset())
    assert at(offset) == 2
    world.append(log, (3, 30))
    assert next_offset(reader, offset) == offset
    world.append(log, (7, 70))
    offset = next_offset(reader, offset)
    assert at(offset) == 12
    world.append(log, (1, 1))
    now_ms[0] += 59_999
    assert next_offset(reader, offset) == offset
    now_ms[0] += 1
    assert at(next_offset(reader, offset)) == 13
    assert at(next_offset(reader, offset, ALL)) == 13


def test_available_now_ends_where_the_log_ended(world: World) -> None:
    log = world.log()
    world.append(log, (10, 100))
    reader = world.reader(maxEntriesPerTrigger=4, minEntriesPerTrigger=3, startingOffsets="earliest")
    reader.prepareForTriggerAvailableNow()
    world.append(log, (10, 100))
    offset = reader.initialOffset()
    ends = []
    for _ in range(6):
        offset = next_offset(reader, offset)
        ends.append(at(offset))
    assert ends == [4, 8, 10, 10, 10, 10]
    assert at(reader.reportLatestOffset() or {}) == 20


def test_lag_is_reported(world: World) -> None:
    logs = [world.log("a"), world.log("b")]
    for log in logs:
        world.append(log, (10, 100))
    reader = world.reader(logs="b,a", maxEntriesPerTrigger=4, startingOffsets="earliest")
    assert reader.reportLatestOffset() is None
    end = next_offset(reader, reader.initialOffset())
    latest = reader.reportLatestOffset()
    assert latest is not None
    behind = latest.pop("behind")
    assert latest == {"v": 1, "logs": {log.name: {"id": log.log_id, "offset": 10} for log in logs}}
    assert at(end, "a") + at(end, "b") == 4
    left = {log.name: 10 - at(end, log.name) for log in logs}
    assert behind == {name: {"entries": one, "rows": one, "bytes": 10 * one} for name, one in left.items()}


# --- many logs ---


def test_logs_found_while_running(world: World) -> None:
    first = world.log("events-1")
    world.append(first, (5, 50))
    world.log("other")
    reader = world.reader(logPattern=r"events-\d+")
    start = reader.initialOffset()
    assert start["logs"].keys() == {"events-1"}
    assert next_offset(reader, start) is not None
    second = world.log("events-2")
    # Not before there is something in it.
    assert next_offset(reader, start) == start
    world.append(second, (3, 30))
    world.append(first, (1, 10))
    end = printed(next_offset(reader, start))
    assert end["logs"]["events-2"] == {"id": second.log_id, "offset": 3, "from": 0}
    expected = {("events-1", 5), ("events-2", 0), ("events-2", 1), ("events-2", 2)}
    assert rows_of(reader, start, end).keys() == expected
    # Run again after a restart, when the new log was truncated and goes on.
    world.append(second, (3, 30))
    again = world.reader(logPattern=r"events-\d+")
    assert rows_of(again, start, end).keys() == expected
    later = next_offset(again, end)
    assert "from" not in later["logs"]["events-2"]
    assert rows_of(again, end, later).keys() == {("events-2", 3), ("events-2", 4), ("events-2", 5)}


def test_many_logs_are_opened_together(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are: at a query's start, when many appear later, and by a batch."""
    logs = [world.log(f"events-{number:02}") for number in range(12)]
    for log in logs[:8]:
        world.append(log, (5, 50))
    counted = count_round_trips(monkeypatch)
    reader = world.reader(logPattern=r"events-\d+")
    start = reader.initialOffset()
    assert len(start["logs"]) == 12
    # The list of names, the logs, their heads, their tail pages, with a sync each where it is needed.
    assert counted.total() < 12, counted
    for log in logs:
        world.append(log, (1, 10))
    more = [world.log(f"events-{number}") for number in range(20, 32)]
    for log in more:
        world.append(log, (2, 20))
    counted.clear()
    end = next_offset(reader, start)
    assert len(end["logs"]) == 24
    assert counted.total() < 12, counted
    counted.clear()
    options = parse_options(
        {"metadataServiceUri": world.uri, "logRoot": world.store.root, "logPattern": "events-.*"}, writing=False
    )
    splits = batch_splits(options, RAW_SCHEMA, Conditions())
    assert sum(piece.entries for split in splits for piece in split.pieces) == 8 * 5 + 12 + 12 * 2
    assert counted.total() < 12, counted


def test_a_batch_that_ends_before_an_open_end_that_was_deleted(world: World, tail_client: BlockingClient) -> None:
    log = world.log()
    world.append(log, (5, 50))
    writer = LogStore.of(tail_client, world.store.root).open_log("events", password=b"").open_writer()
    writer.abandon()
    tail = log.snapshot().open_tail
    assert tail is not None
    world.client.delete(tail.ledger_id)

    def planned(end: str) -> int:
        given = {"metadataServiceUri": world.uri, "logRoot": world.store.root, "log": "events", "endingOffsets": end}
        splits = batch_splits(parse_options(given, writing=False), RAW_SCHEMA, Conditions())
        return sum(piece.entries for split in splits for piece in split.pieces)

    assert planned('{"events": 5}') == 5
    for end in ("latest", '{"events": -1}'):
        with pytest.raises(NoSuchLedgerError, match="bkctl log give-up-tail"):
            planned(end)
    log.give_up_tail(3)
    assert planned("latest") == 8


def test_a_pattern_that_nothing_matches_yet(world: World) -> None:
    reader = world.reader(logPattern="events", startingOffsets="earliest")
    start = reader.initialOffset()
    assert start == {"v": 1, "logs": {}}
    assert next_offset(reader, start) == start
    world.append(world.log(), (5, 50))
    end = next_offset(reader, start)
    assert offsets(rows_of(reader, start, end)) == list(range(5))


def test_a_log_that_cannot_be_read_with_the_others(world: World) -> None:
    world.append(world.log("events-1"), (5, 50))
    reader = world.reader(logPattern="events-.*")
    start = reader.initialOffset()
    world.log("events-2", ARROW)
    with pytest.raises(InvalidArgumentError, match="log events-1 has entryFormat raw and log events-2 arrow"):
        next_offset(reader, start)


def test_each_schema_of_the_logs_is_compared(world: World) -> None:
    """One time, however many logs have it; also that of a log which is found later."""
    wanted = StructType().add("id", "long")
    for name, schema in (("events-1", wanted), ("events-2", wanted), ("events-3", StructType().add("text", "string"))):
        world.log(name, LogSettings.create(ARROW.quorum, ARROW.digest_type, EntryFormat.ARROW, b"", schema.json()))
    for pattern in ("events-.*", "events-[13]"):
        options = {"metadataServiceUri": world.uri, "logRoot": world.store.root, "logPattern": pattern}
        reader = StreamReader(parse_options(options, writing=False, streaming=True), wanted)
        with pytest.raises(InvalidArgumentError, match="log events-3 has no column id"):
            reader.initialOffset()


def test_a_log_of_a_pattern_is_deleted(world: World, caplog: pytest.LogCaptureFixture) -> None:
    logs = {name: world.log(name) for name in ("events-1", "events-2")}
    for log in logs.values():
        world.append(log, (5, 50))
    start = {"v": 1, "logs": {name: {"id": log.log_id, "offset": 2} for name, log in logs.items()}}
    readers = {fail: world.reader(logPattern="events-.*", failOnDataLoss=fail) for fail in ("true", "false")}
    planned = {fail: next_offset(reader, start) for fail, reader in readers.items()}
    world.append(logs["events-1"], (1, 10))
    world.delete("events-2")
    for restarted in (False, True):
        if restarted:
            readers = {fail: world.reader(logPattern="events-.*", failOnDataLoss=fail) for fail in readers}
        with pytest.raises(NoSuchLogError, match="events-2, which the query has read up to offset"):
            next_offset(readers["true"], planned["true"])
        end = next_offset(readers["false"], planned["false"])
        assert at(end, "events-1") == 6
        # Where it was stays known: nothing goes back.
        assert at(end, "events-2") == 5
        assert offsets(rows_of(readers["false"], planned["false"], end), "events-1") == [5]
        assert rows_of(readers["false"], start, planned["false"]).keys() == {("events-1", n) for n in (2, 3, 4)}
    assert "log events-2" in caplog.text
    # Made again, it is another log.
    world.append(world.log("events-2"), (9, 90))
    for fail in readers:
        with pytest.raises(LogReplacedError, match="log events-2 was deleted and created again"):
            next_offset(world.reader(logPattern="events-.*", failOnDataLoss=fail), planned[fail])


def test_a_log_added_to_the_list_is_read_from_its_start(world: World) -> None:
    logs = [world.log("a"), world.log("b")]
    for log in logs:
        world.append(log, (5, 50))
    start = moved(logs[0], 5)
    reader = world.reader(logs="a,b")
    end = next_offset(reader, start)
    assert rows_of(reader, start, end).keys() == {("b", n) for n in range(5)}


# --- open tails ---


@pytest.fixture
def tail_client(metadata_service_uri: str) -> Iterator[BlockingClient]:
    """A client that tells bookies soon how far its ledgers are confirmed."""
    with BlockingClient(metadata_service_uri, ClientConfig(explicit_lac_interval_ms=20)) as client:
        yield client


def stamped(reader: StreamReader, start: Offset, end: Offset) -> list[tuple[int | None, ...]]:
    """Offset, ledger, entry and time of each row of a batch, in order."""
    return [
        (piece.base_offset + step, piece.ledger_id, piece.first + step, piece.timestamp_ms)
        for split in reader.partitions(printed(start), printed(end))
        if isinstance(split, Split)
        for piece in split.pieces
        if piece.base_offset is not None
        for step in range(piece.entries)
    ]


def test_s4_an_open_tail(world: World, tail_client: BlockingClient) -> None:
    """Restarts at every offset of a tail that is open, then sealed, then followed by another one."""
    log = world.log()
    world.append(log, (5, 50))
    writer = LogStore.of(tail_client, world.store.root).open_log("events", password=b"").open_writer(roll_entries=10)
    start = moved(log, 3)
    reader = world.reader()
    assert at(next_offset(reader, start)) == 5
    writer.append_many([b"x" * 10] * 7)
    writer.flush()
    wait_until(lambda: at(next_offset(reader, start)) == 12, "the tail's end")
    latest = world.reader().initialOffset()
    assert at(latest) == 12
    assert at(next_offset(world.reader(maxBytesPerTrigger=20), moved(log, 6))) in range(7, 9)

    def rows(first: int, last: int) -> list[tuple[int | None, ...]]:
        return stamped(world.reader(), moved(log, first), moved(log, last))

    expected = rows(3, 12)
    assert [row[0] for row in expected] == list(range(3, 12))
    assert all(rows(3, middle) + rows(middle, 12) == expected for middle in range(3, 13))
    # A driver that cannot be told as much as the one before does not go back.
    behind = world.reader()
    assert next_offset(behind, moved(log, 14)) == moved(log, 14)

    # Rolled: what was read from the open tail is the same from the sealed one.
    writer.append_many([b"y" * 10] * 8)
    writer.flush()
    wait_until(lambda: at(next_offset(reader, start)) == 20, "the next tail's end")
    assert log.snapshot().next_offset >= 15
    assert rows(3, 12) == expected
    grown = rows(3, 20)
    assert grown[: len(expected)] == expected
    assert [row[0] for row in grown] == list(range(3, 20))
    for middle in range(12, 21):
        assert rows(3, middle) + rows(middle, 20) == grown
    assert stamped(reader, moved(log, 3), moved(log, 20)) == grown
    writer.close()
    assert at(next_offset(reader, start)) == 20
    assert rows(3, 20) == grown
    times = [row[3] for row in grown]
    assert times == sorted(times)  # type: ignore[type-var]


def test_available_now_reads_a_tail_that_is_sealed_right_after_the_list_was_read(
    world: World, tail_client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = world.log()
    writer = LogStore.of(tail_client, world.store.root).open_log("events", password=b"").open_writer(roll_entries=10)
    writer.append_many([b"x"] * 7)
    writer.flush()
    start, reader = moved(log, 0), world.reader()
    assert at(next_offset(world.reader(), start)) in range(8)
    taken = Log.snapshot_at

    def sealed_since(self: Log, head: Znode | None, session: int) -> LogSnapshot:
        snapshot = taken(self, head, session)
        monkeypatch.setattr(Log, "snapshot_at", taken)
        writer.append_many([b"y"] * 10)
        writer.flush()
        assert (snapshot.next_offset, snapshot.open_tail) == (0, None)
        return snapshot

    monkeypatch.setattr(Log, "snapshot_at", sealed_since)
    reader.prepareForTriggerAvailableNow()
    end = next_offset(reader, start)
    assert at(end) in range(10, 18)
    assert [row[0] for row in stamped(reader, start, end)] == list(range(at(end)))
    writer.close()


def test_bookies_that_cannot_tell_how_far_a_tail_is(
    world: World, tail_client: BlockingClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = world.log()
    with LogStore.of(tail_client, world.store.root).open_log("events", password=b"").open_writer() as writer:
        writer.append(b"x")
        writer.flush()
        reader = world.reader()
        start = moved(log, 0)
        wait_until(lambda: at(next_offset(reader, start)) == 1, "the tail's end")

        def unknown(*_: object) -> int:
            raise EntryUnknownError("too few bookies answered")

        monkeypatch.setattr("bk_spark.bookie.blocking.BlockingReader.read_last_add_confirmed", unknown)
        monkeypatch.setattr("bk_spark.datasource.stream.sources._LAC_S", 0.0)
        reader = world.reader()
        assert next_offset(reader, start) == start
        assert "its end cannot be determined now" in caplog.text
        with pytest.raises(EntryUnknownError):
            reader.prepareForTriggerAvailableNow()
        # A batch that is known needs nobody to tell.
        assert len(rows_of(reader, start, moved(log, 1))) == 1


# --- ledgers ---


def test_a_ledger_that_is_being_written(world: World) -> None:
    writer = world.client.create()
    reader = world.reader(ledgerId=writer.ledger_id, startingOffsets="earliest", maxEntriesPerTrigger=6)
    start = reader.initialOffset()
    assert start == {"v": 1, "ledger": {"id": writer.ledger_id, "entry": 0, "from": 0}}
    assert next_offset(reader, start) == start
    writer.append_many([b"x" * 100] * 10)
    writer.close()
    entries: list[int | None] = []
    offset = start
    for _ in range(3):
        reader = world.reader(ledgerId=writer.ledger_id, maxEntriesPerTrigger=6)
        end = next_offset(reader, offset)
        rows = rows_of(reader, offset, end)
        assert {key for key, _ in rows} <= {None}
        entries += offsets(rows, None)
        offset = printed(end)
    assert entries == list(range(10))
    assert offset["ledger"]["entry"] == 10
    latest = world.reader(ledgerId=writer.ledger_id).initialOffset()
    assert latest["ledger"]["entry"] == 10
    given = world.reader(ledgerId=writer.ledger_id, startingOffsets=f'{{"{writer.ledger_id}": 4}}').initialOffset()
    assert given["ledger"]["entry"] == 4


def test_a_ledger_that_is_gone(world: World) -> None:
    writer = world.client.create()
    writer.append(b"x")
    writer.close()
    reader = world.reader(ledgerId=writer.ledger_id, startingOffsets="earliest")
    start = reader.initialOffset()
    end = next_offset(reader, start)
    (split,) = reader.partitions(start, end)
    world.client.delete(writer.ledger_id)
    with pytest.raises(NoSuchLedgerError):
        list(reader.read(split))
    assert list(world.reader(ledgerId=writer.ledger_id, failOnDataLoss="false").read(split)) == []
    with pytest.raises(NoSuchLedgerError):
        next_offset(world.reader(ledgerId=writer.ledger_id), end)


# --- bad input ---


def test_checkpoints_that_do_not_fit(world: World) -> None:
    log = world.log()
    other = world.log("other")
    for one in (log, other):
        world.append(one, (5, 50))

    def refused(start: Offset, kind: type[BookKeeperError], text: str, **options: Any) -> None:
        with pytest.raises(kind, match=text):
            next_offset(world.reader(**options), start)
        with pytest.raises(kind, match=text):
            world.reader(**options).partitions(start, {**start, "more": 1} if "logs" not in start else _further(start))

    refused(
        moved(other, 2),
        InvalidArgumentError,
        "checkpoint is of log other, which its options do not name: they read log events",
    )
    refused(moved(other, 2), InvalidArgumentError, "they read logs that match 'ev.*'", logPattern="ev.*")
    refused(moved(other, 2), InvalidArgumentError, "they read ledger", ledgerId=_ledger(world))
    gone = {"v": 1, "logs": {"events": {"id": other.log_id, "offset": 2}}}
    refused(gone, LogReplacedError, "log events was deleted and created again: its id is .* new checkpoint directory")
    refused({"v": 1, "logs": {"events": {"id": log.log_id, "offset": 6}}}, LogRangeGoneError, "ends at offset 5")
    ledger = {"v": 1, "ledger": {"id": 17, "entry": 0}}
    with pytest.raises(InvalidArgumentError, match="checkpoint is of ledger 17, which its options do not name"):
        next_offset(world.reader(), ledger)
    with pytest.raises(MetadataFormatError, match="format version 2"):
        next_offset(world.reader(), {"v": 2, "logs": {}})


def _further(start: Offset) -> Offset:
    return {"v": 1, "logs": {name: {**one, "offset": one["offset"] + 1} for name, one in start["logs"].items()}}


def _ledger(world: World) -> int:
    writer = world.client.create()
    writer.close()
    return writer.ledger_id


def test_a_log_deleted_and_made_again_while_it_is_read(world: World) -> None:
    log = world.log()
    world.append(log, (5, 50))
    reader = world.reader(failOnDataLoss="false")
    start = moved(log, 2)
    end = next_offset(reader, start)
    world.delete("events")
    with pytest.raises(NoSuchLogError):
        next_offset(reader, end)
    world.append(world.log(), (50, 500))
    with pytest.raises(LogReplacedError):
        next_offset(reader, end)
    with pytest.raises(LogReplacedError, match="new checkpoint directory"):
        world.reader(failOnDataLoss="false").partitions(start, end)


# --- what others see of a query's progress ---


def test_progress_is_told_rarely_and_ends_with_the_session(world: World) -> None:
    log = world.log()
    world.append(log, (10, 1), (5, 1))
    session = ZooKeeper(world.client.zookeeper.servers)
    session.start()
    now = [0.0]
    sessions = [session]
    teller = ProgressTeller(lambda: sessions[0], world.store.root, now_s=lambda: now[0])
    top = readers_path(world.store.root)

    def told() -> list[tuple[int, int]]:
        names = world.client.zookeeper.children(top) or []
        found = [world.client.zookeeper.get(f"{top}/{name}") for name in names]
        progress = [decode_progress(znode.data, top) for znode in found if znode is not None]
        return [(one.read_to, one.end) for each in progress for one in each.positions]

    def tell(read_to: int, end: int = 15) -> None:
        position = Position(log.log_id, read_to)
        teller.tell(StreamOffset({"events": position}), {"events": Extent(log.log_id, 0, end)})

    tell(0)
    assert told() == []
    now[0] = EVERY_S
    tell(5)
    assert told() == [(5, 15)]
    tell(10)
    now[0] += EVERY_S - 1
    tell(10)
    assert told() == [(5, 15)]
    now[0] += 1
    tell(10)
    assert told() == [(10, 15)]
    # The znode ends with its session. A query that has nothing new to tell makes it again in the next one.
    sessions.append(ZooKeeper(world.client.zookeeper.servers))
    sessions.pop(0).close()
    wait_until(lambda: told() == [], "the end of the znode")
    sessions[0].start()
    for _ in range(2):
        now[0] += EVERY_S
        tell(10)
        assert told() == [(10, 15)]
    # Nobody else's problem ends a query.
    sessions[0].close()
    wait_until(lambda: told() == [], "the end of the znode")
    now[0] += EVERY_S
    tell(15)
    assert told() == []


def test_a_query_tells_where_it_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "EVERY_S", 0.0)
    log = world.log()
    world.append(log, (10, 1), (5, 1))
    reader = world.reader(startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    reader.latestOffset(end, ALL)
    logs, readers, _, _ = Logs(world.client.zookeeper, world.store.root).collect()
    assert [(one["log"], one["next_offset"], one["segments"], one["bytes"] > 0) for one in logs] == [
        ("events", 15, 2, True)
    ]
    (mine,) = readers
    assert mine["logs"] == [{"log": "events", "read_to": 15, "end": 15, "lag_entries": 0}]
    # What is committed later is unread, whatever the query last saw.
    world.append(log, (7, 1))
    _, (mine,), _, _ = Logs(world.client.zookeeper, world.store.root).collect()
    assert (mine["lag_entries"], mine["other_logs"]) == (7, 0)
