"""The marks in every ledger directory, and whether the journals that they name are there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from bookie_server.offline.directories import BookieDirectories, DirectoryKind
from bookie_server.storage.journal.journal import file_name
from bookie_server.storage.journal.log_mark import LogMark, mark_files, mark_name, read_mark


@dataclass(frozen=True, slots=True)
class FoundMark:
    """One mark file, or its absence.

    ``journal`` is the number of the journal. ``mark`` is None if the file is missing or too short. ``counts``: it is
    the highest mark of its journal, from which the next start replays. ``problem``: what is wrong with it, or "".
    """

    path: str
    journal: int
    mark: LogMark | None
    counts: bool = False
    problem: str = ""


def found_marks(directories: BookieDirectories) -> Iterator[FoundMark]:
    """Yield the marks by journal and ledger directory. Raises InvalidArgumentError, OSError.

    Without journal directories, as many journals are assumed as there are marks, and journals are not looked for.
    """
    ledgers = directories.current(DirectoryKind.LEDGER)
    journals = directories.current(DirectoryKind.JOURNAL)
    files = {directory: mark_files(directory) for directory in ledgers}
    numbers = sorted({number for found in files.values() for number in found})
    count = len(journals) or (max(numbers, default=-1) + 1 or 1)
    for journal in range(count):
        name = mark_name(journal, count)
        marks = {directory: read_mark(os.path.join(directory, name)) for directory in ledgers}
        highest = max((mark for mark in marks.values() if mark is not None), default=None)
        for directory, mark in marks.items():
            path = os.path.join(directory, name)
            problem = _problem(path, mark, journals[journal] if journals else None)
            yield FoundMark(path, journal, mark, mark is not None and mark == highest, problem)
    expected = {mark_name(journal, count) for journal in range(count)}
    for found in files.values():
        for number, path in found.items():
            if os.path.basename(path) not in expected:
                problem = f"belongs to another number of journals than {count}: give all journalDirectories, in order"
                yield FoundMark(path, max(number, 0), read_mark(path), problem=problem)


def _problem(path: str, mark: LogMark | None, journal_directory: str | None) -> str:
    if mark is None:
        return "is shorter than 16 bytes: it counts as none" if os.path.lexists(path) else ""
    if journal_directory is None or mark.journal_id <= 0:
        return ""
    journal_path = os.path.join(journal_directory, file_name(mark.journal_id))
    try:
        size = os.stat(journal_path).st_size
    except FileNotFoundError:
        return f"names a journal that does not exist: {journal_path}"
    return "" if mark.offset <= size else f"names offset {mark.offset} of {journal_path}, which has {size} bytes"
