"""Seeds of fault runs: those that were asked for."""

from __future__ import annotations

import os


def seeds(text: str) -> list[int]:
    """``7``, ``1-50``, ``3,8-10``."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def wanted(variable: str) -> list[int]:
    """The seeds in an environment variable; none if it is not set."""
    text = os.environ.get(variable)
    return seeds(text) if text else []
