"""``DIRTY``: whether the last shutdown was clean, and whether the run before it synced. Source: compatibility.md §5.14.

A file in ``current`` of every ledger directory, created at start and removed only by a clean shutdown. Apache's bookie
looks only at its name, and leaves it empty. Ours writes three lines of ASCII::

    1                                              version of the format
    journalSyncData=false                          whether acknowledged adds were synced
    bootId=6e0b5ce1-32ee-4b5c-8b5e-5b8d6d1f0c55    the kernel's boot id; empty if there is none

The configuration may have changed since. An empty file does not say how its run synced, so that counts as unsynced.
A process that is killed leaves what it wrote in the page cache, where the next start syncs it. So an unsynced run has
lost nothing while the kernel is the same.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bookie_server.identity.small_files import read_small_file
from bookie_server.storage.disk import files

_LOG: Final = logging.getLogger(__name__)
_NAME: Final = "DIRTY"
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_CONTENT: Final = re.compile(rb"(?:1\njournalSyncData=(true|false)\nbootId=([0-9a-f-]*)\n)?")
_IF_DAMAGED: Final = (
    "keep a copy and empty the file: then the bookie takes everything that it has acknowledged for possibly lost"
)


@dataclass(frozen=True, slots=True)
class _Run:
    """A run that was not shut down cleanly, or is under way. ``synced``: it synced its journals before it answered.
    ``boot_id``: of the kernel that it ran on, "" if unknown."""

    synced: bool
    boot_id: str

    def encode(self) -> bytes:
        return f"1\njournalSyncData={str(self.synced).lower()}\nbootId={self.boot_id}\n".encode()

    @property
    def may_have_lost(self) -> bool:
        return not self.synced and (not self.boot_id or self.boot_id != boot_id())


#: Whatever it acknowledged may be lost.
_UNKNOWN_RUN: Final = _Run(False, "")


def boot_id() -> str:
    """Return the id that the kernel drew when it started; "" if it has none (not Linux)."""
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def mark_dirty(directories: Sequence[str], *, synced: bool, losses_handled: bool) -> None:
    """Mark all directories in place of the last run, after what that run left was synced.

    A directory where no file can be written, such as a full one, is logged and skipped.

    Parameters
    ----------
    synced
        Whether this run syncs its journals before it answers.
    losses_handled
        Whether the ledgers were marked if the last run may have lost entries. Otherwise that is kept.

    Raises
    ------
    CorruptFileError
        If a mark cannot be understood.
    SyncFailedError
    """
    for directory in directories:
        path = os.path.join(directory, _NAME)
        try:
            last = _read(path)
            run = _Run(synced, boot_id())
            if last is not None and last.may_have_lost and not losses_handled:
                run = _UNKNOWN_RUN
            if run != last:
                files.replace_file(path, run.encode())
        except files.SyncFailedError:
            raise
        except OSError as error:
            _LOG.warning(
                "an unclean shutdown cannot be detected in %s: cannot write %s: %s", directory, _NAME, error.strerror
            )


def may_have_lost(directories: Sequence[str]) -> bool:
    """Whether the last run may have lost entries that it acknowledged, as it did not sync them, did not stop in
    order, and the kernel has started anew since. Raises CorruptFileError if a mark cannot be understood, OSError."""
    runs = [_read(os.path.join(directory, _NAME)) for directory in directories]
    return any(run is not None and run.may_have_lost for run in runs)


def is_dirty(directories: Sequence[str]) -> bool:
    """Whether a directory is marked: its bookie is running, or was not shut down cleanly. One is enough."""
    return any(os.path.lexists(os.path.join(directory, _NAME)) for directory in directories)


def clear_dirty(directories: Sequence[str]) -> None:
    """Durably remove the marks after everything was written. A remaining mark is logged: it costs a needless replay."""
    for directory in directories:
        try:
            with contextlib.suppress(FileNotFoundError):
                files.remove(os.path.join(directory, _NAME))
            files.sync_directory(directory)
        except OSError as error:
            _LOG.warning("%s stays in %s: %s", _NAME, directory, error.strerror)


def _read(path: str) -> _Run | None:
    """Read a mark; None if there is none. Raises CorruptFileError, OSError."""
    match = read_small_file(path, _CONTENT, _IF_DAMAGED)
    if match is None:
        return None
    return _Run(match[1] == b"true", match[2].decode()) if match[0] else _UNKNOWN_RUN
