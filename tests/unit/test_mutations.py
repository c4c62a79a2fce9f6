"""The committed mutations fit the source, and are tried on a copy of it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutation import runner
from tests.mutation.lists import MUTATIONS
from tests.mutation.mutation import Mutation

ROOT = Path(__file__).parents[2]


def functions_of(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: f"{mutation.file}: {mutation.rule}")
def test_a_mutation_fits_the_source_and_its_tests_exist(mutation: Mutation) -> None:
    """If this fails after a change of the source, find where the rule is now, and change the mutation."""
    mutated = mutation.applied_to(ROOT)
    assert mutated != (ROOT / mutation.file).read_text("utf-8")
    compile(mutated, mutation.file, "exec")
    assert mutation.tests
    for test in mutation.tests:
        file, _, name = test.partition("::")
        assert name.partition("[")[0] in functions_of(ROOT / file), test


def test_each_mutation_is_listed_once() -> None:
    places = [(mutation.file, mutation.text) for mutation in MUTATIONS]
    assert len(places) == len(set(places))


def test_processes_import_the_copy_and_not_the_checkout(tmp_path: Path) -> None:
    for name in ("bk_spark", "bookie_server", "tests"):
        (tmp_path / "copy" / name).mkdir(parents=True)
        (tmp_path / "copy" / name / "__init__.py").touch()
    runner.check_imports(tmp_path / "copy")
    with pytest.raises(RuntimeError, match=f"import {ROOT}/bk_spark"):
        runner.check_imports(tmp_path)
