"""Machines are run by runners alone: whoever takes a machine's actions is a runner, or a machine that runs another."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

import pytest

from tests.support.environments import REPOSITORY

pytestmark = pytest.mark.unit

#: The runners that ship. Those of tests and simulators are in ``tests``.
RUNNERS: Final = "bk_spark/bookie/runners.py"
_TAKE: Final = "take_actions"


def taken(program: str) -> list[int]:
    """Lines that take the actions of a machine, outside of classes that are machines themselves."""
    return [node.lineno for node in _taken(ast.parse(program), in_machine=False)]


def _taken(node: ast.AST, in_machine: bool) -> Iterator[ast.Attribute]:
    if isinstance(node, ast.Attribute) and node.attr == _TAKE and not in_machine:
        yield node
    elif isinstance(node, ast.ClassDef):
        in_machine = any(isinstance(each, ast.FunctionDef) and each.name == _TAKE for each in node.body)
    for child in ast.iter_child_nodes(node):
        yield from _taken(child, in_machine)


def test_only_runners_and_machines_take_actions() -> None:
    lines = {
        path.relative_to(REPOSITORY).as_posix(): found
        for folder in ("bk_spark", "bookie_server", "benchmarks", "examples")
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
        if (found := taken(path.read_text("utf-8")))
    }
    assert lines.pop(RUNNERS)
    assert not lines, f"let a runner of {RUNNERS} run these machines"


@pytest.mark.parametrize(
    ("program", "lines"),
    [
        ("for action in machine.take_actions():\n    perform(action)", [1]),
        ("class Handle:\n    def run(self):\n        take = self.machine.take_actions", [3]),
        ("class Outer:\n    def take_actions(self):\n        return self._inner.take_actions()", []),
        ("class Outer:\n    def take_actions(self): ...\n\n    def _go(self):\n        self._inner.take_actions()", []),
        ("class Outer:\n    def take_actions(self): ...\n\n    class Inner:\n        a = b.take_actions()", [5]),
        ("def take_actions(self):\n    return []", []),
    ],
)
def test_what_takes_actions(program: str, lines: list[int]) -> None:
    assert taken(program) == lines
