"""Three bookies of one kind, ours or Apache's, alone on the machine, and their resource usage from the kernel."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.processes import cpu_seconds, peak_resident_mib, read_bytes, written_bytes
from bk_spark.bookie.metadata.cluster_init import init_cluster
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bookie_server.local import LocalBookie
from bookie_server.local.process import GuardedProcessGroup
from tests.interop.apache import ApacheBookie, Bookies, ShippedApacheBookie

KINDS: Final = ("ours", "apache")
_COUNT: Final = 3
#: Journals are deleted once checkpointed, to save disk. What the client has in flight bounds the queues of adds. With
#: the default of 10000 a slow bookie refuses adds, and the Java client has no spare bookie (compatibility.md §11.15).
_SETTINGS: Final = {"journalMaxSizeMB": "256", "journalMaxBackups": "0", "maxPendingAddRequestsPerThread": "200000"}
#: The default in 4.18.0 is 10000, which can deadlock a bookie. Before and after that version it is 0, no limit.
_APACHE_SETTINGS: Final = {**_SETTINGS, "maxReadsInProgressLimit": "0"}
_STOP_TIMEOUT_S: Final = 120.0
_POLL_S: Final = 0.05
_SETTLE_STEP_S: Final = 0.5
_SETTLE_CORES: Final = 0.1
_SETTLE_TIMEOUT_S: Final = 30.0
_QUICK_SETTLE_TIMEOUT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources used by the three since their start: CPU seconds, bytes written to disk and read from it."""

    cpu_seconds: float
    written_bytes: int
    read_bytes: int

    def since(self, before: Usage) -> Usage:
        return Usage(
            self.cpu_seconds - before.cpu_seconds,
            self.written_bytes - before.written_bytes,
            self.read_bytes - before.read_bytes,
        )


class _OwnProcesses(Bookies):
    """Bookies that are started as users start them, so that their memory and CPU are their own."""

    group_class = GuardedProcessGroup


class Trio:
    """Bookies in a new cluster under ``directory``. May be started and stopped more than once. :meth:`remove` frees the
    disk. Always stop them before dropping the object. ``quick``: Apache's need not be fast."""

    def __init__(self, directory: Path, servers: str, kind: str, number: int, *, quick: bool) -> None:
        root = f"/bench-{number}-{kind}"
        zookeeper = ZooKeeper(servers)
        zookeeper.start()
        try:
            init_cluster(zookeeper, root)
        finally:
            zookeeper.close()
        self.kind = kind
        self._settle_timeout_s = _QUICK_SETTLE_TIMEOUT_S if quick else _SETTLE_TIMEOUT_S
        self.uri = str(MetadataServiceUri(servers, root, "hierarchical"))
        self._directory = directory
        self._peak_mib = 0.0
        apaches = ApacheBookie if quick else ShippedApacheBookie
        kinds: Sequence[type[LocalBookie]] = [apaches if kind == "apache" else LocalBookie] * _COUNT
        settings = _APACHE_SETTINGS if kind == "apache" else _SETTINGS
        self._bookies = _OwnProcesses(directory, self.uri, kinds, settings)

    @property
    def peak_mib(self) -> float:
        """The highest resident memory of any of the three, over all starts, as of the last :meth:`stop`."""
        return self._peak_mib

    def start(self) -> None:
        self._bookies.start()

    def usage(self) -> Usage:
        pids = self._pids()
        return Usage(
            sum(map(cpu_seconds, pids)),
            sum(map(written_bytes, pids)),
            sum(map(read_bytes, pids)),
        )

    def settle(self) -> None:
        """Wait until the bookies are idle: the slowest has caught up, and no flush is running."""
        deadline = time.monotonic() + self._settle_timeout_s
        used = self.usage().cpu_seconds
        while time.monotonic() < deadline:
            time.sleep(_SETTLE_STEP_S)
            before, used = used, self.usage().cpu_seconds
            if used - before < _SETTLE_CORES * _SETTLE_STEP_S:
                return

    def stop(self) -> Usage:
        """Stop all in order and return their total usage. Raises if one fails to exit cleanly."""
        self._peak_mib = max(self._peak_mib, *map(peak_resident_mib, self._pids()))
        for bookie in self._bookies.bookies:
            bookie.request_stop()
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        for bookie in self._bookies.bookies:
            # WNOWAIT: an ended process keeps its counters until it is waited for.
            while os.waitid(os.P_PID, _pid(bookie), os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                if time.monotonic() > deadline:
                    raise TimeoutError(bookie.failure("the bookie did not stop in time"))
                time.sleep(_POLL_S)
        usage = self.usage()
        for bookie in self._bookies.bookies:
            bookie.wait_ended(deadline)
            # A JVM ended by SIGTERM exits with 143.
            if bookie.exit_code not in (0, 143):
                raise RuntimeError(bookie.failure("the bookie did not end well"))
        return usage

    def forget_pages(self) -> None:
        """Drop the bookies' files from the page cache. Writes dirty pages first."""
        os.sync()
        for path in self._directory.rglob("*"):
            if path.is_file():
                fd = os.open(path, os.O_RDONLY)
                try:
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(fd)

    def remove(self) -> None:
        """Kill running bookies, and delete all files."""
        self._bookies.stop()
        shutil.rmtree(self._directory)

    def _pids(self) -> list[int]:
        return [_pid(bookie) for bookie in self._bookies.bookies]


def _pid(bookie: LocalBookie) -> int:
    assert bookie.pid is not None
    return bookie.pid
