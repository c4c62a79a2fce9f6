"""A list of a million segments: opened and planned by a fresh process within 2 seconds and 300 MiB."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.long_logs import (
    LAST_ROWS,
    TASKS,
    kept_bytes,
    make_log,
    read_in_fresh_process,
)
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.log import LogStore

SEGMENTS = 1_000_000
#: To open and plan may take as much CPU as importing so many times: two seconds.
MAX_IMPORTS = 4
MAX_MIB = 300
MAX_KEPT_PER_MICRO_BATCH = 64


@pytest.fixture
def client(metadata_service_uri: str) -> Iterator[BlockingClient]:
    with BlockingClient(metadata_service_uri) as running:
        yield running


@pytest.mark.turns(2)
@pytest.mark.parametrize("indexed", [False, True])
def test_a_million_segments_are_opened_and_planned_in_no_time(
    client: BlockingClient, metadata_service_uri: str, fresh_root: str, indexed: bool
) -> None:
    root = f"{fresh_root}/logs"
    log = make_log(LogStore.of(client, root), "long", SEGMENTS, indexed=indexed)
    assert log.snapshot().segment_at(log.snapshot().next_offset - LAST_ROWS)
    kept = kept_bytes(client.zookeeper, f"{root}/long")
    assert kept / (SEGMENTS / TASKS) <= (MAX_KEPT_PER_MICRO_BATCH / 4 if indexed else MAX_KEPT_PER_MICRO_BATCH)

    for everything in (False, True):
        reading = read_in_fresh_process(metadata_service_uri, root, "long", everything=everything)
        print(reading)
        assert (reading.segments == SEGMENTS) == everything
        assert reading.peak_mib["plan"] <= MAX_MIB
        # CPU time, since other tests may have the machine, and against that of the imports, which take half a second
        # where all is quiet. The time on the clock is the benchmark's.
        assert reading.cpu_seconds["plan"] <= (1 + MAX_IMPORTS) * reading.cpu_seconds["imports"]
