"""Compares our bookie with Apache's under Apache's client: adds, reads, latency, disk, CPU and memory.

There is one ZooKeeper and one Java client. For each payload size and round, three of our bookies and three of
Apache's (as shipped: their defaults and their scripts' JVM options) take turns; ours go first in every other round.
Only the measured bookies run, in a new cluster with empty directories. Ledgers are 3/3/2, CRC32C, with synced journals;
up to 1,000 entries or 16 MiB are in flight, throttle=0. One turn:

  start, warm up (adds and reads, until Apache's code is compiled), wait until the disk is idle
  add over v3, add over v2; adds over v2 at a tenth of that rate: ``add_paced``, latency from when each add was due
  read what v2 wrote, single reads over v2 and v3 in flight, then batch reads over v2: ``read_hot``
  stop; drop the bookies' files from the page cache; start; warm up on another ledger
  the same reads of entries not read since: ``read_cold``; stop

Each figure is a line with the lowest, median and highest value of the rounds for both, and the same of the rounds'
ratios ours/Apache's. Besides the rates:
  client_cores               cores used by the Java client: if near the machine's number, the client is the bottleneck
  write_cpu, read_hot_cpu    CPU seconds (user and system) of the three bookies per 10^9 bytes of payload added, read;
                             the flush at the end of a turn counts as writing
  disk.written_per_stored    bytes the three wrote to disk from start to end, per byte of payload times three
  read_cold.disk_per_read    bytes they read from disk per byte of payload read: proves that the reads were cold
  memory.peak                highest resident memory of any of the three
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.bookie_figures import NAME, Metric, Results
from benchmarks.bookie_servers import KINDS, Trio
from benchmarks.ledger_clients import JavaBenchClient, Window
from benchmarks.ledger_windows import batches, reads, writes
from benchmarks.ledger_worker import Limits, Run
from benchmarks.report import figure
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalCluster
from tests.interop import jvm
from tests.interop.java_client import WIRES, JavaClient
from tests.interop.payloads import Payloads

SIZES: Final = (100, 1024, 65536)
_QUORUM: Final = Quorum(3, 3, 2)
#: An add delayed by a busy disk is slow, not failed. With the default of 5 s the writer would replace the bookie.
_CLIENT_SETTINGS: Final = {"addEntryTimeoutSec": "60", "readEntryTimeoutSec": "60"}
_MAX_ENTRIES: Final = 1_000_000
_MAX_WRITE_BYTES: Final = 384 << 20
#: Apache's bookies reach full speed after some seconds under load, because their code is compiled meanwhile.
_WARM_UP_BYTES: Final = 1 << 30
_PACED_SHARE: Final = 0.1
_NEEDED_DISK_BYTES: Final = 12 << 30
_GB: Final = 1e9
_PERCENTILES: Final = (50.0, 99.0)


@dataclass(frozen=True, slots=True)
class Plan:
    """The duration of each loop in seconds."""

    warm_up: float
    add: float
    paced: float
    read: float


_FULL: Final = Plan(warm_up=10.0, add=5.0, paced=5.0, read=2.5)
_QUICK: Final = Plan(warm_up=0.05, add=0.3, paced=0.3, read=0.2)


@dataclass(frozen=True, slots=True)
class Read:
    """One way of reading."""

    wire: int
    how: str

    @property
    def label(self) -> str:
        return f"v{self.wire}" + ("" if self.how == "pipelined" else f" {self.how}")

    def window(self, size: int) -> Window:
        return batches(size) if self.how == "batch" else reads(size)


READS: Final = (Read(2, "pipelined"), Read(3, "pipelined"), Read(2, "batch"))


def main(arguments: list[str]) -> None:
    options = _parse(arguments)
    started = time.monotonic()
    rounds, plan = (1, _QUICK) if options.quick else (options.rounds, _FULL)
    results = Results()
    with tempfile.TemporaryDirectory(prefix="bk-bench-", dir=options.directory) as text:
        directory = Path(text)
        free = shutil.disk_usage(directory).free
        if free < _NEEDED_DISK_BYTES and not options.quick:
            raise SystemExit(f"{directory} has {free >> 30} GiB free, not {_NEEDED_DISK_BYTES >> 30}: see --directory")
        with (
            LocalCluster(directory / "zookeeper", bookies=0) as zookeeper,
            JavaClient(directory / "java-client.log", jvm.SMALL_CLIENT if options.quick else jvm.AS_SHIPPED) as java,
        ):
            servers = MetadataServiceUri.parse(zookeeper.metadata_service_uri).servers
            number = 0
            for turn in range(rounds):
                for size in options.sizes:
                    for kind in options.bookies[:: -1 if turn % 2 else 1]:
                        number += 1
                        trio = Trio(directory / f"bookies-{number}", servers, kind, number, quick=options.quick)
                        try:
                            _Turn(trio, java, size, plan, results).run()
                        finally:
                            trio.remove()
                        java.forget(trio.uri)
    results.tell()
    results.tell_aims()
    figure(NAME, "conditions.duration", time.monotonic() - started, "s", rounds=rounds, cores=os.cpu_count())
    if options.markdown:
        with open(options.markdown, "w", encoding="utf-8") as out:
            results.write_table(out)


class _Turn:
    """One kind of bookie, one payload size, one round."""

    def __init__(self, trio: Trio, java: JavaClient, size: int, plan: Plan, results: Results) -> None:
        self._trio = trio
        self._clients = {wire: JavaBenchClient(java, wire, _CLIENT_SETTINGS) for wire in WIRES}
        self._size = size
        self._plan = plan
        self._results = results
        self._payloads = Payloads.of_size(writes(size)[1], size)
        #: Payload bytes in the ledgers, without replicas.
        self._added_bytes = 0

    def run(self) -> None:
        trio = self._trio
        trio.start()
        os.sync()
        other = self._warm_up()
        ledger = self._write_and_read_hot()
        trio.forget_pages()
        trio.start()
        for read in READS:
            self._read(read, other, self._plan.warm_up)
        trio.settle()
        self._read_cold(ledger)
        trio.stop()
        self._tell("memory.peak", trio.peak_mib, "MiB")

    def _warm_up(self) -> Run:
        """Return a ledger that no measured read touches."""
        seconds, size = self._plan.warm_up, self._size
        for wire in reversed(WIRES):
            run = self._add(wire, seconds, _WARM_UP_BYTES // size)
        for read in READS:
            self._read(read, run, seconds / 2)
        self._trio.settle()
        os.sync()
        return run

    def _write_and_read_hot(self) -> Run:
        """Write and read, then stop the bookies. Returns the ledger that v2 wrote."""
        trio, size, plan = self._trio, self._size, self._plan
        start, before = trio.usage(), self._added_bytes
        most = min(_MAX_ENTRIES, _MAX_WRITE_BYTES // size)
        for wire in reversed(WIRES):
            run = self._add(wire, plan.add, most)
            self._tell_rate("add", f"v{wire}", run)
            self._tell("add.client_cpu", run.cpu_seconds / run.count * 1e6, "us/entry", f"v{wire}")
        rate = _PACED_SHARE * run.count / run.seconds
        paced = self._add(2, plan.paced, max(1, int(plan.paced * rate)), rate)
        for percentile in _PERCENTILES:
            latency_ms = float(np.percentile(paced.latencies_us, percentile)) / 1000
            self._tell(f"add_paced.latency_p{percentile:.0f}", latency_ms, "ms", "v2")
        self._tell("add_paced.entries", paced.count / paced.seconds, "entries/s", "v2")
        trio.settle()
        written = trio.usage()
        hot = [self._read(read, run, plan.read) for read in READS]
        for read, done in zip(READS, hot, strict=True):
            self._tell_rate("read_hot", read.label, done)
        after = trio.usage()
        hot_bytes = sum(done.count for done in hot) * size
        self._tell("read_hot_cpu", after.since(written).cpu_seconds / hot_bytes * _GB, "s/GB")
        end = trio.stop()
        write_cpu = written.since(start).cpu_seconds + end.since(after).cpu_seconds
        self._tell("write_cpu", write_cpu / (self._added_bytes - before) * _GB, "s/GB")
        stored = self._added_bytes * _QUORUM.write_quorum_size
        self._tell("disk.written_per_stored", end.written_bytes / stored, "bytes/byte")
        return run

    def _read_cold(self, ledger: Run) -> None:
        """Read cold. Each way of reading gets its own third of the ledger, and reads it at most once."""
        before = self._trio.usage()
        part = max(1, ledger.count // len(READS))
        count = 0
        for index, read in enumerate(READS):
            done = self._read(read, ledger, self._plan.read, part, index * part)
            self._tell_rate("read_cold", read.label, done)
            count += done.count
        from_disk = self._trio.usage().since(before).read_bytes
        self._tell("read_cold.disk_per_read", from_disk / (count * self._size), "bytes/byte")

    def _add(self, wire: int, seconds: float, most: int, rate: float = 0.0) -> Run:
        window = writes(self._size)
        run = self._clients[wire].write(
            self._trio.uri, self._payloads, window, Limits(most, seconds), _QUORUM, rate_per_second=rate
        )
        self._added_bytes += run.count * self._size
        return run

    def _read(self, read: Read, ledger: Run, seconds: float, most: int = 1 << 30, first: int = 0) -> Run:
        return self._clients[read.wire].read(
            self._trio.uri,
            ledger.ledger_id,
            self._payloads,
            read.how,
            read.window(self._size),
            Limits(most, seconds),
            first_entry_id=first,
        )

    def _tell_rate(self, name: str, how: str, run: Run) -> None:
        rate = run.count / run.seconds
        self._tell(f"{name}.entries", rate, "entries/s", how)
        self._tell(f"{name}.bytes", rate * self._size / 1e6, "MB/s", how)
        self._tell(f"{name}.client_cores", run.cpu_seconds / run.seconds, "cores", how)

    def _tell(self, name: str, value: float, unit: str, how: str = "") -> None:
        self._results.add(Metric(name, self._size, unit, how), self._trio.kind, value)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks bookie", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=_sizes, default=SIZES, help="payload bytes, separated by commas")
    parser.add_argument("--bookies", type=_kinds, default=KINDS, help="ours, apache or both")
    parser.add_argument(
        "--quick", action="store_true", help="one short round in small JVMs: to see that it works, not how fast"
    )
    parser.add_argument("--directory", help="where the servers' files go: on the disk to be measured")
    parser.add_argument("--markdown", help="also write a table to this file")
    return parser.parse_args(arguments)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(text.split(","))
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(KINDS)}")
    return kinds
