"""Files of Apache's form: lines ``key=value``, and comments after ``#`` or ``!``."""

from __future__ import annotations

import os

from bk_spark.protocol.errors import InvalidArgumentError


def read_conf(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the keys of the file and their values as text. The last value of a key counts.

    Raises InvalidArgumentError if it cannot be read or a line is not ``key=value``.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise InvalidArgumentError(f"cannot read configuration file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"configuration file {path} is not UTF-8 text") from error
    texts: dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#!":
            continue
        name, separator, value = line.partition("=")
        name = name.strip()
        if not separator or not name:
            # The line is not shown: it may hold a password.
            raise InvalidArgumentError(f"{path} line {number} is not of the form key=value")
        texts[name] = value.strip()
    return texts
