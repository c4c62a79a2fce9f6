"""Compares our client with Apache's Java client, writing and reading ledgers on our bookies and on Apache's.

There are one ZooKeeper, three of our bookies and three of Apache's (as shipped: their defaults, and their scripts' JVM
options) on this machine and disk. Ledgers are 3/3/2, CRC32C, with synced journals. Each client has its own process and
times its loops itself; the Java client has throttle=0. Before counting, every operation runs until Apache's code is
compiled. Then each payload size has several rounds. In a round every operation runs with all clients one after the
other, alternately forwards and backwards, on one kind of bookie and then on the other.

Figures are medians over the rounds, ratios are medians of the rounds' ratios, latencies are of all rounds together.
Our client reads back samples of everything written, by either client. Samples of what is read are compared.
Clients are ``ours`` and ``java-v2`` (v2 protocol), ``ours-v3`` and ``java-v3``.

Operations:
  add_single      each add waits for the previous one
  add             up to 1,000 entries or 16 MiB in flight; ours by append_many of a quarter of that
  add_by_call     the same with one append call per entry; compared with the Java client's add
  read_single     each read waits for the previous one
  read_pipelined  single reads, many in flight
  read_batch      batch reads of 1 MiB, reading 8 MiB ahead
  read_range      the same, as Arrow record batches of 8 MiB; compared with the Java client's read_batch
  append_many     100 B, one copy of each entry (1/1/1): entries per second of the client's CPU time
"""

from __future__ import annotations

import argparse
import os
import pstats
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.ledger_cluster import BenchCluster, Operation
from benchmarks.ledger_figures import CLIENTS, NAME, Cell, Results
from benchmarks.ledger_windows import batches, one, reads, writes, writes_by_call
from benchmarks.report import figure
from bk_spark.protocol.quorum import Quorum
from tests.interop.payloads import Payloads

SIZES: Final = (100, 1024, 65536, 1 << 20)
_SMALL: Final = (100, 1024)
_LARGE: Final = 65536
_LEDGER_BYTES: Final = 96 << 20
_LEDGER_ENTRIES: Final = 100_000
_WARM_UP_LEDGER_BYTES: Final = 8 << 20
_QUICK_LEDGER_BYTES: Final = 4 << 20
_NEEDED_DISK_BYTES: Final = 16 << 30
_PROFILE_LINES: Final = 15
_BUT_OURS_V3: Final = ("ours", "java-v2", "java-v3")
OPERATIONS: Final = (
    Operation("add_single", "", one, 0.8, _BUT_OURS_V3, SIZES),
    Operation("add", "", writes, 1.0, CLIENTS, SIZES),
    Operation("add_by_call", "", writes_by_call, 0.8, ("ours",), _SMALL),
    Operation("read_single", "single", one, 0.6, _BUT_OURS_V3, SIZES),
    Operation("read_pipelined", "pipelined", reads, 0.8, CLIENTS, SIZES),
    Operation("read_batch", "batch", batches, 0.8, ("ours", "java-v2"), SIZES),
    Operation("read_range", "range", batches, 0.8, ("ours",), SIZES),
)
APPEND_MANY: Final = Operation("append_many", "", lambda size: (20_000, 2_000), 1.0, ("ours",), (100,), Quorum(1, 1, 1))


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. ``seconds`` multiplies the operations' own durations."""

    operations: tuple[Operation, ...]
    sizes: tuple[int, ...]
    clients: tuple[str, ...]
    bookies: tuple[str, ...]
    rounds: int
    seconds: float
    warm_up_seconds: float
    #: Payload bytes of a ledger that is read.
    ledger_bytes: int
    profile: bool

    def clients_of(self, operation: Operation) -> list[str]:
        return [client for client in CLIENTS if client in self.clients and client in operation.clients]


def main(arguments: list[str]) -> None:
    options = _parse(arguments)
    plan = _plan(options)
    started = time.monotonic()
    results = Results()
    profiles = Path(options.profile) if options.profile else None
    if profiles is not None:
        profiles.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bk-bench-", dir=options.directory) as directory:
        free = shutil.disk_usage(directory).free
        if free < _NEEDED_DISK_BYTES and not options.quick:
            raise SystemExit(f"{directory} has {free >> 30} GiB free, not {_NEEDED_DISK_BYTES >> 30}: see --directory")
        with BenchCluster(Path(directory), profiles, quick=options.quick) as cluster:
            if plan.warm_up_seconds:
                _warm_up(cluster, plan)
            for size in plan.sizes:
                _measure(cluster, plan, size, results)
            if APPEND_MANY.name in options.only:
                _measure_append_many(cluster, plan, results)
    results.tell_aims()
    figure(NAME, "conditions.duration", time.monotonic() - started, "s", rounds=plan.rounds, cores=os.cpu_count())
    if options.markdown:
        with open(options.markdown, "w", encoding="utf-8") as out:
            results.write_tables(out)
    for path in sorted(profiles.glob("*.pstats")) if profiles else ():
        pstats.Stats(str(path), stream=sys.stderr).strip_dirs().sort_stats("tottime").print_stats(_PROFILE_LINES)


def _warm_up(cluster: BenchCluster, plan: Plan) -> None:
    """Let Apache's client and bookies compile the measured code. Our client only connects."""
    # Small entries for many calls, large ones for the buffers. The largest would only cost time.
    for size in sorted({min(plan.sizes), min(max(plan.sizes), _LARGE)}):
        payloads = _payloads(size)
        for bookies in plan.bookies:
            ledger_id = cluster.ledger(bookies, payloads, _WARM_UP_LEDGER_BYTES // size, writes(size))
            for operation in plan.operations:
                for client in plan.clients_of(operation):
                    seconds = plan.warm_up_seconds * (1.0 if client.startswith("java") else 0.1)
                    cluster.run(operation, client, bookies, payloads, ledger_id, seconds)
            cluster.delete(bookies, ledger_id)


def _measure(cluster: BenchCluster, plan: Plan, size: int, results: Results) -> None:
    payloads = _payloads(size)
    entries = min(_LEDGER_ENTRIES, plan.ledger_bytes // size)
    ledgers = {bookies: cluster.ledger(bookies, payloads, entries, writes(size)) for bookies in plan.bookies}
    for turn in range(plan.rounds):
        for bookies in plan.bookies:
            for operation in [operation for operation in plan.operations if size in operation.sizes]:
                for client in plan.clients_of(operation)[:: -1 if turn % 2 else 1]:
                    seconds = operation.seconds * plan.seconds
                    profile = f"{operation.name}-{client}-{size}-{bookies}" if plan.profile else ""
                    sample = cluster.run(operation, client, bookies, payloads, ledgers[bookies], seconds, profile)
                    results.add(Cell(operation.name, size, bookies, client), sample)
    for bookies, ledger_id in ledgers.items():
        cluster.delete(bookies, ledger_id)
    results.tell(size)


def _measure_append_many(cluster: BenchCluster, plan: Plan, results: Results) -> None:
    """Measure the client's CPU time with one copy of each entry: packaging, digest, sending, receiving responses."""
    (size,) = APPEND_MANY.sizes
    payloads = Payloads.of_size(APPEND_MANY.window(size)[1], size)
    for bookies in plan.bookies:
        cell = Cell(APPEND_MANY.name, size, bookies, "ours")
        for _ in range(plan.rounds):
            seconds = APPEND_MANY.seconds * plan.seconds
            profile = f"{APPEND_MANY.name}-{bookies}" if plan.profile else ""
            results.add(cell, cluster.run(APPEND_MANY, "ours", bookies, payloads, -1, seconds, profile))
        results.tell_append_many(cell)


def _payloads(size: int) -> Payloads:
    """Return as many payloads as one ``append_many`` call takes, so that every call appends all of them."""
    return Payloads.of_size(writes(size)[1], size)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks ledger", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = tuple(operation.name for operation in (*OPERATIONS, APPEND_MANY))
    kinds = ("ours", "apache")
    parser.add_argument(
        "--quick", action="store_true", help="one short round in small JVMs: to see that it works, not how fast"
    )
    parser.add_argument("--sizes", type=_words(tuple(map(str, SIZES))), default=SIZES, help="payload bytes")
    parser.add_argument("--only", type=_words(names), default=names, help="operations")
    parser.add_argument("--bookies", type=_words(kinds), default=kinds, help="ours, apache or both")
    parser.add_argument("--clients", type=_words(CLIENTS), default=CLIENTS, help=f"of {', '.join(CLIENTS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", help="where the servers' files go: on the disk to be measured")
    parser.add_argument("--markdown", help="also write tables to this file")
    parser.add_argument("--profile", help="profile our client into this directory; its figures are then worthless")
    return parser.parse_args(arguments)


def _plan(options: argparse.Namespace) -> Plan:
    return Plan(
        tuple(operation for operation in OPERATIONS if operation.name in options.only),
        tuple(map(int, options.sizes)),
        tuple(options.clients),
        tuple(options.bookies),
        rounds=1 if options.quick else options.rounds,
        seconds=0.1 if options.quick else 1.0,
        warm_up_seconds=0.0 if options.quick else 1.5,
        ledger_bytes=_QUICK_LEDGER_BYTES if options.quick else _LEDGER_BYTES,
        profile=bool(options.profile),
    )


def _words(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    def words(text: str) -> list[str]:
        found = text.split(",")
        if unknown := [word for word in found if word not in allowed]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(allowed)}")
        return found

    return words
