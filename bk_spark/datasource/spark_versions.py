"""The PySpark versions that the data source supports. Does not import Spark."""

from __future__ import annotations

import re
from typing import Final

#: The oldest and newest minor versions that the tests have run with.
OLDEST: Final = (4, 0)
NEWEST: Final = (4, 3)
RANGE: Final = "{}.{} to {}.{}".format(*OLDEST, *NEWEST)
_INSTALL: Final = 'pip install "pyspark>={}.{}"'.format(*OLDEST)


def minor_version(version: str) -> tuple[int, int] | None:
    """Parse ``4.2.0.dev1`` as ``(4, 2)``. None if ``version`` is not a version."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return None if found is None else (int(found[1]), int(found[2]))


def unfit(version: str | None) -> str | None:
    """Explain why PySpark ``version`` (None: not installed) is unsupported, and what to do. None if it is supported,
    which includes versions newer than all tested ones."""
    if version is None:
        return f"PySpark is not installed, and the data source needs PySpark {RANGE}: pip install 'bk-spark[spark]'"
    minor = minor_version(version)
    if minor is None or minor >= OLDEST:
        return None
    return (
        f"PySpark {version} is too old: the data source needs PySpark {RANGE}. {_INSTALL}, for driver and executors, "
        "and unset SPARK_HOME if it names another Spark"
    )
