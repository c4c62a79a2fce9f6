"""Fixtures for tests with Apache's Java client and bookies. The ``cluster`` of ours is in tests/conftest.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bk_spark.protocol.metadata_uri import MetadataServiceUri
from bookie_server.local import LocalCluster
from tests.interop.apache import ApacheBookies
from tests.interop.java_client import JavaClient


@pytest.fixture(scope="session")
def java_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    """Apache's Java client in a JVM of its own."""
    with JavaClient(tmp_path_factory.mktemp("java-client") / "harness.log") as client:
        yield client


@pytest.fixture(scope="session")
def apache_cluster(
    tmp_path_factory: pytest.TempPathFactory, zk_only: LocalCluster, java_client: JavaClient
) -> Iterator[ApacheBookies]:
    """Three of Apache's bookies in a cluster that Apache's code initialised: of ours only ZooKeeper's start."""
    servers = MetadataServiceUri.parse(zk_only.metadata_service_uri).servers
    uri = str(MetadataServiceUri(servers, "/apache-ledgers", "hierarchical"))
    java_client.init_cluster(uri)
    with ApacheBookies(tmp_path_factory.mktemp("apache-cluster"), uri, 3) as cluster:
        yield cluster
        java_client.forget(uri)
