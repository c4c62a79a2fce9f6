"""Programs that tests put in the place of others: shell scripts."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from pathlib import Path


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def passing_python(directory: Path) -> Path:
    """A Python of Spark's workers that passes the doctor's check at once. A real one imports for a second."""
    version = importlib.metadata.version("bk-spark")
    passes = {"python": platform.python_version(), "errors": {}, "listed": True, "version": version}
    return program(directory / "quick-python", f"echo '{json.dumps(passes)}'")
