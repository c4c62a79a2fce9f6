"""Fixtures of the Spark tests; ``spark`` and ``cluster`` are in tests/conftest.py."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.datasource.pyspark_api import HAS_LIMITS
from bk_spark.log.store import LogStore
from tests.support.connector import Connector

#: Without Spark, and with limits in most of its tests.
collect_ignore = [] if HAS_LIMITS else ["test_stream_source_planning.py"]


@pytest.fixture(scope="session")
def connector(spark: SparkSession, metadata_service_uri: str) -> Connector:
    return Connector(spark, metadata_service_uri)


@pytest.fixture(scope="session")
def client(metadata_service_uri: str) -> Iterator[BlockingClient]:
    """A ledger client beside Spark."""
    with BlockingClient(metadata_service_uri) as client:
        yield client


@pytest.fixture(scope="session")
def logs(client: BlockingClient) -> LogStore:
    """The logs as the log layer sees them."""
    return LogStore(client.zookeeper)


@pytest.fixture
def log(request: pytest.FixtureRequest) -> str:
    """The name of a log that does not exist yet."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name.removeprefix("test_")).strip("-")
    return f"{name[:100]}-{uuid.uuid4().hex[:8]}"
