"""Changes of a log without I/O: the segment list, commits, the open tail and the index, as plans and machines.

:mod:`bk_spark.log.io.blocking` runs the machines against ZooKeeper; the simulator runs them against its model.
"""
