"""The directories of a bookie: where they are, and that no bookie uses them while they are read.

Our bookie holds an exclusive lock on each of its directories (:mod:`bookie_server.identity.directory_locks`). A reader
takes a shared lock on the same directories, so several can read at once, and no bookie of ours starts meanwhile.
Apache's bookie takes no lock. It is found by the files that it has open for writing, as far as this process may see
them (``/proc``, Linux).
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bk_spark.protocol.errors import InvalidArgumentError, StorageError
from bookie_server.config.conf_file import ConfFile
from bookie_server.config.config import SETTINGS
from bookie_server.identity.dirty import is_dirty
from bookie_server.identity.foreign_index import rocksdb_index

CURRENT: Final = "current"
_STORAGE_CLASS: Final = "ledgerStorageClass"


class DirectoryKind(enum.Enum):
    """What a directory is for, and the configuration key that lists such directories."""

    JOURNAL = "journalDirectories"
    LEDGER = "ledgerDirectories"
    INDEX = "indexDirectories"


@dataclass(frozen=True, slots=True)
class BookieDirectories:
    """The directories of one bookie, without ``current``. An empty tuple: not given.

    ``has_rocksdb``: the configuration names DbLedgerStorage, whose index is not in index files.
    """

    journals: tuple[str, ...] = ()
    ledgers: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()
    has_rocksdb: bool = False

    @classmethod
    def from_conf(cls, path: str) -> BookieDirectories:
        """Read them from the configuration file of a bookie, ours or Apache's. Missing keys have the bookie's defaults.

        Raises InvalidArgumentError.
        """
        conf = ConfFile(path)
        settings = [SETTINGS[name] for name in ("journal_directories", "ledger_directories", "index_directories")]
        journals, ledgers, indexes = (
            conf.setting(setting) or (setting.kind.parse(setting.default) if setting.default else ())
            for setting in settings
        )
        return cls(journals, ledgers, indexes, "DbLedgerStorage" in conf.text(_STORAGE_CLASS))

    def of(self, kind: DirectoryKind) -> tuple[str, ...]:
        """The directories of one kind. Without index directories, index files are in the ledger directories."""
        if kind is DirectoryKind.JOURNAL:
            return self.journals
        return self.ledgers if kind is DirectoryKind.LEDGER else self.indexes or self.ledgers

    def current(self, kind: DirectoryKind) -> tuple[str, ...]:
        """The ``current`` directories of one kind, all of which exist. Raises InvalidArgumentError."""
        for directory in self.of(kind):
            _check(directory, kind)
        return tuple(os.path.join(directory, CURRENT) for directory in self.of(kind))

    def index_directories(self) -> tuple[str, ...]:
        """The ``current`` directories of index files. Raises InvalidArgumentError, also if the index is in RocksDB."""
        directories = self.current(DirectoryKind.INDEX)
        database = rocksdb_index(directories)
        if self.has_rocksdb or database is not None:
            raise InvalidArgumentError(
                f"{database or ', '.join(directories)}: the index of Apache's DbLedgerStorage is in RocksDB, which "
                "this release cannot read. Journals and entry logs can be read; for the index use Apache's shell"
            )
        return directories

    def was_stopped_uncleanly(self) -> bool:
        """Whether a ledger directory says that the bookie is running or was not shut down cleanly. Its newest entries
        may be only in the journal then. Raises InvalidArgumentError."""
        return is_dirty(self.current(DirectoryKind.LEDGER))


def directory_of(path: str) -> str | None:
    """The directory of a bookie (without ``current``) that holds the file at ``path``; None if it is elsewhere.

    A symbolic link counts as what it leads to.
    """
    directory = os.path.dirname(os.path.realpath(path))
    return os.path.dirname(directory) if os.path.basename(directory) == CURRENT else None


@contextlib.contextmanager
def held_still(bookie: BookieDirectories, kinds: Collection[DirectoryKind], *, force: bool) -> Iterator[str]:
    """Keep our bookies from using the directories of these kinds within the ``with`` block. Yield a warning, or "".

    With ``force``, a bookie that uses a directory is the warning, and not an error. Raises InvalidArgumentError for a
    wrong directory, StorageError.
    """
    directories = [os.path.dirname(current) for kind in kinds for current in bookie.current(kind)]
    with contextlib.ExitStack() as stack:
        found = ""
        for directory in dict.fromkeys(map(os.path.realpath, directories)):
            found = found or _lock(directory, stack)
        found = found or _writer_of(directories)
        if found and not force:
            raise StorageError(f"{found}. Stop the bookie first, or give --force to read what it has written so far")
        yield found


def _lock(directory: str, stack: contextlib.ExitStack) -> str:
    """Take a shared lock until the stack ends. Return what keeps it from that, or "".

    Raises StorageError if the directory cannot be opened: nothing could be read then, whether a bookie runs or not.
    """
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise StorageError(
            f"{directory} cannot be opened: {error.strerror}. Run this as the user of the bookie, or let this user "
            "read the directory"
        ) from error
    stack.callback(os.close, fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return f"a bookie runs on {directory}"
    except OSError as error:
        return f"{directory} cannot be locked ({error.strerror}), so a bookie may run on it"
    return ""


def _writer_of(directories: Sequence[str]) -> str:
    """A process that has a file of the bookie open for writing, or ""."""
    places = tuple(os.path.join(os.path.realpath(directory), CURRENT, "") for directory in directories)
    for pid in filter(str.isdecimal, _names("/proc")):
        if int(pid) == os.getpid():
            continue
        for fd in _names(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                path = os.readlink(f"/proc/{pid}/fd/{fd}")
                if path.startswith(places) and _is_writing(f"/proc/{pid}/fdinfo/{fd}"):
                    return f"process {pid} has {path} open for writing: a bookie seems to run"
    return ""


def _names(directory: str) -> list[str]:
    """Names in a directory of /proc; none where this process may not look, or the process has ended."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _is_writing(fdinfo: str) -> bool:
    with open(fdinfo, encoding="ascii") as file:
        flags = next((line.split()[1] for line in file if line.startswith("flags:")), "0")
    return int(flags, 8) & os.O_ACCMODE != os.O_RDONLY


def _check(directory: str, kind: DirectoryKind) -> None:
    if not os.path.isdir(directory):
        what = "is not a directory" if os.path.exists(directory) else "does not exist"
        raise InvalidArgumentError(
            f"directory {directory} ({kind.value}) {what}; correct the option or the configuration"
        )
    if not os.path.isdir(os.path.join(directory, CURRENT)):
        inside = os.path.basename(os.path.abspath(directory)) == CURRENT
        why = "give the directory above it" if inside else "no bookie has used it"
        raise InvalidArgumentError(
            f"directory {directory} ({kind.value}) has no directory {CURRENT!r}: {why}; correct the option or the "
            "configuration"
        )
