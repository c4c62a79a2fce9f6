"""Which PySpark the data source works with, and what a user of another one is told."""

from __future__ import annotations

import itertools
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from bk_spark.datasource.spark_versions import NEWEST, OLDEST, RANGE, unfit

REPOSITORY = Path(__file__).parents[2]
TOLD = f"is too old: the data source needs PySpark {RANGE}. pip install"


@pytest.mark.parametrize("version", ["4.0.0", "4.1.4", "4.2.0.dev1", "4.3.0", "4.10.0", "5.0.0rc1", "unknown"])
def test_fit_versions(version: str) -> None:
    assert unfit(version) is None


@pytest.mark.parametrize("version", ["2.4.8", "3.5.9", "3.5.0.dev3"])
def test_unfit_versions(version: str) -> None:
    assert f"PySpark {version} {TOLD}" in str(unfit(version))


def test_no_pyspark() -> None:
    told = f"PySpark is not installed, and the data source needs PySpark {RANGE}: pip install"
    assert str(unfit(None)).startswith(told)


def test_the_range_is_told_alike_everywhere() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    asked = itertools.chain(project["dependencies"], *project["optional-dependencies"].values())
    assert any(one.startswith("pyspark>={}.{}".format(*OLDEST)) for one in asked)
    assert f"PySpark {RANGE}" in (REPOSITORY / "README.md").read_text()
    assert f"PySpark {RANGE}" in (REPOSITORY / "docs" / "troubleshooting.md").read_text()
    assert OLDEST <= NEWEST


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """As much of PySpark 3.5 as an import needs."""
    package = tmp_path / "pyspark"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '3.5.9'\n")
    return tmp_path


def _run(directory: Path, code: str) -> str:
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = [{str(directory)!r}, {str(REPOSITORY)!r}]\n{code}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode, result.stdout
    return result.stderr.splitlines()[-1]


def test_the_data_source_is_not_imported_by_an_older_pyspark(older: Path) -> None:
    """Spark 3.5 looks for no sources in Python. Who registers this one is told why that cannot be."""
    for module in ("pyspark_bookkeeper", "bk_spark.datasource.source", "bk_spark.datasource.fit_pyspark"):
        assert _run(older, f"import {module}").startswith(f"ImportError: PySpark 3.5.9 {TOLD}")
