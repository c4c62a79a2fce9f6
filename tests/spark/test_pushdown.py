"""Filters that let a batch read less, behind option pushDownFilters and Spark's own switch."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from bk_spark.log.store import LogStore
from tests.support.connector import Connector, texts
from tests.support.sparks import needs_filters

pytestmark = needs_filters

CONF = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def events(connector: Connector) -> str:
    """A log of three writes of 100 rows each, two ledgers a write."""
    name = f"events-{uuid.uuid4().hex[:8]}"
    for prefix in "abc":
        connector.write(connector.spark.sql(texts(100, partitions=2, prefix=prefix)), name)
    return name


def _read(connector: Connector, log: str, schema: str | None = None, **options: object) -> DataFrame:
    return connector.read(log, schema, pushDownFilters="true", maxRecordsPerPartition=10, **options)


@pytest.mark.parametrize("condition", ["true", "offset > 5"])
def test_switched_off_in_spark_every_read_says_so(connector: Connector, events: str, condition: str) -> None:
    """The documentation cites this text, which is Spark's."""
    with pytest.raises(PySparkException) as raised:
        _read(connector, events).where(condition).count()
    text = str(raised.value)
    assert "[DATA_SOURCE_PUSHDOWN_DISABLED]" in text
    assert "PushDownFiltersReader" in text
    assert f"{CONF}' is false. Set it to true" in text


def test_switched_on_without_the_option_nothing_changes(connector: Connector, events: str) -> None:
    with connector.conf(spark__sql__python__filterPushdown__enabled="true"):
        frame = connector.read(events, maxRecordsPerPartition=10).where("offset = 7")
        assert frame.rdd.getNumPartitions() == 30
        assert frame.count() == 1


def test_less_is_read(connector: Connector, logs: LogStore, events: str) -> None:
    segments = list(logs.open_log(events).snapshot().segments())
    ledger, second_ms = segments[3].ledger_id, segments[2].commit_time_ms
    second = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=second_ms)
    literal = f"timestamp '{second.isoformat()}'"
    with connector.conf(spark__sql__python__filterPushdown__enabled="true"):
        frame = _read(connector, events, "value string, offset bigint, ledgerId bigint, timestamp timestamp")
        assert frame.rdd.getNumPartitions() == 30
        for condition, offsets, tasks in (
            ("offset BETWEEN 95 AND 104 AND value LIKE '%9'", [99], 1),
            ("offset IN (3, 299)", [3, 299], 10),
            (f"ledgerId = {ledger}", list(range(150, 200)), 5),
            (f"timestamp = {literal}", list(range(100, 200)), 10),
            (f"timestamp < {literal} AND offset >= 90", list(range(90, 100)), 1),
            # Spark makes one empty task of none.
            ("offset >= 300", [], 1),
            ("offset % 100 = 0", [0, 100, 200], 30),
            (f"ledgerId <> {ledger} AND offset > 140 AND offset < 152", list(range(141, 150)), 2),
        ):
            found = frame.where(condition)
            assert [row.offset for row in found.collect()] == offsets, condition
            assert found.rdd.getNumPartitions() == tasks, condition


def test_a_column_of_the_logs_own_is_no_offset(connector: Connector, log: str) -> None:
    connector.write(connector.spark.sql("SELECT id + 1000 AS offset FROM range(0, 20, 1, 1)"), log, entryFormat="arrow")
    with connector.conf(spark__sql__python__filterPushdown__enabled="true"):
        assert [row.offset for row in _read(connector, log).where("offset = 1007").collect()] == [1007]
