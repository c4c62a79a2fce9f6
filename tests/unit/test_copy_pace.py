"""How fast copies are made beside other clients, on a model of a bookie: it serves one request after another."""

from __future__ import annotations

import heapq
from random import Random

import pytest

from bk_spark.protocol.replication.copying.copy_pace import _CREDIT_BYTES, _MOST_KINDS, CopyPace, CopyRequest
from tests.support.kept import kept

pytestmark = pytest.mark.unit

LEAST = 10e6
BATCH_BYTES = 256 * 1024
BATCH = CopyRequest("b1", True, 26, BATCH_BYTES)
#: Batches that wait or are under way, as of four ledgers.
AT_ONCE = 32


class Bookies:
    """One bookie, or several that answer equally fast, with ``bytes_per_s``. ``clients``: which share of it others use.

    A request waits for those before it. What clients use makes it take longer.
    """

    def __init__(self, bytes_per_s: float, seed: int = 1) -> None:
        self.bytes_per_s = bytes_per_s
        self.clients = 0.0
        self.now_ms = 0.0
        self._free_ms = 0.0
        self._random = Random(seed)
        self._due: list[tuple[float, int, str, CopyPace, float]] = []
        self._numbers = iter(range(10**9))
        self.copied: dict[CopyPace, int] = {}

    def begin(self, pace: CopyPace) -> None:
        """A worker begins: it has all of its batches ready."""
        self.copied[pace] = 0
        for _ in range(AT_ONCE):
            self._ask(pace)

    def run(self, seconds: float) -> float:
        """Return the bytes per second that were copied in this time."""
        before, until_ms = sum(self.copied.values()), self.now_ms + seconds * 1000
        while self._due and self._due[0][0] <= until_ms:
            self.now_ms, _, what, pace, since_ms = heapq.heappop(self._due)
            if what == "passed":
                self._serve(pace)
            else:
                pace.answered(BATCH, self.now_ms - since_ms, self.now_ms)
                self.copied[pace] += BATCH_BYTES
                self._ask(pace)
        self.now_ms = until_ms
        return (sum(self.copied.values()) - before) / seconds

    def _ask(self, pace: CopyPace) -> None:
        self._push(self.now_ms + pace.take(BATCH_BYTES, self.now_ms), "passed", pace)

    def _serve(self, pace: CopyPace) -> None:
        took_ms = BATCH_BYTES * 1000 / self.bytes_per_s / (1 - self.clients) * self._random.uniform(0.7, 1.3)
        self._free_ms = max(self.now_ms, self._free_ms) + took_ms
        self._push(self._free_ms, "answered", pace)

    def _push(self, at_ms: float, what: str, pace: CopyPace) -> None:
        heapq.heappush(self._due, (at_ms, next(self._numbers), what, pace, self.now_ms))


def test_alone_copies_take_more_than_half_of_what_the_bookies_can_do() -> None:
    bookies, pace = Bookies(100e6), CopyPace(LEAST)
    bookies.begin(pace)
    assert bookies.run(1) >= LEAST * 0.9
    bookies.run(10)
    assert bookies.run(20) > 55e6


def test_copies_make_room_when_clients_come_and_take_it_again_when_they_are_gone() -> None:
    bookies, pace = Bookies(100e6), CopyPace(LEAST)
    bookies.begin(pace)
    bookies.run(20)
    bookies.clients = 0.8
    bookies.run(5)
    # 20e6 are left, and requests take five times as long even if nothing waits.
    assert LEAST * 0.9 <= bookies.run(20) < LEAST * 1.5
    bookies.clients = 0.0
    bookies.run(10)
    assert bookies.run(20) > 55e6


def test_however_slow_the_bookies_are_the_pace_stays_above_its_limit() -> None:
    pace = CopyPace(LEAST)
    pace.answered(BATCH, 1.0, 0.0)
    for number in range(10_000):
        pace.answered(BATCH, 1_000.0, number * 10.0)
        assert pace.bytes_per_s >= LEAST
    assert pace.bytes_per_s == LEAST


def test_bookies_that_are_always_slow_are_not_late() -> None:
    """A slow disk is the time at rest there, and so is a far away bookie's."""
    bookies, pace = Bookies(40e6), CopyPace(LEAST)
    bookies.begin(pace)
    bookies.run(20)
    assert bookies.run(20) > 24e6


def test_two_workers_share_what_the_bookies_can_do() -> None:
    bookies, paces = Bookies(100e6), (CopyPace(LEAST), CopyPace(LEAST))
    for pace in paces:
        bookies.begin(pace)
    bookies.run(20)
    before = dict(bookies.copied)
    assert bookies.run(60) > 60e6
    for pace in paces:
        assert (bookies.copied[pace] - before[pace]) / 60 >= LEAST * 0.9


def test_one_slow_bookie_among_many_does_not_slow_all_copies() -> None:
    pace = CopyPace(LEAST)
    others = [CopyRequest(f"b{number}", True, 26, BATCH_BYTES) for number in range(2, 42)]
    now_ms = 0.0
    for number in range(5_000):
        pace.take(BATCH_BYTES, now_ms)
        pace.take(BATCH_BYTES, now_ms)
        for each in (BATCH, *others):
            slow = each is BATCH and number > 100
            pace.answered(each, 500.0 if slow else 2.0, now_ms)
        now_ms += 10
    assert pace.bytes_per_s > 4 * LEAST


def test_without_a_limit_nothing_waits() -> None:
    pace = CopyPace()
    pace.answered(BATCH, 1.0, 0.0)
    for number in range(100):
        pace.answered(BATCH, 1_000.0, number * 100.0)
        assert pace.take(10**12, number * 100.0) == 0


def test_the_pace_does_not_grow_while_nobody_needs_it() -> None:
    pace = CopyPace(LEAST)
    for number in range(10_000):
        pace.take(1_000, number * 100.0)
        pace.answered(BATCH, 2.0, number * 100.0)
    assert pace.bytes_per_s == LEAST


def test_a_worker_makes_up_for_a_short_pause() -> None:
    """It copies nothing while it changes the metadata of a ledger, and begins the next one as if it had not paused."""
    pace, now_ms, copied = CopyPace(LEAST), 10_000.0, 0
    for _ in range(100):
        for _ in range(4):
            now_ms += pace.take(BATCH_BYTES, now_ms)
            copied += BATCH_BYTES
        # In the first part of it the last batch is still paid.
        now_ms += (BATCH_BYTES + 0.9 * _CREDIT_BYTES) / LEAST * 1000
    assert copied / (now_ms - 10_000) * 1000 == pytest.approx(LEAST, rel=0.02)


def test_a_long_pause_is_not_made_up() -> None:
    pace, now_ms = CopyPace(LEAST), 3_600_000.0
    waits_ms = [pace.take(BATCH_BYTES, now_ms) for _ in range(10)]
    assert waits_ms[0] == 0
    # Two batches at once at most: the next one, and the one that was not copied.
    assert waits_ms[1] * LEAST / 1000 >= BATCH_BYTES - _CREDIT_BYTES
    assert waits_ms[2] * LEAST / 1000 == pytest.approx(2 * BATCH_BYTES - _CREDIT_BYTES)
    assert waits_ms[9] * LEAST / 1000 == pytest.approx(9 * BATCH_BYTES - _CREDIT_BYTES)


def test_requests_of_another_size_are_not_compared() -> None:
    pace, now_ms = CopyPace(LEAST), 0.0
    small = CopyRequest("b1", True, 1, 100)
    for _ in range(1_000):
        pace.take(BATCH_BYTES, now_ms)
        pace.take(BATCH_BYTES, now_ms)
        pace.answered(small, 0.2, now_ms)
        pace.answered(BATCH, 2.0, now_ms)
        pace.answered(CopyRequest("b1", False, 26, BATCH_BYTES), 9.0, now_ms)
        now_ms += 20
    assert pace.bytes_per_s > 4 * LEAST


def test_what_bookies_did_long_ago_is_forgotten() -> None:
    """A bookie that moved to a slower disk is not late for ever."""
    pace, now_ms = CopyPace(LEAST), 0.0
    pace.answered(BATCH, 1.0, now_ms)
    for _ in range(15 * 60 * 10):
        for _ in range(3):
            pace.take(BATCH_BYTES, now_ms)
        for _ in range(4):
            pace.answered(BATCH, 10.0, now_ms)
        now_ms += 100
        if now_ms == 250_000:
            assert pace.bytes_per_s == LEAST
    assert pace.bytes_per_s > LEAST


def test_memory_is_bounded_and_requests_beyond_it_are_not_judged() -> None:
    pace = CopyPace(LEAST)
    for number in range(2 * _MOST_KINDS):
        pace.answered(CopyRequest(f"b{number}", True, 1, 100), 1.0, 0.0)
    for number in range(1_000):
        pace.take(BATCH_BYTES, number * 100.0)
        pace.take(BATCH_BYTES, number * 100.0)
        pace.answered(CopyRequest("b19999", True, 1, 100), 1.0, number * 100.0)
    assert pace.bytes_per_s == LEAST
    assert _MOST_KINDS <= len(kept(pace, float)) < 1.5 * _MOST_KINDS
