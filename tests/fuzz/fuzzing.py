"""The decorator of fuzz tests: how many examples, which ones, and how a failed one is repeated.

The seed is the day's, so the same examples are tried all day, in every run. ``FUZZ_SEED`` takes another. A failure
prints the line that repeats exactly its smallest example, by ``FUZZ_EXAMPLE``, whatever the seed.
"""

from __future__ import annotations

import functools
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, given, reproduce_failure, settings
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.strategies import SearchStrategy

from tests.support.daily import first_seed_of_today

#: Times as many examples as ``make test`` tries.
FACTOR: Final = int(os.environ.get("FUZZ_FACTOR") or 1)
SEED: Final = int(os.environ.get("FUZZ_SEED") or first_seed_of_today())
_EXAMPLE: Final = os.environ.get("FUZZ_EXAMPLE")
_PRINTED: Final = re.compile(r"@reproduce_failure\('[^']+', b'([^']*)'\)")

# It keeps tables of its own there, none of them examples.
set_hypothesis_home_dir(Path(tempfile.gettempdir(), f"bk-spark-hypothesis-{os.getuid()}"))

#: No database: examples depend on the seed alone. No deadline: machines may be slow. No test is about the strategies'
#: health: large, slow and filtered examples are meant.
_SETTINGS: Final = settings(
    database=None,
    deadline=None,
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)

#: A dict holds its random numbers. The collector of garbage was told to pass over that dict (tests/conftest.py), so it
#: warns that nothing holds them. Before Python 3.14 the dict came back to the collector with them.
_HELD: Final = pytest.mark.filterwarnings("ignore:It looks like `register_random` was passed an object")

#: How many examples each test of this process has tried.
tried: Final[Counter[str]] = Counter()

Test = Callable[..., None]


def fuzz(examples: int, **strategies: SearchStrategy[Any]) -> Callable[[Test], Test]:
    """Call the test with ``examples`` values of ``strategies``, by the name of the argument."""

    def decorate(test: Test) -> Test:
        name = f"{test.__module__}.{test.__name__}"

        @functools.wraps(test)
        def counted(*args: Any, **kwargs: Any) -> None:
            tried[name] += 1
            test(*args, **kwargs)

        found: Test = settings(_SETTINGS, max_examples=examples * FACTOR)(given(**strategies)(counted))
        if _EXAMPLE is not None:
            found = reproduce_failure(hypothesis.__version__, _EXAMPLE.encode())(found)
        else:
            found = hypothesis.seed(SEED)(found)

        @_HELD
        @functools.wraps(found)
        def told(*args: Any, **kwargs: Any) -> None:
            try:
                found(*args, **kwargs)
            except Exception as error:
                error.add_note(_repeat(error))
                raise

        return told

    return decorate


def _repeat(error: Exception) -> str:
    """The line that repeats the failed example, or at least the seed."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "tests/fuzz (call)").removesuffix(" (call)")
    notes = "\n".join(getattr(error, "__notes__", ()))
    printed = _PRINTED.search(notes)
    which = f"FUZZ_EXAMPLE={printed[1]}" if printed else f"FUZZ_SEED={SEED} FUZZ_FACTOR={FACTOR}"
    return f"repeat with: {which} .venv/bin/python -m pytest '{test}'"
