"""Scenario B7: disks that are full at the start, or fill up under load, and are freed. With small real file systems."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.codes import Code
from bookie_server.local import LocalCluster
from tests.support.bookie import BookieProcess, Connection, add_frame, free_port, stored
from tests.support.small_disk import SmallDisk, small_disk

_SIZE = 50_000
#: All sizes small, so that files are left and flushed often on a disk of a few megabytes.
_SMALL = {
    "diskCheckInterval": "100",
    "flushInterval": "100",
    "journalMaxSizeMB": "1",
    "journalPreAllocSizeMB": "1",
    "journalMaxBackups": "0",
    "journalMaxMemorySizeMb": "1",
    "skipListSizeLimit": str(1024 * 1024),
    "logSizeLimit": str(1024 * 1024),
    "minUsableSizeForEntryLogCreation": "0",
    "httpServerEnabled": "true",
    "httpServerHost": "127.0.0.1",
}


@pytest.fixture
def uri(zk_only: LocalCluster, ledgers_root: str) -> str:
    return f"zk+hierarchical://{zk_only.zookeepers[0].id}{ledgers_root}"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", 48) as disk:
        yield disk


@pytest.fixture
def bookie(tmp_path: Path, uri: str, disk: SmallDisk) -> Iterator[BookieProcess]:
    process = BookieProcess(tmp_path / "bookie", uri, **_SMALL, httpServerPort=str(free_port()))
    process.settings["ledgerDirectories"] = str(disk.path / "ledgers")
    yield process
    process.end()


def ask(bookie: BookieProcess, path: str) -> Any:
    url = f"http://127.0.0.1:{bookie.settings['httpServerPort']}/api/v1/bookie/{path}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def add(connection: Connection, ledger_id: int, entry_id: int) -> Code:
    connection.send(add_frame(ledger_id, entry_id, size=_SIZE))
    return Code(int.from_bytes(connection.body()[4:8], "big", signed=True))


def require_all(bookie: BookieProcess, acknowledged: dict[int, int]) -> None:
    """Every acknowledged entry is read, as it was written: ledger → how many."""
    with bookie.connect() as connection:
        for ledger_id, count in acknowledged.items():
            for entry_id in range(count):
                assert connection.read(ledger_id, entry_id) == stored(ledger_id, entry_id, _SIZE), entry_id


@pytest.mark.parametrize("journal_too", [False, True], ids=["ledgers", "ledgers+journal"])
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_b7_starts_on_full_disks_read_only_and_serves_reads(
    bookie: BookieProcess, disk: SmallDisk, zookeeper: ZooKeeper, ledgers_root: str, journal_too: bool, killed: bool
) -> None:
    if journal_too:
        bookie.settings["journalDirectories"] = str(disk.path / "journal")
    bookie.start()
    with bookie.connect() as connection:
        assert [add(connection, 1, i) for i in range(20)] == [Code.OK] * 20
    if killed:
        bookie.crash()
    else:
        assert bookie.stop() == 0
    disk.fill()
    bookie.start()
    assert any("read-only: source=disk" in line and "full: 100.0% used" in line for line in bookie.lines)
    assert zookeeper.exists(f"{ledgers_root}/available/{bookie.id}") is None
    assert zookeeper.exists(f"{ledgers_root}/available/readonly/{bookie.id}") is not None
    reasons = ask(bookie, "reasons")
    assert "full: 100.0% used" in reasons["readOnly"]["disk"]
    assert ("journal" in reasons["readOnly"]) == journal_too
    assert reasons["uncleanShutdown"] is killed
    require_all(bookie, {1: 20})
    with bookie.connect() as connection:
        assert add(connection, 1, 20) is Code.READ_ONLY
        disk.free()
        assert bookie.wait_line("writable again")
        assert add(connection, 1, 20) is Code.OK
    assert ask(bookie, "state/readonly") == {"readOnly": False}
    assert bookie.stop() == 0
    bookie.start()
    require_all(bookie, {1: 21})


@pytest.mark.parametrize("journal_too", [False, True], ids=["ledgers", "ledgers+journal"])
@pytest.mark.parametrize("threshold", ["0.8", "0.999999"], ids=["by threshold", "by failing writes"])
def test_b7_a_disk_fills_under_load_and_is_freed(
    bookie: BookieProcess, disk: SmallDisk, zookeeper: ZooKeeper, ledgers_root: str, journal_too: bool, threshold: str
) -> None:
    bookie.settings |= {"diskUsageThreshold": threshold}
    if journal_too:
        bookie.settings["journalDirectories"] = str(disk.path / "journal")
    disk.fill(leave_bytes=24 * 1024 * 1024)
    bookie.start()
    acknowledged = 0
    with bookie.connect() as connection:
        while (code := add(connection, 1, acknowledged)) is Code.OK:
            acknowledged += 1
            assert acknowledged < 2000, "the disk never filled"
        assert code in (Code.READ_ONLY, Code.IO_ERROR)
    assert bookie.wait_line("read-only: source=")
    assert ask(bookie, "reasons")["readOnly"]
    require_all(bookie, {1: acknowledged})

    disk.free()
    refused = acknowledged
    with bookie.connect() as connection:
        while add(connection, 1, acknowledged) is not Code.OK:
            assert bookie.wait_line("writable again")
        for acknowledged in range(refused + 1, refused + 101):
            assert add(connection, 1, acknowledged) is Code.OK
    require_all(bookie, {1: acknowledged})
    assert ask(bookie, "reasons")["readOnly"] == {}
    bookie.crash()
    bookie.start()
    require_all(bookie, {1: acknowledged})


def test_b7_killed_while_full(bookie: BookieProcess, disk: SmallDisk) -> None:
    """Nothing acknowledged is lost: it is in the journal, or on the full disk."""
    disk.fill(leave_bytes=8 * 1024 * 1024)
    bookie.start()
    acknowledged = 0
    with bookie.connect() as connection:
        while add(connection, 1, acknowledged) is Code.OK:
            acknowledged += 1
    for _ in range(2):
        bookie.crash()
        bookie.start()
        require_all(bookie, {1: acknowledged})
    disk.free()
    assert bookie.wait_line("writable again")
    assert bookie.stop() == 0
    bookie.start()
    require_all(bookie, {1: acknowledged})


def test_b7_stopped_while_full(bookie: BookieProcess, disk: SmallDisk) -> None:
    """What found no room is in the journal: the stop says that it was not clean, and the next start has it."""
    bookie.settings["persistBookieStatusEnabled"] = "true"
    bookie.settings |= {"flushInterval": "3600000", "skipListSizeLimit": str(64 * 1024 * 1024)}
    bookie.start()
    with bookie.connect() as connection:
        assert [add(connection, 1, i) for i in range(10)] == [Code.OK] * 10
    disk.fill()
    assert bookie.wait_line("read-only: source=disk")
    assert bookie.stop() == 5, "\n".join(bookie.lines)
    assert any("cannot write everything" in line for line in bookie.lines)
    assert (disk.path / "ledgers" / "current" / "DIRTY").exists()
    bookie.start()
    require_all(bookie, {1: 10})
    disk.free()
    assert bookie.wait_line("writable again")
    assert bookie.stop() == 0
    bookie.start()
    require_all(bookie, {1: 10})


def test_one_full_disk_of_two(bookie: BookieProcess, disk: SmallDisk, tmp_path: Path) -> None:
    """With readOnlyModeOnAnyDiskFullEnabled=false new entry logs go to the other one."""
    bookie.settings["ledgerDirectories"] = f"{disk.path / 'ledgers'},{tmp_path / 'large'}"
    bookie.settings["readOnlyModeOnAnyDiskFullEnabled"] = "false"
    bookie.start()
    disk.fill()
    assert bookie.wait_line("directory takes no new files")
    with bookie.connect() as connection:
        assert [add(connection, 1, i) for i in range(100)] == [Code.OK] * 100
    assert ask(bookie, "reasons") == {
        "readOnly": {},
        "directories": {str(disk.path / "ledgers" / "current"): "full: 100.0% used"},
        "uncleanShutdown": False,
    }
    bookie.crash()
    bookie.start()
    require_all(bookie, {1: 100})
    assert list((tmp_path / "large" / "current").glob("*.log"))


def test_without_read_only_mode_a_full_disk_ends_the_bookie(bookie: BookieProcess, disk: SmallDisk) -> None:
    bookie.settings["readOnlyModeEnabled"] = "false"
    bookie.start()
    disk.fill()
    assert bookie.wait() == 5
    assert any("readOnlyModeEnabled=false, so the bookie stops: disk: " in line for line in bookie.lines)
    bookie.launch()
    assert bookie.wait() == 5
    assert not any("serves on" in line for line in bookie.lines)
    disk.free()
    bookie.start()
    with bookie.connect() as connection, contextlib.closing(connection.socket):
        assert add(connection, 1, 0) is Code.OK
