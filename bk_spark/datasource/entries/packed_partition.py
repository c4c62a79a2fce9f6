"""Partitions whose pickle is made by Python's own pickler.

Spark pickles each partition of a plan with cloudpickle, which looks up every class in it in Python code, and takes most
of the time of a plan. The fields are therefore pickled here. Spark's own pickler sees bytes.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from pyspark.sql.datasource import InputPartition


class PackedPartition(InputPartition):
    """What one task reads. For dataclasses: their fields are all that reaches the task."""

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return _unpacked, (pickle.dumps((type(self), vars(self)), pickle.HIGHEST_PROTOCOL),)


def _unpacked(packed: bytes) -> Any:
    made, fields = pickle.loads(packed)
    return made(**fields)
