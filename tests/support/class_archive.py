"""Creates the archives of Spark's and ZooKeeper's classes for tests: ``python -m tests.support.class_archive FILE``.

``FILE`` is that of Spark; ZooKeeper's is beside it. Spark's JVM loads some 15,000 classes, which takes most of a short
session's time. Loading them from an archive (Java's AppCDS) takes a third of that. Java ignores an archive that was
made for other jars or another Java.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bookie_server.local import LocalCluster
from bookie_server.local.process import GuardedProcessGroup
from tests.support.servers import ZOOKEEPER_ARCHIVE, spark_session
from tests.support.spark_inside import jvm_process
from tests.support.streams import numbers, running, wait_for_batch

_WRITTEN_S = 120.0


class _ArchivingGroup(GuardedProcessGroup):
    def _popen(self, command: Sequence[str], **how: Any) -> subprocess.Popen[bytes]:
        java, *arguments = command
        return super()._popen([java, f"-XX:ArchiveClassesAtExit={ZOOKEEPER_ARCHIVE}", *arguments], **how)


class _ArchivingCluster(LocalCluster):
    _group_class = _ArchivingGroup


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
        jvm = jvm_process(spark)
        spark.stop()
        # The JVM writes the archive at its end, and it ends when nobody can send it requests any more.
        jvm.stdin.close()
        jvm.wait(_WRITTEN_S)
    with tempfile.TemporaryDirectory(prefix="bk-classes-") as directory:
        ZOOKEEPER_ARCHIVE.unlink(missing_ok=True)
        with _ArchivingCluster(directory, bookies=0):
            pass
    deadline = time.monotonic() + _WRITTEN_S
    for written in (archive, ZOOKEEPER_ARCHIVE):
        while not written.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        if not written.exists():
            sys.exit(f"Java did not write {written}")


if __name__ == "__main__":
    main()
