"""The ``bkctl`` command as a user runs it: bookies, ledgers, and wrong command lines."""

from __future__ import annotations

import functools
import json
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import bk_spark
from bk_spark.bkctl import main
from bk_spark.bkctl.command_line.common import iso_time
from bk_spark.bkctl.command_line.parser import commands_of, make_parser, parsers_of
from bk_spark.bookie.blocking import BlockingClient
from bookie_server.local import LocalCluster
from tests.support.registrations import kill_and_forget

PASSWORD = b"open sesame"


@pytest.fixture
def password_file(tmp_path: Path) -> str:
    path = tmp_path / "password"
    path.write_bytes(PASSWORD + b"\n")
    return str(path)


def test_bookies_with_state_rack_and_disk(
    mended_cluster: LocalCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One that answers; one that is down; and one that is registered, read-only, and takes connections in silence."""
    # Not five seconds for each of four commands, and no time for those that are asked for names alone.
    with_limit = BlockingClient.disk_space
    soon, at_once = (functools.partialmethod(BlockingClient.disk_space, timeout_ms=ms) for ms in (3_000, 1))
    monkeypatch.setattr(BlockingClient, "disk_space", soon)
    uri = mended_cluster.metadata_service_uri
    up, _, down = sorted(mended_cluster.bookies, key=lambda one: one.id)
    settings = tmp_path / "client.conf"
    settings.write_text("rackMappingZnode=/racks\n")
    command = ["bookies", "--metadata-service-uri", uri, "--client-conf", str(settings)]
    racks = {"group": {up.id: {"rack": "/r1"}, down.id: {"rack": "r3"}}}
    with BlockingClient(uri) as client, socket.create_server(("localhost", 0)) as silent_socket:
        silent = f"localhost:{silent_socket.getsockname()[1]}"
        client.zookeeper.create("/racks", json.dumps(racks).encode())
        client.zookeeper.create(f"/ledgers/available/readonly/{silent}", ephemeral=True)
        kill_and_forget(mended_cluster, down)
        while down.id in {one.bookie_id for one in client.bookies()}:
            time.sleep(0.1)
        assert main([*command, "--json"]) == 0
        records = {record["bookie"]: record for record in json.loads(capsys.readouterr().out)}
        assert main(command) == 0
        header, *lines = capsys.readouterr().out.splitlines()
        shown = {}
        monkeypatch.setattr(BlockingClient, "disk_space", with_limit)
        assert main(["top", *command[1:], "--json"]) == 0
        at_a_glance = {one["bookie"]: one["rack"] for one in json.loads(capsys.readouterr().out)["bookies"]}
        monkeypatch.setattr(BlockingClient, "disk_space", at_once)
        assert main([*command, "--rack-znode", "/none", "--json"]) == 0
        assert {record["rack"] for record in json.loads(capsys.readouterr().out)} == {None}
        for state in ("-rw", "--readwrite", "-ro", "--readonly", "-a", "--all"):
            assert main(["listbookies", *command[1:], "--json", state]) == 0
            shown[state] = {record["bookie"] for record in json.loads(capsys.readouterr().out)}
        monkeypatch.setattr(BlockingClient, "disk_space", soon)
        info = ["bookieinfo", "--metadata-service-uri", uri]
        assert main([*info, "--json"]) == 0
        disks = json.loads(capsys.readouterr().out)
        assert main(info) == 0
        printed, warned = capsys.readouterr()
        client.zookeeper.delete("/racks")
    assert at_a_glance == {each: record["rack"] for each, record in records.items()}
    disk = shutil.disk_usage(mended_cluster.directory)
    found = records[up.id]
    assert (found["address"], found["state"], found["rack"]) == (up.id, "writable", "/r1")
    assert found["disk_bytes"] == disk.total
    assert abs(found["free_bytes"] - disk.free) < disk.total // 10
    found = records[silent]
    assert (found["address"], found["state"], found["rack"]) == (silent, "read-only", None)
    assert (found["disk_bytes"], found["free_bytes"]) == (None, None)
    assert "no answer within 3000 ms" in found["disk_unknown"]
    found = records[down.id]
    assert (found["address"], found["state"], found["rack"]) == (None, "not registered", "/r3")
    assert (found["disk_bytes"], found["disk_unknown"]) == (None, "the bookie is not registered")

    assert shown["-rw"] == shown["--readwrite"] == set(records) - {silent, down.id}
    assert shown["-ro"] == shown["--readonly"] == {silent}
    assert shown["-a"] == shown["--all"] == set(records)

    table = {line.split()[0]: line for line in lines}
    assert header.split() == ["bookie", "address", "state", "rack", "disk", "free"]
    assert re.search(r"  writable +/r1 +[\d.]+ GiB  [\d.]+ GiB \(\d+%\)$", table[up.id])
    assert table[silent].split()[2:] == ["read-only", "unknown", "unknown", "unknown"]
    assert table[down.id].split()[1:] == ["unknown", "not", "registered", "/r3", "unknown", "unknown"]

    asked = {record["bookie"]: record for record in disks["bookies"]}
    assert down.id not in asked
    assert (asked[silent]["disk_bytes"], "no answer" in asked[silent]["disk_unknown"]) == (None, True)
    known = [record for record in disks["bookies"] if record["disk_bytes"] is not None]
    assert len(known) == len(asked) - 1 == disks["total"]["bookies"] == 2
    for name in ("disk_bytes", "free_bytes"):
        assert disks["total"][name] == sum(record[name] for record in known)
    assert printed.splitlines()[0].split() == ["bookie", "disk", "free"]
    assert re.fullmatch(r"total of 2 of 3 +[\d.]+ GiB  [\d.]+ GiB \(\d+%\)", printed.splitlines()[-1])
    assert re.fullmatch(rf"bkctl: bookie {silent}: no answer within 3000 ms.*\n", warned)


@pytest.mark.parametrize("before", [True, False])
def test_options_of_all_commands_stand_before_or_after_the_command(
    metadata_service_uri: str,
    password_file: str,
    fresh_root: str,
    before: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("BK_METADATA_SERVICE_URI", raising=False)
    shared = ["--metadata-service-uri", metadata_service_uri, "--password-file", password_file]
    shared += ["--log-root", fresh_root, "--json"]
    for command in (["log", "create", "events"], ["log", "list"]):
        assert main([*shared, *command] if before else [*command, *shared]) == 0
    assert '"name": "events"' in capsys.readouterr().out
    assert main(["log", *shared, "list"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "events"


def test_the_cluster_comes_from_the_environment_where_no_option_names_it(
    metadata_service_uri: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BK_METADATA_SERVICE_URI", metadata_service_uri)
    assert main(["log", "list"]) == 0
    monkeypatch.setenv("BK_METADATA_SERVICE_URI", "zk://127.0.0.1:1/nowhere")
    assert main(["log", "list", "--metadata-service-uri", metadata_service_uri]) == 0
    monkeypatch.delenv("BK_METADATA_SERVICE_URI")
    with pytest.raises(SystemExit) as ended:
        main(["log", "list"])
    assert ended.value.code == 2
    assert "Give --metadata-service-uri URI, or set BK_METADATA_SERVICE_URI" in capsys.readouterr().err


def test_every_command_takes_json_and_the_options_of_all() -> None:
    leaves = [one for one in parsers_of(make_parser()) if not commands_of(one)]
    assert len(leaves) >= 15
    for leaf in leaves:
        offered = set(re.findall(r"--[\w-]+", leaf.format_help()))
        assert {"--json", "--metadata-service-uri", "--password-file", "--log-root"} <= offered


def test_commands_that_apache_has_have_the_names_of_its_shell() -> None:
    apaches = """recover decommission autorecovery listunderreplicated whoisauditor triggeraudit lostbookierecoverydelay
        listbookies bookieinfo bookiesanity simpletest listledgers ledgermetadata readledger deleteledger
        queryautorecoverystatus forceauditchecks initnewcluster cookie whatisinstanceid
        readlog readlogmetadata readjournal lastmark listfilesondisc localconsistencycheck"""
    assert set(apaches.split()) <= set(commands_of(make_parser()))


def test_a_time_that_no_calendar_has_is_printed_as_a_number() -> None:
    """One damaged head ended the list of all logs."""
    assert iso_time(0) == "1970-01-01T00:00:00.000Z"
    assert iso_time(2**63 - 1) == "9223372036854775807 ms"


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"bkctl {bk_spark.__version__}\n"


def test_ledger(metadata_service_uri: str, password_file: str, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    common = ["--metadata-service-uri", metadata_service_uri, "--password-file", password_file]
    with BlockingClient(metadata_service_uri) as client:
        writer = client.create(password=PASSWORD)
        writer.append_many([b"one", b"two", b"three"])
        writer.close()

    assert main([*common, "ledger", "read", str(writer.ledger_id), "--first", "1"]) == 0
    assert capsysbinary.readouterr().out == b"two\nthree\n"
    assert main([*common, "ledger", "show", str(writer.ledger_id)]) == 0
    shown = capsysbinary.readouterr().out.decode()
    assert "state       CLOSED" in shown
    assert "last entry  2" in shown
    assert "sesame" not in shown
    assert main([*common, "ledger", "show", "--json", str(writer.ledger_id)]) == 0
    record = json.loads(capsysbinary.readouterr().out)
    assert (record["ledger_id"], record["state"], record["last_entry_id"]) == (writer.ledger_id, "CLOSED", 2)
    assert "sesame" not in str(record)


def test_ledger_entries_as_json_are_one_a_line(
    metadata_service_uri: str, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    with BlockingClient(metadata_service_uri) as client:
        writer = client.create()
        writer.append_many([b"one", "zwölf\n".encode(), b"\xff\x00"])
        writer.close()
    command = ["ledger", "read", str(writer.ledger_id), "--json", "--metadata-service-uri", metadata_service_uri]
    assert main(command) == 0
    assert [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()] == [
        {"entry": 0, "value": "one"},
        {"entry": 1, "value": "zwölf\n"},
        {"entry": 2, "value_base64": "/wA="},
    ]


def test_errors_are_one_line(metadata_service_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--metadata-service-uri", metadata_service_uri]
    for arguments, text in (
        (["log", "show", "no-such-log"], "there is no log no-such-log"),
        (["ledger", "show", "999999999"], "ledger 999999999"),
        (["--password-file", "/no/such/file", "ledger", "read", "0"], "/no/such/file cannot be read"),
    ):
        assert main([*common, *arguments]) == 1
        error = capsys.readouterr().err
        assert text in error
        assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["log", "read", "x", "--from", "-1"], "argument --from: '-1' must be a whole number from 0 to 2⁶³ - 1"),
        (
            ["log", "read", "x", "--from-time", "tomorrow"],
            "argument --from-time: 'tomorrow' is not a time: give one",
        ),
        (["log", "truncate", "x", "1.5"], "argument OFFSET: '1.5' must be a whole number"),
        (
            ["log", "retention", "x", "--time", "7"],
            "argument --time: '7' must be a number with a unit: ms, s",
        ),
        (["log", "retention", "x", "--size", "-3"], "argument --size: '-3' must be a number of bytes, or one with"),
        (["log", "create", "x", "--digest-type", "MD5"], "argument --digest-type: invalid choice: 'MD5'"),
        (["log", "wipe"], "argument list|show|history|read"),
        (["log", "list", "--password", "s3cret"], "write it into a file, and name it: --password-file FILE"),
        (["log", "list", "--pass=my s3cret"], "ambiguous option: --pass could match --password-file, --password"),
        (["log", "list", "--passwd=s3cret"], "unrecognized arguments: --passwd (see"),
        (["log", "read", "x", "--count", "-3"], "argument --count: '-3' must be a whole number"),
        (["ledger", "show", "x"], "argument LEDGER: 'x' must be a whole number"),
    ],
)
def test_a_wrong_command_line_is_told_in_one_line(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--metadata-service-uri", "zk://localhost:1/ledgers", *arguments])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.startswith(("bkctl ", "bkctl:"))
    assert "s3cret" not in error
    assert len(error.splitlines()) == 1


def test_it_runs_as_a_module_and_stops_when_nobody_reads_on(metadata_service_uri: str) -> None:
    command = [sys.executable, "-m", "bk_spark.bkctl", "--metadata-service-uri", metadata_service_uri]
    with BlockingClient(metadata_service_uri) as client:
        writer = client.create()
        writer.append_many([b"x" * 1000] * 2000)
        writer.close()
    listed = subprocess.run([*command, "log", "list", "--json"], capture_output=True, timeout=60)
    assert (listed.returncode, listed.stderr) == (0, b"")
    assert isinstance(json.loads(listed.stdout), list)
    reading = subprocess.Popen(
        [*command, "ledger", "read", str(writer.ledger_id)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert reading.stdout is not None
    assert reading.stderr is not None
    with reading:
        assert len(reading.stdout.readline()) == 1001
        reading.stdout.close()
        assert reading.stderr.read() == b""
        assert reading.wait(60) == 0
