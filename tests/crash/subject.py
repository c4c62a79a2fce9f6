"""The bookie under test: its storage on directories of our own, with calls that can be awaited."""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bk_spark.protocol.arrays import Int32s
from bk_spark.protocol.codes import Code
from bk_spark.protocol.entries.digest import master_key
from bookie_server.bookie import Bookie
from bookie_server.config.config import BookieConfig
from bookie_server.gc.compaction import EntryLogCompactor
from bookie_server.gc.entry_log_usage import read_usage
from bookie_server.gc.throttle import StopSignal, Throttle
from bookie_server.identity.cookies import current_directories
from bookie_server.state import BookieState
from bookie_server.storage.disk.directories import LedgerDirectories
from bookie_server.storage.ledger_storage import LedgerStorage
from bookie_server.storage.records import Records
from bookie_server.storage.upkeep import StorageUpkeep
from tests.crash.expectations import CrashError
from tests.support.bookie_settings import bookie_config

LIMIT_BYTES = 1 << 20
#: How names of threads begin.
JOURNAL_THREAD = "journal"
FLUSH_THREAD = "flush"
COLLECTOR_THREAD = "gc"


@dataclass(frozen=True, slots=True)
class Shape:
    """How the bookie is set up; everything is small, so that files roll often.

    ``sync_journals``: adds are answered after the sync (``journalSyncData``). Otherwise nothing but the requests of a
    run syncs: the interval at which the journal is synced is never over.
    """

    journals: int = 1
    ledger_directories: int = 1
    journal_max_bytes: int = 4096
    journal_max_backups: int = 0
    preallocate_bytes: int = 4096
    entry_log_size_limit_bytes: int = 8192
    write_cache_bytes: int = 1 << 20
    sync_journals: bool = True
    #: Journals and entry logs are written directly.
    direct: bool = False
    #: Entries of so many bytes go to an entry log. 0: none.
    large_entry_bytes: int = 0


def password_of(ledger_id: int) -> bytes:
    return b"%d" % ledger_id


def key_of(ledger_id: int) -> bytes:
    return master_key(password_of(ledger_id))


def journal_directories(shape: Shape) -> list[str]:
    return [f"journal{i}" for i in range(shape.journals)]


def ledger_directories(shape: Shape) -> list[str]:
    return [f"ledgers{i}" for i in range(shape.ledger_directories)]


def directories_of(shape: Shape) -> list[str]:
    return [*journal_directories(shape), *ledger_directories(shape)]


def make_directories(root: Path, shape: Shape) -> None:
    for path in current_directories([str(root / name) for name in directories_of(shape)]):
        os.makedirs(path)


class Subject:
    """One process of a bookie. Opening it replays the journals. Raises what the storage raises."""

    def __init__(self, root: Path, shape: Shape) -> None:
        self._root = str(root)
        self.failures: list[Exception] = []
        try:
            self.storage = LedgerStorage(
                _config(shape),
                LedgerDirectories(current_directories([str(root / name) for name in ledger_directories(shape)])),
                current_directories([str(root / name) for name in journal_directories(shape)]),
                on_failure=self.failures.append,
                on_trouble=lambda source, reason: None,
            )
            self.bookie = Bookie(self.storage, BookieState())
            self.upkeep = StorageUpkeep(self.storage)
        except BaseException:
            self._close_files()
            raise

    def start(self) -> None:
        self.storage.start()

    @contextlib.contextmanager
    def compactor(self) -> Iterator[EntryLogCompactor]:
        """What the collector compacts with."""
        with ThreadPoolExecutor(1, thread_name_prefix=COLLECTOR_THREAD) as executor:

            def run_blocking(function: Callable[..., Any], /, *arguments: object) -> asyncio.Future[Any]:
                return asyncio.get_running_loop().run_in_executor(executor, function, *arguments)

            yield EntryLogCompactor(
                self.upkeep, run_blocking, Throttle(0), StopSignal(), throttle_by_bytes=True, throttle_step=1 << 20
            )

    async def finish_compactions(self) -> None:
        """As the collector does at its first round."""
        with self.compactor() as compactor:
            held = await compactor.finish_leftovers()
        if held:
            raise CrashError(f"compactions that cannot be finished: {held}")

    async def compact(self, entry_log_id: int) -> None:
        """Compact an entry log, however much of it is live."""
        usage = read_usage(entry_log_id, self.upkeep.entry_log_path(entry_log_id))
        with self.compactor() as compactor:
            await compactor.compact(usage, await self.upkeep.local_ledgers(), full_disks=False)

    def logs_to_compact(self) -> list[int]:
        return sorted(set(self.upkeep.entry_log_ids()) - self.upkeep.entry_logs_being_written())

    async def stop(self) -> None:
        """End in good order."""
        await self.storage.close()
        self.bookie.close()
        self._close_files()

    async def abandon(self) -> None:
        """End as a killed process does, when the recorder lets nothing through any more."""
        with contextlib.suppress(Exception):
            await self.storage.close()
        self.bookie.close()
        self._close_files()

    def leave(self) -> None:
        """Close files of a storage that was never started."""
        self.bookie.close()
        self._close_files()

    def _close_files(self) -> None:
        for fd in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{fd}").startswith(self._root + "/"):
                    os.close(fd)

    # --- requests -------------------------------------------------------------------------------------

    def add(self, entries: list[bytes], key: bytes, *, recovery: bool = False) -> asyncio.Future[list[Code]]:
        outcome: asyncio.Future[list[Code]] = asyncio.get_running_loop().create_future()

        def done(codes: Code | Int32s) -> None:
            if not outcome.done():
                listed = [codes] * len(entries) if isinstance(codes, Code) else [Code(c) for c in codes.tolist()]
                outcome.set_result(listed)

        self.bookie.add(records(entries), key, recovery=recovery, done=done)
        return outcome

    async def checkpoint(self) -> None:
        await self.storage.checkpoint()

    async def read_all(self, ledger_id: int, entry_ids: list[int]) -> list[bytes | Code]:
        """Each entry, or why not."""
        ledgers = np.full(len(entry_ids), ledger_id, np.int64)
        ids = np.array(entry_ids, np.int64)
        result: list[bytes | Code] = []
        while len(result) < len(ids):
            part = await self.bookie.read(ledgers[len(result) :], ids[len(result) :], LIMIT_BYTES)
            found = 0
            for code in part.codes.tolist():
                if code == Code.OK:
                    assert part.entries is not None
                    result.append(bytes(part.entries.entry(found)))
                    found += 1
                else:
                    result.append(Code(code))
        return result

    async def read_run(self, ledger_id: int, first: int) -> list[bytes]:
        """Entries one after the other from ``first`` on, as batch reads give them."""
        code, parts = await self.bookie.read_batch(ledger_id, first, 0, LIMIT_BYTES)
        return [bytes(part.entry(i)) for part in parts for i in range(len(part.sizes))] if code == Code.OK else []


def _config(shape: Shape) -> BookieConfig:
    return bookie_config(
        journal_max_bytes=shape.journal_max_bytes,
        journal_preallocate_bytes=shape.preallocate_bytes,
        journal_max_backups=shape.journal_max_backups,
        entry_log_size_limit_bytes=shape.entry_log_size_limit_bytes,
        write_cache_bytes=shape.write_cache_bytes,
        flush_interval_ms=3_600_000,
        journal_sync_data=shape.sync_journals,
        journal_page_cache_flush_interval_ms=3_600_000,
        journal_direct_io=shape.direct,
        entry_log_direct_io=shape.direct,
        large_entry_bytes=shape.large_entry_bytes,
    )


def stored(ledger_id: int, entry_id: int, last_add_confirmed: int, payload: bytes) -> bytes:
    """An entry as bookies keep it."""
    return struct.pack(">qqqq", ledger_id, entry_id, last_add_confirmed, len(payload)) + payload


def records(entries: list[bytes]) -> Records:
    offsets = np.cumsum([0, *(len(entry) + 4 for entry in entries)])
    ids = np.array([struct.unpack_from(">qqq", entry) for entry in entries], np.int64)
    data = b"".join(struct.pack(">i", len(entry)) + entry for entry in entries)
    return Records(ids[:, 0].copy(), ids[:, 1].copy(), ids[:, 2].copy(), memoryview(data), offsets)
