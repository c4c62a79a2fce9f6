"""Bookies in this process, over real sockets, that misbehave when told; and metadata services that fail when told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import replace

import numpy as np

from bk_spark.bookie.ledger_store import StoredMetadata
from bk_spark.protocol import wire_v2
from bk_spark.protocol.codes import LAST_ENTRY, Code, FlagV2, OpV2
from bk_spark.protocol.errors import BookieUnavailableError, MetadataConflictError, NotEnoughBookiesError
from bk_spark.protocol.framing import ReceiveBuffer
from bk_spark.protocol.ledger_metadata import LedgerMetadata
from bk_spark.protocol.wire_v2 import AddRun, BatchRead, ReadRun, RequestV2, parse_requests


class ServedBookie:
    """Keeps entries in memory and speaks v2. Set the attributes to make it misbehave."""

    def __init__(self, bookie_id: str) -> None:
        self.bookie_id = bookie_id
        self.entries: dict[int, bytes] = {}
        self.fenced = False
        #: Nothing is answered while this is set; :meth:`answer_held` makes up for it.
        self.silent = False
        #: A bookie of before 4.17 closes the connection at a batch read.
        self.knows_batch_read = True
        self.batch_reads = 0
        #: How many of the next adds are refused, and how.
        self.refuse = 0
        self.refuse_with = Code.TOO_MANY_REQUESTS
        #: Adds that arrived, refused ones too.
        self.seen: list[int] = []
        self.port = 0
        self.connections: set[_Connection] = set()
        self._held: list[tuple[_Connection, bytes]] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self.break_connections()
            await self._server.wait_closed()
            self._server = None

    def break_connections(self) -> None:
        for connection in list(self.connections):
            connection.transport.abort()

    def answer_held(self) -> None:
        held, self._held = self._held, []
        for connection, answer in held:
            connection.transport.write(answer)

    def handle(self, connection: _Connection, request: RequestV2) -> None:
        match request:
            case AddRun():
                self._add(connection, request)
            case ReadRun():
                for entry_id in request.entry_ids.tolist():
                    self._answer(connection, self._read(int(request.ledger_ids[0]), entry_id, request.flags))
            case BatchRead():
                self.batch_reads += 1
                if not self.knows_batch_read:
                    connection.transport.abort()
                    return
                records = self._batch(request)
                code = Code.OK if records else Code.NO_ENTRY
                self._answer(connection, wire_v2.batch_read_answer(request, code, len(records)) + records)

    def _answer(self, connection: _Connection, answer: bytes) -> None:
        if self.silent:
            self._held.append((connection, answer))
        else:
            connection.transport.write(answer)

    def _add(self, connection: _Connection, request: AddRun) -> None:
        codes = []
        bounds = request.offsets.tolist()
        for number, entry_id in enumerate(request.entry_ids.tolist()):
            self.seen.append(entry_id)
            if self.fenced and not request.flags & FlagV2.RECOVERY_ADD:
                codes.append(Code.FENCED)
            elif self.refuse:
                self.refuse -= 1
                codes.append(self.refuse_with)
            else:
                self.entries[entry_id] = bytes(request.records[bounds[number] + 4 : bounds[number + 1]])
                codes.append(Code.OK)
        answer = wire_v2.add_answers(2, request.ledger_ids, request.entry_ids, np.array(codes, np.int32))
        self._answer(connection, answer)

    def _read(self, ledger_id: int, entry_id: int, flags: int) -> bytes:
        self.fenced = self.fenced or bool(flags & FlagV2.FENCING)
        found = max(self.entries, default=-2) if entry_id == LAST_ENTRY else entry_id
        if found not in self.entries:
            ids = np.array([ledger_id]), np.array([entry_id])
            return wire_v2.add_answers(2, *ids, Code.NO_ENTRY, OpV2.READ)
        return b"".join(wire_v2.read_answer(2, ledger_id, entry_id, self.entries[found]))

    def _batch(self, request: BatchRead) -> bytes:
        """Apache's rule: the first entry whatever its size, then as many as fit."""
        out, entry_id = b"", request.first_entry_id
        while entry_id in self.entries and entry_id < request.first_entry_id + request.max_count:
            stored = self.entries[entry_id]
            if out and 36 + len(out) + 4 + len(stored) > request.max_size_bytes:
                break
            out += len(stored).to_bytes(4, "big") + stored
            entry_id += 1
        return out


class _Connection(asyncio.BufferedProtocol):
    def __init__(self, bookie: ServedBookie) -> None:
        self._bookie = bookie
        self._receive = ReceiveBuffer(64 * 1024 * 1024)
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._bookie.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._bookie.connections.discard(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receive.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        received = self._receive.received(nbytes)
        if received is not None:
            for request in parse_requests(received):
                self._bookie.handle(self, request)


class ModelServices:
    """What handles ask of ZooKeeper, for one ledger in memory. ``before`` is awaited with the name of each call."""

    def __init__(self, bookies: Iterable[ServedBookie], metadata: LedgerMetadata) -> None:
        self.bookies = {bookie.bookie_id: bookie for bookie in bookies}
        self.metadata = metadata
        self.version = 0
        self.calls: list[str] = []
        self.before: Callable[[str], Awaitable[None]] | None = None
        #: Called after a write took effect: raise to lose the reply.
        self.after_write: Callable[[], None] | None = None

    @property
    def stored(self) -> StoredMetadata:
        return StoredMetadata(self.metadata, self.version)

    async def write(self, ledger_id: int, metadata: LedgerMetadata, version: int) -> StoredMetadata:
        await self._called("write")
        if version != self.version:
            raise MetadataConflictError("changed by another client")
        self.change(metadata)
        if self.after_write is not None:
            self.after_write()
        return self.stored

    async def read(self, ledger_id: int) -> StoredMetadata:
        await self._called("read")
        return self.stored

    async def read_latest(self, ledger_id: int) -> StoredMetadata:
        await self._called("read_latest")
        return self.stored

    async def update(self, ledger_id: int, change: Callable[[LedgerMetadata], LedgerMetadata | None]) -> StoredMetadata:
        await self._called("update")
        changed = change(self.metadata)
        if changed is not None:
            self.change(changed)
        return self.stored

    async def choose(self, count: int, exclude: Collection[str] = ()) -> tuple[str, ...]:
        await self._called("choose")
        usable = sorted(self.bookies.keys() - set(exclude))
        if len(usable) < count:
            raise NotEnoughBookiesError(f"{count} writable bookies are needed, {len(usable)} can be used")
        return tuple(usable[:count])

    async def address(self, bookie_id: str) -> tuple[str, int]:
        await self._called(f"address {bookie_id}")
        bookie = self.bookies[bookie_id]
        if not bookie.port:
            raise BookieUnavailableError("the bookie is not registered", bookie_id=bookie_id)
        return "127.0.0.1", bookie.port

    def change(self, metadata: LedgerMetadata) -> None:
        """As another client would."""
        self.metadata = replace(metadata, creator_token=None)
        self.version += 1

    async def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.before is not None:
            await self.before(name)
