"""Creates the archive of Spark classes for test sessions: ``python -m tests.support.class_archive FILE``.

Spark's JVM loads some 15,000 classes, which takes most of a short session's time. Loading them from an archive (Java's
AppCDS) takes a third of that. Java ignores an archive that was made for other jars or another Java.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.support.servers import spark_session
from tests.support.streams import numbers, running, wait_for_batch

_WRITTEN_S = 120.0


def main() -> None:
    archive = Path(sys.argv[1])
    archive.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="bk-classes-") as directory:
        spark = spark_session(Path(directory), archive_at_exit=archive)
        rows = numbers(spark, 10, 2).groupBy("number").count()
        sink = rows.writeStream.outputMode("complete").format("memory").queryName("counts")
        with running(sink.option("checkpointLocation", f"{directory}/checkpoint").start()) as query:
            wait_for_batch(query, 2)
        spark.sql("select * from counts").toArrow()
        jvm = spark.sparkContext._gateway.proc
        spark.stop()
        # The JVM writes the archive at its end, and it ends when nobody can send it requests any more.
        jvm.stdin.close()
        jvm.wait(_WRITTEN_S)
    deadline = time.monotonic() + _WRITTEN_S
    while not archive.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    if not archive.exists():
        sys.exit(f"Java did not write {archive}")


if __name__ == "__main__":
    main()
