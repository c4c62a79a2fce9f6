"""The marks: the position before which each journal is no longer needed. Source: compatibility.md §5.3.

``<ledger dir>/current/lastMark`` (with several journals ``lastMark.<i>``, one for each): i64 journal id, i64 offset.
Everything before the mark is durable in the entry logs and index files of every ledger directory. So a mark is the
minimum of what the directories have made durable, and it is written to all of them after all were flushed. A directory
that could not be written keeps an older mark, so the highest mark counts at start.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from bk_spark.protocol.errors import CorruptFileError
from bookie_server.storage.disk import files

_MARK: Final = struct.Struct(">qq")
_FILE_NAME: Final = re.compile(r"lastMark\.(\d{1,9})")


@dataclass(frozen=True, slots=True, order=True)
class LogMark:
    """A position in a journal: journal id and offset in that file."""

    journal_id: int
    offset: int


def mark_name(journal: int, journals: int) -> str:
    """Name of the mark file of journal number ``journal`` of ``journals``."""
    return "lastMark" if journals == 1 else f"lastMark.{journal}"


def mark_files(directory: str) -> dict[int, str]:
    """The mark files in ``directory`` (a ``current`` directory) by the number of their journal. ``lastMark``, the mark
    of the only journal, has the number -1. Raises OSError."""
    found = {}
    for name in os.listdir(directory):
        match = _FILE_NAME.fullmatch(name)
        if match or name == mark_name(0, 1):
            found[int(match[1]) if match else -1] = os.path.join(directory, name)
    return dict(sorted(found.items()))


def read_marks(directories: Sequence[str], journals: int) -> list[LogMark]:
    """The highest mark of each journal in ``directories`` (``current`` directories of ledgers); (0, 0) if there is
    none.

    Raises CorruptFileError if there are marks of more journals than configured, OSError.
    """
    for directory in directories:
        for number, path in mark_files(directory).items():
            if number >= journals:
                raise CorruptFileError(
                    f"{path} is the mark of journal number {number}, but only {journals} journalDirectories are "
                    "configured: give all of them, in the old order"
                )
    return [
        max(
            read_mark(os.path.join(directory, mark_name(journal, journals))) or LogMark(0, 0)
            for directory in directories
        )
        for journal in range(journals)
    ]


def write_marks(directories: Sequence[str], marks: Sequence[LogMark]) -> None:
    """Write the marks, one per journal, to every directory that can be written.

    Raises OSError if none can, SyncFailedError.
    """
    written, failure = 0, None
    for directory in directories:
        try:
            for journal, mark in enumerate(marks):
                path = os.path.join(directory, mark_name(journal, len(marks)))
                files.replace_file(path, _MARK.pack(mark.journal_id, mark.offset))
            written += 1
        except files.SyncFailedError:
            raise
        except OSError as error:
            failure = error
            for journal in range(len(marks)):
                with contextlib.suppress(OSError):
                    files.remove(os.path.join(directory, mark_name(journal, len(marks)) + ".tmp"))
    if failure is not None and not written:
        raise failure


def forget_marks(directories: Sequence[str], journals: int, lost: Collection[int]) -> None:
    """Set the marks of the journals with the numbers ``lost`` back to the beginning, in every directory.

    Raises OSError if one of them keeps another mark, SyncFailedError, and as :func:`read_marks`.
    """
    kept = read_marks(directories, journals)
    marks = [LogMark(0, 0) if number in lost else mark for number, mark in enumerate(kept)]
    write_marks(directories, marks)
    if read_marks(directories, journals) != marks:
        raise OSError(errno.ENOSPC, "a ledger directory has no room for the mark of a journal that was lost")


def read_mark(path: str) -> LogMark | None:
    """The mark in a file; None if the file is missing or too short. Raises OSError."""
    try:
        with open(path, "rb") as file:
            content = file.read(_MARK.size)
    except FileNotFoundError:
        return None
    return LogMark(*_MARK.unpack(content)) if len(content) == _MARK.size else None
