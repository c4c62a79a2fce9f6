"""Importing this module checks that the data source supports the installed PySpark.

Before 4.2, Spark has no ``pyspark.sql.streaming.datasource`` and passes no limits to streaming sources in Python.
Before 4.1, streaming sinks get no Arrow batches.
"""

from __future__ import annotations

from bk_spark.datasource.spark_versions import unfit

try:
    import pyspark
except ModuleNotFoundError as error:
    raise ImportError(unfit(None)) from error

_UNFIT = unfit(pyspark.__version__)
if _UNFIT is not None:
    raise ImportError(_UNFIT)
