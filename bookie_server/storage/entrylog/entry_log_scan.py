"""Scanning an entry log from beginning to end. Format: entry_log.py.

After a crash an entry log may hold anything: a header of zeros or garbage, zeros where blocks were never written, a
truncated record, garbage sizes (scenarios B4, B5). The scan finds every record that it can: after bytes that cannot be
a record it searches for the next place with two plausible records in a row, or one record and the end of the file. Ids
and lengths within an entry may be taken for a record, too: where the bytes behind the ids are not those of a client's
entry, four plausible records in a row are needed, and a client's entry that begins within the first of them takes
precedence. An entry log is *sound* only if nothing was skipped, apart from zeros in the last block of a log that was
written directly and not completed (entry_log_writer.py). A size of 0 or less is padding in Apache's entry logs; after
it the scan also searches byte by byte. The chunk size bounds memory, whatever a size field says.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import as_strided

from bk_spark.protocol.arrays import Bytes, Int64s
from bookie_server.storage.disk.files import BLOCK_BYTES, read_at
from bookie_server.storage.entrylog.entry_log import HEADER_BYTES, MAGIC
from bookie_server.storage.records import LENGTH_BYTES, MAX_ENTRY_ID, MAX_RECORD_BYTES, MIN_RECORD_BYTES, gather_int64

CHUNK_BYTES: Final = 1024 * 1024
_HEAD: Final = struct.Struct(">iqq")
#: The same, and what a client's entry has next: the last add confirmed and the length of the ledger.
_ENTRY_HEAD: Final = struct.Struct(">iqqqq")
_MAP_LEDGER: Final = -1
_MAP_ENTRY: Final = -2
#: Number of equal-sized records in a row from which numpy is faster.
_RUN: Final = 16
#: Records read one by one after no such run was found.
_SINGLES: Final = 64
#: Plausible records in a row that show where the first of them begins: of a client's entry, and of anything else.
_IN_A_ROW: Final = 2
_OTHERS_IN_A_ROW: Final = 4
#: Number of places tried after garbage in one entry log.
_MAX_TRIES: Final = 100_000


@dataclass(frozen=True, slots=True)
class FoundEntries:
    """Entries of an entry log in file order: ``offsets`` of the stored entries, and their ``sizes`` in bytes
    (without the size field)."""

    ledger_ids: Int64s
    entry_ids: Int64s
    offsets: Int64s
    sizes: Int64s

    def __len__(self) -> int:
        return len(self.ledger_ids)

    def select(self, which: Int64s) -> FoundEntries:
        """The entries at positions ``which``, in that order."""
        return FoundEntries(self.ledger_ids[which], self.entry_ids[which], self.offsets[which], self.sizes[which])


def joined(parts: list[FoundEntries]) -> FoundEntries:
    """Concatenate ``parts``."""
    return FoundEntries(
        *(
            np.concatenate([getattr(part, name) for part in parts]) if parts else np.empty(0, np.int64)
            for name in ("ledger_ids", "entry_ids", "offsets", "sizes")
        )
    )


class EntryLogScan:
    """Reads the log at ``path`` in steps. Blocking; one thread at a time."""

    def __init__(self, path: str) -> None:
        """Raises OSError."""
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._position = HEADER_BYTES
        self._tries = 0
        #: What is wrong with the log; "" if nothing so far.
        self.problem = ""
        try:
            self._size = os.fstat(self._fd).st_size
            header = read_at(self._fd, HEADER_BYTES, 0)
        except OSError:
            os.close(self._fd)
            raise
        if len(header) < HEADER_BYTES:
            self.problem = f"only {self._size} bytes: no whole header" if header else "0 bytes"
        elif header[: len(MAGIC)] != MAGIC:
            self.problem = f"the header does not begin with {MAGIC.decode()}"

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    @property
    def at_end(self) -> bool:
        """Whether there is nothing left for :meth:`step`."""
        return self._position >= self._size

    @property
    def position(self) -> int:
        """Bytes of the file scanned so far."""
        return min(self._position, self._size)

    def step(self) -> FoundEntries:
        """The entries of the next megabyte, approximately. Raises OSError."""
        chunk = read_at(self._fd, min(CHUNK_BYTES, self._size - self._position), self._position)
        if len(chunk) < min(CHUNK_BYTES, self._size - self._position):
            self._note(f"the file became shorter, at {self._position + len(chunk)}")
            self._position = self._size
            return joined([])
        starts, sizes, done = self._chain(chunk)
        base = self._position
        self._position += done
        if not starts:
            if not done:
                self._find_next()
            return joined([])
        all_starts, all_sizes = np.concatenate(starts), np.concatenate(sizes)
        ids = gather_int64(np.frombuffer(chunk, np.uint8), all_starts, 2)
        found = FoundEntries(ids[:, 0], ids[:, 1], all_starts + base, all_sizes)
        real = np.flatnonzero(found.ledger_ids >= 0)
        return found if len(real) == len(found) else found.select(real)

    def _chain(self, chunk: bytes) -> tuple[list[Int64s], list[Int64s], int]:
        """Consecutive records from the beginning of ``chunk``: where their entries begin in it, their sizes, and where
        the first record begins that is incomplete, not sound, or whose ids are not in the chunk."""
        starts: list[Int64s] = []
        sizes: list[Int64s] = []
        room = self._size - self._position
        at, singles = 0, 0
        single_starts: list[int] = []
        single_sizes: list[int] = []
        while at + _HEAD.size <= len(chunk):
            size, ledger_id, entry_id = _HEAD.unpack_from(chunk, at)
            if not _plausible(size, ledger_id, entry_id, room - at):
                break
            step = LENGTH_BYTES + size
            if singles == 0:
                count = _run_length(chunk, at, step)
                if count >= _RUN:
                    run = np.arange(at + LENGTH_BYTES, at + LENGTH_BYTES + count * step, step)
                    count = _plausible_ids(chunk, run)
                    starts += [np.array(single_starts, np.int64), run[:count]]
                    sizes += [np.array(single_sizes, np.int64), np.full(count, size, np.int64)]
                    single_starts, single_sizes = [], []
                    at += count * step
                    continue
                singles = _SINGLES
            singles -= 1
            single_starts.append(at + LENGTH_BYTES)
            single_sizes.append(size)
            at += step
        if single_starts:
            starts.append(np.array(single_starts, np.int64))
            sizes.append(np.array(single_sizes, np.int64))
        return starts, sizes, at

    def _find_next(self) -> None:
        """Skip to the next place where a record may begin: none begins at the current position."""
        if self._only_fills_up(self._position):
            self._position = self._size
            return
        self._note(f"no entry at {self._position}")
        at = self._position + 1
        chunk = read_at(self._fd, CHUNK_BYTES, at)
        found, found_end = None, self._size
        for place in (at + candidate for candidate in _candidates(chunk)):
            if place >= found_end:
                break
            is_clients = self._is_clients(place)
            end = self._end_if_sound(place, is_clients=is_clients) if is_clients or found is None else None
            if end is not None:
                # Within what is no client's entry, one that begins takes precedence.
                found, found_end = place, place if is_clients else end
                continue
            self._tries += 1
            if self._tries > _MAX_TRIES:
                found = self._size if found is None else found
                break
        if found is not None:
            self._position = found
            return
        # A record may begin in the last bytes; it is recognised together with the next chunk.
        whole = at + len(chunk) >= self._size
        self._position = self._size if whole else at + len(chunk) - _HEAD.size

    def _only_fills_up(self, position: int) -> bool:
        """Whether only the zeros follow with which a direct write fills up its last block."""
        rest = self._size - position
        if self._size % BLOCK_BYTES or rest >= BLOCK_BYTES:
            return False
        return not read_at(self._fd, rest, position).strip(b"\0")

    def _end_if_sound(self, position: int, *, is_clients: bool) -> int | None:
        """The end of the record that begins at ``position``, if it is sound and ends at the end of the file or before
        another one."""
        end = None
        for _ in range(_IN_A_ROW if is_clients else _OTHERS_IN_A_ROW):
            head = read_at(self._fd, _HEAD.size, position)
            if len(head) < _HEAD.size:
                return None
            size, ledger_id, entry_id = _HEAD.unpack(head)
            if not _plausible(size, ledger_id, entry_id, self._size - position):
                return None
            position += LENGTH_BYTES + size
            end = position if end is None else end
            if position == self._size or self._only_fills_up(position):
                break
        return end

    def _is_clients(self, position: int) -> bool:
        """Whether the record at ``position`` would begin as entries do that clients write."""
        head = read_at(self._fd, _ENTRY_HEAD.size, position)
        if len(head) < _ENTRY_HEAD.size:
            return False
        _, _, entry_id, last_add_confirmed, length = _ENTRY_HEAD.unpack(head)
        return bool(-1 <= last_add_confirmed < entry_id and length >= 0)

    def _note(self, problem: str) -> None:
        self.problem = self.problem or problem


def _plausible(size: int, ledger_id: int, entry_id: int, room: int) -> bool:
    if not MIN_RECORD_BYTES <= size <= MAX_RECORD_BYTES or LENGTH_BYTES + size > room:
        return False
    return (ledger_id >= 0 and 0 <= entry_id <= MAX_ENTRY_ID) or (ledger_id, entry_id) == (_MAP_LEDGER, _MAP_ENTRY)


def _run_length(chunk: bytes, at: int, step: int) -> int:
    """How many records from ``at`` on have the same size and lie completely in ``chunk``."""
    most = (len(chunk) - at) // step
    if most < _RUN:
        return 0
    data = np.frombuffer(chunk, np.uint8)
    fields = as_strided(data[at:], (most, LENGTH_BYTES), (step, 1))
    others = np.flatnonzero((fields != fields[0]).any(axis=1))
    return int(others[0]) if len(others) else most


def _plausible_ids(chunk: bytes, starts: Int64s) -> int:
    """How many of the entries at ``starts``, counted from the first, have plausible ids."""
    ids = gather_int64(np.frombuffer(chunk, np.uint8), starts, 2)
    good = (ids[:, 0] >= 0) & (ids[:, 1] >= 0) & (ids[:, 1] <= MAX_ENTRY_ID)
    good |= (ids[:, 0] == _MAP_LEDGER) & (ids[:, 1] == _MAP_ENTRY)
    wrong = np.flatnonzero(~good)
    return int(wrong[0]) if len(wrong) else len(starts)


def _candidates(chunk: bytes) -> list[int]:
    """Offsets in ``chunk`` where a record may begin, ascending."""
    data: Bytes = np.frombuffer(chunk, np.uint8)
    count = len(data) - _HEAD.size + 1
    if count <= 0 or not data.any():
        return []
    # Sizes up to 128 MiB and not 0, ids that are not negative, entry ids below 2**40.
    fits = (data[:count] <= 0x08) & (data[4 : count + 4] < 0x80)
    for place in (12, 13, 14):
        fits &= data[place : count + place] == 0
    sized = data[:count] | data[1 : count + 1] | data[2 : count + 2] | data[3 : count + 3]
    return np.flatnonzero(fits & (sized != 0)).tolist()
