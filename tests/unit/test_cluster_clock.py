"""The cluster's time from changes of znodes: bounds that hold whatever this machine's clock says."""

from __future__ import annotations

from random import Random

import pytest

from bk_spark.bookie.metadata.cluster_clock import MAX_AGE_S, MAX_DIFFERENCE_MS, ClockDifference, ClusterClock
from bk_spark.protocol.errors import ClockDifferenceError, MetadataUnavailableError

START_MS = 1_760_000_000_000
DAY_MS = 86_400_000


class World:
    """``ms`` is the cluster's time. This machine counts at ``rate``, and its time of day is ``ahead_ms`` ahead."""

    def __init__(self, ahead_ms: int = 0, rate: float = 1.0) -> None:
        self.ms = float(START_MS)
        self.ahead_ms = ahead_ms
        self._count_s, self._rate = 5_000.0, rate
        self.clock = ClusterClock(lambda: self._count_s, lambda: int(self.ms) + self.ahead_ms)

    def pass_time(self, ms: float, *, counted: bool = True) -> None:
        self.ms += ms
        self._count_s += ms / 1000 * self._rate * counted

    def measure(self, there_ms: float = 1, back_ms: float = 1) -> None:
        sent_s = self._count_s
        self.pass_time(there_ms)
        mtime_ms = int(self.ms)
        self.pass_time(back_ms)
        self.clock.note(sent_s, mtime_ms, 1)


def test_nothing_is_known_before_a_measurement() -> None:
    clock = ClusterClock()
    assert not clock.is_fresh(1)
    for ask in (clock.now_ms, clock.difference, clock.check):
        with pytest.raises(MetadataUnavailableError, match="not measured"):
            ask()


def test_the_time_is_never_ahead_of_the_clusters_and_hardly_behind() -> None:
    random = Random(1)
    for _ in range(200):
        world = World(ahead_ms=random.randint(-8 * DAY_MS, 8 * DAY_MS), rate=random.uniform(0.9995, 1.0005))
        for _ in range(20):
            world.measure(random.choice([0, 1, 3000]), random.choice([0, 1, 3000]))
            waited_ms = random.randint(0, 2_000_000)
            world.pass_time(waited_ms)
            assert world.ms - 6_000 - waited_ms / 500 <= world.clock.now_ms() <= world.ms
            difference = world.clock.difference()
            assert difference.at_least_ms <= world.ahead_ms <= difference.at_most_ms


def test_t2_the_time_of_day_may_jump_and_the_machine_may_be_suspended() -> None:
    world = World()
    world.measure()
    world.ahead_ms = -8 * DAY_MS
    world.pass_time(1_000)
    assert world.ms - 10 <= world.clock.now_ms() <= world.ms
    world.pass_time(3 * DAY_MS, counted=False)
    assert world.clock.now_ms() <= world.ms
    world.measure()
    assert world.ms - 10 <= world.clock.now_ms() <= world.ms


def test_a_slow_answer_does_not_spoil_what_is_known() -> None:
    world = World()
    world.measure()
    world.measure(there_ms=0, back_ms=20_000)
    assert world.clock.now_ms() > world.ms - 100


def test_the_clock_of_another_leader_is_believed_at_once() -> None:
    world = World()
    world.measure()
    for jump_ms in (-DAY_MS, DAY_MS):
        world.ms += jump_ms
        world.ahead_ms -= jump_ms
        world.measure()
        assert world.ms - 10 <= world.clock.now_ms() <= world.ms
    world.clock.check()


def test_a_measurement_is_used_for_a_while_in_its_session() -> None:
    world = World()
    world.measure()
    world.pass_time((MAX_AGE_S - 1) * 1000)
    assert world.clock.is_fresh(1)
    assert not world.clock.is_fresh(2)
    world.pass_time(1_001)
    assert not world.clock.is_fresh(1)


@pytest.mark.parametrize("sign", [-1, 1])
def test_t1_t2_a_difference_beyond_a_little_is_refused_and_told(sign: int) -> None:
    world = World(ahead_ms=sign * (MAX_DIFFERENCE_MS - 1_000))
    world.measure()
    world.clock.check()
    world.ahead_ms = sign * (8 * DAY_MS + 3_600_000)
    side = "ahead of" if sign > 0 else "behind"
    with pytest.raises(ClockDifferenceError, match=rf"clock is 8 days 1 hour {side} ZooKeeper's.*within 1 minute.*NTP"):
        world.clock.check()


def test_an_answer_that_took_too_long_to_tell_is_refused() -> None:
    world = World()
    world.measure(there_ms=0, back_ms=MAX_DIFFERENCE_MS + 10_000)
    assert not world.clock.difference().is_small
    with pytest.raises(ClockDifferenceError):
        world.clock.check()


@pytest.mark.parametrize(
    ("ms", "told"),
    [
        (0, "0 ms ahead of ZooKeeper's"),
        (-999, "999 ms behind ZooKeeper's"),
        (61_499, "1 minute 1 second ahead of ZooKeeper's"),
        (8 * DAY_MS - 2, "8 days ahead of ZooKeeper's"),
    ],
)
def test_differences_in_words(ms: int, told: str) -> None:
    assert str(ClockDifference(ms, ms)) == told
