"""Three bookies of one kind, ours or Apache's, alone on the machine, and what the kernel says they used."""

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
from tests.interop.apache import Bookies, ShippedApacheBookie

KINDS: Final = ("ours", "apache")
_COUNT: Final = 3
#: Journals go once they are checkpointed, to save disk. The queues of adds are bounded by what the client has in
#: flight: with the default of 10000 a slow bookie refuses adds, and the Java client has no spare one (compatibility
#: compatibility.md §11.15).
_SETTINGS: Final = {"journalMaxSizeMB": "256", "journalMaxBackups": "0", "maxPendingAddRequestsPerThread": "200000"}
#: 4.18.0 has 10000 here, with which a bookie can lock itself up; before and after that version it is 0, no limit.
_APACHE_SETTINGS: Final = {**_SETTINGS, "maxReadsInProgressLimit": "0"}
_STOP_TIMEOUT_S: Final = 120.0
_POLL_S: Final = 0.05
_SETTLE_STEP_S: Final = 0.5
_SETTLE_CORES: Final = 0.1
_SETTLE_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Usage:
    """What the three have used since their start: CPU seconds, bytes written to disk and read from it."""

    cpu_seconds: float
    written_bytes: int
    read_bytes: int

    def since(self, before: Usage) -> Usage:
        return Usage(
            self.cpu_seconds - before.cpu_seconds,
            self.written_bytes - before.written_bytes,
            self.read_bytes - before.read_bytes,
        )


class Trio:
    """Bookies in a new cluster under ``directory``. Made to be started and stopped more than once; :meth:`remove`
    gives the disk back. Always stop before the object goes."""

    def __init__(self, directory: Path, servers: str, kind: str, number: int) -> None:
        root = f"/bench-{number}-{kind}"
        zookeeper = ZooKeeper(servers)
        zookeeper.start()
        try:
            init_cluster(zookeeper, root)
        finally:
            zookeeper.close()
        self.kind = kind
        self.uri = str(MetadataServiceUri(servers, root, "hierarchical"))
        self._directory = directory
        self._peak_mib = 0.0
        kinds: Sequence[type[LocalBookie]] = [ShippedApacheBookie if kind == "apache" else LocalBookie] * _COUNT
        settings = _APACHE_SETTINGS if kind == "apache" else _SETTINGS
        self._bookies = Bookies(directory, self.uri, kinds, settings)

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
        """Wait until the bookies are idle: the slowest has caught up, and no flush is under way."""
        deadline = time.monotonic() + _SETTLE_TIMEOUT_S
        used = self.usage().cpu_seconds
        while time.monotonic() < deadline:
            time.sleep(_SETTLE_STEP_S)
            before, used = used, self.usage().cpu_seconds
            if used - before < _SETTLE_CORES * _SETTLE_STEP_S:
                return

    def stop(self) -> Usage:
        """Stop all in order, and give what they used to their end. Raises where one does not end well."""
        self._peak_mib = max(self._peak_mib, *map(peak_resident_mib, self._pids()))
        for bookie in self._bookies.bookies:
            bookie.request_stop()
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        for bookie in self._bookies.bookies:
            # Not waited for: an ended process has its counters until then.
            while os.waitid(os.P_PID, _pid(bookie), os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                if time.monotonic() > deadline:
                    raise TimeoutError(bookie.failure("the bookie did not stop in time"))
                time.sleep(_POLL_S)
        usage = self.usage()
        for bookie in self._bookies.bookies:
            bookie.wait_ended(deadline)
            # A JVM that ends by SIGTERM says 143.
            if bookie.exit_code not in (0, 143):
                raise RuntimeError(bookie.failure("the bookie did not end well"))
        return usage

    def forget_pages(self) -> None:
        """Drop the bookies' files from the page cache. What is not on disk yet is written first."""
        os.sync()
        for path in self._directory.rglob("*"):
            if path.is_file():
                fd = os.open(path, os.O_RDONLY)
                try:
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(fd)

    def remove(self) -> None:
        """End whatever runs, and delete every file."""
        self._bookies.stop()
        shutil.rmtree(self._directory)

    def _pids(self) -> list[int]:
        return [_pid(bookie) for bookie in self._bookies.bookies]


def _pid(bookie: LocalBookie) -> int:
    assert bookie.pid is not None
    return bookie.pid
