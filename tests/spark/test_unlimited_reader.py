"""What a streaming read decides before Spark 4.2, which tells neither where a batch begins nor its limit. No Spark yet:
the calls come as Spark 4.0 and 4.1 make them."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.datasource.batch.reader import BatchReader, batch_reader
from bk_spark.datasource.entries.schemas import RAW_SCHEMA
from bk_spark.datasource.entries.split_rows import Split
from bk_spark.datasource.options.parse import parse_options
from bk_spark.datasource.stream.unlimited_reader import UnlimitedReader
from bk_spark.log import EntryFormat, Log, LogSettings, LogStore
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.quorum import Quorum
from tests.support.logs import commit_made_up

RAW = LogSettings.create(Quorum(3, 3, 2), DigestType.CRC32C, EntryFormat.RAW, b"")
Offset = dict[str, Any]
MakeReader = Callable[..., UnlimitedReader]


@pytest.fixture(autouse=True)
def up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bk_spark.datasource.stream.log_watch._LOOK_S", 0.0)


@pytest.fixture
def store(client: BlockingClient) -> LogStore:
    return LogStore.of(client, f"/test-{uuid.uuid4().hex}/logs")


@pytest.fixture
def events(store: LogStore) -> Log:
    log = store.create_log("events", RAW, b"")
    commit_made_up(log, (10, 100))
    return log


@pytest.fixture
def reader(store: LogStore, metadata_service_uri: str) -> MakeReader:
    """A reader of a new run, as an older Spark gets it."""

    def made(**options: object) -> UnlimitedReader:
        given = {"metadataServiceUri": metadata_service_uri, "logRoot": store.root, "log": "events", **options}
        if "logPattern" in options:
            del given["log"]
        raw = {name: str(value) for name, value in given.items()}
        return UnlimitedReader(parse_options(raw, writing=False, streaming=True), RAW_SCHEMA)

    return made


def printed(offset: Offset) -> Offset:
    """As it comes back from a checkpoint."""
    found: Offset = json.loads(json.dumps(offset))
    return found


def read(reader: UnlimitedReader, start: Offset, end: Offset, log: str = "events") -> list[int]:
    """The offsets of a batch."""
    found = []
    for split in reader.partitions(printed(start), printed(end)):
        assert isinstance(split, Split)
        for piece in split.pieces:
            if piece.log == log:
                assert piece.base_offset is not None
                found += range(piece.base_offset, piece.base_offset + piece.entries)
    return sorted(found)


def test_a_new_query_and_its_batches(events: Log, reader: MakeReader) -> None:
    """Spark asks for the end of the first batch before it asks for the start."""
    run = reader(startingOffsets="earliest")
    end = run.latestOffset()
    assert read(run, run.initialOffset(), end) == list(range(10))
    assert run.latestOffset() == end
    commit_made_up(events, (5, 50))
    later = run.latestOffset()
    assert read(run, end, later) == list(range(10, 15))


def test_latest_of_a_new_query_misses_nothing_that_comes_while_it_begins(events: Log, reader: MakeReader) -> None:
    run = reader()
    end = run.latestOffset()
    commit_made_up(events, (5, 50))
    assert read(run, run.initialOffset(), end) == []
    assert read(run, end, run.latestOffset()) == list(range(10, 15))


def test_s4_a_restart_goes_on_behind_the_checkpoint(events: Log, reader: MakeReader) -> None:
    """Spark says where the checkpoint ends, and asks for nothing else."""
    run = reader(startingOffsets="earliest")
    end = run.latestOffset()
    assert len(read(run, run.initialOffset(), end)) == 10
    commit_made_up(events, (5, 50))

    run = reader(startingOffsets="latest")
    assert run.partitions(printed(end), printed(end)) == []
    later = run.latestOffset()
    assert read(run, end, later) == list(range(10, 15))
    assert "from" not in later["logs"]["events"]


def test_s4_a_first_batch_that_is_run_again(events: Log, reader: MakeReader) -> None:
    """Its end is in the checkpoint. Its start is not: Spark asks anew, and ``latest`` has moved."""
    run = reader()
    start = run.initialOffset()
    commit_made_up(events, (3, 30))
    end = run.latestOffset()
    assert read(run, start, end) == [10, 11, 12]
    commit_made_up(events, (4, 40))

    run = reader()
    assert run.partitions(printed(end), printed(end)) == []
    assert read(run, run.initialOffset(), end) == [10, 11, 12]
    assert read(run, end, run.latestOffset()) == [13, 14, 15, 16]


def test_a_batch_whose_rows_nobody_needs(events: Log, reader: MakeReader) -> None:
    """Spark then plans no tasks for it, and goes on behind it."""
    run = reader(startingOffsets="earliest")
    end = run.latestOffset()
    commit_made_up(events, (5, 50))
    later = run.latestOffset()
    assert later["logs"]["events"] == {"id": events.log_id, "offset": 15}
    assert read(run, end, later) == list(range(10, 15))


def test_a_log_that_appears_after_a_restart(store: LogStore, events: Log, reader: MakeReader) -> None:
    run = reader(logPattern=".*", startingOffsets="latest")
    end = run.latestOffset()
    assert read(run, run.initialOffset(), end) == []
    commit_made_up(store.create_log("more", RAW, b""), (5, 50))

    run = reader(logPattern=".*", startingOffsets="latest")
    assert run.partitions(printed(end), printed(end)) == []
    assert read(run, end, run.latestOffset(), "more") == list(range(5))


def test_limits_have_no_effect_and_are_named_once(
    events: Log, reader: MakeReader, caplog: pytest.LogCaptureFixture
) -> None:
    run = reader(startingOffsets="earliest", maxEntriesPerTrigger=3, minEntriesPerTrigger=2)
    with caplog.at_level(logging.WARNING):
        end = run.latestOffset()
        run.latestOffset()
    assert read(run, run.initialOffset(), end) == list(range(10))
    (told,) = (one.getMessage() for one in caplog.records if "no effect" in one.getMessage())
    assert told.startswith("maxEntriesPerTrigger and minEntriesPerTrigger: no effect, since only from 4.2 on")

    caplog.clear()
    reader().latestOffset()
    assert "no effect" not in caplog.text


def test_filters_have_no_effect_and_are_named(
    metadata_service_uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark 4.0 would fail at a reader that takes filters, as at an unknown name."""
    monkeypatch.setattr("bk_spark.datasource.batch.reader.HAS_FILTERS", False)
    raw = {"metadataServiceUri": metadata_service_uri, "log": "events", "pushDownFilters": "true"}
    found = batch_reader(parse_options(raw, writing=False, streaming=False), RAW_SCHEMA)
    assert type(found) is BatchReader
    (told,) = (one.getMessage() for one in caplog.records)
    assert told == "option pushDownFilters has no effect: Spark passes filters to sources in Python from 4.1 on"
