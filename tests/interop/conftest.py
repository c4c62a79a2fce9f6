"""Fixtures for tests with Apache's Java client and bookies. The ``cluster`` of ours is in tests/conftest.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bk_spark.bookie.metadata.cluster_init import init_cluster
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bookie_server.local import LocalCluster
from tests.interop.apache import ApacheBookies, MixedBookies
from tests.interop.java_client import JavaClient
from tests.interop.matrix import Sides


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


@pytest.fixture(scope="session")
def mixed_cluster(
    tmp_path_factory: pytest.TempPathFactory, zk_only: LocalCluster, java_client: JavaClient
) -> Iterator[MixedBookies]:
    """Three of our bookies and two of Apache's in a cluster that our code initialised, whose ledger ids begin
    above 2³¹. Leave all of them running."""
    servers = MetadataServiceUri.parse(zk_only.metadata_service_uri).servers
    root = "/mixed-ledgers"
    zookeeper = ZooKeeper(servers)
    zookeeper.start()
    try:
        init_cluster(zookeeper, root)
        # Where this exists, ids come from it alone.
        zookeeper.ensure_path(f"{root}/idgen-long/HOB-0000000001")
    finally:
        zookeeper.close()
    uri = str(MetadataServiceUri(servers, root, "hierarchical"))
    with MixedBookies(tmp_path_factory.mktemp("mixed-cluster"), uri, ours=3, apaches=2) as cluster:
        yield cluster
        java_client.forget(uri)


@pytest.fixture(scope="module", params=["our-bookies", "apaches-bookies"])
def bookies_uri(request: pytest.FixtureRequest, java_client: JavaClient) -> str:
    """Metadata service URI of the cluster of ours, then of Apache's: each test that uses it runs on both."""
    if request.param == "our-bookies":
        ours: LocalCluster = request.getfixturevalue("cluster")
        ours.heal()
        uri = ours.metadata_service_uri
    else:
        apaches: ApacheBookies = request.getfixturevalue("apache_cluster")
        apaches.start()
        uri = apaches.metadata_service_uri
    # Modules before may have killed bookies: Java's writers would find out at their first add, and fail, since
    # there is no fourth bookie to replace one with.
    java_client.forget(uri)
    return uri


@pytest.fixture
def sides(bookies_uri: str, java_client: JavaClient) -> Iterator[Sides]:
    """Both clients, over both wire protocols, on either kind of bookies."""
    with Sides(java_client, bookies_uri) as sides:
        yield sides


@pytest.fixture
def mixed_sides(mixed_cluster: MixedBookies, java_client: JavaClient) -> Iterator[Sides]:
    """Both clients, over both wire protocols, where bookies of both kinds share ensembles."""
    with Sides(java_client, mixed_cluster.metadata_service_uri) as sides:
        yield sides
