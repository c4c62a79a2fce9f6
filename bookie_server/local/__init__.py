"""A real cluster on this machine: ZooKeeper servers and bookies as processes of their own, in one directory.

The command line, the demo, notebooks and tests come in here, by :class:`LocalCluster`.
"""

from bookie_server.local.cluster import DEFAULT_BOOKIES, LOOPBACK, MAX_BOOKIES, LocalBookie, LocalCluster

__all__ = ["DEFAULT_BOOKIES", "LOOPBACK", "MAX_BOOKIES", "LocalBookie", "LocalCluster"]
