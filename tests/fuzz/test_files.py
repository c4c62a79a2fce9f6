"""Files of a bookie: journals, entry logs, index files, marks, and the small files beside them."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import strategies as st

from bk_spark.protocol.errors import CorruptFileError
from bookie_server.bookie_status import read_status
from bookie_server.identity.dirty import may_have_lost
from bookie_server.identity.generation import new_generation, read_generation
from bookie_server.storage.entrylog import entry_log
from bookie_server.storage.entrylog.entry_log_reader import EntryLogReader
from bookie_server.storage.entrylog.entry_log_scan import EntryLogScan
from bookie_server.storage.index import index
from bookie_server.storage.index.index import IndexFiles, IndexHeader
from bookie_server.storage.index.index_page import page_of
from bookie_server.storage.index.index_pointers import highest_log_id, pointers_into
from bookie_server.storage.journal import journal
from bookie_server.storage.journal.journal import JournalItem
from bookie_server.storage.journal.journal_header import holds_records
from bookie_server.storage.journal.journal_reader import JournalReader
from bookie_server.storage.journal.log_mark import LogMark, read_mark, read_marks, write_marks
from bookie_server.storage.records import MAX_ENTRY_ID, Records
from tests.fuzz.damage import COUNT, EDGES, INT64, hostile
from tests.fuzz.fuzzing import fuzz
from tests.fuzz.guard import Refused, bounded, outcome
from tests.support.entry_log_building import record

#: A chunk of a journal, or of an entry log, is read at a time.
_CHUNKS_BYTES: Final = 8 * 1024 * 1024
_ID: Final = st.integers(0, 5) | st.integers(0, 2**40 - 1)
_RECORD: Final = st.one_of(
    st.builds(record, _ID, _ID, st.integers(32, 60)),
    st.builds(record, st.just(3), _ID, st.just(40)),
    st.builds(journal.master_key_record, _ID, st.binary(max_size=20)),
    st.builds(journal.fence_record, _ID),
    st.builds(journal.explicit_lac_record, _ID, st.binary(max_size=20)),
)
_GROUPS: Final = st.lists(st.lists(_RECORD, min_size=1, max_size=12).map(b"".join), max_size=4)


@contextmanager
def _file(name: str, content: bytes, size_bytes: int = 0) -> Iterator[Path]:
    """A file with this content and, behind it, a hole up to ``size_bytes``."""
    with tempfile.TemporaryDirectory(dir=_FAST, prefix="fuzz-") as directory:
        path = Path(directory, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        if size_bytes > len(content):
            os.truncate(path, size_bytes)
        yield path


#: Thousands of small files: in memory, if there is a place.
_FAST: Final = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _sealed(groups: list[bytes], zeros: int) -> bytes:
    """A journal of ours. Each content has a nonce of its own, as each file has."""
    nonce = hashlib.sha256(b"|".join(groups)).digest()[: journal.NONCE_BYTES]
    content = journal.file_header(nonce)
    for group in groups:
        content += group + journal.group_end(nonce, len(content), [group], len(group))
    return content + bytes(zeros)


def _apaches(groups: list[bytes], zeros: int, version: int) -> bytes:
    content = (journal.MAGIC + version.to_bytes(4, "big")).ljust(512 if version >= 5 else 8, b"\0")
    for group in groups:
        content += group
        if version >= 5:
            fill = -(len(content) + 8) % journal.ALIGNMENT_BYTES
            content += journal.PADDING.pack(journal.PADDING_MASK, fill) + bytes(fill)
    return content + bytes(zeros)


_ZEROS: Final = st.sampled_from([0, 0, 3, 512, 4096])
_OURS: Final = st.builds(_sealed, _GROUPS, _ZEROS)
_JOURNALS: Final = _OURS | st.builds(_apaches, _GROUPS, _ZEROS, st.integers(2, 6))


def _said(items: list[JournalItem]) -> list[Any]:
    """Each record of a journal."""
    said: list[Any] = []
    for item in items:
        if isinstance(item, Records):
            said += [bytes(item.data[a:b]) for a, b in zip(item.offsets[:-1], item.offsets[1:], strict=True)]
        else:
            said.append((type(item).__name__, *(getattr(item, name) for name in item.__slots__)))  # type: ignore[attr-defined]
    return said


def _read_journal(content: bytes, offset: int = 0, *, may_end_torn: bool = True) -> list[Any] | Refused:
    with _file("1.txn", content) as path:
        holds_records(str(path))
        reader = JournalReader(str(path), offset, may_end_torn=may_end_torn)
        read = outcome(lambda: list(reader.items()), CorruptFileError, names="1.txn", limit_bytes=_CHUNKS_BYTES)
        assert isinstance(read, Refused) or reader.position <= max(len(content), offset)
    return read if isinstance(read, Refused) else _said(read)


@fuzz(120, whole=_OURS, data=st.data())
def test_journals_of_ours(whole: bytes, data: st.DataObject) -> None:
    """What a damaged journal gives are the first of its records, unless its header is another one."""
    content = data.draw(hostile(st.just(whole) | _JOURNALS))
    read = _read_journal(content, may_end_torn=data.draw(st.booleans()))
    if not isinstance(read, Refused) and content[: journal.HEADER_BYTES] == whole[: journal.HEADER_BYTES]:
        written = _read_journal(whole)
        assert not isinstance(written, Refused)
        assert read == written[: len(read)]


@fuzz(80, content=hostile(_JOURNALS), offset=st.sampled_from([0, 8, 512, 1024]) | st.integers(-1, 4096) | COUNT)
def test_journals_from_a_mark(content: bytes, offset: int) -> None:
    _read_journal(content, max(offset, 0))


@fuzz(40, groups=_GROUPS, zeros=_ZEROS, version=st.integers(2, 6))
def test_journals_are_read_as_they_were_written(groups: list[bytes], zeros: int, version: int) -> None:
    ours, theirs = _read_journal(_sealed(groups, zeros)), _read_journal(_apaches(groups, zeros, version))
    assert ours == theirs
    assert not isinstance(ours, Refused)
    entries = [one for one in ours if isinstance(one, bytes)]
    assert b"".join(entries) == b"".join(one for one in entries if one in b"".join(groups))
    assert len(ours) == sum(map(_count, groups))


def _count(group: bytes) -> int:
    count = 0
    while group:
        group = group[4 + int.from_bytes(group[:4], "big") :]
        count += 1
    return count


# --- entry logs -------------------------------------------------------------------------------------

_ENTRY: Final = st.builds(record, _ID, _ID, st.integers(32, 60)) | st.builds(record, st.just(3), _ID, st.just(40))
_ENTRIES: Final = st.lists(_ENTRY, max_size=8) | st.builds(
    lambda one: one * 20, st.lists(_ENTRY, min_size=1, max_size=1)
)


def _rotated(entries: list[bytes], ledgers: dict[int, int]) -> bytes:
    body = b"".join(entries)
    at = entry_log.HEADER_BYTES + len(body)
    return entry_log.file_header(at if ledgers else 0, len(ledgers)) + body + entry_log.ledgers_map(ledgers)


_LOGS: Final = st.builds(_rotated, _ENTRIES, st.dictionaries(_ID, st.integers(1, 60), max_size=4))


@fuzz(120, content=hostile(_LOGS), hole=st.sampled_from([0, 0, 0, 2**20]))
def test_entry_logs(content: bytes, hole: int) -> None:
    """A scan ends, and gives entries that lie in the file with these ids; a map is believed only if it can be true."""
    with _file("a.log", content, hole) as path:
        size = path.stat().st_size
        sums = outcome(lambda: entry_log.read_ledgers_map(str(path)))
        if sums is not None:
            ledgers, sizes = sums  # type: ignore[misc]
            assert (np.diff(ledgers) > 0).all()
            assert ((sizes > 0) & (ledgers >= 0)).all()
        with bounded(_CHUNKS_BYTES):
            found = _scanned(path)
        content = path.read_bytes() if found else b""
        for ledger_id, entry_id, offset, stored_bytes in found:
            assert entry_log.HEADER_BYTES <= offset - 4 <= offset + stored_bytes <= size
            assert content[offset - 4 : offset + 16] == (
                stored_bytes.to_bytes(4, "big") + ledger_id.to_bytes(8, "big") + entry_id.to_bytes(8, "big")
            )
            assert 0 <= entry_id <= MAX_ENTRY_ID


def _scanned(path: Path) -> list[tuple[int, int, int, int]]:
    scan = EntryLogScan(str(path))
    found: list[tuple[int, int, int, int]] = []
    try:
        while not scan.at_end:
            part = scan.step()
            found += zip(
                *(c.tolist() for c in (part.ledger_ids, part.entry_ids, part.offsets, part.sizes)), strict=True
            )  # type: ignore[arg-type]
    finally:
        scan.close()
    return found


@fuzz(40, entries=_ENTRIES, ledgers=st.dictionaries(_ID, st.integers(1, 32), min_size=1, max_size=4))
def test_entry_logs_are_read_as_they_were_written(entries: list[bytes], ledgers: dict[int, int]) -> None:
    with _file("a.log", _rotated(entries, ledgers)) as path:
        sums = entry_log.read_ledgers_map(str(path))
        assert sums is not None
        assert dict(zip(*(column.tolist() for column in sums), strict=True)) == ledgers
        content = path.read_bytes()
        assert [content[at - 4 : at + size] for _, _, at, size in _scanned(path)] == entries


_PLACES: Final = st.lists(st.integers(1024, 1400) | st.integers(0, 2**32 - 1), min_size=1, max_size=5)


@fuzz(80, content=hostile(_LOGS), places=_PLACES, ids=st.lists(st.tuples(_ID, _ID), min_size=5, max_size=5))
def test_entries_at_locations(content: bytes, places: list[int], ids: list[tuple[int, int]]) -> None:
    """An entry is read only where it is: with its ids, and whole."""
    with _file("a.log", content) as path:
        reader = EntryLogReader([str(path.parent)])
        locations = np.array(sorted(10 << entry_log.OFFSET_BITS | place for place in places), np.int64)
        ledger_ids, entry_ids = (np.array(column[: len(places)], np.int64) for column in zip(*ids, strict=True))
        with bounded(_CHUNKS_BYTES):
            found = reader.read(ledger_ids, entry_ids, locations, 2**20, may_wait=True)
            singles = [reader.read_one(*map(int, one)) for one in zip(ledger_ids, entry_ids, locations, strict=True)]
        reader.close()
        for i, size in enumerate(found.sizes.tolist()):
            place = int(locations[i]) & entry_log.OFFSET_MASK
            if size >= 0:
                assert bytes(found.entry(i)) == content[place : place + size]
                assert content[place : place + 8] == int(ledger_ids[i]).to_bytes(8, "big")
            assert singles[i] is None or bytes(singles[i]) == content[place : place + size]  # type: ignore[arg-type]


_LAST_IDS: Final = st.one_of(
    st.integers(0, 2**31 - 1).map(lambda number: b"%x\n" % number),
    st.sampled_from([b"f" * 20, b"-5\n", b"0x5\n", b"1_0\n", b" 7 \n", b"\n\n"]),
)


@fuzz(40, content=hostile(_LAST_IDS))
def test_ids_of_entry_logs(content: bytes) -> None:
    with _file("lastId", content) as path:
        found = outcome(lambda: entry_log.last_log_id(str(path.parent)), CorruptFileError, names="lastId")
        assert isinstance(found, Refused) or -1 <= found < 2**32


# --- index files ------------------------------------------------------------------------------------

_HEADERS: Final = st.builds(
    IndexHeader, st.binary(max_size=30), st.booleans(), st.none() | st.binary(min_size=16, max_size=40), st.booleans()
)
_SLOTS: Final = st.lists(st.just(0) | COUNT | INT64, max_size=20).map(lambda slots: np.array(slots, ">i8").tobytes())
_INDEXES: Final = st.builds(lambda header, slots: header.encode() + slots, _HEADERS, _SLOTS)


@fuzz(80, content=hostile(_HEADERS.map(IndexHeader.encode)))
def test_headers_of_index_files(content: bytes) -> None:
    found = outcome(lambda: IndexHeader.decode(content[:1024], "7.idx"), CorruptFileError, names="7.idx")
    if not isinstance(found, Refused):
        assert IndexHeader.decode(found.encode(), "7.idx") == found
        assert repr(found.master_key) not in repr(found)


@fuzz(30, header=_HEADERS)
def test_headers_are_read_as_they_were_written(header: IndexHeader) -> None:
    assert IndexHeader.decode(header.encode(), "7.idx") == header


@fuzz(100, content=hostile(_INDEXES), hole=st.sampled_from([0, 0, 9_000, 2**40]))
def test_index_files(content: bytes, hole: int) -> None:
    """Each way to read the locations finds the same ones, and a hole costs nothing."""
    with _file(index.relative_path(7), content, hole) as path:
        files = IndexFiles([str(path.parents[2])], list)
        outcome(lambda: files.read_header(7), CorruptFileError, names="7.idx")
        outcome(lambda: files.read_header(7, replaying=True), CorruptFileError, names="7.idx")
        with bounded(_CHUNKS_BYTES):
            ids = files.entry_ids(7)
            assert files.last_entry(7) == (ids[-1] if len(ids) else -1)
            locations = files.read_slots(7, ids) if len(ids) else ids
            page = page_of(files.read_page(7, 0, may_wait=True))
            pointed = [ids for log_id in np.unique(locations >> 32) for ids, _ in pointers_into(log_id, str(path))]
            highest = highest_log_id(str(path), 2**31 - 1)
        files.close()
        assert locations.all()
        used, at = page.used()
        assert used.tolist() == [entry_id for entry_id in ids.tolist() if entry_id < index.PAGE_SLOTS]
        assert at.tolist() == locations[: len(used)].tolist()
        assert sorted(np.concatenate(pointed).tolist()) == ids.tolist() if pointed else not len(ids)
        assert highest == max([-1, *(log for log in (locations >> 32).tolist() if log < 2**31)])


@fuzz(50, data=_SLOTS | st.binary(max_size=9_000))
def test_pages_of_index_files(data: bytes) -> None:
    page = outcome(lambda: page_of(data))
    slots = np.frombuffer(data[: min(len(data), index.PAGE_BYTES) // 8 * 8], ">i8")
    assert [page.get_one(n) for n in range(len(slots))] == slots.tolist()  # type: ignore[union-attr]


# --- marks, and small files -------------------------------------------------------------------------


@fuzz(40, mark=st.builds(LogMark, COUNT, COUNT), data=st.data())
def test_marks(mark: LogMark, data: st.DataObject) -> None:
    with _file("lastMark", b"") as path:
        write_marks([str(path.parent)], [mark])
        assert read_marks([str(path.parent)], 1) == [mark]
        content = data.draw(hostile(st.just(path.read_bytes())))
        path.write_bytes(content)
        found = outcome(lambda: read_mark(str(path)))
        assert (found is None) == (len(content) < 16)


_DIRTY: Final = [b"", b"1\njournalSyncData=false\nbootId=6e0b5ce1-32ee-4b5c\n", b"1\njournalSyncData=true\nbootId=\n"]
_SMALL: Final[dict[str, tuple[list[bytes], Callable[[str], Any]]]] = {
    "DIRTY": (_DIRTY, lambda directory: may_have_lost([directory])),
    "GENERATION": ([f"1\n{new_generation()}\n".encode()], read_generation),
    "BOOKIE_STATUS": (
        [b"1,READ_WRITE,1700000000000\n", b"1,READ_ONLY,%d,false\n" % EDGES[-1]],
        lambda d: read_status([d]),
    ),
}


@pytest.mark.parametrize("name", _SMALL)
@fuzz(40, data=st.data())
def test_small_files(name: str, data: st.DataObject) -> None:
    valid, read = _SMALL[name]
    with _file(name, data.draw(hostile(st.sampled_from(valid)))) as path:
        outcome(lambda: read(str(path.parent)), CorruptFileError, names=name)
