"""Kinds of settings: how a user's text becomes a value, and which values are allowed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

#: The largest int and the largest long in Java.
MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1

_SIZE: Final = re.compile(r"([0-9]{1,19})\s*([kmg]?)b?", re.IGNORECASE)
_SIZE_UNITS: Final = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_DURATION: Final = re.compile(r"([0-9]{1,19})\s*(ms|s|m|min|h|d)", re.IGNORECASE)
_DURATION_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
#: Python also takes 31_81, +5 and digits of other scripts, and Apache's configuration 0x10: a typo more often than not.
_WHOLE: Final = re.compile(r"-?[0-9]{1,40}", re.ASCII)
_FRACTION: Final = re.compile(r"-?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,3})?", re.ASCII)
_NO_OFF: Final = object()


class WrongValueError(Exception):
    """A value is invalid. The caller adds the setting's name and raises an error for the user."""


def _anything(_value: object) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of setting.

    Parameters
    ----------
    allowed
        The allowed values, as words after "must be".
    parse
        Turns a text into a value. Raises :class:`WrongValueError`.
    fits
        Whether a value from a program is allowed.
    allowed_value
        Like ``allowed``, for such values. Differs if text and value have different units.
    """

    allowed: str
    parse: Callable[[str], Any]
    fits: Callable[[Any], bool] = _anything
    allowed_value: str = ""


def _text(value: str) -> str:
    if not value:
        raise WrongValueError("is empty")
    return value


def _boolean(value: str) -> bool:
    lowered = value.strip().lower()
    if lowered not in ("true", "false"):
        raise WrongValueError("must be true or false")
    return lowered == "true"


TEXT: Final = Kind("text", _text, lambda value: isinstance(value, str) and value != "")
#: May be empty. Surrounding blanks are ignored.
OPTIONAL_TEXT: Final = Kind("text", str.strip, lambda value: isinstance(value, str))
PASSWORD: Final = Kind("text", str)
BOOLEAN: Final = Kind("true or false", _boolean, lambda value: isinstance(value, bool))


def whole(least: int = 0, most: int = MAX_INT, *, unit: int = 1, off: object = _NO_OFF) -> Kind:
    """Make the kind of a whole number.

    Parameters
    ----------
    least, most
        Bounds of the number in the text. A value from a program may be between ``least`` and ``most * unit``.
    unit
        The value is the number in the text times this.
    off
        If given, every negative number means this value.
    """
    return _number("a whole number", _WHOLE, int, least, most, unit, off)


def fraction(least: float = 0, most: float = 1, *, off: object = _NO_OFF) -> Kind:
    """Make the kind of a number that need not be whole. ``off`` as for :func:`whole`."""
    return _number("a number", _FRACTION, float, least, most, 1, off)


def _number(
    what: str,
    form: re.Pattern[str],
    parse: type[int] | type[float],
    least: float,
    most: float,
    unit: int,
    off: object,
) -> Kind:
    allowed, allowed_value = (
        f"{what} from {least} to {_bound(top)}" + ("" if off is _NO_OFF else ", or below 0: off")
        for top in (most, most * unit)
    )

    def parsed(text: str) -> Any:
        text = text.strip()
        if form.fullmatch(text) is None:
            raise WrongValueError(f"must be {allowed}")
        number = parse(text)
        if number < 0 and off is not _NO_OFF:
            return off
        if not least <= number <= most:
            raise WrongValueError(f"must be {allowed}")
        return number * unit

    def fits(value: Any) -> bool:
        if isinstance(value, int | parse) and not isinstance(value, bool):
            return bool(least <= value <= most * unit) or value == off
        return value is off

    return Kind(allowed, parsed, fits, allowed_value)


def _bound(number: float) -> str:
    return {MAX_INT: "2³¹ - 1", MAX_LONG: "2⁶³ - 1"}.get(int(number), str(number))


def size(least: int, most: int) -> Kind:
    """Make the kind of a number of bytes, from ``least`` to ``most``. The text may have one of the units k, m and g,
    which are powers of 1024."""
    return _quantity("a number of bytes, or one with k, m or g", _SIZE, _SIZE_UNITS, least, most, "bytes")


def duration(least_ms: int, most_ms: int) -> Kind:
    """Make the kind of a duration in milliseconds, from ``least_ms`` to ``most_ms``. The text must have a unit."""
    return _quantity("a number with a unit: ms, s, m, h or d", _DURATION, _DURATION_UNITS, least_ms, most_ms, "ms")


def _quantity(
    allowed: str, form: re.Pattern[str], units: Mapping[str, int], least: int, most: int, counted: str
) -> Kind:
    def parsed(text: str) -> int:
        match = form.fullmatch(text.strip())
        if match is None:
            raise WrongValueError(f"must be {allowed}")
        quantity = int(match[1]) * units[match[2].lower()]
        if not least <= quantity <= most:
            raise WrongValueError(f"must be from {least} to {most} {counted}")
        return quantity

    return Kind(allowed, parsed)


def choice(values: Mapping[str, Any]) -> Kind:
    """Make the kind of one of several names, case-insensitive. ``values`` has the value of each name."""
    by_lower = {name.lower(): value for name, value in values.items()}
    allowed = f"one of {', '.join(values)}"

    def parsed(text: str) -> Any:
        if text.lower() not in by_lower:
            raise WrongValueError(f"must be {allowed}{did_you_mean(text, values)}")
        return by_lower[text.lower()]

    return Kind(allowed, parsed)


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return the end of an error text: the name most similar to ``word``. Empty if none is similar."""
    by_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.5)
    return f"; did you mean {by_lower[close[0]]}?" if close else ""
