"""The reorder buffer of ledgers whose entry ids the caller chooses."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import DuplicateEntryError, EntryGapError, InvalidArgumentError
from bk_spark.protocol.ledger.adv_order import EntryOrder, GapTimer
from bk_spark.protocol.machine import StartTimer, StopTimer, TimerFired

MOST_BYTES = 1_000
GAP_TIMEOUT_MS = 30_000


def order(max_entries: int = 100) -> EntryOrder:
    return EntryOrder(7, max_entries, MOST_BYTES, GAP_TIMEOUT_MS)


def put(buffer: EntryOrder, *entry_ids: int) -> None:
    payloads = Payloads.of([b"entry %d" % entry_id for entry_id in entry_ids])
    runs = buffer.runs_of(np.array(entry_ids, np.int64), payloads)
    assert buffer.has_room(runs)
    buffer.put(runs)


def drain(buffer: EntryOrder, at_most: int = 10**9) -> list[bytes]:
    """Return the entries that leave, in pieces of ``at_most`` entries."""
    out: list[bytes] = []
    while (run := buffer.ready()) is not None:
        assert run.first == buffer.next_entry_id
        taken = run.payloads.part(0, min(at_most, len(run.payloads)))
        out += [bytes(payload) for payload in taken]
        buffer.left(run.first + len(taken) - 1)
    return out


def test_in_order_nothing_waits() -> None:
    buffer = order()
    put(buffer, 0, 1, 2)
    assert drain(buffer) == [b"entry 0", b"entry 1", b"entry 2"]
    assert (buffer.waiting_entries, buffer.waiting_bytes, buffer.gap) == (0, 0, None)


def test_a_gap_holds_back_what_follows() -> None:
    buffer = order()
    put(buffer, 3, 4)
    put(buffer, 1)
    assert drain(buffer) == []
    assert buffer.gap == range(1)
    put(buffer, 0)
    assert drain(buffer) == [b"entry 0", b"entry 1"]
    assert buffer.gap == range(2, 3)
    assert (buffer.waiting_entries, buffer.waiting_bytes) == (2, 14)
    put(buffer, 2, 7, 9)
    assert drain(buffer, at_most=2) == [b"entry %d" % entry_id for entry_id in (2, 3, 4)]
    assert buffer.gap == range(5, 7)


def test_a_call_in_any_order() -> None:
    buffer = order()
    put(buffer, 4, 0, 2, 1)
    assert drain(buffer) == [b"entry 0", b"entry 1", b"entry 2"]
    put(buffer, 3)
    assert drain(buffer) == [b"entry 3", b"entry 4"]


def test_what_waits_is_copied() -> None:
    buffer = order()
    memory = bytearray(b"before")
    runs = buffer.runs_of(np.array([1], np.int64), Payloads.of([memory]))
    buffer.put(runs)
    memory[:] = b"after!"
    put(buffer, 0)
    assert drain(buffer) == [b"entry 0", b"before"]


def test_the_rest_of_a_run_stays() -> None:
    buffer = order()
    put(buffer, 0, 1, 2, 3)
    buffer.left(1)
    assert (buffer.next_entry_id, buffer.waiting_entries, buffer.waiting_bytes) == (2, 2, 14)
    buffer.left(1)
    assert drain(buffer) == [b"entry 2", b"entry 3"]


@pytest.mark.parametrize(
    ("entry_ids", "duplicate"),
    [((0,), 0), ((1, 2), 1), ((2, 5), 5), ((9, 4, 6), 6), ((4, 5, 6, 7, 8), 5), ((3, 3), 3), ((8, 2, 8), 8), ((6,), 6)],
)
def test_duplicates_are_refused_and_nothing_is_taken(entry_ids: tuple[int, ...], duplicate: int) -> None:
    buffer = order()
    put(buffer, 0, 1)
    drain(buffer)
    put(buffer, 5, 6)
    with pytest.raises(DuplicateEntryError) as caught:
        put(buffer, *entry_ids)
    assert caught.value.entry_id == duplicate
    assert (buffer.waiting_entries, buffer.next_entry_id) == (2, 2)
    put(buffer, 2, 3, 4, 7)
    assert len(drain(buffer)) == 6


def test_ids_that_came_meanwhile() -> None:
    """A call that waited for room checks its ids again."""
    buffer = order()
    runs = buffer.runs_of(np.array([3], np.int64), Payloads.of([b"x"]))
    put(buffer, 3)
    with pytest.raises(DuplicateEntryError):
        buffer.put(runs)


def test_arguments_that_make_no_sense() -> None:
    buffer = order()
    with pytest.raises(InvalidArgumentError, match="negative"):
        put(buffer, -1)
    with pytest.raises(InvalidArgumentError, match="as many entry ids"):
        buffer.runs_of(np.array([1, 2], np.int64), Payloads.of([b"x"]))
    assert buffer.runs_of(np.array([], np.int64), Payloads.of([])) == []


def test_the_bound_and_the_next_id() -> None:
    buffer = order(max_entries=4)

    def has_room(*entry_ids: int, size: int = 1) -> bool:
        payloads = Payloads.of([bytes(size) for _ in entry_ids])
        return buffer.has_room(buffer.runs_of(np.array(entry_ids, np.int64), payloads))

    put(buffer, 10, 11, 12)
    assert has_room(20)
    assert not has_room(20, 21)
    assert not has_room(20, size=MOST_BYTES)
    # Without these nothing could leave.
    assert has_room(0, size=10 * MOST_BYTES)
    assert has_room(0, 1, 2, 3, 30)
    assert not has_room(1, 2, 3)


def test_what_is_known() -> None:
    buffer = order()
    put(buffer, 0, 1, 5, 6)
    drain(buffer)
    assert [entry_id for entry_id in range(-2, 9) if entry_id in buffer] == [0, 1, 5, 6]


@pytest.mark.parametrize("seed", range(20))
def test_any_order(seed: int) -> None:
    random_ = random.Random(seed)
    buffer, count = EntryOrder(7, 10**6, 10**9, GAP_TIMEOUT_MS), 300
    ids = list(range(count))
    # Shuffle within a distance.
    ids.sort(key=lambda entry_id: entry_id + random_.randrange(40))
    out: list[bytes] = []
    while ids:
        size = random_.randint(1, 9)
        put(buffer, *ids[:size])
        ids = ids[size:]
        out += drain(buffer, random_.randint(1, 5))
    assert out == [b"entry %d" % entry_id for entry_id in range(count)]
    assert (buffer.waiting_entries, buffer.waiting_bytes, buffer.gap) == (0, 0, None)


# --- waiting for lower ids ----------------------------------------------------------------------


def test_a_wait_ends_in_time_and_names_what_is_missing() -> None:
    buffer = order()
    put(buffer, 3, 4)
    first, second = buffer.begin_wait("flush"), buffer.begin_wait("no room for entry 9")
    timers = buffer.take_actions()
    assert [(type(timer), timer.name) for timer in timers] == [
        (StartTimer, GapTimer(first)),
        (StartTimer, GapTimer(second)),
    ]
    assert {timer.after_ms for timer in timers if isinstance(timer, StartTimer)} == {GAP_TIMEOUT_MS}
    buffer.handle(TimerFired(GapTimer(second)))
    with pytest.raises(EntryGapError, match="no room for entry 9: entry 0 is missing, and all up to 2; 2 entries") as e:
        buffer.waits(second)
    assert (e.value.entry_id, e.value.ledger_id) == (0, 7)
    assert buffer.waits(first), "each wait has its own timer"
    buffer.end_wait(first)
    buffer.end_wait(second)
    # Only one timer still runs.
    assert buffer.take_actions() == [StopTimer(GapTimer(first))]
    assert not buffer.waits(first)
    assert not buffer.waits(second)


def test_what_is_in_order_ends_all_waits() -> None:
    buffer = order()
    put(buffer, 1)
    waits = [buffer.begin_wait("flush") for _ in range(2)]
    buffer.take_actions()
    put(buffer, 3)
    assert all(map(buffer.waits, waits))
    put(buffer, 0)
    assert buffer.take_actions() == [StopTimer(GapTimer(wait_id)) for wait_id in waits]
    # A timer that fired before it could be stopped changes nothing.
    buffer.handle(TimerFired(GapTimer(waits[0])))
    assert not any(map(buffer.waits, waits))


def test_no_time_runs_while_the_next_entry_is_there() -> None:
    """The bookies delay it, not the caller."""
    buffer = order()
    put(buffer, 0, 2)
    assert not buffer.waits(buffer.begin_wait("flush"))
    assert buffer.take_actions() == []
    drain(buffer)
    assert buffer.waits(buffer.begin_wait("flush"))
    assert len(buffer.take_actions()) == 1


def test_an_unexpected_error_ends_all_waits() -> None:
    buffer = order()
    wait_id = buffer.begin_wait("flush")
    buffer.fail(RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        buffer.waits(wait_id)
