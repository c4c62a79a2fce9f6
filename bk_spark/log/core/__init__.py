"""What changes a log, without I/O: the list of segments, commits, the open tail, the index; as plans and machines.

:mod:`bk_spark.log.blocking` runs the machines against ZooKeeper, the simulator against its model.
"""
