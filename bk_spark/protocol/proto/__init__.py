"""The services of bk_spark over gRPC, for clients in any language. ``make proto`` makes the modules of the files.

The package of the messages carries the version: a change that an older peer would misread makes ``bk_spark.v2``.
"""
