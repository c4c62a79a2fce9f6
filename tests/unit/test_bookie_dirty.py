"""The mark of an unclean shutdown."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from bookie_server.identity.dirty import clear_dirty, mark_dirty


def test_marks_all_directories_and_sees_old_marks(tmp_path: Path) -> None:
    directories = [str(tmp_path / name) for name in ("a", "b")]
    for directory in directories:
        Path(directory).mkdir()
    assert not mark_dirty(directories)
    assert all((Path(directory) / "DIRTY").read_bytes() == b"" for directory in directories)
    assert mark_dirty(directories)
    clear_dirty(directories)
    assert not any(Path(directory, "DIRTY").exists() for directory in directories)
    (tmp_path / "b" / "DIRTY").touch()
    assert mark_dirty(directories)
    assert (tmp_path / "a" / "DIRTY").exists()


def test_a_directory_that_takes_no_mark_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a").mkdir()
    directories = [str(tmp_path / "gone"), str(tmp_path / "a")]
    with caplog.at_level(logging.WARNING):
        assert not mark_dirty(directories)
        clear_dirty(directories)
    assert not (tmp_path / "a" / "DIRTY").exists()
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith(f"an unclean shutdown cannot be detected in {tmp_path / 'gone'}")
    assert lines[1].startswith("DIRTY stays in")
