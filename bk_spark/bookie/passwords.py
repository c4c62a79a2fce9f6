"""Passwords of ledgers and logs, as programs, command lines and Spark give them."""

from __future__ import annotations

from pathlib import Path

from bk_spark.protocol.errors import InvalidArgumentError


def password_in(path: str | Path, setting: str, remedy: str = "give a file that this process may read") -> bytes:
    """Return the password in a file, without the line end after it.

    Parameters
    ----------
    path
        The file.
    setting
        The option or argument that names the file. Error texts begin with it.
    remedy
        The advice in error texts.

    Raises
    ------
    InvalidArgumentError
        If the file cannot be read.
    """
    try:
        return Path(path).read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise InvalidArgumentError(f"{setting}: {path} cannot be read ({error.strerror}); {remedy}") from error
