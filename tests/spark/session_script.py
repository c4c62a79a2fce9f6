"""A Spark session of its own, whose tasks fail once, and that keeps an event log: run as a script by
test_other_sessions.

Takes a JSON object as its argument, prints one as its last line.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from tests.spark import secret_jobs
from tests.support.connector import Connector
from tests.support.servers import spark_session

#: More than the sockets between the workers hold: the sink has taken some before the end comes.
ROWS = 20_000
WIDTH = 200


def rows_of(spark: SparkSession) -> DataFrame:
    return spark.sql(f"select lpad(string(id), {WIDTH}, '.') as value from range(0, {ROWS}, 1, 2)")


def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Both tasks fail at their end, the first time: one raises, the other's worker dies."""
    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0:
        if context.partitionId() == 0:
            raise RuntimeError("the first attempt fails")
        os._exit(9)


def fingerprint(frame: DataFrame) -> str:
    """Of a raw log's values in their order."""
    rows = frame.select("offset", "value").orderBy("offset").collect()
    return hashlib.sha256(b"".join(len(row.value).to_bytes(4, "big") + row.value for row in rows)).hexdigest()


def worker_uses_unix_sockets(spark: SparkSession) -> bool:
    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.record_batch({"seen": [os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED", "")]})

    row = spark.range(1).mapInArrow(look, "seen string").first()
    return row is not None and row.seen.lower() == "true"


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    directory = Path(given["directory"])
    spark = spark_session(
        directory,
        "local[2,3]",
        spark__python__unix__domain__socket__enabled="true",
        spark__sql__execution__arrow__maxRecordsPerBatch="1000",
        **secret_jobs.settings(directory),
    )
    connector = Connector(spark, given["uri"])
    broken = rows_of(spark).mapInArrow(fail_once, "value string")
    connector.write(broken, given["raw_log"])
    connector.write(broken, given["arrow_log"], entryFormat="arrow")
    answer = {
        "unix_sockets": worker_uses_unix_sockets(spark),
        "fingerprint": fingerprint(connector.read(given["parents_log"], password=given["password"])),
        "arrow_sum": connector.read(given["parents_arrow_log"]).selectExpr("sum(id)").first()[0],  # type: ignore[index]
        "errors": secret_jobs.run_jobs(spark, given["guarded"], directory),
    }
    secret_jobs.keep_what_is_shown(spark, directory)
    # The session and the process end right after the save.
    connector.write(spark.sql("select cast(id as string) value from range(10)"), given["short_log"])
    spark.stop()
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
