"""What operators and disks may ask of garbage collection, and what is refused because it would not be done."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from bookie_server.admin.actions import EntryLogState, RefusedError
from bookie_server.admin.collection import CollectorControl
from bookie_server.gc.collector_config import CompactionConfig, GarbageCollectorConfig
from bookie_server.gc.collector_status import EntryLogStatus, GarbageCollectorStatus
from bookie_server.gc.garbage_collector import GarbageCollector
from bookie_server.gc.throttle import GarbageCollectorStoppedError


class Passes:
    """A collector that notes what it is asked for; a pass ends when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[bool, bool]] = []
        self.major_suspended = False
        self.minor_suspended = False
        self.by_disks: dict[str, bool] = {}
        self.stopped = False
        self.end_of_pass = asyncio.Event()

    async def run(self, *, force_minor: bool = False, force_major: bool = False) -> GarbageCollectorStatus:
        if self.stopped:
            raise GarbageCollectorStoppedError("the collector does not run")
        self.asked.append((force_major, force_minor))
        await self.end_of_pass.wait()
        return self.status()

    def suspend_minor(self, suspended: bool) -> None:
        self.by_disks["minor"] = suspended

    def suspend_major(self, suspended: bool) -> None:
        self.by_disks["major"] = suspended

    def force_by_disks(self, wanted: bool) -> None:
        self.by_disks["force"] = wanted

    def status(self) -> GarbageCollectorStatus:
        return GarbageCollectorStatus(major_count=3, last_major_ms=17, in_minor=True)

    async def entry_logs(self) -> list[EntryLogStatus]:
        return [
            EntryLogStatus(10, "/a", 10, 4, 0.44444, "live 44%"),
            EntryLogStatus(12, "/b", 12, -1, -1.0, "being written"),
        ]


def control(passes: Passes, config: GarbageCollectorConfig | None = None) -> CollectorControl:
    return CollectorControl(cast(GarbageCollector, passes), config or GarbageCollectorConfig())


def test_a_pass_is_begun_and_told_of_until_it_ends() -> None:
    async def check() -> None:
        passes = Passes()
        steered = control(passes)
        assert not steered.status().forced
        await steered.force(major=None, minor=None)
        await steered.force(major=True, minor=False)
        assert passes.asked == [(True, True), (True, False)]
        status = steered.status()
        assert (status.forced, status.major_count, status.last_major_ms, status.in_minor) == (True, 3, 17, True)
        passes.end_of_pass.set()
        while steered.status().forced:
            await asyncio.sleep(0)

    asyncio.run(check())


def test_what_would_not_be_done_is_refused() -> None:
    async def check() -> None:
        passes = Passes()
        passes.end_of_pass.set()
        off = GarbageCollectorConfig(minor=CompactionConfig(0, 0.2), major=CompactionConfig(1000, 0))
        steered = control(passes, off)
        for major, minor in ((True, None), (None, True)):
            with pytest.raises(RefusedError, match="compaction is off"):
                await steered.force(major=major, minor=minor)
        allowed = GarbageCollectorConfig(
            minor=CompactionConfig(0, 0.2), major=CompactionConfig(1000, 0), force_allow_compaction=True
        )
        await control(passes, allowed).force(major=None, minor=True)
        with pytest.raises(RefusedError, match="major compaction is off"):
            await control(passes, allowed).force(major=True, minor=None)
        assert passes.asked == [(True, True)]

        steered = control(passes)
        steered.major_suspended = True
        with pytest.raises(RefusedError, match="major compaction is suspended; resume it first"):
            await steered.force(major=True, minor=None)
        await steered.force(major=None, minor=None)  # without compaction that is suspended
        passes.stopped = True
        with pytest.raises(RefusedError, match="the collector does not run"):
            await steered.force(major=None, minor=None)

    asyncio.run(check())


def test_operators_and_disks_do_not_undo_each_other() -> None:
    async def check() -> None:
        passes = Passes()
        steered = control(passes)
        steered.minor_suspended = True
        steered.suspend_minor_by_disks(True)
        steered.suspend_major_by_disks(True)
        assert passes.by_disks == {"minor": True, "major": True}
        with pytest.raises(RefusedError, match="a disk is too full"):
            await steered.force(major=True, minor=None)
        steered.minor_suspended = False
        steered.major_suspended = False
        assert (steered.major_suspended, steered.minor_suspended) == (True, True)
        steered.minor_suspended = True
        steered.suspend_minor_by_disks(False)
        steered.suspend_major_by_disks(False)
        assert passes.by_disks == {"minor": False, "major": False}
        assert (steered.major_suspended, steered.minor_suspended) == (False, True)
        assert (passes.major_suspended, passes.minor_suspended) == (False, True)
        steered.force_by_disks(True)
        assert passes.by_disks["force"]

    asyncio.run(check())


def test_what_is_not_known_of_a_log_is_left_open() -> None:
    async def check() -> None:
        assert await control(Passes()).entry_logs() == [
            EntryLogState(10, "/a", 10, 4, 0.4444, "live 44%"),
            EntryLogState(12, "/b", 12, None, None, "being written"),
        ]

    asyncio.run(check())
