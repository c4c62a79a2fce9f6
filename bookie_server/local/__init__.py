"""A real cluster on this machine: ZooKeeper servers and bookies as separate processes, in one directory.

The command line, the demo, notebooks and tests use it through :class:`LocalCluster`.
"""

from bookie_server.local.cluster import DEFAULT_BOOKIES, LOOPBACK, MAX_BOOKIES, LocalBookie, LocalCluster

__all__ = ["DEFAULT_BOOKIES", "LOOPBACK", "MAX_BOOKIES", "LocalBookie", "LocalCluster"]
