"""Reading the header of a journal file: who wrote the file, and where its records begin. Layout: journal.py.

A header is synced before anything follows it. An incomplete header followed only by zeros is therefore left from a file
whose creation was interrupted. An incomplete header followed by anything else is damage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bk_spark.protocol.errors import CorruptFileError
from bookie_server.storage.disk.files import read_at
from bookie_server.storage.journal import journal
from bookie_server.storage.journal.journal import I32, SEALS_MARK

_CHUNK_BYTES: Final = 4 * 1024 * 1024
_SHORT_HEADER_BYTES: Final = 8
#: The first bytes of every header of ours; the first eight are the same in Apache's, which has no version 7.
_BEGINNING: Final = journal.file_header(b"")[:12]
_BEGINNINGS: Final = (_BEGINNING, journal.file_header(b"", locates=True)[:12])
_KNOWN_VERSIONS: Final = range(2, 8)
#: What the operator should do about an incomplete file.
REMEDY: Final = (
    "restore the file from a snapshot or a backup. If there is none, keep a copy of all directories, re-replicate "
    "this bookie's ledgers from the other bookies, and only then start it with empty ones"
)


@dataclass(frozen=True, slots=True)
class JournalHeader:
    """``nonce`` is None in a journal written by Apache's bookie, which has no seals. ``synced_groups``: each group was
    synced before the next was written, so only the last one can be torn."""

    first_record: int
    nonce: bytes | None = None
    synced_groups: bool = True


def read_header(fd: int, path: str, size: int, position: int) -> JournalHeader | None:
    """Read the header. Return None if the file's creation was interrupted and nothing can follow the header. An
    incomplete header of ours says nothing about seals; it is accepted if only zeros follow it and ``position``.

    Raises CorruptFileError.
    """
    header = read_at(fd, journal.HEADER_BYTES, 0)
    written = header.rstrip(b"\0")
    is_begun = len(written) < len(_BEGINNING) and any(each.startswith(written) for each in _BEGINNINGS)
    is_begun = is_begun and only_zeros(fd, len(written), size)
    if is_begun and len(written) < _SHORT_HEADER_BYTES:
        return None
    if header[:4] != journal.MAGIC or len(header) < _SHORT_HEADER_BYTES:
        raise CorruptFileError(f"journal {path} does not begin with {journal.MAGIC.decode()}: not a journal file")
    (version,) = I32.unpack_from(header, 4)
    if version not in _KNOWN_VERSIONS:
        raise CorruptFileError(
            f"journal {path} has format version {version}; known are {_KNOWN_VERSIONS.start} to "
            f"{_KNOWN_VERSIONS.stop - 1}"
        )
    if version < journal.PADDED_FROM_VERSION:
        return JournalHeader(_SHORT_HEADER_BYTES)
    if len(header) < journal.HEADER_BYTES:
        return None
    seals = header[8:12]
    if is_begun or seals[:3] != SEALS_MARK[:3]:
        return JournalHeader(journal.HEADER_BYTES)
    if seals != SEALS_MARK:
        raise CorruptFileError(
            f"journal {path} has seals of version {seals[3:]!r}, written by another release; use that one"
        )
    sealed = journal.sealed_header(header)
    if sealed is not None:
        flags, nonce = sealed
        return JournalHeader(journal.HEADER_BYTES, nonce, not flags & journal.UNSYNCED_FLAG)
    if only_zeros(fd, max(position, journal.HEADER_BYTES), size):
        return JournalHeader(journal.HEADER_BYTES)
    raise CorruptFileError(
        f"journal {path} has a damaged header: its checksum is wrong, and without it groups cannot be "
        f"distinguished from payloads of clients; {REMEDY}"
    )


def holds_records(path: str) -> bool:
    """Whether anything follows the header. False also for a file whose creation was interrupted."""
    beginning = _beginning(path)
    return bool(beginning[journal.SEALED_HEADER_BYTES if _is_ours(beginning) else len(_BEGINNING) :].strip(b"\0"))


def is_ours(path: str) -> bool:
    """Whether this bookie implementation wrote the file."""
    return _is_ours(_beginning(path))


def _beginning(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(journal.HEADER_BYTES + _SHORT_HEADER_BYTES)


def _is_ours(beginning: bytes) -> bool:
    return beginning[8:12] == SEALS_MARK


def only_zeros(fd: int, position: int, size: int) -> bool:
    """Whether the file has nothing but zeros from ``position`` up to ``size``. Raises OSError."""
    while position < size:
        data = read_at(fd, min(_CHUNK_BYTES, size - position), position)
        if data.strip(b"\0"):
            return False
        position += len(data)
    return True
