"""Groups of the journals on real files: when they go, what a failing disk does to them, what may be said durable."""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import struct
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ParamSpec

import pytest

from bk_spark.protocol.errors import StorageError
from bookie_server.storage.disk import files
from bookie_server.storage.disk.files import SyncFailedError
from bookie_server.storage.journal import group_timing, journal
from bookie_server.storage.journal.group_timing import JournalGroupStats
from bookie_server.storage.journal.journal import JournalEnd, MasterKeyRecord
from bookie_server.storage.journal.journal_reader import JournalReader
from bookie_server.storage.journal.journal_writer import JournalGroup
from bookie_server.storage.journal.journals import Journals
from bookie_server.storage.journal.log_mark import LogMark
from bookie_server.storage.ledger_descriptors import LedgerDescriptor
from bookie_server.storage.records import Records
from tests.support.bookie_settings import JournalPlace, bookie_config
from tests.support.entry_log_building import arrival_log
from tests.support.failing_os import FailingOs

P = ParamSpec("P")
KEY = bytes(range(20))
HOUR_MS = 3_600_000


def record(ledger_id: int, entry_id: int, size: int = 100) -> bytes:
    stored = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 0).ljust(size, b"e")
    return len(stored).to_bytes(4, "big") + stored


def in_loop(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FailingOs:
    return FailingOs(monkeypatch)


class Running:
    """Journals, and what they told."""

    def __init__(self, journals: Journals) -> None:
        self.journals = journals
        self.finished: list[tuple[JournalGroup, Exception | None]] = []
        self.descriptors: dict[int, LedgerDescriptor] = {}

    def through(self, group: JournalGroup, error: Exception | None) -> None:
        self.finished.append((group, error))
        for done in group.done:
            done(error is None)

    def descriptor(self, ledger_id: int) -> LedgerDescriptor:
        return self.descriptors.setdefault(ledger_id, LedgerDescriptor(ledger_id, KEY))

    def submit(self, ledger_id: int, entry_id: int, size: int = 100, *, urgent: bool = True) -> asyncio.Future[bool]:
        """Add an entry, with its ledger's key if need be; whether it became durable."""
        outcome: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def fill(group: JournalGroup) -> None:
            group.add_key(self.descriptor(ledger_id))
            group.add_journal(record(ledger_id, entry_id, size))
            group.done.append(outcome.set_result)

        self.journals.of(ledger_id).add(fill, urgent=urgent)
        return outcome

    async def reached(self, block: Any) -> None:
        assert await asyncio.get_running_loop().run_in_executor(None, block.reached.wait, 60)

    async def barrier(self) -> bool:
        outcome: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        return await outcome if self.journals.barrier(outcome.set_result) else True

    async def sync_written(self) -> bool:
        outcome: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        return await outcome if self.journals.sync_written(outcome.set_result) else True

    async def probe(self) -> bool | None:
        outcome: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        return await outcome if self.journals.probe(outcome.set_result) else None


class Told:
    def __init__(self) -> None:
        self.failures: list[Exception] = []
        self.write_errors: list[OSError] = []
        self.stats: list[JournalGroupStats] = []


def config(tmp_path: Path, **values: Any) -> JournalPlace:
    return JournalPlace(bookie_config(**{"journal_preallocate_bytes": 1 << 16, **values}), (str(tmp_path),))


@asynccontextmanager
async def running(settings: JournalPlace, told: Told | None = None, next_id: int = 16) -> AsyncIterator[Running]:
    """Journals that have started; stopped and closed at the end. What went wrong must be what the test expects."""
    expected = told or Told()
    journals = Journals(
        *settings,
        [JournalEnd(LogMark(0, 0), next_id)] * len(settings.directories),
        new_arrival_log=lambda: arrival_log(Path(settings.directories[0])),
        on_failure=expected.failures.append,
        on_write_error=expected.write_errors.append,
        on_group=lambda number, stats: expected.stats.append(stats),
    )
    here = Running(journals)
    loop = asyncio.get_running_loop()
    journals.start(loop, here.through)
    try:
        yield here
    finally:
        await loop.run_in_executor(None, journals.stop)
        await asyncio.sleep(0)
        journals.close()
    if told is None:
        assert (expected.failures, expected.write_errors) == ([], [])
    assert journals.outstanding_bytes == 0


def items(directory: Path) -> list[Any]:
    """All that is in the journals of a directory; none may be torn."""
    found = []
    ids = journal.journal_ids(str(directory))
    for journal_id in ids:
        reader = JournalReader(str(directory / journal.file_name(journal_id)), may_end_torn=journal_id == ids[-1])
        found += list(reader.items())
        assert not reader.torn
    return found


def entries(directory: Path) -> list[tuple[int, int]]:
    """Entries in the journals of a directory. Each ledger's key must come before its first entry."""
    keys: set[int] = set()
    found: list[tuple[int, int]] = []
    for item in items(directory):
        if isinstance(item, MasterKeyRecord):
            keys.add(item.ledger_id)
        elif isinstance(item, Records):
            assert keys >= set(item.ledger_ids.tolist())
            found += zip(item.ledger_ids.tolist(), item.entry_ids.tolist(), strict=True)
    return found


# --- groups ------------------------------------------------------------------------------------


@in_loop
async def test_what_comes_during_a_sync_is_the_next_group(tmp_path: Path, disk: FailingOs) -> None:
    told = Told()
    async with running(config(tmp_path), told) as here:
        block = disk.block("fdatasync")
        first = here.submit(1, 0)
        await here.reached(block)
        others = [here.submit(1, i) for i in (1, 2, 3)]
        assert here.journals.queued_entries == 3
        assert not first.done()
        block.release()
        assert await asyncio.gather(first, *others) == [True] * 4
        assert [len(group.journal) for group, _ in here.finished] == [2, 3]
        assert here.journals.durable_marks() == [here.finished[-1][0].mark]
    assert entries(tmp_path) == [(1, i) for i in range(4)]
    assert [(stats.entries, stats.size_bytes, stats.ok) for stats in told.stats] == [
        (2, 144 + 4, True),
        (3, 3 * 104, True),
    ]
    assert told.stats[1].queue_seconds > 0
    assert told.stats[0].write_seconds > 0
    assert told.stats[0].sync_seconds > 0


@in_loop
async def test_fences_of_many_ledgers_wait_for_others_and_hold_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NEXT_FENCE_WAIT_S", "MOST_FENCES_WAIT_S"):
        monkeypatch.setattr(group_timing, name, 600.0)
    async with running(config(tmp_path)) as here:
        waiting = [here.submit(1, i, urgent=False) for i in (0, 1)]
        await asyncio.sleep(0.05)  # it would have been written
        assert not here.finished
        async with asyncio.timeout(30):
            assert await asyncio.gather(*waiting, here.submit(1, 2)) == [True] * 3
        assert [len(group.journal) for group, _ in here.finished] == [4]
    monkeypatch.setattr(group_timing, "NEXT_FENCE_WAIT_S", 0.001)
    async with running(config(tmp_path), next_id=17) as here:
        assert await here.submit(1, 3, urgent=False)
        assert await here.submit(1, 4)


@pytest.fixture
def _threads_wait_for_the_loop() -> Iterator[None]:
    """A thread gets the GIL only when the loop waits for something."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(60.0)
    yield
    sys.setswitchinterval(before_s)


@pytest.mark.usefixtures("_threads_wait_for_the_loop")
@in_loop
async def test_a_thread_that_has_not_taken_its_group_yet_is_busy(tmp_path: Path) -> None:
    """It needs the GIL for that, for which the event loop gives way (event_loop.py)."""
    async with running(config(tmp_path)) as here, asyncio.timeout(60):
        assert await here.submit(1, 0)
        while here.journals.busy_since_s is not None:
            await asyncio.sleep(0.001)
        added_s = time.monotonic()
        added = here.submit(1, 1)
        busy_since_s = here.journals.busy_since_s
        assert busy_since_s is not None
        assert added_s <= busy_since_s <= time.monotonic()
        assert await added


@in_loop
async def test_a_thread_that_waits_for_more_is_busy_when_it_has_waited(tmp_path: Path) -> None:
    """So the event loop gives way when the wait has ended, and not before."""
    waits = config(tmp_path, journal_adaptive_group_writes=False, journal_max_group_wait_ms=HOUR_MS)
    async with running(waits) as here, asyncio.timeout(60):
        added = here.submit(1, 0)
        while (here.journals.busy_since_s or 0.0) < time.monotonic() + HOUR_MS / 2000:
            await asyncio.sleep(0.001)
        await asyncio.get_running_loop().run_in_executor(None, here.journals.stop)
        assert await added


@in_loop
async def test_nothing_is_answered_before_the_sync(tmp_path: Path, disk: FailingOs) -> None:
    async with running(config(tmp_path)) as here:
        before = here.journals.durable_marks()
        block = disk.block("fdatasync")
        add = here.submit(1, 0)
        await here.reached(block)
        await asyncio.sleep(0)
        assert not add.done()
        assert here.finished == []
        assert here.journals.durable_marks() == before
        block.release()
        assert await add


@in_loop
async def test_barrier(tmp_path: Path, disk: FailingOs) -> None:
    async with running(config(tmp_path)) as here:
        assert not here.journals.barrier(lambda ok: None)
        block = disk.block("fdatasync")
        first = here.submit(1, 0)
        await here.reached(block)
        passed: list[str] = []
        assert here.journals.barrier(lambda ok: passed.append(f"first {ok}"), 1)
        second = here.submit(1, 1)
        assert here.journals.barrier(lambda ok: passed.append(f"second {ok}"))
        await asyncio.sleep(0)
        assert passed == []
        block.release()
        await first
        # The second group may be durable, too, before this goes on.
        assert passed[0] == "first True"
        await second
        assert passed == ["first True", "second True"]


@pytest.mark.parametrize("threshold", ["bytes", "entries"])
@in_loop
async def test_without_adaptive_writes_a_group_waits_for_its_threshold(tmp_path: Path, threshold: str) -> None:
    limits = {"bytes": {"journal_group_bytes": 2000}, "entries": {"journal_group_entries": 11}}
    settings = config(
        tmp_path, journal_adaptive_group_writes=False, journal_max_group_wait_ms=HOUR_MS, **limits[threshold]
    )
    told = Told()
    async with running(settings, told) as here:
        adds = [here.submit(1, i, 160) for i in range(10)]
        await asyncio.wait(adds, timeout=0.1)
        assert not any(add.done() for add in adds)
        adds += [here.submit(1, i, 400) for i in range(10, 12)]
        assert all(await asyncio.gather(*adds))
        assert [group.entries for group, _ in here.finished] == [13]
        last = here.submit(1, 12)
    assert await last  # the end does not wait
    assert [stats.reason for stats in told.stats] == ["threshold", "queue_empty"]


@in_loop
async def test_without_adaptive_writes_a_group_goes_when_its_oldest_entry_is_old_enough(tmp_path: Path) -> None:
    settings = config(tmp_path, journal_adaptive_group_writes=False, journal_max_group_wait_ms=60)
    for number in range(20):  # a busy machine may stop this thread until the first entry is old enough
        told = Told()
        async with running(settings, told, 16 + number) as here:
            start = time.monotonic()
            first = here.submit(1, 0)
            await asyncio.wait([first], timeout=0.02)
            second = here.submit(1, 1)
            assert await first
            is_with_it = second.done()
            assert time.monotonic() - start >= 0.06
            assert await second
        if len(told.stats) == 1:
            break
    assert is_with_it
    assert [(stats.entries, stats.reason) for stats in told.stats] == [(3, "max_wait")]
    assert told.stats[0].queue_seconds >= 0.06


@pytest.mark.parametrize("values", [{"journal_flush_when_queue_empty": True}, {"journal_max_group_wait_ms": 0}])
@in_loop
async def test_an_empty_queue_lets_a_group_go(tmp_path: Path, values: dict[str, Any]) -> None:
    settings = config(
        tmp_path, **{"journal_adaptive_group_writes": False, "journal_max_group_wait_ms": HOUR_MS, **values}
    )
    async with running(settings) as here:
        assert await here.submit(1, 0)


# --- a write fails -----------------------------------------------------------------------------


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("room_bytes", [0, 1, 70, 400, 511])
@pytest.mark.parametrize("direct", [False, True])
@in_loop
async def test_a_failed_write_is_cut_off_and_later_ones_succeed(
    tmp_path: Path, disk: FailingOs, error: int, room_bytes: int, direct: bool
) -> None:
    told = Told()
    async with running(config(tmp_path, journal_direct_io=direct), told) as here:
        assert await here.submit(1, 0)
        (mark,) = here.journals.durable_marks()
        if direct:
            room_bytes += mark.offset % files.BLOCK_BYTES  # the groups before it in its block are written again
        disk.fill_disk(room_bytes, error)
        assert not await here.submit(2, 0, 300)
        assert os.stat(tmp_path / "10.txn").st_size == mark.offset
        assert [item.errno for item in told.write_errors] == [error]
        assert here.journals.write_error is told.write_errors[0]
        assert here.journals.durable_marks() == [mark]
        disk.heal()
        assert await here.submit(1, 1)
        assert await here.submit(2, 1)
        assert here.journals.write_error is None
    assert entries(tmp_path) == [(1, 0), (1, 1), (2, 1)]
    assert told.failures == []


@in_loop
async def test_groups_filled_before_the_loop_has_learnt_of_a_failure_fail_too(tmp_path: Path, disk: FailingOs) -> None:
    """The pending group's entries lean on the key record in the failed one."""
    told = Told()
    async with running(config(tmp_path), told) as here:
        block = disk.block("pwritev")
        first = here.submit(7, 0)
        await here.reached(block)
        second = here.submit(7, 1)
        assert here.descriptor(7).key_journaled
        block.release(errno.ENOSPC)
        assert [await first, await second] == [False, False]
        assert [type(error) for _, error in here.finished] == [OSError, OSError]
        assert not here.descriptor(7).key_journaled
        assert await here.submit(7, 2)
        assert here.descriptor(7).key_journaled
        assert len(told.write_errors) == 1
    assert entries(tmp_path) == [(7, 2)]


@in_loop
async def test_a_group_filled_between_the_failure_and_the_loops_turn_is_not_written(
    tmp_path: Path, disk: FailingOs
) -> None:
    async with running(config(tmp_path), Told()) as here:
        disk.calls.clear()
        disk.fail("pwritev", times=1)
        first = here.submit(7, 0)
        while "ftruncate" not in disk.calls:  # the thread is through with it; the loop has had no turn
            time.sleep(0.001)
        time.sleep(0.1)  # longer than the thread's pause after a failure
        second = here.submit(7, 1)
        time.sleep(0.05)  # the thread would have written it
        assert disk.calls.count("pwritev") == 1  # the one that failed
        assert [await first, await second] == [False, False]
        assert await here.submit(7, 2)
    assert entries(tmp_path) == [(7, 2)]


@in_loop
async def test_a_key_that_is_durable_is_not_written_again(tmp_path: Path, disk: FailingOs) -> None:
    async with running(config(tmp_path), Told()) as here:
        assert await here.submit(7, 0)
        disk.fail("pwritev", times=1)
        assert not await here.submit(7, 1)
        assert here.descriptor(7).key_journaled
        assert await here.submit(7, 2)
    assert [item for item in items(tmp_path) if isinstance(item, MasterKeyRecord)] == [MasterKeyRecord(7, KEY)]


@in_loop
async def test_promises_are_undone_newest_first_and_before_any_answer(tmp_path: Path, disk: FailingOs) -> None:
    told: list[str] = []

    def promise(name: str) -> Callable[[JournalGroup], None]:
        def fill(group: JournalGroup) -> None:
            group.add_journal(journal.fence_record(1))
            group.undo.append(lambda: told.append(f"undo {name}"))
            group.done.append(lambda ok: told.append(f"{name} {ok}"))

        return fill

    async with running(config(tmp_path), Told()) as here:
        block = disk.block("pwritev")
        here.journals.of(1).add(promise("a"))
        await here.reached(block)
        here.journals.of(1).add(promise("b"))
        here.journals.of(1).add(promise("c"))
        block.release(errno.EIO)
        assert await here.barrier() is False
        assert told == ["undo c", "undo b", "undo a", "a False", "b False", "c False"]
        here.journals.of(1).add(promise("d"))
        assert await here.barrier() is True
        assert told[6:] == ["d True"]


@in_loop
async def test_an_add_from_within_the_answer_to_a_failed_one_is_tried(tmp_path: Path, disk: FailingOs) -> None:
    async with running(config(tmp_path), Told()) as here:
        again: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def fill(group: JournalGroup) -> None:
            group.add_key(here.descriptor(7))
            group.done.append(lambda ok: here.submit(7, 5).add_done_callback(lambda f: again.set_result(f.result())))

        disk.fail("pwritev", times=1)
        here.journals.of(7).add(fill)
        assert await again
    assert entries(tmp_path) == [(7, 5)]


@in_loop
async def test_a_disk_that_stays_full_is_tried_at_a_bounded_rate(tmp_path: Path, disk: FailingOs) -> None:
    told = Told()
    async with running(config(tmp_path), told) as here:
        disk.fill_disk()
        start, writes = time.monotonic(), disk.calls.count("pwritev")
        tried = 0
        while time.monotonic() - start < 0.4 or tried < 2:
            assert not await here.submit(1, 0)
            tried = disk.calls.count("pwritev") - writes
        assert tried <= (time.monotonic() - start) / 0.05 + 1
        disk.heal()
        writes = disk.calls.count("pwritev")
        await asyncio.sleep(0.12)  # longer than the thread's pause after a failure
        assert disk.calls.count("pwritev") == writes  # nothing by itself
        assert await here.submit(1, 1)
    assert entries(tmp_path) == [(1, 1)]
    assert len(told.write_errors) == tried


@in_loop
async def test_stop_while_the_disk_is_full(tmp_path: Path, disk: FailingOs) -> None:
    async with running(config(tmp_path), Told()) as here:
        block = disk.block("pwritev")
        first = here.submit(1, 0)
        await here.reached(block)
        second = here.submit(1, 1)
        stopping = asyncio.get_running_loop().run_in_executor(None, here.journals.stop)
        block.release(errno.ENOSPC)
        await stopping
        assert [await first, await second] == [False, False]
    assert entries(tmp_path) == []


@pytest.mark.parametrize("error", [errno.EOPNOTSUPP, errno.ENOSPC, errno.EIO])
@in_loop
async def test_space_that_cannot_be_allocated_in_advance_is_no_error(
    tmp_path: Path, disk: FailingOs, error: int
) -> None:
    disk.fail("posix_fallocate", error)
    async with running(config(tmp_path, journal_preallocate_bytes=4096)) as here:
        for i in range(20):
            assert await here.submit(1, i, 500)
        # Tried once for each step, not for each group.
        assert disk.calls.count("posix_fallocate") <= 20 * 1024 // 4096 + 1
    assert entries(tmp_path) == [(1, i) for i in range(20)]


@pytest.mark.parametrize("call", ["open", "pwritev"])
@in_loop
async def test_a_next_file_that_cannot_be_begun(tmp_path: Path, disk: FailingOs, call: str) -> None:
    told = Told()
    async with running(config(tmp_path, journal_max_bytes=1200), told) as here:
        assert await here.submit(1, 0, 600)  # the file is beyond its limit now
        marks = here.journals.durable_marks()
        disk.fail(call, times=1)
        assert not await here.submit(2, 0)
        assert journal.journal_ids(str(tmp_path)) == [16]
        assert here.journals.durable_marks() == marks
        assert await here.submit(2, 1)
        assert await here.submit(1, 1)
        assert len(told.write_errors) == 1
    # The id of the file that could not be begun is not used another time.
    assert journal.journal_ids(str(tmp_path)) == [16, 18]
    assert entries(tmp_path) == [(1, 0), (2, 1), (1, 1)]


@in_loop
async def test_a_full_disk_at_start(tmp_path: Path, disk: FailingOs) -> None:
    disk.fill_disk(100)
    told = Told()
    async with running(config(tmp_path), told) as here:
        await asyncio.sleep(0)
        assert [error.errno for error in told.write_errors] == [errno.ENOSPC]
        assert os.listdir(tmp_path) == []
        assert here.journals.durable_marks() == [LogMark(0, 0)]
        assert not await here.submit(1, 0)
        disk.heal()
        assert await here.submit(1, 1)
        (mark,) = here.journals.durable_marks()
        assert mark == here.finished[-1][0].mark
    assert entries(tmp_path) == [(1, 1)]


@in_loop
async def test_probe(tmp_path: Path, disk: FailingOs) -> None:
    told = Told()
    async with running(config(tmp_path), told) as here:
        assert await here.submit(1, 0)
        assert await here.probe() is None
        disk.fill_disk()
        assert not await here.submit(1, 1)
        assert await here.probe() is False
        disk.heal("pwritev")  # room for a write, but not for what is to come
        assert await here.probe() is False
        assert here.journals.write_error is not None
        disk.heal()
        assert await here.probe() is True
        assert here.journals.write_error is None
        assert await here.submit(1, 2)
    assert entries(tmp_path) == [(1, 0), (1, 2)]
    assert len(told.write_errors) == 3


# --- a sync fails ------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@in_loop
async def test_after_a_failed_sync_nothing_is_tried_again(tmp_path: Path, disk: FailingOs, error: int) -> None:
    told = Told()
    async with running(config(tmp_path), told) as here:
        assert await here.submit(1, 0)
        marks = here.journals.durable_marks()
        disk.fail("fdatasync", error, times=1)
        assert not await here.submit(1, 1)
        calls = list(disk.calls)
        assert not await here.submit(1, 2)
        assert not await here.submit(2, 0)
        assert disk.calls == calls
        assert [type(failure) for failure in told.failures] == [SyncFailedError]
        assert told.failures[0].errno == error  # type: ignore[attr-defined]
        assert here.journals.failed
        assert here.journals.durable_marks() == marks
        assert not here.descriptor(2).key_journaled
    assert told.write_errors == []
    assert disk.calls == calls  # closing syncs nothing either


@in_loop
async def test_groups_filled_before_the_loop_has_learnt_of_a_failed_sync_fail_too(
    tmp_path: Path, disk: FailingOs
) -> None:
    told = Told()
    async with running(config(tmp_path), told) as here:
        block = disk.block("fdatasync")
        first = here.submit(1, 0)
        await here.reached(block)
        second = here.submit(1, 1)
        block.release(errno.EIO)
        assert [await first, await second] == [False, False]
        assert len(told.failures) == 1


@pytest.mark.parametrize("number", [1, 2, 3])
@in_loop
async def test_a_failed_sync_at_a_new_file_is_final(tmp_path: Path, disk: FailingOs, number: int) -> None:
    """The old file's, the new one's and the directory's."""
    told = Told()
    async with running(config(tmp_path, journal_max_bytes=1200), told) as here:
        assert await here.submit(1, 0, 600)
        count = 0

        def sync(fd: int) -> None:
            nonlocal count
            count += 1
            if count == number:
                raise OSError(errno.EIO, "no")
            os.fsync(fd)

        disk.on("fsync", sync)
        assert not await here.submit(1, 1)
        assert not await here.submit(1, 2)
        assert count == number
        assert [type(failure) for failure in told.failures] == [SyncFailedError]
    assert entries(tmp_path) == [(1, 0)]


@in_loop
async def test_a_torn_group_that_cannot_be_cut_off_is_final(tmp_path: Path, disk: FailingOs) -> None:
    told = Told()
    async with running(config(tmp_path, journal_direct_io=False), told) as here:
        assert await here.submit(1, 0)
        disk.fill_disk(100)
        disk.fail("ftruncate", errno.EIO)
        assert not await here.submit(1, 1)
        disk.heal()
        assert not await here.submit(1, 2)
        assert [type(failure) for failure in told.failures] == [StorageError]
    reader = JournalReader(str(tmp_path / "10.txn"))
    assert [type(item) for item in reader.items()] == [MasterKeyRecord, Records]
    assert reader.torn


@in_loop
async def test_a_group_that_cannot_be_applied_holds_the_mark_for_good(tmp_path: Path) -> None:
    told = Told()
    async with running(config(tmp_path), told) as here:
        assert await here.submit(1, 0)
        marks = here.journals.durable_marks()
        failing: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def fail(ok: bool) -> None:
            failing.set_result(ok)
            raise OSError(errno.EIO, "the index cannot be read")

        here.journals.of(1).add(lambda group: group.done.append(fail))
        here.journals.of(1).add(lambda group: group.add_journal(record(1, 1)))
        await failing
        assert not await here.submit(1, 2)
        assert here.journals.durable_marks() == marks
        assert len(told.failures) == 1
    assert told.write_errors == []


# --- sync_data off -----------------------------------------------------------------------------


@in_loop
async def test_b2_without_syncs_the_mark_waits_for_one(tmp_path: Path, disk: FailingOs) -> None:
    settings = config(tmp_path, journal_sync_data=False, journal_page_cache_flush_interval_ms=HOUR_MS)
    async with running(settings) as here:
        before = here.journals.durable_marks()
        for i in range(5):
            assert await here.submit(1, i)
        assert disk.calls.count("fdatasync") == 0
        assert here.journals.durable_marks() == before
        assert await here.barrier()
        assert disk.calls.count("fdatasync") == 1
        assert here.journals.durable_marks() == [here.finished[4][0].mark]
        assert not here.journals.barrier(lambda ok: None)  # nothing is left to be synced
        assert await here.submit(1, 5)
    # The end has synced, and the last mark is behind all.
    assert here.journals.durable_marks() == [here.finished[-1][0].mark]
    assert entries(tmp_path) == [(1, i) for i in range(6)]


@in_loop
async def test_without_syncs_one_follows_after_the_interval(tmp_path: Path, disk: FailingOs) -> None:
    async with running(config(tmp_path, journal_sync_data=False, journal_page_cache_flush_interval_ms=30)) as here:
        assert await here.submit(1, 0)
        mark = here.finished[-1][0].mark
        deadline = time.monotonic() + 30
        while here.journals.durable_marks() != [mark]:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.005)
        synced = disk.calls.count("fdatasync")
        assert synced >= 1
        await asyncio.sleep(0.1)  # three intervals
        assert disk.calls.count("fdatasync") == synced  # nothing new, nothing to sync


@in_loop
async def test_without_syncs_a_file_is_synced_before_the_next_begins(tmp_path: Path, disk: FailingOs) -> None:
    settings = config(
        tmp_path, journal_sync_data=False, journal_page_cache_flush_interval_ms=HOUR_MS, journal_max_bytes=1200
    )
    async with running(settings) as here:
        assert await here.submit(1, 0, 600)
        assert await here.submit(1, 1)
        (mark,) = here.journals.durable_marks()
        assert mark == LogMark(17, 512)
        assert disk.calls.count("fdatasync") == 0
    assert entries(tmp_path) == [(1, 0), (1, 1)]


@in_loop
async def test_without_syncs_what_is_written_can_be_synced_while_nothing_else_can_be_written(
    tmp_path: Path, disk: FailingOs
) -> None:
    settings = config(tmp_path, journal_sync_data=False, journal_page_cache_flush_interval_ms=HOUR_MS)
    told = Told()
    async with running(settings, told) as here:
        assert await here.submit(1, 0)
        mark = here.finished[-1][0].mark
        disk.fill_disk(100)
        assert not await here.submit(1, 1)
        assert await here.sync_written()
        assert here.journals.durable_marks() == [mark]
        assert here.journals.write_error is not None  # a sync does not say that there is room
        assert not here.journals.sync_written(lambda ok: None)
        disk.heal()
        assert await here.submit(1, 2)
        disk.fail("fdatasync", errno.EIO)
        assert not await here.sync_written()
        assert [type(error) for error in told.failures] == [SyncFailedError]


@in_loop
async def test_without_syncs_a_failed_one_in_between_is_final(tmp_path: Path, disk: FailingOs) -> None:
    told = Told()
    async with running(
        config(tmp_path, journal_sync_data=False, journal_page_cache_flush_interval_ms=20), told
    ) as here:
        disk.fail("fdatasync", errno.EIO)
        before = here.journals.durable_marks()
        await here.submit(1, 0)  # answered before, unless the disk is slower than the interval
        deadline = time.monotonic() + 30
        while not told.failures:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.005)
        assert [type(failure) for failure in told.failures] == [SyncFailedError]
        assert not await here.submit(1, 1)
        assert disk.calls.count("fdatasync") == 1
        assert here.journals.durable_marks() == before
