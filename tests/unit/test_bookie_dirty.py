"""The mark of an unclean shutdown."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from bk_spark.protocol.errors import CorruptFileError
from bookie_server.identity.dirty import boot_id, clear_dirty, is_dirty, mark_dirty, may_have_lost


def test_marks_all_directories_and_sees_old_marks(tmp_path: Path) -> None:
    directories = [str(tmp_path / name) for name in ("a", "b")]
    for directory in directories:
        Path(directory).mkdir()
    assert not is_dirty(directories)
    mark_dirty(directories, synced=True, losses_handled=True)
    assert is_dirty(directories)
    mark_dirty(directories, synced=True, losses_handled=True)
    clear_dirty(directories)
    assert not any(Path(directory, "DIRTY").exists() for directory in directories)
    (tmp_path / "b" / "DIRTY").touch()
    assert is_dirty(directories)
    mark_dirty(directories, synced=True, losses_handled=True)
    assert (tmp_path / "a" / "DIRTY").exists()


def test_the_file_says_how_the_run_syncs(tmp_path: Path) -> None:
    mark = tmp_path / "DIRTY"
    here = [str(tmp_path)]
    assert not may_have_lost(here)
    mark_dirty(here, synced=True, losses_handled=True)
    assert mark.read_bytes().startswith(b"1\njournalSyncData=true\n")
    assert not may_have_lost(here)
    mark_dirty(here, synced=False, losses_handled=True)
    assert mark.read_bytes() == f"1\njournalSyncData=false\nbootId={boot_id()}\n".encode()
    # The page cache has everything while the kernel is the same.
    assert boot_id()
    assert not may_have_lost(here)
    for other in (b"", b"6e0b5ce1-32ee-4b5c-8b5e-5b8d6d1f0c55"):
        mark.write_bytes(b"1\njournalSyncData=false\nbootId=" + other + b"\n")
        assert may_have_lost(here)
    # Apache's bookie says nothing.
    mark.write_bytes(b"")
    assert may_have_lost(here)
    assert may_have_lost([str(tmp_path / "gone"), *here])


def test_a_loss_is_remembered_until_ledgers_are_marked(tmp_path: Path) -> None:
    here = [str(tmp_path)]
    (tmp_path / "DIRTY").touch()
    mark_dirty(here, synced=True, losses_handled=False)
    assert may_have_lost(here)
    mark_dirty(here, synced=True, losses_handled=True)
    assert not may_have_lost(here)


@pytest.mark.parametrize("content", [b"2\njournalSyncData=true\nbootId=\n", b"1\njournalSyncData=true\n", b"\0" * 30])
def test_a_mark_of_an_unknown_version_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    mark = tmp_path / "DIRTY"
    mark.write_bytes(content)
    with pytest.raises(CorruptFileError, match=r"DIRTY is damaged, or of a version .* does not know"):
        may_have_lost([str(tmp_path)])
    with pytest.raises(CorruptFileError, match=r"DIRTY is damaged, or of a version .* does not know"):
        mark_dirty([str(tmp_path)], synced=True, losses_handled=True)
    assert mark.read_bytes() == content


def test_a_directory_that_takes_no_mark_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a").mkdir()
    directories = [str(tmp_path / "gone"), str(tmp_path / "a")]
    with caplog.at_level(logging.WARNING):
        mark_dirty(directories, synced=True, losses_handled=True)
        clear_dirty(directories)
    assert not (tmp_path / "a" / "DIRTY").exists()
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith(f"an unclean shutdown cannot be detected in {tmp_path / 'gone'}")
    assert lines[1].startswith("DIRTY stays in")
