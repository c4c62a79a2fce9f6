"""Folders, modules and tests that pages name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    "CONTRIBUTING.md",
    "docs/glossary.md",
    "docs/design/README.md",
    "docs/design/walk.md",
    "docs/design/datasource.md",
]
_PATH = re.compile(r"`((?:bk_spark|bookie_server|tests|docs|benchmarks|examples|notebooks|scripts)/[\w./-]*)")


@pytest.mark.parametrize("page", PAGES)
def test_every_path_that_a_page_names_is_there(page: str) -> None:
    named = {path.rstrip("/.") for path in _PATH.findall((ROOT / page).read_text("utf-8"))}
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_the_walk_counts_the_modules_that_it_names() -> None:
    page = (ROOT / "docs" / "design" / "walk.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| `([\w./]+)\.py` \|", page, re.MULTILINE)
    modules = [module for _, module in rows]
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    assert len(set(modules)) == len(modules)
    assert f"\n{len(modules)} modules: " in page
    for folder, name in (("bk_spark/datasource/", "data source"), ("bk_spark/bookie/", "client")):
        assert f" {name} {sum(module.startswith(folder) for module in modules)}," in page
    named = re.findall(r"`([\w/]+)` \((\d+)\)", page)
    assert named
    assert [(name, number) for name, number in named if not modules[int(number) - 1].endswith(f"/{name}")] == []


def test_the_index_for_newcomers_names_every_page() -> None:
    """The site has an index of its own, docs/index.rst, which Sphinx checks."""
    linked = {*re.findall(r"\]\(([\w./-]+)\)", (ROOT / "docs" / "README.md").read_text("utf-8"))}
    pages = {path.name for path in (ROOT / "docs").iterdir() if path.suffix in {".md", ".rst"}}
    assert pages - linked == {"README.md", "index.rst"}
    assert [link for link in linked if not (ROOT / "docs" / link).exists()] == []


def test_each_line_of_the_threat_model_names_its_tests() -> None:
    """A line that says what somebody cannot do has a test, and each test that is named is in the file before it."""
    page = (ROOT / "docs" / "security.md").read_text("utf-8")
    section = page.partition("\n## What is protected, and what is not\n")[2]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:2] == "| "]
    assert rows[0] == ["somebody who", "can", "cannot", "test"]
    named = 0
    for who, _, cannot, tests in rows[1:]:
        # Only whom nothing keeps from anything has no test.
        assert bool(tests) == bool(cannot), who
        assert tests.startswith("`") or not tests, who
        file = ""
        for name in re.findall(r"`([^`]+)`", tests):
            if name.endswith(".py"):
                (path,) = (ROOT / "tests").rglob(name)
                file = path.read_text("utf-8")
                assert f"`{name}`: `test_" in tests, name
            else:
                assert re.search(rf"^ *(?:async )?def {name}\(", file, re.MULTILINE), (who, name)
                named += 1
    assert named > 40
