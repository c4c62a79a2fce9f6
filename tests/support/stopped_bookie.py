"""Directories of a bookie that was stopped, for tests of tools that read them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.interop.shelf import Volume


@dataclass(frozen=True, slots=True)
class StoppedBookie:
    """A bookie's configuration file, and the directory that holds all of its directories."""

    conf_path: Path
    directory: Path
    #: What was written to it.
    volumes: tuple[Volume, ...] = ()

    @property
    def conf(self) -> tuple[str, str]:
        """The option that names it on a command line."""
        return "--conf", str(self.conf_path)

    def files(self, ending: str) -> list[Path]:
        """Its files with this ending, by directory and number."""
        found = self.directory.rglob(f"current/**/*.{ending}")
        return sorted(found, key=lambda path: (path.parent, int(path.stem, 16)))

    def copied(self, to: Path) -> StoppedBookie:
        """The same in another place, with holes in its files as here."""
        shutil.copytree(self.directory, to / "data")
        conf = to / "copy.conf"
        conf.write_text(self.conf_path.read_text("utf-8").replace(str(self.directory), str(to / "data")), "utf-8")
        return StoppedBookie(conf, to / "data", self.volumes)

    def state(self) -> dict[str, tuple[str, int, str]]:
        """Of each file and directory what a reader must not change: mode, time of change, content."""
        found = {}
        for path in sorted(self.directory.rglob("*")):
            status = os.lstat(path)
            content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            found[str(path.relative_to(self.directory))] = (oct(status.st_mode), status.st_mtime_ns, content)
        return found


#: Exit status, output and errors of a command of bkctl.
Run = Callable[..., tuple[int, str, str]]


def json_lines(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines()]
