"""Index files: Apache's layout, headers, pages, last entry."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bk_spark.protocol.errors import CorruptFileError
from bookie_server.storage.index import PAGE_DTYPE, PAGE_SLOTS, IndexFiles, IndexHeader, Page
from bookie_server.storage.index_page import page_of

KEY = bytes(range(20))


def page(**slots: int) -> Page:
    result = np.zeros(PAGE_SLOTS, PAGE_DTYPE)
    for name, location in slots.items():
        result[int(name[1:])] = location
    return result


@pytest.fixture
def files(tmp_path: Path) -> IndexFiles:
    return IndexFiles(str(tmp_path))


def test_path_is_apaches(files: IndexFiles, tmp_path: Path) -> None:
    assert files.path(0x5E75) == str(tmp_path / "5e" / "75" / "5e75.idx")
    assert files.path(7) == str(tmp_path / "0" / "7" / "7.idx")
    assert files.path(0x123456789) == str(tmp_path / "67" / "89" / "123456789.idx")


def test_header_bytes(files: IndexFiles) -> None:
    packet = bytes(range(24))
    header = IndexHeader(KEY, True, packet).encode()
    wanted = b"BKLE" + b"\0\0\0\1" + b"\0\0\0\x14" + KEY + b"\0\0\0\1" + b"\0\0\0\x18" + packet
    assert header == wanted.ljust(1024, b"\0")
    assert IndexHeader.decode(header, "x") == IndexHeader(KEY, True, packet)
    plain = IndexHeader(KEY, False, None)
    assert IndexHeader.decode(plain.encode(), "x") == plain


def test_version_0_header_has_no_explicit_lac() -> None:
    header = (b"BKLE" + b"\0\0\0\0" + b"\0\0\0\x14" + KEY + b"\0\0\0\1" + b"\0\0\0\x18").ljust(1024, b"\0")
    assert IndexHeader.decode(header, "x") == IndexHeader(KEY, True, None)


@pytest.mark.parametrize(
    "header",
    [
        b"BKLO" + bytes(1020),
        b"BKLE\0\0\0\2" + bytes(1016),
        b"BKLE\0\0\0\1\x7f\xff\xff\xff" + bytes(1012),
        b"BKLE\0\0\0\1\xff\xff\xff\xff" + bytes(1012),
        b"BKLE\0\0\0\1\0\0\0\0\0\0\0\0\0\0\xff\xff" + bytes(1004),
        b"BKLE",
    ],
)
def test_garbage_headers_are_refused_by_name(files: IndexFiles, header: bytes) -> None:
    path = Path(files.path(9))
    path.parent.mkdir(parents=True)
    path.write_bytes(header)
    with pytest.raises(CorruptFileError, match=r"9\.idx"):
        files.read_header(9)


def test_keys_do_not_show_in_texts() -> None:
    assert "secret" not in repr(IndexHeader(b"secret", False, None))


def test_pages_lie_where_apache_looks_for_them(files: IndexFiles) -> None:
    files.write(9, IndexHeader(KEY, False, None), [(0, page(s3=0x404)), (2, page(s0=5, s1023=6))])
    content = Path(files.path(9)).read_bytes()
    assert int.from_bytes(content[1024 + 8 * 3 :][:8], "big") == 0x404
    assert int.from_bytes(content[1024 + 8 * 2048 :][:8], "big") == 5
    assert int.from_bytes(content[1024 + 8 * (2048 + 1023) :][:8], "big") == 6
    assert len(content) == 1024 + 3 * 8192
    assert files.read_page(9, 0) == page(s3=0x404).tobytes()
    assert files.read_page(9, 1) == bytes(8192)
    assert files.read_page(9, 5) == b""
    assert files.last_entry(9) == 2048 + 1023


def test_header_can_be_rewritten_alone(files: IndexFiles) -> None:
    files.write(9, IndexHeader(KEY, False, None), [(0, page(s1=77))])
    files.write(9, IndexHeader(KEY, True, None), [])
    files.write(9, None, [(1, page(s0=78))])
    assert files.read_header(9) == IndexHeader(KEY, True, None)
    assert files.last_entry(9) == 1024


def test_unknown_ledger(files: IndexFiles) -> None:
    assert files.read_header(1) is None
    assert files.last_entry(1) == -1
    assert files.read_page(1, 0) == b""
    with pytest.raises(FileNotFoundError):
        files.write(1, None, [(0, page(s0=1))])


@pytest.mark.parametrize("size", [0, 100, 1024])
def test_a_file_cut_short_while_it_was_made_is_no_file(files: IndexFiles, size: int) -> None:
    path = Path(files.path(9))
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(size))
    assert files.read_header(9) is None
    files.write(9, IndexHeader(KEY, False, None), [(0, page(s0=5))])
    assert files.read_header(9) == IndexHeader(KEY, False, None)
    assert files.last_entry(9) == 0


def test_a_zeroed_header_before_pages_is_damage_once_the_journal_was_replayed(files: IndexFiles) -> None:
    path = Path(files.path(9))
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(1024) + page(s0=5).tobytes())
    assert files.read_header(9, replaying=True) is None
    with pytest.raises(CorruptFileError, match="BKLE"):
        files.read_header(9)


def test_last_entry_skips_empty_pages_at_the_end(files: IndexFiles) -> None:
    files.write(9, IndexHeader(KEY, False, None), [(0, page(s17=5)), (6, page())])
    assert files.last_entry(9) == 17


def test_more_ledgers_than_open_files(tmp_path: Path) -> None:
    files = IndexFiles(str(tmp_path), open_limit=4)
    for ledger in range(40):
        files.write(ledger, IndexHeader(KEY, False, None), [(0, page(s0=ledger + 1))])
    files.sync(list(range(40)))
    files.write(41, IndexHeader(KEY, False, None), [])
    files.sync([41])
    assert [page_of(files.read_page(ledger, 0)).get_one(0) for ledger in range(40)] == list(range(1, 41))


def test_a_page_in_memory_is_as_long_as_it_needs_to_be() -> None:
    short = page_of(b"")
    assert (short.get_one(3), short.get_run(0, 9).tolist()) == (0, [])
    for slot in (0, 17, 40):
        short.reserve(slot + 1)
        short.set_one(slot, slot + 100)
    assert short.size_bytes < 1100
    assert short.get_at(np.array([17, 500, 0, 1023])).tolist() == [117, 0, 100, 0]
    short.reserve(1024)
    short.set_range(1020, np.array([1, 2, 3, 4]))
    assert short.get_run(1021, 10).tolist() == [2, 3, 4]
    assert short.get_run(0, 10).tolist() == [100]
    whole = short.whole()
    assert whole.tolist() == page(s0=100, s17=117, s40=140, s1020=1, s1021=2, s1022=3, s1023=4).tolist()
    assert page_of(whole.tobytes()).whole().tolist() == whole.tolist()
    assert page_of(whole.tobytes()[:200]).get_at(np.array([0, 17, 40])).tolist() == [100, 117, 0]
