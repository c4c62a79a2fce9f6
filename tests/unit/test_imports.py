"""What the processes of Spark import: each begins with it, and there are many."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator

import pytest

import bk_spark.log
from tests.support.environments import REPOSITORY

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


def test_raw_rows_with_all_columns_are_made_without_pandas() -> None:
    """pyarrow imports it for several functions, and that takes longer than a small task."""
    script = """
import sys
import pyarrow as pa
from bk_spark.datasource.entries.schemas import RAW_SCHEMA, arrow_schema
from bk_spark.log.entries.entry_rows import EntryRows
from bk_spark.log.entries.pieces import Piece, Pieces
from bk_spark.log.formats.settings import EntryFormat
from bk_spark.protocol.entries.payloads import Payloads

rows = EntryRows(arrow_schema(RAW_SCHEMA), EntryFormat.RAW)
for logs in ([None, None], ["a", "a"], ["a", "b"]):
    of = [None if log is None else n for n, log in enumerate(logs)]
    pieces = Pieces.of(Piece(n, 0, 1, 2, 2, log, of[n], of[n]) for n, log in enumerate(logs))
    (batch,) = rows.of(Payloads.of([b"1", b"2", b"3", b"4"]), pieces)
    assert batch.num_rows == 4
print(*sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "pandas" not in run.stdout.split()


def test_names_of_logs_are_found_where_they_are() -> None:
    for name in bk_spark.log.__all__:
        assert getattr(bk_spark.log, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'LogStor'"):
        _ = bk_spark.log.LogStor


def _imports() -> dict[str, set[str]]:
    """What each of our modules imports, in functions and under TYPE_CHECKING, too. A package's module is no import of
    it."""
    paths = {}
    for package in ("bk_spark", "bookie_server"):
        for path in (REPOSITORY / package).rglob("*.py"):
            paths[".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__")] = path

    def found(module: ast.Module) -> Iterator[str]:
        for node in ast.walk(module):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                yield from (name if name in paths else str(node.module) for name in names)

    return {
        name: {other for other in found(ast.parse(path.read_text("utf-8"))) if other in paths} - {name}
        for name, path in paths.items()
    }


def _in_circles(graph: dict[str, set[str]]) -> set[str]:
    """The modules that import themselves through others, and those between circles."""
    left = {name: set(others) for name, others in graph.items()}
    while ends := {name for name, others in left.items() if not others & left.keys()}:
        left = {name: others for name, others in left.items() if name not in ends}
    while begins := left.keys() - {other for others in left.values() for other in others}:
        left = {name: others for name, others in left.items() if name not in begins}
    return set(left)


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert _in_circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == {"b", "c"}
    assert not _in_circles(_imports())
