"""Commit messages and requests."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest

from bk_spark.log import CommitMessage, CommitRequest, LedgerRange
from bk_spark.protocol.errors import InvalidArgumentError, LogReplacedError

LOG_ID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"


def message(partition: int, *ranges: LedgerRange) -> CommitMessage:
    return CommitMessage(LOG_ID, "app", "run-1", "query-1", 7, partition, ranges)


def test_messages_are_small_and_can_be_pickled() -> None:
    one = message(3, LedgerRange(1 << 40, 0, 99, 100_000, 50_000_000), LedgerRange((1 << 40) + 1, 0, 9, 10, 10))
    data = pickle.dumps(one)
    assert pickle.loads(data) == one
    assert len(data) < 500


def test_ranges_come_in_partition_order_and_neighbours_are_joined() -> None:
    request = CommitRequest.from_messages(
        [
            message(2, LedgerRange(5, 20, 29, 100, 1_000), LedgerRange(6, 0, 4, 50, 500)),
            message(0, LedgerRange(5, 0, 9, 10, 100)),
            message(3),
            message(1, LedgerRange(5, 10, 19, 20, 200)),
            message(4, LedgerRange(6, 6, 9, 1, 1)),
        ]
    )
    assert list(request.ranges) == [
        LedgerRange(5, 0, 29, 130, 1_300),
        LedgerRange(6, 0, 4, 50, 500),
        LedgerRange(6, 6, 9, 1, 1),
    ]


def test_messages_must_agree_with_the_request() -> None:
    one = message(0)
    for other in (
        replace(one, partition=1, app="other"),
        replace(one, partition=1, run="run-2"),
        replace(one, partition=1, query_id="query-2"),
        replace(one, partition=1, batch_id=8),
    ):
        with pytest.raises(InvalidArgumentError, match="partition 1 wrote for"):
            CommitRequest.from_messages([one, other])
    with pytest.raises(LogReplacedError, match="deleted and created again"):
        CommitRequest.from_messages([one, replace(one, partition=1, log_id="11111111-2222-3333-4444-555555555555")])


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"schema_version": 2}, "partition 1 wrote rows of version 2 of the log's schema, others of version 0: write"),
        ({"case_sensitive": True}, "partition 1 compared names of columns with regard to case, others without regard"),
        ({"case_sensitive": True, "schema_version": 2}, "rows of version 2 of the log's schema, others of version 0"),
    ],
)
def test_messages_of_other_columns_say_what_differs(other: dict[str, Any], why: str) -> None:
    one = replace(message(0), case_sensitive=False)
    with pytest.raises(InvalidArgumentError, match=why):
        CommitRequest.from_messages([one, replace(one, partition=1, **other)])


def test_a_version_that_no_schema_can_have_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="of version -1 of the log's schema, and there are versions from 0"):
        CommitRequest.from_messages([replace(message(0), schema_version=-1)])


def test_requests_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="same partition"):
        CommitRequest.from_messages([message(0), message(0)])
    with pytest.raises(InvalidArgumentError, match="name entry 5 of ledger 9"):
        CommitRequest.from_messages([message(0, LedgerRange(9, 5, 9, 1, 1)), message(1, LedgerRange(9, 0, 5, 1, 1))])
    with pytest.raises(InvalidArgumentError, match="no commit message"):
        CommitRequest.from_messages([])
    with pytest.raises(InvalidArgumentError, match="txnVersion"):
        CommitRequest(LOG_ID, "app", "run", "query", -1)
    with pytest.raises(InvalidArgumentError, match="batch id 0"):
        CommitRequest(LOG_ID, "app", "run", "query", 1, anonymous=True)
    with pytest.raises(InvalidArgumentError, match="application"):
        CommitRequest(LOG_ID, "", "run", "query", 1)
    with pytest.raises(InvalidArgumentError, match="query id"):
        CommitRequest(LOG_ID, "app", "run", "q" * 2000, 1)


@pytest.mark.parametrize(
    "values",
    [(-1, 0, 0, 0, 0), (1, -1, 0, 0, 0), (1, 5, 4, 0, 0), (1, 0, 1 << 40, 0, 0), (1, 0, 0, -1, 0), (1, 0, 0, 0, -1)],
)
def test_ranges_that_make_no_sense_are_refused(values: tuple[int, int, int, int, int]) -> None:
    with pytest.raises(InvalidArgumentError, match="not a range"):
        LedgerRange(*values)
