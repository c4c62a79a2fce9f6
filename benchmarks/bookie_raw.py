"""Measures one bookie's adds and reads over one raw v2 connection, pipelined, without a client library.

Starts ZooKeeper and one bookie in a temporary directory. Reports per phase: entries and megabytes of payload per
second, CPU seconds of the bookie per entry, its highest resident memory. Peer in the same run: the same payload bytes
appended to one file, synced after each MiB.
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

from benchmarks.processes import cpu_seconds, peak_resident_mib
from benchmarks.report import figure
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.wire import answers_v2, wire_v2
from bk_spark.protocol.wire.add_frames import EntryPackager
from bk_spark.protocol.wire.framing import ReceiveBuffer
from bookie_server.local import LocalCluster

NAME = "bookie_raw"
_ACK_BYTES = wire_v2.ANSWER_DTYPE.itemsize
_CHUNK_ENTRIES = 256


def main(arguments_given: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks bookie_raw", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--entries", type=int, default=400_000)
    parser.add_argument("--size", type=int, default=1024, help="payload bytes")
    parser.add_argument("--window", type=int, default=8192, help="entries in flight")
    parser.add_argument("--ledgers", type=int, default=1, help="ledgers written in turn")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the bookie")
    parser.add_argument("--port", type=int, default=0, help="a bookie that runs already, with --pid")
    parser.add_argument("--pid", type=int, default=0)
    arguments = parser.parse_args(arguments_given)
    if arguments.port:
        _measure(arguments, arguments.port, arguments.pid)
        return
    settings = dict(setting.split("=", 1) for setting in arguments.set)
    with (
        tempfile.TemporaryDirectory() as directory,
        LocalCluster(Path(directory), bookies=1, bookie_settings=settings) as cluster,
    ):
        bookie = cluster.bookies[0]
        assert bookie.pid is not None
        _measure(arguments, bookie.port, bookie.pid)


def _measure(arguments: argparse.Namespace, port: int, pid: int) -> None:
    count, size = arguments.entries // _CHUNK_ENTRIES * _CHUNK_ENTRIES, arguments.size
    file_seconds = _append_to_file(count * size)
    figure(NAME, "file.bytes", count * size / 1e6 / file_seconds, "MB/s")
    base = time.time_ns() // 1000
    chunks = _frames(base, arguments.ledgers, min(count, 16_384), size)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with _Phase("adds", count, size, pid) as adds:
            _add(connection, chunks, count, arguments.window)
        figure(NAME, "adds.time_over_file", adds.seconds / file_seconds, "ratio")
        ids = np.arange(count // arguments.ledgers // _CHUNK_ENTRIES * _CHUNK_ENTRIES)
        with _Phase("reads", len(ids), size, pid):
            _read(connection, base, ids, arguments.window)
        with _Phase("batch_reads", len(ids), size, pid):
            _batch_read(connection, base, len(ids))
        once = min(2000, len(ids))
        with _Phase("single_adds", once, size, pid):
            _add_singly(connection, base + arguments.ledgers, once, size)
        with _Phase("single_reads", once, size, pid):
            for i in range(once):
                _read(connection, base, ids[i : i + 1], 1)


def _frames(base: int, ledgers: int, count: int, size: int) -> list[tuple[memoryview, int]]:
    """Return chunks of frames and the number of entries in each. Entry ids are patched before each send."""
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
        for answer in answers_v2.parse_answers(frames):
            assert isinstance(answer, answers_v2.BatchReadAnswer)
            assert answer.code == 0
            size = int.from_bytes(answer.records[:4], "big") + 4
            got += len(answer.records) // size
            if got < count:
                connection.sendall(wire_v2.batch_read_request(ledger, got, 1, 0, 1 << 20))


def _append_to_file(size_bytes: int) -> float:
    """Return the seconds to append ``size_bytes`` to one file, with a sync after each MiB."""
    piece = os.urandom(1 << 20)
    with tempfile.TemporaryFile(buffering=0) as file:
        started = time.perf_counter()
        for _ in range(-(-size_bytes // len(piece))):
            file.write(piece)
            os.fdatasync(file.fileno())
        return time.perf_counter() - started


class _Phase:
    """A context manager that times its body and prints the figures."""

    def __init__(self, name: str, count: int, size: int, pid: int) -> None:
        self._name, self._count, self._size, self._pid = name, count, size, pid
        self.seconds = 0.0

    def __enter__(self) -> _Phase:
        self._cpu = cpu_seconds(self._pid)
        self._start = time.perf_counter()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.seconds = time.perf_counter() - self._start
        if kind is not None:
            return
        cpu = cpu_seconds(self._pid) - self._cpu
        name, count = self._name, self._count
        figure(NAME, f"{name}.entries", count / self.seconds, "entries/s", size=self._size)
        figure(NAME, f"{name}.bytes", count * self._size / 1e6 / self.seconds, "MB/s", size=self._size)
        figure(NAME, f"{name}.bookie_cpu", cpu / count * 1e6, "us/entry", size=self._size)
        figure(NAME, f"{name}.bookie_peak_memory", peak_resident_mib(self._pid), "MiB")
