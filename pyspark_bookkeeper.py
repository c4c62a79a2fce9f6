"""Found by Spark through its name: makes ``format("bookkeeper")`` known without a register() call.

Spark imports every module named ``pyspark_*`` on the path and takes its ``DefaultSource``.
"""

from bk_spark.datasource.source import BookKeeperDataSource as DefaultSource

__all__ = ["DefaultSource"]
