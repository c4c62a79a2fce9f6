"""The range of PySpark that the data source works with. Imports nothing of Spark."""

from __future__ import annotations

import re
from typing import Final

#: First and last minor version that the tests have run with.
OLDEST: Final = (4, 2)
NEWEST: Final = (4, 3)
RANGE: Final = "{}.{} to {}.{}".format(*OLDEST, *NEWEST)
_INSTALL: Final = 'pip install "pyspark>={}.{}"'.format(*OLDEST)


def minor_version(version: str) -> tuple[int, int] | None:
    """``(4, 2)`` of ``4.2.0.dev1``; None for what is no version."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return None if found is None else (int(found[1]), int(found[2]))


def unfit(version: str | None) -> str | None:
    """Why the data source does not work with PySpark ``version`` (None: there is none), and what to do; None where it
    does, also for versions that are newer than all that were tried."""
    if version is None:
        return f"PySpark is not installed, and the data source needs PySpark {RANGE}: pip install 'bk-spark[spark]'"
    minor = minor_version(version)
    if minor is None or minor >= OLDEST:
        return None
    return (
        f"PySpark {version} is too old: the data source needs PySpark {RANGE}. {_INSTALL}, for driver and executors, "
        "and unset SPARK_HOME where it names another Spark"
    )
