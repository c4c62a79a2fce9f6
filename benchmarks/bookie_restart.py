"""Measures start time and memory of a bookie with many ledgers, after kill -9 and after an orderly stop.

Our client writes 1,000,000 entries over 10,000 ledgers (1/1/1) to one bookie with its default settings, a few entries
of each ledger at a time, and closes most ledgers. The last tenth of the ledgers stays open. The bookie is killed as
soon as their last entries are acknowledged: entries still in memory, not in entry logs, must come back from the
journal. Then the bookie is started, stopped in order, and started again.

A start lasts from the start of the process to the bookie's registration, which follows replay and means that it
serves. A killed bookie's old registration is gone before. After each start every entry of a sample of ledgers is read
and compared. After the first start, ledgers that were open are also recovered: all acknowledged entries must be there.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Final, TypeVar

from benchmarks.processes import cpu_seconds, peak_resident_mib, resident_mib
from benchmarks.report import figure
from bk_spark.bookie.client import Client
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.writing.write_handle import WriteHandle
from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalBookie, LocalCluster

NAME: Final = "bookie_restart"
_QUORUM: Final = Quorum(1, 1, 1)
#: Ledgers created, written or closed in parallel.
_AT_ONCE: Final = 100
#: Calls in which a ledger's entries are written, with all other ledgers in between.
_PASSES: Final = 5
_OPEN_SHARE: Final = 10
_START_TIMEOUT_MS: Final = 600_000
_EXPIRY_TIMEOUT_S: Final = 60.0

_A = TypeVar("_A")
_T = TypeVar("_T")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks bookie_restart", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--ledgers", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=100, help="payload bytes")
    parser.add_argument("--sample", type=int, default=1_000, help="ledgers that are read after each start")
    parser.add_argument("--quick", action="store_true", help="5,000 entries over 250 ledgers")
    parser.add_argument("--directory", help="where the servers' files go")
    options = parser.parse_args(arguments)
    if options.quick:
        options.entries, options.ledgers, options.sample = 5_000, 250, 50
    with (
        tempfile.TemporaryDirectory(prefix="bk-bench-", dir=options.directory) as directory,
        LocalCluster(Path(directory) / "cluster", bookies=1) as cluster,
    ):
        run = _Run(cluster, options)
        run.write()
        run.start("after_kill")
        run.check(options.sample, recover=True)
        started = time.perf_counter()
        if not run.bookie.terminate() or run.bookie.exit_code != 0:
            raise SystemExit(run.bookie.failure("the bookie did not end well"))
        figure(NAME, "stop", time.perf_counter() - started, "s")
        run.start("after_stop")
        run.check(options.sample, recover=False)


class _Run:
    def __init__(self, cluster: LocalCluster, options: argparse.Namespace) -> None:
        self.bookie: LocalBookie = cluster.bookies[0]
        self._uri = cluster.metadata_service_uri
        self._ledgers: int = options.ledgers
        self._per_pass = max(1, options.entries // options.ledgers // _PASSES)
        self._size: int = options.size
        self._ids: list[int] = []
        self._random = random.Random(8)

    def write(self) -> None:
        """Write, then kill the bookie."""
        asyncio.run(self._write())
        self._wait_unregistered()

    async def _write(self) -> None:
        async with Client(self._uri) as client:
            handles = await _side_by_side(range(self._ledgers), lambda _: client.create(quorum=_QUORUM))
            self._ids = [handle.ledger_id for handle in handles]
            open_count = self._ledgers // _OPEN_SHARE
            closed, left_open = handles[open_count:], handles[:open_count]
            pid = self._pid
            started, cpu = time.perf_counter(), cpu_seconds(pid)
            for _ in range(_PASSES - 1):
                self._random.shuffle(handles)
                await _side_by_side(handles, self._append)
            await _side_by_side(closed, self._append)
            await _side_by_side(closed, lambda handle: handle.close())
            await _side_by_side(left_open, self._append)
            seconds, cpu = time.perf_counter() - started, cpu_seconds(pid) - cpu
            entries = self._per_pass * _PASSES * self._ledgers
            figure(NAME, "load.entries", entries / seconds, "entries/s", ledgers=self._ledgers, entries=entries)
            figure(NAME, "load.bookie_cpu", cpu / entries * 1e6, "us/entry")
            figure(NAME, "load.memory_peak", peak_resident_mib(pid), "MiB")
            self.bookie.kill()

    async def _append(self, handle: WriteHandle) -> None:
        first = handle.last_add_pushed + 1
        ids = range(first, first + self._per_pass)
        await handle.append_many([self._payload(handle.ledger_id, entry_id) for entry_id in ids])
        await handle.flush()

    def start(self, name: str) -> None:
        started = time.perf_counter()
        self.bookie.start()
        self.bookie.wait_registered(_START_TIMEOUT_MS)
        seconds = time.perf_counter() - started
        pid = self._pid
        figure(
            NAME,
            f"start.{name}",
            seconds,
            "s",
            cpu_seconds=round(cpu_seconds(pid), 2),
            memory_mib=round(resident_mib(pid), 1),
            peak_memory_mib=round(peak_resident_mib(pid), 1),
        )

    def check(self, sample: int, *, recover: bool) -> None:
        asyncio.run(self._check(sample, recover))
        figure(NAME, "check.memory_peak", peak_resident_mib(self._pid), "MiB")

    async def _check(self, sample: int, recover: bool) -> None:
        chosen = self._random.sample(self._ids, min(sample, len(self._ids)))
        started = time.perf_counter()
        async with Client(self._uri) as client:
            if recover:
                opened = self._ids[: self._ledgers // _OPEN_SHARE]
                chosen = list({*chosen, *opened})
            counts = await _side_by_side(chosen, lambda ledger_id: self._check_ledger(client, ledger_id))
        seconds = time.perf_counter() - started
        figure(NAME, "check.entries", sum(counts), "entries", ledgers=len(chosen), seconds=round(seconds, 1))

    async def _check_ledger(self, client: Client, ledger_id: int) -> int:
        reader = await client.recover_and_open(ledger_id)
        count: int = self._per_pass * _PASSES
        if reader.metadata.state is not LedgerState.CLOSED or reader.last_add_confirmed != count - 1:
            raise RuntimeError(f"ledger {ledger_id} ends at {reader.last_add_confirmed}, not {count - 1}")
        async with aclosing(reader.read_blocks(0, count - 1)) as blocks:
            async for block in blocks:
                for index in range(len(block)):
                    entry_id = block.first_entry_id + index
                    if bytes(block.payloads[index]) != self._payload(ledger_id, entry_id):
                        raise RuntimeError(f"ledger {ledger_id} entry {entry_id} is not what was written")
        return count

    def _payload(self, ledger_id: int, entry_id: int) -> bytes:
        return (b"%d.%d." % (ledger_id, entry_id)).ljust(self._size, b"x")

    @property
    def _pid(self) -> int:
        assert self.bookie.pid is not None
        return self.bookie.pid

    def _wait_unregistered(self) -> None:
        """Wait until a killed bookie's session ends: until then its registration would delay the next start."""
        uri = MetadataServiceUri.parse(self._uri)
        gone = threading.Event()
        zookeeper = ZooKeeper(uri.servers)
        zookeeper.start()
        try:
            path = f"{uri.root}/available/{self.bookie.id}"
            if zookeeper.exists(path, watch=lambda _: gone.set()) is not None and not gone.wait(_EXPIRY_TIMEOUT_S):
                raise SystemExit("the killed bookie's registration did not go")
        finally:
            zookeeper.close()


async def _side_by_side(items: Sequence[_A], work: Callable[[_A], Awaitable[_T]]) -> list[_T]:
    """Run ``work`` on ``items`` with bounded concurrency. Returns results in order."""
    results: list[_T] = []
    for first in range(0, len(items), _AT_ONCE):
        results += await asyncio.gather(*(work(item) for item in items[first : first + _AT_ONCE]))
    return results
