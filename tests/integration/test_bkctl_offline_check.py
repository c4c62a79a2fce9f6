"""``bkctl localconsistencycheck`` finds every kind of damage in index files and entry logs, and none in whole ones."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.digest import digest_function
from bk_spark.protocol.entries.entry import pack_entry
from bookie_server.offline.consistency import ProblemKind
from bookie_server.storage.entrylog import entry_log
from bookie_server.storage.index.index import IndexHeader, relative_path
from tests.integration.test_bkctl_terminal import BKCTL, terminal
from tests.interop.shelf import PASSWORD
from tests.support.stopped_bookie import Run, StoppedBookie, json_lines

_MASK = (1 << 32) - 1


def index_of(bookie: StoppedBookie, ledger_id: int) -> Path:
    (path,) = bookie.directory.rglob(f"{ledger_id:x}.idx")
    return path


def log_of(bookie: StoppedBookie, location: int) -> Path:
    (path,) = bookie.directory.rglob(f"{location >> 32:x}.log")
    return path


def location(index: Path, entry_id: int) -> int:
    (found,) = struct.unpack_from(">q", index.read_bytes(), 1024 + 8 * entry_id)
    assert found
    return int(found)


def change(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def set_location(index: Path, entry_id: int, value: int) -> None:
    change(index, 1024 + 8 * entry_id, struct.pack(">q", value))


def found(run: Run, bookie: StoppedBookie, *arguments: object) -> list[tuple[object, ...]]:
    """Kind, ledger, first and last entry of each problem."""
    status, printed, error = run("localconsistencycheck", "--json", *arguments, *bookie.conf)
    *problems, summary = json_lines(printed)
    assert error == ""
    assert summary["problems"] == len(problems)
    assert status == (3 if problems else 0)
    return [(one["problem"], one["ledger"], one["first_entry"], one["last_entry"]) for one in problems]


def test_whole_directories(stopped: StoppedBookie, run: Run) -> None:
    status, printed, error = run("localconsistencycheck", *stopped.conf)
    ledgers, entries = len(stopped.files("idx")), sum(len(volume.payloads) for volume in stopped.volumes)
    assert (status, error) == (0, "")
    assert printed == f"{ledgers} ledgers and {entries} entries checked, digest unknown of 0: no problems\n"
    one = stopped.volumes[1]
    (summary,) = json_lines(run("localconsistencycheck", "--json", "--ledger", one.ledger_id, *stopped.conf)[1])
    assert summary == {"ledgers": 1, "entries": len(one.payloads), "digest_unknown": 0, "problems": 0}


def test_wrong_locations(damaged: StoppedBookie, run: Run) -> None:
    ledger_id = damaged.volumes[1].ledger_id
    index = index_of(damaged, ledger_id)
    where = location(index, 0)
    size = log_of(damaged, where).stat().st_size
    wrong = {
        2: (where + 8, ProblemKind.WRONG_ENTRY),
        4: (location(index, 5), ProblemKind.WRONG_ENTRY),
        6: (-where, ProblemKind.BAD_LOCATION),
        8: (where & ~_MASK | 1027, ProblemKind.BAD_LOCATION),
        10: (0x7FFFFFFF << 32 | 2000, ProblemKind.LOG_MISSING),
        12: (where & ~_MASK | size, ProblemKind.BEYOND_END),
        14: (where & ~_MASK | _MASK, ProblemKind.BEYOND_END),
    }
    for entry_id, (value, _) in wrong.items():
        set_location(index, entry_id, value)
    assert found(run, damaged) == [(kind.value, ledger_id, n, n) for n, (_, kind) in wrong.items()]
    assert found(run, damaged, "--ledger", damaged.volumes[2].ledger_id) == []
    status, printed, _ = run("localconsistencycheck", *damaged.conf)
    first, *_, last = printed.splitlines()
    assert first.startswith(f"wrong-entry\t{ledger_id}\t2\t2\t{log_of(damaged, where).resolve()}: at offset ")
    assert (status, last.endswith(f": {len(wrong)} problems")) == (3, True)


def test_flipped_bytes_of_entries(damaged: StoppedBookie, run: Run) -> None:
    ledger_id = damaged.volumes[1].ledger_id
    index = index_of(damaged, ledger_id)
    flipped = {}
    for entry_id, byte, kind in (
        (0, 40, ProblemKind.WRONG_DIGEST),  # payload; the digest's type is found at a later entry
        (3, 33, ProblemKind.WRONG_DIGEST),
        (5, 17, ProblemKind.WRONG_DIGEST),  # last add confirmed
        (7, 3, ProblemKind.WRONG_ENTRY),
        (9, 12, ProblemKind.WRONG_ENTRY),
        (11, -4, ProblemKind.WRONG_ENTRY),  # size
    ):
        where = location(index, entry_id)
        log = log_of(damaged, where)
        at = (where & _MASK) + byte
        change(log, at, bytes([log.read_bytes()[at] ^ 0x80]))
        flipped[entry_id] = kind
    assert sorted(found(run, damaged)) == sorted((kind.value, ledger_id, n, n) for n, kind in flipped.items())


def test_lost_and_truncated_logs(damaged: StoppedBookie, run: Run) -> None:
    """Consecutive entries are one problem."""
    volume = damaged.volumes[0]
    index = index_of(damaged, volume.ledger_id)
    logs = Counter(log_of(damaged, location(index, n)) for n in range(len(volume.payloads)))
    lost = logs.most_common(1)[0][0]
    lost.rename(lost.with_suffix(".away.log"))  # the bookie would not find it either
    problems = [one for one in found(run, damaged) if one[1] == volume.ledger_id]
    assert {one[0] for one in problems} == {"log-missing"}
    assert sum(last - first + 1 for _, _, first, last in problems) == logs[lost]  # type: ignore[operator]
    assert len(problems) < logs[lost] / 10
    lost.with_suffix(".away.log").rename(lost)
    places = sorted(
        location(index, n) & _MASK for n in range(len(volume.payloads)) if log_of(damaged, location(index, n)) == lost
    )
    middle = places[len(places) // 2]
    os.truncate(lost, middle + 20)
    kinds = Counter(one[0] for one in found(run, damaged))
    # Its map of ledgers is gone, too, if it had one.
    assert set(kinds) <= {"beyond-end", "log-header"}
    ends = [one for one in found(run, damaged, "--ledger", volume.ledger_id) if one[0] == "beyond-end"]
    assert sum(last - first + 1 for _, _, first, last in ends) == len(places) - len(places) // 2  # type: ignore[operator]


def test_damaged_headers(damaged: StoppedBookie, run: Run) -> None:
    index = index_of(damaged, damaged.volumes[1].ledger_id)
    change(index, 0, b"X")
    change(damaged.files("log")[0], 0, b"X")
    assert found(run, damaged) == [
        ("log-header", None, None, None),
        ("index-unreadable", damaged.volumes[1].ledger_id, None, None),
    ]
    for at, content in ((4, b"\x7f"), (8, b"\x7f")):
        change(index, 0, b"BKLE\0\0\0\1\0\0\0\x14")
        change(index, at, content)
        assert found(run, damaged, "--ledger", damaged.volumes[1].ledger_id)[-1][0] == "index-unreadable"


def test_truncated_and_empty_indexes(damaged: StoppedBookie, run: Run) -> None:
    ledger_id = damaged.volumes[1].ledger_id
    index = index_of(damaged, ledger_id)
    os.truncate(index, 1024 + 8 * 10 + 3)
    assert found(run, damaged) == [("index-truncated", ledger_id, None, None)]
    for size in (500, 0):
        os.truncate(index, size)
        kinds = [kind for kind, *_ in found(run, damaged)]
        assert kinds == (["index-unreadable", "index-truncated"] if size == 0 else ["index-truncated"])
    # A bookie that was killed leaves empty files: their entries are in the journal.
    (damaged.directory / "ledgers1" / "current" / "DIRTY").touch()
    status, _, error = run("localconsistencycheck", *damaged.conf)
    assert status == 0
    assert "the bookie was not shut down cleanly, or it is running" in error


def test_a_ledger_without_an_index_file(damaged: StoppedBookie, run: Run) -> None:
    ledger_id = damaged.volumes[1].ledger_id
    index_of(damaged, ledger_id).unlink()
    assert found(run, damaged, "--ledger", ledger_id) == [("index-missing", ledger_id, None, None)]
    status, printed, _ = run("localconsistencycheck", "--ledger", ledger_id, *damaged.conf)
    assert (status, f"no index file of ledger {ledger_id}" in printed) == (3, True)
    assert found(run, damaged, "--ledger", damaged.volumes[2].ledger_id) == []


def test_index_files_that_no_bookie_finds(damaged: StoppedBookie, run: Run) -> None:
    index = index_of(damaged, damaged.volumes[1].ledger_id)
    relative = index.relative_to(damaged.directory).parts[1:]
    home = index.relative_to(damaged.directory).parts[0]
    other = next(path for path in sorted(damaged.directory.glob("ledgers*")) if path.name > home or home == "ledgers2")
    twin = other.joinpath(*relative)
    twin.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(index, twin)
    assert found(run, damaged) == [("index-unused", None, None, None)]
    twin.rename(twin.with_name("fffff.idx"))
    assert found(run, damaged) == [("index-unused", None, None, None)]
    twin.with_name("fffff.idx").rename(twin.with_name("what.idx"))
    assert found(run, damaged) == [("index-unused", None, None, None)]


def test_digests_that_are_not_known(tmp_path: Path, run: Run) -> None:
    """HMAC needs the password. Where it is given, a wrong digest is damage."""
    current = tmp_path / "data" / "ledgers0" / "current"
    current.mkdir(parents=True)
    digest = digest_function(DigestType.HMAC, PASSWORD)
    entries = [pack_entry(7, n, n - 1, 9, b"payload %d" % n, digest) for n in range(3)]
    entries[1] = entries[1][:-1] + b"?"
    content, places = entry_log.file_header(), []
    for entry in entries:
        content += len(entry).to_bytes(4, "big")
        places.append(1 << 32 | len(content))
        content += entry
    (current / "1.log").write_bytes(content)
    index = current / relative_path(7)
    index.parent.mkdir(parents=True)
    index.write_bytes(IndexHeader(b"key", False, None).encode() + struct.pack(">3q", *places).ljust(8192, b"\0"))
    options = ("--ledger-dir", current.parent)
    status, printed, _ = run("localconsistencycheck", *options)
    assert (status, printed) == (0, "1 ledgers and 3 entries checked, digest unknown of 3: no problems\n")
    password_file = tmp_path / "password"
    password_file.write_bytes(PASSWORD)
    status, printed, _ = run("localconsistencycheck", "--password-file", password_file, "--json", *options)
    first, summary = json_lines(printed)
    assert (status, first["problem"], first["first_entry"]) == (3, "wrong-digest", 1)
    assert summary["digest_unknown"] == 0
    # Without any entry that is right, nothing says what the digest is.
    password_file.write_bytes(b"wrong")
    assert run("localconsistencycheck", "--password-file", password_file, *options)[1].endswith("of 3: no problems\n")


@pytest.mark.parametrize("command", [("localconsistencycheck",), ("readjournal",), ("readlog", "1")])
def test_progress_is_drawn_on_a_terminal_only(stopped: StoppedBookie, tmp_path: Path, command: tuple[str, ...]) -> None:
    output = tmp_path / "out"
    with output.open("wb") as out, terminal(*BKCTL, *command, *stopped.conf, stdout=out.fileno()) as drawn:
        drawn.until(r"bytes[a-z ]* \[[#-]+\] ")
        assert drawn.ended() == 0
    assert "\x1b" not in output.read_text()
    assert output.read_text()
    done = subprocess.run([*BKCTL, *command, *stopped.conf], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
