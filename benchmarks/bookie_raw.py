"""How fast one bookie takes and gives entries over one raw v2 connection, pipelined; no client library between.

    python benchmarks/bookie_raw.py [--entries 400000] [--size 1024] [--window 8192]

Starts ZooKeeper and one bookie in a temporary directory. Prints adds/s, reads/s (single READ frames and batch
reads), MB/s of payload, CPU seconds of the bookie per phase, and its resident memory.
"""

from __future__ import annotations

import argparse
import os
import selectors
import socket
import tempfile
import time
from pathlib import Path

import numpy as np

from bk_spark.protocol import wire_v2
from bk_spark.protocol.add_frames import EntryPackager
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.framing import ReceiveBuffer
from bk_spark.protocol.payloads import Payloads
from bookie_server.local import LocalCluster

_ACK_BYTES = wire_v2.ANSWER_DTYPE.itemsize
_CHUNK_ENTRIES = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=400_000)
    parser.add_argument("--size", type=int, default=1024, help="payload bytes")
    parser.add_argument("--window", type=int, default=8192, help="entries in flight")
    parser.add_argument("--ledgers", type=int, default=1, help="ledgers written in turn")
    parser.add_argument("--port", type=int, default=0, help="a bookie that runs already, with --pid")
    parser.add_argument("--pid", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.port:
        _measure(arguments, arguments.port, arguments.pid)
        return
    with tempfile.TemporaryDirectory() as directory, LocalCluster(Path(directory), bookies=1) as cluster:
        bookie = cluster.bookies[0]
        assert bookie.pid is not None
        _measure(arguments, bookie.port, bookie.pid)


def _measure(arguments: argparse.Namespace, port: int, pid: int) -> None:
    count, size = arguments.entries // _CHUNK_ENTRIES * _CHUNK_ENTRIES, arguments.size
    base = time.time_ns() // 1000
    chunks = _frames(base, arguments.ledgers, min(count, 16_384), size)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with _Phase("adds", count, size, pid):
            _add(connection, chunks, count, arguments.window)
        ids = np.arange(count // arguments.ledgers // _CHUNK_ENTRIES * _CHUNK_ENTRIES)
        with _Phase("reads", len(ids), size, pid):
            _read(connection, base, ids, arguments.window)
        with _Phase("batch reads", len(ids), size, pid):
            _batch_read(connection, base, len(ids))
        once = min(2000, len(ids))
        with _Phase("single adds", once, size, pid):
            _add_singly(connection, base + arguments.ledgers, once, size)
        with _Phase("single reads", once, size, pid):
            for i in range(once):
                _read(connection, base, ids[i : i + 1], 1)


def _frames(base: int, ledgers: int, count: int, size: int) -> list[tuple[memoryview, int]]:
    """Chunks of frames and how many entries each holds; entry ids are patched before each sending."""
    payload = os.urandom(size)
    chunks = []
    for first in range(0, count, _CHUNK_ENTRIES):
        ledger = base + first // _CHUNK_ENTRIES % ledgers
        packager = EntryPackager(ledger, DigestType.DUMMY, b"bench")
        payloads = Payloads.of([payload] * _CHUNK_ENTRIES)
        chunks.append((memoryview(bytearray(packager.package(0, -1, 0, payloads).data)), _CHUNK_ENTRIES))
    return chunks


def _add(connection: socket.socket, chunks: list[tuple[memoryview, int]], count: int, window: int) -> None:
    connection.setblocking(False)
    selector = selectors.DefaultSelector()
    selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
    sent = answered = 0
    next_id: dict[int, int] = {}
    current = memoryview(b"")
    tail = b""
    while answered < count:
        want_write = (sent < count and sent - answered < window) or len(current) > 0
        selector.modify(connection, selectors.EVENT_READ | (selectors.EVENT_WRITE if want_write else 0))
        for _, events in selector.select():
            if events & selectors.EVENT_READ:
                data = tail + connection.recv(1 << 20)
                whole = len(data) // _ACK_BYTES * _ACK_BYTES
                answers = np.frombuffer(data, wire_v2.ANSWER_DTYPE, whole // _ACK_BYTES)
                assert not answers["rc"].any(), answers["rc"].max()
                answered += len(answers)
                tail = data[whole:]
            if events & selectors.EVENT_WRITE and want_write:
                if not current:
                    data_view, entries = chunks[sent // _CHUNK_ENTRIES % len(chunks)]
                    rows = np.frombuffer(data_view, np.uint8).reshape(entries, -1)
                    ledger = int(rows[0, 28:36].view(">i8")[0])
                    first = next_id.get(ledger, 0)
                    next_id[ledger] = first + entries
                    rows[:, 36:44] = np.arange(first, first + entries).astype(">i8").view(np.uint8).reshape(entries, 8)
                    current = data_view
                    sent += entries
                current = current[connection.send(current) :]
    selector.close()
    connection.setblocking(True)


def _add_singly(connection: socket.socket, ledger: int, count: int, size: int) -> None:
    packager = EntryPackager(ledger, DigestType.DUMMY, b"bench")
    payloads = Payloads.of([os.urandom(size)])
    for i in range(count):
        connection.sendall(packager.package(i, i - 1, 0, payloads).data)
        answer = connection.recv(_ACK_BYTES)
        assert len(answer) == _ACK_BYTES


def _read(connection: socket.socket, ledger: int, ids: np.ndarray, window: int) -> None:
    receive = ReceiveBuffer(chunk_bytes=1 << 20)
    asked = got = 0
    while got < len(ids):
        if asked < len(ids) and asked - got <= window // 2:
            part = ids[asked : asked + window - (asked - got)]
            connection.sendall(wire_v2.read_requests(ledger, part))
            asked += len(part)
        frames = receive.received(connection.recv_into(receive.get_buffer()))
        if frames is not None:
            data = np.frombuffer(frames.data, np.uint8)
            codes = data[frames.starts[:, None] + np.arange(4, 8)]
            assert not codes.any()
            got += len(frames)


def _batch_read(connection: socket.socket, ledger: int, count: int) -> None:
    receive = ReceiveBuffer(6 << 20, chunk_bytes=6 << 20)
    got = 0
    connection.sendall(wire_v2.batch_read_request(ledger, got, 1, 0, 1 << 20))
    while got < count:
        frames = receive.received(connection.recv_into(receive.get_buffer()))
        if frames is None:
            continue
        for answer in wire_v2.parse_answers(frames):
            assert isinstance(answer, wire_v2.BatchReadAnswer)
            assert answer.code == 0
            size = int.from_bytes(answer.records[:4], "big") + 4
            got += len(answer.records) // size
            if got < count:
                connection.sendall(wire_v2.batch_read_request(ledger, got, 1, 0, 1 << 20))


class _Phase:
    def __init__(self, name: str, count: int, size: int, pid: int) -> None:
        self._name, self._count, self._size, self._pid = name, count, size, pid

    def __enter__(self) -> None:
        self._cpu = _cpu_seconds(self._pid)
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        seconds = time.perf_counter() - self._start
        user, system = (after - before for after, before in zip(_cpu_seconds(self._pid), self._cpu, strict=True))
        print(
            f"{self._name:12s} {self._count:8d} in {seconds:6.2f} s: {self._count / seconds:9.0f}/s "
            f"{self._count * self._size / seconds / 1e6:7.0f} MB/s, CPU {user:5.2f} s user {system:5.2f} s system, "
            f"{(user + system) / self._count * 1e6:6.1f} us each, RSS {_rss_mib(self._pid):.0f} MiB"
        )


def _cpu_seconds(pid: int) -> tuple[float, float]:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    tick = os.sysconf("SC_CLK_TCK")
    return int(fields[11]) / tick, int(fields[12]) / tick


def _rss_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


if __name__ == "__main__":
    main()
