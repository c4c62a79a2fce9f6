"""A client whose clock is wrong, beside others, on real servers: what the policy keeps stays, and times stay true."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.log import LogStore

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


@contextmanager
def time_of_day(ahead_ms: int) -> Iterator[None]:
    """What happens inside happens on a machine whose clock is so far ahead."""
    real = time.time_ns
    with patch.object(time, "time_ns", lambda: real() + ahead_ms * 1_000_000):
        yield


@pytest.fixture
def client(metadata_service_uri: str) -> Iterator[BlockingClient]:
    with BlockingClient(metadata_service_uri) as running:
        yield running


@pytest.mark.parametrize("ahead_ms", [-8 * DAY_MS, 0, 8 * DAY_MS])
def test_the_difference_of_the_clocks_is_measured(client: BlockingClient, ahead_ms: int) -> None:
    # Nothing is there yet.
    store = LogStore.of(client, f"/clocks-{uuid.uuid4().hex}/logs")
    with time_of_day(ahead_ms):
        for _ in range(2):
            difference = store.clock_difference()
            assert difference.at_most_ms - difference.at_least_ms < MINUTE_MS / 2
            assert abs(difference.at_least_ms - ahead_ms) < MINUTE_MS / 2
            assert difference.is_small == (not ahead_ms)
    assert store.list_logs() == []
