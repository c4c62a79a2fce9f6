"""Importing this module checks that the data source supports the installed PySpark.

Before 4.0, Spark has no data sources in Python. :mod:`bk_spark.datasource.pyspark_api` says what later releases lack.
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
