"""Our client's side of the ledger benchmark: loops in their own process, like Apache's client.

The parent sends ``(command, arguments)`` over a pipe and gets a :class:`Run`, a plain value or an exception.
One asyncio client does everything, on the process's main thread. Entry ``i`` has payload ``i`` modulo their number.
At regular intervals an entry that was read is compared with what was written.
"""

from __future__ import annotations

import asyncio
import cProfile
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bk_spark.bookie.client import Client
from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.reading.read_handle import ReadHandle
from bk_spark.bookie.writing.write_handle import WriteHandle
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.entries.entry import ENTRY_HEADER_BYTES
from bk_spark.protocol.quorum import Quorum

PASSWORD = b"bench"
DIGEST = DigestType.CRC32C
SAMPLE_EVERY = 64
_MAX_READS_AHEAD = 20_000


@dataclass(frozen=True, slots=True)
class Limits:
    """A loop ends at the first limit reached."""

    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Run:
    """One timed loop: ``seconds`` from the first request to the last response, ``cpu_seconds`` of the client's
    process in that time, latencies where meaningful."""

    count: int
    seconds: float
    cpu_seconds: float
    latencies_us: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    ledger_id: int = -1


def serve(pipe: Connection, profile_directory: str | None) -> None:
    """Serve commands from ``pipe`` until it closes."""
    asyncio.run(_serve(pipe, profile_directory))


async def _serve(pipe: Connection, profile_directory: str | None) -> None:
    worker = _Worker(profile_directory)
    try:
        while True:
            try:
                command, arguments = await asyncio.to_thread(pipe.recv)
            except EOFError:
                return
            try:
                pipe.send(await getattr(worker, command)(**arguments))
            except Exception as error:
                pipe.send(RuntimeError(f"{command} by our client: {error!r}"))
    finally:
        await worker.close()


class _Worker:
    def __init__(self, profile_directory: str | None) -> None:
        self._profiles = None if profile_directory is None else Path(profile_directory)
        self._clients: dict[tuple[str, ClientConfig], Client] = {}

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    async def write(
        self,
        uri: str,
        payloads: Sequence[bytes],
        in_flight: int,
        per_call: int,
        limits: Limits,
        quorum: Quorum,
        wire: int,
        profile: str = "",
    ) -> Run:
        """Write a new ledger and close it, by ``append`` (``per_call`` 1) or ``append_many`` of ``per_call`` payloads,
        with at most ``in_flight`` unacknowledged entries."""
        client = await self._client(uri, ClientConfig(use_v2_wire_protocol=wire == 2))
        handle = await client.create(quorum=quorum, digest_type=DIGEST, password=PASSWORD)
        adds = _Adds(handle, payloads, limits)
        with self._measuring(profile) as clock:
            await adds.run(in_flight, per_call, clock)
        closed = await handle.close()
        expected = (adds.count - 1, sum(len(payloads[i % len(payloads)]) for i in range(adds.count)))
        assert (closed.last_entry_id, closed.length) == expected, f"closed at {closed.last_entry_id}, not {expected}"
        assert not (adds.latencies_us[: adds.count] < 0).any(), "an add was not acknowledged"
        return clock.run(adds.count, adds.latencies_us, handle.ledger_id)

    async def read(
        self,
        uri: str,
        ledger_id: int,
        payloads: Sequence[bytes],
        how: str,
        limits: Limits,
        wire: int,
        profile: str = "",
    ) -> Run:
        """Read a closed ledger from its first entry, repeatedly. ``how``: ``single`` (one read after the other),
        ``pipelined`` (``read_blocks`` by single reads), ``batch`` (``read_blocks``), ``range`` (``read_range``, as
        many entries at once as ``read_blocks`` reads ahead)."""
        # Unlimited single reads of small entries would be too many at once, and bookies would refuse them.
        ahead = ClientConfig().read_ahead_bytes
        if how == "pipelined":
            ahead = min(ahead, _MAX_READS_AHEAD * (len(payloads[0]) + ENTRY_HEADER_BYTES))
        config = ClientConfig(
            use_v2_wire_protocol=wire == 2, batch_read_enabled=how in ("batch", "range"), read_ahead_bytes=ahead
        )
        client = await self._client(uri, config)
        handle = await client.open_for_reading(ledger_id, PASSWORD)
        reads = _Reads(handle, payloads, limits)
        with self._measuring(profile) as clock:
            await {"single": reads.singly, "range": reads.in_ranges}.get(how, reads.in_blocks)(clock)
        return clock.run(reads.count, reads.latencies_us)

    async def check(self, uri: str, ledger_id: int, payloads: Sequence[bytes], entries: int) -> None:
        """Compare some entries, including the last, of a ledger written by either client."""
        client = await self._client(uri, ClientConfig())
        handle = await client.open_for_reading(ledger_id, PASSWORD)
        assert handle.last_add_confirmed == entries - 1, f"{handle.last_add_confirmed} instead of {entries - 1}"
        for entry_id in {*range(0, entries, max(1, entries // 7)), entries - 1}:
            (payload,) = await handle.read(entry_id, entry_id)
            assert payload == payloads[entry_id % len(payloads)], f"entry {entry_id} is not what was written"

    async def delete(self, uri: str, ledger_id: int) -> None:
        await (await self._client(uri, ClientConfig())).delete(ledger_id)

    async def _client(self, uri: str, config: ClientConfig) -> Client:
        client = self._clients.get((uri, config))
        if client is None:
            client = self._clients[uri, config] = Client(uri, config)
            await client.start()
        return client

    def _measuring(self, profile: str) -> _Clock:
        return _Clock(self._profiles / f"{profile}.pstats" if self._profiles is not None and profile else None)


class _Clock:
    """A context manager that times its body, and profiles it if a file is given."""

    def __init__(self, profile: Path | None) -> None:
        self._profile = profile
        self._profiler = cProfile.Profile()

    def __enter__(self) -> _Clock:
        self._cpu = time.process_time()
        self._start = time.perf_counter()
        if self._profile is not None:
            self._profiler.enable()
        return self

    def __exit__(self, *_: object) -> None:
        if self._profile is not None:
            self._profiler.disable()
        self._seconds = time.perf_counter() - self._start
        self._cpu = time.process_time() - self._cpu
        if self._profile is not None:
            self._profiler.dump_stats(self._profile)

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self._start

    def run(self, count: int, latencies_us: npt.NDArray[np.int32], ledger_id: int = -1) -> Run:
        return Run(count, self._seconds, self._cpu, latencies_us[:count], ledger_id)


class _Adds:
    def __init__(self, handle: WriteHandle, payloads: Sequence[bytes], limits: Limits) -> None:
        self._handle = handle
        self._payloads = payloads
        self._limits = limits
        self._sent = np.zeros(limits.count, np.float64)
        self.latencies_us = np.full(limits.count, -1, np.int32)
        self._confirmed = -1
        self.count = 0

    async def run(self, in_flight: int, per_call: int, clock: _Clock) -> None:
        handle, payloads = self._handle, self._payloads
        assert len(payloads) % per_call == 0
        while self.count + per_call <= self._limits.count and clock.elapsed < self._limits.seconds:
            await self._confirm(self.count + per_call - in_flight - 1)
            first = self.count % len(payloads)
            self._sent[self.count : self.count + per_call] = time.perf_counter()
            if per_call == 1:
                last = await handle.append(payloads[first])
            else:
                last = await handle.append_many(payloads[first : first + per_call])
            self.count += per_call
            assert last == self.count - 1, f"{last} is not the id of add {self.count - 1}"
        await self._confirm(self.count - 1)

    async def _confirm(self, entry_id: int) -> None:
        """Wait until ``entry_id`` is acknowledged, and record when each entry was."""
        while True:
            confirmed = self._handle.last_add_confirmed
            if confirmed > self._confirmed:
                done = slice(self._confirmed + 1, confirmed + 1)
                self.latencies_us[done] = (time.perf_counter() - self._sent[done]) * 1e6
                self._confirmed = confirmed
            if confirmed >= entry_id:
                return
            self._handle.raise_error()
            await self._handle.waiters.woken()


class _Reads:
    def __init__(self, handle: ReadHandle, payloads: Sequence[bytes], limits: Limits) -> None:
        self._handle = handle
        self._payloads = payloads
        self._limits = limits
        self.latencies_us = np.zeros(limits.count, np.int32)
        self.count = 0

    async def singly(self, clock: _Clock) -> None:
        entries = self._handle.last_add_confirmed + 1
        while not self._over(clock):
            entry_id = self.count % entries
            asked = time.perf_counter()
            (payload,) = await self._handle.read(entry_id, entry_id)
            self.latencies_us[self.count] = (time.perf_counter() - asked) * 1e6
            if self.count % SAMPLE_EVERY == 0:
                self._check(entry_id, payload)
            self.count += 1

    async def in_blocks(self, clock: _Clock) -> None:
        last = self._handle.last_add_confirmed
        self.latencies_us = self.latencies_us[:0]
        while not self._over(clock):
            async with aclosing(self._handle.read_blocks(0, last)) as blocks:
                async for block in blocks:
                    for index in range(-self.count % SAMPLE_EVERY, len(block), SAMPLE_EVERY):
                        self._check(block.first_entry_id + index, block.payloads[index])
                    self.count += len(block)
                    if self._over(clock):
                        return

    async def in_ranges(self, clock: _Clock) -> None:
        entries = self._handle.last_add_confirmed + 1
        self.latencies_us = self.latencies_us[:0]
        at_once = max(1, ClientConfig().read_ahead_bytes // len(self._payloads[0]))
        first = 0
        while not self._over(clock):
            batch = await self._handle.read_range(first, min(first + at_once, entries) - 1)
            for index in range(-self.count % SAMPLE_EVERY, len(batch), SAMPLE_EVERY):
                self._check(first + index, batch.column("value")[index].as_buffer())
            self.count += len(batch)
            first = (first + len(batch)) % entries

    def _over(self, clock: _Clock) -> bool:
        return self.count >= self._limits.count or clock.elapsed > self._limits.seconds

    def _check(self, entry_id: int, payload: Buffer) -> None:
        assert memoryview(payload).cast("B") == self._payloads[entry_id % len(self._payloads)], (
            f"entry {entry_id} is not what was written"
        )
