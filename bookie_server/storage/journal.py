"""Journal files in Apache's format: layout, and reading them back. Source: compatibility facts §5.2, §5.3.

``<journal dir>/current/<hex id>.txn``::

    header    "BKLG", i32 version; from version 5 on padded with zeros to 512 bytes, before that 8 bytes
    record    i32 length, bytes
    padding   i32 -0x100, i32 padLength, padLength zeros: before each flush (version 5 and up), so that a
              flush ends at a multiple of 512; where fewer than 8 bytes remain it runs to the boundary after
    the rest  zeros (space allocated in advance), or the end of the file

A record begins with ledger id and entry id; entry ids below zero say what else it is::

    -0x1000   master key of the ledger: i32 length, key
    -0x2000   the ledger is fenced: nothing follows
    -0x8000   explicit LAC: i32 length, LAC packet

Records carry no checksum, so the end of a journal is found by structure alone. Where records stop making sense the
file has either a torn tail (the last group of a killed process: never answered) or damage in the middle (entries
behind it were answered and must not be dropped silently). The writer has at most one group under way, and each
group ends with padding at a multiple of 512. So: a complete padding followed by a plausible record, beyond the
place where reading stopped, proves that a later group was written after the broken one had been synced, which is
damage. Anything else is a torn tail. In a file that is not the last one only zeros may follow the records.
"""

from __future__ import annotations

import itertools
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from bk_spark.protocol.errors import CorruptFileError
from bookie_server.storage.files import read_at
from bookie_server.storage.records import (
    LENGTH_BYTES,
    MAX_RECORD_BYTES,
    MIN_RECORD_BYTES,
    Int64s,
    Records,
    gather_int64,
)

MAGIC: Final = b"BKLG"
VERSION: Final = 6
ALIGNMENT_BYTES: Final = 512
HEADER_BYTES: Final = 512
_OLD_HEADER_BYTES: Final = 8
_PADDED_FROM_VERSION: Final = 5
_KNOWN_VERSIONS: Final = range(2, 7)

MASTER_KEY_RECORD: Final = -0x1000
FENCE_RECORD: Final = -0x2000
EXPLICIT_LAC_RECORD: Final = -0x8000
_PADDING_MASK: Final = -0x100

_CHUNK_BYTES: Final = 4 * 1024 * 1024
_I32: Final = struct.Struct(">i")
_IDS: Final = struct.Struct(">qq")
_PADDING: Final = struct.Struct(">ii")
_PADDING_MARK: Final = _I32.pack(_PADDING_MASK)
#: From this many records of one length in a row on, look ahead with numpy.
_UNIFORM_RUN: Final = 8
_FILE_NAME: Final = re.compile(r"([0-9a-f]{1,16})\.txn")


@dataclass(frozen=True, slots=True, order=True)
class LogMark:
    """A position in the journals: everything before it is durable in entry logs and indexes as well."""

    journal_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class MasterKeyRecord:
    ledger_id: int
    master_key: bytes

    def __repr__(self) -> str:
        return f"MasterKeyRecord(ledger_id={self.ledger_id})"


@dataclass(frozen=True, slots=True)
class FenceRecord:
    ledger_id: int


@dataclass(frozen=True, slots=True)
class ExplicitLacRecord:
    ledger_id: int
    packet: bytes


JournalItem = Records | MasterKeyRecord | FenceRecord | ExplicitLacRecord


def file_name(journal_id: int) -> str:
    return f"{journal_id:x}.txn"


def journal_ids(directory: str) -> list[int]:
    """Ids of the journals in ``directory`` (a ``current``), ascending."""
    matches = (_FILE_NAME.fullmatch(name) for name in os.listdir(directory))
    return sorted(int(match[1], 16) for match in matches if match)


def file_header(version: int = VERSION) -> bytes:
    header = MAGIC + _I32.pack(version)
    return header.ljust(HEADER_BYTES, b"\0") if version >= _PADDED_FROM_VERSION else header


def padding(position: int) -> bytes:
    """The padding record that brings ``position`` to a multiple of 512; empty where it is one."""
    remaining = -position % ALIGNMENT_BYTES
    if remaining == 0:
        return b""
    pad = remaining - _PADDING.size if remaining >= _PADDING.size else ALIGNMENT_BYTES + remaining - _PADDING.size
    return _PADDING.pack(_PADDING_MASK, pad) + bytes(pad)


def master_key_record(ledger_id: int, master_key: bytes) -> bytes:
    return _record(ledger_id, MASTER_KEY_RECORD, _I32.pack(len(master_key)) + master_key)


def fence_record(ledger_id: int) -> bytes:
    return _record(ledger_id, FENCE_RECORD, b"")


def explicit_lac_record(ledger_id: int, packet: bytes) -> bytes:
    return _record(ledger_id, EXPLICIT_LAC_RECORD, _I32.pack(len(packet)) + packet)


def _record(ledger_id: int, kind: int, rest: bytes) -> bytes:
    return _I32.pack(_IDS.size + len(rest)) + _IDS.pack(ledger_id, kind) + rest


class JournalReader:
    """Reads one journal file from ``offset`` (0: its beginning) to its end.

    ``is_last`` says that no journal follows it; only the last one may end torn. After :meth:`items`
    was exhausted, ``position`` is where the records end and ``torn`` whether anything was cut off there.
    Raises CorruptFileError (file and offset in its text) for an unknown header or damage.
    """

    def __init__(self, path: str, offset: int = 0, *, is_last: bool = True) -> None:
        self._path = path
        self._is_last = is_last
        self.position = offset
        self.torn = False

    def items(self) -> Iterator[JournalItem]:
        fd = os.open(self._path, os.O_RDONLY)
        try:
            size = os.fstat(fd).st_size
            start = self._read_header(fd, size)
            if start is None:
                return
            self.position = max(self.position, start)
            yield from self._read_records(fd, size)
            self._check_end(fd, size)
        finally:
            os.close(fd)

    def _read_header(self, fd: int, size: int) -> int | None:
        """Where the records begin; None for a file whose creation was cut short (it holds nothing)."""
        header = read_at(fd, _OLD_HEADER_BYTES, 0)
        whole = HEADER_BYTES if len(header) == _OLD_HEADER_BYTES else size
        if self._is_last and (not header.strip(b"\0") or (size < whole and MAGIC.startswith(header[:4]))):
            self.torn = bool(header)
            self.position = size
            return None
        if header[:4] != MAGIC or len(header) < _OLD_HEADER_BYTES:
            raise CorruptFileError(f"journal {self._path} does not begin with {MAGIC.decode()}: not a journal file")
        (version,) = _I32.unpack_from(header, 4)
        if version not in _KNOWN_VERSIONS:
            raise CorruptFileError(
                f"journal {self._path} has format version {version}; known are {_KNOWN_VERSIONS.start} to "
                f"{_KNOWN_VERSIONS.stop - 1}"
            )
        return HEADER_BYTES if version >= _PADDED_FROM_VERSION else _OLD_HEADER_BYTES

    def _read_records(self, fd: int, size: int) -> Iterator[JournalItem]:
        want = _CHUNK_BYTES
        while self.position < size:
            data = read_at(fd, min(want, size - self.position), self.position)
            starts, lengths, consumed, needed = _cut(data)
            if len(starts):
                yield from _items_of(data, starts, lengths)
            self.position += consumed
            if consumed:
                want = _CHUNK_BYTES
            elif needed > len(data) and needed <= size - self.position:
                want = needed
            else:
                return

    def _check_end(self, fd: int, size: int) -> None:
        """Tell a clean end or a torn tail at ``position`` from damage (see the top of the module)."""
        rest_is_zero = _only_zeros(fd, self.position, size)
        self.torn = not rest_is_zero
        if rest_is_zero:
            return
        if not self._is_last:
            raise CorruptFileError(
                f"journal {self._path} is damaged at offset {self.position}: what follows is no record, and "
                "later journals hold entries; restore the file, or remove the bookie's data and re-replicate"
            )
        later = _find_later_group(fd, self.position, size)
        if later is not None:
            raise CorruptFileError(
                f"journal {self._path} is damaged at offset {self.position}: what follows is no record, but "
                f"entries synced later begin at offset {later}; restore the file, or remove the bookie's data and "
                "re-replicate"
            )


def _cut(data: bytes) -> tuple[Int64s, Int64s, int, int]:
    """Starts (after the length) and lengths of the whole records in ``data``, without padding; the bytes
    consumed; and how many bytes the record behind them needs (0: what is there is no record)."""
    starts: list[int] = []
    lengths: list[int] = []
    position, end = 0, len(data)
    needed = 0
    previous, equal = -1, 0
    array = np.frombuffer(data, np.uint8)
    while True:
        if end - position < LENGTH_BYTES:
            needed = end - position + LENGTH_BYTES
            break
        (length,) = _I32.unpack_from(data, position)
        if length == _PADDING_MASK:
            if end - position < _PADDING.size:
                needed = end - position + _PADDING.size
                break
            _, pad = _PADDING.unpack_from(data, position)
            if not 0 <= pad < 2 * ALIGNMENT_BYTES:
                break
            if end - position < _PADDING.size + pad:
                needed = _PADDING.size + pad
                break
            position += _PADDING.size + pad
            continue
        if not MIN_RECORD_BYTES <= length <= MAX_RECORD_BYTES:
            break
        if end - position < LENGTH_BYTES + length:
            needed = LENGTH_BYTES + length
            break
        if data[position + LENGTH_BYTES] & 0x80:  # a ledger id below zero: garbage
            break
        equal = equal + 1 if length == previous else 0
        previous = length
        count = 1
        stride = LENGTH_BYTES + length
        if equal >= _UNIFORM_RUN:
            most = (end - position) // stride
            rows = array[position : position + most * stride].reshape(most, stride)
            good = (rows[:, :4] == rows[0, :4]).all(axis=1) & (rows[:, 4] < 0x80)
            count = most if good.all() else int(np.argmin(good))
            equal = 0
        starts.extend(range(position + LENGTH_BYTES, position + count * stride, stride))
        lengths.extend([length] * count)
        position += count * stride
    return np.array(starts, np.int64), np.array(lengths, np.int64), position, needed


def _items_of(data: bytes, starts: Int64s, lengths: Int64s) -> Iterator[JournalItem]:
    """What the records at ``starts`` are, in order; neighbouring data records joined."""
    array = np.frombuffer(data + bytes(24), np.uint8)  # records may be shorter than the 24 bytes gathered
    ids = gather_int64(array, starts, 3)
    special = np.flatnonzero(ids[:, 1] < 0).tolist()
    first = 0
    for i in [*special, len(starts)]:
        if i > first:
            yield _data_records(data, starts[first:i], lengths[first:i], ids[first:i])
        if i < len(starts):
            item = _special_record(data, int(starts[i]), int(lengths[i]))
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


def _special_record(data: bytes, start: int, length: int) -> JournalItem | None:
    ledger_id, kind = _IDS.unpack_from(data, start)
    rest = data[start + _IDS.size : start + length]
    if kind == FENCE_RECORD:
        return FenceRecord(ledger_id)
    if kind not in (MASTER_KEY_RECORD, EXPLICIT_LAC_RECORD) or len(rest) < 4:
        return None
    (size,) = _I32.unpack_from(rest)
    if not 0 <= size <= len(rest) - 4:
        return None
    content = rest[4 : 4 + size]
    return MasterKeyRecord(ledger_id, content) if kind == MASTER_KEY_RECORD else ExplicitLacRecord(ledger_id, content)


def _only_zeros(fd: int, position: int, size: int) -> bool:
    while position < size:
        data = read_at(fd, min(_CHUNK_BYTES, size - position), position)
        if data.strip(b"\0"):
            return False
        position += len(data)
    return True


def _find_later_group(fd: int, position: int, size: int) -> int | None:
    """Offset of a group that was written after the group in which ``position`` lies, or None."""
    overlap = 2 * ALIGNMENT_BYTES
    while position < size:
        data = read_at(fd, min(_CHUNK_BYTES, size - position), position)
        at = data.find(_PADDING_MARK)
        while at >= 0:
            found = _group_after_padding(fd, position + at, size)
            if found is not None:
                return found
            at = data.find(_PADDING_MARK, at + 1)
        if position + len(data) >= size:
            return None
        position += max(len(data) - overlap, 1)
    return None


def _group_after_padding(fd: int, at: int, size: int) -> int | None:
    """Where a group begins that follows a sound padding at ``at``; None if there is no such thing."""
    head = read_at(fd, _PADDING.size, at)
    if len(head) < _PADDING.size:
        return None
    _, pad = _PADDING.unpack(head)
    end: int = at + _PADDING.size + pad
    if not 0 <= pad < 2 * ALIGNMENT_BYTES or end % ALIGNMENT_BYTES or end >= size:
        return None
    if read_at(fd, pad, at + _PADDING.size).strip(b"\0"):
        return None
    head = read_at(fd, LENGTH_BYTES + _IDS.size, end)
    if len(head) < LENGTH_BYTES + _IDS.size:
        return None
    (length,) = _I32.unpack_from(head)
    ledger_id, entry_id = _IDS.unpack_from(head, LENGTH_BYTES)
    plausible_id = entry_id >= 0 or entry_id in (MASTER_KEY_RECORD, FENCE_RECORD, EXPLICIT_LAC_RECORD)
    if MIN_RECORD_BYTES <= length <= min(MAX_RECORD_BYTES, size - end) and ledger_id >= 0 and plausible_id:
        return end
    return None
