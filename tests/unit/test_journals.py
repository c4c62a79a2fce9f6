"""Several journals: which ledger is in which, one that fails beside others, retention."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from pathlib import Path

import pytest

from bookie_server.storage.disk.removal import Removal
from bookie_server.storage.journal import journal
from bookie_server.storage.journal.journals import Journals
from bookie_server.storage.journal.log_mark import LogMark
from tests.support.bookie_settings import JournalPlace, bookie_config
from tests.support.entry_log_building import arrival_log
from tests.support.failing_os import FailingOs
from tests.unit.test_group_commit import Told, entries, in_loop, running


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FailingOs:
    return FailingOs(monkeypatch)


def config(tmp_path: Path, count: int = 3, max_file_bytes: int = 1 << 30, max_backups: int = 5) -> JournalPlace:
    paths = [tmp_path / f"journal{number}" for number in range(count)]
    for path in paths:
        path.mkdir()
    settings = bookie_config(
        journal_max_bytes=max_file_bytes, journal_preallocate_bytes=1 << 16, journal_max_backups=max_backups
    )
    return JournalPlace(settings, tuple(map(str, paths)))


@in_loop
async def test_a_ledgers_journal_is_its_id_modulo_their_number(tmp_path: Path) -> None:
    settings = config(tmp_path)
    async with running(settings) as here:
        assert len(here.journals) == 3
        assert [here.journals.number_of(ledger) for ledger in (0, 5, 7, 2**63 - 1, -1)] == [0, 2, 1, 1, 2]
        assert all(await asyncio.gather(*[here.submit(ledger, 0) for ledger in range(9)]))
        marks = here.journals.durable_marks()
        assert [mark.offset > 512 for mark in marks] == [True] * 3
    for number in range(3):
        assert sorted(entries(tmp_path / f"journal{number}")) == [(number + 3 * i, 0) for i in range(3)]


@in_loop
async def test_one_journal_is_written_while_another_syncs(tmp_path: Path, disk: FailingOs) -> None:
    async with running(config(tmp_path)) as here:
        block = disk.block("fdatasync")
        slow = here.submit(0, 0)
        await here.reached(block)
        assert await here.submit(1, 0)
        passed: list[bool] = []
        assert not here.journals.barrier(passed.append, 1)
        assert here.journals.barrier(passed.append)
        assert here.journals.outstanding_bytes > 0
        assert not slow.done()
        block.release()
        assert await slow
        assert passed == [True]


@in_loop
async def test_a_barrier_over_all_tells_of_the_one_that_failed(tmp_path: Path, disk: FailingOs) -> None:
    told = Told()
    async with running(config(tmp_path), told) as here:
        block = disk.block("pwritev")
        bad = here.submit(0, 0)
        await here.reached(block)
        good = here.submit(1, 0)
        barrier = asyncio.ensure_future(here.barrier())
        await asyncio.sleep(0)
        block.release(errno.ENOSPC)
        assert [await bad, await good, await barrier] == [False, True, False]
        assert here.journals.write_error is not None
        assert await here.probe() is True
        assert await here.submit(0, 1)
    assert entries(tmp_path / "journal0") == [(0, 1)]
    assert entries(tmp_path / "journal1") == [(1, 0)]


@in_loop
async def test_on_failure_is_called_once_for_all(tmp_path: Path, disk: FailingOs) -> None:
    told = Told()
    async with running(config(tmp_path), told) as here:
        disk.fail("fdatasync", errno.EIO)
        assert await asyncio.gather(*[here.submit(ledger, 0) for ledger in range(3)]) == [False] * 3
        assert len(told.failures) == 1


@in_loop
async def test_old_files_are_removed_but_for_the_newest_backups(tmp_path: Path, disk: FailingOs) -> None:
    settings = config(tmp_path, 1, max_file_bytes=513, max_backups=2)
    (directory,) = settings.directories
    async with contextlib.AsyncExitStack() as stack:
        removal = stack.enter_context(contextlib.closing(Removal()))
        here = await stack.enter_async_context(running(settings))
        for i in range(7):
            assert await here.submit(0, i)
        assert journal.journal_ids(directory) == [16, 17, 18, 19, 20, 21, 22]
        here.journals.remove_below([LogMark(17, 1024)], removal)
        assert journal.journal_ids(directory) == [16, 17, 18, 19, 20, 21, 22]
        here.journals.remove_below([LogMark(20, 512)], removal)
        assert journal.journal_ids(directory) == [18, 19, 20, 21, 22]
        disk.fail("remove", errno.EIO)
        here.journals.remove_below([LogMark(22, 1024)], removal)
        assert journal.journal_ids(directory) == [18, 19, 20, 21, 22]
        disk.heal()
        here.journals.remove_below(here.journals.durable_marks(), removal)
        assert journal.journal_ids(directory) == [20, 21, 22]


def test_each_journal_needs_its_end(tmp_path: Path) -> None:
    def unexpected(error: Exception) -> None:
        raise AssertionError(error)

    with pytest.raises(ValueError, match="shorter"):
        Journals(
            *config(tmp_path),
            [],
            new_arrival_log=lambda: arrival_log(tmp_path),
            on_failure=unexpected,
            on_write_error=unexpected,
        )
