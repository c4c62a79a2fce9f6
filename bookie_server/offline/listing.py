"""The files of a bookie: journals, entry logs and index files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from bk_spark.protocol.errors import StorageError
from bookie_server.offline.directories import DirectoryKind

ENDINGS: Final = {DirectoryKind.JOURNAL: ".txn", DirectoryKind.LEDGER: ".log", DirectoryKind.INDEX: ".idx"}


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file of the bookie, its size, and the disk space it takes. Index files have holes."""

    kind: DirectoryKind
    path: str
    size_bytes: int
    disk_bytes: int


def files_in(directories: tuple[str, ...], kind: DirectoryKind) -> Iterator[FoundFile]:
    """Yield the files of one kind below ``directories`` (``current`` directories), each directory's sorted by name.

    Raises StorageError if a directory cannot be listed.
    """
    for directory in directories:
        for parent, inner, names in os.walk(os.path.realpath(directory), onerror=_unlisted):
            inner.sort(key=_order)
            for name in sorted((name for name in names if name.endswith(ENDINGS[kind])), key=_order):
                path = os.path.join(parent, name)
                try:
                    status = os.stat(path)
                except FileNotFoundError:
                    continue  # removed meanwhile
                except OSError as error:
                    raise StorageError(f"{path} cannot be read: {error.strerror}") from error
                yield FoundFile(kind, path, status.st_size, status.st_blocks * 512)


def _order(name: str) -> tuple[int, str]:
    """Sort hexadecimal numbers by value."""
    return len(name), name


def _unlisted(error: OSError) -> None:
    raise StorageError(f"directory {error.filename} cannot be listed: {error.strerror}") from error
