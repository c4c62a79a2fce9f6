"""Batch reads of a part of a log, of several logs, and of several ledgers."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.config import ClientConfig
from bk_spark.log.formats.settings import EntryFormat, LogSettings
from bk_spark.log.store import LogStore
from bk_spark.log.writer import LogWriter
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.quorum import Quorum
from tests.support.connector import Connector, texts

SECRET = "correct-horse-battery"


@pytest.fixture(scope="module")
def events(connector: Connector) -> str:
    """A log of three writes, with 10, 20 and 30 rows, at different times."""
    name = f"events-{uuid.uuid4().hex[:8]}"
    for prefix, count in (("a", 10), ("b", 20), ("c", 30)):
        connector.write(connector.spark.sql(texts(count, partitions=2, prefix=prefix)), name)
        time.sleep(0.002)  # times of commits are in ms
    return name


@pytest.fixture(scope="module")
def commit_times_ms(logs: LogStore, events: str) -> list[int]:
    times = sorted({segment.commit_time_ms for segment in logs.open_log(events).snapshot().segments()})
    assert len(times) == 3
    return times


def _offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


def _refused(action: Callable[[], object]) -> str:
    with pytest.raises(PySparkException) as raised:
        action()
    (found,) = re.findall(r"^bk_spark\.protocol\.errors\.\w+: (.*)$", str(raised.value), re.MULTILINE)
    return str(found)


def _json(**offsets: int) -> str:
    return json.dumps(offsets)


# --- ranges of one log ---


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (None, None, (0, 60)),
        (7, None, (7, 60)),
        (None, 13, (0, 13)),
        (9, 31, (9, 31)),
        (60, -1, (60, 60)),
        (-2, 1, (0, 1)),
    ],
)
def test_offsets(
    connector: Connector, events: str, start: int | None, end: int | None, expected: tuple[int, int]
) -> None:
    options = {}
    if start is not None:
        options["startingOffsets"] = json.dumps({events: start})
    if end is not None:
        options["endingOffsets"] = json.dumps({events: end})
    rows = connector.read(events, "offset bigint, value string", **options).collect()
    assert [row.offset for row in rows] == list(range(*expected))
    written = [f"{p}{n}" for p, count in (("a", 10), ("b", 20), ("c", 30)) for n in range(count)]
    assert [row.value for row in rows] == written[slice(*expected)]


def test_times(connector: Connector, events: str, commit_times_ms: list[int]) -> None:
    first, second, third = commit_times_ms
    for options, expected in (
        ({"startingTimestamp": second}, (10, 60)),
        ({"startingTimestamp": second + 1}, (30, 60)),
        ({"endingTimestamp": third}, (0, 30)),
        ({"startingTimestamp": first, "endingTimestamp": first + 1}, (0, 10)),
        ({"startingTimestamp": third + 1}, (60, 60)),
        ({"startingTimestamp": second, "endingOffsets": json.dumps({events: 15})}, (10, 15)),
    ):
        assert _offsets(connector.read(events, "offset bigint", **options)) == list(range(*expected)), options


def test_tasks(connector: Connector, events: str) -> None:
    def rows_of_tasks(**options: Any) -> list[int]:
        rows = connector.read(events, "offset bigint", **options).selectExpr("spark_partition_id() task").collect()
        return list(Counter(row.task for row in rows).values())

    assert rows_of_tasks() == [60]
    assert len(rows_of_tasks(minPartitions=7)) == 7
    assert rows_of_tasks(maxRecordsPerPartition=25) == [20, 20, 20]
    assert rows_of_tasks(startingOffsets=json.dumps({events: 50}), maxRecordsPerPartition=5) == [5, 5]


def test_what_is_gone_or_not_there_yet(connector: Connector, log: str) -> None:
    connector.write(connector.spark.sql(texts(5)), log)
    connector.write(connector.spark.sql(texts(4)), log, mode="overwrite")
    start, end = {"startingOffsets": json.dumps({log: 2})}, {"endingOffsets": json.dumps({log: 10})}
    assert _refused(lambda: connector.read(log, **start).count()) == (
        f"option startingOffsets gives log {log} offset 2: offsets 2 to 4 are gone, it starts at 5; give "
        "another, or set failOnDataLoss to false to read the rest"
    )
    assert _refused(lambda: connector.read(log, **end).count()) == (
        f"option endingOffsets gives log {log} offset 10: it ends at 9, offset 9 is not written yet; give another, or "
        "set failOnDataLoss to false to read the rest"
    )
    assert _offsets(connector.read(log, **start, **end, failOnDataLoss="false")) == [5, 6, 7, 8]


def test_a_range_that_cannot_be(connector: Connector, events: str) -> None:
    backwards = {"startingOffsets": json.dumps({events: 5}), "endingOffsets": json.dumps({events: 4})}
    assert _refused(lambda: connector.read(events, **backwards).count()) == (
        f"the read of log {events} starts at 5, after its end at 4: check startingOffsets and endingOffsets"
    )
    text = _refused(lambda: connector.read(events, startingOffsets=_json(other=5)).count())
    assert text == f"option startingOffsets names log other, which this read does not include; it includes {events}"
    text = _refused(lambda: connector.read(events, startingOffsets="latest").count())
    assert text.startswith("option startingOffsets: latest makes a batch read nothing")


def test_a_ledger_deleted_after_planning(
    connector: Connector, log: str, logs: LogStore, client: BlockingClient
) -> None:
    connector.write(connector.spark.sql(texts(30, partitions=3)), log)
    strict, lenient = connector.read(log), connector.read(log, failOnDataLoss="false")
    assert strict.rdd.getNumPartitions() == lenient.rdd.getNumPartitions() == 1
    _, middle, _ = logs.open_log(log).snapshot().segments()
    client.delete(middle.ledger_id)
    assert _refused(strict.collect).startswith(
        f"offsets [10, 20) of log {log} are gone: the ledger was deleted (after truncation, retention or overwrite) "
        "since this read was planned"
    )
    assert _offsets(lenient) == [*range(10), *range(20, 30)]


# --- several logs ---


@pytest.fixture(scope="module")
def family(connector: Connector) -> list[str]:
    """Three raw logs of 1, 2 and 3 rows whose names start alike."""
    base = f"family-{uuid.uuid4().hex[:8]}"
    names = [f"{base}-{kind}" for kind in ("x", "y", "z")]
    for count, name in enumerate(names, 1):
        connector.write(connector.spark.sql(texts(count, partitions=1, prefix=name)), name)
    return names


def test_logs_by_name(connector: Connector, family: list[str]) -> None:
    x, _, z = family
    frame = connector.reader("log string, offset bigint, value string", logs=f"{z}, {x}").load()
    assert [tuple(row) for row in frame.collect()] == [
        *((z, number, f"{z}{number}") for number in range(3)),
        (x, 0, f"{x}0"),
    ]


def test_logs_by_pattern(connector: Connector, family: list[str]) -> None:
    x, y, z = family
    base = x.removesuffix("x")
    counts = connector.reader(logPattern=f"{base}[xyz]").load().groupBy("log").count().collect()
    assert {row["log"]: row["count"] for row in counts} == {x: 1, y: 2, z: 3}
    # The whole name counts.
    assert connector.reader(logPattern=f"{base}.").load().count() == 6
    text = _refused(lambda: connector.reader(logPattern=base).load())
    assert re.fullmatch(
        rf"option logPattern: '{base}' matches none of the \d+ logs under /bk_spark/logs; it must match a log's whole "
        "name",
        text,
    )


def test_offsets_of_several_logs(connector: Connector, family: list[str]) -> None:
    x, y, z = family
    names = ",".join(family)
    start, end = json.dumps({x: -2, y: 1, z: 2}), json.dumps({x: 0, y: -1, z: -1})
    frame = connector.reader("log string, offset bigint", logs=names, startingOffsets=start, endingOffsets=end).load()
    assert [tuple(row) for row in frame.collect()] == [(y, 1), (z, 2)]
    text = _refused(lambda: connector.reader(logs=names, startingOffsets=json.dumps({x: 0, z: 0})).load().count())
    assert text.startswith(f"option startingOffsets has no offset for log {y}: give each an offset")


def test_logs_that_do_not_go_together(connector: Connector, family: list[str], log: str) -> None:
    spark = connector.spark
    arrow, other, locked = f"{log}-arrow", f"{log}-other", f"{log}-locked"
    connector.write(spark.sql("select 1L id, 'a' text"), arrow, entryFormat="arrow")
    connector.write(spark.sql("select 1 id, 'b' text, 2.0D more"), other, entryFormat="arrow")
    connector.write(spark.sql(texts(1)), locked, password=SECRET)
    x = family[0]
    assert _refused(lambda: connector.reader(logs=f"{x},{arrow}").load()) == (
        f"log {x} has entryFormat raw and log {arrow} arrow: read them apart"
    )
    assert _refused(lambda: connector.reader(logs=f"{arrow},{other}").load()) == (
        f"column id is int in log {other} and bigint in log {arrow}: read them apart, or give a schema() without it"
    )
    assert _refused(lambda: connector.reader(logs=f"{x},{locked}").load()) == (
        f"log {locked} has a password, and none was given: give the one it was made with (option password or "
        "passwordFile); all logs of one read must have one password"
    )
    assert _refused(lambda: connector.reader(logs=f"{x},no-such").load()).startswith("there is no log no-such")
    # Columns that both have can be read.
    frame = connector.reader("text string, offset bigint", logs=f"{arrow},{other}").load()
    assert [tuple(row) for row in frame.collect()] == [("a", 0), ("b", 0)]
    assert _refused(lambda: connector.reader("more double", logs=f"{arrow},{other}").load().count()) == (
        f"log {arrow} has no column more; it has id, text: correct the schema"
    )


# --- ledgers ---


def test_several_ledgers(connector: Connector, client: BlockingClient) -> None:
    ledgers = []
    for count in (3, 0, 2):
        writer = client.create()
        for number in range(count):
            writer.append(b"%d-%d" % (count, number))
        writer.close()
        ledgers.append(writer.ledger_id)
    ids = ",".join(map(str, ledgers))
    frame = connector.reader("value string, ledgerId bigint, entryId bigint", ledgerIds=ids).load()
    a, b, c = ledgers
    rows = [("3-0", a, 0), ("3-1", a, 1), ("3-2", a, 2), ("2-0", c, 0), ("2-1", c, 1)]
    assert [tuple(row) for row in frame.collect()] == rows
    start = json.dumps({a: 1, b: 0, c: -2})
    frame = connector.reader("value string", ledgerIds=ids, startingOffsets=start).load()
    assert [row.value for row in frame.collect()] == ["3-1", "3-2", "2-0", "2-1"]
    text = _refused(
        lambda: connector.reader(ledgerIds=ids, endingOffsets=json.dumps({a: 9, b: -1, c: -1})).load().count()
    )
    assert text.startswith(f"option endingOffsets gives ledger {a} entry 9: it ends at 3")
    assert "check option ledgerIds" in _refused(lambda: connector.reader(ledgerIds=f"{a},999999999").load().count())


# --- an open tail ---


@pytest.fixture
def tailed(metadata_service_uri: str, log: str) -> Iterator[LogWriter]:
    """A log writer that has 10 confirmed entries in its open tail, after a sealed segment of 5."""
    with BlockingClient(metadata_service_uri, ClientConfig(explicit_lac_interval_ms=100)) as client:
        settings = LogSettings.create(Quorum(3, 3, 2), DigestType.CRC32C, EntryFormat.RAW, b"")
        opened = LogStore.of(client).create_log(log, settings, b"")
        with opened.open_writer() as sealed:
            sealed.append_many([b"sealed"] * 5)
        with opened.open_writer() as writer:
            writer.append_many([b"open %d" % number for number in range(10)])
            writer.flush()
            # Tells the bookies that the ten are acknowledged.
            writer.append(b"last")
            writer.flush()
            yield writer


def test_a_batch_has_what_an_open_tail_has_confirmed(connector: Connector, log: str, tailed: LogWriter) -> None:
    schema = "offset bigint, value string, timestamp timestamp"
    frame = connector.read(log, schema)
    rows = frame.selectExpr("offset", "value", "unix_millis(timestamp) at_ms").orderBy("offset").collect()
    assert [row.value for row in rows][:15] == ["sealed"] * 5 + [f"open {n}" for n in range(10)]
    assert [row.offset for row in rows] == list(range(len(rows)))
    opening_ms = rows[5].at_ms
    assert {row.at_ms for row in rows[5:]} == {opening_ms}

    part = {"startingOffsets": json.dumps({log: 3}), "endingOffsets": json.dumps({log: 8})}
    assert _offsets(connector.read(log, schema, **part)) == [3, 4, 5, 6, 7]
    inside = {"startingOffsets": json.dumps({log: 7}), "endingOffsets": json.dumps({log: 9})}
    assert [row.value for row in connector.read(log, schema, **inside).collect()] == ["open 2", "open 3"]
    assert connector.read(log, schema, startingTimestamp=opening_ms + 1).count() == 0
    assert _offsets(connector.read(log, schema, endingTimestamp=opening_ms)) == [0, 1, 2, 3, 4]

    # Sealed between planning and reading, it is read all the same, and no more of it than was planned.
    tailed.close()
    assert frame.count() == len(rows)
    assert connector.read(log, schema).count() == 16
