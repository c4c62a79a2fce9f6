"""Each language follows a ledger that the other is writing: by what entries carry, and by the explicit LAC."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.interop.matrix import Sides
from tests.interop.payloads import Payloads
from tests.interop.sides import JAVA_V2, JAVA_V3, OURS_V2, OURS_V3, Party, Reader, RefusedError

TIMEOUT_S = 60
EXPLICIT_LAC_INTERVAL_MS = 20
STEP = 10
STEPS = 4
#: Writer and reader. Java's reader is v3: over v2 its long poll is none, it asks again and again.
PAIRS = [(JAVA_V2, OURS_V2), (JAVA_V3, OURS_V3), (OURS_V2, JAVA_V3), (OURS_V3, JAVA_V3)]
pairs = pytest.mark.parametrize(("writer", "reader"), PAIRS, ids=str)

TailAside = Callable[..., "Future[list[bytes]]"]


@pytest.fixture
def tail_aside() -> Iterator[TailAside]:
    """Runs a tail beside the test: ``tail_aside(reader, first, count)``."""
    with ThreadPoolExecutor(1) as pool:

        def start(reader: Reader, first: int, count: int | None = None) -> Future[list[bytes]]:
            return pool.submit(reader.tail, first, count)

        yield start


@pairs
def test_tail_by_the_entries_that_follow(sides: Sides, tail_aside: TailAside, writer: Party, reader: Party) -> None:
    payloads = list(Payloads.varied(STEP * STEPS + 1))
    ledger = sides[writer].create()
    # A long poll of Java's ends at once where no bookie knows the ledger yet; ours waits.
    written = 1 if reader.language == "java" else 0
    ledger.append_one_by_one(payloads[:written])
    following = sides[reader].open(ledger.ledger_id)
    assert following.last_add_confirmed == -1
    for first in range(0, STEP * STEPS, STEP):
        entries = tail_aside(following, first, STEP)
        # The last of these confirms the last that the tail waits for.
        ledger.append_one_by_one(payloads[written : first + STEP + 1])
        written = first + STEP + 1
        assert entries.result(TIMEOUT_S) == payloads[first : first + STEP]
    assert sides.metadata(ledger.ledger_id).state == "OPEN"
    rest = tail_aside(following, STEP * STEPS)
    ledger.close()
    assert rest.result(TIMEOUT_S) == payloads[STEP * STEPS :]
    following.close()
    sides.assert_closed(ledger.ledger_id, payloads)


@pairs
def test_tail_by_the_explicit_lac(sides: Sides, tail_aside: TailAside, writer: Party, reader: Party) -> None:
    payloads = list(Payloads.varied(STEP * STEPS))
    ledger = sides[writer].create(explicit_lac_interval_ms=EXPLICIT_LAC_INTERVAL_MS)
    ledger.append(payloads[:1])
    following = sides[reader].open(ledger.ledger_id)
    assert following.tail(0, 1) == payloads[:1]
    for first in range(1, STEP * STEPS, STEP):
        entries = tail_aside(following, first, min(STEP, STEP * STEPS - first))
        # At once, so that no entry carries anything later than the step before; then nothing more is written.
        ledger.append(payloads[first : first + STEP])
        assert entries.result(TIMEOUT_S) == payloads[first : first + STEP]
    # All was read, and nobody closed the ledger.
    assert sides.metadata(ledger.ledger_id).state == "OPEN"
    for side in sides:
        found = side.read(ledger.ledger_id).last_add_confirmed
        # Over v2 Java's client reads what entries carry, and nothing else.
        assert (found == STEP * STEPS - 1) == (side.party != JAVA_V2), side.party
    rest = tail_aside(following, STEP * STEPS)
    ledger.close()
    assert rest.result(TIMEOUT_S) == []
    following.close()
    sides.assert_closed(ledger.ledger_id, payloads)


@pytest.mark.parametrize("parallel", [False, True], ids=["one-by-one", "parallel"])
@pytest.mark.parametrize("writer", [JAVA_V3, OURS_V2, OURS_V3], ids=str)
def test_long_poll_of_java(sides: Sides, writer: Party, parallel: bool) -> None:
    payloads = list(Payloads.varied(3, seed=3))
    ledger = sides[writer].create()
    reader = sides.java(wire=3).open(ledger.ledger_id)
    with pytest.raises(RefusedError) as raised:
        reader.long_poll(0, 50, parallel=parallel)
    assert raised.value.reason == "no such ledger"
    ledger.append_one_by_one(payloads[:2])
    assert reader.long_poll(0, 30_000, parallel=parallel) == (0, payloads[0])
    # Entry 1 is there and not confirmed: the poll runs its time.
    assert reader.long_poll(1, 50, parallel=parallel) == (0, None)
    with ThreadPoolExecutor(1) as pool:
        polled = pool.submit(reader.long_poll, 1, 30_000, parallel=parallel)
        ledger.append(payloads[2:])
        assert polled.result(TIMEOUT_S) == (1, payloads[1])
    ledger.close()
    assert reader.tail(2) == payloads[2:]
    reader.close()
    sides.assert_closed(ledger.ledger_id, payloads)
