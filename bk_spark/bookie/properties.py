"""Dataclasses of settings as properties, that is keys and texts, with the names and units of Apache's configuration.

A setting is a field of a dataclass whose metadata say how it is written as a property (key and text)::

    add_timeout_ms: int = field(
        default=5_000,
        metadata={"apache": "addEntryTimeoutSec", "unit_ms": 1000, "least": 1, "doc": "What it means."},
    )

``apache``   the key in Apache's client configuration; without it the key is ours: the field's name in camel case.
``unit_ms``  the key counts units of so many milliseconds, the field milliseconds; -1 stays -1 ("off").
``least``, ``most``  bounds of a number, in the field's unit; 0 and 2³¹ - 1 without them.
``doc``      what the table of settings says of it.

Fields are int, float, bool or str; ``int | None`` takes -1, or nothing, as None.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import Field, fields
from typing import Any

from bk_spark.protocol.errors import InvalidArgumentError


def property_key(setting: Field[Any]) -> str:
    """How a setting is called in properties."""
    first, *rest = setting.name.split("_")
    return str(setting.metadata.get("apache") or first + "".join(word.capitalize() for word in rest))


def parse_properties(owner: type[Any], properties: Mapping[str, str], what: str) -> dict[str, Any]:
    """Arguments for the class ``owner`` from properties. Raises InvalidArgumentError for a key that is none, with
    the nearest that is one, and for a wrong value, with what is allowed."""
    settings = {property_key(setting): setting for setting in fields(owner)}
    values: dict[str, Any] = {}
    for key, text in properties.items():
        setting = settings.get(key)
        if setting is None:
            nearest = difflib.get_close_matches(key, settings, n=1, cutoff=0.0)[0]
            raise InvalidArgumentError(f"{what} has no key {key!r}; did you mean {nearest}?")
        values[setting.name] = value = _parse(setting, text)
        _check(setting, value, key)
    return values


def check_settings(settings: Any) -> None:
    """Raises InvalidArgumentError for a value of the wrong kind or out of bounds, naming the field."""
    for setting in fields(settings):
        _check(setting, getattr(settings, setting.name), setting.name)


def settings_table(owner: type[Any]) -> list[str]:
    """A Markdown table of the settings of class ``owner``."""
    lines = ["| key | | field | default of the key | allowed | meaning |", "|---|---|---|---|---|---|"]
    for setting in fields(owner):
        ours = "A" if "apache" in setting.metadata else ""
        lines.append(
            f"| `{property_key(setting)}` | {ours} | `{setting.name}` | {_shown(setting)} | "
            f"{_allowed(setting, as_property=True)} | {setting.metadata['doc']} |"
        )
    return lines


def _kind(setting: Field[Any]) -> str:
    # Annotations are kept as text.
    return str(setting.type)


def _unit(setting: Field[Any]) -> int:
    return int(setting.metadata.get("unit_ms", 1))


def _bounds(setting: Field[Any]) -> tuple[float, float]:
    return setting.metadata.get("least", 0), setting.metadata.get("most", 2**31 - 1)


def _parse(setting: Field[Any], text: str) -> Any:
    text, kind = text.strip(), _kind(setting)
    if kind == "str":
        return text
    if kind == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind == "int | None" and text in ("", "-1"):
        return None
    try:
        if kind == "float":
            return float(text)
        if kind != "bool":
            number = int(text)
            return number if number == -1 else number * _unit(setting)
    except ValueError:
        pass
    raise InvalidArgumentError(f"{property_key(setting)} must be {_allowed(setting, as_property=True)}, not {text!r}")


def _check(setting: Field[Any], value: Any, name: str) -> None:
    kind = _kind(setting)
    if kind == "int | None" and value is None:
        return
    if kind in ("int", "int | None", "float"):
        least, most = _bounds(setting)
        numeric = isinstance(value, int | float if kind == "float" else int) and not isinstance(value, bool)
        fits = numeric and least <= value <= most
    else:
        fits = isinstance(value, bool if kind == "bool" else str)
    if not fits:
        as_property = name != setting.name
        if as_property and isinstance(value, int) and value != -1:
            value //= _unit(setting)
        raise InvalidArgumentError(f"{name} must be {_allowed(setting, as_property=as_property)}, not {value!r}")


def _allowed(setting: Field[Any], *, as_property: bool) -> str:
    kind = _kind(setting)
    if kind in ("bool", "str"):
        return "true or false" if kind == "bool" else "text"
    least, most = _bounds(setting)
    unit = _unit(setting) if as_property else 1
    # -1 means "off" in any unit.
    low = least if least == -1 else math.ceil(least / unit)
    number = "a whole number" if kind != "float" else "a number"
    return f"{number} from {low} to {math.floor(most / unit)}" + (", or -1" if kind == "int | None" else "")


def _shown(setting: Field[Any]) -> str:
    default = setting.default
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, int) and default != -1:
        return f"`{default // _unit(setting)}`"
    return "" if default in (None, "") else f"`{default}`"
