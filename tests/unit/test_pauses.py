"""Tests wait for events. What pauses for a time says why, or is a loop that looks again."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator

import pytest

from tests.support.environments import REPOSITORY

pytestmark = pytest.mark.unit

_MODULES = {"asyncio", "time"}


def unexplained(program: str) -> list[int]:
    """Lines that sleep and may not. ``sleep(0)`` is a turn of the event loop and takes no time. In a ``while`` loop
    something is looked for again, until the test's time limit at most. All else has a comment on its line, or on a line
    of its own above, that says what the time is for: how long a peer is slow, what would have happened by then."""
    lines = ["", *program.splitlines()]
    return [
        call.lineno
        for call in _sleeps(ast.parse(program), looks_again=False)
        if not lines[call.lineno - 1].lstrip().startswith("#")
        and not (isinstance(call, ast.Call) and "#" in lines[call.end_lineno or 0][call.end_col_offset or 0 :])
    ]


def _sleeps(node: ast.AST, looks_again: bool) -> Iterator[ast.Call | ast.ImportFrom]:
    """Sleeps that are not in a loop that looks again."""
    match node:
        case ast.Call(func=ast.Attribute(ast.Name(module), "sleep"), args=[duration]) if module in _MODULES:
            if not looks_again and not (isinstance(duration, ast.Constant) and duration.value == 0):
                yield node
        case ast.ImportFrom(module, names) if module in _MODULES and "sleep" in {one.name for one in names}:
            yield node  # by another name it would not be seen
        case ast.While():
            looks_again = True
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
            looks_again = False
    for child in ast.iter_child_nodes(node):
        yield from _sleeps(child, looks_again)


def test_no_test_sleeps_without_a_reason() -> None:
    paths = sorted((REPOSITORY / "tests").rglob("*.py"))
    texts = [(path, path.read_text("utf-8")) for path in paths]
    found = [
        f"{path.relative_to(REPOSITORY)}:{line}"
        for path, text in texts
        if "sleep" in text
        for line in unexplained(text)
    ]
    assert not found, "say on these lines what the time is for, or wait for an event"


@pytest.mark.parametrize(
    ("program", "lines"),
    [
        ("await asyncio.sleep(0)", []),
        ("await asyncio.sleep(0.1)", [1]),
        ("await asyncio.sleep(0.1)  # a flush would be through", []),
        ("# a flush would be through\ntime.sleep(1)", []),
        ("wait()  # for it\ntime.sleep(1)", [2]),
        ("while not done:\n    time.sleep(1)", []),
        ("for _ in range(3):\n    time.sleep(1)", [2]),
        ("while True:\n    def slow():\n        time.sleep(1)", [3]),
        ("from time import sleep\nsleep(1)", [1]),
    ],
)
def test_what_is_a_reason(program: str, lines: list[int]) -> None:
    asynchronous = textwrap.indent(program, "    ")
    assert [line - 1 for line in unexplained(f"async def test():\n{asynchronous}\n")] == lines
