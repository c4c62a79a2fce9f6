"""The ``.conf`` file of a bookie: its keys and their raw values."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any, Final

from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.settings.conf import read_conf
from bk_spark.settings.kinds import BOOLEAN, Kind, WrongValueError, did_you_mean
from bk_spark.settings.setting import Setting


def _directories(text: str) -> tuple[str, ...]:
    directories = tuple(os.path.normpath(part.strip()) for part in text.split(",") if part.strip())
    if not directories:
        raise WrongValueError("names no directory")
    if any("\0" in directory for directory in directories):
        raise WrongValueError("has a NUL character in it")
    real = [os.path.realpath(directory) for directory in directories]
    for i, directory in enumerate(directories):
        if real.index(real[i]) != i:
            raise WrongValueError(f"names the directory {directory} twice")
    return directories


DIRECTORIES: Final = Kind("directories, separated by commas", _directories)


class ConfFile:
    """The keys and raw values of a ``.conf`` file; errors name the key and the file. ``warnings``: what is odd about
    its form."""

    def __init__(self, path: str) -> None:
        """Read the file. Raises InvalidArgumentError if it cannot be read or a line is not ``key=value``."""
        self._path = path
        self._texts, self.warnings = read_conf(path)

    def error(self, name: str, what: str) -> InvalidArgumentError:
        """An error that names the file and the key, and goes on with ``what``."""
        return InvalidArgumentError(f"{self._path}: {name} {what}")

    def warning(self, name: str, what: str) -> str:
        """A line for the log that names the file and the key, and goes on with ``what``."""
        return f"{self._path}: {name} {what}"

    def text(self, name: str) -> str:
        """The raw value of a key; empty if the key is missing."""
        return self._texts.get(name, "")

    def flag(self, name: str, default: bool) -> bool:
        """The value of a key that is true or false."""
        return bool(self.setting(Setting(name, None, BOOLEAN, "")) if self.text(name) else default)

    def setting(self, setting: Setting) -> Any:
        """The value of a setting, or None if it is not in the file."""
        name = setting.name if self.text(setting.name) or not setting.other_name else setting.other_name
        text = self.text(name)
        return setting.parse(text, f"{self._path}: ", name) if text else None

    def unknown_warnings(self, supported: Collection[str], without_effect: Collection[str]) -> list[str]:
        """One line for every key that has no effect here, and for every unknown key."""
        warnings = []
        for name in self._texts:
            if name in without_effect:
                warnings.append(self.warning(name, "has no effect in this bookie"))
            elif name not in supported:
                near = did_you_mean(name, sorted({*supported, *without_effect}))
                warnings.append(f"{self._path}: unknown key {name} is ignored{near}")
        return warnings
