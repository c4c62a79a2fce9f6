"""Options of the JVMs that run Apache's code: small and quick to start for tests, as shipped for benchmarks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

#: Created by ``make`` (see class_archive.py). Without it the JVMs only start more slowly.
CLASS_ARCHIVE: Final = Path(sys.prefix) / "apache.jsa"

#: Of every JVM here.
COMMON: Final = (
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.net.preferIPv4Stack=true",
    "-Dio.netty.leakDetection.level=disabled",
    "-Dlog4j2.configurationFile=log4j2-interop.xml",
)

#: The environment of tests is shared by servers, Spark among them: no compiler beyond the first, little memory.
_SMALL: Final = (
    "-XX:MaxDirectMemorySize=256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    # An archive of other jars, or of another Java, is ignored. Its warning must not reach the harness's output.
    "-Xlog:disable",
    "-Xlog:all=error:stderr",
    *((f"-XX:SharedArchiveFile={CLASS_ARCHIVE}",) if CLASS_ARCHIVE.exists() else ()),
)
SMALL_BOOKIE: Final = ("-Xmx256m", *_SMALL)
SMALL_CLIENT: Final = ("-Xmx512m", *_SMALL)

#: What Apache's ``bin/common.sh`` gives a bookie from Java 9 on; a client that is to be fast needs the same.
AS_SHIPPED: Final = (
    "-Xms1g",
    "-Xmx1g",
    "-XX:MaxDirectMemorySize=2g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=10",
    "-XX:+ParallelRefProcEnabled",
    "-XX:+DisableExplicitGC",
    # Netty and BookKeeper reach the JDK's own buffers, checksums and file descriptors.
    "-Dio.netty.tryReflectionSetAccessible=true",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
    "--add-opens=java.base/java.io=ALL-UNNAMED",
    "--add-opens=java.base/java.util.zip=ALL-UNNAMED",
)
