"""``bkctl readjournal`` on journals of our bookie, whole and damaged."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path

import pytest

from bk_spark.protocol.entries.digest import master_key
from bk_spark.protocol.entries.entry import pack_lac
from bookie_server.storage.journal import journal
from bookie_server.storage.journal.journal_reader import JournalReader
from tests.interop.shelf import PASSWORD
from tests.support.running_storage import stored
from tests.support.stopped_bookie import Run, StoppedBookie, json_lines

_OVERHEAD = 32 + 4
SECRET = b"the key of a ledger!"
NONCE = bytes(range(16))


def by_kind(printed: str, kind: str) -> list[dict[str, object]]:
    return [one for one in json_lines(printed) if one["kind"] == kind]


def test_everything_that_was_written(stopped: StoppedBookie, run: Run) -> None:
    status, printed, error = run("readjournal", "--msg", "--json", *stopped.conf)
    assert (status, error) == (0, "")
    paths = [one["path"] for one in by_kind(printed, "journal")]
    assert paths == list(map(str, stopped.files("txn")))
    assert len(paths) > 2
    payloads = {
        (volume.ledger_id, entry_id): payload.decode()
        for volume in stopped.volumes
        for entry_id, payload in enumerate(volume.payloads)
    }
    entries = {(one["ledger"], one["entry"]): one for one in by_kind(printed, "entry")}
    assert {key: one["value"] for key, one in entries.items()} == payloads
    assert all(one["bytes"] == len(payloads[key]) + _OVERHEAD for key, one in entries.items())
    assert {one["ledger"] for one in by_kind(printed, "fence")} == {v.ledger_id for v in stopped.volumes if v.fenced}
    lacs = {one["ledger"]: one["lac"] for one in by_kind(printed, "explicitlac")}
    assert lacs == {v.ledger_id: len(v.payloads) - 1 for v in stopped.volumes if v.explicit_lac}
    assert {one["ledger"] for one in by_kind(printed, "masterkey")} >= {ledger_id for ledger_id, _ in payloads}
    assert not by_kind(printed, "other")
    # Places: each record is where it is said to be, and groups follow one another.
    content = b""
    for one in json_lines(printed):
        if one["kind"] == "journal":
            content = Path(one["path"]).read_bytes()
            continue
        (length,) = struct.unpack_from(">i", content, one["offset"])
        assert length == (journal.PADDING_MASK if one["kind"] == "seal" else one["bytes"])
    seals = by_kind(printed, "seal")
    assert sum(one["group_start"] == 512 for one in seals) == len(paths)
    assert all(one["group_end"] == one["offset"] for one in seals)


def test_keys_and_passwords_are_never_printed(stopped: StoppedBookie, tmp_path: Path, run: Run) -> None:
    password_file = tmp_path / "password"
    password_file.write_bytes(PASSWORD)
    key = master_key(PASSWORD)
    assert any(key in path.read_bytes() for path in stopped.files("txn"))
    for options in ((), ("--json",), ("--msg",), ("--hex", "--json"), ("--hex",)):
        status, printed, error = run("readjournal", *options, "--password-file", password_file, *stopped.conf)
        assert status == 0
        for secret in (key.hex(), repr(key), PASSWORD.hex()):
            assert secret not in printed + error


def test_one_journal_and_filters(stopped: StoppedBookie, run: Run) -> None:
    path = stopped.files("txn")[0]
    everything = run("readjournal", path)
    assert everything[0] == 0
    assert everything[1].splitlines()[0] == f"journal\t{path}"
    twins = [one for one in stopped.files("txn") if one.name == path.name]
    for name in (path.name, int(path.stem, 16)):
        printed = run("readjournal", name, *stopped.conf)[1]
        assert printed == "".join(run("readjournal", one)[1] for one in twins)
        assert run("readjournal", name, "--journal-dir", path.parent.parent) == everything
    rows = [line.split("\t") for line in everything[1].splitlines()[1:]]
    ledger = next(row[1] for row in rows if row[0] == "entry")
    of_ledger = [row for row in rows if row[1] == ledger]

    def read(*arguments: object) -> list[list[str]]:
        return [line.split("\t") for line in run("readjournal", path, *arguments)[1].splitlines()[1:]]

    assert read("--ledger", ledger) == of_ledger
    assert {row[0] for row in of_ledger} >= {"entry", "masterkey"}
    chosen = [row for row in rows if row[0] == "entry" and 2 <= int(row[2]) <= 4]
    assert read("--first-entry", 2, "--last-entry", 4) == chosen
    assert len(chosen) > 3
    for name, says in (
        ("fff.txn", "no journal fff.txn in "),
        ("1.log", "'1.log' is not a journal"),
        ("/x.txn", "does not"),
    ):
        status, printed, error = run("readjournal", name, *(() if "/" in name else stopped.conf))
        assert (status, printed, says in error) == (1, "", True)


def group(at: int, *entries: bytes) -> bytes:
    body = b"".join(len(entry).to_bytes(4, "big") + entry for entry in entries)
    return body + journal.group_end(NONCE, at, [body], len(body))


def write_groups(path: Path, *groups: list[bytes]) -> list[int]:
    """A journal of ours; returns where each group begins, and the end."""
    content, starts = journal.file_header(NONCE), []
    for entries in groups:
        starts.append(len(content))
        content += group(len(content), *entries)
    path.write_bytes(content + bytes(4096))
    return [*starts, len(content)]


def entries_of(printed: str) -> list[tuple[object, object]]:
    return [(one["ledger"], one["entry"]) for one in by_kind(printed, "entry")]


@pytest.fixture
def three(tmp_path: Path) -> tuple[Path, list[int]]:
    """A journal of three groups, of which the second is large."""
    path = tmp_path / "b" / "current" / "1.txn"
    path.parent.mkdir(parents=True)
    return path, write_groups(
        path,
        [journal.master_key_record(7, SECRET)[4:], stored(7, 0), journal.fence_record(7)[4:]],
        [stored(7, n, 2000) for n in range(1, 4)],
        [stored(7, 4), journal.explicit_lac_record(7, pack_lac(7, 3, lambda header, payload: b"1234"))[4:]],
    )


def test_records_of_every_kind(three: tuple[Path, list[int]], run: Run) -> None:
    path, _ = three
    status, printed, error = run("readjournal", path, "--json")
    assert (status, error) == (0, "")
    kinds = [one["kind"] for one in json_lines(printed)]
    assert kinds == [
        "journal",
        "masterkey",
        "entry",
        "fence",
        "seal",
        *["entry"] * 3,
        "seal",
        "entry",
        "explicitlac",
        "seal",
    ]
    assert by_kind(printed, "explicitlac")[0]["lac"] == 3
    (lines, text) = printed, run("readjournal", path, "--hex")[1]
    for secret in (SECRET.decode(), SECRET.hex()):
        assert secret not in lines + text
    odd = struct.pack(">qq", 7, -0x7000)
    write_groups(path, [odd])
    (one,) = by_kind(run("readjournal", path, "--json")[1], "other")
    assert (one["ledger"], one["entry"]) == (7, -0x7000)


def test_a_truncated_journal(three: tuple[Path, list[int]], run: Run) -> None:
    """The newest one may end in the middle of a write. One that others follow may not."""
    path, (first, second, *_) = three
    content = path.read_bytes()
    path.write_bytes(content[: second + 500])
    status, printed, error = run("readjournal", path, "--json")
    assert (status, entries_of(printed)) == (0, [(7, 0)])
    assert f"{path}: no record begins at offset {second}" in error
    write_groups(path.with_name("2.txn"), [stored(8, 0)])
    status, printed, error = run("readjournal", "--journal-dir", path.parent.parent, "--json")
    assert (status, entries_of(printed)) == (3, [(7, 0), (8, 0)])
    assert f"journal {path} is damaged at offset {second}" in error
    path.write_bytes(content[:first])
    assert run("readjournal", path)[0] == 0
    path.write_bytes(b"")
    status, printed, error = run("readjournal", path)
    assert (status, printed, error) == (0, f"journal\t{path}\n", "")


def test_flipped_bytes(three: tuple[Path, list[int]], run: Run) -> None:
    path, (_, second, third, _) = three
    content = path.read_bytes()
    header = "has a damaged header: its checksum is wrong"
    for at, status, entries, says in (
        (0, 3, 0, "does not begin with BKLG"),
        (7, 3, 0, "has format version"),
        (20, 3, 0, header),
        (33, 3, 0, header),
        (second, 3, 1, f"is damaged at offset {second}"),
        (second + 100, 3, 1, f"records synced later begin at offset {third}"),
        (third + 30, 0, 4, f"no record begins at offset {third}"),
    ):
        damaged = bytearray(content)
        damaged[at] ^= 0x55
        path.write_bytes(damaged)
        found, printed, error = run("readjournal", path, "--json")
        assert (found, len(entries_of(printed))) == (status, entries), (at, error)
        assert says in error
        assert len(error.splitlines()) == 1


def test_other_files(stopped: StoppedBookie, tmp_path: Path, run: Run) -> None:
    for name, content in (
        ("log", stopped.files("log")[0].read_bytes()),
        ("text", b"some text\n" * 1000),
        ("zeros", bytes(5000)),
        ("half", journal.file_header(NONCE)[:10]),
    ):
        path = tmp_path / f"{name}.txn"
        path.write_bytes(content)
        status, _, error = run("readjournal", path)
        is_begun = name in ("zeros", "half")
        assert status == (0 if is_begun else 3), name
        assert ("not a journal file" in error) is not is_begun


def test_pieces_hold_what_items_say(stopped: StoppedBookie) -> None:
    """Replay and ``readjournal`` cut the same records."""
    path = str(max(stopped.files("txn"), key=lambda one: one.stat().st_size))
    pieces = list(JournalReader(path).pieces())
    assert sum(len(piece.starts) for piece in pieces) > 0
    for before, after in pairwise(pieces):
        assert before.position + before.end == after.position
