"""Known bugs of bookies (scenarios B1, B2, B5) as recorded runs that crash."""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from bk_spark.protocol.codes import Code
from bookie_server.storage.disk import files
from tests.crash.choices import EXTREMES
from tests.crash.crashes import Case, Crashes, Effort, Step, empty_directory
from tests.crash.expectations import Mark
from tests.crash.operations import Create, Operation, Rename
from tests.crash.subject import FLUSH_THREAD, JOURNAL_THREAD, Shape
from tests.crash.workload import Recording, Workload


def record(shape: Shape, run: Callable[[Workload], Awaitable[None]]) -> Recording:
    with empty_directory() as root:
        workload = Workload(root, shape, seed=1)
        with workload.recorder.installed():
            asyncio.run(_whole(workload, run))
        return workload.recording()


async def _whole(workload: Workload, run: Callable[[Workload], Awaitable[None]]) -> None:
    await workload.start()
    await run(workload)
    await workload.end()


def operations(recording: Recording) -> list[tuple[int, Operation]]:
    return [(cut, item) for cut, item in enumerate(recording.log) if not isinstance(item, Mark)]


@pytest.mark.parametrize("journals", [1, 2])
def test_b1_checkpoints_are_late_while_journals_roll(journals: int) -> None:
    async def run(workload: Workload) -> None:
        checkpoints: list[asyncio.Task[None]] = []

        async def adds_and_another_checkpoint() -> None:
            for ledger_id in (1, 2, 1, 2):
                await workload.ask(workload.entries(ledger_id, 2, 400))
            checkpoints.append(asyncio.ensure_future(workload.checkpoint()))
            await workload.ask(workload.entries(1, 1))

        for skip in (1, 6, 11, 16):
            await workload.add(workload.entries(1, 1))
            await workload.while_held(FLUSH_THREAD, skip, adds_and_another_checkpoint, workload.checkpoint())
        await asyncio.gather(*checkpoints)
        await workload.restart()

    recording = record(Shape(journals=journals, ledger_directories=2, journal_max_bytes=1024), run)
    done = [operation for _, operation in operations(recording)]
    assert sum(isinstance(item, Create) and item.path.startswith("journal") for item in done) > 8
    assert sum(isinstance(item, Rename) and "lastMark" in item.new_path for item in done) > 8
    with Crashes(recording, Effort(share=0.05, torn=0, mixtures=2, nested=20, losses=0), seed=1) as crashes:
        crashes.all()
    assert crashes.counts.starts > 50


def test_b2_between_every_write_and_sync() -> None:
    async def run(workload: Workload) -> None:
        await workload.add(workload.entries(1, 3, 200))
        await workload.write_lac(1)
        await workload.while_held(
            JOURNAL_THREAD, 1, workload.checkpoint, workload.add(workload.entries(2, 2, 300))
        )  # the mark must not speak of what is written and not synced
        await workload.fence(1)
        await workload.checkpoint()

    recording = record(Shape(), run)
    with Crashes(recording, Effort(share=0.6, torn=1, mixtures=1, nested=40, losses=0), seed=1) as crashes:
        crashes.all()
    assert crashes.counts.cuts == len(operations(recording))
    assert crashes.counts.starts > crashes.counts.cuts


def test_b2_without_syncs_no_older_copy_comes_back_from_the_journal() -> None:
    """A flush made the newer copy durable. Whatever part of the journal is left, its replay must not go back."""

    async def run(workload: Workload) -> None:
        (first,) = workload.entries(1, 1)
        await workload.add([first])
        await workload.add([workload.entry(1, first.entry_id)], recovery=True)
        await workload.checkpoint()
        await workload.add(workload.entries(2, 1))

    recording = record(Shape(sync_journals=False), run)
    with Crashes(recording, Effort(torn=3, mixtures=10, nested=0, losses=0), seed=1) as crashes:
        crashes.all()
    assert crashes.counts.unsynced > 0


@pytest.mark.parametrize("compacts", [False, True])
def test_b2_what_a_killed_process_wrote_and_did_not_sync(compacts: bool) -> None:
    """The next one finds it there, in the page cache, and must not rely on it before it is durable."""
    failures = list(_killed_and_cut(compacts))
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("compacts", [False, True])
def test_b2_a_start_that_relies_on_what_was_not_synced_is_caught(
    compacts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "sync_what_was_left", lambda paths: None)
    assert any(_killed_and_cut(compacts))


def _killed_and_cut(compacts: bool) -> Iterator[str]:
    """Kill a flush, or a compaction, at many places, and cut off the power when the next process has started. Yields
    what does not hold."""
    for kill_after in range(3, 45, 3):

        async def run(workload: Workload, kill_after: int = kill_after) -> None:
            await workload.add(workload.entries(1, 3, 200))
            if compacts:
                await workload.checkpoint()
                await workload.restart()  # leaves a log that is complete
            else:
                await workload.add(workload.entries(2, 1, 100))
            workload.recorder.kill_after(kill_after)
            with contextlib.suppress(OSError):
                if compacts:
                    await workload.compact(workload.subject.logs_to_compact()[0])
                await workload.checkpoint()
            await workload.kill()

        recording = record(Shape(), run)
        cut, _ = operations(recording)[-1]
        with Crashes(recording, Effort(nested=0), seed=1) as crashes:
            for keeps in EXTREMES:
                try:
                    crashes.one(Case((Step(cut, keeps),)))
                except AssertionError as error:
                    yield f"killed after {kill_after}: {error}"


@pytest.mark.parametrize(
    ("at", "garbage"),
    [
        (8, struct.pack(">i", (1 << 31) - 1)),  # the master key's length
        (8 + 4 + 20 + 4, struct.pack(">i", (1 << 31) - 1)),  # the explicit LAC's
        (0, b"garbage!"),
        (1024, struct.pack(">q", (1 << 62) + 5)),  # where entry 0 is
        (1024, struct.pack(">q", 12)),
    ],
)
def test_b5_garbage_in_an_index_file_sets_one_ledger_aside(at: int, garbage: bytes, tmp_path: Path) -> None:
    async def run() -> None:
        workload = Workload(tmp_path, Shape(entry_log_size_limit_bytes=1 << 20), seed=1)
        await workload.start()
        good, bad = workload.entries(1, 3), workload.entries(2, 3)
        await workload.add(good)
        await workload.add(bad)
        await workload.end()
        (path,) = tmp_path.glob("ledgers0/current/**/2.idx")
        fd = os.open(path, os.O_RDWR)
        os.pwrite(fd, garbage, at)
        os.close(fd)
        await workload.start()
        subject = workload.subject
        assert await subject.read_all(1, [0, 1, 2]) == [entry.content for entry in good]
        assert (await subject.read_all(2, [0]))[0] == Code.IO_ERROR
        assert await workload.add(workload.entries(1, 1)) == [Code.OK]
        await workload.end()

    asyncio.run(run())
