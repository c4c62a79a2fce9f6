"""What PySpark gives only below its own surface. No other module of the tests reaches there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def has_gateway() -> bool:
    """Whether this process has begun a JVM for Spark."""
    from pyspark import SparkContext

    return SparkContext._gateway is not None


def jvm_process(session: SparkSession) -> Any:
    """The JVM that this process has begun."""
    return session.sparkContext._gateway.proc


def status_store(session: SparkSession) -> Any:
    """What Spark keeps of its queries, and shows in its UI."""
    return session._jsparkSession.sharedState().statusStore()


def plan_of(frame: DataFrame) -> str:
    """All plans of a query, as text."""
    return str(frame._jdf.queryExecution().toString())
