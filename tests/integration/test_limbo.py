"""A ledger in limbo, at a real bookie over the wire: it answers "unknown" where it would answer "absent" (C5, C6)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bk_spark.protocol.codes import LAST_ENTRY, Code, FlagV2
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bookie_server.local import LocalCluster
from bookie_server.storage.index.index import IndexFiles, IndexHeader
from tests.support.bookie import KEY, BookieProcess, Connection, stored

#: Has entries 0 to 4 here, and is fenced.
HELD = 1
#: Is like it, and not in limbo.
OTHER = 2
#: Have nothing here, not even a key. They are not fenced.
EMPTY, TO_BE_FENCED, WITHOUT_KEY = range(3, 6)
UNKNOWN = Code.UNKNOWN_LEDGER_STATE


def write_header(bookie: BookieProcess, ledger_id: int, header: IndexHeader) -> None:
    """Write it into the ledger's index file, which may be a new one. The bookie does not run."""
    directory = str(bookie.directory / "ledgers" / "current")
    index = IndexFiles([directory], lambda: [directory])
    nothing = np.empty(0, np.int64)
    index.write(ledger_id, header, nothing, nothing)
    index.sync()
    index.close()


def prepared(directory: Path, cluster: LocalCluster, root: str) -> BookieProcess:
    """A running bookie with these ledgers."""
    process = BookieProcess(directory, f"zk://{cluster.zookeepers[0].id}{root}")
    process.start()
    with process.connect() as connection:
        for ledger_id in (HELD, OTHER):
            assert connection.add(ledger_id, range(5)) == [Code.OK] * 5
    assert process.stop() == 0
    write_header(process, HELD, IndexHeader(KEY, True, None, limbo=True))
    for ledger_id in (EMPTY, TO_BE_FENCED, WITHOUT_KEY):
        write_header(process, ledger_id, IndexHeader(b"", False, None, limbo=True))
    return process.start()


@pytest.fixture(scope="module")
def bookie(tmp_path_factory: pytest.TempPathFactory, zk_only: LocalCluster) -> Iterator[BookieProcess]:
    process = prepared(tmp_path_factory.mktemp("bookie"), zk_only, "/ledgers")
    yield process
    process.end()


@pytest.fixture
def restarted(tmp_path: Path, zk_only: LocalCluster, ledgers_root: str) -> Iterator[BookieProcess]:
    """One of the test's own."""
    process = prepared(tmp_path / "bookie", zk_only, ledgers_root)
    yield process
    process.end()


def read_v3(connection: Connection, ledger_id: int, entry_id: int, *, fence: bool = False) -> bytes | Code:
    request = pb.Request(header=pb.BKPacketHeader(operation=pb.READ_ENTRY))
    request.readRequest.ledgerId, request.readRequest.entryId = ledger_id, entry_id
    if fence:
        request.readRequest.flag, request.readRequest.masterKey = pb.ReadRequest.FENCE_LEDGER, KEY
    answer = connection.call(request)
    code = Code.from_v3(answer.readResponse.status)
    return answer.readResponse.body if code is Code.OK else code


def status(connection: Connection, operation: pb.OperationType, ledger_id: int) -> Code:
    """The answer to a request about a ledger."""
    request = pb.Request(header=pb.BKPacketHeader(operation=operation))
    if operation == pb.READ_LAC:
        request.readLacRequest.ledgerId = ledger_id
    else:
        request.getListOfEntriesOfLedgerRequest.ledgerId = ledger_id
    return Code.from_v3(connection.call(request).status)


def poll(connection: Connection, ledger_id: int, *, timeout_ms: int) -> Code:
    """A long poll for any LAC."""
    request = pb.Request(header=pb.BKPacketHeader(operation=pb.READ_ENTRY))
    read = request.readRequest
    read.ledgerId, read.entryId, read.previousLAC, read.timeOut = ledger_id, LAST_ENTRY, 100, timeout_ms
    read.flag = pb.ReadRequest.ENTRY_PIGGYBACK
    return Code.from_v3(connection.call(request).status)


def test_v3_says_unknown_and_v2_an_io_error(bookie: BookieProcess) -> None:
    """Java's client knows no code for it in v2."""
    with bookie.connect() as v2, bookie.connect() as v3:
        assert v2.read(OTHER, 5) is Code.NO_ENTRY
        assert read_v3(v3, OTHER, 5) is Code.NO_ENTRY
        for ledger_id, entry_id in ((HELD, 5), (HELD, LAST_ENTRY), (EMPTY, 0), (EMPTY, LAST_ENTRY)):
            assert read_v3(v3, ledger_id, entry_id) is UNKNOWN
            assert v2.read(ledger_id, entry_id) is Code.IO_ERROR
        # What is here is served.
        assert v2.read(HELD, 4) == stored(HELD, 4)
        assert read_v3(v3, HELD, 4) == stored(HELD, 4)


def test_nothing_is_said_about_the_end_of_the_ledger(bookie: BookieProcess) -> None:
    with bookie.connect() as connection:
        for operation in (pb.READ_LAC, pb.GET_LIST_OF_ENTRIES_OF_LEDGER):
            assert status(connection, operation, OTHER) is Code.OK
            assert status(connection, operation, HELD) is UNKNOWN
            assert status(connection, operation, EMPTY) is UNKNOWN
        assert poll(connection, OTHER, timeout_ms=1) is Code.OK
        # At once: there is nothing to wait for.
        assert poll(connection, HELD, timeout_ms=600_000) is UNKNOWN


def test_a_fence_takes_effect_and_says_unknown(bookie: BookieProcess) -> None:
    with bookie.connect() as v2, bookie.connect() as v3:
        assert v2.add(HELD, [5]) == [Code.FENCED]
        assert v2.fence(HELD) is Code.IO_ERROR
        assert read_v3(v3, TO_BE_FENCED, LAST_ENTRY, fence=True) is UNKNOWN
        assert v2.add(TO_BE_FENCED, [0]) == [Code.FENCED]
        assert v2.add(TO_BE_FENCED, [0], flags=FlagV2.RECOVERY_ADD) == [Code.OK]
        assert read_v3(v3, TO_BE_FENCED, 0) == stored(TO_BE_FENCED, 0)


def test_a_ledger_that_lost_its_key_takes_the_first_one(bookie: BookieProcess) -> None:
    with bookie.connect() as connection:
        assert connection.add(HELD, [5], flags=FlagV2.RECOVERY_ADD, key=bytes(20)) == [Code.UNAUTHORIZED]
        assert connection.add(WITHOUT_KEY, [0]) == [Code.OK]
        assert connection.add(WITHOUT_KEY, [1], key=bytes(20)) == [Code.UNAUTHORIZED]


def test_limbo_outlives_the_process(restarted: BookieProcess) -> None:
    """Headers are written again, because the ledger is fenced and gets its key."""
    with restarted.connect() as v2, restarted.connect() as v3:
        assert read_v3(v3, EMPTY, LAST_ENTRY, fence=True) is UNKNOWN
        assert v2.add(HELD, [7], flags=FlagV2.RECOVERY_ADD) == [Code.OK]
    for killed in (True, False):
        if killed:
            restarted.kill()
        else:
            assert restarted.stop() == 0
        restarted.start()
        with restarted.connect() as v2, restarted.connect() as v3:
            assert read_v3(v3, EMPTY, 0) is UNKNOWN
            assert v2.add(EMPTY, [0]) == [Code.FENCED]
            assert v2.add(EMPTY, [0], flags=FlagV2.RECOVERY_ADD, key=bytes(20)) == [Code.UNAUTHORIZED]
            assert read_v3(v3, HELD, 6) is UNKNOWN
            assert read_v3(v3, HELD, 7) == stored(HELD, 7)
