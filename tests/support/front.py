"""The native front end over real sockets, above a bookie that answers when the test says so."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import numpy as np

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.codes import Code
from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.framing import ReceiveBuffer, frame
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3 import wire_v3
from bookie_server.bookie import AddDone
from bookie_server.entry_reader import ReadPart
from bookie_server.net.common.access.front_access import FrontAccess
from bookie_server.net.common.entrance.front_tls import FrontTls
from bookie_server.net.common.limits import NetConfig
from bookie_server.net.native.connection import NativeConnection
from bookie_server.net.native.server import NativeServer
from bookie_server.storage.entrylog.entry_log_reader import StoredEntries
from bookie_server.storage.ledger_descriptors import LedgerDescriptor
from bookie_server.storage.records import Records
from tests.support import patient_loop
from tests.support.bookie import KEY, stored

MIB = 1024 * 1024


class _WatchedLedger(LedgerDescriptor):
    """Its LAC is reached when the test says so."""

    def __init__(self, ledger_id: int, master_key: bytes, reached: asyncio.Event) -> None:
        super().__init__(ledger_id, master_key)
        self._reached = reached

    async def wait_for_lac(self, above: int, timeout_ms: int) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._reached.wait(), timeout_ms / 1000)
        return self._reached.is_set()


class HeldBookie:
    """Accepts adds and holds them until the test releases them; has every entry, all of one size."""

    def __init__(self, entry_bytes: int = 100) -> None:
        self.adds: list[tuple[Records, AddDone]] = []
        self.priorities: list[bool] = []
        self.reads = 0
        self.entry = bytes(entry_bytes)
        self.read_error: Exception | None = None
        self.lists: list[asyncio.Future[tuple[Code, Int64s]]] = []
        self.lac_reached = asyncio.Event()
        self.ledger = _WatchedLedger(1, KEY, self.lac_reached)
        self.ledger.lac_loaded = True
        self.excess_bytes = 0
        self.new_ledgers = 0
        self.new_ledgers_wait = False
        self.in_memory: set[int] = set()
        self.flushes = 0
        self.looked_up: list[frozenset[int]] = []
        self.fences: dict[int, asyncio.Future[Code]] = {}

    def on_room(self, callback: Callable[[], None]) -> None:
        pass

    def on_answered(self, callback: Callable[[], None]) -> None:
        pass

    @property
    def entries(self) -> int:
        return sum(len(records) for records, _ in self.adds)

    def add(self, records: Records, master_key: bytes, *, recovery: bool, high_priority: bool, done: AddDone) -> None:
        self.adds.append((records, done))
        self.priorities.append(high_priority)

    def answer(self, code: Code = Code.OK) -> None:
        adds, self.adds = self.adds, []
        for _, done in adds:
            done(code)

    def descriptor(self, ledger_id: int) -> LedgerDescriptor | None:
        return self.ledger if ledger_id == 1 else None

    def read_now(self, ledger_id: int, entry_id: int) -> tuple[Code, bytes]:
        self.reads += 1
        return Code.OK, self.entry

    async def read(self, ledger_ids: Int64s, entry_ids: Int64s, limit_bytes: int, *, taken: bool = False) -> ReadPart:
        await asyncio.sleep(0)
        if self.read_error is not None:
            raise self.read_error
        count = min(len(entry_ids), max(1, limit_bytes // len(self.entry)))
        self.reads += count
        size = len(self.entry)
        data = np.frombuffer((size.to_bytes(4, "big") + self.entry) * count, np.uint8)
        starts = 4 + np.arange(count) * (4 + size)
        return ReadPart(np.zeros(count, np.int32), StoredEntries(data, starts, np.full(count, size, np.int64)))

    async def known_lac(self, descriptor: LedgerDescriptor) -> int:
        return 5 if self.lac_reached.is_set() else 0

    def force(self, ledger_id: int) -> asyncio.Future[Code]:
        return asyncio.get_running_loop().create_future()

    def write_lac(self, packet: bytes, master_key: bytes) -> asyncio.Future[Code]:
        return asyncio.get_running_loop().create_future()

    def is_in_memory(self, ledger_id: int) -> bool:
        return ledger_id in self.fences or ledger_id in self.in_memory

    def fenced_before(self, ledger_id: int, master_key: bytes) -> Code | None:
        fence = self.fences.get(ledger_id)
        return fence.result() if fence is not None and fence.done() else None

    async def look_up(self, ledger_ids: frozenset[int]) -> None:
        self.looked_up.append(ledger_ids)

    def fence(self, ledger_id: int, master_key: bytes, *, urgent: bool = True) -> asyncio.Future[Code]:
        self.fences[ledger_id] = asyncio.get_running_loop().create_future()
        return self.fences[ledger_id]

    async def list_entries(self, ledger_id: int) -> tuple[Code, Int64s]:
        self.lists.append(asyncio.get_running_loop().create_future())
        return await self.lists[-1]


class Times:
    def __init__(self) -> None:
        self.seen: list[tuple[str, int, bool]] = []

    def observe(self, kind: str, count: int, seconds: float, ok: bool) -> None:
        assert seconds >= 0
        self.seen.append((kind, count, ok))


class Peer:
    """One client. Reads only on demand."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._receive = ReceiveBuffer(64 * MIB)
        self._bodies: list[bytes] = []

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        await asyncio.wait_for(self.loop.sock_sendall(self.socket, data), 60)

    async def send_what_is_taken(self, data: bytes, patience_s: float = 0.2) -> None:
        with contextlib.suppress(TimeoutError, ConnectionError):
            await asyncio.wait_for(self.loop.sock_sendall(self.socket, data), patience_s)

    async def body(self) -> bytes:
        while not self._bodies:
            view = self._receive.get_buffer()
            count = await asyncio.wait_for(self.loop.sock_recv_into(self.socket, view), 60)
            if count == 0:
                raise ConnectionError("closed")
            frames = self._receive.received(count)
            if frames is not None:
                self._bodies += map(bytes, frames)
        return self._bodies.pop(0)

    async def codes(self, count: int) -> list[int]:
        return [int.from_bytes((await self.body())[4:8], "big") for _ in range(count)]

    async def closed(self) -> bool:
        try:
            while True:
                await self.body()
        except ConnectionError:
            return True


class Front:
    def __init__(self, server: NativeServer, bookie: HeldBookie, port: int, stack: contextlib.ExitStack) -> None:
        self.server, self.bookie, self.port, self._stack = server, bookie, port, stack
        #: The server's connections that have a transport.
        self.connections = _joined(server)

    def socket_options(self, level: int, option: int) -> list[int]:
        """This option of the server's ends of its connections, as the kernel has it."""
        values = []
        for fd in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):  # no connected socket, or the descriptor with which they are listed
                if stat.S_ISSOCK(os.fstat(fd).st_mode):
                    with socket.socket(fileno=os.dup(fd)) as one:
                        if one.getpeername() and one.getsockname()[1:2] == (self.port,):
                            values.append(one.getsockopt(level, option))
        return values

    async def connect(self, receive_bytes: int | None = None) -> Peer:
        connected = self._stack.enter_context(socket.socket())
        connected.setblocking(False)
        if receive_bytes is not None:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        await asyncio.get_running_loop().sock_connect(connected, ("127.0.0.1", self.port))
        return Peer(connected)


def _joined(server: NativeServer) -> list[NativeConnection]:
    """Connections from when they join the server until they leave it, as they tell it."""
    joined: list[NativeConnection] = []
    joins, left = server.joins, server.left

    def on_join(connection: NativeConnection) -> bool:
        joined.append(connection)
        return joins(connection)

    def on_left(connection: NativeConnection) -> None:
        if connection in joined:
            joined.remove(connection)
        left(connection)

    server.joins, server.left = on_join, on_left  # type: ignore[method-assign]
    return joined


@contextlib.asynccontextmanager
async def front(
    config: NetConfig,
    bookie: HeldBookie,
    times: Times | None = None,
    tls: FrontTls | None = None,
    access: FrontAccess | None = None,
) -> AsyncIterator[Front]:
    """A front end. At its end its counters must be empty, and every exception must have been handled."""
    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    parts: Any = {"times": times, "tls": tls, "access": access}
    server = NativeServer(bookie, disk_space=lambda: (1, 2), config=config, **parts)  # type: ignore[arg-type]
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    with listener, contextlib.ExitStack() as peers:
        await server.start(listener)
        try:
            yield Front(server, bookie, listener.getsockname()[1], peers)
        finally:
            bookie.answer()
            # The server would wait for seconds for peers that do not read (test_net_limits.py tests that).
            peers.close()
            await server.close()
    await until(lambda: server.connection_count == 0)
    load = server.load
    await until(lambda: load.polls == 0)
    assert (load.adds, load.reads, load.reads_bytes, load.unsent_bytes) == (0, 0, 0, 0)
    assert server.shared.half_frames.bytes == 0
    assert not problems


async def until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    patient_loop.run(test())


def reads(*ids: tuple[int, int]) -> bytes:
    return b"".join(wire_v2.read_requests(ledger, [entry]) for ledger, entry in ids)


def v3(operation: pb.OperationType, txn_id: int, **body: object) -> bytes:
    header = pb.BKPacketHeader(version=pb.VERSION_THREE, operation=operation, txnId=txn_id)
    return frame(pb.Request(header=header, **body).SerializeToString())  # type: ignore[arg-type]


def v3_add(entry_id: int, size: int = 100) -> bytes:
    body = pb.AddRequest(ledgerId=1, entryId=entry_id, masterKey=KEY, body=stored(1, entry_id, size))
    return v3(pb.ADD_ENTRY, entry_id, addRequest=body)


def poll(txn_id: int, timeout_ms: int = 60_000) -> bytes:
    return wire_v3.long_poll_request(txn_id, 1, 0, timeout_ms)


AUTH = frame(bytes.fromhex("02030000"))
