"""Where machines of logs meet ZooKeeper and bookies: pages, snapshots, ledgers, locks and watches of one log.

:mod:`blocking` runs the machines in the caller's thread. The rest of :mod:`bk_spark.log` comes in; others may only name
the type of a snapshot.
"""
