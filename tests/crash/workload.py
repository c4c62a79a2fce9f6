"""Runs of a bookie that are recorded (recorder.py) with what was asked and answered."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bk_spark.protocol.codes import Code
from bookie_server.storage.journal import journal
from tests.crash.check import check
from tests.crash.expectations import (
    AddAnswered,
    AddAsked,
    Deletion,
    Entry,
    Expectations,
    FenceAnswered,
    FenceAsked,
    LacAnswered,
    LacAsked,
    Mark,
    Note,
    Seen,
    SyncAsked,
    SyncEnded,
)
from tests.crash.operations import Image, Operation
from tests.crash.recorder import Fault, Hold, Recorder
from tests.crash.subject import Shape, Subject, key_of, make_directories, stored
from tests.support.running_storage import delete_ledger

_WAIT_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Recording:
    """``log`` holds operations and marks in the order in which they happened, beginning at ``base``, whose files
    have ``numbers``."""

    base: Image
    numbers: dict[str, int]
    log: list[Operation | Mark]
    shape: Shape


class Workload:
    """Builds a recording: each call asks something of the bookie and, unless it says otherwise, waits for the
    answer, so that what several threads do stays in one order. ``rng`` makes sizes and contents."""

    def __init__(self, root: Path, shape: Shape, seed: int) -> None:
        make_directories(root, shape)
        self._root = root
        self._shape = shape
        self.rng = random.Random(seed)
        self.recorder = Recorder(root)
        self._subject: Subject | None = None
        self._adds = 0
        self._syncs = 0
        self._next: dict[int, int] = {}
        self._lacs: dict[int, int] = {}
        self._fenced: set[int] = set()

    def recording(self) -> Recording:
        return Recording(self.recorder.base, self.recorder.numbers, self.recorder.log, self._shape)

    @property
    def shape(self) -> Shape:
        return self._shape

    @property
    def subject(self) -> Subject:
        assert self._subject is not None
        return self._subject

    def say(self, text: str) -> None:
        self.recorder.mark(Note(text))

    # --- life -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        self.say("start")
        self._subject = Subject(self._root, self._shape)
        self._subject.start()
        if self.recorder.fault is None:
            await self._subject.finish_compactions()

    async def restart(self) -> None:
        """Stop in good order, and start."""
        await self.end()
        await self.start()

    async def kill(self, fault: Fault | None = None) -> None:
        """kill -9, and start: what was written is there, though nobody may have synced it. With ``fault`` while it
        starts. What readers see then must stay."""
        self.say("kill -9")
        self.recorder.kill()
        await self.subject.abandon()
        self.recorder.revive()
        self.recorder.fault = fault
        await self.start()
        if not self._shape.sync_journals:
            await self._check_nothing_is_lost()
        for ledger_id, last in self._next.items():
            for entry_id, content in enumerate(await self.subject.read_all(ledger_id, list(range(last)))):
                if isinstance(content, bytes):
                    self.recorder.mark(Seen(ledger_id, entry_id, content))
        if fault is not None:
            await self.room_again()
            await self.subject.finish_compactions()

    async def _check_nothing_is_lost(self) -> None:
        """With the process alone, nothing that was answered ends, synced or not."""
        expected = Expectations()
        for item in list(self.recorder.log):
            if isinstance(item, Mark):
                expected.note(item)
        await check(self.subject, expected)

    async def end(self) -> None:
        self.say("stop")
        await self._sync(self.subject.stop)

    async def _sync(self, work: Callable[[], Awaitable[object]]) -> None:
        """Do what makes durable all that was answered before, unless it raises or fails."""
        number = self._syncs
        self._syncs += 1
        self.recorder.mark(SyncAsked(number))
        if await work() not in (None, Code.OK) or self.subject.failures:
            return
        self.recorder.mark(SyncEnded(number))

    async def force(self) -> None:
        """Ask for the sync of all journals."""
        self.say("force")
        await self._sync(self.subject.bookie.force)

    # --- requests -------------------------------------------------------------------------------------

    def last(self, ledger_id: int) -> int:
        """The last entry that was asked for; -1 where there is none."""
        return self._next.get(ledger_id, 0) - 1

    def entries(self, ledger_id: int, count: int, size: int | None = None) -> list[Entry]:
        """The next entries of a ledger."""
        first = self._next.get(ledger_id, 0)
        self._next[ledger_id] = first + count
        return [self.entry(ledger_id, i, size) for i in range(first, first + count)]

    def entry(self, ledger_id: int, entry_id: int, size: int | None = None) -> Entry:
        if size is None:
            size = self.rng.choice((0, 1, 7, 40, 100, 300, 700, 1500))
        text = f"{ledger_id}/{entry_id} {self.rng.getrandbits(32):08x} ".encode()
        payload = bytes(size) if self.rng.random() < 0.05 else (text * (size // len(text) + 1))[:size]
        last_add_confirmed = entry_id - 1
        return Entry(ledger_id, entry_id, last_add_confirmed, stored(ledger_id, entry_id, last_add_confirmed, payload))

    def forged(self, ledger_id: int) -> Entry:
        """The next entry of a ledger, of a client that wants it to look like later groups of the journal: seals made
        with a nonce that it guesses, and what the journals hold so far."""
        entry_id = self._next.get(ledger_id, 0)
        self._next[ledger_id] = entry_id + 1
        seals = [journal.group_end(bytes(journal.NONCE_BYTES), start, (), 0) for start in range(512, 30_000, 512)]
        journals = [path.read_bytes().rstrip(b"\0")[-3000:] for path in sorted(self._root.rglob("*.txn"))]
        payload = b"".join(self.rng.sample(seals, 3) + self.rng.sample(journals, min(len(journals), 2)))
        last_add_confirmed = entry_id - 1
        return Entry(ledger_id, entry_id, last_add_confirmed, stored(ledger_id, entry_id, last_add_confirmed, payload))

    def ask(self, entries: list[Entry], *, recovery: bool = False) -> Awaitable[list[Code]]:
        """One add of entries; its answer goes into the log when it arrives."""
        number = self._adds
        self._adds += 1
        self.recorder.mark(AddAsked(number, tuple(entries)))
        contents = [entry.content for entry in entries]
        answer = self.subject.add(contents, key_of(entries[0].ledger_id), recovery=recovery)
        answer.add_done_callback(lambda done: self.recorder.mark(AddAnswered(number, tuple(done.result()))))
        return answer

    async def add(self, entries: list[Entry], *, recovery: bool = False) -> list[Code]:
        codes = await self.ask(entries, recovery=recovery)
        await self.settle()
        return codes

    async def settle(self) -> None:
        """Wait for the log's callbacks, and for a flush if the write cache was full."""
        for _ in range(5):
            await asyncio.sleep(0)
        while self.recorder.hold is None and self.subject.storage.flusher.lock.locked():
            await asyncio.sleep(0.0005)

    async def fence(self, ledger_id: int) -> Code:
        self._fenced.add(ledger_id)
        self.recorder.mark(FenceAsked(ledger_id))
        code = await self.subject.bookie.fence(ledger_id, key_of(ledger_id))
        self.recorder.mark(FenceAnswered(ledger_id, code))
        return code

    async def write_lac(self, ledger_id: int) -> None:
        last_add_confirmed = self._lacs[ledger_id] = self._lacs.get(ledger_id, -1) + self.rng.randrange(1, 4)
        packet = stored(ledger_id, last_add_confirmed, 0, b"digest")
        self.recorder.mark(LacAsked(ledger_id, last_add_confirmed))
        code = await self.subject.bookie.write_lac(packet, key_of(ledger_id))
        self.recorder.mark(LacAnswered(ledger_id, last_add_confirmed, code))

    async def checkpoint(self) -> None:
        self.say("checkpoint")
        await self._sync(self.subject.checkpoint)
        self.say("checkpoint ended")

    async def delete(self, ledger_id: int) -> None:
        self.recorder.mark(Deletion(ledger_id))
        await delete_ledger(self.subject.upkeep, ledger_id)
        await self.subject.upkeep.sync_deletions()

    async def compact(self, entry_log_id: int) -> None:
        self.say(f"compaction of log {entry_log_id:x}")
        await self.subject.compact(entry_log_id)
        self.say("compaction ended")

    async def with_fault(self, fault: Fault, doing: Callable[[], Awaitable[Any]]) -> None:
        """Do something while a file operation fails; what is asked meanwhile may be refused. Then there is room again,
        and everything can be written."""
        self.say(f"writes fail: {errno.errorcode[fault.error]}")
        self.recorder.fault = fault
        with contextlib.suppress(OSError):
            await doing()
        await self.settle()
        await self.room_again()

    async def room_again(self) -> None:
        """Writes succeed, as the disk monitor finds out; what could not be written is."""
        self.recorder.fault = None
        self.say("there is room again")
        directories = self.subject.storage.directories
        for path in directories.paths:
            directories.set_writable(path, True, "")
        await self.checkpoint()

    async def while_held(self, thread: str, skip: int, meanwhile: Callable[[], Awaitable[Any]], doing: Any) -> None:
        """Start ``doing``, hold ``thread`` before its operation number ``skip``, do ``meanwhile``, let it go."""
        hold = self.recorder.hold = Hold(thread, skip)
        task = asyncio.ensure_future(doing)
        try:
            deadline = time.monotonic() + _WAIT_SECONDS
            while not hold.reached.is_set() and not task.done() and time.monotonic() < deadline:
                await asyncio.sleep(0.0005)
            self.say(f"the thread {thread} is held" if hold.reached.is_set() else f"{thread} was not held")
            await meanwhile()
        finally:
            self.recorder.release()
        await task
