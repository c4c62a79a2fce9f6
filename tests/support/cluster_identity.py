"""The cluster of a test's bookie, with the bookie's cookie."""

from __future__ import annotations

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.metadata.cookie import Cookie, encode_directories
from bookie_server.identity.cluster_identity import ClusterIdentity

ANY_COOKIE = Cookie("bookie:3181", "/journal", encode_directories(["/ledgers"]), "an instance")
#: For bookies without a metadata store.
ANY_IDENTITY = ClusterIdentity("/ledgers", ANY_COOKIE, ANY_COOKIE.instance_id)


def joined(zookeeper: ZooKeeper, root: str, bookie_id: str) -> ClusterIdentity:
    """Add the bookie's cookie to the cluster."""
    instance = zookeeper.get(f"{root}/INSTANCEID")
    assert instance is not None
    cookie = Cookie(bookie_id, "/journal", encode_directories(["/ledgers"]), instance.data.decode())
    identity = ClusterIdentity(root, cookie, cookie.instance_id)
    if zookeeper.exists(identity.cookie_path) is None:
        zookeeper.create(identity.cookie_path, cookie.encode(), make_parents=True)
    return identity
