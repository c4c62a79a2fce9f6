"""Small files of ASCII in a bookie's directories, whose first line is the format's version, ``1``."""

from __future__ import annotations

import re
from typing import Final

from bk_spark.protocol.errors import CorruptFileError

_MAX_BYTES: Final = 1024


def read_small_file(path: str, content: re.Pattern[bytes], if_damaged: str) -> re.Match[bytes] | None:
    """Return what a file has; None if there is no file.

    Parameters
    ----------
    content
        Matches all that the file may have.
    if_damaged
        What an operator does with a damaged file.

    Raises
    ------
    CorruptFileError
        If it does not match.
    OSError
    """
    try:
        with open(path, "rb") as file:
            match = content.fullmatch(file.read(_MAX_BYTES))
    except FileNotFoundError:
        return None
    if match is None:
        raise CorruptFileError(
            f"{path} is damaged, or of a version that this release does not know (it knows 1): start the release that "
            f"wrote it. If it is damaged, {if_damaged}"
        )
    return match
