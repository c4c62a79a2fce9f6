"""Ends the registrations of bookies that were killed.

ZooKeeper keeps them until the session of the killed process expires, and the bookie's next start waits for that: for
seconds, in most tests that do not want to see it. A session timeout of a second is no remedy, because on a busy machine
the sessions of bookies that live would end, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.errors import NoNodeError
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bookie_server.local import LocalBookie, LocalCluster

_START_TIMEOUT_MS = 60_000


def forget(metadata_service_uri: str, bookie_ids: Iterable[str]) -> None:
    """Delete the registrations of dead bookies, as when their sessions end."""
    uri = MetadataServiceUri.parse(metadata_service_uri)
    zookeeper = ZooKeeper(uri.servers)
    zookeeper.start(_START_TIMEOUT_MS)
    try:
        for bookie_id in bookie_ids:
            for place in ("available", "available/readonly"):
                with contextlib.suppress(NoNodeError):
                    zookeeper.delete(f"{uri.root}/{place}/{bookie_id}")
    finally:
        zookeeper.close()


def kill_and_forget(cluster: LocalCluster, *bookies: LocalBookie) -> None:
    """Kill bookies for good: they are not registered any more."""
    for bookie in bookies:
        bookie.kill()
    forget(cluster.metadata_service_uri, [bookie.id for bookie in bookies])


def mend(cluster: LocalCluster, timeout_ms: int = 120_000) -> None:
    """Make all servers run again. Bookies that were killed need not wait for the end of their sessions."""
    dead = [bookie.id for bookie in cluster.bookies if not bookie.running]
    if dead and all(server.running for server in cluster.zookeepers):
        for server in cluster.zookeepers:
            server.resume()
        forget(cluster.metadata_service_uri, dead)
    cluster.heal(timeout_ms)
