"""Peers that hold what others need, against a real bookie: others go on (scenario N1)."""

from __future__ import annotations

import contextlib
import itertools
import resource
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bk_spark.protocol.codes import Code, FlagV2
from bk_spark.protocol.wire import wire_v2
from bookie_server.local import LocalCluster
from tests.support.bookie import KEY, BookieProcess, Connection, add_frame, stored

_ids = itertools.count(50_000)


@pytest.fixture(scope="module")
def bookie(zk_only: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookieProcess]:
    process = BookieProcess(tmp_path_factory.mktemp("bookie"), f"zk://{zk_only.zookeepers[0].id}/ledgers")
    process.start()
    yield process
    process.end()


@pytest.fixture
def ledger() -> int:
    """An id that nobody used."""
    return next(_ids)


def _table_entries(pid: int) -> int:
    """How many open files the kernel's table of the process has room for."""
    return int(Path(f"/proc/{pid}/status").read_text("ascii").split("FDSize:")[1].split()[0])


@pytest.mark.parametrize("sent", [8, -1], ids=["eight_bytes", "all_but_one_byte"])
def test_n1_ten_stalled_large_frames_leave_others_theirs(bookie: BookieProcess, ledger: int, sent: int) -> None:
    """Ten frames of the largest size are more than the whole room for large frames."""
    with contextlib.ExitStack() as stack:
        stalled = [stack.enter_context(bookie.connect()) for _ in range(12)]
        beginning = add_frame(ledger, 0, size=5_200_000)[:sent]

        def begin(peer: Connection) -> None:
            peer.socket.settimeout(0.5)
            # It is not given room for all of it, and may be closed while others wait for room.
            with contextlib.suppress(TimeoutError, ConnectionError):
                peer.send(beginning)

        with ThreadPoolExecutor(len(stalled)) as threads:
            list(threads.map(begin, stalled))
        honest = stack.enter_context(bookie.connect())
        for entry_id in range(10):
            honest.send(add_frame(ledger, entry_id, size=1_000_000) + add_frame(ledger, 100 + entry_id))
            for _ in range(2):
                assert bytes(honest.body())[4:8] == bytes(4)
        assert honest.add(ledger, [200]) == [Code.OK]


def test_n1_connections_find_room_in_the_table_of_open_files(bookie: BookieProcess) -> None:
    """The event loop would stop for up to 20 ms each time the kernel doubles the table of a process with threads."""
    with contextlib.ExitStack() as stack:
        before = _table_entries(bookie.pid)
        assert before >= min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 16_384)
        for _ in range(600):
            stack.enter_context(bookie.connect())
        assert stack.enter_context(bookie.connect()).read(next(_ids), 0) is Code.NO_LEDGER
        assert _table_entries(bookie.pid) == before


def test_n1_few_open_files_many_ledgers_and_idle_connections(zk_only: LocalCluster, tmp_path: Path) -> None:
    """With ``ulimit -n 256``: reads of more ledgers than files may be open, while idle connections come and stay."""
    bookie = BookieProcess(tmp_path / "bookie", f"zk://{zk_only.zookeepers[0].id}/ledgers")
    bookie.open_files = 256
    ledgers = [next(_ids) for _ in range(300)]
    try:
        bookie.start()
        with contextlib.ExitStack() as stack:
            with bookie.connect() as writer:
                for ledger in ledgers:
                    assert writer.add(ledger, [0]) == [Code.OK]
            assert bookie.stop() == 0  # everything goes to index files and entry logs
            bookie.start()
            with bookie.connect() as reader:
                for ledger in ledgers:
                    assert reader.read(ledger, 0) == stored(ledger, 0)
            for _ in range(300):
                stack.enter_context(bookie.connect())
            with bookie.connect() as reader:
                for ledger in ledgers * 2:
                    assert reader.read(ledger, 0) == stored(ledger, 0)
            for ledger in ledgers:
                with bookie.connect() as newcomer:
                    assert newcomer.read(ledger, 0) == stored(ledger, 0)
                    assert newcomer.add(ledger, [1]) == [Code.OK]
        assert bookie.stop() == 0
        assert not any("ERROR" in line for line in bookie.lines)
    finally:
        bookie.end()


def test_n1_peers_that_take_nothing_leave_others_their_reads(bookie: BookieProcess, ledger: int) -> None:
    """They ask for far more than may wait to be taken, which takes the bookie seconds to find out of all of them."""
    with contextlib.ExitStack() as stack:
        honest = stack.enter_context(bookie.connect())
        honest.send(add_frame(ledger, 0, size=1_000_000))
        assert bytes(honest.body())[4:8] == bytes(4)
        assert honest.add(ledger, [1]) == [Code.OK]
        for _ in range(300):
            greedy = socket.socket()
            stack.enter_context(greedy)
            greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            greedy.connect(("127.0.0.1", bookie.port))
            greedy.sendall(wire_v2.read_requests(ledger, [0] * 40))
        for entry_id in range(2, 52):
            assert honest.read(ledger, 1) == stored(ledger, 1)
            assert honest.add(ledger, [entry_id]) == [Code.OK]
        assert bookie.resident_mib() < 400


def test_n1_fencing_reads_of_many_unknown_ledgers_are_all_answered_and_others_go_on(
    bookie: BookieProcess, ledger: int
) -> None:
    with contextlib.ExitStack() as stack:
        honest = stack.enter_context(bookie.connect())
        assert honest.add(ledger, [0]) == [Code.OK]
        greedy = [stack.enter_context(bookie.connect()) for _ in range(4)]
        first = 1 << 33
        for number, peer in enumerate(greedy):
            ledgers = range(first + 1000 * number, first + 1000 * number + 1000)
            peer.send(b"".join(wire_v2.read_requests(one, [0], FlagV2.FENCING, KEY) for one in ledgers))
        for entry_id in range(1, 20):
            assert honest.add(ledger, [entry_id]) == [Code.OK]
            assert honest.read(ledger, entry_id) == stored(ledger, entry_id)
        assert honest.fence(ledger) == stored(ledger, 19)
        for peer in greedy:
            codes = {Code.from_v2(int.from_bytes(peer.body()[4:8], "big", signed=True)) for _ in range(1000)}
            assert codes == {Code.NO_ENTRY}
        assert greedy[0].add(first + 5, [0]) == [Code.FENCED]
