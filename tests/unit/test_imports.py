"""What the processes of Spark import: each begins with it, and there are many."""

from __future__ import annotations

import subprocess
import sys

import pytest

import bk_spark.log

pytestmark = pytest.mark.unit


def imported(module: str) -> set[str]:
    """Modules that are there in a new process after the import of ``module``."""
    script = f"import {module}, sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_who_looks_for_data_sources_imports_none_of_our_layers() -> None:
    ours = {name for name in imported("pyspark_bookkeeper") if name.startswith("bk_spark.")}
    assert not [name for name in ours if name.startswith(("bk_spark.bookie", "bk_spark.log"))]


@pytest.mark.parametrize("reader", ["batch.reader", "stream.reader"])
def test_tasks_that_read_import_of_logs_what_splits_are_made_of(reader: str) -> None:
    names = imported(f"bk_spark.datasource.{reader}")
    assert "bk_spark.log.formats.segment" in names
    assert not names & {"bk_spark.log.log", "bk_spark.log.store", "bk_spark.log.gc.maintenance"}


def test_names_of_logs_are_found_where_they_are() -> None:
    for name in bk_spark.log.__all__:
        assert getattr(bk_spark.log, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'LogStor'"):
        _ = bk_spark.log.LogStor
