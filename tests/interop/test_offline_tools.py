"""``bkctl``'s offline commands and Apache's shell say the same of the same directories, whichever bookie wrote them."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bk_spark.bkctl import main
from bookie_server.local import LocalBookie, LocalCluster
from tests.interop.apache import STOP_TIMEOUT_MS, ApacheBookie, Bookies
from tests.interop.java_shell import JavaShell, Output, Record
from tests.interop.shelf import DIRECTORIES, Shelf, bookie_settings
from tests.support.clusters import new_cluster
from tests.support.stopped_bookie import StoppedBookie, json_lines

pytestmark = pytest.mark.timeout(600)

#: Who wrote the directories, how many there are, and Apache's storage class.
_BOOKIES: dict[str, tuple[type[LocalBookie], str, str]] = {
    "ours": (LocalBookie, "several", "SortedLedgerStorage"),
    "apaches-sorted": (ApacheBookie, "several", "SortedLedgerStorage"),
    "apaches-interleaved": (ApacheBookie, "one", "InterleavedLedgerStorage"),
}
_KINDS = {"entry": None, "masterkey": -0x1000, "fence": -0x2000, "explicitlac": -0x8000}


@dataclass(frozen=True, slots=True)
class Both:
    """A stopped bookie, asked by Apache's shell and by ours."""

    bookie: StoppedBookie
    shell: JavaShell
    capture: pytest.CaptureFixture[str]

    def apaches(self, *arguments: str) -> Output:
        output = self.shell.run(self.bookie.conf_path, *arguments)
        assert output.status == 0, output.text
        assert not output.errors()
        return output

    def ours(self, *arguments: object) -> str:
        status = main([*map(str, arguments), *self.bookie.conf])
        printed, error = self.capture.readouterr()
        assert (status, error) == (0, ""), arguments
        return printed


@pytest.fixture(scope="module")
def shell() -> Iterator[JavaShell]:
    with JavaShell() as running:
        yield running


@pytest.fixture(scope="module", params=list(_BOOKIES))
def bookie(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, zk_only: LocalCluster
) -> StoppedBookie:
    kind, directories, storage = _BOOKIES[request.param]
    directory = tmp_path_factory.mktemp(f"offline-{request.param}")
    uri = new_cluster(zk_only, directory.name)
    settings = {
        **bookie_settings(directory / "data", *DIRECTORIES[directories]),
        "ledgerStorageClass": f"org.apache.bookkeeper.bookie.{storage}",
    }
    shelf = Shelf(uri)
    with Bookies(directory / "bookies", uri, [kind], settings) as bookies:
        shelf.fill(rounds=3)
        (running,) = bookies.bookies
        assert main(["lastmark", "--conf", str(running.conf_path)]) == 1, "a bookie runs"
        assert running.terminate(STOP_TIMEOUT_MS)
        return StoppedBookie(running.conf_path, directory / "data", tuple(shelf.volumes))


@pytest.fixture
def both(bookie: StoppedBookie, shell: JavaShell, capfd: pytest.CaptureFixture[str]) -> Both:
    return Both(bookie, shell, capfd)


def numbers(record: Record, *names: str) -> tuple[int, ...]:
    return tuple(int(record.values[name]) for name in names)


def entries(output: Output) -> list[tuple[int, ...]]:
    """Ledger, entry, position and size."""
    found = [record for record in output.records("Entry", "FormatUtil") if "entrySize" in record.values]
    return [numbers(record, "ledgerId", "entryId", "position", "entrySize") for record in found]


def test_nothing_is_changed_and_everything_is_there(both: Both) -> None:
    before = both.bookie.state()
    listed = json_lines(both.ours("readjournal", "--json"))
    in_journals = {(one["ledger"], one["entry"]) for one in listed if one["kind"] == "entry"}
    in_logs = {
        (one["ledger"], one["entry"])
        for log in both.bookie.files("log")
        for one in json_lines(both.ours("readlog", log.name, "--json"))
    }
    written = {(volume.ledger_id, n) for volume in both.bookie.volumes for n in range(len(volume.payloads))}
    assert in_journals == in_logs == written
    summary = json_lines(both.ours("localconsistencycheck", "--json"))[-1]
    assert (summary["entries"], summary["digest_unknown"], summary["problems"]) == (len(written), 0, 0)
    for command in ("lastmark", "listfilesondisc"):
        both.ours(command)
    assert both.bookie.state() == before


def test_readlog(both: Both) -> None:
    logs = both.bookie.files("log")
    assert len(logs) > 1
    for log in logs:
        shown = json_lines(both.ours("readlog", log.name, "--json", "--msg"))
        output = both.apaches("readlog", "-m", log.name)
        assert [(one["ledger"], one["entry"], one["offset"], one["bytes"]) for one in shown] == entries(output)
        lacs = [
            numbers(record, "ledgerId", "entryId", "lastAddConfirmed")
            for record in output.records("Entry", "FormatUtil")
            if "lastAddConfirmed" in record.values
        ]
        assert [(one["ledger"], one["entry"], one["last_add_confirmed"]) for one in shown] == lacs
        for one in shown:
            assert one["value"] in output.text
    # The last one may be empty: Apache's bookie creates the next log ahead.
    log = max(logs, key=lambda path: path.stat().st_size)
    shown = json_lines(both.ours("readlog", log.name, "--json"))
    middle = shown[len(shown) // 2]
    at, end = middle["offset"] + 3, middle["offset"] + 2 * middle["bytes"]
    found = json_lines(both.ours("readlog", log.name, "--json", "--start-pos", at, "--end-pos", end))
    assert [(one["ledger"], one["entry"], one["offset"], one["bytes"]) for one in found] == entries(
        both.apaches("readlog", "-sp", str(at), "-ep", str(end), log.name)
    )


def test_readlogmetadata(both: Both) -> None:
    for log in both.bookie.files("log"):
        one = json.loads(both.ours("readlogmetadata", log.name, "--json"))
        output = both.apaches("readlogmetadata", log.name)
        found = dict(numbers(record, "ledgerId", "size") for record in output.records("Size of ledger's entries"))
        assert {each["ledger"]: each["bytes"] for each in one["ledgers"]} == found
        assert one["total_bytes"] == sum(found.values())
        assert one["from_map"] is not bool(output.records("Failed to get ledgers map index"))


def test_readjournal(both: Both) -> None:
    paths = both.bookie.files("txn")
    several = len({path.parent for path in paths}) > 1
    for path in paths:
        output = both.apaches("readjournal", *(("-dir", str(path.parent)) if several else ()), path.name)
        mine = records_of(both, path)
        assert [(one["ledger"], _id(one), one["offset"], one["bytes"]) for one in mine] == entries(output)
        assert len({one["kind"] for one in mine}) > 1 or not mine


def records_of(both: Both, path: Path) -> list[dict[str, object]]:
    status = main(["readjournal", "--json", str(path)])
    printed, error = both.capture.readouterr()
    assert (status, error) == (0, "")
    return [one for one in json_lines(printed) if one["kind"] not in ("journal", "seal")]


def _id(one: dict[str, object]) -> object:
    return one["entry"] if one["kind"] == "entry" else _KINDS[str(one["kind"])]


def test_lastmark(both: Both) -> None:
    told = [record.text for record in both.apaches("lastmark").records_like("LastLogMark")]
    marks = {one["journal"]: one for one in json_lines(both.ours("lastmark", "--json")) if one["counts"]}
    assert [
        f"LastLogMark : Journal Id - {one['journal_id']}({one['journal_file']}), Pos - {one['offset']}"
        for _, one in sorted(marks.items())
    ] == told
    for one in json_lines(both.ours("lastmark", "--json")):
        content = (
            Path(one["directory"]) / (f"lastMark.{one['journal']}" if len(told) > 1 else "lastMark")
        ).read_bytes()
        assert struct.unpack(">qq", content) == (one["journal_id"], one["offset"])


def test_listfilesondisc(both: Both) -> None:
    for option, ours in (("-txn", "--journal"), ("-log", "--entrylog"), ("-idx", "--index")):
        output = both.apaches("listfilesondisc", option)
        listed = [record.values["canonicalPath"] for record in output.records("log entry", "ListFilesOnDiscCommand")]
        assert sorted(both.ours("listfilesondisc", ours).splitlines()) == sorted(listed)
        assert listed


def test_localconsistencycheck(both: Both, tmp_path: Path) -> None:
    """Both find the same wrong entries. Ours looks first: Apache's shell leaves index files open for writing."""
    copy = both.bookie.copied(tmp_path)
    volume = copy.volumes[1]
    (index,) = copy.directory.rglob(f"{volume.ledger_id:x}.idx")
    content = bytearray(index.read_bytes())
    for entry_id in (0, 5, 6):
        (location,) = struct.unpack_from(">q", content, 1024 + 8 * entry_id)
        struct.pack_into(">q", content, 1024 + 8 * entry_id, location + 8)
    index.write_bytes(content)
    assert main(["localconsistencycheck", "--json", *copy.conf]) == 3
    *problems, _ = json_lines(both.capture.readouterr().out)
    ours = {(one["ledger"], n) for one in problems for n in range(one["first_entry"], one["last_entry"] + 1)}
    output = both.shell.run(copy.conf_path, "localconsistencycheck")
    assert output.status == 1
    apaches = {numbers(one, "ledgerId", "entryId") for one in output.records("Inconsistency detected for ledger entry")}
    assert ours == apaches == {(volume.ledger_id, entry_id) for entry_id in (0, 5, 6)}


def test_a_bookie_of_apaches_that_was_killed(
    tmp_path: Path, zk_only: LocalCluster, shell: JavaShell, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its journal has no seals and may end anywhere."""
    uri = new_cluster(zk_only, tmp_path.name)
    with Bookies(tmp_path / "bookies", uri, [ApacheBookie], bookie_settings(tmp_path / "data", 1, 1)) as bookies:
        (running,) = bookies.bookies
        shelf = Shelf(uri)
        shelf.fill_and_kill(running)
    both = Both(StoppedBookie(running.conf_path, tmp_path / "data", tuple(shelf.volumes)), shell, capfd)
    found: dict[tuple[int, int], str] = {}
    for path in both.bookie.files("txn"):
        assert main(["readjournal", "--json", "--msg", str(path)]) == 0
        shown = [one for one in json_lines(capfd.readouterr().out) if one["kind"] != "journal"]
        output = both.apaches("readjournal", path.name)
        assert [(one["ledger"], _id(one), one["offset"], one["bytes"]) for one in shown] == entries(output)
        found |= {(one["ledger"], one["entry"]): one["value"] for one in shown if one.get("digest")}
    (volume,) = shelf.volumes
    assert [found[volume.ledger_id, n] for n in range(len(volume.payloads))] == [p.decode() for p in volume.payloads]
    assert main(["localconsistencycheck", *both.bookie.conf]) == 0
    assert "the bookie was not shut down cleanly, or it is running" in capfd.readouterr().err
