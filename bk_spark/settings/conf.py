"""Files of Apache's form: lines ``key=value``, and comments after ``#`` or ``!``."""

from __future__ import annotations

import os
from typing import NamedTuple

from bk_spark.protocol.errors import InvalidArgumentError


class Conf(NamedTuple):
    """The keys of a file and their values as text. ``warnings``: keys with several values, of which the last counts."""

    texts: dict[str, str]
    warnings: list[str]


def read_conf(path: str | os.PathLike[str]) -> Conf:
    """Read a file. Editors of some systems put a mark of the encoding (BOM) before its first line: it is no text.

    Raises InvalidArgumentError if it cannot be read or a line is not ``key=value``.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
    except OSError as error:
        raise InvalidArgumentError(f"cannot read configuration file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"configuration file {path} is not UTF-8 text") from error
    conf = Conf({}, [])
    lines: dict[str, int] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#!":
            continue
        name, separator, value = line.partition("=")
        name = name.strip()
        if not separator or not name:
            # The line is not shown: it may hold a password.
            raise InvalidArgumentError(f"{path} line {number} is not of the form key=value")
        value = value.strip()
        if conf.texts.get(name, value) != value:
            # The values are not shown: they may be passwords.
            conf.warnings.append(
                f"{path}: {name} has a value in line {lines[name]} and another in line {number}, which counts: keep one"
            )
        conf.texts[name], lines[name] = value, number
    return conf
