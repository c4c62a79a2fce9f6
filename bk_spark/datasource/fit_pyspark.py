"""Whether this PySpark is one that the data source works with. Importing this module checks it.

Before 4.2 Spark neither passes limits to streaming sources in Python nor has ``pyspark.sql.streaming.datasource``, and
before 4.1 no streaming sink gets Arrow batches.
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
