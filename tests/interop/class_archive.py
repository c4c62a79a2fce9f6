"""Creates the archive of classes for the JVMs that run Apache's code: ``python -m tests.interop.class_archive FILE``.

Most of a short process's time goes into loading and checking classes. As tests/support/class_archive.py does for Spark,
but with one archive for bookies, clients, shells and daemons: of all classes that two of them load.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bookie_server.local import LocalCluster
from bookie_server.local.zookeeper import find_java
from tests.interop import jvm
from tests.interop.apache import STOP_TIMEOUT_MS, ApacheBookie, Bookies
from tests.interop.java_client import WIRES, JavaClient
from tests.interop.maven_build import harness_classpath
from tests.support.servers import start_timeout_ms


def main() -> None:
    archive = Path(sys.argv[1])
    archive.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="bk-classes-") as name:
        directory = Path(name)
        _run(directory)
        merged = directory / "classes"
        merged.write_text("".join(f"{line}\n" for line in _loaded(directory)), "utf-8")
        # G1, because no other collector archives objects. All of them can use the archive.
        dump = ["-Xshare:dump", "-XX:+UseG1GC", f"-XX:SharedClassListFile={merged}"]
        command = [find_java(), *dump, f"-XX:SharedArchiveFile={archive}", "-cp", harness_classpath()]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _run(directory: Path) -> None:
    """Let a bookie and a client do a little, and write down what they load."""

    class ListedBookie(ApacheBookie):
        jvm_options = _listing(jvm.SMALL_BOOKIE, directory / "bookie.list")

    with (
        LocalCluster(directory / "zookeeper", bookies=0, start_timeout_ms=start_timeout_ms()) as zookeeper,
        JavaClient(directory / "client.log", _listing(jvm.SMALL_CLIENT, directory / "client.list")) as java,
    ):
        uri = zookeeper.metadata_service_uri.replace("/ledgers", "/classes")
        java.init_cluster(uri)
        with Bookies(directory / "bookies", uri, [ListedBookie]) as bookies:
            for wire in WIRES:
                writer = java.create(uri, quorums=(1, 1, 1), wire=wire)
                writer.append([b"entry"])
                java.read(uri, writer.ledger_id, recovery=True, wire=wire)
            java.forget(uri)
            # A process that is killed may not have written all of its list.
            assert bookies.bookies[0].terminate(STOP_TIMEOUT_MS)


def _listing(options: Sequence[str], path: Path) -> tuple[str, ...]:
    return (*options, f"-XX:DumpLoadedClassList={path}")


def _loaded(directory: Path) -> Iterator[str]:
    """Each class once. Those of other class loaders have numbers, which differ between the lists."""
    lines = [line for path in sorted(directory.glob("*.list")) for line in path.read_text("utf-8").splitlines()]
    yield from dict.fromkeys(line for line in lines if " source: " not in line)


if __name__ == "__main__":
    main()
