"""The recorder sees every change of files, and can fail, hold and kill what makes them."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from bookie_server.storage.disk import files
from tests.crash.choices import ALL
from tests.crash.disk import Disk
from tests.crash.operations import FailedSync, Operation, Sync, Write
from tests.crash.recorder import Fault, Hold, Recorder, materialise


def use_all(root: Path) -> None:
    """Every function of storage/disk/files.py that changes files."""
    files.make_directory(str(root / "a" / "b"))
    fd = files.create_file(str(root / "a" / "b" / "one"))
    files.allocate(fd, 0, 100)
    files.write_at(fd, [b"some", memoryview(b"thing")], 3)
    files.truncate(fd, 10)
    files.sync_data(fd)
    files.write_at(fd, [b"more"], 8)
    files.sync_file(fd)
    files.link(str(root / "a" / "b" / "one"), str(root / "a" / "b" / "two"))
    files.rename(str(root / "a" / "b" / "one"), str(root / "a" / "b" / "three"))
    files.sync_directory(str(root / "a"))
    files.replace_file(str(root / "kept"), b"first")
    files.replace_file(str(root / "kept"), b"second")
    again = files.open_file(str(root / "there before"))
    files.write_at(again, [b"XX"], 0)
    files.remove(str(root / "a" / "b" / "two"))
    assert files.sync_file_system(str(root))


def image_of(recorder: Recorder) -> object:
    disk = Disk(recorder.base, recorder.numbers)
    for operation in recorder.log:
        disk.apply(operation)
    return disk.image(ALL)


def test_what_was_recorded_gives_the_same_files(tmp_path: Path) -> None:
    root = tmp_path / "recorded"
    root.mkdir()
    (root / "there before").write_bytes(b"content")
    recorder = Recorder(root)
    with recorder.installed():
        use_all(root)
    assert image_of(recorder) == recorder.image()
    assert (root / "there before").read_bytes() == b"XXntent"
    copy = tmp_path / "copy"
    copy.mkdir()
    materialise(recorder.image(), copy)
    assert Recorder(copy).base == recorder.image()
    (root / "kept").write_bytes(b"behind its back")
    assert image_of(recorder) != recorder.image()


def test_faults(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    with recorder.installed():
        fd = files.create_file(str(tmp_path / "a"))
        recorder.fault = Fault(lambda operation: isinstance(operation, Write), skip=1, partial=3)
        files.write_at(fd, [b"good"], 0)
        with pytest.raises(OSError, match="No space left"):
            files.write_at(fd, [b"bad bytes"], 4)
        files.write_at(fd, [b"ok"], 4)
        assert (tmp_path / "a").read_bytes() == b"goodokd"
        recorder.fault = Fault(lambda operation: isinstance(operation, Sync), error=errno.EIO)
        with pytest.raises(files.SyncFailedError):
            files.sync_data(fd)
    assert isinstance(recorder.log[-1], FailedSync)
    assert image_of(recorder) == recorder.image()


def test_a_killed_process_changes_nothing_any_more(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    with recorder.installed():
        fd = files.create_file(str(tmp_path / "a"))
        recorder.kill_after(1)
        files.write_at(fd, [b"before"], 0)
        with pytest.raises(OSError, match="killed"):
            files.write_at(fd, [b"after"], 0)
        assert recorder.killed
        recorder.revive()
        files.write_at(fd, [b"next"], 6)
    assert (tmp_path / "a").read_bytes() == b"beforenext"


def test_a_thread_is_held(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    with recorder.installed():
        fd = files.create_file(str(tmp_path / "a"))
        hold = recorder.hold = Hold("slow", 1)

        def slow() -> None:
            files.write_at(fd, [b"1"], 0)
            files.write_at(fd, [b"3"], 2)

        thread = threading.Thread(target=slow, name="slow-0")
        thread.start()
        assert hold.reached.wait(30)
        files.write_at(fd, [b"2"], 1)
        recorder.release()
        thread.join(30)
    written: list[Operation] = [operation for operation in recorder.log if isinstance(operation, Write)]
    assert [operation.data for operation in written if isinstance(operation, Write)] == [b"1", b"2", b"3"]
