"""Bookies that lost their data, over the wire: "unknown" until the check has made them whole again (C5, C6, R6)."""

from __future__ import annotations

import json
import shutil
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.codes import Code, DigestType
from bk_spark.protocol.errors import EntryUnknownError
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalCluster
from tests.integration.test_limbo import read_v3
from tests.support.admin import put, token_file
from tests.support.bookie import PASSWORD, BookieProcess, free_port, stored
from tests.support.clusters import serving

#: Is open. Its last entries are acknowledged by the second and third bookie, and the first one never had them.
OPEN = 1
#: Is closed, and the first and third bookie have all of it.
CLOSED = 2
LAST_OPEN, LAST_CLOSED = 9, 99
WORD = {"dataIntegrityChecking": "true", "dataIntegrityStampMissingCookies": "true"}


class Three:
    """Three bookies, and two ledgers on all of them. The second bookie loses data."""

    def __init__(self, base: Path, zookeeper: ZooKeeper, root: str) -> None:
        self.uri = f"zk+hierarchical://{zookeeper.servers}{root}"
        self.bookies = [
            BookieProcess(
                base / name,
                self.uri,
                flushInterval="600000",
                httpServerEnabled="true",
                httpServerPort=str(free_port()),
                httpServerTokenFile=token_file(base),
            )
            for name in ("first", "second", "third")
        ]
        self.store = LedgerStore(zookeeper, MetadataServiceUri.parse(self.uri))

    def create(self, ledger_id: int, last_entry_id: int | None) -> None:
        closed: dict[str, Any] = {"state": LedgerState.CLOSED, "last_entry_id": last_entry_id, "length": 1000}
        metadata = LedgerMetadata(
            Quorum(3, 3, 2),
            (Segment(0, tuple(bookie.id for bookie in self.bookies)),),
            digest_type=DigestType.CRC32C,
            password=PASSWORD,
            **(closed if last_entry_id is not None else {}),
        )
        self.store.create(metadata, ledger_id=ledger_id)

    def recover(self) -> None:
        with BlockingClient(self.uri) as client:
            client.recover_and_open(OPEN, PASSWORD)

    def metadata(self) -> LedgerMetadata:
        return self.store.read_latest(OPEN).metadata

    def progress(self, bookie: BookieProcess) -> dict[str, Any]:
        url = f"http://127.0.0.1:{bookie.settings['httpServerPort']}/api/v1/bookie/data_check"
        with urllib.request.urlopen(url, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def wait_progress(self, bookie: BookieProcess, **wanted: int) -> None:
        deadline = time.monotonic() + 60
        while not wanted.items() <= (found := self.progress(bookie)).items():
            assert time.monotonic() < deadline, found
            time.sleep(0.05)


def metric(bookie: BookieProcess, name: str) -> float:
    url = f"http://127.0.0.1:{bookie.settings['httpServerPort']}/metrics"
    with urllib.request.urlopen(url, timeout=60) as answer:
        lines: list[str] = answer.read().decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


def add(bookie: BookieProcess, ledger_id: int, entry_ids: range) -> None:
    with bookie.connect() as connection:
        assert connection.add(ledger_id, entry_ids) == [Code.OK] * len(entry_ids)


@pytest.fixture
def three(tmp_path: Path, zookeeper: ZooKeeper, ledgers_root: str, zk_only: LocalCluster) -> Iterator[Three]:
    found = Three(tmp_path, zookeeper, ledgers_root)
    with serving(found.bookies):
        found.create(OPEN, None)
        found.create(CLOSED, LAST_CLOSED)
        for bookie in found.bookies:
            add(bookie, CLOSED, range(LAST_CLOSED + 1))
        yield found


def assert_in_limbo(three: Three, first_missing: int) -> None:
    """The second bookie votes neither for nor against an entry, so nobody can cut the ledger."""
    _, second, _ = three.bookies
    with second.connect() as v2, second.connect() as v3:
        assert read_v3(v3, OPEN, first_missing) is Code.UNKNOWN_LEDGER_STATE
        assert v2.read(OPEN, first_missing) is Code.IO_ERROR
        assert v2.add(OPEN, [LAST_OPEN + 1]) == [Code.FENCED]
    with pytest.raises(EntryUnknownError):
        three.recover()
    assert three.metadata().state is not LedgerState.CLOSED


def assert_whole(three: Three) -> None:
    """The second bookie has everything of both ledgers again, and answers as if nothing had happened."""
    _, second, _ = three.bookies
    metadata = three.metadata()
    assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, LAST_OPEN)
    with second.connect() as v2, second.connect() as v3:
        for ledger_id, last in ((OPEN, LAST_OPEN), (CLOSED, LAST_CLOSED)):
            for entry_id in range(last + 1):
                assert v2.read(ledger_id, entry_id) == stored(ledger_id, entry_id)
            assert v2.read(ledger_id, last + 1) is Code.NO_ENTRY
            assert read_v3(v3, ledger_id, last + 1) is Code.NO_ENTRY
        # The fence outlives limbo.
        assert v2.add(OPEN, [LAST_OPEN + 1]) == [Code.FENCED]


def test_c6_r6_a_bookie_whose_disks_were_wiped(three: Three) -> None:
    _, second, third = three.bookies
    for bookie in (second, third):
        add(bookie, OPEN, range(LAST_OPEN + 1))
    assert third.stop() == 0
    second.kill()
    for name in ("journal", "ledgers"):
        shutil.rmtree(second.directory / name)
    # Without an operator's word it does not start, and the data are not checked.
    second.settings["dataIntegrityChecking"] = "true"
    second.launch()
    assert second.wait() == 5
    assert any("there is no current/VERSION in" in line for line in second.lines)

    second.settings |= WORD
    second.start()
    assert_in_limbo(three, 0)
    # The first bookie has all of the closed ledger.
    three.wait_progress(second, ledgers=2, inLimbo=1, failed=1, copiedEntries=LAST_CLOSED + 1)
    (problem,) = three.progress(second)["problems"]
    assert problem["ledger"] == OPEN
    assert "recovery stopped" in problem["reason"]
    assert metric(second, "bookie_data_check_LIMBO_LEDGERS") == 1
    assert metric(second, "bookie_data_check_FAILED_LEDGERS") == 1
    assert metric(second, "bookie_data_check_COPIED_ENTRIES") == LAST_CLOSED + 1

    third.start()
    assert second.wait_line("no ledger is in limbo"), second.lines
    three.wait_progress(second, ledgers=2, inLimbo=0, failed=0, recovered=1)
    assert metric(second, "bookie_data_check_LIMBO_LEDGERS") == 0
    assert_whole(three)
    # The word does no harm to a bookie that has lost nothing.
    assert second.stop() == 0
    second.start()
    assert_whole(three)
    three.wait_progress(second, ledgers=0)


def test_c5_a_bookie_that_lost_its_journal(three: Three) -> None:
    """What was flushed is served. The check survives kill -9."""
    _, second, third = three.bookies
    for bookie in three.bookies:
        add(bookie, OPEN, range(5))
    assert second.stop() == 0
    second.start()
    for bookie in (second, third):
        add(bookie, OPEN, range(5, LAST_OPEN + 1))
    second.kill()
    assert third.stop() == 0
    shutil.rmtree(second.directory / "journal")

    second.settings |= WORD
    second.start()
    with second.connect() as connection:
        assert connection.read(OPEN, 4) == stored(OPEN, 4)
    assert_in_limbo(three, 5)
    # Nothing is missing of the closed ledger.
    three.wait_progress(second, ledgers=2, inLimbo=1, failed=1, copiedEntries=0)
    second.kill()
    second.start()
    assert_in_limbo(three, 5)

    third.start()
    assert second.wait_line("no ledger is in limbo"), second.lines
    assert_whole(three)
    second.kill()
    second.start()
    assert_whole(three)


def test_c5_a_killed_bookie_with_an_unsynced_journal_has_lost_nothing(three: Three) -> None:
    """Its page cache has everything while the machine runs on, so nobody's ledgers are fenced."""
    _, second, third = three.bookies
    for bookie in (second, third):
        assert bookie.stop() == 0
        bookie.settings |= {"journalSyncData": "false", "dataIntegrityChecking": "true"}
        bookie.start()
        add(bookie, OPEN, range(5))
        bookie.kill()
    for bookie in (second, third):
        bookie.start()
        three.wait_progress(bookie, ledgers=0)
        with bookie.connect() as connection:
            assert connection.read(OPEN, 4) == stored(OPEN, 4)
        add(bookie, OPEN, range(5, LAST_OPEN + 1))


@pytest.mark.parametrize("there", ["closed without this bookie", "missing"])
def test_g1_limbo_ends_only_in_the_bookies_own_cluster(three: Three, there: str) -> None:
    """ZooKeeper's root is made anew while the data are checked, and a ledger of the same id is another one there."""
    _, second, third = three.bookies
    for bookie in (second, third):
        add(bookie, OPEN, range(LAST_OPEN + 1))
    assert third.stop() == 0
    second.kill()
    for name in ("journal", "ledgers"):
        shutil.rmtree(second.directory / name)
    second.settings |= WORD
    second.start()
    three.wait_progress(second, ledgers=2, inLimbo=1, failed=1)
    zookeeper, instance = three.store.zk, f"{three.store.root}/INSTANCEID"
    before = zookeeper.get(instance)
    assert before is not None
    own = three.metadata()
    zookeeper.set(instance, b"another instance", before.version)
    three.store.delete(OPEN)
    if there != "missing":
        others = Segment(0, ("b7:3181", "b8:3181", "b9:3181"))
        elsewhere = replace(own, segments=(others,), state=LedgerState.CLOSED, last_entry_id=3, length=40)
        three.store.create(elsewhere, ledger_id=OPEN)
    deadline = time.monotonic() + 60
    while "not the cluster of bookie" not in str((found := three.progress(second))["problems"]):
        assert found["inLimbo"] == 1
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    assert (found["inLimbo"], found["failed"]) == (1, 1)
    with second.connect() as connection:
        assert read_v3(connection, OPEN, 0) is Code.UNKNOWN_LEDGER_STATE

    # ZooKeeper has its cluster again.
    if there != "missing":
        three.store.delete(OPEN)
    three.store.create(own, ledger_id=OPEN)
    zookeeper.set(instance, before.data, before.version + 1)
    second.kill()
    third.start()
    second.start()
    assert second.wait_line("no ledger is in limbo"), second.lines
    assert_whole(three)


def test_a_deleted_ledger_in_limbo_is_collected(three: Three) -> None:
    """Nobody else has the ledger any more, so it cannot be made whole."""
    first, second, third = three.bookies
    for other in (first, third):
        assert other.stop() == 0
    second.kill()
    shutil.rmtree(second.directory / "journal")
    second.settings |= WORD
    second.start()
    three.wait_progress(second, ledgers=2, inLimbo=2, failed=2)
    files = second.directory / "ledgers" / "current" / "0" / f"{OPEN:x}"
    assert list(files.iterdir())
    three.store.delete(OPEN)
    url = f"http://127.0.0.1:{second.settings['httpServerPort']}/api/v1/bookie/gc"
    put(url)
    deadline = time.monotonic() + 60
    while list(files.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    three.wait_progress(second, inLimbo=1, failed=1)
    with second.connect() as connection:
        assert connection.read(OPEN, 0) is Code.NO_LEDGER
