"""Reads as of a commit (option asOf), and starts at a time for each log."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.log.store import LogStore
from tests.support.connector import Connector, texts


def _refused(action: Callable[[], object]) -> str:
    with pytest.raises(PySparkException) as raised:
        action()
    (found,) = re.findall(r"^bk_spark\.protocol\.errors\.\w+: (.*)$", str(raised.value), re.MULTILINE)
    return str(found)


@pytest.fixture(scope="module")
def nightly(connector: Connector) -> str:
    """A log of three writes as transactions nightly:1 to 3; the second overwrites the first."""
    name = f"nightly-{uuid.uuid4().hex[:8]}"
    for version, mode in ((1, "append"), (2, "overwrite"), (3, "append")):
        rows = connector.spark.sql(texts(5 * version, partitions=2, prefix=f"v{version}-"))
        connector.write(rows, name, mode=mode, txnAppId="nightly", txnVersion=str(version))
    return name


def _values(connector: Connector, log: str, **options: str) -> list[str]:
    return sorted(bytes(row.value).decode() for row in connector.read(log, **options).collect())


def test_a_log_as_of_a_transaction_an_offset_and_a_time(connector: Connector, logs: LogStore, nightly: str) -> None:
    present = _values(connector, nightly)
    assert len(present) == 25
    by_version = {version: _values(connector, nightly, asOf=f"nightly:{version}") for version in (1, 2, 3)}
    assert [len(by_version[version]) for version in (1, 2, 3)] == [5, 10, 25]
    assert by_version[3] == present
    assert all(value.startswith("v1-") for value in by_version[1])
    assert all(value.startswith("v2-") for value in by_version[2])
    assert _values(connector, nightly, asOf="4") == by_version[1]
    assert _values(connector, nightly, asOf=json.dumps({nightly: 14})) == by_version[2]
    _, commits = logs.open_log(nightly).history()
    assert [commit.batch for commit in commits] == [3, 2, 1]
    assert _values(connector, nightly, asOf=f"time:{commits[1].time_ms}") == by_version[2]
    # A range within the state.
    assert len(_values(connector, nightly, asOf="nightly:1", startingOffsets=json.dumps({nightly: 3}))) == 2
    text = _refused(lambda: _values(connector, nightly, asOf="nightly:1", endingOffsets=json.dumps({nightly: 6})))
    assert f"gives log {nightly} offset 6: it ends at 5" in text


@pytest.mark.parametrize(
    ("as_of", "why"),
    [
        ("nightly:4", "there is no commit of version 4 by application 'nightly'"),
        ("25000", "there is no commit with offset 25000 yet"),
        ("2125-01-01", "is in the future"),
        ("1999-01-01", "there is no commit at 1999-01-01T00:00:00.000Z or before"),
        ('{"other": 7}', "option asOf names log other, which this read does not include"),
    ],
)
def test_commits_that_do_not_exist(connector: Connector, nightly: str, as_of: str, why: str) -> None:
    assert why in _refused(lambda: _values(connector, nightly, asOf=as_of))


def test_what_the_policy_no_longer_keeps(connector: Connector, client: BlockingClient) -> None:
    name = f"gone-{uuid.uuid4().hex[:8]}"
    for mode in ("append", "overwrite"):
        connector.write(connector.spark.sql(texts(5, partitions=1)), name, mode=mode)
    assert len(_values(connector, name, asOf="2")) == 5
    LogStore.of(client).open_log(name, password=b"").maintain(force=True)
    text = _refused(lambda: _values(connector, name, asOf="2", failOnDataLoss="false"))
    assert f"log {name}: the commit with offset 2 is gone, the first offset that is kept is 5" in text
    assert f"bkctl log retention {name} --history" in text


def test_a_time_for_each_log(connector: Connector, logs: LogStore, nightly: str) -> None:
    other = f"other-{uuid.uuid4().hex[:8]}"
    connector.write(connector.spark.sql(texts(4, partitions=1)), other)
    (commit,) = logs.open_log(other).history()[1]
    last = logs.open_log(nightly).history()[1][0]
    options = {"logs": f"{nightly},{other}"}
    times = {nightly: last.time_ms, other: commit.time_ms}

    def read(times: dict[str, int]) -> DataFrame:
        return connector.reader(startingOffsetsByTimestamp=json.dumps(times), **options).load()

    frame = read(times)
    assert frame.count() == last.rows + 4
    times[other] += 1
    text = _refused(lambda: read(times).count())
    assert f"gives log {other} the time" in text
    assert "set startingOffsetsByTimestampStrategy to latest" in text
    options["startingOffsetsByTimestampStrategy"] = "latest"
    assert read(times).count() == last.rows
