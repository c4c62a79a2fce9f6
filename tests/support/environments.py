"""Virtual environments as a user has them after ``pip install``: our wheel, what it asks for, and nothing else.

Our own package is installed by pip, from a wheel built of the checkout. What it asks for is linked from the environment
of the tests: only the packages in the closure of the wheel's own requirements, so that a missing one is missing.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[2]
OURS = "bk-spark"


def build_wheel(directory: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(directory), str(REPOSITORY)],
        check=True,
        timeout=300,
    )
    (wheel,) = directory.glob("*.whl")
    return wheel


def make_environment(directory: Path, wheel: Path, *extras: str) -> None:
    """What ``pip install wheel[extras]`` makes of a new virtual environment in ``directory``."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True, timeout=120)
    (packages,) = directory.glob("lib/python3.*/site-packages")
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", str(directory / "bin" / "python"), "install"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True, timeout=120)
    (ours,) = importlib.metadata.distributions(path=[str(packages)])
    for distribution in _closure(ours, extras):
        for top in {file.parts[0] for file in distribution.files or () if not file.is_absolute()} - {
            "..",
            "__pycache__",
        }:
            target = Path(str(distribution.locate_file(top)))
            if not (packages / top).exists():
                (packages / top).symlink_to(target)


def environment_variables(**more: str) -> dict[str, str]:
    """Those of a shell in which no virtual environment is activated."""
    own = {str(Path(sys.prefix) / "bin"), str(Path(sys.executable).parent)}
    path = os.pathsep.join(part for part in os.environ["PATH"].split(os.pathsep) if part not in own)
    dropped = ("PYTHON", "PYSPARK", "VIRTUAL_ENV", "BK_", "SPARK_HOME")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return {**kept, "PATH": path, **more}


def _closure(
    ours: importlib.metadata.Distribution, extras: tuple[str, ...]
) -> Iterator[importlib.metadata.Distribution]:
    """What ``ours`` needs with ``extras``, and what that needs."""
    seen: set[tuple[str, str]] = set()
    waiting = [(ours, extra) for extra in ("", *extras)]
    while waiting:
        distribution, extra = waiting.pop()
        for text in distribution.requires or ():
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
                continue
            needed = importlib.metadata.distribution(requirement.name)
            for wanted in ("", *requirement.extras):
                key = (canonicalize_name(requirement.name), wanted)
                if key not in seen:
                    seen.add(key)
                    waiting.append((needed, wanted))
                    if not wanted:
                        yield needed
