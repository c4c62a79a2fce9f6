"""Index files: Apache's layout, headers, slots, several directories, what is synced."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.errors import CorruptFileError
from bookie_server.storage.disk import files as storage_files
from bookie_server.storage.disk.files import SyncFailedError
from bookie_server.storage.index.index import PAGE_DTYPE, PAGE_SLOTS, IndexFiles, IndexHeader
from bookie_server.storage.records import MAX_ENTRY_ID
from tests.support.failing_os import FailingOs

KEY = bytes(range(20))
HEADER = IndexHeader(KEY, False, None)


def ids(*entry_ids: int) -> Int64s:
    return np.array(entry_ids, np.int64)


NONE = ids()


def make(*directories: Path, open_limit: int = 256) -> IndexFiles:
    paths = [str(path) for path in directories]
    return IndexFiles(paths, lambda: paths, open_limit)


def write(files: IndexFiles, ledger_id: int, header: IndexHeader | None, locations: dict[int, int]) -> None:
    files.write(ledger_id, header, ids(*locations), ids(*locations.values()))


def path_of(files: IndexFiles, ledger_id: int) -> Path:
    path = files.path(ledger_id)
    assert path is not None
    return Path(path)


def page_bytes(**slots: int) -> bytes:
    result = np.zeros(PAGE_SLOTS, PAGE_DTYPE)
    for name, location in slots.items():
        result[int(name[1:])] = location
    return result.tobytes()


@pytest.fixture
def files(tmp_path: Path) -> Iterator[IndexFiles]:
    files = make(tmp_path)
    yield files
    files.close()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FailingOs:
    return FailingOs(monkeypatch)


def put_file(root: Path, ledger_id: int, content: bytes) -> Path:
    path = root / f"{ledger_id >> 8 & 0xFF:x}" / f"{ledger_id & 0xFF:x}" / f"{ledger_id:x}.idx"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


def test_path_is_apaches(files: IndexFiles, tmp_path: Path) -> None:
    for ledger_id, path in ((0x5E75, "5e/75/5e75.idx"), (7, "0/7/7.idx"), (0x123456789, "67/89/123456789.idx")):
        assert files.path(ledger_id) is None
        write(files, ledger_id, HEADER, {})
        assert files.path(ledger_id) == str(tmp_path / path)
    assert files.ledger_ids().tolist() == [7, 0x5E75, 0x123456789]


def test_header_bytes(files: IndexFiles) -> None:
    packet = bytes(range(24))
    header = IndexHeader(KEY, True, packet).encode()
    wanted = b"BKLE" + b"\0\0\0\1" + b"\0\0\0\x14" + KEY + b"\0\0\0\1" + b"\0\0\0\x18" + packet
    assert header == wanted.ljust(1024, b"\0")
    assert IndexHeader.decode(header, "x") == IndexHeader(KEY, True, packet)
    plain = IndexHeader(KEY, False, None)
    assert IndexHeader.decode(plain.encode(), "x") == plain


def test_limbo_is_a_bit_of_the_state_that_apaches_reader_leaves_alone() -> None:
    """FileInfo.java tests bit 0 alone, and writes all bits as it read them."""
    header = IndexHeader(KEY, True, None, limbo=True).encode()
    assert header[12 + len(KEY) :][:4] == b"\0\0\0\3"
    assert IndexHeader.decode(header, "x") == IndexHeader(KEY, True, None, limbo=True)
    unfenced = IndexHeader(KEY, False, None, limbo=True)
    assert IndexHeader.decode(unfenced.encode(), "x") == unfenced


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
def test_garbage_headers_are_refused_by_name(files: IndexFiles, tmp_path: Path, header: bytes) -> None:
    put_file(tmp_path, 9, header)
    with pytest.raises(CorruptFileError, match=r"9\.idx"):
        files.read_header(9)


def test_keys_do_not_show_in_texts() -> None:
    assert "secret" not in repr(IndexHeader(b"secret", False, None))


def test_slots_lie_where_apache_looks_for_them(files: IndexFiles) -> None:
    write(files, 9, HEADER, {3: 0x404, 2048: 5, 3071: 6})
    content = path_of(files, 9).read_bytes()
    assert int.from_bytes(content[1024 + 8 * 3 :][:8], "big") == 0x404
    assert int.from_bytes(content[1024 + 8 * 2048 :][:8], "big") == 5
    assert int.from_bytes(content[1024 + 8 * 3071 :][:8], "big") == 6
    assert len(content) == 1024 + 3 * 8192
    assert files.read_page(9, 0, may_wait=True) == page_bytes(s3=0x404)
    assert files.read_page(9, 1, may_wait=False) == bytes(8192)
    assert files.read_page(9, 5, may_wait=True) == b""
    assert files.last_entry(9) == 3071
    write(files, 9, None, {2047: 7, 2048: 8, 2049: 9, 3072: 10})
    assert path_of(files, 9).stat().st_size == 1024 + 4 * 8192
    assert files.entry_ids(9).tolist() == [3, 2047, 2048, 2049, 3071, 3072]
    assert files.read_slots(9, ids(0, 3, 2046, 2047, 2048, 2049, 3071, 3072, 5000)).tolist() == [
        0, 0x404, 0, 7, 8, 9, 6, 10, 0,
    ]  # fmt: skip


def test_many_slots_are_written_as_runs(files: IndexFiles, disk: FailingOs) -> None:
    write(files, 9, HEADER, {})
    disk.calls.clear()
    run = {i: i + 1 for i in [*range(10, 5000), *range(6000, 6010)]}
    write(files, 9, None, run)
    assert disk.calls.count("pwritev") == 2
    assert files.read_slots(9, ids(*run)).tolist() == list(run.values())


def test_header_can_be_rewritten_alone(files: IndexFiles) -> None:
    write(files, 9, HEADER, {1: 77})
    write(files, 9, IndexHeader(KEY, True, None), {})
    write(files, 9, None, {1024: 78})
    assert files.read_header(9) == IndexHeader(KEY, True, None)
    assert files.read_slots(9, ids(1, 1024)).tolist() == [77, 78]


def test_unknown_ledger(files: IndexFiles) -> None:
    assert files.read_header(1) is None
    assert files.last_entry(1) == -1
    assert files.read_page(1, 0, may_wait=True) == b""
    assert files.entry_ids(1).tolist() == []
    assert files.read_slots(1, ids(0, 5)).tolist() == [0, 0]
    assert files.ledger_ids().tolist() == []
    files.remove(1)
    with pytest.raises(FileNotFoundError):
        write(files, 1, None, {0: 1})


@pytest.mark.parametrize("size", [0, 100, 1024])
def test_a_file_cut_short_while_it_was_made_is_no_file(files: IndexFiles, tmp_path: Path, size: int) -> None:
    put_file(tmp_path, 9, bytes(size))
    assert files.read_header(9) is None
    write(files, 9, HEADER, {0: 5})
    assert files.read_header(9) == HEADER
    assert files.last_entry(9) == 0


def test_a_zeroed_header_before_pages_is_damage_once_the_journal_was_replayed(
    files: IndexFiles, tmp_path: Path
) -> None:
    put_file(tmp_path, 9, bytes(1024) + page_bytes(s0=5))
    assert files.read_header(9, replaying=True) is None
    with pytest.raises(CorruptFileError, match="BKLE"):
        files.read_header(9)


def test_last_entry_skips_empty_pages_at_the_end(files: IndexFiles) -> None:
    write(files, 9, HEADER, {17: 5, 6 * 1024: 0})
    assert files.last_entry(9) == 17
    write(files, 10, HEADER, {5: 0})
    assert files.last_entry(10) == -1


def test_the_highest_entry_id_there_can_be(files: IndexFiles) -> None:
    """8 TiB of hole before it: passed over, not read."""
    write(files, 9, HEADER, {0: 5, 70_000: 6, MAX_ENTRY_ID: 7})
    begun = time.monotonic()
    assert files.entry_ids(9).tolist() == [0, 70_000, MAX_ENTRY_ID]
    assert files.read_slots(9, ids(0, 70_000, MAX_ENTRY_ID)).tolist() == [5, 6, 7]
    assert files.last_entry(9) == MAX_ENTRY_ID
    write(files, 10, HEADER, {3: 5, MAX_ENTRY_ID: 0})  # a flush that did not come to its entries
    assert files.last_entry(10) == 3
    assert time.monotonic() - begun < 60  # to read the hole would take an hour


def test_more_ledgers_than_open_files(tmp_path: Path) -> None:
    files = make(tmp_path, open_limit=4)
    for ledger in range(40):
        write(files, ledger, HEADER, {0: ledger + 1})
    files.sync()
    write(files, 41, HEADER, {})
    files.sync()
    assert [files.read_slots(ledger, ids(0))[0] for ledger in range(40)] == list(range(1, 41))
    files.close()


# --- several directories --------------------------------------------------------------------------


def test_files_of_several_directories(tmp_path: Path) -> None:
    directories = [str(tmp_path / name) for name in "abc"]
    for directory in directories:
        Path(directory).mkdir()
    good = directories[:2]
    files = IndexFiles(directories, lambda: good)
    for ledger in range(6):
        write(files, ledger, HEADER, {0: ledger + 1})
    assert [path_of(files, ledger).relative_to(tmp_path).parts[0] for ledger in range(6)] == list("ababab")
    good = directories[2:]
    for ledger in range(8):
        write(files, ledger, HEADER, {1: ledger + 1})
    assert [path_of(files, ledger).relative_to(tmp_path).parts[0] for ledger in range(8)] == list("abababcc")
    files.sync()
    assert files.ledger_ids().tolist() == list(range(8))
    files.close()


def test_a_new_file_is_made_where_there_is_room(tmp_path: Path, disk: FailingOs) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.mkdir()
    b.mkdir()
    files = make(a, b)

    def full(fd: int, buffers: list[Any], offset: int) -> int:
        if os.readlink(f"/proc/self/fd/{fd}").startswith(str(a)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.pwritev(fd, buffers, offset)

    disk.on("pwritev", full)
    write(files, 2, HEADER, {0: 1})
    assert path_of(files, 2).is_relative_to(b)
    disk.fail("pwritev")
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        write(files, 4, HEADER, {0: 1})
    assert files.path(4) is None
    disk.heal()
    write(files, 4, HEADER, {0: 1})
    assert path_of(files, 4).is_relative_to(a)
    files.close()


def test_a_directory_that_cannot_be_listed_is_not_empty(tmp_path: Path) -> None:
    files = make(tmp_path, tmp_path / "missing")
    write(files, 2, HEADER, {0: 1})
    with pytest.raises(FileNotFoundError):
        files.ledger_ids()
    files.close()


# --- removing ------------------------------------------------------------------------------------


def test_a_ledger_that_comes_again_gets_a_file_of_its_own(files: IndexFiles, disk: FailingOs) -> None:
    """A reader opens the old file just before it goes: that descriptor must not be written to."""
    write(files, 9, HEADER, {0: 5})

    def remove(path: str) -> None:
        assert files.read_slots(9, ids(0)).tolist() == [5]
        os.remove(path)

    disk.on("remove", remove)
    files.remove(9)
    assert files.read_slots(9, ids(0)).tolist() == [0]
    write(files, 9, HEADER, {1: 6})
    assert path_of(files, 9).read_bytes()[1024 : 1024 + 8192] == page_bytes(s1=6)


def test_a_removed_file_is_not_synced_but_its_directory_is(files: IndexFiles, disk: FailingOs) -> None:
    write(files, 9, HEADER, {0: 5})
    files.sync()
    write(files, 9, None, {1: 5})
    files.remove(9)
    disk.calls.clear()
    files.sync()
    assert disk.calls == ["open", "fsync"]


# --- syncing -------------------------------------------------------------------------------------


def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of what is synced from now on."""
    paths: list[str] = []

    def sync_file(fd: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{fd}"))
        os.fsync(fd)

    monkeypatch.setattr(storage_files, "sync_file", sync_file)
    monkeypatch.setattr(storage_files, "sync_directory", paths.append)
    return paths


def test_sync_covers_files_and_new_names(files: IndexFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = synced(monkeypatch)
    write(files, 9, HEADER, {0: 5})
    files.sync()
    names = ["0/9/9.idx", "0/9", "0", ""]
    assert paths == [str(tmp_path / name) for name in names]
    paths.clear()
    write(files, 9, None, {1: 5})
    files.sync()
    assert paths == [str(tmp_path / "0/9/9.idx")]
    files.sync()
    assert len(paths) == 1


def test_what_could_not_be_synced_is_tried_again(files: IndexFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    write(files, 9, HEADER, {0: 5})
    files.close()  # so that the file is opened anew
    with monkeypatch.context() as patch:
        disk = FailingOs(patch)
        disk.fail("open", errno.EMFILE)
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            files.sync()
    paths = synced(monkeypatch)
    files.sync()
    assert [Path(path).name for path in paths][:2] == ["9.idx", "9"]


def test_a_failed_sync_is_not_tried_again(files: IndexFiles, disk: FailingOs) -> None:
    write(files, 9, HEADER, {0: 5})
    disk.fail("fsync", errno.EIO)
    with pytest.raises(SyncFailedError):
        files.sync()
    disk.heal()
    disk.calls.clear()
    files.sync()
    assert disk.calls == []


def test_many_files_are_synced_with_their_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.mkdir()
    b.mkdir()
    files = make(a, b)
    whole: list[str] = []

    def sync_file_system(path: str) -> bool:
        whole.append(path)
        return True

    monkeypatch.setattr(storage_files, "sync_file_system", sync_file_system)
    paths = synced(monkeypatch)
    for ledger in range(40):
        write(files, ledger, HEADER, {0: 5})
    files.sync()
    assert (whole, paths) == ([str(a), str(b)], [])
    for ledger in range(40):
        write(files, ledger, None, {1: 5})
    monkeypatch.setattr(storage_files, "sync_file_system", lambda path: False)
    files.sync()
    assert len(paths) == 40
    files.close()
