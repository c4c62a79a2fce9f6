"""Random runs: the seed decides how the bookie is set up and what is asked of it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from bk_spark.protocol.codes import Code
from tests.crash.choices import ALL
from tests.crash.crashes import empty_directory
from tests.crash.disk import Disk
from tests.crash.expectations import Mark
from tests.crash.operations import Allocate, Create, Operation, Rename, Sync, Write
from tests.crash.recorder import Fault
from tests.crash.subject import COLLECTOR_THREAD, FLUSH_THREAD, JOURNAL_THREAD, Shape
from tests.crash.workload import Recording, Workload

LEDGERS: Final = 4
_LARGE_BYTES: Final = 70_000


def shape_of(seed: int) -> Shape:
    """Every third bookie has several directories; every fourth flushes after each add; every fifth answers before it
    syncs its journals; every second writes directly to its disks; two of three write large entries to entry logs."""
    rng = random.Random(f"shape {seed}")
    several = seed % 3 == 0
    return Shape(
        journals=rng.choice((2, 3)) if several else 1,
        ledger_directories=2 if several else 1,
        journal_max_bytes=rng.choice((1024, 4096, 20_000)),
        journal_max_backups=rng.choice((0, 0, 1)),
        preallocate_bytes=rng.choice((512, 4096)),
        entry_log_size_limit_bytes=rng.choice((3000, 8192, 50_000)),
        write_cache_bytes=1 if seed % 4 == 3 else 64 << 20,
        sync_journals=seed % 5 != 0,
        direct=seed % 2 == 0,
        large_entry_bytes=0 if seed % 3 == 1 else rng.choice((1, 100, 500)),
    )


def record(seed: int, steps: int, only: Sequence[str] = ()) -> Recording:
    """A recorded run of ``steps`` random steps. Its log has all that changed files, or this fails."""
    with empty_directory() as root:
        history = History(root, seed)
        with history.recorder.installed():
            asyncio.run(history.play(steps, only))
        recording = history.recording()
        disk = Disk(recording.base, recording.numbers)
        for item in recording.log:
            if not isinstance(item, Mark):
                disk.apply(item)
        assert disk.image(ALL).key() == history.recorder.image().key(), "a file was changed behind the recorder's back"
        return recording


class History(Workload):
    def __init__(self, root: Path, seed: int) -> None:
        super().__init__(root, shape_of(seed), seed)
        self._deleted: set[int] = set()

    async def play(self, steps: int, only: Sequence[str] = ()) -> None:
        """From start to stop. ``only``: names of the steps that are taken, as often as others; none: all of them."""
        await self.start()
        kinds: dict[str, tuple[Callable[[int], Awaitable[Any]], int]] = {
            "add": (self._add, 10),
            "add to several": (self._add_to_several, 5),
            "add large": (self._add_large, 3),
            "add groups": (self._add_groups, 4),
            "add again": (self._add_again, 2),
            "add forged": (self._add_forged, 2),
            "fence": (self._fence, 1),
            "lac": (self.write_lac, 2),
            "checkpoint": (self._checkpoint, 4),
            "checkpoint and adds": (self._checkpoint_and_adds, 3),
            "force": (self._force, 2),
            "fail journal": (self._fail_journal, 1),
            "fail flush": (self._fail_flush, 1),
            "fail large": (self._fail_large, 1),
            "fail sync": (self._fail_sync, 1),
            "delete": (self._delete, 1),
            "compact": (self._compact, 3),
            "restart": (self._restart, 1),
        }
        names = only or tuple(kinds)
        weights = None if only else [weight for _, weight in kinds.values()]
        for _ in range(steps):
            (name,) = self.rng.choices(names, weights)
            step, _ = kinds[name]
            await step(self._a_ledger())
        await self.end()

    def _a_ledger(self) -> int:
        return self.rng.choice([i for i in range(1, 2 * LEDGERS) if i not in self._deleted][:LEDGERS])

    async def _add(self, ledger_id: int) -> None:
        size = _LARGE_BYTES if self.rng.random() < 0.03 else None
        await self.add(self.entries(ledger_id, self.rng.choice((1, 1, 1, 2, 5)), size))

    async def _add_large(self, ledger_id: int) -> None:
        await self.add(self.entries(ledger_id, self.rng.choice((1, 2, 4)), self.rng.choice((600, 900, 3000))))

    async def _add_forged(self, ledger_id: int) -> None:
        await self.add([self.forged(ledger_id), *self.entries(ledger_id, self.rng.choice((0, 1)))])

    async def _add_to_several(self, _: int) -> None:
        for _ in range(self.rng.choice((2, 3))):
            await self.add(self.entries(self._a_ledger(), self.rng.choice((1, 2, 3))))

    async def _add_groups(self, ledger_id: int) -> None:
        """One group is being written while others gather."""
        answers: list[Awaitable[list[Code]]] = []

        async def more() -> None:
            for _ in range(self.rng.choice((1, 2, 3))):
                answers.append(self.ask(self.entries(ledger_id, self.rng.choice((1, 3)))))

        await self.while_held(JOURNAL_THREAD, self.rng.randrange(2), more, self.add(self.entries(ledger_id, 2)))
        await asyncio.gather(*answers)
        await self.settle()

    async def _add_again(self, ledger_id: int) -> None:
        """An entry is added again with other bytes, as a recovery's write-back may."""
        last = self.last(ledger_id)
        if last >= 0:
            await self.add([self.entry(ledger_id, self.rng.randrange(max(0, last - 5), last + 1))], recovery=True)

    async def _fence(self, ledger_id: int) -> None:
        await self.fence(ledger_id)
        await self.add(self.entries(ledger_id, 1))
        await self.add(self.entries(ledger_id, 1), recovery=True)

    async def _checkpoint(self, _: int) -> None:
        await self.checkpoint()

    async def _force(self, ledger_id: int) -> None:
        await self._add(ledger_id)
        await self.force()

    async def _checkpoint_and_adds(self, ledger_id: int) -> None:
        """A checkpoint is stopped somewhere while adds go on."""
        await self._add(ledger_id)

        async def adds() -> None:
            for _ in range(self.rng.choice((1, 3))):
                await self.ask(self.entries(self._a_ledger(), self.rng.choice((1, 2))))

        await self.while_held(FLUSH_THREAD, self.rng.randrange(20), adds, self.checkpoint())

    async def _fail_journal(self, ledger_id: int) -> None:
        fault = Fault(
            _in_journal(self),
            skip=self.rng.randrange(2),
            count=self.rng.choice((1, 2)),
            partial=self.rng.choice((0, 100)),
        )
        fault.error = self.rng.choice((errno.ENOSPC, errno.EIO))

        async def adds() -> None:
            new = 100 + self.rng.randrange(3)  # its master key may fail, too
            for ledger in (ledger_id, new, new):
                await self.add(self.entries(ledger, 2))

        await self.with_fault(fault, adds)
        await self._add(ledger_id)

    async def _fail_sync(self, ledger_id: int) -> None:
        """The process ends; what was written and not synced is read back by the next one."""
        await self._add(ledger_id)
        fault = self.recorder.fault = Fault(_in_journal(self, Sync), error=errno.EIO)
        await self.add(self.entries(ledger_id, 2), recovery=True)
        await self.force()
        self.recorder.fault = None
        assert fault.happened
        if not self.subject.failures:
            return  # a mutant goes on
        await self.kill()

    async def _fail_flush(self, ledger_id: int) -> None:
        await self._add_to_several(ledger_id)
        fault = Fault(
            _outside_journal(self),
            skip=self.rng.randrange(10),
            count=self.rng.choice((1, 3, 100)),
            partial=self.rng.choice((0, 9)),
        )
        await self.with_fault(fault, self.checkpoint)

    async def _fail_large(self, ledger_id: int) -> None:
        """Entry logs take no large entries: the journal does. Or their sync fails: the process ends."""
        large = self.shape.large_entry_bytes and self.shape.sync_journals
        if large and self.rng.random() < 0.5:
            fault = self.recorder.fault = Fault(_in_entry_log(self, Sync), error=errno.EIO)
            await self.add(self.entries(ledger_id, 2, 700), recovery=True)
            self.recorder.fault = None
            if fault.happened:
                await self.kill()
            return
        fault = Fault(
            _outside_journal(self),
            skip=self.rng.randrange(4),
            count=self.rng.choice((1, 2, 100)),
            partial=self.rng.choice((0, 100)),
        )

        async def adds() -> None:
            for _ in range(3):
                await self.add(self.entries(self._a_ledger(), 2, 700))

        await self.with_fault(fault, adds)

    async def _delete(self, ledger_id: int) -> None:
        if self.last(ledger_id) >= 0 and len(self._deleted) < LEDGERS:
            self._deleted.add(ledger_id)
            await self.delete(ledger_id)

    async def _compact(self, ledger_id: int) -> None:
        logs = self.subject.logs_to_compact()
        if not logs:
            return
        entry_log_id = self.rng.choice(logs)
        if self.rng.random() < 0.3:
            await self.compact(entry_log_id)
            return

        async def adds() -> None:
            await self.ask(self.entries(ledger_id, 1))
            await self._add_again(ledger_id)

        thread = self.rng.choice((COLLECTOR_THREAD, FLUSH_THREAD))
        await self.while_held(thread, self.rng.randrange(12), adds, self.compact(entry_log_id))

    async def _restart(self, ledger_id: int) -> None:
        if self.rng.random() < 0.3:
            await self.restart()
            return
        await self._add(ledger_id)
        self.recorder.kill_after(self.rng.randrange(60))
        with contextlib.suppress(OSError):
            for _ in range(10):
                await self._add(ledger_id)
                if self.recorder.killed:
                    break
                if self.rng.random() < 0.5:
                    await self.checkpoint()
                logs = self.subject.logs_to_compact()
                if logs:
                    await self.compact(self.rng.choice(logs))
        full = self.rng.random() < 0.3
        await self.kill(Fault(_outside_journal(self), count=1000) if full else None)


def _in_journal(history: Workload, *kinds: type) -> Callable[[Operation], bool]:
    """Whether an operation writes to a journal, or is of ``kinds`` there."""

    def hits(operation: Operation) -> bool:
        if isinstance(operation, Create):
            return not kinds and operation.path.startswith("journal")
        if not isinstance(operation, Write | Allocate | Sync) or not isinstance(operation, kinds or (Write, Allocate)):
            return False
        return history.recorder.path_of(operation.file).startswith("journal")

    return hits


def _in_entry_log(history: Workload, *kinds: type) -> Callable[[Operation], bool]:
    def hits(operation: Operation) -> bool:
        if not isinstance(operation, Write | Sync) or not isinstance(operation, kinds):
            return False
        return history.recorder.path_of(operation.file).endswith(".log")

    return hits


def _outside_journal(history: Workload) -> Callable[[Operation], bool]:
    def hits(operation: Operation) -> bool:
        if isinstance(operation, Create):
            return not operation.path.startswith("journal")
        if isinstance(operation, Rename):
            return True
        return isinstance(operation, Write | Allocate) and not history.recorder.path_of(operation.file).startswith(
            "journal"
        )

    return hits
