"""Sources that are read by several threads at once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Generator
from contextlib import closing

import pyarrow as pa
import pytest

from bk_spark.log.tables.ordered_reads import Costly, OrderedReads, Source

pytestmark = pytest.mark.unit

KIB = 1024


def batch(number: int) -> pa.RecordBatch:
    return pa.record_batch({"n": [number]})


def numbers(reads: OrderedReads) -> list[int]:
    return [one.column(0)[0].as_py() for one in reads.batches()]


@pytest.mark.parametrize("seed", range(20))
def test_batches_come_in_order_whatever_the_threads_do(seed: int) -> None:
    rng = random.Random(seed)
    counts = [rng.choice([0, 1, 2, 30]) for _ in range(rng.randint(0, 12))]

    def source(first: int, count: int, pauses: list[float]) -> Source:
        def batches() -> Generator[Costly, None, None]:
            for number in range(count):
                time.sleep(pauses[number])  # other threads go on
                yield batch(first + number), rng.choice([0, KIB, 100 * KIB])

        return batches

    sources, first = [], 0
    for count in counts:
        sources.append(source(first, count, [rng.choice([0, 0, 0.001]) for _ in range(count)]))
        first += count
    # Room for nothing but what is due, or for much.
    reads = OrderedReads(sources, threads=rng.randint(1, 5), buffer_bytes=rng.choice([1, 50 * KIB, 10_000 * KIB]))
    assert numbers(reads) == list(range(first))
    assert not [thread for thread in threading.enumerate() if thread.name == "bk-scan"]


def test_an_error_comes_in_its_place() -> None:
    def good() -> Generator[Costly, None, None]:
        yield batch(0), KIB
        yield batch(1), KIB

    def bad() -> Generator[Costly, None, None]:
        yield batch(2), KIB
        raise OSError("broken")

    batches = OrderedReads([good, bad, good], threads=3, buffer_bytes=1000 * KIB).batches()
    assert [next(batches).column(0)[0].as_py() for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="broken"):
        next(batches)


def test_what_waits_is_bounded_and_the_source_that_is_due_goes_on() -> None:
    """The second source fills the buffer before the first has given anything."""
    ahead, given, at_end = threading.Event(), [0], []

    def slow() -> Generator[Costly, None, None]:
        assert ahead.wait(60)
        for number in range(100):
            # Long enough for the other thread to go on, if it may.
            time.sleep(0.001)
            yield batch(number), 10 * KIB
        at_end.append(given[0])

    def fast() -> Generator[Costly, None, None]:
        for number in range(100, 200):
            if given[0] == 4:
                ahead.set()
            yield batch(number), 10 * KIB
            given[0] += 1

    reads = OrderedReads([slow, fast], threads=2, buffer_bytes=50 * KIB)
    with closing(reads.batches()) as batches:
        found = [one.column(0)[0].as_py() for one in batches]
    # Four batches of 11 KiB fit; the fifth waits in its thread.
    assert at_end == [4]
    assert found == list(range(200))


def test_a_reading_that_is_given_up_closes_its_sources() -> None:
    closed = []

    def endless(number: int) -> Source:
        def batches() -> Generator[Costly, None, None]:
            try:
                while True:
                    yield batch(number), KIB
            finally:
                closed.append(number)

        return batches

    batches = OrderedReads([endless(number) for number in range(5)], threads=3, buffer_bytes=10 * KIB).batches()
    next(batches)
    batches.close()
    assert set(closed) == {0, 1, 2} or set(closed) == {0}
    assert not [thread for thread in threading.enumerate() if thread.name == "bk-scan"]
