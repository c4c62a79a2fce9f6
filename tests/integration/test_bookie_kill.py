"""kill -9 in the middle of concurrent adds: whatever was answered is there after the restart, bytes equal."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bk_spark.protocol.codes import Code
from bk_spark.protocol.wire import answers_v2, wire_v2
from bk_spark.protocol.wire.framing import ReceiveBuffer
from bookie_server.local import LocalCluster
from tests.support.bookie import BookieProcess, Connection, add_frame, stored

WRITERS = 4
BATCH = 40
ROUNDS = 5


@pytest.fixture
def bookie(tmp_path: Path, zk_only: LocalCluster, ledgers_root: str) -> Iterator[BookieProcess]:
    process = BookieProcess(
        tmp_path / "bookie",
        f"zk://{zk_only.zookeepers[0].id}{ledgers_root}",
        flushInterval="50",
        journalMaxSizeMB="1",
        logSizeLimit="2000000",
        pageLimit="64",
        openFileLimit="16",
    )
    yield process
    process.end()


class Writer:
    """Adds entries to ledgers of its own without pause until the bookie is gone; remembers what was answered."""

    def __init__(self, number: int) -> None:
        self._next = {number * 1000 + i: 0 for i in range(10)}
        self._ledgers = itertools.cycle(self._next)
        self.answered: set[tuple[int, int]] = set()
        self.fenced: set[int] = set()
        self.progress = threading.Event()

    def run(self, bookie: BookieProcess) -> None:
        receive = ReceiveBuffer()
        try:
            with bookie.connect() as connection:
                for _ in range(3):
                    self._send(connection)
                while True:
                    count = connection.socket.recv_into(receive.get_buffer())
                    if count == 0:
                        return
                    frames = receive.received(count)
                    if frames is None:
                        continue
                    for answers in answers_v2.parse_answers(frames):
                        assert isinstance(answers, answers_v2.AddAnswers)
                        assert not answers.codes.any()
                        self.answered.update(zip(answers.ledger_ids.tolist(), answers.entry_ids.tolist(), strict=True))
                    if len(self.answered) > 2000:
                        self.progress.set()
                    self._send(connection)
        except ConnectionError:
            return
        finally:
            self.progress.set()

    def _send(self, connection: Connection) -> None:
        ledger = next(self._ledgers)
        first = self._next[ledger]
        self._next[ledger] = first + BATCH
        connection.send(b"".join(add_frame(ledger, i) for i in range(first, first + BATCH)))


def test_kill_loses_nothing_that_was_answered(bookie: BookieProcess) -> None:
    generator = random.Random(1)
    writers = [Writer(number) for number in range(1, WRITERS + 1)]
    everything: set[tuple[int, int]] = set()
    for round_number in range(ROUNDS):
        bookie.start()
        with bookie.connect() as connection:
            _check(connection, everything)
            fenced = 900_000 + round_number
            assert connection.add(fenced, [0]) == [Code.OK]
            assert connection.fence(fenced) == stored(fenced, 0)
        threads = [threading.Thread(target=writer.run, args=(bookie,)) for writer in writers]
        for thread in threads:
            thread.start()
        for writer in writers:
            assert writer.progress.wait(60)
            writer.progress.clear()
        # Somewhere within the next groups: not awaited, for the moment of the kill should be any.
        threading.Event().wait(generator.random() * 0.2)
        bookie.crash()
        for thread in threads:
            thread.join()
        everything = set().union(*(writer.answered for writer in writers))
    assert len(everything) > WRITERS * 2000
    bookie.start()
    with bookie.connect() as connection:
        _check(connection, everything)
        for round_number in range(ROUNDS):
            assert connection.add(900_000 + round_number, [1]) == [Code.FENCED]
    assert bookie.stop() == 0
    bookie.start()
    with bookie.connect() as connection:
        _check(connection, everything)


def _check(connection: Connection, answered: set[tuple[int, int]]) -> None:
    by_ledger: dict[int, list[int]] = {}
    for ledger_id, entry_id in answered:
        by_ledger.setdefault(ledger_id, []).append(entry_id)
    for ledger_id, ids in by_ledger.items():
        connection.send(wire_v2.read_requests(ledger_id, np.array(sorted(ids))))
        for _ in ids:
            body = connection.body()
            entry_id = int.from_bytes(body[16:24], "big")
            assert int.from_bytes(body[4:8], "big") == Code.OK, (ledger_id, entry_id)
            assert body[24:] == stored(ledger_id, entry_id), (ledger_id, entry_id)
