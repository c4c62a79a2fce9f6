"""When a group of the journal is written (compatibility.md §5.4)."""

from __future__ import annotations

from typing import Any

import pytest

from bookie_server.storage.journal.group_timing import JournalGroupTiming
from tests.support.bookie_settings import bookie_config

NOW_S = 100.0


def timing(**settings: Any) -> JournalGroupTiming:
    given = {"journal_adaptive_group_writes": False, "journal_max_group_wait_ms": 2, "journal_group_bytes": 1000}
    return JournalGroupTiming(bookie_config(**{**given, "journal_group_entries": 10, **settings}))


@pytest.mark.parametrize(
    "settings",
    [
        {"journal_adaptive_group_writes": True},
        {"journal_flush_when_queue_empty": True},
        {"journal_max_group_wait_ms": 0},
    ],
)
def test_a_group_that_waits_for_nothing_is_due_at_once(settings: dict[str, Any]) -> None:
    assert timing(**settings).due(1, 1, NOW_S, NOW_S, urgent=True) == ("queue_empty", 0.0)
    assert timing(**settings).due(5000, 50, NOW_S, NOW_S, urgent=True) == ("queue_empty", 0.0)


def test_a_group_of_fences_waits_for_the_next_one_where_others_do_not() -> None:
    at_once = timing(journal_adaptive_group_writes=True)
    for last_s, due_s in ((0.0, 0.003), (0.002, 0.005), (0.017, 0.02), (0.0195, 0.02)):
        assert at_once.due(1, 1, NOW_S, NOW_S + last_s, urgent=False) == ("max_wait", NOW_S + due_s)
    assert at_once.due(5000, 50, NOW_S, NOW_S, urgent=False) == ("threshold", 0.0)
    assert timing().due(1, 1, NOW_S, NOW_S, urgent=False) == ("max_wait", NOW_S + 0.002)


def test_a_small_group_waits_for_its_oldest_entry() -> None:
    assert timing().due(1000, 10, NOW_S, NOW_S, urgent=True) == ("max_wait", NOW_S + 0.002)
    assert timing(journal_max_group_wait_ms=500).due(1, 1, NOW_S, NOW_S, urgent=True) == ("max_wait", NOW_S + 0.5)


@pytest.mark.parametrize(("size_bytes", "entries"), [(1001, 1), (1, 11)])
def test_a_large_group_waits_no_longer(size_bytes: int, entries: int) -> None:
    assert timing().is_large(size_bytes, entries)
    assert timing().due(size_bytes, entries, NOW_S, NOW_S, urgent=True) == ("threshold", 0.0)


def test_without_a_threshold_the_number_of_entries_does_not_count() -> None:
    unlimited = timing(journal_group_entries=0)
    assert not unlimited.is_large(1, 1_000_000)
    assert unlimited.due(1, 1_000_000, NOW_S, NOW_S, urgent=True)[0] == "max_wait"
