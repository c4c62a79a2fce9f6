"""``bkctl readlog`` and ``readlogmetadata`` on entry logs of our bookie, whole and damaged."""

from __future__ import annotations

import base64
import json
import shlex
import shutil
import struct
import subprocess
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.digest import digest_function
from bk_spark.protocol.entries.entry import pack_entry
from bookie_server.storage.entrylog import entry_log
from tests.integration.test_bkctl_terminal import BKCTL
from tests.interop.shelf import PASSWORD
from tests.support.stopped_bookie import Run, StoppedBookie, json_lines

#: Header and digest of an entry.
_OVERHEAD = 32 + 4


def records_of(path: Path) -> Iterator[tuple[int, int, int, int]]:
    """Ledger, entry, offset and size of what a sound log holds, read as the format says."""
    data = path.read_bytes()
    at = 1024
    while at < len(data):
        size, ledger_id, entry_id = struct.unpack_from(">iqq", data, at)
        if ledger_id >= 0:
            yield ledger_id, entry_id, at, size
        at += 4 + size


def found(printed: str) -> list[tuple[int, ...]]:
    return [tuple(map(int, line.split("\t"))) for line in printed.splitlines()]


def test_every_entry_of_every_log(stopped: StoppedBookie, run: Run) -> None:
    payloads = {
        (volume.ledger_id, entry_id): payload.decode()
        for volume in stopped.volumes
        for entry_id, payload in enumerate(volume.payloads)
    }
    seen = set()
    for log in stopped.files("log"):
        expected = list(records_of(log))
        for name in (log.name, int(log.stem, 16), log):
            status, printed, error = run("readlog", name, *(() if name == log else stopped.conf))
            assert (status, error) == (0, "")
            assert found(printed) == expected
        status, printed, error = run("readlog", log.name, "--msg", "--json", *stopped.conf)
        for one, (ledger_id, entry_id, offset, size) in zip(json_lines(printed), expected, strict=True):
            value = payloads[ledger_id, entry_id]
            lac = one.pop("last_add_confirmed")
            assert -1 <= lac < entry_id
            assert one == {"ledger": ledger_id, "entry": entry_id, "offset": offset, "bytes": size,
                           "digest": "CRC32C", "value": value}  # fmt: skip
            assert size == len(value) + _OVERHEAD
            seen.add((ledger_id, entry_id))
    assert seen == payloads.keys()


def test_filters(stopped: StoppedBookie, run: Run) -> None:
    log = max(stopped.files("log"), key=lambda path: len({one[0] for one in records_of(path)}))
    everything = list(records_of(log))
    ledger_id, entry_id, offset, size = everything[len(everything) // 2]

    def read(*arguments: object) -> list[tuple[int, ...]]:
        status, printed, error = run("readlog", log, *arguments)
        assert (status, error) == (0, "")
        return found(printed)

    assert len({one[0] for one in everything}) > 1
    assert read("--ledger", ledger_id) == [one for one in everything if one[0] == ledger_id]
    one_entry = read("--ledger", ledger_id, "--first-entry", entry_id, "--last-entry", entry_id)
    assert one_entry == [(ledger_id, entry_id, offset, size)]
    assert read("--first-entry", 3, "--last-entry", 5) == [one for one in everything if 3 <= one[1] <= 5]
    # Any byte of an entry's record, its size field's first and its own last, leads to it.
    for at in (offset, offset + 3, offset + 4, offset + 3 + size):
        assert read("--start-pos", at, "--end-pos", at) == [(ledger_id, entry_id, offset, size)]
    assert read("--start-pos", offset + 4 + size) == everything[len(everything) // 2 + 1 :]
    assert read("--end-pos", offset - 1) == everything[: len(everything) // 2]
    assert read("--ledger", 999_999) == []
    for first, last in (("--first-entry", "--last-entry"), ("--start-pos", "--end-pos")):
        status, _, error = run("readlog", log, first, 5, last, 4)
        assert (status, error) == (1, f"bkctl: {first} 5 is after {last} 4\n")


def test_bytes_of_ledgers(stopped: StoppedBookie, run: Run) -> None:
    whole = 0
    for log in stopped.files("log"):
        expected: dict[int, int] = {}
        for ledger_id, _, _, size in records_of(log):
            expected[ledger_id] = expected.get(ledger_id, 0) + 4 + size
        status, printed, error = run("readlogmetadata", log.name, "--json", *stopped.conf)
        assert (status, error) == (0, "")
        one = json.loads(printed)
        assert {each["ledger"]: each["bytes"] for each in one["ledgers"]} == expected
        assert one["total_bytes"] == sum(expected.values())
        has_map = struct.unpack_from(">8xq", log.read_bytes())[0] != 0
        assert one["from_map"] is has_map
        whole += has_map
        shown = run("readlogmetadata", log)[1].splitlines()
        assert ("the map in the file" if has_map else "a scan") in shown[1]
        assert found("\n".join(shown[4:])) == sorted(expected.items())
    assert whole


def write_log(path: Path, *entries: bytes) -> Path:
    records = [len(entry).to_bytes(4, "big") + entry for entry in entries]
    path.write_bytes(entry_log.file_header() + b"".join(records))
    return path


def test_payloads_of_every_digest(tmp_path: Path, run: Run) -> None:
    binary = b"\xff\x00 not text"
    kinds = [DigestType.CRC32, DigestType.CRC32C, DigestType.HMAC, DigestType.DUMMY]
    digests = [digest_function(kind, PASSWORD) for kind in kinds]
    entries = [pack_entry(7, n, n - 1, 9, binary, digest) for n, digest in enumerate(digests)]
    log = write_log(tmp_path / "a.log", *entries, struct.pack(">qq", 7, 9))
    password_file = tmp_path / "password"
    password_file.write_bytes(PASSWORD)
    records = json_lines(run("readlog", log, "--msg", "--json")[1])
    assert [one["digest"] for one in records] == ["CRC32", "CRC32C", None, None, None]
    assert [base64.b64decode(one["value_base64"]) for one in records[:2]] == [binary, binary]
    # With an unknown digest it is shown with what comes before it.
    assert base64.b64decode(records[2]["value_base64"]) == entries[2][32:]
    assert (records[4]["last_add_confirmed"], records[4]["value"]) == (None, "")
    _, printed, error = run("readlog", log, "--hex", "--json", "--password-file", password_file)
    assert [one["digest"] for one in json_lines(printed)] == ["CRC32", "CRC32C", "HMAC", None, None]
    assert [one["value_hex"] for one in json_lines(printed)[:4]] == [binary.hex()] * 4
    assert PASSWORD.decode() not in printed + error
    assert (
        run("readlog", log, "--msg")[1].splitlines()[0] == f"7\t0\t1024\t{len(entries[0])}\t-1\tCRC32\t{binary.hex()}"
    )
    text = pack_entry(7, 0, -1, 5, "två\nrader".encode(), digests[1])
    assert run("readlog", write_log(tmp_path / "b.log", text), "--msg")[1].endswith('\tCRC32C\t"två\\nrader"\n')


def test_a_log_that_does_not_exist(stopped: StoppedBookie, tmp_path: Path, run: Run) -> None:
    for name, says in (
        ("fffff.log", "no entry log fffff.log in "),
        ("99999999", "no entry log 5f5e0ff.log in "),
        ("x.log", "'x.log' is not an entry log: give its id"),
        ("1.txn", "'1.txn' is not an entry log"),
        ("99999999999", "'99999999999' is not an entry log"),
        (tmp_path / "none.log", "does not exist, or is not a file"),
        (tmp_path, "does not exist, or is not a file"),
    ):
        for command in ("readlog", "readlogmetadata"):
            status, printed, error = run(command, name, *(() if isinstance(name, Path) else stopped.conf))
            assert (status, printed, says in error) == (1, "", True), error


def test_one_id_in_two_directories(damaged: StoppedBookie, run: Run) -> None:
    """As Apache's DbLedgerStorage has it."""
    log = damaged.files("log")[0]
    other = next(path for path in damaged.directory.glob("ledgers*/current") if path != log.parent)
    shutil.copy(log, other)
    status, _, error = run("readlog", log.name, *damaged.conf)
    assert (status, "several entry logs have this id; give the path of one" in error) == (1, True)
    assert run("readlog", other / log.name)[0] == 0


@pytest.mark.parametrize("keep", ["nothing", "half a header", "a header", "half an entry"])
def test_truncated_logs(damaged: StoppedBookie, run: Run, keep: str) -> None:
    log = max(damaged.files("log"), key=lambda path: path.stat().st_size)
    everything = list(records_of(log))
    middle = everything[len(everything) // 2]
    size = {"nothing": 0, "half a header": 500, "a header": 1024, "half an entry": middle[2] + 4 + middle[3] // 2}[keep]
    with log.open("r+b") as file:
        # While it is written, a log has no map.
        file.write(entry_log.file_header())
        file.truncate(size)
    expected = everything[: len(everything) // 2] if keep == "half an entry" else []
    wrong = {"half a header": "the file has 500 bytes, less than a header", "half an entry": f"no entry at {middle[2]}"}
    for command in ("readlog", "readlogmetadata"):
        status, printed, error = run(command, log)
        assert status == (3 if keep in wrong else 0), error
        assert wrong.get(keep, "") in error
        assert len(error.splitlines()) == (keep in wrong)
        if command == "readlog":
            assert found(printed) == expected
    if keep != "half an entry":
        return
    with log.open("r+b") as file:
        file.write(entry_log.file_header(1 << 40, 1))
    status, _, error = run("readlog", log)
    assert (status, "the header names a map of ledgers at 1099511627776, but the file has" in error) == (3, True)


def test_flipped_bytes(damaged: StoppedBookie, run: Run) -> None:
    log = max(damaged.files("log"), key=lambda path: path.stat().st_size)
    everything = list(records_of(log))
    before = log.read_bytes()
    middle = len(everything) // 2
    for at, says, lost in (
        (0, "the header does not begin with BKLO", None),
        (7, "the header has version", None),
        (everything[middle][2], f"no entry at {everything[middle][2]}", middle),
        (everything[middle][2] + 4, f"no entry at {everything[middle][2]}", middle),
    ):
        content = bytearray(before)
        content[at] ^= 0xF0
        log.write_bytes(content)
        status, printed, error = run("readlog", log)
        assert (status, says in error) == (3, True), error
        left = [one for n, one in enumerate(everything) if n != lost]
        assert found(printed) == left
    # The map of ledgers: its count.
    (map_offset,) = struct.unpack_from(">8xq", before)
    assert map_offset
    content = bytearray(before)
    content[map_offset + 20] ^= 0x7F
    log.write_bytes(content)
    status, printed, error = run("readlogmetadata", log)
    assert (status, "the map of ledgers is damaged; the file was scanned" in error) == (3, True)
    log.write_bytes(before)
    whole = run("readlogmetadata", log)
    assert whole[0] == 0
    assert printed.splitlines()[4:] == whole[1].splitlines()[4:]


def test_other_files(stopped: StoppedBookie, tmp_path: Path, run: Run) -> None:
    """A journal, text, zeros and noise are no entry logs: it ends, and says so."""
    noise = bytes((n * 7919 >> 5) & 0xFF for n in range(300_000))
    files = {"journal": stopped.files("txn")[0].read_bytes(), "text": b"some text\n" * 1000, "zeros": bytes(5000)}
    for name, content in (files | {"noise": noise}).items():
        path = tmp_path / f"{name}.log"
        path.write_bytes(content)
        status, _, error = run("readlog", path)
        assert (status, "this is not an entry log" in error) == (3, True), name


def test_a_large_log_takes_little_memory(tmp_path: Path, run: Run) -> None:
    """32 MiB of small entries, and one of 16 MiB among them."""
    digest = digest_function(DigestType.CRC32C, b"")
    small = pack_entry(7, 1, 0, 9, b"x" * 1000, digest)
    record = len(small).to_bytes(4, "big") + small
    count = (16 << 20) // len(record)
    large = pack_entry(8, 1, 0, 9, b"y" * (16 << 20), digest)
    path = tmp_path / "1.log"
    with path.open("wb") as file:
        file.write(entry_log.file_header())
        for some in (record * count, len(large).to_bytes(4, "big") + large, record * count):
            file.write(some)
    del some
    tracemalloc.start()
    try:
        status, printed, _ = run("readlog", path, "--ledger", 8)
        for_one = tracemalloc.get_traced_memory()[1]
        assert (status, found(printed)) == (0, [(8, 1, 1024 + count * len(record), len(large))])
        assert run("readlogmetadata", path)[1].splitlines()[-2:] == [
            f"7\t{2 * count * len(record)}",
            f"8\t{4 + len(large)}",
        ]
        assert max(for_one, tracemalloc.get_traced_memory()[1]) < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_reader_that_quits_is_no_error(stopped: StoppedBookie) -> None:
    log = max(stopped.files("log"), key=lambda path: path.stat().st_size)
    command = shlex.join([*BKCTL, "readlog", "--msg", str(log)])
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -c 10; echo; echo ${{PIPESTATUS[0]}}"], capture_output=True, timeout=60
    )
    assert done.stderr == b""
    assert done.stdout.splitlines()[-1] == b"0"
