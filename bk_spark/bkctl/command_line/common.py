"""Shared by all commands: exit statuses, types of arguments, printing of results."""

from __future__ import annotations

import argparse
import base64
import datetime
import enum
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from bk_spark.bookie.passwords import password_in
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.metadata.registration import is_bookie_id
from bk_spark.settings.kinds import Kind, WrongValueError

_MAX_OFFSET: Final = (1 << 63) - 1
#: In a text of argparse, the value of an option that was shortened or misspelt.
_SECRET: Final = re.compile(r"(--pass[\w-]*)=.*?(?= could match |$)", re.DOTALL)


class ExitStatus(enum.IntEnum):
    """What ``bkctl`` exits with."""

    OK = 0
    ERROR = 1
    """The command failed. One line on stderr says why."""
    WRONG_COMMAND_LINE = 2
    PROBLEMS_FOUND = 3
    """``log verify`` and ``doctor`` found a problem, ``log gc`` could not finish, ``recover`` or ``decommission`` left
    ledgers, no auditor is elected, or files of a stopped bookie are damaged."""
    INTERRUPTED = 130


class WrongCommandLineError(InvalidArgumentError):
    """Arguments that are right by themselves do not go together."""


class OneLineParser(argparse.ArgumentParser):
    """Reports an invalid command line in one line."""

    def error(self, message: str) -> NoReturn:
        """Print ``message`` with the name of the command, and exit with WRONG_COMMAND_LINE."""
        shown = _SECRET.sub(r"\1", message)
        self.exit(ExitStatus.WRONG_COMMAND_LINE, f"{self.prog}: {shown} (see {self.prog} --help)\n")


def argument(kind: Kind) -> Callable[[str], Any]:
    """Make an argument type from a kind of setting."""

    def parsed(value: str) -> Any:
        try:
            return kind.parse(value)
        except WrongValueError as error:
            raise argparse.ArgumentTypeError(f"{value!r} {error}") from None

    return parsed


def offset(value: str) -> int:
    """Parse a log offset, an id or a number of things."""
    if not value.isascii() or not value.isdecimal() or int(value) > _MAX_OFFSET:
        raise argparse.ArgumentTypeError(f"{value!r} must be a whole number from 0 to 2⁶³ - 1")
    return int(value)


def bookie_id(value: str) -> str:
    """Parse a bookie id, such as ``10.0.0.11:3181``. Source: compatibility.md §3.4."""
    if not is_bookie_id(value):
        raise argparse.ArgumentTypeError(f"{value!r} is not a bookie id: give one as bkctl bookies prints it")
    return value


def unix_time_ms(value: str) -> int:
    """Parse milliseconds of Unix time, or an ISO 8601 date and time, which is UTC if it names no zone."""
    if value.isascii() and value.isdecimal():
        return offset(value)
    try:
        moment = datetime.datetime.fromisoformat(value)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{value!r} is not a time: give one like 2026-01-31T12:00:00Z, or milliseconds since 1970"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp() * 1000)


def password(options: argparse.Namespace) -> bytes:
    """Return the password in ``--password-file`` without line ends, or an empty one without that option."""
    path: Path | None = options.password_file
    return b"" if path is None else password_in(path, "--password-file")


def iso_time(time_ms: int) -> str:
    """Format as ISO 8601 in UTC with milliseconds. A time that no calendar has, of a damaged znode, stays a number."""
    try:
        moment = datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC)
    except (ValueError, OverflowError):
        return f"{time_ms} ms"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03d}Z"


def print_json(value: object) -> None:
    """Print one value, indented. For a command with ``--json`` that has all of its result."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_json_list(values: Iterable[object]) -> None:
    """Print a list whose values are computed while it is printed, one per line."""
    separator = "["
    for value in values:
        print(separator, json.dumps(value, ensure_ascii=False), sep="\n", end="")
        separator = ","
    print("[]" if separator == "[" else "\n]")


def print_json_line(value: object) -> None:
    """Print one of many JSON lines, to the same buffer as entries."""
    try:
        line = json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)
    except ValueError:
        line = json.dumps(_without_nan(value), ensure_ascii=False, default=_plain)
    sys.stdout.buffer.write(printable_json(line).encode() + b"\n")


def _without_nan(value: object) -> object:
    """Return ``value`` with texts for the numbers that JSON does not have, as Spark's ``to_json`` does."""
    if isinstance(value, dict):
        return {name: _without_nan(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def printable_json(line: str) -> str:
    """Escape what cannot be printed in a line of JSON, so that whoever wrote a value does not control the terminal of
    its reader."""
    if line.isprintable():
        return line
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in line)


def json_value(payload: bytes | memoryview) -> dict[str, str]:
    """Return ``value`` if the payload is UTF-8 text, else ``value_base64``."""
    data = bytes(payload)
    try:
        return {"value": data.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(data).decode()}


def _plain(value: object) -> str:
    """Format bytes as hexadecimal digits, and other types unknown to JSON (dates, decimals) as Python prints them."""
    return value.hex() if isinstance(value, bytes) else str(value)


def print_facts(facts: Mapping[str, object]) -> None:
    """Print one fact per line: its name, blanks, its value."""
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:<{width}}  {value}")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a line of names, then one line per row. Numbers are right-aligned."""
    for line in table_lines(columns, rows):
        print(line)


def table_lines(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield what :func:`print_table` prints."""
    lines = [[str(value) for value in row] for row in rows]
    right = [all(line[n].replace("-", "").isdecimal() for line in lines) for n in range(len(columns))]
    widths = [max(len(line[n]) for line in (list(columns), *lines)) for n in range(len(columns))]
    for line in (list(columns), *lines):
        cells = [f"{cell:>{w}}" if r else f"{cell:<{w}}" for cell, w, r in zip(line, widths, right, strict=True)]
        yield "  ".join(cells).rstrip()
