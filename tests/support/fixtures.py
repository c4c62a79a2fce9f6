"""Golden bytes captured from Apache BookKeeper (see tests/fixtures/README.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_DIRECTORY = Path(__file__).resolve().parents[1] / "fixtures"


def golden(name: str) -> Any:
    """The parsed content of ``tests/fixtures/<name>.json``."""
    return json.loads((_DIRECTORY / f"{name}.json").read_text("utf-8"))
