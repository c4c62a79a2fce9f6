"""Ledgers between tasks: who gets which, and when they are closed."""

from __future__ import annotations

import threading
from collections.abc import Callable

from bk_spark.datasource.connections import LogPlace, _Shared
from bk_spark.datasource.writing.idle_ledgers import MAX_WAITING, IdleLedgers, LedgerKey
from bk_spark.log.core.tail.roll import RollLimits

PLACE = LogPlace("zk://localhost/ledgers", "/logs", "events", "0f1e2d3c-0000-4000-8000-000000000000")
KEY = LedgerKey(PLACE, "app", "run-1")
PATIENCE_S = 60


class Ledger:
    """An open ledger as the cache sees it."""

    def __init__(self, ledger_id: int, length: int = 0, opened_s: float = 0.0) -> None:
        self.writer = self
        self.ledger_id = ledger_id
        self.length = length
        self.opened_s = opened_s
        self.error: Exception | None = None
        self.closed = threading.Event()
        self.abandoned = False

    def close(self) -> None:
        self.closed.set()

    def abandon(self) -> None:
        self.abandoned = True


def _give(cache: IdleLedgers, ledger: Ledger, key: LedgerKey = KEY) -> Ledger:
    cache.give_back(key, ledger)  # type: ignore[arg-type]
    return ledger


def test_one_user_at_a_time() -> None:
    cache = IdleLedgers()
    ledger = _give(cache, Ledger(1))
    assert cache.take(KEY) is ledger
    assert cache.take(KEY) is None
    _give(cache, ledger)
    assert cache.take(KEY) is ledger
    cache.close_all()


def test_the_last_one_given_back_comes_first() -> None:
    cache = IdleLedgers()
    first, second = (_give(cache, Ledger(number)) for number in (1, 2))
    assert (cache.take(KEY), cache.take(KEY)) == (second, first)
    cache.close_all()


def test_only_its_own_run_gets_a_ledger() -> None:
    cache = IdleLedgers()
    ledger = _give(cache, Ledger(1))
    assert cache.take(LedgerKey(PLACE, "app", "run-2")) is None
    assert cache.take(LedgerKey(PLACE, "other", "run-1")) is None
    remade = LogPlace(PLACE.metadata_service_uri, PLACE.log_root, PLACE.name, "another id")
    assert cache.take(LedgerKey(remade, "app", "run-1")) is None
    assert cache.take(KEY) is ledger
    cache.close_all()


def test_a_ledger_that_failed_while_it_waited_is_given_to_nobody() -> None:
    cache = IdleLedgers()
    good, bad = (_give(cache, Ledger(number)) for number in (1, 2))
    bad.error = RuntimeError("fenced")
    assert cache.take(KEY) is good
    assert bad.abandoned
    cache.close_all()


def test_idle_ledgers_are_closed_and_the_closer_ends() -> None:
    cache = IdleLedgers(idle_s=0.01)
    ledgers = [_give(cache, Ledger(number)) for number in range(3)]
    assert all(ledger.closed.wait(PATIENCE_S) for ledger in ledgers)
    assert cache.take(KEY) is None
    cache.close_all()
    again = _give(cache, Ledger(9))
    assert again.closed.wait(PATIENCE_S)
    cache.close_all()
    assert "bk-ledger-closer" not in {thread.name for thread in threading.enumerate()}


def test_a_ledger_in_use_is_not_closed() -> None:
    now = [0.0]
    cache = IdleLedgers(idle_s=30.0, clock=lambda: now[0])
    used, idle = (_give(cache, Ledger(number)) for number in (1, 2))
    now[0] = 20.0
    assert cache.take(KEY) is idle
    assert cache.take(KEY) is used
    _give(cache, used)
    now[0] = 49.0
    third = _give(cache, Ledger(3))
    assert not used.closed.wait(0.05)
    now[0] = 50.5
    # Whoever gives one back wakes the closer.
    _give(cache, Ledger(4))
    assert used.closed.wait(PATIENCE_S)
    assert not idle.closed.is_set()
    assert cache.take(KEY) is not None
    assert cache.take(KEY) is third
    cache.close_all()


def test_not_more_than_a_bounded_number_waits() -> None:
    cache = IdleLedgers()
    ledgers = [_give(cache, Ledger(number)) for number in range(MAX_WAITING + 2)]
    assert all(ledger.closed.wait(PATIENCE_S) for ledger in ledgers[:2])
    assert not any(ledger.closed.is_set() for ledger in ledgers[2:])
    cache.close_all()
    assert all(ledger.closed.is_set() for ledger in ledgers)


def test_a_close_that_fails_holds_up_nothing() -> None:
    class Failing(Ledger):
        def close(self) -> None:
            raise OSError("no")

    cache = IdleLedgers(idle_s=0.01)
    _give(cache, Failing(1))
    assert _give(cache, Ledger(2)).closed.wait(PATIENCE_S)
    cache.close_all()


def test_roll_by_size_entries_and_age() -> None:
    roll = RollLimits(size_bytes=1000, age_ms=60_000, entries=10)
    assert not roll.is_due(999, 9, 59_999.9)
    assert roll.is_due(1000, 1, 0.0)
    assert roll.is_due(1, 10, 0.0)
    assert roll.is_due(0, 0, 60_000.0)
    assert not RollLimits(size_bytes=1000, age_ms=60_000).is_due(1, 1 << 40, 0.0)


# --- what is shared in a process ---


def test_who_connects_holds_up_nobody_who_wants_another() -> None:
    shared = _Shared[str, str]()
    connecting, connect = threading.Event(), threading.Event()

    def slow() -> str:
        connecting.set()
        assert connect.wait(PATIENCE_S)
        return "slow"

    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(shared.get("a", slow))) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert connecting.wait(PATIENCE_S)
    assert shared.get("b", lambda: "quick") == "quick"
    connect.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert found == ["slow", "slow"]
    assert shared.get("a", _never) == "slow"


def test_a_failure_is_not_kept() -> None:
    shared = _Shared[str, int]()

    def fail() -> int:
        raise OSError("away")

    for make in (fail, fail):
        try:
            shared.get("a", make)
        except OSError:
            continue
        raise AssertionError("should have failed")
    assert shared.get("a", lambda: 1) == 1


def test_the_last_used_ones_are_kept() -> None:
    shared = _Shared[int, int](2)
    for key in (1, 2, 1, 3):
        shared.get(key, lambda: 0)
    assert shared.get(1, _never) == 0
    remade: list[int] = []
    make: Callable[[], int] = lambda: remade.append(2) or 5  # noqa: E731
    assert shared.get(2, make) == 5
    assert remade == [2]


def _never() -> str:
    raise AssertionError("made again")
