"""``bkctl log …`` as a user runs it, on real ZooKeeper and bookies."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from bk_spark.bkctl import main
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.metadata.cluster_init import init_cluster, read_instance_id
from bk_spark.log import CommitMessage, CommitRequest, EntryFormat, LedgerRange, Log, LogSettings, LogStore
from bk_spark.log.formats.znodes import LedgerRegistration, Owner, Policy, encode_owner, encode_registration
from bk_spark.log.gc.deletion import BeginDeletion
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import LedgerFencedError, LogRangeGoneError, NoSuchLedgerError
from bk_spark.protocol.metadata.znodes import SetOp
from bk_spark.protocol.quorum import Quorum
from tests.support.logs import TELLING, registered_ledgers

PASSWORD = b"open sesame"


@dataclass
class Ended:
    status: int
    out: str
    error: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> object:
        return json.loads(self.out)


class Bkctl:
    """Runs commands on the logs of one root."""

    def __init__(
        self,
        uri: str,
        root: str,
        password_file: Path,
        capture: pytest.CaptureFixture[bytes],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self._common = ["--metadata-service-uri", uri, "--log-root", root]
        self._password_file = password_file
        self._capture = capture
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: object, stdin: bytes = b"", password: bool = True) -> Ended:
        common = [*self._common, "--password-file", str(self._password_file)] if password else self._common
        self._monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        status = main([*common, "log", *map(str, arguments)])
        out, error = self._capture.readouterr()
        return Ended(status, out.decode(), error.decode())

    def ok(self, *arguments: object, stdin: bytes = b"", password: bool = True) -> Ended:
        ended = self(*arguments, stdin=stdin, password=password)
        assert (ended.status, ended.error) == (0, "")
        return ended

    def fails(self, *arguments: object, stdin: bytes = b"", password: bool = True, status: int = 1) -> str:
        """What it says."""
        ended = self(*arguments, stdin=stdin, password=password)
        assert ended.status == status
        assert len(ended.error.splitlines()) == 1
        return ended.error


@pytest.fixture
def client(metadata_service_uri: str) -> Iterator[BlockingClient]:
    with BlockingClient(metadata_service_uri) as running:
        yield running


@pytest.fixture
def store(client: BlockingClient, fresh_root: str) -> LogStore:
    return LogStore.of(client, fresh_root)


@pytest.fixture
def bkctl(
    metadata_service_uri: str,
    fresh_root: str,
    tmp_path: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> Bkctl:
    password_file = tmp_path / "password"
    password_file.write_bytes(PASSWORD + b"\n")
    return Bkctl(metadata_service_uri, fresh_root, password_file, capsysbinary, monkeypatch)


@pytest.fixture
def log(bkctl: Bkctl, store: LogStore) -> Log:
    """Three batches of ten entries, by ``log append``."""
    bkctl.ok("create", "events")
    for batch in range(3):
        bkctl.ok("append", "events", stdin=b"".join(b"row %d\n" % n for n in range(10 * batch, 10 * batch + 10)))
    return store.open_log("events", password=PASSWORD)


def test_create_append_and_read(bkctl: Bkctl, store: LogStore) -> None:
    assert bkctl.ok("create", "events", "--write-quorum-size", 2).out.startswith("made log events  (")
    assert "exists already" in bkctl.fails("create", "events")
    wide = bkctl("create", "wide", "--ensemble-size", 9)
    assert (wide.status, wide.out.startswith("made log wide")) == (0, True)
    assert wide.error.startswith(
        "bkctl: log wide can be written once 9 writable bookies are registered (now: 3): start"
    )
    assert "log name" in bkctl.fails("create", "a/b")
    assert store.open_log("events").settings.quorum == Quorum(3, 2, 2)

    assert bkctl.ok("append", "events", stdin=b"one\ntwo\n\nfour").out == "appended 4 entries: offsets 0 to 4\n"
    big = [b"x" * 100_000 + b"%d" % n for n in range(50)]
    assert bkctl.ok("append", "events", "--json", stdin=b"\n".join(big)).json["end_offset"] == 54  # type: ignore[index]
    log = store.open_log("events", password=PASSWORD)
    first, second = log.snapshot().segments()
    assert (first.rows, first.size_bytes, second.rows) == (4, 10, 50)
    assert log.ledgers.reader(first.ledger_id).read(0, 3) == [b"one", b"two", b"", b"four"]
    assert log.ledgers.reader(second.ledger_id).read(0, 49) == big

    assert "stdin is empty" in bkctl.fails("append", "events", stdin=b"")
    assert "line 2 of stdin has more than" in bkctl.fails("append", "events", stdin=b"x\n" + b"y" * 6_000_000)
    assert "password" in bkctl.fails("append", "events", stdin=b"x", password=False)
    assert log.snapshot().next_offset == 54


def test_append_with_a_batch_number_is_done_once(bkctl: Bkctl, log: Log) -> None:
    named = ("append", "events", "--app", "import", "--batch")
    assert bkctl.ok(*named, 7, stdin=b"a\nb\n").out == "appended 2 entries: offsets 30 to 32\n"
    assert bkctl.ok(*named, 7, stdin=b"a\nb\n").out == "the batch is in the log already: offsets 30 to 32\n"
    assert bkctl.ok(*named, 6, stdin=b"c\n").out == "the batch is in the log already\n"
    assert bkctl.ok(*named, 8, "--json", stdin=b"c\n").json == {
        "status": "committed",
        "start_offset": 32,
        "end_offset": 33,
        "ledger_id": list(log.snapshot().segments())[-1].ledger_id,
    }
    assert "--app and --batch belong together" in bkctl.fails("append", "events", "--app", "x", stdin=b"a", status=2)
    assert log.snapshot().next_offset == 33


def test_append_takes_over_from_the_applications_run_before(bkctl: Bkctl, log: Log) -> None:
    """What that run still writes to is fenced, as after a commit of Spark."""
    writer = log.create_ledger("import", "old run")
    writer.append(b"a")
    writer.flush()
    part = LedgerRange(writer.ledger_id, 0, 0, 1, 1)
    message = CommitMessage(log.log_id, "import", "old run", "query", 1, 0, (part,))
    log.commit(CommitRequest(log.log_id, "import", "old run", "query", 1, (message,)))
    assert bkctl.ok("append", "events", "--app", "import", "--batch", 2, stdin=b"b\n").out.startswith(
        "appended 1 entries"
    )
    writer.append(b"late")
    with pytest.raises(LedgerFencedError):
        writer.flush()
    log.ledgers.abandon(writer.ledger_id)


def test_list(bkctl: Bkctl, log: Log, store: LogStore) -> None:
    settings = LogSettings.create(Quorum(3, 3, 2), DigestType.CRC32C, EntryFormat.RAW, PASSWORD)
    store.create_log("a-half", settings)
    store.create_log("empty", settings)
    assert bkctl.ok("list").lines == ["a-half", "empty", "events"]
    half = store.open_log("a-half")
    half.change(BeginDeletion(half.paths))
    assert bkctl.ok("list").lines == ["empty", "events"]
    listed = bkctl.ok("list", "--json").json
    assert isinstance(listed, list)
    assert [(one["name"], one["state"], one.get("next_offset")) for one in listed] == [
        ("empty", "ok", 0),
        ("events", "ok", 30),
        ("a-half", "being deleted", None),
    ]
    header, *rows = bkctl.ok("list", "--long").lines
    assert header.split()[:3] == ["name", "state", "entry_format"]
    assert rows[1].split()[:5] == ["events", "ok", "raw", "0", "30"]


def test_show(bkctl: Bkctl, log: Log, client: BlockingClient) -> None:
    bkctl.ok("retention", "events", "--size", "20g")
    bkctl.ok("append", "events", "--app", "import", "--batch", 3, stdin=b"x")
    client.zookeeper.create(log.paths.owner, encode_owner(Owner("w-1", "host-1", 99, 1_000)), ephemeral=True)
    # Without the password too: the list is no secret.
    shown = bkctl.ok("show", "events", "--segments", 2, password=False)
    assert "offsets  0 to 31" in shown.out
    assert "keeps    size_bytes 21474836480" in shown.out
    assert "owner    writer w-1, host host-1, process 99, since 1970-01-01T00:00:01.000Z" in shown.out
    assert "sesame" not in shown.out
    lines = shown.lines
    segments = lines.index("") + 1
    assert lines[segments].split()[:3] == ["offset", "entries", "ledger"]
    assert "1 applications, and 3 batch writes without a name" in lines
    assert [line.split()[:2] for line in lines[segments + 1 : segments + 3]] == [["20", "10"], ["30", "1"]]
    record = bkctl.ok("show", "events", "--json").json
    assert isinstance(record, dict)
    assert (record["log_id"], record["next_offset"], record["open_tail"]) == (log.log_id, 31, None)
    assert [segment["offset"] for segment in record["segments"]] == [0, 10, 20, 30]
    (named,) = [one for one in record["applications"] if not one["anonymous"]]
    assert (named["application"], named["batch"], named["offsets"]) == ("import", 3, "30-31")


def checkpoint(directory: Path, version: str, batches: dict[int, object], committed: int) -> str:
    for name in ("offsets", "commits"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    for batch, offset in batches.items():
        line = json.dumps(offset)
        if version == "v2":
            line = f"0:{line}"
        (directory / "offsets" / str(batch)).write_text(f"{version}\n{{}}\n-\n{line}")
        (directory / "offsets" / f".{batch}.crc").write_bytes(b"crc")
        if batch <= committed:
            (directory / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return str(directory)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_show_the_lag_of_a_checkpoint(bkctl: Bkctl, log: Log, tmp_path: Path, version: str) -> None:
    def offset(read_to: int, log_id: str = log.log_id) -> object:
        return {"v": 1, "logs": {"events": {"id": log_id, "offset": read_to}, "other": {"id": "x", "offset": 5}}}

    def lag(name: str, batches: dict[int, object], committed: int) -> dict[str, object]:
        directory = checkpoint(tmp_path / name, version, batches, committed)
        record = bkctl.ok("show", "events", "--json", "--checkpoint", directory).json
        assert isinstance(record, dict)
        return record["checkpoint"]

    found = lag("behind", {9: offset(5), 10: offset(12), 11: offset(30)}, 10)
    assert (found["last_finished_batch"], found["last_planned_batch"]) == (10, 11)
    (source,) = found["sources"]
    assert (source["read_to"], source["log_end"], source["lag_entries"], source["state"]) == (12, 30, 18, "reading")
    middle = list(log.snapshot().segments())[1].commit_time_ms
    assert source["behind_since"].endswith(f".{middle % 1000:03d}Z")
    (source,) = lag("end", {1: offset(30)}, 1)["sources"]
    assert (source["lag_entries"], source["behind_since"], source["state"]) == (0, "-", "at the end")
    (source,) = lag("old", {1: offset(12, "another")}, 1)["sources"]
    assert source["state"] == "of another log: another"
    assert lag("first", {0: offset(3)}, -1)["sources"] == []
    log.truncate(20)
    (source,) = lag("behind", {}, 10)["sources"]
    assert source["state"] == "8 entries are gone before they were read"
    text = bkctl.ok("show", "events", "--checkpoint", tmp_path / "behind").lines
    assert "checkpoint: batch 11 begun, batch 10 finished" in text
    uri = (tmp_path / "behind").as_uri()
    assert "checkpoint: batch 11 begun, batch 10 finished" in bkctl.ok("show", "events", "--checkpoint", uri).lines


def test_show_without_a_usable_checkpoint(bkctl: Bkctl, log: Log, tmp_path: Path) -> None:
    for location, text in (
        (tmp_path / "nowhere", "has no offsets: give the checkpointLocation"),
        (checkpoint(tmp_path / "kafka", "v1", {0: {"topic": {"0": 5}}}, 0), "has no offsets of a log"),
        (checkpoint(tmp_path / "new", "v1", {0: {"v": 2, "logs": {}}}, 0), "has format version 2"),
        (checkpoint(tmp_path / "later", "v3", {0: {"v": 1, "logs": {}}}, 0), "begins with 'v3'; this release knows v1"),
        ("nosuch://x/y", "--checkpoint: nosuch://x/y cannot be read"),
    ):
        assert text in bkctl.fails("show", "events", "--checkpoint", location)


def test_truncate(bkctl: Bkctl, log: Log) -> None:
    loss = "10 entries (offsets 0 to 10; 1 segments, 10 rows, 50 bytes)"
    assert bkctl.ok("truncate", "events", 15, "--dry-run").out == (
        f"the log would begin at offset 10: {loss} would be dropped\n"
    )
    refused = bkctl.fails("truncate", "events", 15)
    assert refused == f"bkctl: log events: {loss} would be dropped, for good: give --yes to do so\n"
    assert log.snapshot().first_offset == 0
    assert bkctl.ok("truncate", "events", 15, "--yes").out == "the log begins at offset 10: 10 entries dropped\n"
    # Where nothing goes nobody is asked.
    assert bkctl.ok("truncate", "events", 5).out == "the log begins at offset 10: 0 entries dropped\n"
    assert bkctl.ok("truncate", "events", 15, "--json").json["dropped"]["entries"] == 0  # type: ignore[index]
    for how in ("--yes", "--dry-run"):
        beyond = bkctl.fails("truncate", "events", 99_999, how)
        assert "log events ends at offset 30: it cannot be truncated up to 99999" in beyond
    assert "password" in bkctl.fails("truncate", "events", 30, "--yes", password=False)
    assert log.snapshot().first_offset == 10


def test_retention(bkctl: Bkctl, log: Log) -> None:
    kept = ("orphan  604800000 ms", "grace   3600000 ms", "history 0 ms")
    assert bkctl.ok("retention", "events", password=False).lines == ["time    all", "size    all", *kept, "begins  0"]
    sizes = [segment.size_bytes for segment in log.snapshot().segments()]
    total = sum(sizes)
    shown = bkctl.ok("retention", "events", "--time", "36h", "--size", total)
    assert shown.lines == ["time    129600000 ms", f"size    {total} bytes", *kept, "begins  0"]
    # What would drop rows is asked for, whether now or by the next maintenance, and changes nothing before.
    tight = ("retention", "events", "--time", "all", "--size", sizes[-1])
    loss = f"20 entries (offsets 0 to 20; 2 segments, 20 rows, {sizes[0] + sizes[1]} bytes)"
    for apply in ((), ("--apply",)):
        assert f"{loss} would be dropped, for good: give --yes to do so" in bkctl.fails(*tight, *apply)
        assert bkctl.ok(*tight, *apply, "--dry-run").lines[-1] == f"would drop {loss}"
    assert bkctl.ok("retention", "events").lines[1] == f"size    {total} bytes"
    assert bkctl.ok(*tight, "--yes").lines == ["time    all", f"size    {sizes[-1]} bytes", *kept, "begins  0"]
    assert "would be dropped" in bkctl.fails("retention", "events", "--apply")
    applied = bkctl.ok("retention", "events", "--apply", "--yes", "--json").json
    assert isinstance(applied, dict)
    assert (applied["time_ms"], applied["size_bytes"], applied["first_offset"]) == (0, sizes[-1], 20)
    assert applied["dropped"]["entries"] == 20
    assert bkctl.ok("retention", "events", "--apply").lines[-1] == "begins  20"
    assert "password" in bkctl.fails("retention", "events", "--time", "1d", password=False)
    assert log.snapshot().first_offset == 20


def test_gc_asks_before_retention_drops_rows(bkctl: Bkctl, log: Log) -> None:
    log.set_policy(Policy(retention_size_bytes=1))
    assert "20 entries (offsets 0 to 20; 2 segments, 20 rows, " in (refused := bkctl.fails("gc", "events"))
    assert "would be dropped by its retention, for good: give --yes" in refused
    assert log.snapshot().first_offset == 0
    assert "the log would begin at offset 20" in bkctl.ok("gc", "events", "--dry-run").lines
    assert log.snapshot().first_offset == 0
    assert "the log begins at offset 20; 0 pages left ZooKeeper" in bkctl.ok("gc", "events", "--yes").lines


def test_entries_and_changes_as_json(bkctl: Bkctl, log: Log, client: BlockingClient) -> None:
    made = bkctl.ok("create", "others", "--json").json
    assert isinstance(made, dict)
    assert made["name"] == "others"
    lines = [json.loads(line) for line in bkctl.ok("read", "events", "--from", 29, "--json").lines]
    assert [(line["offset"], line["value"]) for line in lines] == [(29, "row 29")]
    assert lines[0]["time"].endswith("Z")
    writer = client.create(password=PASSWORD)
    writer.append_many([b"a", b"b"])
    writer.close()
    appended = bkctl.ok("append-ledger", "events", writer.ledger_id, "--json").json
    assert appended == {"start_offset": 30, "end_offset": 32}
    assert bkctl.ok("delete", "others", "--dry-run", "--json").json["dry_run"] is True  # type: ignore[index]
    deleted = bkctl.ok("delete", "others", "--yes", "--json").json
    assert deleted == {"dry_run": False, "name": "others", "ledgers": 0, "not_fenced": []}


def test_append_ledger(bkctl: Bkctl, log: Log, client: BlockingClient) -> None:
    writer = client.create(password=PASSWORD)
    writer.append_many([b"a", b"b"])
    assert "only a closed ledger can be appended" in bkctl.fails("append-ledger", "events", writer.ledger_id)
    writer.close()
    assert bkctl.ok("append-ledger", "events", writer.ledger_id).out == "appended 2 entries: offsets 30 to 32\n"
    assert "from offset 30 on" in bkctl.fails("append-ledger", "events", writer.ledger_id)


def test_a_log_of_another_cluster_is_deleted_but_no_ledger_here(
    bkctl: Bkctl, store: LogStore, client: BlockingClient
) -> None:
    """The log's registration has the id of a ledger here that is being written."""
    zk, other_root = client.zookeeper, f"{store.root}-other"
    here = client.create(password=PASSWORD)
    here.append(b"one")
    here.flush()
    instance_id = init_cluster(zk, other_root)
    with BlockingClient(f"zk+hierarchical://{zk.servers}{other_root}") as other:
        settings = LogSettings.create(Quorum(3, 3, 2), DigestType.CRC32C, EntryFormat.RAW, PASSWORD)
        log = LogStore.of(other, store.root).create_log("events", settings, PASSWORD)
        register = log.ledger_registrar("app", "r0")
    zk.transaction(register(here.ledger_id))

    assert f"names cluster {read_instance_id(zk, client.root)}: " in bkctl.fails("show", "events")
    would = (
        "log events (offsets 0 to 0) would be deleted without its ledgers, which are in another cluster "
        f"({instance_id}), for good"
    )
    assert bkctl.ok("delete", "events", "--dry-run").out == f"{would}\n"
    record = {"dry_run": True, "name": "events", "what": "offsets 0 to 0", "other_cluster": instance_id}
    assert json.loads(bkctl.ok("delete", "events", "--dry-run", "--json").out) == record
    assert would in bkctl.fails("delete", "events")
    assert bkctl.ok("delete", "events", "--yes").out == "deleted log events and 0 ledgers\n"
    here.append(b"two")
    here.close()
    assert client.open_for_reading(here.ledger_id, PASSWORD).read(0, 1) == [b"one", b"two"]
    bkctl.ok("create", "events")
    assert json.loads(bkctl.ok("delete", "events", "--dry-run", "--json").out) == record | {"other_cluster": None}


def test_delete_asks(bkctl: Bkctl, log: Log, store: LogStore, client: BlockingClient) -> None:
    ledger_id = next(log.snapshot().segments()).ledger_id
    assert "log events (offsets 0 to 30) would be deleted with its ledgers, for good: give --yes" in bkctl.fails(
        "delete", "events"
    )
    assert "password" in bkctl.fails("delete", "events", "--yes", password=False)
    assert bkctl.ok("delete", "events", "--dry-run").out == (
        "log events (offsets 0 to 30) would be deleted with its ledgers, for good\n"
    )
    assert client.metadata(ledger_id) is not None
    log.change(BeginDeletion(log.paths))
    assert "its deletion has begun" in bkctl.fails("delete", "events")
    assert bkctl.ok("delete", "events", "--yes").out == "deleted log events and 3 ledgers\n"
    assert "there is no log events" in bkctl.fails("delete", "events", "--yes")
    assert bkctl.ok("list").out == ""


def test_verify_a_whole_log(bkctl: Bkctl, log: Log) -> None:
    assert bkctl.ok("verify", "events").out == "3 segments in 3 ledgers, 30 entries, 30 of them read: no problems\n"
    assert bkctl.ok("verify", "events", "--no-entries").out.endswith("30 entries, not read: no problems\n")


def commit(log: Log, batch_id: int, *parts: LedgerRange) -> None:
    message = CommitMessage(log.log_id, "app", "run", "q", batch_id, 0, parts)
    log.commit(CommitRequest.from_messages([message]))


def test_verify_finds_holes(bkctl: Bkctl, log: Log, client: BlockingClient, store: LogStore) -> None:
    first, second, third = log.snapshot().segments()
    # A ledger that is gone; one that is closed too early; one that is condemned; one that nobody registered.
    client.delete(first.ledger_id)
    short = log.create_ledger("app", "run")
    short.append_many([b"s"] * 3)
    log.ledgers.close(short.ledger_id)
    commit(log, 0, LedgerRange(short.ledger_id, 0, 4, 5, 5))
    zk = client.zookeeper
    run_of = {
        ledger: f"{log.paths.ledgers}/{app}/{run}/{ledger}" for ledger, (app, run) in registered_ledgers(log).items()
    }
    zk.transaction([SetOp(run_of[second.ledger_id], encode_registration(LedgerRegistration(None, 5)), -1)])
    zk.delete(run_of[third.ledger_id])

    ended = bkctl("verify", "events")
    assert (ended.status, ended.error) == (3, "")
    found = sorted(tuple(line.split("\t")[:3]) for line in ended.lines[:-1])
    assert found == sorted(
        [
            ("ledger-missing", "offsets 0 to 10", f"ledger {first.ledger_id}"),
            ("beyond-end", "offsets 33 to 35", f"ledger {short.ledger_id}"),
            ("condemned", "offsets 10 to 20", f"ledger {second.ledger_id}"),
            ("not-registered", "offsets 20 to 30", f"ledger {third.ledger_id}"),
        ]
    )
    assert ended.lines[-1] == "4 segments in 4 ledgers, 35 entries, 23 of them read: 4 problems"
    record = bkctl("verify", "events", "--json", "--no-entries")
    assert record.status == 3
    assert record.json["problems_by_kind"] == {  # type: ignore[index]
        "ledger-missing": 1,
        "beyond-end": 1,
        "condemned": 1,
        "not-registered": 1,
    }
    # What is truncated is no hole.
    bkctl.ok("truncate", "events", 35, "--yes")
    assert bkctl.ok("verify", "events").out == "0 segments in 0 ledgers, 0 entries, 0 of them read: no problems\n"


def test_verify_finds_entries_that_no_bookie_has(bkctl: Bkctl, log: Log) -> None:
    """A ledger that is open, so that only bookies know how far it goes."""
    writer = log.create_ledger("app", "run")
    writer.append_many([b"s"] * 5)
    writer.flush()
    commit(log, 0, LedgerRange(writer.ledger_id, 0, 5, 6, 6))
    ended = bkctl("verify", "events")
    log.ledgers.abandon(writer.ledger_id)
    assert ended.status == 3
    kind, offsets, ledger, detail = ended.lines[0].split("\t")
    assert (kind, offsets, ledger) == ("entry-missing", "offsets 35 to 36", f"ledger {writer.ledger_id}")
    assert detail.count("does not have it") == 3
    assert ended.lines[1:] == ["4 segments in 4 ledgers, 36 entries, 35 of them read: 1 problems"]


def read(bkctl: Bkctl, *arguments: object) -> list[int]:
    return [int(line.removeprefix("row ")) for line in bkctl.ok("read", "events", *arguments).lines]


def test_read(bkctl: Bkctl, log: Log) -> None:
    assert read(bkctl) == list(range(30))
    assert read(bkctl, "--from", 8, "--to", 12) == [8, 9, 10, 11]
    assert read(bkctl, "--last", 3) == [27, 28, 29]
    assert read(bkctl, "--from", 8, "--count", 4) == [8, 9, 10, 11]
    assert read(bkctl, "--count", 0) == []
    assert read(bkctl, "--from", 30) == []
    middle = list(log.snapshot().segments())[1].commit_time_ms
    assert read(bkctl, "--from-time", middle) == list(range(10, 30))
    assert read(bkctl, "--from-time", "2001-01-01T00:00:00") == list(range(30))
    assert read(bkctl, "--from-time", "2199-01-01") == []
    line = bkctl.ok("read", "events", "--offsets", "--from", 29).out
    assert line.split("\t")[0] == "29"
    assert line.split("\t")[2] == "row 29\n"
    assert read(bkctl, "--from", 25, "--follow", "--count", 5) == list(range(25, 30))

    log.truncate(10)
    for arguments, text in (
        (("--from", 3), "offsets [3, 10) are gone"),
        (("--from", 31), "--from 31 is after the end of what can be read, 30"),
        (("--from", 20, "--to", 15), "the read starts at 20, after its end, 15: give a larger --to"),
        (("--to", 40), "not written yet, the log ends at 30"),
    ):
        assert text in bkctl.fails("read", "events", *arguments)
    contradiction = bkctl.fails("read", "events", "--to", 20, "--follow", status=2)
    assert "--to and --follow contradict each other" in contradiction
    assert "password" in bkctl.fails("read", "events", password=False)


def test_a_log_whose_open_end_was_deleted_says_so_and_shows_what_is_sealed(
    bkctl: Bkctl, log: Log, metadata_service_uri: str, fresh_root: str
) -> None:
    """An operator deleted the ledger with --force, or somebody else did."""
    with BlockingClient(metadata_service_uri, config=TELLING) as client:
        writer = LogStore.of(client, fresh_root).open_log("events", password=PASSWORD).open_writer()
        writer.append(b"lost")
        writer.flush()
        writer.abandon()
        tail = log.snapshot().open_tail
        assert tail is not None
        client.delete(tail.ledger_id)
    lost = "was deleted, with all that was written from offset 30 on. Read what is before as of offset 29 (asOf). To"
    assert lost in bkctl.fails("read", "events")
    assert lost in bkctl.fails("read", "events", "--follow", "--count", 31)
    assert "open end of log events was deleted" in bkctl.fails("append", "events", stdin=b"x\n")
    assert read(bkctl, "--to", 30) == list(range(30))
    assert log.scan(["value"], end=30).to_arrow().num_rows == 30
    with pytest.raises(NoSuchLedgerError, match="bkctl log give-up-tail"):
        log.scan(["value"], end=31)
    rows = log.scan(["value"], as_of=29).to_arrow()["value"].to_pylist()
    assert rows == [b"row %d" % n for n in range(30)]
    # Readers give what is certain before the error.
    reader = log.open_reader()
    seen: list[bytes] = []
    assert sum(len(block.payloads) for block in reader.read(0, 30)) == 30
    with pytest.raises(NoSuchLedgerError, match="bkctl log give-up-tail"):
        list(reader.read(0, 31))
    with pytest.raises(NoSuchLedgerError, match="bkctl log give-up-tail"):
        seen.extend(bytes(payload) for block in reader.follow(0) for payload in block.payloads)
    assert seen == rows
    assert (log.as_of(29).next_offset, log.history(limit=1)[1][0].end_offset) == (30, 30)
    assert "the ledger does not exist" in bkctl("verify", "events").out
    # What is lost is given up on the operator's word, and the log goes on behind it.
    assert "give --yes" in bkctl.fails("give-up-tail", "events", "--entries", 100)
    dry = bkctl.ok("give-up-tail", "events", "--entries", 100, "--dry-run").out
    assert dry == "offsets 30 to 130 would be lost; the log would go on at offset 130\n"
    assert log.snapshot().open_tail == tail
    given_up = bkctl.ok("give-up-tail", "events", "--entries", 100, "--yes", "--json").json
    assert given_up == {"dry_run": False, "lost_start": 30, "lost_end": 130}
    assert "has no open end" in bkctl.fails("give-up-tail", "events", "--yes")
    assert bkctl.ok("append", "events", stdin=b"row 130\n").out == "appended 1 entries: offsets 130 to 131\n"
    assert read(bkctl, "--from", 130) == [130]
    assert f"ledger {tail.ledger_id}" in bkctl.fails("read", "events")
    with pytest.raises(LogRangeGoneError, match=r"offsets \[30, 130\) of log events are gone"):
        log.scan(["value"]).to_arrow()
    assert log.scan(["value"], start=130).to_arrow()["value"].to_pylist() == [b"row 130"]
    assert bkctl("verify", "events").status == 3
    assert bkctl.ok("truncate", "events", 130, "--yes").out.startswith("the log begins at offset 130")
    assert read(bkctl) == [130]


def test_an_open_end_is_given_up_only_if_its_ledger_is_gone_and_nobody_writes(
    bkctl: Bkctl, log: Log, metadata_service_uri: str, fresh_root: str
) -> None:
    assert "has no open end" in bkctl.fails("give-up-tail", "events", "--yes")
    with BlockingClient(metadata_service_uri, config=TELLING) as client:
        writer = LogStore.of(client, fresh_root).open_log("events", password=PASSWORD).open_writer()
        tail = log.snapshot().open_tail
        assert tail is not None
        assert f"bkctl ledger delete {tail.ledger_id} --force" in bkctl.fails("give-up-tail", "events", "--yes")
        client.delete(tail.ledger_id)
        assert "holds the tail open: close it" in bkctl.fails("give-up-tail", "events", "--yes")
        writer.abandon()
    # Nothing was acknowledged, so no offset has to be lost.
    assert bkctl.ok("give-up-tail", "events", "--entries", 0, "--yes").out.endswith("the log goes on at offset 30\n")
    assert bkctl.ok("append", "events", stdin=b"row 30\n").out == "appended 1 entries: offsets 30 to 31\n"
    assert read(bkctl) == list(range(31))


def test_read_an_arrow_log_as_json(bkctl: Bkctl, store: LogStore) -> None:
    settings = LogSettings.create(
        Quorum(3, 3, 2), DigestType.CRC32C, EntryFormat.ARROW, PASSWORD, '{"type":"struct","fields":[]}'
    )
    log = store.create_log("tables", settings, PASSWORD)
    batch = pa.record_batch(
        {
            "id": [1, 2],
            "name": ["a", None],
            "raw": [b"\x01\xff", b""],
            "ratios": [[0.5, math.nan], [-math.inf, math.inf]],
        }
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    writer = log.create_ledger("app", "run")
    writer.append_many([sink.getvalue().to_pybytes()])
    log.ledgers.close(writer.ledger_id)
    commit(log, 0, LedgerRange(writer.ledger_id, 0, 0, 2, 10))
    assert [json.loads(line) for line in bkctl.ok("read", "tables").lines] == [
        {"id": 1, "name": "a", "raw": "01ff", "ratios": [0.5, "NaN"]},
        {"id": 2, "name": None, "raw": "", "ratios": ["-Infinity", "Infinity"]},
    ]
    (first, _) = [json.loads(line) for line in bkctl.ok("read", "tables", "--json").lines]
    assert (first["offset"], first["row"]) == (0, {"id": 1, "name": "a", "raw": "01ff", "ratios": [0.5, "NaN"]})
    assert "raw logs only" in bkctl.fails("append", "tables", stdin=b"x")


def test_gc(bkctl: Bkctl, log: Log, client: BlockingClient) -> None:
    orphan = log.create_ledger("app", "r0")
    orphan.append_many([b"never committed"])
    log.ledgers.close(orphan.ledger_id)
    dropped = next(log.snapshot().segments()).ledger_id
    bkctl.ok("truncate", "events", 10, "--yes")
    refused = bkctl.fails("gc", "events")
    assert "1 ledgers would be condemned, 0 deleted, which nothing refers to, for good: give --yes" in refused
    ended = bkctl.ok("gc", "events", "--yes")
    assert ended.lines[0].startswith(f"condemned\tledger {dropped}\t")
    assert ended.lines[1:] == [
        "the log begins at offset 10; 0 pages left ZooKeeper",
        "1 ledgers condemned, 0 deleted, 0 wait, 0 failures",
    ]
    assert f"waiting\tledger {dropped}" in bkctl.ok("gc", "events", "--dry-run").lines

    bkctl.ok("retention", "events", "--orphan-retention", "0s", "--delete-grace", "0s")
    dry = bkctl.ok("gc", "events", "--dry-run")
    assert dry.lines == [
        f"would be condemned\tledger {orphan.ledger_id}\tnothing has referred to it for long",
        f"would be deleted\tledger {dropped}",
        "the log would begin at offset 10",
        "1 ledgers would be condemned, 1 would be deleted, 0 wait, 0 failures",
    ]
    assert client.metadata(dropped) is not None
    assert "1 ledgers would be condemned, 1 deleted" in bkctl.fails("gc", "events")
    assert client.metadata(dropped) is not None
    done = bkctl.ok("gc", "events", "--yes", "--json").json
    assert isinstance(done, dict)
    assert [one["ledger_id"] for one in done["condemned"]] == [orphan.ledger_id]
    assert (done["deleted"], done["failed"], done["first_offset"], done["dry_run"]) == ([dropped], [], 10, False)
    assert f"deleted\tledger {orphan.ledger_id}" in bkctl.ok("gc", "events", "--yes").lines
    for ledger_id in (orphan.ledger_id, dropped):
        with pytest.raises(NoSuchLedgerError):
            client.metadata(ledger_id)
    # A round that loses nothing needs no word.
    assert bkctl.ok("gc", "events").lines[-1] == "0 ledgers condemned, 0 deleted, 0 wait, 0 failures"
    assert "password" in bkctl.fails("gc", "events", password=False)
    assert bkctl.ok("verify", "events").lines[-1].endswith("no problems")
