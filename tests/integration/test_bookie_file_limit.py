"""A bookie whose files cannot be as long as the index of a ledger with huge entry ids would be."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest

from bk_spark.protocol.codes import Code, FlagV2
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bookie_server.local import LocalCluster
from tests.support.bookie import KEY, BookieProcess, Connection, add_frame, stored

LIMIT_BYTES: Final = 2 << 40
#: The highest entry id whose page of the index ends within the limit.
LAST: Final = (LIMIT_BYTES - 1024) // 8192 * 1024 - 1
FAR: Final = (1 << 40) - 1
FLUSH_MS: Final = 100


@pytest.fixture
def bookie(zk_only: LocalCluster, tmp_path: Path) -> Iterator[BookieProcess]:
    uri = f"zk://{zk_only.zookeepers[0].id}/ledgers"
    process = BookieProcess(tmp_path / "bookie", uri, flushInterval=str(FLUSH_MS))
    process.file_bytes = LIMIT_BYTES
    yield process
    process.end()


def takes_adds(bookie: BookieProcess, connection: Connection, ledger_ids: Iterable[int]) -> None:
    """It does, also when what was added before was flushed, which makes the file of each ledger's index."""
    for ledger_id in ledger_ids:
        assert connection.add(ledger_id, [0]) == [Code.OK]
        deadline = time.monotonic() + 60
        while not list(bookie.directory.rglob(f"{ledger_id:x}.idx")):
            assert time.monotonic() < deadline, bookie.lines
            time.sleep(0.01)
        assert connection.add(ledger_id, [1]) == [Code.OK]


def v3(connection: Connection, ledger_id: int, entry_id: int, **more: object) -> int:
    body = stored(ledger_id, entry_id)
    add = pb.AddRequest(ledgerId=ledger_id, entryId=entry_id, masterKey=KEY, body=body, **more)  # type: ignore[arg-type]
    request = pb.Request(header=pb.BKPacketHeader(operation=pb.ADD_ENTRY), addRequest=add)
    return int(connection.call(request).addResponse.status)


def test_an_add_beyond_the_longest_index_file_is_refused_and_others_of_its_batch_are_not(bookie: BookieProcess) -> None:
    bookie.start()
    with bookie.connect() as connection:
        codes = connection.add(7, [0, FAR, 1, LAST, LAST + 1, 2])
        assert codes == [Code.OK, Code.BAD_REQUEST, Code.OK, Code.OK, Code.BAD_REQUEST, Code.OK]
        # A ledger of which nothing was taken is not made.
        assert connection.add(8, [FAR]) == [Code.BAD_REQUEST]
        assert connection.read(8, FAR) is Code.NO_LEDGER
        # Recovery has no way to write there either.
        assert connection.fence(7) == stored(7, LAST)
        assert connection.add(7, [3, FAR], flags=FlagV2.RECOVERY_ADD) == [Code.OK, Code.BAD_REQUEST]
        with bookie.connect() as other:
            for more in ({}, {"flag": pb.AddRequest.RECOVERY_ADD}):
                assert v3(other, 9, 1, **more) == pb.EOK
                assert v3(other, 9, FAR, **more) == pb.EBADREQ
        takes_adds(bookie, connection, range(10, 13))
        for entry_id in (0, 1, 2, 3, LAST):
            assert connection.read(7, entry_id) == stored(7, entry_id)
        assert connection.read(7, FAR) is Code.NO_ENTRY
    assert any("ids above" in line and str(LAST) in line for line in bookie.lines)
    assert bookie.stop() == 0
    bookie.start()
    with bookie.connect() as connection:
        assert connection.read(7, LAST) == stored(7, LAST)


def test_a_journal_with_an_entry_that_no_index_file_can_hold_is_replayed(bookie: BookieProcess) -> None:
    """It was taken when files could be longer. The bookie serves all else, and never says that this one is absent."""
    bookie.settings["flushInterval"] = "3600000"
    bookie.file_bytes = None
    bookie.start()
    with bookie.connect() as connection:
        connection.send(b"".join(add_frame(7, entry_id) for entry_id in (0, FAR, 1)))
        assert {connection.body()[7] for _ in range(3)} == {0}
        assert connection.add(8, [FAR]) == [Code.OK]
        assert connection.read(7, FAR) == stored(7, FAR)
    bookie.crash()
    bookie.settings["flushInterval"] = str(FLUSH_MS)
    bookie.file_bytes = LIMIT_BYTES
    for said in (2, 0):
        bookie.start()
        assert sum("do not fit into its index file" in line for line in bookie.lines) == said
        with bookie.connect() as connection:
            for entry_id in (0, 1):
                assert connection.read(7, entry_id) == stored(7, entry_id)
            assert connection.read(7, said + 2) is Code.NO_ENTRY
            assert connection.read(7, FAR) is Code.IO_ERROR
            assert connection.read(8, FAR) is Code.IO_ERROR
            takes_adds(bookie, connection, range(10 + said, 12 + said))
            assert connection.add(7, [said + 2]) == [Code.OK]
            assert connection.read(7, said + 2) == stored(7, said + 2)
        assert bookie.stop() == 0
