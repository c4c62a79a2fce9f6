"""Whether each entry that an index file names is in its entry log, at that place, with its ids and a right digest.

The digest's type is found by trying (digests.py). It is the same for all entries of a ledger. So an entry without a
right digest is damaged if another entry of its ledger has one. If none has, the digests are unknown: HMAC, DUMMY.
"""

from __future__ import annotations

import enum
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import CorruptFileError
from bookie_server.offline.digests import DigestFinder
from bookie_server.offline.directories import DirectoryKind
from bookie_server.offline.entry_logs import header_problem
from bookie_server.offline.listing import FoundFile, files_in
from bookie_server.storage.disk.fd_cache import FdCache
from bookie_server.storage.disk.files import read_at
from bookie_server.storage.entrylog.entry_log import HEADER_BYTES, OFFSET_BITS, OFFSET_MASK, file_name, id_of
from bookie_server.storage.index import index
from bookie_server.storage.records import LENGTH_BYTES, MAX_RECORD_BYTES, MIN_RECORD_BYTES

_HEAD: Final = struct.Struct(">iqq")
_OPEN_LOGS: Final = 64
_FIRST_GUESS_BYTES: Final = 4 * 1024
_MAX_GUESS_BYTES: Final = 64 * 1024
#: Entries whose digest is not known yet that are remembered of a ledger one by one.
_REMEMBERED: Final = 1_000
#: Entries between two calls for progress.
_PROGRESS_ENTRIES: Final = 256

#: Called with bytes of index files done and in all.
OnProgress = Callable[[int, int], None]


class ProblemKind(enum.Enum):
    """What is wrong."""

    LOG_HEADER = "log-header"
    INDEX_MISSING = "index-missing"
    INDEX_UNREADABLE = "index-unreadable"
    INDEX_TRUNCATED = "index-truncated"
    INDEX_UNUSED = "index-unused"
    BAD_LOCATION = "bad-location"
    LOG_MISSING = "log-missing"
    BEYOND_END = "beyond-end"
    WRONG_ENTRY = "wrong-entry"
    WRONG_DIGEST = "wrong-digest"
    NOT_READ = "not-read"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with a file, or with consecutive entries of a ledger; then ``text`` is about the first of
    them."""

    kind: ProblemKind
    path: str
    text: str
    ledger_id: int | None = None
    first_entry: int | None = None
    last_entry: int | None = None


@dataclass(slots=True)
class Counts:
    """What was checked. ``digest_unknown`` counts entries."""

    ledgers: int = 0
    entries: int = 0
    digest_unknown: int = 0


class ConsistencyCheck:
    """Checks the index files in ``indexes`` against the entry logs in ``ledgers`` (``current`` directories).

    With ``was_unclean``, an empty index file is not a problem: the entries are still in the journal. ``only``: the
    ledger to check.
    """

    def __init__(
        self,
        indexes: tuple[str, ...],
        ledgers: tuple[str, ...],
        finder: DigestFinder,
        *,
        was_unclean: bool,
        only: int | None = None,
    ) -> None:
        self._indexes = indexes
        self._was_unclean = was_unclean
        self._only = only
        self._logs = _Logs(ledgers)
        self._finder = finder
        self.counts = Counts()

    def problems(self, on_progress: OnProgress) -> Iterator[Problem]:
        """Check, and yield what is wrong as it is found. Raises OSError, StorageError."""
        try:
            yield from self._logs.header_problems()
            total = sum(found.disk_bytes for found in self._files())
            done, seen = 0, False
            for found in self._files():
                seen = True
                yield from self._check_file(found, partial(_report, on_progress, done, total))
                done += found.disk_bytes
            if self._only is not None and not seen:
                text = f"no index file of ledger {self._only}: the bookie finds none of its entries"
                yield Problem(ProblemKind.INDEX_MISSING, ", ".join(self._indexes), text, self._only)
        finally:
            self._logs.close()

    def _files(self) -> Iterator[FoundFile]:
        for found in files_in(self._indexes, DirectoryKind.INDEX):
            name = index.FILE_NAME.fullmatch(os.path.basename(found.path))
            if self._only is None or (name is not None and int(name[1], 16) == self._only):
                yield found

    def _check_file(self, found: FoundFile, on_read: Callable[[int], None]) -> Iterator[Problem]:
        unused = self._why_unused(found.path)
        if unused:
            yield Problem(ProblemKind.INDEX_UNUSED, found.path, unused)
            return
        ledger_id = int(os.path.basename(found.path).partition(".")[0], 16)
        try:
            fd = os.open(found.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            yield Problem(ProblemKind.INDEX_UNREADABLE, found.path, error.strerror or "", ledger_id)
            return
        try:
            header = read_at(fd, index.HEADER_BYTES, 0)
            if self._was_unclean and not header.strip(b"\0") and found.size_bytes <= index.HEADER_BYTES:
                return
            self.counts.ledgers += 1
            try:
                index.IndexHeader.decode(header, "the file")
            except CorruptFileError as error:
                # The locations may be right. A start sets the whole ledger aside, but its entries can be rescued.
                yield Problem(ProblemKind.INDEX_UNREADABLE, found.path, error.message, ledger_id)
            if found.size_bytes < index.HEADER_BYTES or (found.size_bytes - index.HEADER_BYTES) % index.PAGE_BYTES:
                text = f"{found.size_bytes} bytes are not whole pages: the locations of the last entries may be lost"
                yield Problem(ProblemKind.INDEX_TRUNCATED, found.path, text, ledger_id)
            yield from _merged(self._check_entries(ledger_id, fd, on_read))
        except OSError as error:
            yield Problem(ProblemKind.INDEX_UNREADABLE, found.path, error.strerror or "", ledger_id)
        finally:
            os.close(fd)

    def _why_unused(self, path: str) -> str:
        """Why the bookie does not find this file, or ""."""
        name = index.FILE_NAME.fullmatch(os.path.basename(path))
        if name is None:
            return "the name is not that of a ledger"
        relative = index.relative_path(int(name[1], 16))
        for directory in map(os.path.realpath, self._indexes):
            expected = os.path.join(directory, relative)
            if path == expected:
                return ""
            if os.path.lexists(expected):
                return f"the bookie reads {expected}, which is of the same ledger"
        return f"the bookie looks for it at {relative} below a current directory"

    def _check_entries(self, ledger_id: int, fd: int, on_read: Callable[[int], None]) -> Iterator[Problem]:
        digests = _LedgerDigests(self._finder, ledger_id)
        seen = 0
        for entry_ids, locations in index.used_slots(fd):
            for entry_id, location in zip(entry_ids.tolist(), locations.tolist(), strict=True):
                found = self._logs.look(ledger_id, entry_id, location)
                if isinstance(found, Problem):
                    yield replace(found, ledger_id=ledger_id, first_entry=entry_id, last_entry=entry_id)
                else:
                    yield from digests.check(entry_id, found, self._logs.path(location))
                seen += 1
                if seen % _PROGRESS_ENTRIES == 0:
                    on_read(8 * seen)
        self.counts.entries += seen
        self.counts.digest_unknown += digests.unknown


@dataclass(slots=True)
class _LedgerDigests:
    """The digests of one ledger's entries, one after the other."""

    finder: DigestFinder
    ledger_id: int
    _type: DigestType | None = None
    #: Entries before the first one with a right digest; then ids and logs of the first of these.
    unknown: int = 0
    _before: list[tuple[int, str]] = field(default_factory=list)

    def check(self, entry_id: int, entry: memoryview, path: str) -> Iterator[Problem]:
        if self._type is not None:
            if not self.finder.is_right(entry, self._type):
                yield self._problem(entry_id, path)
            return
        self._type = self.finder.find(entry)
        if self._type is None:
            self.unknown += 1
            if len(self._before) < _REMEMBERED:
                self._before.append((entry_id, path))
            return
        for earlier_id, earlier_path in self._before:
            yield self._problem(earlier_id, earlier_path)
        more = self.unknown - len(self._before)
        if more:
            text = f"the {self._type.name} digests of {more} more entries below entry {entry_id} are wrong"
            yield Problem(ProblemKind.WRONG_DIGEST, path, text, self.ledger_id)
        self.unknown, self._before = 0, []

    def _problem(self, entry_id: int, path: str) -> Problem:
        assert self._type is not None
        text = f"the {self._type.name} digest is wrong"
        return Problem(ProblemKind.WRONG_DIGEST, path, text, self.ledger_id, entry_id, entry_id)


class _Logs:
    """Reads single entries from the entry logs in some directories."""

    def __init__(self, directories: tuple[str, ...]) -> None:
        self._directories = directories
        self._fds = FdCache(_OPEN_LOGS, lambda log_id: os.open(self._files[log_id][0], os.O_RDONLY | os.O_CLOEXEC))
        #: Path and size of each log.
        self._files: dict[int, tuple[str, int]] = {}
        self._guess_bytes = _FIRST_GUESS_BYTES
        for found in files_in(directories, DirectoryKind.LEDGER):
            log_id = id_of(os.path.basename(found.path))
            if log_id is not None:
                self._files.setdefault(log_id, (found.path, found.size_bytes))

    def close(self) -> None:
        self._fds.close()

    def header_problems(self) -> Iterator[Problem]:
        for log_id, (path, _) in sorted(self._files.items()):
            try:
                with self._fds.borrow(log_id) as fd:
                    text = header_problem(fd)
            except OSError as error:
                text = error.strerror or str(error)
            if text:
                yield Problem(ProblemKind.LOG_HEADER, path, text)

    def path(self, location: int) -> str:
        """The log that the location names, for messages."""
        log_id = location >> OFFSET_BITS
        return self._files[log_id][0] if log_id in self._files else file_name(log_id)

    def look(self, ledger_id: int, entry_id: int, location: int) -> memoryview | Problem:
        """The stored entry, or what is wrong with it."""
        if location < 0:
            return Problem(ProblemKind.BAD_LOCATION, "", f"the location {location} is impossible")
        log_id, at = location >> OFFSET_BITS, (location & OFFSET_MASK) - LENGTH_BYTES
        path = self.path(location)
        if at < HEADER_BYTES:
            return Problem(ProblemKind.BAD_LOCATION, path, f"no entry can begin at offset {at}")
        if log_id not in self._files:
            return Problem(ProblemKind.LOG_MISSING, path, f"it is not in {', '.join(self._directories)}")
        size_of_log = self._files[log_id][1]
        if at + _HEAD.size > size_of_log:
            return Problem(ProblemKind.BEYOND_END, path, f"offset {at} is beyond its end at {size_of_log}")
        try:
            with self._fds.borrow(log_id) as fd:
                data = read_at(fd, LENGTH_BYTES + self._guess_bytes, at)
                size, found_ledger, found_entry = _HEAD.unpack_from(data)
                if (found_ledger, found_entry) != (ledger_id, entry_id):
                    text = f"at offset {at} is entry {found_entry} of ledger {found_ledger}"
                    return Problem(ProblemKind.WRONG_ENTRY, path, text)
                if not MIN_RECORD_BYTES <= size <= MAX_RECORD_BYTES:
                    return Problem(ProblemKind.WRONG_ENTRY, path, f"at offset {at} is an impossible size, {size} bytes")
                end = at + LENGTH_BYTES + size
                if end > size_of_log:
                    text = f"the entry at offset {at} ends at {end}, beyond its end at {size_of_log}"
                    return Problem(ProblemKind.BEYOND_END, path, text)
                self._guess_bytes = min(max(size, _FIRST_GUESS_BYTES), _MAX_GUESS_BYTES)
                if len(data) < LENGTH_BYTES + size:
                    data += read_at(fd, LENGTH_BYTES + size - len(data), at + len(data))
        except (OSError, struct.error) as error:
            return Problem(ProblemKind.NOT_READ, path, f"offset {at} cannot be read: {error}")
        return memoryview(data)[LENGTH_BYTES : LENGTH_BYTES + size]


def _report(on_progress: OnProgress, done_before: int, total: int, read: int) -> None:
    on_progress(min(done_before + read, total), total)


def _merged(problems: Iterator[Problem]) -> Iterator[Problem]:
    """Join the same problem of consecutive entries, so that a lost entry log of a million entries is one line."""
    run: Problem | None = None
    for one in problems:
        if (
            run is not None
            and run.last_entry is not None
            and (one.kind, one.path, one.first_entry) == (run.kind, run.path, run.last_entry + 1)
        ):
            run = replace(run, last_entry=one.last_entry)
            continue
        if run is not None:
            yield run
        run = one
    if run is not None:
        yield run
