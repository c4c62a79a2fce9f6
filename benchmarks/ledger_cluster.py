"""Servers and clients of the ledger benchmark, and a single run of one operation."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.ledger_clients import BenchClient, JavaBenchClient, OurBenchClient, OurProcess, Window
from benchmarks.ledger_figures import Sample
from benchmarks.ledger_worker import Limits, Run
from benchmarks.processes import cpu_seconds, machine_cpu_seconds
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalBookie, LocalCluster
from tests.interop import jvm
from tests.interop.apache import ApacheBookie, Bookies, ShippedApacheBookie
from tests.interop.java_client import JavaClient
from tests.interop.payloads import Payloads

REPLICATED: Final = Quorum(3, 3, 2)
#: Small enough not to fill the disk: everything is written six times.
_WRITE_BYTES: Final = 48 << 20
_SINGLE_WRITE_BYTES: Final = 16 << 20
_MAX_WRITES: Final = 500_000
_MAX_SINGLE: Final = 20_000
_MAX_READS: Final = 1 << 30
#: Journals are deleted once checkpointed, for the same reason. Both kinds of bookies have these keys.
_BOOKIE_SETTINGS: Final = {"journalMaxSizeMB": "256", "journalMaxBackups": "0"}
#: The default in 4.18.0 is 10000, which can deadlock a bookie. Before and after that version it is 0, no limit.
_APACHE_SETTINGS: Final = {**_BOOKIE_SETTINGS, "maxReadsInProgressLimit": "0"}
_START_TIMEOUT_MS: Final = 120_000


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation. ``how`` is the clients' way of reading, or "" for a write. ``window`` depends on payload bytes."""

    name: str
    how: str
    window: Callable[[int], Window]
    seconds: float
    clients: tuple[str, ...]
    sizes: tuple[int, ...]
    quorum: Quorum = REPLICATED


class BenchCluster:
    """One ZooKeeper, three of our bookies, three of Apache's, our client and Apache's. A context manager.

    ``quick``: Apache's need not be fast.
    """

    def __init__(self, directory: Path, profile_directory: Path | None, *, quick: bool) -> None:
        with ExitStack() as stack:
            ours = stack.enter_context(
                LocalCluster(
                    directory / "ours", bookies=3, bookie_settings=_BOOKIE_SETTINGS, start_timeout_ms=_START_TIMEOUT_MS
                )
            )
            options = jvm.SMALL_CLIENT if quick else jvm.AS_SHIPPED
            java = stack.enter_context(JavaClient(directory / "java-client.log", options))
            servers = MetadataServiceUri.parse(ours.metadata_service_uri).servers
            uri = str(MetadataServiceUri(servers, "/apache-ledgers", "hierarchical"))
            java.init_cluster(uri)
            kind = ApacheBookie if quick else ShippedApacheBookie
            apaches = stack.enter_context(Bookies(directory / "apache", uri, [kind] * 3, _APACHE_SETTINGS))
            self._process = stack.enter_context(OurProcess(profile_directory))
            self._stack = stack.pop_all()
        self.uris = {"ours": ours.metadata_service_uri, "apache": uri}
        self.clients: dict[str, BenchClient] = {
            client.name: client
            for client in (
                OurBenchClient(self._process, 2),
                JavaBenchClient(java, 2),
                JavaBenchClient(java, 3),
                OurBenchClient(self._process, 3),
            )
        }
        self._bookies: dict[str, Sequence[LocalBookie]] = {"ours": ours.bookies, "apache": apaches.bookies}
        servers_pids = [server.pid for server in (*ours.zookeepers, *ours.bookies, *apaches.bookies)]
        self._pids = [pid for pid in (*servers_pids, self._process.pid, java.pid, os.getpid()) if pid]

    def __enter__(self) -> BenchCluster:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def ledger(self, bookies: str, payloads: Payloads, entries: int, window: Window) -> int:
        """Create a closed ledger to read."""
        limits = Limits(entries - entries % window[1], 60.0)
        run = self.clients["ours"].write(self.uris[bookies], payloads, window, limits, REPLICATED)
        return run.ledger_id

    def delete(self, bookies: str, ledger_id: int) -> None:
        self._process.delete(self.uris[bookies], ledger_id)

    def run(
        self,
        operation: Operation,
        client: str,
        bookies: str,
        payloads: Payloads,
        ledger_id: int,
        seconds: float,
        profile: str = "",
    ) -> Sample:
        """Run an operation once. A write uses a new ledger, which is checked and deleted; a read uses ``ledger_id``."""
        uri, size = self.uris[bookies], payloads.sizes[0]
        window = operation.window(size)
        alone = window[0] == 1
        used = self.clients[client]
        if operation.how:
            limits = Limits(_MAX_SINGLE if alone else _MAX_READS, seconds)
            with self._measuring(bookies) as measured:
                run = used.read(uri, ledger_id, payloads, operation.how, window, limits, profile)
            return measured(run, window[0])
        count = min(_MAX_SINGLE, _SINGLE_WRITE_BYTES // size) if alone else min(_MAX_WRITES, _WRITE_BYTES // size)
        with self._measuring(bookies) as measured:
            run = used.write(uri, payloads, window, Limits(count, seconds), operation.quorum, profile)
        self._process.check(uri, run.ledger_id, payloads, run.count)
        self._process.delete(uri, run.ledger_id)
        return measured(run, window[0])

    @contextmanager
    def _measuring(self, bookies: str) -> Iterator[Callable[[Run, int], Sample]]:
        pids = [bookie.pid for bookie in self._bookies[bookies] if bookie.pid]
        before = self._used(pids)
        after = before

        def sample(run: Run, in_flight: int) -> Sample:
            elapsed, machine, own, busy = (end - start for start, end in zip(before, after, strict=True))
            return Sample(run, in_flight, busy, max(0.0, (machine - own) / elapsed))

        yield sample
        after = self._used(pids)

    def _used(self, pids: Sequence[int]) -> tuple[float, float, float, float]:
        """Return the time, and CPU seconds so far of the machine, of the whole benchmark, and of ``pids``."""
        own, busy = (sum(map(cpu_seconds, these)) for these in (self._pids, pids))
        return time.perf_counter(), machine_cpu_seconds(), own, busy
