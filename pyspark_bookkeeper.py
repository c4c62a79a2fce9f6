"""Found by Spark through its name: makes ``format("bookkeeper")`` known without a register() call.

Spark imports every module named ``pyspark_*`` on the path and takes its ``DefaultSource``. A module that cannot be
imported is passed over in silence; so a PySpark that is too old gets a source that says so when it is used.
"""

from typing import Any, NoReturn

import pyspark
from pyspark.sql.datasource import DataSource

from bk_spark.datasource.spark_versions import unfit

_UNFIT = unfit(pyspark.__version__)


class _RefusingSource(DataSource):
    """Stands where the data source does not work."""

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
