"""What the native front end does with v3 requests. Rules: compatibility.md §1.7–§1.9.

Neighbouring adds of a receive go to storage together, and so do neighbouring plain reads (runs_v3.py). Nothing of
a protobuf request is kept while it waits but the numbers that its answer needs.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.arrays import Int32s, Int64s
from bk_spark.protocol.codes import NO_ENTRY, Code
from bk_spark.protocol.entries.entry import ENTRY_HEADER_BYTES
from bk_spark.protocol.wire import wire_v3
from bk_spark.protocol.wire.framing import Frames, frame
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bookie_server.bookie import Bookie
from bookie_server.net.common.receiving import part
from bookie_server.net.native import answers_v3
from bookie_server.net.native.answers_v3 import BODIES, response, response_about, status
from bookie_server.net.native.inquiries_v3 import answer_info, answer_list, answer_read_lac
from bookie_server.net.native.long_polls import LongPoll, answer_long_poll, read_one
from bookie_server.net.native.requests_v2 import AUTH_DISABLED, READ_ROUND_BYTES, RUNS_PER_TURN, distinct_ledgers
from bookie_server.net.native.runs_v3 import AddsV3, GatheredAdds, ReadsV3, is_worth_it, segments, uniform_run
from bookie_server.storage.ledger_descriptors import LedgerDescriptor

if TYPE_CHECKING:
    from bookie_server.net.native.connection import NativeConnection

_LOG: Final = logging.getLogger(__name__)
#: Adds and plain reads that came one by one and cost as much as one other request.
_PER_RUN: Final = 8


def are_v3(frames: Frames) -> npt.NDArray[np.bool_]:
    """Which frames, none of them empty, can only be v3: v2 frames begin with a version, v3 with a protobuf field.

    The field is the header mostly; Apache's codec may put one with a two-byte tag before it.
    """
    data = np.frombuffer(frames.data, np.uint8)
    first = data[frames.starts]
    is_v3: npt.NDArray[np.bool_] = first == wire_v3.FIRST_BYTE
    if not is_v3.all() and (first >= 0x80).any():
        long_enough = frames.lengths > 1
        second = data[np.where(long_enough, frames.starts + 1, 0)]
        is_v3 |= (first >= 0x80) & long_enough & ((second == 0x06) | (second == 0x0C))
    return is_v3


class RequestsV3:
    """Handles the v3 frames of one connection."""

    def __init__(self, connection: NativeConnection, bookie: Bookie) -> None:
        self._connection = connection
        self._bookie = bookie
        self._loop = asyncio.get_running_loop()
        self._adds: GatheredAdds | None = None
        self._reads: ReadsV3 | None = None

    def handle(self, frames: Frames) -> int:
        """How many of the first frames were handled: not all, where they are requests of many kinds.

        Raises WireFormatError; what came before the bad frame is done.
        """
        at = cost = 0
        try:
            for last, alike in segments(frames):
                one_by_one = _PER_RUN
                while at < last:
                    if cost >= RUNS_PER_TURN * _PER_RUN:
                        return at
                    run = uniform_run(frames, at, last) if alike else None
                    if run is not None:
                        cost += _PER_RUN
                        at += len(run.txn_ids)
                        self._flush()
                        self._run(run)
                        if is_worth_it(len(run.txn_ids), int(frames.lengths[last - 1])):
                            continue
                    # Frames of one size, and yet each different: looking for a run again soon would be in vain.
                    end = min(last, at + (one_by_one if alike else RUNS_PER_TURN))
                    for body in part(frames, at, end):
                        cost += self._one(wire_v3.parse_request(body))
                    at, one_by_one = end, 2 * one_by_one
        finally:
            self._flush()
        return at

    def _run(self, run: AddsV3 | ReadsV3) -> None:
        if isinstance(run, AddsV3):
            self._add(run)
        else:
            self._read(run)

    def _one(self, request: pb.Request) -> int:
        """Handle one request, or gather it with its neighbours; its cost."""
        header = request.header
        operation = header.operation
        if header.version == pb.VERSION_THREE:
            if operation == pb.ADD_ENTRY and request.HasField("addRequest"):
                add = request.addRequest
                body = add.body
                if len(body) >= ENTRY_HEADER_BYTES:
                    self._gather_add(header, add, body)
                    return 1
            elif operation == pb.READ_ENTRY and request.HasField("readRequest"):
                read = request.readRequest
                fences = read.HasField("flag") and read.flag == pb.ReadRequest.FENCE_LEDGER
                if not fences and not read.HasField("previousLAC"):
                    self._gather_read(header, read)
                    return 1
        self._flush()
        self._dispatch(request)
        return _PER_RUN

    def _dispatch(self, request: pb.Request) -> None:
        header, connection, bookie = request.header, self._connection, self._bookie
        operation, txn_id = header.operation, header.txnId
        if operation == pb.AUTH and request.HasField("authRequest"):
            answer = pb.Response(header=_copied(header), status=pb.EOK)
            answer.authResponse.ParseFromString(AUTH_DISABLED)
            self._send(answer)
        elif operation == pb.START_TLS:
            self._send(response(txn_id, operation, Code.BAD_REQUEST))
        elif operation not in BODIES or not request.HasField(BODIES[operation][0]):
            self._send(pb.Response(header=_copied(header), status=pb.EBADREQ))
        elif header.version != pb.VERSION_THREE:
            self._refuse(request, Code.BAD_VERSION)
        elif operation == pb.ADD_ENTRY:
            self._refuse(request, Code.BAD_REQUEST)  # its body is no stored entry
        elif operation == pb.READ_ENTRY:
            self._special_read(request)
        elif operation == pb.WRITE_LAC:
            self._write_lac(txn_id, request.writeLacRequest)
        elif operation == pb.FORCE_LEDGER:
            self._force(txn_id, request.forceLedgerRequest.ledgerId)
        elif not connection.reads.allowed(1):
            self._refuse(request, Code.TOO_MANY_REQUESTS)
        else:
            begun = self._loop.time()
            if operation == pb.READ_LAC:
                ledger_id = request.readLacRequest.ledgerId
                connection.reads.add(1, lambda: answer_read_lac(connection, bookie, txn_id, ledger_id, begun))
            elif operation == pb.GET_BOOKIE_INFO:
                requested = request.getBookieInfoRequest.requested
                connection.reads.add(1, lambda: answer_info(connection, txn_id, requested, begun))
            else:
                ledger_id = request.getListOfEntriesOfLedgerRequest.ledgerId
                connection.reads.add(1, lambda: answer_list(connection, bookie, txn_id, ledger_id, begun))

    # --- adds --------------------------------------------------------------------------------------

    def _gather_add(self, header: pb.BKPacketHeader, add: pb.AddRequest, body: bytes) -> None:
        kind = add.masterKey, add.flag == pb.AddRequest.RECOVERY_ADD and add.HasField("flag"), header.priority > 0
        if self._reads is not None or (self._adds is not None and self._adds.kind != kind):
            self._flush()
        if self._adds is None:
            self._adds = GatheredAdds(*kind)
        self._adds.append(header.txnId, add.ledgerId, add.entryId, body)

    def _add(self, adds: AddsV3) -> None:
        connection, count = self._connection, len(adds.txn_ids)
        allowed = connection.adds_allowed(count)
        if allowed < count:
            rest = slice(allowed, count)
            ids = adds.txn_ids[rest], adds.ledger_ids[rest], adds.entry_ids[rest]
            connection.answers.send(answers_v3.add_answers(*ids, Code.TOO_MANY_REQUESTS))
            connection.observe_codes("add", Code.TOO_MANY_REQUESTS, count - allowed, self._loop.time())
            if not allowed:
                return
            adds = adds.first(allowed)
        txn_ids, ledger_ids, entry_ids = adds.txn_ids, adds.ledger_ids, adds.entry_ids

        def answer(codes: Code | Int32s) -> None:
            connection.answers.send(answers_v3.add_answers(txn_ids, ledger_ids, entry_ids, codes))

        connection.add(
            adds.records, adds.master_key, recovery=adds.recovery, high_priority=adds.high_priority, answer=answer
        )

    # --- reads -------------------------------------------------------------------------------------

    def _gather_read(self, header: pb.BKPacketHeader, read: pb.ReadRequest) -> None:
        high_priority = header.priority > 0
        if self._adds is not None or (self._reads is not None and self._reads.high_priority != high_priority):
            self._flush()
        if self._reads is None:
            self._reads = ReadsV3(high_priority, [], [], [])
        reads = self._reads
        for column, number in (
            (reads.txn_ids, header.txnId),
            (reads.ledger_ids, read.ledgerId),
            (reads.entry_ids, read.entryId),
        ):
            assert isinstance(column, list)
            column.append(number)

    def _flush(self) -> None:
        """Hand on what was gathered."""
        adds, self._adds = self._adds, None
        if adds is not None:
            self._add(adds.run())
        reads, self._reads = self._reads, None
        if reads is not None:
            self._read(reads)

    def _read(self, reads: ReadsV3) -> None:
        connection, count, begun = self._connection, len(reads.txn_ids), self._loop.time()
        txn_ids = reads.txn_ids
        if isinstance(txn_ids, list):  # unsigned ones; nothing is calculated with them here
            txn_ids = np.array(txn_ids, np.uint64).view(np.int64)
        ledger_ids, entry_ids = np.asarray(reads.ledger_ids, np.int64), np.asarray(reads.entry_ids, np.int64)
        if count == 1 and connection.may_answer_now and self._answer_now(txn_ids, ledger_ids, entry_ids, begun):
            return
        allowed = connection.reads.allowed(count)
        if allowed < count:
            rest = slice(allowed, count)
            code = Code.TOO_MANY_REQUESTS
            connection.answers.send(answers_v3.read_refusals(txn_ids[rest], ledger_ids[rest], entry_ids[rest], code))
            connection.observe_codes("read", code, count - allowed, begun)
            if not allowed:
                return
            txn_ids, ledger_ids, entry_ids = txn_ids[:allowed], ledger_ids[:allowed], entry_ids[:allowed]
        connection.reads.add(
            allowed,
            lambda: self._answer_reads(txn_ids, ledger_ids, entry_ids, begun),
            urgent=reads.high_priority,
        )

    def _answer_now(self, txn_ids: Int64s, ledger_ids: Int64s, entry_ids: Int64s, begun: float) -> bool:
        """Answer one plain read if all it needs is in memory."""
        ledger_id, entry_id = int(ledger_ids[0]), int(entry_ids[0])
        descriptor = self._bookie.descriptor(ledger_id)
        if isinstance(descriptor, LedgerDescriptor) and not descriptor.lac_loaded:
            return False
        found = self._bookie.read_now(ledger_id, entry_id)
        if found is None or not self._connection.answers.fits_now(len(found[1])):
            return False
        code, stored = found
        if code is Code.OK:
            lac = descriptor.last_add_confirmed if isinstance(descriptor, LedgerDescriptor) else NO_ENTRY
            prefix = answers_v3.read_prefix(int(txn_ids[0]), ledger_id, entry_id, code, lac, len(stored))
            self._connection.answers.send(prefix, stored)
        else:
            self._connection.answers.send(answers_v3.read_refusals(txn_ids, ledger_ids, entry_ids, code))
        self._connection.observe_codes("read", code, 1, begun)
        return True

    async def _answer_reads(self, txn_ids: Int64s, ledger_ids: Int64s, entry_ids: Int64s, begun: float) -> None:
        connection = self._connection
        while len(entry_ids):
            async with connection.answers.round(READ_ROUND_BYTES, distinct_ledgers(ledger_ids)) as limit:
                part = await self._bookie.read(ledger_ids, entry_ids, limit)
                count = len(part.codes)
                ids = txn_ids[:count], ledger_ids[:count], entry_ids[:count]
                failed = part.codes != Code.OK
                if failed.any():
                    refused = ids[0][failed], ids[1][failed], ids[2][failed]
                    connection.answers.send(answers_v3.read_refusals(*refused, part.codes[failed]))
                    ids = ids[0][~failed], ids[1][~failed], ids[2][~failed]
                if part.entries is not None and len(ids[0]):
                    lacs = await self._lacs(ids[1])
                    connection.answers.send(*answers_v3.read_answers(*ids, lacs, part.entries))
            connection.observe_codes("read", part.codes, count, begun)
            txn_ids, ledger_ids, entry_ids = txn_ids[count:], ledger_ids[count:], entry_ids[count:]

    async def _lacs(self, ledger_ids: Int64s) -> Int64s:
        """The last add confirmed known of each of ``ledger_ids``."""
        distinct, which = np.unique(ledger_ids, return_inverse=True)
        lacs = np.full(len(distinct), NO_ENTRY, np.int64)
        for i, ledger_id in enumerate(distinct.tolist()):
            descriptor = self._bookie.descriptor(ledger_id)
            if isinstance(descriptor, LedgerDescriptor):
                lacs[i] = await self._bookie.known_lac(descriptor)
        return lacs[which]

    def _special_read(self, request: pb.Request) -> None:
        """A read that fences, or waits."""
        connection, read, begun = self._connection, request.readRequest, self._loop.time()
        txn_id, ledger_id, entry_id = request.header.txnId, read.ledgerId, read.entryId
        if not read.HasField("flag") or read.flag != pb.ReadRequest.FENCE_LEDGER:
            poll = LongPoll.of(request, connection.server.config.max_poll_ms)
            if not poll.is_valid:
                self._refuse(request, Code.BAD_REQUEST)
            elif not connection.reads.may_poll:
                self._refuse(request, Code.TOO_MANY_REQUESTS)
            else:
                connection.reads.poll(lambda: answer_long_poll(connection, self._bookie, poll, begun))
        elif not read.HasField("masterKey"):
            self._refuse(request, Code.UNAUTHORIZED)
        elif not connection.reads.allowed(1):
            self._refuse(request, Code.TOO_MANY_REQUESTS)
        else:
            fence = connection.server.fences.fence(connection, ledger_id, read.masterKey)
            connection.reads.add(
                1, lambda: self._answer_fencing_read(txn_id, ledger_id, entry_id, fence, begun), urgent=True
            )

    async def _answer_fencing_read(
        self, txn_id: int, ledger_id: int, entry_id: int, fence: asyncio.Future[Code], begun: float
    ) -> None:
        code, stored = await fence, None
        async with self._connection.answers.round(1):
            if code is Code.OK:
                code, stored = await read_one(self._bookie, ledger_id, entry_id)
            size = None if stored is None else len(stored)
            self._connection.answers.send(answers_v3.read_prefix(txn_id, ledger_id, entry_id, code, None, size))
            if stored is not None:
                self._connection.answers.send(stored)
        self._connection.observe_codes("fence", code, 1, begun)

    # --- the rest ----------------------------------------------------------------------------------

    def _write_lac(self, txn_id: int, write: pb.WriteLacRequest) -> None:
        packet, ledger_id = write.body, write.ledgerId

        def answer(code: Code) -> None:
            self._send(response_about(txn_id, pb.WRITE_LAC, code, ledger_id))

        self._connection.write("write_lac", len(packet), self._bookie.write_lac(packet, write.masterKey), answer)

    def _force(self, txn_id: int, ledger_id: int) -> None:
        def answer(code: Code) -> None:
            self._send(response_about(txn_id, pb.FORCE_LEDGER, code, ledger_id))

        self._connection.write("force", 0, self._bookie.force(ledger_id), answer)

    def _refuse(self, request: pb.Request, code: Code) -> None:
        """Answer with the code alone, at the top and in the body."""
        operation = request.header.operation
        asked, answered = BODIES[operation]
        answer = response(request.header.txnId, operation, code)
        body = getattr(answer, answered)
        body.status = status(code)
        source = getattr(request, asked)
        for name in ("ledgerId", "entryId"):
            if name in body.DESCRIPTOR.fields_by_name:
                setattr(body, name, getattr(source, name))
        self._send(answer)

    def _send(self, answer: pb.Response) -> None:
        self._connection.answers.send(frame(answer.SerializeToString()))


def _copied(header: pb.BKPacketHeader) -> pb.BKPacketHeader:
    """The request's header as Apache's bookie sends it back where it does not look into the request."""
    copied = pb.BKPacketHeader(version=header.version, operation=header.operation, txnId=header.txnId)
    if header.HasField("priority"):
        copied.priority = header.priority
    return copied
