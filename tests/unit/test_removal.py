"""Removal of large files: the name first, then the blocks in steps, and nothing of files that somebody still has."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie_server.storage.disk.files import SyncFailedError
from bookie_server.storage.disk.removal import Removal
from tests.support.failing_os import FailingOs

_MIB = 1 << 20


@pytest.fixture
def removal() -> Iterator[Removal]:
    with contextlib.closing(Removal()) as removal:
        yield removal


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FailingOs:
    return FailingOs(monkeypatch)


def made(path: Path, mib: int = 20) -> str:
    path.write_bytes(b"first")
    os.truncate(path, mib * _MIB)
    return str(path)


def test_the_name_is_gone_for_good_before_the_blocks_are_freed_in_steps(
    tmp_path: Path, removal: Removal, disk: FailingOs
) -> None:
    path, sizes = made(tmp_path / "large"), []

    def truncate(fd: int, size_bytes: int) -> None:
        assert not os.path.exists(path)
        sizes.append(size_bytes)
        os.ftruncate(fd, size_bytes)

    disk.on("ftruncate", truncate)
    fd = removal.unlink(path)
    assert disk.calls == ["open", "remove", "open", "fsync"]
    freed = removal.free(fd)
    assert freed is not None
    freed.result(60)
    assert sizes == [16 * _MIB, 12 * _MIB, 8 * _MIB, 4 * _MIB]
    assert fd is not None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_file_that_is_being_read_keeps_its_content(tmp_path: Path, removal: Removal) -> None:
    path = made(tmp_path / "read")
    with open(path, "rb") as reader:
        assert removal.free(removal.unlink(path), is_open=True) is None
        assert reader.read(5) == b"first"
        assert os.fstat(reader.fileno()).st_size == 20 * _MIB


def test_a_file_that_has_another_name_keeps_its_content(tmp_path: Path, removal: Removal) -> None:
    path = made(tmp_path / "one")
    os.link(path, tmp_path / "other")
    assert removal.free(removal.unlink(path)) is None
    assert os.stat(tmp_path / "other").st_size == 20 * _MIB


def test_nothing_is_freed_while_a_power_cut_could_bring_the_name_back(
    tmp_path: Path, removal: Removal, disk: FailingOs
) -> None:
    disk.fail("fsync", errno.EIO)
    with pytest.raises(SyncFailedError):
        removal.unlink(made(tmp_path / "unsure"))
    assert "ftruncate" not in disk.calls


def test_a_file_for_which_there_is_no_descriptor_is_removed_nevertheless(
    tmp_path: Path, removal: Removal, disk: FailingOs
) -> None:
    path = made(tmp_path / "large")
    disk.fail("open", errno.EMFILE, times=1)
    assert removal.free(removal.unlink(path)) is None
    assert not os.path.exists(path)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path, removal: Removal) -> None:
    with pytest.raises(FileNotFoundError):
        removal.unlink(str(tmp_path / "absent"))


def test_files_beyond_those_that_may_wait_are_freed_at_once(tmp_path: Path, removal: Removal, disk: FailingOs) -> None:
    block = disk.block("ftruncate")
    waiting = [removal.free(removal.unlink(made(tmp_path / str(number)))) for number in range(16)]
    assert None not in waiting
    assert removal.free(removal.unlink(made(tmp_path / "one more"))) is None
    block.release()
    for freed in waiting:
        assert freed is not None
        freed.result(60)
    assert removal.free(removal.unlink(made(tmp_path / "later"))) is not None


def test_the_end_does_not_wait_for_the_steps(tmp_path: Path, disk: FailingOs) -> None:
    """The steps of these files, with their pauses, last a minute each. A busy machine may stop this thread for seconds
    before it has told the other to stop."""
    block = disk.block("ftruncate")
    removal, mib = Removal(), 120_000
    freed = [removal.free(removal.unlink(made(tmp_path / name, mib))) for name in ("one", "two")]
    assert block.reached.wait(60)
    with contextlib.closing(removal):
        block.release()
    assert disk.calls.count("ftruncate") < mib // 4
    assert all(each is not None and each.done() for each in freed)


def test_a_file_that_cannot_be_shortened_is_closed(tmp_path: Path, removal: Removal, disk: FailingOs) -> None:
    disk.fail("ftruncate", errno.EIO)
    fd = removal.unlink(made(tmp_path / "large"))
    freed = removal.free(fd)
    assert freed is not None
    freed.result(60)
    assert fd is not None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
