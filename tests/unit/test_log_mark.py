"""Mark files: which of several marks counts, and which are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from bk_spark.protocol.errors import CorruptFileError
from bookie_server.storage.journal.log_mark import LogMark, forget_marks, read_marks, write_marks
from tests.support.failing_os import FailingOs


@pytest.fixture
def directories(tmp_path: Path) -> list[str]:
    paths = [tmp_path / name for name in ("first", "second", "third")]
    for path in paths:
        path.mkdir()
    return list(map(str, paths))


def test_the_highest_mark_of_each_journal_counts(directories: list[str]) -> None:
    """A directory that could not be written keeps an older mark. It may be any of them."""
    old, new = LogMark(7, 1024), LogMark(8, 512)
    write_marks(directories[:1], [old, new])
    write_marks(directories[1:2], [new, old])
    assert read_marks(directories, 2) == [new, new]
    assert read_marks(directories[::-1], 2) == [new, new]
    assert read_marks(directories[:1], 2) == [old, new]
    write_marks(directories[2:], [LogMark(8, 1024), old])
    assert read_marks(directories, 2) == [LogMark(8, 1024), new]


def test_no_mark_is_the_beginning(directories: list[str]) -> None:
    assert read_marks(directories, 2) == [LogMark(0, 0)] * 2
    Path(directories[1], "lastMark").write_bytes(b"short")
    assert read_marks(directories, 1) == [LogMark(0, 0)]
    write_marks(directories[2:], [LogMark(3, 5)])
    assert read_marks(directories, 1) == [LogMark(3, 5)]


def test_a_mark_of_a_journal_that_is_not_configured_is_refused(directories: list[str]) -> None:
    """Its journal may hold acknowledged entries."""
    write_marks(directories[1:2], [LogMark(1, 512)] * 3)
    assert read_marks(directories, 3) == [LogMark(1, 512)] * 3
    for journals in (1, 2):
        with pytest.raises(CorruptFileError, match=rf"lastMark\.[12] .* only {journals} journalDirectories"):
            read_marks(directories, journals)


def test_a_directory_that_cannot_be_written_keeps_its_mark(directories: list[str]) -> None:
    write_marks(directories, [LogMark(1, 512)])
    Path(directories[0], "lastMark").unlink()
    Path(directories[0], "lastMark").mkdir()  # cannot be replaced by a file
    write_marks(directories, [LogMark(2, 512)])
    assert read_marks(directories[1:], 1) == [LogMark(2, 512)]
    assert not list(Path(directories[0]).glob("*.tmp"))
    with pytest.raises(IsADirectoryError):
        write_marks(directories[:1], [LogMark(3, 512)])


def test_the_mark_of_a_lost_journal_goes_back_to_the_beginning_everywhere(
    directories: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that kept it would make it count again."""
    kept, lost = LogMark(7, 1024), LogMark(8, 512)
    write_marks(directories, [kept, lost])
    disk = FailingOs(monkeypatch)
    disk.fail("open", times=1)
    with pytest.raises(OSError, match="no room for the mark"):
        forget_marks(directories, 2, [1])
    assert read_marks(directories, 2) == [kept, lost]
    forget_marks(directories, 2, [1])
    for directory in directories:
        assert read_marks([directory], 2) == [kept, LogMark(0, 0)]
