"""The oldest Spark that the data source supports. ``make nightly`` runs all tests of this folder with every release."""

from __future__ import annotations

import pytest

from bk_spark.datasource.spark_versions import NEWEST, OLDEST
from tests.support.machine import cannot_run
from tests.support.sparks import RELEASES, NotAvailableError, run_tests

#: Seconds. The first run also downloads 430 MB.
_TIMEOUT_S = 1_500


def test_the_releases_are_those_that_are_supported() -> None:
    assert tuple(f"4.{minor}" for minor in range(OLDEST[1], NEWEST[1] + 1)) == RELEASES


@pytest.mark.turns(3)
@pytest.mark.timeout(_TIMEOUT_S + 300)
def test_batches_streams_and_repeated_commits_with_the_oldest_spark() -> None:
    try:
        code, output = run_tests(RELEASES[0], "-m", "every_spark", "tests/spark", timeout_s=_TIMEOUT_S)
    except NotAvailableError as error:
        cannot_run(str(error))
    assert code == 0, output[-10_000:]
    assert "failed" not in output, output[-10_000:]
