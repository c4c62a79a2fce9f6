"""Apache's ``bookkeeper shell`` reads our bookie's directories."""

from __future__ import annotations

import shutil
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.protocol.entries.digest import master_key
from bookie_server.local import LocalBookie, LocalCluster
from tests.interop.apache import STOP_TIMEOUT_MS, ApacheBookie, Bookies
from tests.interop.java_shell import JavaShell, Output, Record
from tests.interop.shelf import DIRECTORIES, PASSWORD, Shelf, bookie_settings
from tests.support.clusters import new_cluster

pytestmark = [pytest.mark.timeout(600), pytest.mark.turns(2)]

#: What an entry has beside its payload: header and CRC32C digest; and before it in a log, its size.
_OVERHEAD: Final = 32 + 4
_SIZE_FIELD: Final = 4
_COLLECTED_OFTEN: Final = {
    "gcWaitTime": "300",
    "minorCompactionInterval": "1",
    "minorCompactionThreshold": "0.5",
    "majorCompactionInterval": "2",
    "majorCompactionThreshold": "0.95",
    "compactionRateByEntries": "100000",
}
_COMPACTION_TIMEOUT_S: Final = 60.0


@dataclass
class Stopped:
    """A bookie of ours that was stopped in order, its directories, and what the shell said while it ran."""

    conf_path: Path
    directory: Path
    shell: JavaShell
    shelf: Shelf
    sanity: Output
    read: dict[int, Output] = field(default_factory=dict)
    deleted_id: int = -1

    def run(self, *args: str) -> Output:
        return self.shell.run(self.conf_path, *args)

    def files(self, ending: str) -> list[Path]:
        return sorted(self.directory.rglob(f"current/**/*.{ending}"))

    def stored(self) -> set[tuple[int, int]]:
        """(ledger, entry) of everything that was written, the deleted ledger's included."""
        return {(v.ledger_id, entry_id) for v in self.shelf.volumes for entry_id in range(len(v.payloads))}

    def stored_size(self, ledger_id: int, entry_id: int) -> int:
        (payloads,) = (volume.payloads for volume in self.shelf.volumes if volume.ledger_id == ledger_id)
        return len(payloads[entry_id]) + _OVERHEAD


@pytest.fixture(scope="module", params=list(DIRECTORIES))
def stopped(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, zk_only: LocalCluster
) -> Iterator[Stopped]:
    """Rolled logs and journals in one directory of each kind, and in several."""
    directory = tmp_path_factory.mktemp(f"tools-{request.param}")
    uri = new_cluster(zk_only, directory.name)
    settings = bookie_settings(directory / "data", *DIRECTORIES[request.param])
    shelf = Shelf(uri)
    with JavaShell() as shell, Bookies(directory / "bookies", uri, [LocalBookie], settings) as bookies:
        (bookie,) = bookies.bookies
        shelf.fill(rounds=6)
        sanity = shell.run(bookie.conf_path, "bookiesanity", "-e", "25", "-t", "20")
        made = Stopped(bookie.conf_path, directory / "data", shell, shelf, sanity)
        for volume in shelf.volumes:
            if volume.payloads and not volume.explicit_lac:
                made.read[volume.ledger_id] = made.run("readledger", "-m", "-l", str(volume.ledger_id))
        with BlockingClient(uri) as client:
            # Its entries stay: nothing is collected so soon.
            made.deleted_id = shelf.volumes[0].ledger_id
            client.delete(made.deleted_id)
        assert bookie.terminate(STOP_TIMEOUT_MS)
        assert bookie.exit_code == 0, bookie.log_tail()
        yield made


def _number(record: Record, name: str) -> int:
    return int(record.values[name])


def _entries(output: Output) -> list[Record]:
    """The shell's first record of each entry of a log or a journal."""
    return [record for record in output.records("Entry", "FormatUtil") if "entrySize" in record.values]


def test_bookiesanity(stopped: Stopped) -> None:
    assert stopped.sanity.status == 0
    assert stopped.sanity.records("Bookie sanity test succeeded")
    (read,) = stopped.sanity.records("Read entries from ledger")
    assert read.values["entries"] == "25"


def test_readledger(stopped: Stopped) -> None:
    assert len(stopped.read) == 4
    for volume in stopped.shelf.volumes:
        if volume.ledger_id in stopped.read:
            output = stopped.read[volume.ledger_id]
            assert output.status == 0
            assert not output.errors()
            found = output.records("Entry", "ReadLedgerCommand")
            assert [_number(record, "entryId") for record in found] == list(range(len(volume.payloads)))
            assert {record.values["ledgerId"] for record in found} == {str(volume.ledger_id)}
            assert output.printed() == [payload.decode() for payload in volume.payloads]


def test_readlog(stopped: Stopped) -> None:
    logs = stopped.files("log")
    assert len({log.parent for log in logs}) == len({log.parent for log in stopped.directory.rglob("ledgers*/current")})
    assert len(logs) > 3
    places: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for log in logs:
        output = stopped.run("readlog", "-m", log.name)
        assert output.status == 0
        assert not output.errors()
        text = output.text
        for record in _entries(output):
            ledger_id, entry_id = _number(record, "ledgerId"), _number(record, "entryId")
            if (ledger_id, entry_id) in stopped.stored():
                place = int(log.stem, 16), _number(record, "position") + _SIZE_FIELD
                places.setdefault((ledger_id, entry_id), set()).add(place)
                assert _number(record, "entrySize") == stopped.stored_size(ledger_id, entry_id)
                assert f"entry {entry_id} of ledger {ledger_id} " in text
    assert set(places) == stopped.stored()
    for volume in stopped.shelf.volumes:
        index = _index(stopped, volume.ledger_id)
        assert set(index) == set(range(len(volume.payloads)))
        for entry_id, place in index.items():
            of_entry = places[volume.ledger_id, entry_id]
            assert place in of_entry
            # Recovery writes again what was after the last add confirmed, perhaps before the first is in a log.
            assert len(of_entry) == 1 or volume.fenced


def _index(stopped: Stopped, ledger_id: int) -> dict[int, tuple[int, int]]:
    found = {}
    for text in stopped.run("ledger", str(ledger_id)).printed():
        words = text.split()
        if words[0] == "entry" and words[-1] != "N/A":
            found[int(words[1])] = int(words[3].removeprefix("(log:").rstrip(",")), int(words[-1].rstrip(")"))
    return found


def test_readlog_of_one_entry(stopped: Stopped) -> None:
    volume = stopped.shelf.volumes[1]
    entry_id = len(volume.payloads) // 2
    (entry_log_id, _), *_ = [_index(stopped, volume.ledger_id)[entry_id]]
    output = stopped.run("readlog", "-m", "-l", str(volume.ledger_id), "-e", str(entry_id), f"{entry_log_id:x}.log")
    assert output.status == 0
    (record,) = _entries(output)
    assert (record.values["ledgerId"], record.values["entryId"]) == (str(volume.ledger_id), str(entry_id))


def test_readlogmetadata(stopped: Stopped) -> None:
    sizes: dict[int, int] = {}
    with_map = 0
    logs = stopped.files("log")
    for log in logs:
        output = stopped.run("readlogmetadata", log.name)
        assert output.status == 0
        assert not output.errors()
        # Said where a log has no map of its ledgers, and was read whole instead.
        with_map += not output.records("Failed to get ledgers map index")
        (total,) = output.records("EntryLog metadata")
        of_log = _sizes(output)
        assert sum(of_log.values()) == _number(total, "totalSize")
        for ledger_id, size in of_log.items():
            sizes[ledger_id] = sizes.get(ledger_id, 0) + size
    for volume in stopped.shelf.volumes:
        expected = sum(len(payload) + _OVERHEAD + _SIZE_FIELD for payload in volume.payloads)
        written = sizes.get(volume.ledger_id, 0)
        # Recovery writes again what was after the last add confirmed, perhaps before the first is in a log.
        assert written >= expected if volume.fenced else written == expected
    # All but those that were being written last, one in a directory at most.
    assert with_map >= len(logs) - len({log.parent for log in logs})


def _sizes(output: Output) -> dict[int, int]:
    """Bytes in a log by ledger, as readlogmetadata tells them."""
    return {_number(r, "ledgerId"): _number(r, "size") for r in output.records("Size of ledger's entries")}


def test_ledger(stopped: Stopped) -> None:
    for volume in stopped.shelf.volumes:
        output = stopped.run("ledger", "-m", str(volume.ledger_id))
        if volume.payloads:
            printed = dict(text.replace(" ", "").split(":", 1) for text in output.printed() if " : " in text)
            assert printed["masterkey"] == master_key(PASSWORD).hex()
            assert printed["isFenced"] == str(volume.fenced).lower()


def test_localconsistencycheck(stopped: Stopped, tmp_path: Path) -> None:
    output = stopped.run("localconsistencycheck")
    assert output.status == 0
    assert output.records("=== Check passed ===")
    (checked,) = output.records(
        "Finished localConsistencyCheck, took s to scan ledgers, pages, entries with retries, errors"
    )
    assert _number(checked, "checkedLedgers") >= len([volume for volume in stopped.shelf.volumes if volume.payloads])
    # The same of a copy of which one index entry leads elsewhere: what passed is a check.
    copy = tmp_path / "data"
    shutil.copytree(stopped.directory, copy)
    conf = tmp_path / "copy.conf"
    conf.write_text(stopped.conf_path.read_text("utf-8").replace(str(stopped.directory), str(copy)), "utf-8")
    volume = stopped.shelf.volumes[1]
    (index,) = copy.rglob(f"{volume.ledger_id:x}.idx")
    with index.open("r+b") as file:
        file.seek(1024)
        (location,) = struct.unpack(">q", file.read(8))
        file.seek(1024)
        file.write(struct.pack(">q", location + 8))
    damaged = stopped.shell.run(conf, "localconsistencycheck")
    assert damaged.status == 1
    (found,) = damaged.records("Inconsistency detected for ledger entry")
    assert (found.values["ledgerId"], found.values["entryId"]) == (str(volume.ledger_id), "0")


def test_lastmark(stopped: Stopped) -> None:
    output = stopped.run("lastmark")
    assert output.status == 0
    told = [record.text for record in output.records_like("LastLogMark")]
    expected = []
    journals = sorted(stopped.directory.rglob("journal*/current"))
    for index, journal in enumerate(journals):
        name = "lastMark" if len(journals) == 1 else f"lastMark.{index}"
        marks = {struct.unpack(">qq", path.read_bytes()) for path in stopped.directory.rglob(name)}
        # All directories say the same, and the journal is there.
        ((journal_id, offset),) = marks
        assert (journal / f"{journal_id:x}.txn").is_file()
        expected.append(f"LastLogMark : Journal Id - {journal_id}({journal_id:x}.txn), Pos - {offset}")
    assert told == expected


def test_readjournal(stopped: Stopped) -> None:
    found: dict[tuple[int, int], int] = {}
    keys: dict[int, set[str]] = {}
    fenced: set[int] = set()
    explicit_lacs: set[int] = set()
    files = stopped.files("txn")
    journals = sorted({path.parent for path in files})
    assert len(files) > len(journals), "no journal was rolled"
    for path in files:
        output = stopped.run("readjournal", "-m", "-dir", str(path.parent), path.name)
        assert output.status == 0
        assert not output.errors()
        if entries := _entries(output):
            assert [record.values["journalVersion"] for record in output.records("Journal Version")] == ["6"]
        for record in entries:
            ledger_id, entry_id = _number(record, "ledgerId"), _number(record, "entryId")
            assert path.parent == journals[ledger_id % len(journals)]
            if entry_id >= 0:
                found[ledger_id, entry_id] = _number(record, "entrySize")
            elif entry_id == -0x8000:
                explicit_lacs.add(ledger_id)
        for record in output.records("MasterKey"):
            keys.setdefault(_number(record, "ledgerId"), set()).add(record.values["masterKey"])
        fenced |= {_number(record, "ledgerId") for record in output.records("Fenced")}
        for ledger_id, entry_id in {(_number(r, "ledgerId"), _number(r, "entryId")) for r in entries}:
            if (ledger_id, entry_id) in stopped.stored():
                assert f"entry {entry_id} of ledger {ledger_id} " in output.text
    assert {key: found[key] for key in stopped.stored()} == {key: stopped.stored_size(*key) for key in stopped.stored()}
    for volume in stopped.shelf.volumes:
        if volume.payloads:
            assert keys[volume.ledger_id] == {master_key(PASSWORD).hex()}
    assert fenced == {volume.ledger_id for volume in stopped.shelf.volumes if volume.fenced}
    assert explicit_lacs == {volume.ledger_id for volume in stopped.shelf.volumes if volume.explicit_lac}


def test_listfilesondisc(stopped: Stopped) -> None:
    for option, ending in (("-txn", "txn"), ("-log", "log"), ("-idx", "idx")):
        output = stopped.run("listfilesondisc", option)
        listed = {record.values["canonicalPath"] for record in output.records("log entry", "ListFilesOnDiscCommand")}
        assert listed == {str(path.resolve()) for path in stopped.files(ending)}
        assert listed


def test_activeledgers(stopped: Stopped) -> None:
    """Those of a log that the metadata has: all but the deleted one."""
    active: set[int] = set()
    for log in stopped.files("log"):
        output = stopped.run("activeledgers", "-l", str(int(log.stem, 16)), "-t", "30000")
        assert not output.errors()
        active |= {_number(record, "ledgerId") for record in output.records("Size for ledger's entries")}
    expected = {volume.ledger_id for volume in stopped.shelf.volumes if volume.payloads}
    assert stopped.deleted_id in expected
    assert active == expected - {stopped.deleted_id}


@pytest.mark.parametrize("directories", list(DIRECTORIES))
def test_compacted_logs(tmp_path: Path, zk_only: LocalCluster, directories: str) -> None:
    """What compaction left is read by the tools, and by Apache's bookie."""
    uri = new_cluster(zk_only, tmp_path.name)
    settings = {
        **ApacheBookie.sizes,
        **bookie_settings(tmp_path / "data", *DIRECTORIES[directories]),
        **_COLLECTED_OFTEN,
    }
    shelf = Shelf(uri)
    with JavaShell() as shell, Bookies(tmp_path / "bookies", uri, [LocalBookie], settings) as bookies:
        (bookie,) = bookies.bookies
        shelf.fill(rounds=6)
        # By far the largest.
        doomed, *kept = sorted(shelf.volumes, key=lambda volume: -sum(map(len, volume.payloads)))
        before = {
            log
            for log in _rolled_logs(tmp_path / "data")
            if _share(shell, bookie.conf_path, log, doomed.ledger_id) > 0.1
        }
        assert before
        with BlockingClient(uri) as client:
            client.delete(doomed.ledger_id)
        shelf.volumes = kept
        deadline = time.monotonic() + _COMPACTION_TIMEOUT_S
        while before & set((tmp_path / "data").rglob("*.log")):
            assert time.monotonic() < deadline, f"left: {sorted(before & set(tmp_path.rglob('*.log')))}"
            time.sleep(0.1)
        shelf.check(bookie.port)
        assert bookie.terminate(STOP_TIMEOUT_MS)
        assert not list(tmp_path.rglob("*.compact*"))
        assert not list(tmp_path.rglob(f"{doomed.ledger_id:x}.idx"))
        found: set[tuple[int, int]] = set()
        for log in sorted((tmp_path / "data").rglob("*.log")):
            read = shell.run(bookie.conf_path, "readlog", "-m", log.name)
            assert read.status == 0
            assert not read.errors()
            found |= {(_number(record, "ledgerId"), _number(record, "entryId")) for record in _entries(read)}
            metadata = shell.run(bookie.conf_path, "readlogmetadata", log.name)
            assert set(_sizes(metadata)) == {_number(record, "ledgerId") for record in _entries(read)}
        assert found >= {(volume.ledger_id, e) for volume in kept for e in range(len(volume.payloads))}
        assert shell.run(bookie.conf_path, "localconsistencycheck").records("=== Check passed ===")
        bookies.change_kind(ApacheBookie)
        bookies.start()
        shelf.check(bookie.port)


def _rolled_logs(directory: Path) -> set[Path]:
    """Entry logs that nothing is written to any more: those with a map of their ledgers (compatibility.md §5.5)."""
    return {path for path in directory.rglob("*.log") if struct.unpack(">8xq", path.read_bytes()[:16])[0] != 0}


def _share(shell: JavaShell, conf_path: Path, log: Path, ledger_id: int) -> float:
    """How much of a log is of one ledger."""
    sizes = _sizes(shell.run(conf_path, "readlogmetadata", log.name))
    return sizes.get(ledger_id, 0) / sum(sizes.values())
