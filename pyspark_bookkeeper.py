"""Makes ``format("bookkeeper")`` available without a register() call.

Spark imports every module named ``pyspark_*`` on the path and registers its ``DefaultSource``.
"""

from bk_spark.datasource.source import BookKeeperDataSource as DefaultSource

__all__ = ["DefaultSource"]
