"""What the code cites of Apache's formats and rules is in docs/design/compatibility.md."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "design" / "compatibility.md"
SECTION = re.compile(r"^(?:#{2,3} |\| )(\d+(?:\.\d+)*)\.? ", re.MULTILINE)
CITATION = re.compile(r"compatibility\.md[\s,]*((?:\s*(?:,|and|–|to)?\s*§[\d.]*\d)+)")
OF_PULSAR = re.compile(r"pulsar\.md[\s,]*((?:\s*(?:,|and|–|to)?\s*§[\d.]*\d)+)")


def test_every_cited_section_of_the_compatibility_page_exists() -> None:
    there = set(SECTION.findall(PAGE.read_text("utf-8")))
    cited: list[tuple[str, str]] = []
    loose: list[str] = []
    for path in _sources():
        text = path.read_text("utf-8")
        name = str(path.relative_to(ROOT))
        cited += [
            (name, section) for citation in CITATION.findall(text) for section in re.findall(r"[\d.]*\d", citation)
        ]
        loose += [name] * ("§" in OF_PULSAR.sub("", CITATION.sub("", text)))
    assert len(cited) > 60
    assert [(name, section) for name, section in cited if section not in there] == []
    assert loose == [], "a § that is not of compatibility.md or pulsar.md"


def test_sections_of_the_compatibility_page_are_numbered_once() -> None:
    text = PAGE.read_text("utf-8")
    sections = re.findall(r"^#{2,3} (\d+(?:\.\d+)?)\.? ", text, re.MULTILINE)
    assert len(sections) == len(set(sections)) > 50
    assert set(re.findall(r"§([\d.]*\d)", text)) <= set(SECTION.findall(text))


def _sources() -> list[Path]:
    return [
        path
        for folder in ("bk_spark", "bookie_server", "tests", "benchmarks", "examples")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path != Path(__file__)
    ]
