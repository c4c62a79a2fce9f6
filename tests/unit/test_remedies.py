"""No text that a user sees advises to remove data before it says what else to try."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).parents[2]
_TAKES_AWAY: Final = re.compile(
    r"(?<!to )\b(?:remove|delete|erase|wipe|empty|format) (?:it|them|that|the|these|this|its|all|every)\b(?! again)"
    r"|\brm -",
    re.IGNORECASE,
)
#: What must come first: nothing is lost by it.
_ELSE: Final = re.compile(r"\b(?:re-replicate|keep|move)\b", re.IGNORECASE)


def _texts() -> list[tuple[str, str]]:
    """What is raised or logged as an error or a warning: where, and the text without its values."""
    found = []
    for package in ("bookie_server", "bk_spark"):
        for path in sorted((_ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Assign | ast.AnnAssign | ast.Return | ast.Raise | ast.Call):
                    text = _text_of(node)
                    if text:
                        found.append((f"{path.relative_to(_ROOT)}:{node.lineno}", text))
    return found


def _text_of(node: ast.AST) -> str:
    """The parts of a text in order; docstrings are no part of what is looked at."""
    parts = [n for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    parts.sort(key=lambda n: (n.lineno, n.col_offset))
    return "".join(str(part.value) for part in parts)


def test_no_text_advises_to_remove_data_first() -> None:
    texts = _texts()
    assert len(texts) > 1000
    found = {
        text: place
        for place, text in texts
        if (match := _TAKES_AWAY.search(text)) and not _ELSE.search(text[: match.start()])
    }
    assert not found, "\n".join(f"{place}: {text}" for text, place in found.items())


@pytest.mark.parametrize(
    ("text", "advises"),
    [
        ("restore the file, or remove the bookie's data and re-replicate", True),
        ("remove it to let the logs decide", True),
        ("the cookie is not in ZooKeeper. Empty the directories to start anew", True),
        ("bring it back; or re-replicate the bookie's ledgers, delete that znode, and start it again", False),
        ("the deletion did not come to its end: delete it again", False),
    ],
)
def test_what_counts_as_advice(text: str, advises: bool) -> None:
    match = _TAKES_AWAY.search(text)
    assert bool(match and not _ELSE.search(text[: match.start()])) is advises
