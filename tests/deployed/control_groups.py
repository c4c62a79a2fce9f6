"""Control groups that must not stay behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from tests.deployed.report import wait_for

#: Where all of them are: version 2 alone, or version 1 with version 2 in ``unified``.
CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")


def version_2() -> Path:
    """The root of the control groups of version 2."""
    unified = CONTROL_GROUPS / "unified"
    return unified if (unified / "cgroup.procs").exists() else CONTROL_GROUPS


def remove_control_groups(name: str) -> None:
    """Remove the groups of this name with all below them, as soon as their last processes are gone."""
    for root in (*CONTROL_GROUPS.glob(f"*/{name}"), *CONTROL_GROUPS.glob(name)):
        for directory, _, _ in os.walk(root, topdown=False):
            wait_for(lambda directory=directory: _removed(directory), f"{directory} is empty", 30)


def _removed(directory: str) -> bool:
    try:
        os.rmdir(directory)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
