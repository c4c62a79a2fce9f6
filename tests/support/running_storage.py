"""A bookie over a real storage in this process, with calls that wait; copies its files as a kill would leave them."""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ParamSpec

import numpy as np

from bk_spark.protocol.arrays import Int32s
from bk_spark.protocol.codes import Code
from bookie_server.bookie import Bookie
from bookie_server.config.config import BookieConfig
from bookie_server.state import BookieState
from bookie_server.storage.disk.directories import LedgerDirectories
from bookie_server.storage.journal.log_mark import LogMark, read_marks
from bookie_server.storage.ledger_storage import LedgerStorage
from bookie_server.storage.records import MAX_ENTRY_ID, Records
from bookie_server.storage.upkeep import StorageUpkeep
from tests.support import patient_loop
from tests.support.bookie_settings import bookie_config

P = ParamSpec("P")
KEY = bytes(range(20))
OTHER_KEY = bytes(20)
HOUR_MS = 3_600_000


def stored(ledger_id: int, entry_id: int, size: int = 64, fill: bytes = b"e") -> bytes:
    """An entry as it is stored."""
    return struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 0).ljust(size, fill)


def records(entries: Sequence[bytes]) -> Records:
    """These entries on their way to the disk."""
    offsets = np.cumsum([0, *(len(entry) + 4 for entry in entries)])
    ids = np.array([struct.unpack_from(">qqq", entry.ljust(24, b"\0")) for entry in entries], np.int64)
    data = b"".join(struct.pack(">i", len(entry)) + entry for entry in entries)
    return Records(ids[:, 0].copy(), ids[:, 1].copy(), ids[:, 2].copy(), memoryview(data), offsets)


def in_loop(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """Run a test that is a coroutine."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        patient_loop.run(test(*args, **kwargs))

    return run


@dataclass(frozen=True)
class Place:
    """Directories of a bookie below ``root``, and the settings of its storage."""

    root: Path
    config: BookieConfig
    journals: tuple[str, ...]
    ledgers: tuple[str, ...]
    indexes: tuple[str, ...]
    find_last_entry: Callable[[], int] = lambda: MAX_ENTRY_ID

    @classmethod
    def make(cls, root: Path, *, journals: int = 1, ledgers: int = 1, indexes: int = 0, **settings: Any) -> Place:
        """Create the directories. ``settings`` as for :meth:`with_settings`. Flushes happen on demand, or when the
        write cache is full."""
        names = {
            kind: tuple(str(root / (kind if count == 1 else f"{kind}{i}")) for i in range(count))
            for kind, count in (("journal", journals), ("ledgers", ledgers), ("index", indexes))
        }
        for path in (path for paths in names.values() for path in paths):
            os.makedirs(path)
        place = cls(root, bookie_config(), names["journal"], names["ledgers"], names["index"])
        return place.with_settings(**{"flush_interval_ms": HOUR_MS, "journal_preallocate_bytes": 4096, **settings})

    def with_settings(self, **settings: Any) -> Place:
        """``settings`` are fields of this class, or of BookieConfig."""
        own = {name: settings.pop(name) for name in list(settings) if hasattr(self, name)}
        return replace(self, config=replace(self.config, **settings), **own)

    @property
    def journal(self) -> Path:
        """The first journal directory."""
        return Path(self.journals[0])

    @property
    def ledger(self) -> Path:
        """The first ledger directory."""
        return Path(self.ledgers[0])

    def marks(self) -> list[LogMark]:
        return read_marks(self.ledgers, len(self.journals))

    def logs(self) -> list[Path]:
        """Entry logs in all directories."""
        return sorted(path for directory in self.ledgers for path in Path(directory).glob("*.log"))

    def storage(self, **callbacks: Any) -> LedgerStorage:
        """Open the storage; blocking."""
        given: dict[str, Any] = {
            "on_failure": lambda error: None, "on_trouble": lambda source, reason: None, **callbacks
        }  # fmt: skip
        directories = LedgerDirectories(self.ledgers, self.indexes or None)
        return LedgerStorage(self.config, directories, self.journals, find_last_entry=self.find_last_entry, **given)

    def killed(self, to: Path) -> Place:
        """Copy the files as a kill -9 would leave them now to ``to``."""
        shutil.copytree(self.root, to)

        def moved(paths: Sequence[str]) -> tuple[str, ...]:
            return tuple(str(to / Path(path).relative_to(self.root)) for path in paths)

        return replace(
            self, root=to, journals=moved(self.journals), ledgers=moved(self.ledgers), indexes=moved(self.indexes)
        )


class Running:
    """A bookie over a storage, and what the storage reported."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.failures: list[Exception] = []
        self.troubles: list[tuple[str, str | None]] = []
        self.state = BookieState()
        self.storage = place.storage(on_failure=self.failures.append, on_trouble=self._troubled)
        self.bookie = Bookie(self.storage, self.state)
        self.upkeep = StorageUpkeep(self.storage)

    def _troubled(self, source: str, reason: str | None) -> None:
        self.troubles.append((source, reason))
        if reason is None:
            self.state.clear(source)
        else:
            self.state.set_read_only(source, reason)

    async def add(
        self, *entries: bytes, key: bytes = KEY, recovery: bool = False, high_priority: bool = False
    ) -> list[Code]:
        """Add entries in one run; return the answer to each."""
        outcome: asyncio.Future[Code | Int32s] = asyncio.get_running_loop().create_future()
        self.bookie.add(records(entries), key, recovery=recovery, high_priority=high_priority, done=outcome.set_result)
        codes = await outcome
        return [codes] * len(entries) if isinstance(codes, Code) else [Code(code) for code in codes.tolist()]

    async def read(self, *ids: tuple[int, int], taken: bool = False) -> list[bytes | Code]:
        """Read (ledger, entry) pairs in one run; return the answer to each."""
        ledgers = np.array([ledger for ledger, _ in ids], np.int64)
        entries = np.array([entry for _, entry in ids], np.int64)
        result: list[bytes | Code] = []
        while len(result) < len(ids):
            part = await self.bookie.read(ledgers[len(result) :], entries[len(result) :], 100_000, taken=taken)
            found = 0
            for code in part.codes.tolist():
                if code == Code.OK:
                    assert part.entries is not None
                    result.append(bytes(part.entries.entry(found)))
                    found += 1
                else:
                    result.append(Code(code))
        return result

    def read_now(self, ledger_id: int, entry_id: int) -> bytes | Code | None:
        """The answer that is available at once; None if there is none."""
        answer = self.bookie.read_now(ledger_id, entry_id)
        if answer is None:
            return None
        code, entry = answer
        return bytes(entry) if code is Code.OK else code

    async def batch(
        self, ledger_id: int, first: int, count: int = 0, limit: int = 1 << 24, *, taken: bool = False
    ) -> list[bytes] | Code:
        """A batch read's entries."""
        code, parts = await self.bookie.read_batch(ledger_id, first, count, limit, taken=taken)
        return [bytes(part.entry(i)) for part in parts for i in range(len(part.sizes))] if code is Code.OK else code

    async def entry_ids(self, ledger_id: int) -> list[int] | Code:
        code, ids = await self.bookie.list_entries(ledger_id)
        return ids.tolist() if code is Code.OK else code


async def delete_ledger(upkeep: StorageUpkeep, ledger_id: int) -> None:
    """Remove a ledger as the collector does."""
    try:
        if upkeep.mark_ledger(ledger_id):
            await upkeep.settle()
            await upkeep.remove_ledger(ledger_id)
    finally:
        upkeep.unmark_ledger(ledger_id)


@asynccontextmanager
async def running(place: Place, *, clean_end: bool = True) -> AsyncIterator[Running]:
    """A bookie in ``place``; with ``clean_end`` it must end without an error."""
    bookie = Running(place)
    bookie.storage.start()
    try:
        yield bookie
    except BaseException:
        clean_end = False
        raise
    finally:
        with suppress(*(() if clean_end else (OSError,))):
            await bookie.storage.close()
        bookie.bookie.close()
