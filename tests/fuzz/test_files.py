"""Files of a bookie: entry logs, index files, marks, and the small files beside them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import strategies as st

from bk_spark.protocol.errors import CorruptFileError
from bookie_server.bookie_status import read_status
from bookie_server.identity.dirty import boot_id, may_have_lost
from bookie_server.identity.generation import read_generation
from bookie_server.identity.registration import BookieMode
from bookie_server.storage.entrylog import entry_log
from bookie_server.storage.entrylog.entry_log_reader import EntryLogReader
from bookie_server.storage.entrylog.entry_log_scan import EntryLogScan
from bookie_server.storage.index import index
from bookie_server.storage.index.index import IndexFiles, IndexHeader
from bookie_server.storage.index.index_page import page_of
from bookie_server.storage.index.index_pointers import highest_log_id, pointers_into
from bookie_server.storage.journal.log_mark import LogMark, read_mark, read_marks, write_marks
from bookie_server.storage.records import MAX_ENTRY_ID
from tests.fuzz.damage import COUNT, INT64, hostile
from tests.fuzz.fuzzing import fuzz
from tests.fuzz.guard import Refused, bounded, outcome
from tests.fuzz.small_files import CHUNKS_BYTES, ID, file_with
from tests.support.entry_log_building import record

# --- entry logs -------------------------------------------------------------------------------------

_ENTRY: Final = st.builds(record, ID, ID, st.integers(32, 60)) | st.builds(record, st.just(3), ID, st.just(40))
_ENTRIES: Final = st.lists(_ENTRY, max_size=8) | st.builds(
    lambda one: one * 20, st.lists(_ENTRY, min_size=1, max_size=1)
)


def _rotated(entries: list[bytes], ledgers: dict[int, int]) -> bytes:
    body = b"".join(entries)
    at = entry_log.HEADER_BYTES + len(body)
    return entry_log.file_header(at if ledgers else 0, len(ledgers)) + body + entry_log.ledgers_map(ledgers)


_LOGS: Final = st.builds(_rotated, _ENTRIES, st.dictionaries(ID, st.integers(1, 60), max_size=4))


@fuzz(120, content=hostile(_LOGS), hole=st.sampled_from([0, 0, 0, 2**20]))
def test_entry_logs(content: bytes, hole: int) -> None:
    """A scan ends, and gives entries that lie in the file with these ids; a map is believed only if it can be true."""
    with file_with("a.log", content, hole) as path:
        size = path.stat().st_size
        sums = outcome(lambda: entry_log.read_ledgers_map(str(path)))
        if sums is not None:
            ledgers, sizes = sums  # type: ignore[misc]
            assert (np.diff(ledgers) > 0).all()
            assert ((sizes > 0) & (ledgers >= 0)).all()
        with bounded(CHUNKS_BYTES):
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


@fuzz(40, entries=_ENTRIES, ledgers=st.dictionaries(ID, st.integers(1, 32), min_size=1, max_size=4))
def test_entry_logs_are_read_as_they_were_written(entries: list[bytes], ledgers: dict[int, int]) -> None:
    with file_with("a.log", _rotated(entries, ledgers)) as path:
        sums = entry_log.read_ledgers_map(str(path))
        assert sums is not None
        assert dict(zip(*(column.tolist() for column in sums), strict=True)) == ledgers
        content = path.read_bytes()
        assert [content[at - 4 : at + size] for _, _, at, size in _scanned(path)] == entries


_PLACES: Final = st.lists(st.integers(1024, 1400) | st.integers(0, 2**32 - 1), min_size=1, max_size=5)


@fuzz(80, content=hostile(_LOGS), places=_PLACES, ids=st.lists(st.tuples(ID, ID), min_size=5, max_size=5))
def test_entries_at_locations(content: bytes, places: list[int], ids: list[tuple[int, int]]) -> None:
    """An entry is read only where it is: with its ids, and whole."""
    with file_with("a.log", content) as path:
        reader = EntryLogReader([str(path.parent)])
        locations = np.array(sorted(10 << entry_log.OFFSET_BITS | place for place in places), np.int64)
        ledger_ids, entry_ids = (np.array(column[: len(places)], np.int64) for column in zip(*ids, strict=True))
        with bounded(CHUNKS_BYTES):
            found = reader.read(ledger_ids, entry_ids, locations, 2**20, at_once_bytes=None)
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
    with file_with("lastId", content) as path:
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
    with file_with(index.relative_path(7), content, hole) as path:
        files = IndexFiles([str(path.parents[2])], list)
        outcome(lambda: files.read_header(7), CorruptFileError, names="7.idx")
        outcome(lambda: files.read_header(7, replaying=True), CorruptFileError, names="7.idx")
        with bounded(CHUNKS_BYTES):
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


_MARKS: Final = st.builds(LogMark, st.integers(0, 3) | COUNT, st.integers(0, 3) | COUNT)


@fuzz(60, marks=st.lists(_MARKS, min_size=2, max_size=2), data=st.data())
def test_marks(marks: list[LogMark], data: st.DataObject) -> None:
    """The highest mark counts, of those that are whole."""
    with file_with("one/lastMark", b"") as path:
        directories = [str(path.parent), str(path.parents[1])]
        for directory, mark in zip(directories, marks, strict=True):
            write_marks([directory], [mark])
        assert read_marks(directories, 1) == [max(marks)]
        content = data.draw(hostile(st.just(path.read_bytes())))
        path.write_bytes(content)
        found = outcome(lambda: read_mark(str(path)))
        assert (found is None) == (len(content) < 16)
        assert read_marks(directories, 1) == [max(marks[1], found or LogMark(0, 0))]  # type: ignore[type-var]


_BOOTS: Final = ["6e0b5ce1-32ee-4b5c-8b5e-5b8d6d1f0c55", "", boot_id()]
_DIRTY: Final = [
    "",
    *[f"1\njournalSyncData={synced}\nbootId={boot}\n" for synced in ("true", "false") for boot in _BOOTS],
]
#: Those of a run that synced, or on the kernel that still runs.
_SAFE_RUNS: Final = [text for text in _DIRTY if "=true" in text or (boot_id() and boot_id() in text)]
_GENERATION: Final = b"\n20261123T101112.131415Z-0123456789abcdef\n"
_MODES: Final = {
    b"1,READ_WRITE,1700000000000\n": BookieMode(False, False),
    b"1,READ_ONLY,17\n": BookieMode(True, True),
    b"1,READ_ONLY,17,false\n": BookieMode(True, False),
    b"1, READ_ONLY ,17,TRUE\n": BookieMode(True, True),
    b"1,READ_WRITE,17,true": BookieMode(False, False),
    b"2,READ_ONLY,17,true\n": None,
    b"1,READ_NOTHING,17,true\n": None,
    b"1,READ_ONLY,17,true,x\n": None,
}
#: By name: what is read from each content, or the error, and the reader.
_SMALL: Final[dict[str, tuple[dict[bytes, Any], Callable[[str], Any]]]] = {
    "DIRTY": (
        {text.encode(): text not in _SAFE_RUNS for text in _DIRTY}
        | dict.fromkeys([b"2" + _DIRTY[1].encode()[1:], _DIRTY[1].encode()[:-1], b"\n"], CorruptFileError),
        lambda directory: may_have_lost([directory]),
    ),
    "GENERATION": (
        {b"1" + _GENERATION: _GENERATION[1:-1].decode()}
        | dict.fromkeys([b"2" + _GENERATION, b"1" + _GENERATION.upper(), b"1" + _GENERATION[:-1]], CorruptFileError),
        read_generation,
    ),
    "BOOKIE_STATUS": (_MODES, lambda directory: read_status([directory])),
}


@pytest.mark.parametrize("name", _SMALL)
def test_small_files_say_what_was_written(name: str) -> None:
    known, read = _SMALL[name]
    for content, wanted in known.items():
        with file_with(name, content) as path:
            found = outcome(lambda path=path: read(str(path.parent)), CorruptFileError, names=name)  # type: ignore[misc]
            assert isinstance(found, Refused) if wanted is CorruptFileError else found == wanted


@pytest.mark.parametrize("name", _SMALL)
@fuzz(30, data=st.data())
def test_small_files(name: str, data: st.DataObject) -> None:
    known, read = _SMALL[name]
    with file_with(name, data.draw(hostile(st.sampled_from(list(known))))) as path:
        outcome(lambda: read(str(path.parent)), CorruptFileError, names=name)
