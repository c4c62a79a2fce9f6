"""Bookies in this process, over real sockets, that misbehave on demand; and metadata services that fail on demand.

What a bookie that behaves answers is asked of a real one: tests/integration/test_bookie_model.py compares the two, and
what needs no misbehaviour runs on a real bookie (tests/unit/test_client_connections.py, tests/integration).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from bk_spark.bookie.client_counts import ClientCounts
from bk_spark.bookie.metadata.ledger_store import StoredMetadata
from bk_spark.protocol.codes import LAST_ENTRY, Code, FlagV2, OpV2
from bk_spark.protocol.entries.entry import LAC_PACKET_HEADER
from bk_spark.protocol.errors import BookieUnavailableError, MetadataConflictError, NotEnoughBookiesError
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.framing import ReceiveBuffer, frame, is_v3
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3 import wire_v3
from bk_spark.protocol.wire.wire_v2 import AddRun, BatchRead, ReadRun, RequestV2, parse_requests


class ServedBookie:
    """Keeps entries in memory; speaks v2, and v3 except long polls. Set the attributes to make it misbehave.

    Only for what a real bookie cannot be made to do when a test wants it: hold back answers and give them later one by
    one, refuse an add though it could take it, lose or damage an entry that it has, break a connection at a known
    request, be older than batch reads, or count what it was asked.
    """

    def __init__(self, bookie_id: str) -> None:
        self.bookie_id = bookie_id
        self.entries: dict[int, bytes] = {}
        self.fenced = False
        #: Nothing is answered while this is set; :meth:`answer_held` answers later.
        self.silent = False
        #: The same for adds alone.
        self.silent_adds = False
        #: FORCE_LEDGER requests, and how they are answered.
        self.forces = 0
        self.force_with = Code.OK
        #: The highest WRITE_LAC packet.
        self.explicit_lac: bytes | None = None
        #: A bookie older than 4.17 closes the connection at a batch read.
        self.knows_batch_read = True
        self.batch_reads = 0
        self.requests_v3 = 0
        #: How many of the next adds are refused, and how.
        self.refuse = 0
        self.refuse_with = Code.TOO_MANY_REQUESTS
        #: Adds that arrived, including refused ones.
        self.seen: list[int] = []
        #: Single reads that arrived: entry id, and whether they fence.
        self.reads: list[tuple[int, bool]] = []
        self.port = 0
        self.connections: set[_Connection] = set()
        #: The answers that are held.
        self.held: list[tuple[_Connection, bytes]] = []
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
        held, self.held = self.held, []
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

    def handle_v3(self, connection: _Connection, request: pb.Request) -> None:
        """The same over v3: adds, reads, force, explicit LAC; everything else is refused."""
        self.requests_v3 += 1
        code, body = Code.BAD_REQUEST, {}
        if request.HasField("addRequest"):
            add = request.addRequest
            (code,) = self._take([(add.entryId, add.body)], recovery=add.HasField("flag"))
            body["addResponse"] = pb.AddResponse(status=_status(code), ledgerId=add.ledgerId, entryId=add.entryId)
        elif request.HasField("readRequest") and not request.readRequest.HasField("previousLAC"):
            read = request.readRequest
            stored = self._find(read.entryId, fencing=read.HasField("flag"))
            code = self._absent if stored is None else Code.OK
            body["readResponse"] = pb.ReadResponse(
                status=_status(code), ledgerId=read.ledgerId, entryId=read.entryId, body=stored
            )
        elif request.HasField("forceLedgerRequest"):
            self.forces += 1
            code = self.force_with
            body["forceLedgerResponse"] = pb.ForceLedgerResponse(
                status=_status(code), ledgerId=request.forceLedgerRequest.ledgerId
            )
        elif request.HasField("writeLacRequest"):
            code = Code.OK
            self._take_lac(request.writeLacRequest.body)
            body["writeLacResponse"] = pb.WriteLacResponse(
                status=_status(code), ledgerId=request.writeLacRequest.ledgerId
            )
        response = pb.Response(header=wire_v3.answer_header(request.header), status=_status(code), **body)
        hold = self.silent_adds and request.HasField("addRequest")
        self._answer(connection, frame(response.SerializeToString()), hold=hold)

    def _take_lac(self, packet: bytes) -> None:
        before = self.explicit_lac
        if before is None or lac_of(before) <= lac_of(packet):
            self.explicit_lac = packet

    def _answer(self, connection: _Connection, answer: bytes, *, hold: bool = False) -> None:
        if self.silent or hold:
            self.held.append((connection, answer))
        else:
            connection.transport.write(answer)

    def _add(self, connection: _Connection, request: AddRun) -> None:
        bounds = request.offsets.tolist()
        stored = [bytes(request.records[start + 4 : end]) for start, end in itertools.pairwise(bounds)]
        recovery = bool(request.flags & FlagV2.RECOVERY_ADD)
        codes = self._take(zip(request.entry_ids.tolist(), stored, strict=True), recovery=recovery)
        answer = wire_v2.add_answers(2, request.ledger_ids, request.entry_ids, np.array(codes, np.int32))
        self._answer(connection, answer, hold=self.silent_adds)

    def _take(self, entries: Iterable[tuple[int, bytes]], *, recovery: bool) -> list[Code]:
        codes = []
        for entry_id, stored in entries:
            self.seen.append(entry_id)
            if self.fenced and not recovery:
                codes.append(Code.FENCED)
            elif self.refuse:
                self.refuse -= 1
                codes.append(self.refuse_with)
            else:
                self.entries[entry_id] = stored
                codes.append(Code.OK)
        return codes

    def _read(self, ledger_id: int, entry_id: int, flags: int) -> bytes:
        stored = self._find(entry_id, fencing=bool(flags & FlagV2.FENCING))
        if stored is None:
            ids = np.array([ledger_id]), np.array([entry_id])
            return wire_v2.add_answers(2, *ids, self._absent, OpV2.READ)
        return b"".join(wire_v2.read_answer(2, ledger_id, entry_id, stored))

    @property
    def _absent(self) -> Code:
        known = self.entries or self.fenced or self.explicit_lac is not None
        return Code.NO_ENTRY if known else Code.NO_LEDGER

    def _find(self, entry_id: int, *, fencing: bool) -> bytes | None:
        self.reads.append((entry_id, fencing))
        self.fenced = self.fenced or fencing
        return self.entries.get(max(self.entries, default=-2) if entry_id == LAST_ENTRY else entry_id)

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
        if received is None:
            return
        if is_v3(next(iter(received))):
            for body in received:
                self._bookie.handle_v3(self, wire_v3.parse_request(body))
        else:
            for request in parse_requests(received):
                self._bookie.handle(self, request)


def lac_of(packet: bytes) -> int:
    """The last add confirmed in a WRITE_LAC packet."""
    return int(LAC_PACKET_HEADER.unpack_from(packet)[1])


def _status(code: Code) -> pb.StatusCode:
    return cast("pb.StatusCode", code.v3)


class ModelServices:
    """The part of ZooKeeper that handles use, for one ledger in memory. ``before`` is awaited with the name of each
    call."""

    def __init__(self, bookies: Iterable[ServedBookie], metadata: LedgerMetadata) -> None:
        self.bookies = {bookie.bookie_id: bookie for bookie in bookies}
        self.metadata = metadata
        self.version = 0
        self.calls: list[str] = []
        self.before: Callable[[str], Awaitable[None]] | None = None
        #: Called after a write took effect: raise to lose the reply.
        self.after_write: Callable[[], None] | None = None
        #: Called by tests when bookies come or go.
        self.subscribers: list[Callable[[], None]] = []
        #: What the quarantine was told.
        self.failures: list[str] = []
        self.counts = ClientCounts()
        self._watchers: list[Callable[[], None]] = []

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

    async def read_watched(self, ledger_id: int, on_change: Callable[[], None]) -> StoredMetadata:
        await self._called("read_watched")
        self._watchers.append(on_change)
        return self.stored

    async def update(self, ledger_id: int, change: Callable[[LedgerMetadata], LedgerMetadata | None]) -> StoredMetadata:
        await self._called("update")
        changed = change(self.metadata)
        if changed is not None:
            self.change(changed)
        return self.stored

    async def choose_ensemble(self, quorum: Quorum) -> tuple[str, ...]:
        await self._called("choose_ensemble")
        return self._usable(quorum.ensemble_size, ())

    async def choose_replacement(
        self, quorum: Quorum, ensemble: Sequence[str], index: int, exclude: Collection[str]
    ) -> str:
        await self._called("choose_replacement")
        return self._usable(1, {*ensemble, *exclude})[0]

    def _usable(self, count: int, exclude: Collection[str]) -> tuple[str, ...]:
        usable = sorted(self.bookies.keys() - set(exclude))
        if len(usable) < count:
            raise NotEnoughBookiesError(f"{count} writable bookies are needed, {len(usable)} can be used")
        return tuple(usable[:count])

    def subscribe(self, on_change: Callable[[], None]) -> Callable[[], None]:
        self.subscribers.append(on_change)
        return lambda: self.subscribers.remove(on_change)

    def bookie_failed(self, bookie_id: str) -> None:
        self.failures.append(bookie_id)

    def bookie_answered(self, bookie_id: str) -> None:
        pass

    async def address(self, bookie_id: str) -> tuple[str, int]:
        await self._called(f"address {bookie_id}")
        bookie = self.bookies[bookie_id]
        if not bookie.port:
            raise BookieUnavailableError("the bookie is not registered", bookie_id=bookie_id)
        return "127.0.0.1", bookie.port

    def change(self, metadata: LedgerMetadata) -> None:
        """Write as another client would."""
        self.metadata = replace(metadata, creator_token=None)
        self.version += 1
        watchers, self._watchers = self._watchers, []
        for on_change in watchers:
            on_change()

    async def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.before is not None:
            await self.before(name)
