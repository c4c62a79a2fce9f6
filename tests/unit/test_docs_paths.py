"""Folders and modules that pages for developers name are there."""

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


def test_the_index_for_newcomers_names_every_page() -> None:
    """The site has an index of its own, docs/index.rst, which Sphinx checks."""
    linked = {*re.findall(r"\]\(([\w./-]+)\)", (ROOT / "docs" / "README.md").read_text("utf-8"))}
    pages = {path.name for path in (ROOT / "docs").iterdir() if path.suffix in {".md", ".rst"}}
    assert pages - linked == {"README.md", "index.rst"}
    assert [link for link in linked if not (ROOT / "docs" / link).exists()] == []
