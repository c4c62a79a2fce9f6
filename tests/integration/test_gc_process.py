"""A bookie process that collects: what a client deletes vanishes from its disk, and the rest stays readable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalCluster
from tests.support.bookie import BookieProcess

PASSWORD = b"open sesame"
ENTRIES = 200
SIZE = 4_000
PATIENCE_S = 60.0


@pytest.fixture
def uri(zk_only: LocalCluster, ledgers_root: str) -> str:
    return f"zk+hierarchical://{zk_only.zookeepers[0].id}{ledgers_root}"


@pytest.fixture
def bookie(tmp_path: Path, uri: str) -> Iterator[BookieProcess]:
    settings = {
        "gcWaitTime": "100",
        "minorCompactionInterval": "1",
        "majorCompactionInterval": "2",
        "compactionRateByEntries": "100000",
        "logSizeLimit": str(1024 * 1024),
        "flushInterval": "50",
        "diskUsageThreshold": "0.999",
        "diskUsageWarnThreshold": "0.999",
    }
    process = BookieProcess(tmp_path / "bookie", uri, **settings)
    yield process
    process.end()


def eventually(check: Callable[[], bool], what: str) -> None:
    """The bookie's files cannot be waited for, so they are looked at again and again."""
    deadline = time.monotonic() + PATIENCE_S
    while not check():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.05)


def size(path: Path) -> int:
    """Bytes of a file that the bookie may remove at any moment."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def payloads(number: int) -> list[bytes]:
    return [b"%d %d " % (number, entry) + bytes([number]) * SIZE for entry in range(ENTRIES)]


def write(client: BlockingClient, count: int) -> list[int]:
    """Ledgers written by turns, so that each entry log holds entries of several."""
    writers = [client.create(quorum=Quorum(1, 1, 1), password=PASSWORD) for _ in range(count)]
    for first in range(0, ENTRIES, 10):
        for number, writer in enumerate(writers):
            writer.append_many(Payloads.of(payloads(number)[first : first + 10]))
    for writer in writers:
        writer.close()
    return [writer.ledger_id for writer in writers]


def assert_readable(client: BlockingClient, ledger_id: int, number: int) -> None:
    reader = client.open_for_reading(ledger_id, PASSWORD)
    assert reader.read(0, ENTRIES - 1) == payloads(number)


def test_deleted_ledgers_leave_the_disk_and_the_others_stay(bookie: BookieProcess, uri: str) -> None:
    bookie.start()
    current = bookie.directory / "ledgers" / "current"

    def log_bytes() -> int:
        return sum(size(path) for path in current.glob("*.log"))

    with BlockingClient(uri) as client:
        ledgers = write(client, 8)
        eventually(lambda: log_bytes() > 7 * ENTRIES * SIZE, "a flush")
        before = log_bytes()
        for ledger_id in ledgers[1:]:
            client.delete(ledger_id)
        eventually(lambda: len(list(current.rglob("*.idx"))) == 1, "the deletion of ledgers")
        eventually(lambda: log_bytes() < before / 3, "compaction")
        assert_readable(client, ledgers[0], 0)
    bookie.crash()
    bookie.start()
    with BlockingClient(uri) as client:
        assert_readable(client, ledgers[0], 0)
        client.delete(ledgers[0])
        eventually(lambda: not list(current.rglob("*.idx")), "the deletion of the last ledger")
    assert bookie.stop() == 0
    assert not list(current.glob("*.compact*"))
