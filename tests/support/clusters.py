"""Clusters of their own, in a ZooKeeper that runs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bk_spark.bookie.metadata.cluster_init import init_cluster
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bookie_server.local import LocalCluster
from tests.support.bookie import BookieProcess


def new_cluster(zk_only: LocalCluster, name: str) -> str:
    """URI of an empty cluster, whose znodes begin with ``name``."""
    servers = MetadataServiceUri.parse(zk_only.metadata_service_uri).servers
    root = f"/{name}-{uuid.uuid4().hex[:12]}"
    zookeeper = ZooKeeper(servers)
    zookeeper.start()
    try:
        init_cluster(zookeeper, root)
    finally:
        zookeeper.close()
    return str(MetadataServiceUri(servers, root, "hierarchical"))


@contextmanager
def serving(bookies: Sequence[BookieProcess]) -> Iterator[None]:
    """Start the bookies at the same time, and wait until each serves. Afterwards end them."""
    try:
        for bookie in bookies:
            bookie.launch()
        for bookie in bookies:
            assert bookie.wait_line("serves on"), bookie.lines
        yield
    finally:
        for bookie in bookies:
            bookie.end()
