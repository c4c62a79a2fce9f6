"""Virtual environments as users get them with ``pip install``: our wheel, its requirements, and nothing else.

pip installs our package from a wheel built from the checkout. Its requirements are linked from the test environment:
only packages in the closure of the wheel's own requirements, so that a missing requirement shows.
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
    """A new virtual environment in ``directory`` after ``pip install wheel[extras]``."""
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
    """The variables of a shell in which no virtual environment is activated."""
    own = {str(Path(sys.prefix) / "bin"), str(Path(sys.executable).parent)}
    path = os.pathsep.join(part for part in os.environ["PATH"].split(os.pathsep) if part not in own)
    dropped = ("PYTHON", "PYSPARK", "VIRTUAL_ENV", "BK_", "SPARK_HOME")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return {**kept, "PATH": path, **more}


def _closure(
    ours: importlib.metadata.Distribution, extras: tuple[str, ...]
) -> Iterator[importlib.metadata.Distribution]:
    """The requirements of ``ours`` with ``extras``, and their own requirements."""
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
