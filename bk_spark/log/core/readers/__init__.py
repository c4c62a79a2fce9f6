"""How readers of entries proceed: over a range of offsets, or along with a growing log, whose tail may be open.

Only :mod:`bk_spark.log.reader` and the simulator, which run these machines, import this room.
"""
