"""``bkctl``'s offline commands on the directories of a bookie of ours: files, marks, and who may read them."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bk_spark.bkctl.command_line.common import print_json_line
from bk_spark.bkctl.offline.commands import add_commands
from bk_spark.bkctl.offline.payloads import Payloads
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.digest import digest_function
from bk_spark.protocol.entries.entry import pack_entry
from bookie_server.local import LocalBookie, LocalCluster
from bookie_server.offline.digests import DigestFinder
from tests.interop.apache import Bookies
from tests.interop.shelf import Shelf, bookie_settings
from tests.support.clusters import new_cluster
from tests.support.stopped_bookie import Run, StoppedBookie, json_lines

#: Each offline command with what it needs beside directories.
COMMANDS = [
    ("listfilesondisc",),
    ("lastmark",),
    ("readlog", "1"),
    ("readlogmetadata", "1"),
    ("readjournal",),
    ("localconsistencycheck",),
]


def test_every_offline_command_is_tested_here() -> None:
    import argparse

    groups = argparse.ArgumentParser().add_subparsers()
    add_commands(groups)
    assert {*groups.choices} == {command for command, *_ in COMMANDS}


def test_listing_files(stopped: StoppedBookie, run: Run) -> None:
    kinds = {"journal": "txn", "entrylog": "log", "index": "idx"}
    everything = []
    for kind, ending in kinds.items():
        status, printed, error = run("listfilesondisc", f"--{kind}", *stopped.conf)
        paths = [str(path.resolve()) for path in stopped.files(ending)]
        assert (status, error) == (0, "")
        assert sorted(printed.splitlines()) == sorted(paths)
        assert len(paths) > 2
        everything += printed.splitlines()
    assert run("listfilesondisc", *stopped.conf)[1].splitlines() == everything
    records = json_lines(run("listfilesondisc", "--json", "--index", "--journal", *stopped.conf)[1])
    assert [one["path"] for one in records] == [path for path in everything if not path.endswith(".log")]
    for one in records:
        assert one["bytes"] == os.path.getsize(one["path"])
        assert 0 < one["disk_bytes"] <= one["bytes"] + 4096
        assert kinds[one["kind"]] == one["path"].rpartition(".")[2]


def test_directories_in_place_of_a_configuration(stopped: StoppedBookie, run: Run) -> None:
    named = sorted(stopped.directory.iterdir())
    journals = [part for path in named if "journal" in path.name for part in ("--journal-dir", path)]
    ledgers = [part for path in named if "ledgers" in path.name for part in ("--ledger-dir", path)]
    assert (len(journals), len(ledgers)) == (4, 6)
    assert run("listfilesondisc", *journals, *ledgers) == run("listfilesondisc", *stopped.conf)
    assert run("lastmark", *journals, *ledgers) == run("lastmark", *stopped.conf)
    listed = run("listfilesondisc", *journals)[1].splitlines()
    assert sorted(listed) == sorted(str(path.resolve()) for path in stopped.files("txn"))


def test_marks(stopped: StoppedBookie, run: Run) -> None:
    status, printed, error = run("lastmark", "--json", *stopped.conf)
    assert (status, error) == (0, "")
    found = {(one["directory"], one["journal"]): one for one in json_lines(printed)}
    assert len(found) == 6
    for (directory, journal), one in found.items():
        content = Path(directory, f"lastMark.{journal}").read_bytes()
        assert struct.unpack(">qq", content) == (one["journal_id"], one["offset"])
        assert one["journal_file"] == f"{one['journal_id']:x}.txn"
        assert (stopped.directory / f"journal{journal}" / "current" / one["journal_file"]).exists()
        assert (one["counts"], one["problem"]) == (True, None)
    first = printed.splitlines()[0]
    assert len(run("lastmark", *stopped.conf)[1].splitlines()) == 6
    assert json.loads(first)["journal"] == 0


def test_marks_that_are_wrong(damaged: StoppedBookie, run: Run) -> None:
    short, old, far, missing = (damaged.directory / f"ledgers{n}" / "current" / name for n, name in
        [(0, "lastMark.0"), (1, "lastMark.0"), (2, "lastMark.1"), (1, "lastMark.1")])  # fmt: skip
    short.write_bytes(short.read_bytes()[:15])
    journal_id, offset = struct.unpack(">qq", old.read_bytes())
    old.write_bytes(struct.pack(">qq", journal_id - 1000, 0))
    other_id, _ = struct.unpack(">qq", far.read_bytes())
    far.write_bytes(struct.pack(">qq", other_id, 1 << 40))
    missing.unlink()
    status, printed, error = run("lastmark", "--json", *damaged.conf)
    found = {Path(one["directory"], f"lastMark.{one['journal']}"): one for one in json_lines(printed)}
    assert status == 3
    assert (found[short]["journal_id"], found[short]["problem"]) == (
        None,
        "is shorter than 16 bytes: it counts as none",
    )
    assert (found[old]["counts"], found[old]["journal_id"]) == (False, journal_id - 1000)
    assert "names a journal that does not exist" in found[old]["problem"]
    assert f"names offset {1 << 40} of " in found[far]["problem"]
    assert (found[missing]["journal_id"], found[missing]["problem"], found[missing]["counts"]) == (None, None, False)
    third = found[damaged.directory / "ledgers2" / "current" / "lastMark.0"]
    assert (third["counts"], third["offset"]) == (True, offset)
    assert len(error.splitlines()) == 3
    one_journal = ["--journal-dir", damaged.directory / "journal0", "--ledger-dir", damaged.directory / "ledgers2"]
    status, printed, error = run("lastmark", *one_journal)
    assert status == 3
    assert "belongs to another number of journals than 1: give all journalDirectories, in order" in error


@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_directories(stopped: StoppedBookie, tmp_path: Path, run: Run, command: tuple[str, ...]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    kinds = ("--journal-dir", "--ledger-dir", "--index-dir")

    def wrong(path: Path) -> str:
        status, printed, error = run(*command, *(part for kind in kinds for part in (kind, path)))
        assert (status, printed) == (1, ""), command
        assert len(error.splitlines()) == 1
        return error

    assert f"directory {tmp_path}/none (" in wrong(tmp_path / "none")
    assert "does not exist; correct the option" in wrong(tmp_path / "none")
    assert "is not a directory" in wrong(tmp_path / "file")
    assert "has no directory 'current': no bookie has used it" in wrong(tmp_path / "empty")
    assert "give the directory above it" in wrong(stopped.directory / "journal0" / "current")
    status, _, error = run(*command)
    assert (status, "of the bookie? Give its configuration file with --conf FILE, or --" in error) == (1, True)
    status, _, error = run(*command, *stopped.conf, "--ledger-dir", tmp_path)
    assert (status, "give either --conf or directories, not both" in error) == (1, True)
    status, _, error = run(*command, "--conf", tmp_path / "none")
    assert (status, f"cannot read configuration file {tmp_path}/none" in error) == (1, True)


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_changed(damaged: StoppedBookie, run: Run, command: tuple[str, ...]) -> None:
    """Where nothing may be written, either."""
    for path in (damaged.directory, *damaged.directory.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = damaged.state()
    try:
        assert run(*command, *damaged.conf)[0] == 0
        assert damaged.state() == before
    finally:
        for path in (damaged.directory, *damaged.directory.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.fixture
def held(damaged: StoppedBookie) -> Iterator[StoppedBookie]:
    """A bookie of ours seems to run: one of its directories is locked."""
    fd = os.open(damaged.directory / "ledgers1", os.O_RDONLY)
    other = os.open(damaged.directory / "journal1", os.O_RDONLY)
    try:
        for each in (fd, other):
            fcntl.flock(each, fcntl.LOCK_EX)
        yield damaged
    finally:
        os.close(fd)
        os.close(other)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_running_bookie_needs_force(held: StoppedBookie, run: Run, command: tuple[str, ...]) -> None:
    status, printed, error = run(*command, *held.conf)
    assert (status, printed) == (1, "")
    assert "a bookie runs on " in error
    assert "Stop the bookie first, or give --force" in error
    status, printed, error = run(*command, *held.conf, "--force")
    assert (status, "it may change what is read meanwhile" in error) == (0, True)
    assert printed


def test_a_file_open_for_writing_is_a_running_bookie(damaged: StoppedBookie, run: Run) -> None:
    """As Apache's bookie has it, which takes no lock. A reader is none."""
    path = damaged.files("log")[-1]
    script = f"file = open({str(path)!r}, '{{}}'); print('open', flush=True); input()"
    for mode, status in (("rb", 0), ("ab", 1)):
        with subprocess.Popen(
            [sys.executable, "-c", script.format(mode)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "open\n"
            found, _, error = run("lastmark", *damaged.conf)
            other.communicate("\n")
        assert found == status, error
        assert (f"process {other.pid} has {path.resolve()} open for writing" in error) == (status == 1)


def test_a_link_to_a_file_of_a_running_bookie_is_that_file(held: StoppedBookie, tmp_path: Path, run: Run) -> None:
    link = tmp_path / "copy.log"
    (log,) = [path for path in held.files("log") if "ledgers1" in str(path)][:1]
    link.symlink_to(log)
    status, printed, error = run("readlog", link)
    assert (status, printed, "a bookie runs on " in error) == (1, "", True)
    assert run("readlog", link, "--force")[0] == 0


def test_a_path_and_directories_are_not_given_together(stopped: StoppedBookie, run: Run) -> None:
    log, journal = stopped.files("log")[0], stopped.files("txn")[0]
    for command, path in (("readlog", log), ("readlogmetadata", log), ("readjournal", journal)):
        for options in (stopped.conf, ("--ledger-dir", log.parent.parent), ("--journal-dir", journal.parent.parent)):
            status, printed, error = run(command, path, *options)
            assert (status, printed) == (1, "")
            assert "is a path, so --conf and directories would not be used" in error


def test_a_directory_that_may_not_be_read(stopped: StoppedBookie, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    open_file, denied = os.open, os.path.realpath(stopped.directory / "ledgers1")

    def deny(path: object, *arguments: object, **named: object) -> int:
        if path == denied:
            raise PermissionError(13, "Permission denied", denied)
        return open_file(path, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", deny)
    status, printed, error = run("lastmark", *stopped.conf)
    assert (status, printed) == (1, "")
    assert f"{denied} cannot be opened: Permission denied. Run this as the user of the bookie" in error
    assert "Stop the bookie" not in error


@pytest.mark.parametrize("evil", ["\x1b[2J", "\x7f", "\x9b2J", "\u2028", "\u202e", "\U000e0001"])
def test_payloads_do_not_control_the_terminal(evil: str, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    _, text = Payloads(DigestFinder(None), False).shown(memoryview(pack_entry(
        7, 0, -1, 9, f"käse{evil}\n".encode(), digest_function(DigestType.CRC32C, b""))))  # fmt: skip
    assert text.replace("\t", "").isprintable()
    print_json_line({"value": f"käse{evil}"})
    printed = capsysbinary.readouterr().out.decode().removesuffix("\n")
    assert printed.isprintable()
    assert json.loads(printed) == {"value": f"käse{evil}"}
    shown = text.rpartition("\t")[2]
    assert json.loads(shown) == f"käse{evil}\n"
    assert shown.startswith('"käse')


def test_our_bookie_does_not_start_where_its_files_are_read_and_the_other_way_round(
    tmp_path: Path, zk_only: LocalCluster, run: Run
) -> None:
    uri = new_cluster(zk_only, tmp_path.name)
    with Bookies(tmp_path / "bookies", uri, [LocalBookie], bookie_settings(tmp_path / "data", 1, 1)) as bookies:
        (bookie,) = bookies.bookies
        status, _, error = run("lastmark", "--conf", bookie.conf_path)
        assert (status, "a bookie runs on " in error) == (1, True)
        assert run("lastmark", "--conf", bookie.conf_path, "--force")[0] == 0
        assert bookie.terminate()
        assert run("lastmark", "--conf", bookie.conf_path)[0] == 0
        fd = os.open(tmp_path / "data" / "ledgers0", os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            assert run("lastmark", "--conf", bookie.conf_path)[0] == 0
            bookie.start()
            with pytest.raises(Exception, match="or by bkctl, which reads it"):
                bookie.wait_registered()
        finally:
            os.close(fd)


def test_the_index_of_rocksdb_is_not_read(damaged: StoppedBookie, tmp_path: Path, run: Run) -> None:
    text = damaged.conf_path.read_text("utf-8")
    damaged.conf_path.write_text(
        f"{text}\nledgerStorageClass=org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage\n"
    )
    status, _, error = run("listfilesondisc", "--index", *damaged.conf)
    assert (status, "the index of Apache's DbLedgerStorage is in RocksDB" in error) == (1, True)
    assert run("listfilesondisc", "--journal", "--entrylog", *damaged.conf)[0] == 0
    place = tmp_path / "db" / "current"
    for name in ("ledgers", "locations"):
        (place / name).mkdir(parents=True)
        (place / name / "CURRENT").touch()
    status, _, error = run("listfilesondisc", "--index", "--ledger-dir", place.parent)
    assert (status, "is in RocksDB" in error) == (1, True)
    for name in ("ledgers", "locations"):
        shutil.rmtree(place / name)
    assert run("listfilesondisc", "--index", "--ledger-dir", place.parent) == (0, "", "")


def test_a_bookie_that_was_killed(tmp_path: Path, zk_only: LocalCluster, run: Run) -> None:
    """All that was acknowledged is in the journal, and nothing counts as damaged."""
    uri = new_cluster(zk_only, tmp_path.name)
    with Bookies(tmp_path / "bookies", uri, [LocalBookie], bookie_settings(tmp_path / "data", 1, 1)) as bookies:
        (bookie,) = bookies.bookies
        shelf = Shelf(uri)
        shelf.fill_and_kill(bookie)
    conf = ("--conf", bookie.conf_path)
    status, printed, error = run("readjournal", "--json", "--msg", *conf)
    assert status == 0, error
    (volume,) = shelf.volumes
    entries = {one["entry"]: one["value"] for one in json_lines(printed) if one["kind"] == "entry"}
    assert [entries[n] for n in range(len(volume.payloads))] == [payload.decode() for payload in volume.payloads]
    status, printed, error = run("localconsistencycheck", *conf)
    assert (status, "the bookie was not shut down cleanly, or it is running" in error) == (0, True), printed
