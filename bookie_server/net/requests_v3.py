"""What the native front end does with v3 requests. Rules: compatibility facts §1.7–§1.9.

Neighbouring adds of a receive go to storage together, and so do neighbouring plain reads; what v3 costs in Python
is parsing and building one message per entry.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from bk_spark.protocol import wire_v3
from bk_spark.protocol.codes import LAST_ENTRY, NO_ENTRY, Code
from bk_spark.protocol.digest import Buffer
from bk_spark.protocol.entry import ENTRY_HEADER_BYTES
from bk_spark.protocol.framing import Frames, frame
from bk_spark.protocol.proto import bookkeeper_protocol_pb2 as pb
from bookie_server.bookie import Bookie, Int32s
from bookie_server.net.requests_v2 import AUTH_DISABLED, READ_ROUND_BYTES
from bookie_server.storage.handles import LedgerHandle
from bookie_server.storage.records import LENGTH_BYTES, Records, gather_int64

if TYPE_CHECKING:
    from bookie_server.net.native import NativeConnection

_MAX_POLLS: Final = 1000
_MAX_POLL_MS: Final = 24 * 3600 * 1000
#: Operations with a body of their own in the request; others are answered with BAD_REQUEST.
_BODY_OF_OPERATION: Final = {
    pb.READ_ENTRY: "readRequest",
    pb.ADD_ENTRY: "addRequest",
    pb.AUTH: "authRequest",
    pb.WRITE_LAC: "writeLacRequest",
    pb.READ_LAC: "readLacRequest",
    pb.GET_BOOKIE_INFO: "getBookieInfoRequest",
    pb.FORCE_LEDGER: "forceLedgerRequest",
}


class RequestsV3:
    """Handles the v3 frames of one connection."""

    def __init__(
        self,
        connection: NativeConnection,
        bookie: Bookie,
        ledger_directory: str,
        adds_changed: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._bookie = bookie
        self._ledger_directory = ledger_directory
        self._adds_changed = adds_changed
        self._adds: list[pb.Request] = []
        self._reads: list[pb.Request] = []

    def handle(self, frames: Frames) -> None:
        """Raises WireFormatError; what came before the bad frame is done."""
        try:
            for body in frames:
                request = wire_v3.parse_request(body)
                if not self._joins_adds(request):
                    self._flush_adds()
                if not _is_plain_read(request):
                    self._flush_reads()
                self._dispatch(request)
        finally:
            self._flush_adds()
            self._flush_reads()

    def _dispatch(self, request: pb.Request) -> None:
        operation = request.header.operation
        body = _BODY_OF_OPERATION.get(operation)
        if request.header.version != pb.VERSION_THREE:
            self._refuse(request, Code.BAD_VERSION)
        elif body is None or not request.HasField(body):
            self._refuse(request, Code.BAD_REQUEST)
        elif operation == pb.ADD_ENTRY:
            if len(request.addRequest.body) < ENTRY_HEADER_BYTES:
                self._refuse(request, Code.BAD_REQUEST)
            else:
                self._adds.append(request)
        elif operation == pb.READ_ENTRY:
            self._read(request)
        elif operation == pb.READ_LAC:
            self._connection.read_later(1, lambda: self._answer_read_lac(request))
        elif operation == pb.WRITE_LAC:
            self._write_lac(request)
        elif operation == pb.FORCE_LEDGER:
            self._force(request)
        elif operation == pb.GET_BOOKIE_INFO:
            self._bookie_info(request)
        else:
            response = _response(request, Code.OK)
            response.authResponse.ParseFromString(AUTH_DISABLED)
            self._send(response)

    # --- adds --------------------------------------------------------------------------------------

    def _joins_adds(self, request: pb.Request) -> bool:
        """Whether this is an add that may go to storage together with those that wait."""
        if request.header.operation != pb.ADD_ENTRY or not request.HasField("addRequest"):
            return False
        if not self._adds:
            return True
        first, add = self._adds[0].addRequest, request.addRequest
        return first.masterKey == add.masterKey and _is_recovery(first) == _is_recovery(add)

    def _flush_adds(self) -> None:
        adds, self._adds = self._adds, []
        if not adds:
            return
        first = adds[0].addRequest

        def done(codes: Code | Int32s) -> None:
            each = [codes] * len(adds) if isinstance(codes, Code) else [Code(code) for code in codes.tolist()]
            self._connection.send(*(_add_answer(request, code) for request, code in zip(adds, each, strict=True)))
            self._adds_changed()

        records = _records([request.addRequest.body for request in adds])
        self._bookie.add(records, first.masterKey, recovery=_is_recovery(first), done=done)
        self._adds_changed()

    # --- reads -------------------------------------------------------------------------------------

    def _read(self, request: pb.Request) -> None:
        read = request.readRequest
        if _is_plain_read(request):
            self._reads.append(request)
        elif read.HasField("flag") and read.flag == pb.ReadRequest.FENCE_LEDGER:
            if not read.HasField("masterKey"):
                self._refuse(request, Code.UNAUTHORIZED)
                return
            fence = self._bookie.fence(read.ledgerId, read.masterKey)
            self._connection.read_later(1, lambda: self._answer_fencing_read(request, fence))
        elif read.HasField("flag") and read.entryId != LAST_ENTRY:
            self._refuse(request, Code.BAD_REQUEST)
        elif self._connection.poll_count >= _MAX_POLLS:
            self._refuse(request, Code.TOO_MANY_REQUESTS)
        else:
            self._connection.poll(self._answer_poll(request))

    def _flush_reads(self) -> None:
        reads, self._reads = self._reads, []
        if not reads or (len(reads) == 1 and not self._connection.reads_waiting and self._answer_now(reads[0])):
            return
        self._connection.read_later(len(reads), lambda: self._answer_reads(reads))

    def _answer_now(self, request: pb.Request) -> bool:
        """Answer a plain read if all it needs is in memory."""
        read = request.readRequest
        handle = self._bookie.handle(read.ledgerId)
        if isinstance(handle, LedgerHandle) and not handle.lac_loaded:
            return False
        found = self._bookie.read_now(read.ledgerId, read.entryId)
        if found is None:
            return False
        code, stored = found
        lac = handle.last_add_confirmed if isinstance(handle, LedgerHandle) else NO_ENTRY
        self._send_read(request, code, stored if code is Code.OK else None, lac)
        return True

    async def _answer_reads(self, requests: list[pb.Request]) -> None:
        ledger_ids = np.array([request.readRequest.ledgerId for request in requests], np.int64)
        entry_ids = np.array([request.readRequest.entryId for request in requests], np.int64)
        at = 0
        while at < len(requests):
            async with self._connection.read_slots:
                limit = self._connection.round_bytes(READ_ROUND_BYTES)
                part = await self._bookie.read(ledger_ids[at:], entry_ids[at:], limit)
                read = 0
                for i, code in enumerate(part.codes.tolist()):
                    stored: Buffer | None = None
                    if code == Code.OK and part.entries is not None:
                        stored = part.entries.entry(read)
                        read += 1
                    request = requests[at + i]
                    lac = await self._known_lac(request.readRequest.ledgerId) if stored is not None else None
                    self._send_read(request, Code(code), stored, lac)
                at += len(part.codes)
                self._connection.flush()
            await self._connection.answers_taken()

    async def _answer_fencing_read(self, request: pb.Request, fence: asyncio.Future[Code]) -> None:
        code, stored = await fence, None
        if code is Code.OK:
            code, stored = await self._read_one(request.readRequest.ledgerId, request.readRequest.entryId)
        self._send_read(request, code, stored)

    async def _answer_poll(self, request: pb.Request) -> None:
        """A read that waits until the last add confirmed has passed ``previousLAC``."""
        read = request.readRequest
        handle = self._bookie.handle(read.ledgerId)
        if not isinstance(handle, LedgerHandle):
            self._send_read(request, Code.NO_LEDGER if handle is None else handle, None)
            return
        waited = False
        if await self._bookie.known_lac(handle) <= read.previousLAC and read.timeOut > 0:
            await self._bookie.wait_for_lac(handle, read.previousLAC, min(read.timeOut, _MAX_POLL_MS))
            waited = True
        if not read.HasField("flag"):
            code, stored = await self._read_one(read.ledgerId, read.entryId)
            self._send_read(request, code, stored, await self._known_lac(read.ledgerId))
            return
        response = _response(request, Code.OK)
        body = response.readResponse
        body.status, body.ledgerId, body.entryId = pb.EOK, read.ledgerId, NO_ENTRY
        body.maxLAC = await self._bookie.known_lac(handle)
        if body.maxLAC > read.previousLAC:
            code, stored = await self._read_one(read.ledgerId, read.previousLAC + 1)
            if code is Code.OK and stored is not None:
                body.entryId = read.previousLAC + 1
                body.body = bytes(stored)
            if waited:
                body.lacUpdateTimestamp = int(time.time() * 1000)
        self._send(response)

    async def _read_one(self, ledger_id: int, entry_id: int) -> tuple[Code, Buffer | None]:
        part = await self._bookie.read(np.array([ledger_id], np.int64), np.array([entry_id], np.int64), 1)
        code = Code(int(part.codes[0]))
        return code, part.entries.entry(0) if code is Code.OK and part.entries is not None else None

    async def _known_lac(self, ledger_id: int) -> int | None:
        handle = self._bookie.handle(ledger_id)
        return await self._bookie.known_lac(handle) if isinstance(handle, LedgerHandle) else None

    def _send_read(self, request: pb.Request, code: Code, stored: Buffer | None, lac: int | None = None) -> None:
        """An answer with the entry and, beside an entry only, the last add confirmed."""
        response = _response(request, code)
        body = response.readResponse
        body.status = response.status
        body.ledgerId, body.entryId = request.readRequest.ledgerId, request.readRequest.entryId
        if stored is not None:
            body.body = bytes(stored)
            if lac is not None:
                body.maxLAC = lac
        self._send(response)

    async def _answer_read_lac(self, request: pb.Request) -> None:
        ledger_id = request.readLacRequest.ledgerId
        handle = self._bookie.handle(ledger_id)
        code: Code
        stored: Buffer | None = None
        lac: bytes | None = None
        if isinstance(handle, LedgerHandle):
            lac = handle.explicit_lac
            code, stored = await self._read_one(ledger_id, LAST_ENTRY)
            if code is Code.NO_ENTRY and lac is not None:
                code = Code.OK  # Apache's answers an I/O error beside the LAC; clients want the LAC
        else:
            code = Code.NO_ENTRY if handle is None else handle
        response = _response(request, code)
        body = response.readLacResponse
        body.status, body.ledgerId = response.status, ledger_id
        if lac is not None:
            body.lacBody = lac
        if stored is not None:
            body.lastEntryBody = bytes(stored)
        self._send(response)

    # --- the rest ----------------------------------------------------------------------------------

    def _write_lac(self, request: pb.Request) -> None:
        write = request.writeLacRequest

        def answer(outcome: asyncio.Future[Code]) -> None:
            response = _response(request, outcome.result())
            response.writeLacResponse.status = response.status
            response.writeLacResponse.ledgerId = write.ledgerId
            self._send(response)

        self._bookie.write_lac(write.body, write.masterKey).add_done_callback(answer)

    def _force(self, request: pb.Request) -> None:
        def answer(outcome: asyncio.Future[Code]) -> None:
            response = _response(request, outcome.result())
            response.forceLedgerResponse.status = response.status
            response.forceLedgerResponse.ledgerId = request.forceLedgerRequest.ledgerId
            self._send(response)

        self._bookie.force().add_done_callback(answer)

    def _bookie_info(self, request: pb.Request) -> None:
        requested = request.getBookieInfoRequest.requested
        disk = os.statvfs(self._ledger_directory)
        response = _response(request, Code.OK)
        body = response.getBookieInfoResponse
        body.status = pb.EOK
        if requested & pb.GetBookieInfoRequest.TOTAL_DISK_CAPACITY:
            body.totalDiskCapacity = disk.f_blocks * disk.f_frsize
        if requested & pb.GetBookieInfoRequest.FREE_DISK_SPACE:
            body.freeDiskSpace = disk.f_bavail * disk.f_frsize
        self._send(response)

    def _refuse(self, request: pb.Request, code: Code) -> None:
        response = _response(request, code)
        if request.HasField("addRequest"):
            add = response.addResponse
            add.status, add.ledgerId, add.entryId = (
                response.status,
                request.addRequest.ledgerId,
                request.addRequest.entryId,
            )
        elif request.HasField("readRequest"):
            read = response.readResponse
            read.status, read.ledgerId, read.entryId = (
                response.status,
                request.readRequest.ledgerId,
                request.readRequest.entryId,
            )
        self._send(response)

    def _send(self, response: pb.Response) -> None:
        self._connection.send(frame(response.SerializeToString()))


def _is_recovery(add: pb.AddRequest) -> bool:
    return add.HasField("flag") and add.flag == pb.AddRequest.RECOVERY_ADD


def _is_plain_read(request: pb.Request) -> bool:
    read = request.readRequest
    return request.HasField("readRequest") and not read.HasField("flag") and not read.HasField("previousLAC")


def _response(request: pb.Request, code: Code) -> pb.Response:
    return pb.Response(header=wire_v3.answer_header(request.header), status=_status(code))


def _status(code: Code) -> pb.StatusCode:
    return cast("pb.StatusCode", code.v3)


def _add_answer(request: pb.Request, code: Code) -> bytes:
    response = _response(request, code)
    body = response.addResponse
    body.status = response.status
    body.ledgerId, body.entryId = request.addRequest.ledgerId, request.addRequest.entryId
    return frame(response.SerializeToString())


def _records(bodies: list[bytes]) -> Records:
    """Stored entries as records. Each has an entry header at least."""
    sizes = np.array([len(body) for body in bodies], np.int64)
    offsets = np.zeros(len(bodies) + 1, np.int64)
    np.cumsum(sizes + LENGTH_BYTES, out=offsets[1:])
    data = b"".join(map(frame, bodies))
    ids = gather_int64(np.frombuffer(data, np.uint8), offsets[:-1] + LENGTH_BYTES, 3)
    return Records(ids[:, 0].copy(), ids[:, 1].copy(), ids[:, 2].copy(), memoryview(data), offsets)
