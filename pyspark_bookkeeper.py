"""Makes ``format("bookkeeper")`` available without a register() call.

Spark imports every module named ``pyspark_*`` on the path and registers its ``DefaultSource``. It silently skips a
module that cannot be imported. A PySpark that is too old therefore gets a source that reports this when used.
"""

from typing import Any, NoReturn

import pyspark
from pyspark.sql.datasource import DataSource

from bk_spark.datasource.spark_versions import unfit

_UNFIT = unfit(pyspark.__version__)


class _RefusingSource(DataSource):
    """Replaces the data source where it is unsupported."""

    def __init__(self, options: Any) -> NoReturn:
        raise ImportError(_UNFIT)

    @classmethod
    def name(cls) -> str:
        return "bookkeeper"


if _UNFIT is None:
    from bk_spark.datasource.source import BookKeeperDataSource as DefaultSource
else:
    DefaultSource = _RefusingSource  # type: ignore[assignment, misc]

__all__ = ["DefaultSource"]
