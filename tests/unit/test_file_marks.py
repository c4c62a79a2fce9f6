"""Marks of files."""

from __future__ import annotations

import os
from pathlib import Path

from bk_spark.bookie.file_marks import file_mark


def test_each_way_to_change_a_file_changes_its_mark(tmp_path: Path) -> None:
    path, link = tmp_path / "one", tmp_path / "link"
    path.write_bytes(b"first")
    link.symlink_to(path)
    os.utime(path, ns=(5, 5))
    mark = file_mark(str(link))
    assert mark is not None
    assert mark == file_mark(str(path))

    path.write_bytes(b"longer")
    os.utime(path, ns=(5, 5))
    assert file_mark(str(link)) != mark
    path.write_bytes(b"other")
    os.utime(path, ns=(6, 6))
    assert file_mark(str(link)) != mark
    (tmp_path / "two").write_bytes(b"again")
    os.utime(tmp_path / "two", ns=(5, 5))
    (tmp_path / "two").replace(path)
    assert file_mark(str(link)) != mark


def test_what_cannot_be_seen_has_no_mark(tmp_path: Path) -> None:
    assert file_mark(str(tmp_path / "none")) is None
