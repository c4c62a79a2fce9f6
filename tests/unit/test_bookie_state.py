"""The bookie's mode: who holds it read-only, and which adds are taken nevertheless."""

from __future__ import annotations

import logging

import pytest

from bookie_server.state import DISK, FORCED, JOURNAL, MANUAL, STORAGE, BookieState


def test_a_new_bookie_takes_everything() -> None:
    state = BookieState()
    assert not state.read_only
    assert state.reasons == {}
    assert state.may_add(False)
    assert state.may_add(True)


def test_each_source_takes_back_only_its_own_reason() -> None:
    state = BookieState()
    state.set_read_only(DISK, "full: 97 % used")
    state.set_read_only(MANUAL, "an operator asked for it")
    assert state.manually_read_only
    state.clear(DISK)
    assert state.read_only
    assert state.reasons == {MANUAL: "an operator asked for it"}
    state.clear(MANUAL)
    assert not state.read_only
    assert not state.manually_read_only


@pytest.mark.parametrize(
    ("source", "taken"), [(DISK, True), (MANUAL, True), (FORCED, True), (JOURNAL, False), (STORAGE, False)]
)
def test_adds_of_high_priority_need_a_disk_that_can_be_written(source: str, taken: bool) -> None:
    state = BookieState()
    state.set_read_only(source, "because")
    assert not state.may_add(False)
    assert state.may_add(True) is taken
    assert state.high_priority_adds is taken
    state.set_room_for_high_priority(False)
    assert not state.may_add(True)
    state.clear(source)
    assert state.may_add(True)


def test_a_failed_journal_beside_a_full_disk_takes_nothing() -> None:
    state = BookieState()
    state.set_read_only(DISK, "full")
    state.set_read_only(JOURNAL, "no room")
    assert not state.may_add(True)
    state.clear(JOURNAL)
    assert state.may_add(True)


def test_subscribers_hear_of_changes_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    state = BookieState()
    heard: list[tuple[bool, bool]] = []
    state.subscribe(lambda: heard.append((state.read_only, state.manually_read_only)))
    state.clear(DISK)
    state.set_read_only(DISK, "full: 97 % used")
    state.set_read_only(DISK, "full: 98 % used")
    assert state.reasons[DISK] == "full: 98 % used"
    state.set_read_only(MANUAL, "asked")
    state.clear(MANUAL)
    state.clear(DISK)
    assert heard == [(True, False), (True, True), (True, False), (False, False)]
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "read-only: source=disk reason=full: 97 % used"
    assert lines[-1] == "writable again: gone=disk"


def test_an_unknown_source_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown source 'weather'"):
        BookieState().set_read_only("weather", "rain")
