"""The work of ``growth`` in a fresh process: ``python -m benchmarks.growth_worker WHAT URI SIZE [PID_OF_A_BOOKIE...]``.

Prints one JSON object: for each figure what :class:`Taken` has, in its order.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeVar

from benchmarks.processes import cpu_seconds, peak_resident_mib
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.client import Client
from bk_spark.bookie.writing.write_handle import WriteHandle
from bk_spark.log import CommitMessage, CommitRequest, EntryFormat, LedgerRange, LogSettings, LogStore
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment, encode
from bk_spark.protocol.metadata.znodes import CreateOp
from bk_spark.protocol.quorum import Quorum

LOGS_ROOT: Final = "/bk_spark/logs"
_QUORUM: Final = Quorum(1, 1, 1)
#: Ledgers that are handled side by side, and znodes created in one transaction.
_AT_ONCE: Final = 200
_FIRST_ID: Final = 1_000_000
_PASSWORD: Final = b"secret"
#: ``latestOffset`` is asked so often, after a pause each, in which watches may report changes.
_ROUNDS: Final = 5
#: So long that each of them looks at the logs again, whose lists count for a second.
_PAUSE_S: Final = 1.1

_A = TypeVar("_A")
_T = TypeVar("_T")


class Taken(NamedTuple):
    """What a piece of work has taken of the process that did it."""

    seconds: float
    cpu_s: float
    peak_mib: float
    #: Processor seconds, among the others, in which Python searched for garbage.
    collector_s: float = 0.0
    #: Processor seconds of the bookies meanwhile, with what they flush in the background.
    bookies_cpu_s: float = 0.0


class _Collector:
    """Adds up the processor time of Python's garbage collector."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self._began = 0.0
        gc.callbacks.append(self._on_phase)

    def _on_phase(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.thread_time()
        else:
            self.cpu_s += time.thread_time() - self._began


_collector = _Collector()
_bookies: list[int] = []
_measured: dict[str, Taken] = {}


@contextmanager
def _measure(name: str) -> Iterator[None]:
    began, cpu, collected = time.perf_counter(), time.process_time(), _collector.cpu_s
    at_bookies = _cpu_of_bookies()
    yield
    _measured[name] = Taken(
        time.perf_counter() - began,
        time.process_time() - cpu,
        peak_resident_mib(os.getpid()),
        _collector.cpu_s - collected,
        _cpu_of_bookies() - at_bookies,
    )


def _cpu_of_bookies() -> float:
    return sum(cpu_seconds(pid) for pid in _bookies)


async def side_by_side(items: Sequence[_A], work: Callable[[_A], Awaitable[_T]]) -> list[_T]:
    """Run ``work`` on ``items`` with bounded concurrency. Returns results in order."""
    results: list[_T] = []
    for first in range(0, len(items), _AT_ONCE):
        results += await asyncio.gather(*(work(item) for item in items[first : first + _AT_ONCE]))
    return results


def create_ledgers(uri: str, count: int) -> None:
    """Create ledgers with one entry each, and close them."""

    async def run() -> None:
        async with Client(uri) as client:

            async def one(_: int) -> None:
                handle = await client.create(quorum=_QUORUM)
                await handle.append(b"entry")
                await handle.close()

            await side_by_side(range(count), one)

    asyncio.run(run())


def write_metadata(client: BlockingClient, count: int) -> None:
    """Create the znodes of closed ledgers. No bookie has them."""
    ensemble = Segment(0, ("127.0.0.1:3181",))
    metadata = encode(LedgerMetadata(_QUORUM, (ensemble,), LedgerState.CLOSED, 9, 1000, DigestType.CRC32C, b""))
    settings = LogSettings.create(_QUORUM, DigestType.CRC32C, EntryFormat.RAW, _PASSWORD)
    log = LogStore.of(client, LOGS_ROOT).create_log("none", settings, _PASSWORD)
    for first in range(_FIRST_ID, _FIRST_ID + count, _AT_ONCE):
        part = range(first, min(first + _AT_ONCE, _FIRST_ID + count))
        paths = [log.ledgers.ledger_path(ledger_id) for ledger_id in part]
        for parent in {path.rpartition("/")[0] for path in paths}:
            client.zookeeper.ensure_path(parent)
        client.zookeeper.transaction([CreateOp(path, metadata) for path in paths])


def open_ledgers(uri: str, size: int) -> None:
    async def run() -> None:
        async with Client(uri) as client:

            async def append(handle: WriteHandle) -> None:
                await handle.append(b"entry")
                await handle.flush()

            with _measure("create"):
                handles = await side_by_side(range(size), lambda _: client.create(quorum=_QUORUM))
            with _measure("append"):
                await side_by_side(handles, append)
            with _measure("append_again"):
                await side_by_side(handles, append)
            with _measure("close"):
                await side_by_side(handles, WriteHandle.close)

    asyncio.run(run())


def logs(uri: str, size: int) -> None:
    from bk_spark.datasource.entries.schemas import RAW_SCHEMA  # the others do not need PySpark
    from bk_spark.datasource.options.parse import parse_options
    from bk_spark.datasource.stream.planner import LogStreamPlanner

    options = parse_options({"metadataServiceUri": uri, "logPattern": "log-.*"}, writing=False, streaming=True)
    with _measure("query_start"):
        planner = LogStreamPlanner(options, RAW_SCHEMA)
        offset = planner.initial()
    assert len(offset.positions) == size
    took: list[Taken] = []
    for _ in range(_ROUNDS):
        time.sleep(_PAUSE_S)
        with _measure("latest_offset"):
            planner.next(offset, limited=True)
        took.append(_measured["latest_offset"])
    _measured["latest_offset"] = sorted(took)[_ROUNDS // 2]


def tasks_of_a_commit(uri: str, size: int) -> None:
    with BlockingClient(uri) as client:
        settings = LogSettings.create(_QUORUM, DigestType.CRC32C, EntryFormat.RAW, b"")
        log = LogStore.of(client, LOGS_ROOT).create_log("commits", settings)
        register = log.ledger_registrar("writer", "run")
        for first in range(_FIRST_ID, _FIRST_ID + size, _AT_ONCE):
            part = range(first, min(first + _AT_ONCE, _FIRST_ID + size))
            client.zookeeper.transaction([op for ledger_id in part for op in register(ledger_id)])
        messages = tuple(
            CommitMessage(
                log.log_id, "writer", "run", "query", 0, task, (LedgerRange(_FIRST_ID + task, 0, 999, 1000, 100_000),)
            )
            for task in range(size)
        )
        with _measure("commit"):
            log.commit(CommitRequest(log.log_id, "writer", "run", "query", 0, messages))


def znodes(uri: str, size: int) -> None:
    async def run() -> int:
        async with Client(uri) as client:
            return sum([len(batch) async for batch in client.ledger_batches()])

    with _measure("list"):
        assert asyncio.run(run()) == size


if __name__ == "__main__":
    what, uri, size, *pids = sys.argv[1:]
    _bookies += map(int, pids)
    {"open_ledgers": open_ledgers, "logs": logs, "tasks_of_a_commit": tasks_of_a_commit, "znodes": znodes}[what](
        uri, int(size)
    )
    print(json.dumps(_measured))
