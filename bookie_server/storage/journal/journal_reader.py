"""Reading journals back, and telling a torn tail from damage. Layout: journal.py.

The writer writes one group at a time and starts the next after the sync of the last. This gives the following rules.

*A journal of this bookie* (sealed groups): a group counts if its seal is right and is skipped as a whole if not. If it
is the last group, none of it was acknowledged. A seal of a later group proves that the bad group was synced and
acknowledged: that is damage. Such a seal must have the file's nonce and a valid checksum of its own, because the bytes
after the bad group may be a client's payload or a torn seal. The later group need not be complete: the bad group was
synced before any part of a later group was written. A copied seal of the same file proves nothing wrong: it can only
belong to an earlier group.

*A journal of Apache's bookie* (no seals) is read as Apache's bookie reads it, up to the first bytes that are not a
record. If a complete padding followed by a plausible record comes later, that counts as damage. This is a heuristic:
payloads can look like that, and Apache's bookie may write a batch before it has synced the previous one. The format
allows nothing better.

*Marks set by Apache's bookie*, in its journals and in ours: at start it reads to the first length of zero or the end of
the file, and marks where its reader stopped. If preallocated zeros follow, that is four bytes after our last group, and
four more after each start. It can also be anywhere inside a torn group. The bytes after such a mark are what it
skipped. In our journals the seals still help: a seal of a later group proves damage, and a complete group around the
mark proves that the mark is wrong. In Apache's journals the reader does not search: no batch of Apache's begins at such
a place.

*A torn end* is allowed in the newest journal that holds records, and in one followed by a journal of Apache's. Our
start cuts it off before the next journal begins (see replay.py); Apache's leaves it. After the records of any other
journal only zeros may follow.

*A journal whose groups were not synced one by one* (``journalSyncData=false``) may lose any of its last groups in a
power failure, yet keep later ones. It is also read up to the first bytes that are not a record.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import crc32c
import numpy as np

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.errors import CorruptFileError
from bookie_server.storage.disk.files import read_at
from bookie_server.storage.journal import journal
from bookie_server.storage.journal.journal import I32, IDS, PADDING, PADDING_MASK, SEAL, JournalItem
from bookie_server.storage.journal.journal_header import REMEDY, JournalHeader, only_zeros, read_header
from bookie_server.storage.records import LENGTH_BYTES, MAX_RECORD_BYTES, MIN_RECORD_BYTES, Records, gather_int64

_CHUNK_BYTES: Final = 4 * 1024 * 1024
_PADDING_MARK: Final = I32.pack(PADDING_MASK)
#: After this many consecutive records of one length, look ahead with numpy.
_UNIFORM_RUN: Final = 8


@dataclass(frozen=True, slots=True)
class JournalPiece:
    """Whole records and paddings of a journal: ``data`` from ``position`` in the file, up to byte ``end`` of ``data``.

    Record ``i`` begins at ``starts[i]`` of ``data``, after its length, and has ``lengths[i]`` bytes. What lies between
    records is padding. With a ``nonce``, each padding begins with a right seal.
    """

    position: int
    data: bytes
    end: int
    starts: Int64s
    lengths: Int64s
    nonce: bytes | None


class JournalReader:
    """Reads one journal file from ``offset`` (0: its beginning) to its end.

    ``may_end_torn``: no later journal holds records, or the next one that does is Apache's. After :meth:`items` or
    :meth:`pieces` is exhausted, ``position`` is where the records end, and ``torn`` says whether something follows that
    is not a record.
    Raises CorruptFileError (its text names file and offset) for an unknown header, damage, or an impossible offset.
    """

    def __init__(self, path: str, offset: int = 0, *, may_end_torn: bool = True) -> None:
        self.path = path
        self._may_end_torn = may_end_torn
        self._mark = offset
        self._nonce: bytes | None = None
        self.position = offset
        self.torn = False
        #: Whether each group was synced before the next was written. Then only the last one can be torn.
        self.synced_groups = True

    def items(self) -> Iterator[JournalItem]:
        """Yield what the records mean, in order; neighbouring entries are joined."""
        for piece in self.pieces():
            if len(piece.starts):
                yield from _items_of(piece.data, piece.starts, piece.lengths)

    def pieces(self) -> Iterator[JournalPiece]:
        """Yield the file's records as they lie there."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            size = os.fstat(fd).st_size
            header = read_header(fd, self.path, size, self.position)
            self._check_start(header, size)
            if header is None:
                return
            self._nonce, self.synced_groups = header.nonce, header.synced_groups
            self.position = max(self.position, header.first_record)
            yield from self._read_pieces(fd, size)
            self._check_end(fd, size)
        finally:
            os.close(fd)

    def _check_start(self, header: JournalHeader | None, size: int) -> None:
        """Check that the mark is within the file. Apache's reader counted an unwritten header as records."""
        end = journal.HEADER_BYTES - 1 if header is None else size
        if self.position > end:
            raise CorruptFileError(
                f"lastMark names offset {self.position} of journal {self.path}, which ends at "
                f"{0 if header is None else size}: acknowledged entries may be missing; {REMEDY}"
            )

    def _read_pieces(self, fd: int, size: int) -> Iterator[JournalPiece]:
        want = _CHUNK_BYTES
        while self.position < size:
            data = read_at(fd, min(want, size - self.position), self.position)
            cut = _cut(data, self.position, self._nonce)
            if cut.consumed:
                yield JournalPiece(self.position, data, cut.consumed, cut.starts, cut.lengths, self._nonce)
            self.position += cut.consumed
            if cut.consumed:
                want = _CHUNK_BYTES
            elif len(data) < cut.needed <= size - self.position:
                want = max(cut.needed, 2 * len(data))
            else:
                return

    def _check_end(self, fd: int, size: int) -> None:
        self.torn = not only_zeros(fd, self.position, size)
        if not self.torn:
            return
        if not self._may_end_torn:
            raise CorruptFileError(
                f"journal {self.path} is damaged at offset {self.position}: no valid record follows, but later "
                f"journals have records; {REMEDY}"
            )
        later = self._find_batch(fd, size) if self._nonce is None else self._find_group(fd, size)
        if later is not None:
            raise CorruptFileError(
                f"journal {self.path} is damaged at offset {self.position}: no valid record follows, but "
                f"records synced later begin at offset {later}; {REMEDY}"
            )

    def _find_batch(self, fd: int, size: int) -> int | None:
        """Where a batch of Apache's seems to begin after ``position``; None if there is none or no search is made."""
        if self._mark % journal.ALIGNMENT_BYTES:
            return None
        found = (_start_after(fd, at, size) for at in _find(fd, _PADDING_MARK, self.position, size))
        return next((start for start in found if start is not None and start > self.position), None)

    def _find_group(self, fd: int, size: int) -> int | None:
        """Where a group of ours begins that was written after the group at, or around, ``position`` was synced; None if
        there is none. Raises CorruptFileError if ``position`` is inside a complete group."""
        assert self._nonce is not None
        for at in _find(fd, self._nonce, self.position, size):
            end = at - PADDING.size
            seal = journal.seal_at(read_at(fd, PADDING.size + SEAL.size, end), 0, self._nonce)
            if seal is None:
                continue
            if seal.start > self.position and self.synced_groups:
                return seal.start
            if seal.start < self.position and _checksum(fd, seal.start, end) == seal.checksum:
                raise CorruptFileError(
                    f"lastMark names offset {self.position} of journal {self.path}, which is in the middle of the "
                    f"records from {seal.start} to {end}: the mark is wrong, not the journal. Restore lastMark from a "
                    "backup in every ledger directory, or move it elsewhere, so that all journals are replayed"
                )
        return None


def _checksum(fd: int, position: int, end: int) -> int:
    checksum = 0
    while position < end:
        data = read_at(fd, min(_CHUNK_BYTES, end - position), position)
        if not data:
            break
        checksum = crc32c.crc32c(data, checksum)
        position += len(data)
    return checksum


def _find(fd: int, wanted: bytes, position: int, size: int) -> Iterator[int]:
    """Offsets of ``wanted`` in the file, from ``position`` on."""
    while position < size:
        data = read_at(fd, min(_CHUNK_BYTES, size - position), position)
        found = data.find(wanted)
        while found >= 0:
            yield position + found
            found = data.find(wanted, found + 1)
        if len(data) < len(wanted) or position + len(data) >= size:
            return
        position += len(data) - len(wanted) + 1


@dataclass(frozen=True, slots=True)
class _Cut:
    """Complete records in a piece of a journal: where they start (after the length) and their lengths, without padding;
    the bytes they take; and how many bytes the piece needs to hold more (0: no more can follow)."""

    starts: Int64s
    lengths: Int64s
    consumed: int
    needed: int


def _cut(data: bytes, base: int, nonce: bytes | None) -> _Cut:
    """Cut ``data``, which starts at ``base`` in its file. With a ``nonce``, only complete groups with a right seal
    count."""
    starts: list[int] = []
    lengths: list[int] = []
    position, end, group_start, groups_records = 0, len(data), 0, 0
    needed = 0
    previous, equal = -1, 0
    array = np.frombuffer(data, np.uint8)
    while True:
        if end - position < PADDING.size:
            needed = position + PADDING.size
            break
        length, second = PADDING.unpack_from(data, position)
        if length == PADDING_MASK:
            if not 0 <= second < journal.MAX_PADDING_BYTES:
                break
            if end - position < PADDING.size + second:
                needed = position + PADDING.size + second
                break
            if nonce is not None and not _seal_is_right(data, base, group_start, position, nonce):
                break
            position += PADDING.size + second
            group_start, groups_records = position, len(starts)
            continue
        if not MIN_RECORD_BYTES <= length <= MAX_RECORD_BYTES or second < 0:  # second: half of the ledger id
            break
        if end - position < LENGTH_BYTES + length:
            needed = position + LENGTH_BYTES + length
            break
        equal = equal + 1 if length == previous else 0
        previous = length
        count = 1
        stride = LENGTH_BYTES + length
        if equal >= _UNIFORM_RUN:
            most = (end - position) // stride
            rows = array[position : position + most * stride].reshape(most, stride)
            good = (rows[:, :LENGTH_BYTES] == rows[0, :LENGTH_BYTES]).all(axis=1) & (rows[:, LENGTH_BYTES] < 0x80)
            count = most if good.all() else int(np.argmin(good))
            equal = 0
        starts.extend(range(position + LENGTH_BYTES, position + count * stride, stride))
        lengths.extend([length] * count)
        position += count * stride
    if nonce is not None:
        del starts[groups_records:], lengths[groups_records:]
        position = group_start
    return _Cut(np.array(starts, np.int64), np.array(lengths, np.int64), position, needed)


def _seal_is_right(data: bytes, base: int, group_start: int, position: int, nonce: bytes) -> bool:
    seal = journal.seal_at(data, position, nonce)
    if seal is None or seal.start != base + group_start:
        return False
    return bool(crc32c.crc32c(memoryview(data)[group_start:position]) == seal.checksum)


def _items_of(data: bytes, starts: Int64s, lengths: Int64s) -> Iterator[JournalItem]:
    """Decode the records at ``starts``, in order; adjacent data records are joined."""
    array = np.frombuffer(data + bytes(24), np.uint8)  # records may be shorter than the 24 bytes gathered
    ids = gather_int64(array, starts, 3)
    special = np.flatnonzero(ids[:, 1] < 0).tolist()
    first = 0
    for i in [*special, len(starts)]:
        if i > first:
            yield _data_records(data, starts[first:i], lengths[first:i], ids[first:i])
        if i < len(starts):
            start = int(starts[i])
            item = journal.special_record(data[start : start + int(lengths[i])])
            if item is not None:
                yield item
        first = i + 1


def _data_records(data: bytes, starts: Int64s, lengths: Int64s, ids: Int64s) -> Records:
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(lengths + LENGTH_BYTES, out=offsets[1:])
    gaps = np.flatnonzero(starts[1:] != starts[:-1] + lengths[:-1] + LENGTH_BYTES) + 1
    view = memoryview(data)
    edges = [0, *gaps.tolist(), len(starts)]
    parts = [
        view[int(starts[a]) - LENGTH_BYTES : int(starts[b - 1] + lengths[b - 1])] for a, b in itertools.pairwise(edges)
    ]
    joined = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
    lacs = np.where(lengths >= 24, ids[:, 2], -1)
    return Records(ids[:, 0].copy(), ids[:, 1].copy(), lacs, joined, offsets)


def _start_after(fd: int, at: int, size: int) -> int | None:
    """Where a group begins after a valid padding without a seal at ``at``; None if either is missing."""
    head = read_at(fd, PADDING.size, at)
    if len(head) < PADDING.size:
        return None
    _, pad = PADDING.unpack(head)
    end: int = at + PADDING.size + pad
    if not 0 <= pad < journal.MAX_PADDING_BYTES or end % journal.ALIGNMENT_BYTES or end >= size:
        return None
    if read_at(fd, pad, at + PADDING.size).strip(b"\0"):
        return None
    head = read_at(fd, LENGTH_BYTES + IDS.size, end)
    if len(head) < LENGTH_BYTES + IDS.size:
        return None
    (length,) = I32.unpack_from(head)
    ledger_id, entry_id = IDS.unpack_from(head, LENGTH_BYTES)
    special = (journal.MASTER_KEY_RECORD, journal.FENCE_RECORD, journal.EXPLICIT_LAC_RECORD)
    if not MIN_RECORD_BYTES <= length <= min(MAX_RECORD_BYTES, size - end):
        return None
    return end if ledger_id >= 0 and (entry_id >= 0 or entry_id in special) else None
