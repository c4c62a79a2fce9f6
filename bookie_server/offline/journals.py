"""Journals of a stopped bookie: their records with their places. The ledgers' keys are never part of a record here."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bk_spark.protocol.entries.entry import LAC_PACKET_HEADER
from bookie_server.offline.directories import BookieDirectories, DirectoryKind
from bookie_server.offline.numbered_files import NumberedFiles
from bookie_server.storage.entrylog import entry_log
from bookie_server.storage.entrylog.entry_log import OFFSET_BITS, OFFSET_MASK
from bookie_server.storage.journal import journal
from bookie_server.storage.journal.journal import IDS, PADDING, ExplicitLacRecord, FenceRecord, MasterKeyRecord
from bookie_server.storage.journal.journal_header import holds_records, is_ours
from bookie_server.storage.journal.journal_reader import JournalPiece, JournalReader
from bookie_server.storage.journal.located_record import LocatedRecord
from bookie_server.storage.records import LENGTH_BYTES

_LAST_ID: Final = (1 << 63) - 1
_JOURNALS: Final = NumberedFiles(
    "a", "journal", DirectoryKind.JOURNAL, _LAST_ID, journal.id_of, journal.file_name, "--journal"
)


class RecordKind(enum.Enum):
    """What a record is."""

    ENTRY = "entry"
    LOCATED = "located"
    """An entry whose bytes are in an entry log only."""
    MASTER_KEY = "masterkey"
    FENCE = "fence"
    EXPLICIT_LAC = "explicitlac"
    SEAL = "seal"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """One record. ``offset`` is where it begins, with its length field; ``size_bytes`` is without that field.

    ``entry_id`` is that of an entry, or the number of a record that this release does not know. ``lac`` is that of an
    explicit LAC. ``entry`` is a stored entry. ``group`` is of a seal: where its group begins and ends. ``location`` is
    of an entry that is in an entry log only: the file's name, and where its record begins there, with the size field.
    One record of the journal may name many such entries.
    """

    kind: RecordKind
    offset: int
    size_bytes: int
    ledger_id: int | None = None
    entry_id: int | None = None
    lac: int | None = None
    entry: memoryview | None = None
    group: tuple[int, int] | None = None
    location: tuple[str, int] | None = None


def find_journals(bookie: BookieDirectories, name: str | None) -> list[str]:
    """Paths of the journals: ``name`` is an id in decimal digits, a file name, a path with a slash, or None for all.

    Raises InvalidArgumentError.
    """
    if name is not None:
        return _JOURNALS.find(bookie, name)
    directories = bookie.current(DirectoryKind.JOURNAL)
    return [os.path.join(each, journal.file_name(i)) for each in directories for i in journal.journal_ids(each)]


class JournalFile:
    """Reads the records of one journal.

    After :meth:`records` is exhausted, ``torn_at`` is where something begins that is not a record, or None. That is
    the rest of a write that was interrupted and never acknowledged.
    """

    def __init__(self, path: str) -> None:
        """Raises OSError."""
        self.path = path
        self.size_bytes = os.stat(path).st_size
        self.is_ours = is_ours(path)
        self.torn_at: int | None = None

    def records(self) -> Iterator[FoundRecord]:
        """Yield the records in the order of the file. Raises CorruptFileError at damage, OSError."""
        reader = JournalReader(self.path, may_end_torn=_may_end_torn(self.path))
        for piece in reader.pieces():
            yield from _records_of(piece)
        self.torn_at = reader.position if reader.torn else None


def total_bytes(paths: Sequence[str]) -> int:
    """Bytes of all these files. Raises OSError."""
    return sum(os.stat(path).st_size for path in paths)


def _may_end_torn(path: str) -> bool:
    """Decide as the replay does: a later journal with records, if it is ours, shows that this one ended whole."""
    journal_id = journal.id_of(os.path.basename(path))
    if journal_id is None:
        return True
    directory = os.path.dirname(os.path.abspath(path))
    later = [i for i in journal.journal_ids(directory) if i > journal_id]
    next_one = next(filter(holds_records, (os.path.join(directory, journal.file_name(i)) for i in later)), None)
    return next_one is None or not is_ours(next_one)


def _records_of(piece: JournalPiece) -> Iterator[FoundRecord]:
    at = 0
    for start, length in zip(piece.starts.tolist(), piece.lengths.tolist(), strict=True):
        yield from _seals(piece, at, start - LENGTH_BYTES)
        yield from _found(memoryview(piece.data)[start : start + length], piece.position + start - LENGTH_BYTES)
        at = start + length
    yield from _seals(piece, at, piece.end)


def _seals(piece: JournalPiece, at: int, end: int) -> Iterator[FoundRecord]:
    """Yield the seals in the paddings from ``at`` to ``end`` of the piece."""
    while at < end:
        _, size_bytes = PADDING.unpack_from(piece.data, at)
        seal = None if piece.nonce is None else journal.seal_at(piece.data, at, piece.nonce)
        if seal is not None:
            position = piece.position + at
            yield FoundRecord(
                RecordKind.SEAL, position, PADDING.size - LENGTH_BYTES + size_bytes, group=(seal.start, position)
            )
        at += PADDING.size + size_bytes


def _found(body: memoryview, offset: int) -> Iterator[FoundRecord]:
    ledger_id, entry_id = IDS.unpack_from(body)
    if entry_id >= 0:
        yield FoundRecord(RecordKind.ENTRY, offset, len(body), ledger_id, entry_id, entry=body)
        return
    special = journal.special_record(bytes(body))
    if not isinstance(special, LocatedRecord):
        yield _special(special, offset, len(body), ledger_id, entry_id)
        return
    columns = (special.ledger_ids, special.entry_ids, special.locations)
    for one_ledger, one_entry, location in zip(*(column.tolist() for column in columns), strict=True):
        place = (entry_log.file_name(location >> OFFSET_BITS), (location & OFFSET_MASK) - LENGTH_BYTES)
        yield FoundRecord(RecordKind.LOCATED, offset, len(body), one_ledger, one_entry, location=place)


def _special(special: object, offset: int, size_bytes: int, ledger_id: int, number: int) -> FoundRecord:
    match special:
        case MasterKeyRecord():
            return FoundRecord(RecordKind.MASTER_KEY, offset, size_bytes, ledger_id)
        case FenceRecord():
            return FoundRecord(RecordKind.FENCE, offset, size_bytes, ledger_id)
        case ExplicitLacRecord(packet=packet) if len(packet) >= LAC_PACKET_HEADER.size:
            lac = LAC_PACKET_HEADER.unpack_from(packet)[1]
            return FoundRecord(RecordKind.EXPLICIT_LAC, offset, size_bytes, ledger_id, lac=lac)
    return FoundRecord(RecordKind.OTHER, offset, size_bytes, ledger_id, number)
