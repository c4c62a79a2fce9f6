"""A job for ``spark-submit``: writes and reads a log, and says where executors have the package from. Takes a cluster's
URI and a log, prints a JSON object as its last line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession


def whence(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import bk_spark

    for _ in batches:
        yield pa.record_batch({"python": [sys.executable], "package": [bk_spark.__file__]})


def main() -> None:
    uri, log = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    here = {"metadataServiceUri": uri, "log": log}
    rows = spark.range(0, 100_000, 1, 4).selectExpr("id", "concat('row ', id) as name")
    rows.write.format("bookkeeper").mode("append").options(**here, entryFormat="arrow").save()
    read = spark.read.format("bookkeeper").options(**here).load()
    (found,) = spark.range(0, 1, 1, 1).mapInArrow(whence, "python string, package string").collect()
    answer = {"rows": read.count(), "differ": rows.exceptAll(read).count(), **found.asDict()}
    spark.stop()
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
