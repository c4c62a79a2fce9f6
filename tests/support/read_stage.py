"""Served bookies that also report LACs and answer long polls, with a ledger on them and a reader of it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, cast

import numpy as np

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection.pool import ConnectionPool, connects_by
from bk_spark.bookie.connection.v2 import BookieConnection
from bk_spark.bookie.connection.v3 import BookieConnectionV3
from bk_spark.bookie.reading.read_access import ReadAccess
from bk_spark.bookie.reading.read_handle import ReadHandle
from bk_spark.protocol.codes import NO_ENTRY, Code, DigestType, OpV2
from bk_spark.protocol.entries.digest import digest_function
from bk_spark.protocol.entries.entry import ENTRY_HEADER, pack_entry, pack_lac
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.framing import frame
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3 import wire_v3
from bk_spark.protocol.wire.wire_v2 import BatchRead, RequestV2
from tests.support import patient_loop
from tests.support.connections import assert_no_requests, live
from tests.support.ledgers import LEDGER, PASSWORD, ledger, payload_of
from tests.support.served_bookie import ModelServices, ServedBookie, lac_of

DIGEST = digest_function(DigestType.CRC32C, PASSWORD)
PLAIN = Quorum(3, 3, 2)
#: For tests in which a bookie hangs. In all others a busy machine is not to be taken for a hanging bookie.
GIVES_UP_SOON = {"read_timeout_ms": 300}
_PATIENCE_S = 60.0


def stored_entry(entry_id: int, payload: bytes | None = None, lac: int | None = None) -> bytes:
    """What a writer with one add in flight stores."""
    payload = payload_of(entry_id) if payload is None else payload
    return pack_entry(LEDGER, entry_id, entry_id - 1 if lac is None else lac, 0, payload, DIGEST)


def corrupted(stored: bytes) -> bytes:
    """The entry with a wrong last byte in its payload."""
    return stored[:-1] + bytes([stored[-1] ^ 1])


class ReadBookie(ServedBookie):
    """Also answers READ_LAC and long polls, and gives I/O errors on demand."""

    def __init__(self, bookie_id: str) -> None:
        super().__init__(bookie_id)
        #: What READ_LAC says besides the explicit LAC if there is no entry. Apache's bookie says an I/O error.
        self.lac_without_entries = Code.OK
        #: Entries that cannot be read from disk.
        self.unreadable: set[int] = set()
        #: A LAC reported to long polls without proof.
        self.claimed_lac = NO_ENTRY
        self.spoil_lac = False
        self.lac_reads = 0
        self.polls = 0
        #: Set with every poll that arrives.
        self.polled = asyncio.Event()
        self._waiting: dict[int, tuple[Any, pb.Request, asyncio.TimerHandle]] = {}

    @property
    def lac(self) -> int:
        """The highest LAC that the bookie knows."""
        lacs = [ENTRY_HEADER.unpack_from(stored)[2] for stored in self.entries.values()]
        explicit = NO_ENTRY if self.explicit_lac is None else lac_of(self.explicit_lac)
        return max([*lacs, explicit, self.claimed_lac])

    @property
    def answers_held(self) -> int:
        """Answers withheld since :attr:`silent` was set."""
        return len(self.held)

    @property
    def waiting_polls(self) -> int:
        return len(self._waiting)

    def add(self, entry_id: int, lac: int | None = None) -> None:
        """Store an entry as its writer would, and answer the polls that wait for its LAC."""
        self.entries[entry_id] = stored_entry(entry_id, lac=lac)
        self.wake()

    def publish(self, lac: int) -> None:
        """An explicit LAC."""
        self.explicit_lac = pack_lac(LEDGER, lac, DIGEST)
        self.wake()

    def wake(self, *, fenced: bool = False) -> None:
        """Answer the polls for which there is news; a fence answers all."""
        for key, (connection, request, timer) in list(self._waiting.items()):
            if fenced or self.lac > request.readRequest.previousLAC:
                timer.cancel()
                del self._waiting[key]
                self._answer_poll(connection, request)

    async def stop(self) -> None:
        for _, _, timer in self._waiting.values():
            timer.cancel()
        self._waiting.clear()
        await super().stop()

    def handle(self, connection: Any, request: RequestV2) -> None:
        if isinstance(request, BatchRead) and request.first_entry_id in self.unreadable:
            self._answer(connection, wire_v2.batch_read_answer(request, Code.IO_ERROR))
        else:
            super().handle(connection, request)

    def handle_v3(self, connection: Any, request: pb.Request) -> None:
        if request.HasField("readLacRequest"):
            self.lac_reads += 1
            self._answer_v3(connection, request, readLacResponse=self._lac_response(request))
        elif request.readRequest.HasField("previousLAC"):
            self._on_poll(connection, request)
        else:
            super().handle_v3(connection, request)

    def _read(self, ledger_id: int, entry_id: int, flags: int) -> bytes:
        if entry_id in self.unreadable:
            return wire_v2.add_answers(2, np.array([ledger_id]), np.array([entry_id]), Code.IO_ERROR, OpV2.READ)
        return super()._read(ledger_id, entry_id, flags)

    def _batch(self, request: BatchRead) -> bytes:
        readable, self.entries = self.entries, {e: s for e, s in self.entries.items() if e not in self.unreadable}
        try:
            return super()._batch(request)
        finally:
            self.entries = readable

    def _lac_response(self, request: pb.Request) -> pb.ReadLacResponse:
        known = self.explicit_lac is not None
        code = Code.OK if self.entries else self.lac_without_entries if known else Code.NO_ENTRY
        body = pb.ReadLacResponse(status=_status(code), ledgerId=request.readLacRequest.ledgerId)
        if self.explicit_lac is not None:
            body.lacBody = self.explicit_lac
        if self.entries:
            last = self.entries[max(self.entries)]
            body.lastEntryBody = corrupted(last) if self.spoil_lac else last
        return body

    def _on_poll(self, connection: Any, request: pb.Request) -> None:
        read = request.readRequest
        self.polls += 1
        self.polled.set()
        if not self.entries and self.explicit_lac is None:
            none = pb.ReadResponse(status=_status(Code.NO_LEDGER), ledgerId=read.ledgerId, entryId=read.entryId)
            self._answer_v3(connection, request, readResponse=none)
        elif self.lac > read.previousLAC or read.timeOut <= 0:
            self._answer_poll(connection, request)
        else:
            key = id(request)
            loop = asyncio.get_running_loop()

            def give_up() -> None:
                del self._waiting[key]
                self._answer_poll(connection, request)

            self._waiting[key] = connection, request, loop.call_later(read.timeOut / 1000, give_up)

    def _answer_poll(self, connection: Any, request: pb.Request) -> None:
        read = request.readRequest
        body = pb.ReadResponse(status=_status(Code.OK), ledgerId=read.ledgerId, entryId=NO_ENTRY, maxLAC=self.lac)
        if self.lac > read.previousLAC and read.previousLAC + 1 in self.entries:
            body.entryId, body.body = read.previousLAC + 1, self.entries[read.previousLAC + 1]
        self._answer_v3(connection, request, readResponse=body)

    def _answer_v3(self, connection: Any, request: pb.Request, **body: Any) -> None:
        (answer,) = body.values()
        response = pb.Response(header=wire_v3.answer_header(request.header), status=answer.status, **body)
        self._answer(connection, frame(response.SerializeToString()))


def _status(code: Code) -> pb.StatusCode:
    return cast("pb.StatusCode", code.v3)


class ReadStage:
    """Bookies b1 … b4, a ledger of ``count`` entries on the first of them, closed or open, and a reader of it."""

    def __init__(self, config: ClientConfig, quorum: Quorum, count: int, *, closed: bool) -> None:
        self.count = count
        self.quorum = quorum
        self.bookies = [ReadBookie(f"b{number}") for number in range(1, 5)]
        self.metadata: LedgerMetadata = ledger(quorum)
        if closed:
            self.metadata = self.metadata.closed(count - 1, sum(len(payload_of(entry)) for entry in range(count)))
        for entry in range(count):
            for index in quorum.write_set(entry):
                self.bookies[index].entries[entry] = stored_entry(entry)
        self.services = ModelServices(self.bookies, self.metadata)
        self.pool = ConnectionPool(connects_by(BookieConnection, self.services.address), config)
        self.pool_v3 = ConnectionPool(connects_by(BookieConnectionV3, self.services.address), config)
        services = cast(Any, self.services)
        self.access = ReadAccess.of(services, self.pool, self.pool_v3, config)
        self.handle = ReadHandle(LEDGER, self.metadata, DigestType.CRC32C, PASSWORD, self.access)

    def __getitem__(self, number: int) -> ReadBookie:
        return self.bookies[number - 1]

    def add(self, *entry_ids: int) -> None:
        """Write like the writer: one entry after the other to its write set."""
        for entry_id in entry_ids:
            ensemble = self.services.metadata.segment_of(entry_id).ensemble
            for index in self.quorum.write_set(entry_id):
                self.services.bookies[ensemble[index]].add(entry_id)  # type: ignore[attr-defined]

    async def read_all(self) -> None:
        assert await self.handle.read(0, self.count - 1) == [payload_of(entry) for entry in range(self.count)]


Play = Callable[[ReadStage], Coroutine[Any, Any, None]]


def staged(
    quorum: Quorum = PLAIN, *, count: int = 300, closed: bool = True, **settings: Any
) -> Callable[[Play], Callable[[], None]]:
    """Run a test over a :class:`ReadStage`; nothing may be left at its end."""
    config = ClientConfig(**{"read_timeout_ms": 60_000, "connect_timeout_ms": 30_000, **settings})

    def decorate(play: Play) -> Callable[[], None]:
        async def run() -> None:
            stage = ReadStage(config, quorum, count, closed=closed)
            for bookie in stage.bookies:
                await bookie.start()
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    await play(stage)
                for pool in (stage.pool, stage.pool_v3):
                    for connection in live(pool, stage.bookies):
                        assert_no_requests(connection)
                left = asyncio.all_tasks() - {asyncio.current_task()}
                assert not left, left
            finally:
                await stage.pool.close()
                await stage.pool_v3.close()
                for bookie in stage.bookies:
                    await bookie.stop()

        @functools.wraps(play)
        def test() -> None:
            patient_loop.run(run())

        del test.__wrapped__  # type: ignore[attr-defined]
        return test

    return decorate
