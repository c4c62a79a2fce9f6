"""Shared by the offline commands: which directories, and how results are printed."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from bk_spark.bkctl.command_line.common import ExitStatus, print_json_line
from bk_spark.bkctl.logs.progress import Progress
from bk_spark.protocol.errors import InvalidArgumentError, StorageError
from bookie_server.offline.directories import BookieDirectories, DirectoryKind, directory_of, held_still

_OPTIONS = {
    DirectoryKind.JOURNAL: "--journal-dir",
    DirectoryKind.LEDGER: "--ledger-dir",
    DirectoryKind.INDEX: "--index-dir or --ledger-dir",
}


def directories_of(options: argparse.Namespace, *kinds: DirectoryKind) -> BookieDirectories:
    """Return the directories that the command line names, at least one of each of ``kinds``.

    Raises InvalidArgumentError if a kind is missing, or if the command line has both ``--conf`` and directories.
    """
    given = (options.journal_dirs, options.ledger_dirs, options.index_dirs)
    if options.conf is not None:
        if any(given):
            raise InvalidArgumentError("give either --conf or directories, not both")
        return BookieDirectories.from_conf(options.conf)
    journals, ledgers, indexes = map(tuple, given)
    directories = BookieDirectories(journals, ledgers, indexes)
    for kind in kinds:
        if not directories.of(kind):
            raise InvalidArgumentError(
                f"where are the {kind.value} of the bookie? Give its configuration file with --conf FILE, or "
                f"{_OPTIONS[kind]} DIRECTORY"
            )
    return directories


def place_of(
    options: argparse.Namespace, file: str | None, kind: DirectoryKind
) -> tuple[BookieDirectories, tuple[DirectoryKind, ...]]:
    """Return the directories that the command line names, and the kinds to hold while ``file`` is read.

    A file that is given as a path is either in the directory of a bookie, which is returned, or it is a copy that no
    bookie uses: then there are no directories and no kinds. Raises InvalidArgumentError if the command line has
    directories or ``--conf`` beside a path, and as :func:`directories_of`.
    """
    if file is None or "/" not in file:
        return directories_of(options, kind), (kind,)
    if options.conf is not None or options.journal_dirs or options.ledger_dirs or options.index_dirs:
        raise InvalidArgumentError(
            f"{file} is a path, so --conf and directories would not be used: leave them out, or give the id or the "
            "name of the file without a slash"
        )
    directory = directory_of(file)
    if directory is None:
        return BookieDirectories(), ()
    journals, ledgers = ((directory,), ()) if kind is DirectoryKind.JOURNAL else ((), (directory,))
    return BookieDirectories(journals, ledgers), (kind,)


def check_range(first: int | None, last: int | None, first_option: str, last_option: str) -> None:
    """Raise InvalidArgumentError if the range ends before it begins."""
    if first is not None and last is not None and first > last:
        raise InvalidArgumentError(f"{first_option} {first} is after {last_option} {last}")


@contextlib.contextmanager
def reading(directories: BookieDirectories, options: argparse.Namespace, *kinds: DirectoryKind) -> Iterator[Report]:
    """Read within the ``with`` block, while no bookie uses the directories of these kinds.

    Raises InvalidArgumentError for a wrong directory, StorageError.
    """
    with held_still(directories, kinds, force=options.force) as warning, Progress() as progress:
        report = Report(options, progress)
        if warning:
            report.warn(f"{warning}: it may change what is read meanwhile")
        try:
            yield report
        except BrokenPipeError:
            raise  # the reader of the output has quit
        except OSError as error:
            path = "" if error.filename is None else f"{error.filename}: "
            raise StorageError(f"{path}{error.strerror or error}") from error


class Report:
    """Prints records and problems as they come, and counts the problems."""

    def __init__(self, options: argparse.Namespace, progress: Progress) -> None:
        self.json: bool = options.json
        self.progress = progress
        self.problems = 0
        #: Whether records go to the terminal that shows the progress bar, so that it must be cleared first.
        self._shares_terminal = sys.stdout.isatty()

    def record(self, record: dict[str, Any], text: str) -> None:
        """Print one record: a JSON line, or its text."""
        if self._shares_terminal:
            self.progress.clear()
        if self.json:
            print_json_line(record)
        else:
            print(text)

    def problem(self, text: str) -> None:
        """Print what is wrong with a file to stderr, and count it."""
        self.problems += 1
        self.warn(text)

    def warn(self, text: str) -> None:
        """Print a line to stderr."""
        self.progress.clear()
        sys.stdout.flush()
        print("bkctl:", " ".join(text.split()), file=sys.stderr)

    @property
    def status(self) -> ExitStatus:
        """The exit status of the command."""
        return ExitStatus.PROBLEMS_FOUND if self.problems else ExitStatus.OK
