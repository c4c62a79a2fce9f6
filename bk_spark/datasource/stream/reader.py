"""Streaming reads: ``readStream.format("bookkeeper")``."""

from __future__ import annotations

from bk_spark.datasource.pyspark_api import HAS_LIMITS

if HAS_LIMITS:
    from bk_spark.datasource.stream.limited_reader import LimitedReader as StreamReader
else:
    from bk_spark.datasource.stream.unlimited_reader import (  # type: ignore[assignment]
        UnlimitedReader as StreamReader,
    )

__all__ = ["StreamReader"]
