"""A job that saves once and ends: run as a script by test_short_jobs. Takes a directory, a cluster's URI and a log."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.connector import Connector
from tests.support.servers import spark_session


def main() -> None:
    directory, uri, log = sys.argv[1:]
    spark = spark_session(Path(directory))
    Connector(spark, uri).write(spark.sql("select cast(id as string) value from range(10)"), log)
    spark.stop()


if __name__ == "__main__":
    main()
