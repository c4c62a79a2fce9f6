"""Checks that the memory, files and disk usage of a real bookie stay constant under a long mixed load.

Starts ZooKeeper and one bookie with small log files, collection every few seconds and compaction right after. Our
client writes ledgers in turn, reads ranges of them, follows those being written, and deletes closed ones at random, so
that most logs empty gradually. Everything read is compared with what was written. The bookie's memory, files, threads
and disk usage are sampled each second. The first third is warm-up; the other two are compared. At the end every
acknowledged entry of every ledger that was not deleted is read back.

Exit status 1: memory grew by more than --memory-growth (MiB, median of the last third over that of the second),
files or threads by more than --handle-growth, no log was ever removed (not with --quick), or the bookie did not exit
cleanly. A missing or wrong entry ends the run with an exception.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.processes import peak_resident_mib, resident_mib
from benchmarks.report import figure
from bk_spark.bookie.client import Client
from bk_spark.protocol.entries.entry import EntryBlock
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalBookie, LocalCluster

NAME: Final = "bookie_soak"
_QUORUM: Final = Quorum(1, 1, 1)
_MIB: Final = 1 << 20
_SETTINGS: Final = {
    "logSizeLimit": str(16 * _MIB),
    "skipListSizeLimit": str(8 * _MIB),
    "flushInterval": "1000",
    "journalMaxSizeMB": "16",
    "journalMaxBackups": "0",
    "gcWaitTime": "2000",
    "minorCompactionInterval": "4",
    "minorCompactionThreshold": "0.3",
    "majorCompactionInterval": "10",
    "majorCompactionThreshold": "0.8",
    "compactionRateByEntries": "50000",
    "diskUsageThreshold": "0.99",
    "diskUsageWarnThreshold": "0.98",
}
_WRITERS: Final = 3
_READERS: Final = 2
_FOLLOWERS: Final = 1
_LIVE_BYTES: Final = 128 * _MIB
#: So that logs are emptied within a short run.
_QUICK_LIVE_BYTES: Final = 8 * _MIB
_QUICK_SETTINGS: Final = {
    **_SETTINGS,
    "logSizeLimit": str(4 * _MIB),
    "skipListSizeLimit": str(2 * _MIB),
    "gcWaitTime": "1000",
    "minorCompactionInterval": "2",
    "majorCompactionInterval": "4",
}
#: A quick run on a busy machine goes on until a log is removed, but not for ever.
_QUICK_PATIENCE_S: Final = 120.0
_SAMPLE_S: Final = 1.0
_FOLLOW_WAIT_MS: Final = 5_000
_MOST_ENTRY_BYTES: Final = 64 * 1024
#: Share of the live bytes left after deletions.
_KEEP_SHARE: Final = 0.8


@dataclass(slots=True)
class _Ledger:
    """``acknowledged`` entries must be readable. ``held`` is the number of readers, who prevent its deletion."""

    number: int
    ledger_id: int
    acknowledged: int = 0
    size_bytes: int = 0
    closed: bool = False
    held: int = 0


@dataclass(frozen=True, slots=True)
class _Sample:
    seconds: float
    memory_mib: float
    files: int
    threads: int
    disk_mib: float


@dataclass(slots=True)
class _Totals:
    added: int = 0
    added_bytes: int = 0
    read: int = 0
    followed: int = 0
    deleted: int = 0
    logs_seen: set[str] = field(default_factory=set)


class _Payloads:
    """Entry ``e`` of ledger ``n`` always has the same bytes, different from any other entry's."""

    def __init__(self) -> None:
        self._block = random.Random(6).randbytes(2 * _MOST_ENTRY_BYTES)

    def of(self, number: int, entry_id: int) -> bytes:
        mixed = (number * 2_654_435_761 + entry_id * 40_503) & 0xFFFFFFFF
        size = mixed % 2_000 if mixed % 61 else mixed % _MOST_ENTRY_BYTES
        start = (mixed >> 7) % _MOST_ENTRY_BYTES
        return b"%d.%d." % (number, entry_id) + self._block[start : start + size]

    def check(self, ledger: _Ledger, block: EntryBlock) -> None:
        for index in range(len(block)):
            entry_id = block.first_entry_id + index
            if bytes(block.payloads[index]) != self.of(ledger.number, entry_id):
                raise RuntimeError(f"ledger {ledger.ledger_id} entry {entry_id} is not what was written")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks bookie_soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=6.0, help="MB of payload added a second")
    parser.add_argument("--memory-growth", type=float, default=16.0, help="MiB")
    parser.add_argument("--handle-growth", type=float, default=16.0, help="files, or threads")
    parser.add_argument("--quick", action="store_true", help="6 seconds or until a log is removed, without bounds")
    parser.add_argument("--directory", help="where the servers' files go")
    options = parser.parse_args(arguments)
    seconds = 6.0 if options.quick else options.minutes * 60
    settings = _QUICK_SETTINGS if options.quick else _SETTINGS
    with (
        tempfile.TemporaryDirectory(prefix="bk-soak-", dir=options.directory) as directory,
        LocalCluster(Path(directory) / "cluster", bookies=1, bookie_settings=settings) as cluster,
    ):
        bookie = cluster.bookies[0]
        live_bytes = _QUICK_LIVE_BYTES if options.quick else _LIVE_BYTES
        patience_s = _QUICK_PATIENCE_S if options.quick else 0.0
        soak = _Soak(cluster.metadata_service_uri, bookie, seconds, options.rate * 1e6, live_bytes, patience_s)
        asyncio.run(soak.run())
        peak_mib = peak_resident_mib(bookie.pid)
        ended = bookie.terminate() and bookie.exit_code == 0
        tail = bookie.log_tail()
    faults = soak.tell(options.memory_growth, options.handle_growth, peak_mib)
    if options.quick:
        faults.clear()
    if not soak.removed_logs and not options.quick:
        faults.append("no entry log was removed: collection and compaction did nothing")
    if not ended:
        faults.append(f"the bookie did not end well:\n{tail}")
    if faults:
        raise SystemExit("\n".join(faults))


class _Soak:
    def __init__(
        self,
        uri: str,
        bookie: LocalBookie,
        seconds: float,
        bytes_per_second: float,
        live_bytes: int,
        patience_s: float,
    ) -> None:
        self._uri = uri
        self._bookie = bookie
        self._seconds = seconds
        #: So long it goes on without a removed log.
        self._patience_s = patience_s
        self._bytes_per_second = bytes_per_second
        self._live_bytes = live_bytes
        self._random = random.Random(7)
        self._payloads = _Payloads()
        self._live: dict[int, _Ledger] = {}
        self._totals = _Totals()
        self._samples: list[_Sample] = []
        self._started = 0.0
        self._logs_now: set[str] = set()

    @property
    def removed_logs(self) -> int:
        return len(self._totals.logs_seen - self._logs_now)

    async def run(self) -> None:
        async with Client(self._uri) as client:
            self._started = time.monotonic()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._sample())
                tasks.create_task(self._delete(client))
                for count, work in ((_WRITERS, self._write), (_READERS, self._read), (_FOLLOWERS, self._follow)):
                    for _ in range(count):
                        tasks.create_task(work(client))
            await self._check_all(client)

    def _over(self) -> bool:
        elapsed = self._elapsed()
        return elapsed > self._seconds and (elapsed > self._patience_s or self.removed_logs > 0)

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    # --- load --------------------------------------------------------------------------------------

    async def _write(self, client: Client) -> None:
        while not self._over():
            handle = await client.create(quorum=_QUORUM)
            number = handle.ledger_id
            ledger = self._live[number] = _Ledger(number, handle.ledger_id)
            wanted = self._random.randrange(50, 4_000)
            while ledger.acknowledged < wanted and not self._over():
                await self._pace()
                first = ledger.acknowledged
                more = [self._payloads.of(number, first + index) for index in range(self._random.randrange(1, 200))]
                await handle.append_many(more)
                await handle.flush()
                size = sum(map(len, more))
                ledger.acknowledged += len(more)
                ledger.size_bytes += size
                self._totals.added += len(more)
                self._totals.added_bytes += size
            closed = await handle.close()
            if closed.last_entry_id != ledger.acknowledged - 1:
                raise RuntimeError(
                    f"ledger {number} was closed at {closed.last_entry_id}, not {ledger.acknowledged - 1}"
                )
            ledger.closed = True

    async def _pace(self) -> None:
        ahead = self._totals.added_bytes / self._bytes_per_second - self._elapsed()
        await asyncio.sleep(max(0.0, ahead))

    async def _read(self, client: Client) -> None:
        while not self._over():
            await asyncio.sleep(self._random.random() / 10)
            with self._held(lambda ledger: ledger.closed and ledger.acknowledged > 0) as ledger:
                if ledger is None:
                    continue
                first = self._random.randrange(ledger.acknowledged)
                last = min(ledger.acknowledged - 1, first + self._random.choice((0, 10, 500)))
                self._totals.read += await self._compare(client, ledger, first, last)

    async def _follow(self, client: Client) -> None:
        while not self._over():
            await asyncio.sleep(0.1)
            with self._held(lambda ledger: not ledger.closed) as ledger:
                if ledger is None:
                    continue
                reader = await client.open_for_reading(ledger.ledger_id)
                async with aclosing(reader.tail(0, max_wait_ms=_FOLLOW_WAIT_MS)) as blocks:
                    async for block in blocks:
                        self._payloads.check(ledger, block)
                        self._totals.followed += len(block)

    async def _delete(self, client: Client) -> None:
        while not self._over():
            await asyncio.sleep(0.2)
            live = sum(ledger.size_bytes for ledger in self._live.values())
            if live <= self._live_bytes:
                continue
            free = [ledger for ledger in self._live.values() if ledger.closed and not ledger.held]
            self._random.shuffle(free)
            while free and live > self._live_bytes * _KEEP_SHARE:
                ledger = free.pop()
                del self._live[ledger.number]
                live -= ledger.size_bytes
                await client.delete(ledger.ledger_id)
                self._totals.deleted += 1

    @contextmanager
    def _held_ledger(self, ledger: _Ledger | None) -> Iterator[_Ledger | None]:
        if ledger is None:
            yield None
            return
        ledger.held += 1
        try:
            yield ledger
        finally:
            ledger.held -= 1

    def _held(self, wanted: Callable[[_Ledger], bool]) -> AbstractContextManager[_Ledger | None]:
        """Hold a random existing ledger. It is not deleted until released."""
        found = [ledger for ledger in self._live.values() if wanted(ledger)]
        return self._held_ledger(self._random.choice(found) if found else None)

    async def _compare(self, client: Client, ledger: _Ledger, first: int, last: int) -> int:
        reader = await client.open_for_reading(ledger.ledger_id)
        count = 0
        async with aclosing(reader.read_blocks(first, last)) as blocks:
            async for block in blocks:
                self._payloads.check(ledger, block)
                count += len(block)
        if count != last - first + 1:
            raise RuntimeError(f"ledger {ledger.ledger_id} gave {count} entries of {first} to {last}")
        return count

    async def _check_all(self, client: Client) -> None:
        started = time.monotonic()
        count = 0
        for ledger in self._live.values():
            if ledger.acknowledged:
                count += await self._compare(client, ledger, 0, ledger.acknowledged - 1)
        seconds = time.monotonic() - started
        figure(NAME, "checked.entries", count, "entries", ledgers=len(self._live), seconds=round(seconds, 1))

    # --- what the bookie uses -----------------------------------------------------------------------

    async def _sample(self) -> None:
        pid = self._bookie.pid
        while not self._over():
            await asyncio.sleep(_SAMPLE_S)
            disk = self._look_at_disk()
            self._samples.append(
                _Sample(
                    self._elapsed(),
                    resident_mib(pid),
                    len(os.listdir(f"/proc/{pid}/fd")),
                    len(os.listdir(f"/proc/{pid}/task")),
                    disk / _MIB,
                )
            )

    def _look_at_disk(self) -> int:
        """Return the bytes in the bookie's files, and record which logs exist."""
        total = 0
        self._logs_now = set()
        for folder, _, names in os.walk(self._bookie.directory):
            for name in names:
                try:
                    total += os.stat(os.path.join(folder, name)).st_blocks * 512
                except FileNotFoundError:
                    continue
                if name.endswith(".log") and folder.endswith("current"):
                    self._logs_now.add(name)
        self._totals.logs_seen |= self._logs_now
        return total

    def tell(self, memory_growth_mib: float, handle_growth: float, peak_mib: float) -> list[str]:
        """Print the figures and return what is out of bounds."""
        totals, count = self._totals, len(self._samples)
        figure(NAME, "added.entries", totals.added, "entries", megabytes=round(totals.added_bytes / 1e6))
        figure(NAME, "read.entries", totals.read, "entries", followed=totals.followed)
        figure(NAME, "deleted.ledgers", totals.deleted, "ledgers")
        figure(NAME, "logs.removed", self.removed_logs, "files", seen=len(totals.logs_seen))
        thirds = [
            self._samples[: count // 3],
            self._samples[count // 3 : count * 2 // 3],
            self._samples[count * 2 // 3 :],
        ]
        rest = thirds[1] + thirds[2]
        figure(NAME, "memory.peak", peak_mib, "MiB")
        slope = np.polyfit([s.seconds for s in rest], [s.memory_mib for s in rest], 1)[0] * 3600
        figure(NAME, "memory.slope", float(slope), "MiB/h")
        faults = []
        bounds: dict[str, tuple[Callable[[_Sample], float], float, str]] = {
            "memory": (lambda sample: sample.memory_mib, memory_growth_mib, "MiB"),
            "files": (lambda sample: sample.files, handle_growth, "files"),
            "threads": (lambda sample: sample.threads, handle_growth, "threads"),
            "disk": (lambda sample: sample.disk_mib, float("inf"), "MiB"),
        }
        for name, (value, bound, unit) in bounds.items():
            medians = [statistics.median(map(value, third)) for third in thirds]
            growth = medians[2] - medians[1]
            highest = round(max(map(value, rest)), 1)
            figure(NAME, f"{name}.growth", growth, unit, thirds=[round(m, 1) for m in medians], highest=highest)
            if growth > bound:
                faults.append(f"{name} grew by {growth:.1f} {unit} from the second third to the last: over {bound:g}")
        return faults
