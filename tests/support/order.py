"""In which order test processes run the tests, so that the cores of the machine are busy all the time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, TypeVar

_T = TypeVar("_T")

#: Seconds of an average test that waits for servers or uses all cores, by directory. The others are quick.
_SECONDS: Final = {"spark": 4.0, "interop": 1.2, "integration": 1.4, "faults": 0.5}
#: Tests to which a timeout of this length is given are long.
_LONG_TIMEOUT_S: Final = 900.0
_LONG_TEST_S: Final = 40.0


def expected_s(directory: str, timeout_s: float) -> float:
    """Return about how many seconds a test takes. 0: it is quick."""
    if directory not in _SECONDS:
        return 0.0
    return _SECONDS[directory] + (_LONG_TEST_S if timeout_s >= _LONG_TIMEOUT_S else 0.0)


def spread(items: Sequence[tuple[float, str, _T]], processes: int, first: Sequence[_T] = ()) -> list[_T]:
    """Return the tests in an order for ``processes`` test processes, of which each begins with an equal part.

    Many slow tests wait for servers for most of their time, and tests with Spark use all cores. So every process begins
    with an equal share of the long tests, goes on with an equal share of the other slow ones, and ends with quick ones.
    These are also what a process that has finished takes from the others in the end. The slow ones are in the order of
    their cost. So few processes start a Spark session, and only after tests that look for leaks. The slow tests of one
    file begin in one process, because what its fixtures start would be started again in another. (``--dist worksteal``
    of pytest-xdist cuts the order into parts of equal numbers, and moves tests from the end of a part.)

    Parameters
    ----------
    items
        The expected seconds of each test, its file, and the test.
    first
        Tests that begin the part of one process.
    """
    quick = [test for seconds, _, test in items if not seconds]
    begins: list[list[_T]] = [[*(first if number == 0 else ())] for number in range(processes)]
    by_cost = sorted((item for item in items if item[0]), key=lambda item: item[0])
    for slow in (
        [item for item in by_cost if item[0] >= _LONG_TEST_S],
        [item for item in by_cost if item[0] < _LONG_TEST_S],
    ):
        passed_s, total_s = 0.0, sum(seconds for seconds, _, _ in slow)
        for _, of_file in itertools.groupby(slow, key=lambda item: item[1]):
            tests = [*of_file]
            file_s = sum(seconds for seconds, _, _ in tests)
            begins[int(processes * (passed_s + file_s / 2) / total_s)] += [test for _, _, test in tests]
            passed_s += file_s
    ordered: list[_T] = []
    for number, begin in enumerate(begins, 1):
        ordered += begin
        missing = max(0, number * (len(items) + len(first)) // processes - len(ordered))
        ordered += quick[:missing]
        del quick[:missing]
    return ordered + quick


def rotated(found: Sequence[_T], number: int, processes: int) -> list[_T]:
    """Return the same in the order in which test process ``number`` (from 0) of ``processes`` takes them: each begins
    with another part."""
    at = len(found) * number // processes
    return [*found[at:], *found[:at]]
