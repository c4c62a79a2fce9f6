"""How a key of the bookie's configuration is declared, read and shown.

A setting is a field of :class:`~bookie_server.config.config.BookieConfig` made by :func:`key`, which says how it is
called in the ``.conf`` file, in which unit, and within which bounds. Kinds are told by the field's annotation: ``int``,
``float``, ``bool``, ``str`` and ``tuple[str, ...]`` (a list of directories).
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Mapping
from dataclasses import Field, field, fields
from typing import Any, Final

from bk_spark.protocol.errors import InvalidArgumentError

#: The largest number that Java keeps in an int, and in a long.
MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1


def key(
    name: str,
    default: object,
    meaning: str,
    *,
    unit: int = 1,
    least: float = 0,
    most: float = MAX_INT,
    off: bool = False,
    other_name: str = "",
    otherwise: str = "",
) -> Any:
    """A setting that the file calls ``name`` (or ``other_name``, where ``name`` is missing).

    ``default``, ``least`` and ``most`` are in the file's unit, which is ``unit`` of the field's. With ``off`` every
    negative number is taken, and becomes 0 (off). ``otherwise`` says in words what a missing key means.
    """
    is_number = isinstance(default, int) and not isinstance(default, bool)
    return field(
        default=default * unit if is_number and isinstance(default, int) else default,
        metadata={
            "name": name,
            "unit": unit,
            "least": least,
            "most": most,
            "off": off,
            "other_name": other_name,
            "otherwise": otherwise,
            "meaning": meaning,
        },
    )


class ConfFile:
    """The keys and texts of a ``.conf`` file; errors name key and file."""

    def __init__(self, path: str) -> None:
        """Raises InvalidArgumentError where the file cannot be read or a line is not ``key=value``."""
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except OSError as error:
            raise InvalidArgumentError(f"cannot read configuration file {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(f"configuration file {path} is not UTF-8 text") from error
        self._path = path
        self._texts: dict[str, str] = {}
        for number, raw in enumerate(text.splitlines(), 1):
            line = raw.strip()
            if not line or line[0] in "#!":
                continue
            name, separator, value = line.partition("=")
            name = name.strip()
            if not separator or not name:
                # The line is not shown: it may hold a password.
                raise InvalidArgumentError(f"{path} line {number} is not of the form key=value")
            self._texts[name] = value.strip()

    def error(self, name: str, what: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{self._path}: {name} {what}")

    def warning(self, name: str, what: str) -> str:
        return f"{self._path}: {name} {what}"

    def text(self, name: str) -> str:
        """The text of a key; empty where it is missing."""
        return self._texts.get(name, "")

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name).lower()
        if text not in ("", "true", "false"):
            raise self.error(name, f"must be true or false, not {text!r}")
        return text == "true" if text else default

    def setting(self, setting: Field[Any]) -> Any:
        """The value of a setting made by :func:`key`, or None where the file says nothing of it."""
        meta = setting.metadata
        name = meta["name"] if self.text(meta["name"]) or not meta["other_name"] else meta["other_name"]
        text = self.text(name)
        if not text:
            return None
        match str(setting.type):
            case "bool":
                return self.flag(name, False)
            case "int":
                return self._number(name, text, meta)
            case "float":
                return self._fraction(name, text, meta)
            case "tuple[str, ...]":
                return self._directories(name, text)
            case _:
                return text

    def unknown_warnings(self, supported: Collection[str], without_effect: Collection[str]) -> list[str]:
        """A line for every key that has no effect here, or that nobody knows."""
        warnings = []
        for name in self._texts:
            if name in without_effect:
                warnings.append(self.warning(name, "has no effect in this bookie"))
            elif name not in supported:
                near = difflib.get_close_matches(name, {*supported, *without_effect}, 1, 0.0)
                warnings.append(f"{self._path}: unknown key {name} is ignored; did you mean {near[0]}?")
        return warnings

    def _number(self, name: str, text: str, meta: Mapping[str, Any]) -> int:
        try:
            value = int(text)
        except ValueError:
            raise self.error(name, f"must be a whole number, not {text!r}") from None
        if meta["off"] and value < 0:
            return 0
        if not meta["least"] <= value <= meta["most"]:
            raise self.error(name, f"is {value}; it must lie between {meta['least']} and {meta['most']}")
        return value * int(meta["unit"])

    def _fraction(self, name: str, text: str, meta: Mapping[str, Any]) -> float:
        try:
            value = float(text)
        except ValueError:
            raise self.error(name, f"must be a number, not {text!r}") from None
        if meta["off"] and value < 0:
            return 0.0
        if not meta["least"] <= value <= meta["most"]:
            raise self.error(name, f"is {text}; it must lie between {meta['least']} and {meta['most']}")
        return value

    def _directories(self, name: str, text: str) -> tuple[str, ...]:
        directories = tuple(os.path.normpath(part.strip()) for part in text.split(",") if part.strip())
        real = [os.path.realpath(directory) for directory in directories]
        for i, directory in enumerate(directories):
            if real.index(real[i]) != i:
                raise self.error(name, f"names the directory {directory} twice")
        if not directories:
            raise self.error(name, "names no directory")
        return directories


def settings_table(owner: type[Any]) -> list[str]:
    """A Markdown table of the settings of class ``owner``."""
    lines = ["| key | default | allowed | meaning |", "|---|---|---|---|"]
    for setting in fields(owner):
        meta = setting.metadata
        if not meta:
            continue
        name = f"`{meta['name']}`" + (f" (or `{meta['other_name']}`)" if meta["other_name"] else "")
        lines.append(f"| {name} | {_shown(setting)} | {_allowed(setting)} | {meta['meaning']} |")
    return lines


def _shown(setting: Field[Any]) -> str:
    meta, default = setting.metadata, setting.default
    if meta["otherwise"]:
        return str(meta["otherwise"])
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, int):
        return f"`{default // meta['unit']}`"
    return f"`{','.join(default)}`" if isinstance(default, tuple) else f"`{default}`"


def _allowed(setting: Field[Any]) -> str:
    meta = setting.metadata
    match str(setting.type):
        case "bool":
            return "true or false"
        case "tuple[str, ...]":
            return "directories, separated by commas"
        case "str":
            return "text"
    high = {MAX_INT: "2³¹ - 1", MAX_LONG: "2⁶³ - 1"}.get(meta["most"], meta["most"])
    return f"{meta['least']} to {high}" + (", or below 0: off" if meta["off"] else "")
