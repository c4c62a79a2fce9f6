"""Handles v3 requests. Rules: compatibility.md §1.7–§1.9.

Neighbouring adds of a receive go to storage together, and so do neighbouring plain reads (request_runs_v3.py). While a
protobuf request waits, only the numbers that its answer needs are kept.
"""

from __future__ import annotations

import asyncio
from typing import Final

import numpy as np

from bk_spark.protocol.arrays import Int32s, Int64s
from bk_spark.protocol.codes import NO_ENTRY, Code
from bk_spark.protocol.entries.entry import ENTRY_HEADER_BYTES
from bk_spark.protocol.wire.auth_frames import AUTH_DISABLED
from bk_spark.protocol.wire.framing import Frames, frame
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3 import answer_frames_v3, wire_v3
from bk_spark.protocol.wire.v3.answer_frames_v3 import BODIES, refusal, response, response_about
from bk_spark.protocol.wire.v3.request_runs_v3 import AddRunV3, ReadRunV3, is_worth_it, segments, uniform_run
from bookie_server.net.common.access.rights import ADMIN, FENCE, READ, WRITE
from bookie_server.net.native.gathered_v3 import AddsV3, GatheredAdds
from bookie_server.net.native.inquiries_v3 import answer_info, answer_list, answer_read_lac
from bookie_server.net.native.long_polls import LongPoll, answer_long_poll, read_one
from bookie_server.net.native.recovery_adds import HeldAdds
from bookie_server.net.native.request_context import RequestContext
from bookie_server.net.native.requests_v2 import READ_ROUND_BYTES, RUNS_PER_TURN, distinct_ledgers
from bookie_server.storage.ledger_descriptors import LedgerDescriptor

#: This many adds or plain reads that arrive one by one cost as much as one other request.
_PER_RUN: Final = 8
#: The rights that a request needs. Adds and fences are looked at where they are handled.
_NEEDED: Final = {
    pb.READ_ENTRY: READ,
    pb.READ_LAC: READ,
    pb.GET_LIST_OF_ENTRIES_OF_LEDGER: READ,
    pb.WRITE_LAC: WRITE,
    pb.FORCE_LEDGER: WRITE,
    pb.GET_BOOKIE_INFO: ADMIN,
}


class RequestsV3:
    """Handles the v3 frames of one connection."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._bookie = context.shared.bookie
        self._loop = asyncio.get_running_loop()
        self._adds: GatheredAdds | None = None
        self._reads: ReadRunV3 | None = None
        self._held = HeldAdds[GatheredAdds | AddsV3](context.shared.recovery_adds)

    def handle(self, frames: Frames) -> int:
        """Handle some of ``frames`` and return how many: not all if they are requests of many kinds.

        Raises WireFormatError after the frames before the bad one are handled.
        """
        at = cost = 0
        try:
            if not is_worth_it(len(frames), frames.longest_bytes):
                # From a client that waits for answers: to look for runs would take longer than the requests.
                for body in frames:
                    self._one(wire_v3.parse_request(body))
                    at += 1
                return at
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
                    # These frames have one size but differ, so the next ones probably do, too.
                    end = min(last, at + (one_by_one if alike else RUNS_PER_TURN))
                    for body in frames.part(at, end):
                        cost += self._one(wire_v3.parse_request(body))
                    at, one_by_one = end, 2 * one_by_one
        finally:
            self._flush()
        return at

    def _run(self, run: AddRunV3 | ReadRunV3) -> None:
        if isinstance(run, AddRunV3):
            if run.recovery:
                self._held.hold(self, AddsV3.of(run), len(run.records))
            else:
                self._store_in_order(AddsV3.of(run))
        else:
            self._read(run)

    def _one(self, request: pb.Request) -> int:
        """Handle one request, or gather it with its neighbours. Return its cost."""
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
                if fences and self._reads is None and self._read_fenced(header.txnId, read):
                    return _PER_RUN // 2
        self._flush()
        self._dispatch(request)
        return _PER_RUN

    def _dispatch(self, request: pb.Request) -> None:
        header, context = request.header, self._context
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
        elif not context.may(_NEEDED.get(operation, 0)):
            self._refuse(request, Code.UNAUTHORIZED)
        elif operation == pb.ADD_ENTRY:
            self._refuse(request, Code.BAD_REQUEST)  # its body is not a stored entry
        elif operation == pb.READ_ENTRY:
            self._special_read(request)
        elif operation == pb.WRITE_LAC:
            self._write_lac(txn_id, request.writeLacRequest)
        elif operation == pb.FORCE_LEDGER:
            self._force(txn_id, request.forceLedgerRequest.ledgerId)
        elif operation == pb.GET_BOOKIE_INFO:
            answer_info(context, txn_id, request.getBookieInfoRequest.requested, self._loop.time())
        elif not context.reads.allowed(1):
            self._refuse(request, Code.TOO_MANY_REQUESTS)
        else:
            begun = self._loop.time()
            if operation == pb.READ_LAC:
                ledger_id = request.readLacRequest.ledgerId
                context.reads.add(1, lambda: answer_read_lac(context, txn_id, ledger_id, begun))
            else:
                ledger_id = request.getListOfEntriesOfLedgerRequest.ledgerId
                context.reads.add(1, lambda: answer_list(context, txn_id, ledger_id, begun))

    # --- adds --------------------------------------------------------------------------------------

    def _gather_add(self, header: pb.BKPacketHeader, add: pb.AddRequest, body: bytes) -> None:
        recovery = add.flag == pb.AddRequest.RECOVERY_ADD and add.HasField("flag")
        kind = add.masterKey, recovery, header.priority > 0
        if recovery:
            last = self._held.adds[-1] if self._held.adds else None
            if isinstance(last, GatheredAdds) and last.kind == kind:
                last.append(header.txnId, add.ledgerId, add.entryId, body)
                self._context.shared.recovery_adds.wait(self, len(body))
            else:
                gathered = GatheredAdds(*kind)
                gathered.append(header.txnId, add.ledgerId, add.entryId, body)
                self._held.hold(self, gathered, len(body))
            return
        if self._reads is not None or (self._adds is not None and self._adds.kind != kind):
            self._flush()
        if self._adds is None:
            self._adds = GatheredAdds(*kind)
        self._adds.append(header.txnId, add.ledgerId, add.entryId, body)

    def store_held(self) -> None:
        """Let the bookie store the adds that waited for more."""
        held, since_s = self._held.take()
        with self._context.charged():
            for adds in held:
                self._add(adds.all() if isinstance(adds, GatheredAdds) else adds, since_s)

    def _store_in_order(self, adds: AddsV3) -> None:
        if self._held.adds:
            self.store_held()
        self._add(adds, self._loop.time())

    def _add(self, adds: AddsV3, begun: float) -> None:
        context, count = self._context, len(adds.txn_ids)
        allowed = context.adds_allowed(count)
        if allowed < count:
            rest = slice(allowed, count)
            ids = adds.txn_ids[rest], adds.ledger_ids[rest], adds.entry_ids[rest]
            context.answers.send(answer_frames_v3.add_answers(*ids, Code.TOO_MANY_REQUESTS))
            context.observe_codes("add", Code.TOO_MANY_REQUESTS, count - allowed, begun)
            if not allowed:
                return
            adds = adds.first(allowed)
        txn_ids, ledger_ids, entry_ids = adds.txn_ids, adds.ledger_ids, adds.entry_ids

        def answer(codes: Code | Int32s) -> None:
            context.answers.send(answer_frames_v3.add_answers(txn_ids, ledger_ids, entry_ids, codes))

        context.add(
            adds.records,
            adds.master_key,
            recovery=adds.recovery,
            high_priority=adds.high_priority,
            begun=begun,
            answer=answer,
        )

    # --- reads -------------------------------------------------------------------------------------

    def _gather_read(self, header: pb.BKPacketHeader, read: pb.ReadRequest) -> None:
        high_priority = header.priority > 0
        if self._adds is not None or (self._reads is not None and self._reads.high_priority != high_priority):
            self._flush()
        if self._reads is None:
            self._reads = ReadRunV3(high_priority, [], [], [])
        reads = self._reads
        for column, number in (
            (reads.txn_ids, header.txnId),
            (reads.ledger_ids, read.ledgerId),
            (reads.entry_ids, read.entryId),
        ):
            assert isinstance(column, list)
            column.append(number)

    def _flush(self) -> None:
        """Handle the gathered requests."""
        adds, self._adds = self._adds, None
        if adds is not None:
            self._store_in_order(adds.all())
        reads, self._reads = self._reads, None
        if reads is not None:
            self._read(reads)

    def _read(self, reads: ReadRunV3) -> None:
        context, count, begun = self._context, len(reads.txn_ids), self._loop.time()
        if count == 1 and context.may(READ) and context.may_answer_now and self._answer_now(reads, begun):
            return
        txn_ids = reads.txn_ids
        if isinstance(txn_ids, list):  # they are unsigned; nothing is calculated with them
            txn_ids = np.array(txn_ids, np.uint64).view(np.int64)
        ledger_ids, entry_ids = np.asarray(reads.ledger_ids, np.int64), np.asarray(reads.entry_ids, np.int64)
        if not context.may(READ):
            self._refuse_reads(txn_ids, ledger_ids, entry_ids, Code.UNAUTHORIZED, begun)
            return
        allowed = context.reads.allowed(count)
        if allowed < count:
            rest = slice(allowed, count)
            self._refuse_reads(txn_ids[rest], ledger_ids[rest], entry_ids[rest], Code.TOO_MANY_REQUESTS, begun)
            if not allowed:
                return
            txn_ids, ledger_ids, entry_ids = txn_ids[:allowed], ledger_ids[:allowed], entry_ids[:allowed]
        context.reads.add(
            allowed,
            lambda: self._answer_reads(txn_ids, ledger_ids, entry_ids, begun),
            urgent=reads.high_priority,
        )

    def _refuse_reads(self, txn_ids: Int64s, ledger_ids: Int64s, entry_ids: Int64s, code: Code, begun: float) -> None:
        self._context.answers.send(answer_frames_v3.read_refusals(txn_ids, ledger_ids, entry_ids, code))
        self._context.observe_codes("read", code, len(txn_ids), begun)

    def _answer_now(self, read: ReadRunV3, begun: float) -> bool:
        """Answer one plain read if everything that it needs is in memory."""
        txn_id, ledger_id, entry_id = int(read.txn_ids[0]), int(read.ledger_ids[0]), int(read.entry_ids[0])
        descriptor = self._bookie.descriptor(ledger_id)
        if isinstance(descriptor, LedgerDescriptor) and not descriptor.lac_loaded:
            return False
        lac = descriptor.last_add_confirmed if isinstance(descriptor, LedgerDescriptor) else NO_ENTRY
        return self._answer_from_memory("read", txn_id, ledger_id, entry_id, lac, begun)

    def _answer_from_memory(
        self, kind: str, txn_id: int, ledger_id: int, entry_id: int, lac: int | None, begun: float
    ) -> bool:
        found = self._bookie.read_now(ledger_id, entry_id)
        if found is None or not self._context.answers.fits_now(len(found[1])):
            return False
        code, stored = found
        if code is Code.OK:
            prefix = answer_frames_v3.read_prefix(txn_id, ledger_id, entry_id, code, lac, len(stored))
            self._context.answers.send(prefix, stored)
        else:
            self._context.answers.send(answer_frames_v3.read_prefix(txn_id, ledger_id, entry_id, code, None, None))
        self._context.observe_codes(kind, code, 1, begun)
        return True

    async def _answer_reads(self, txn_ids: Int64s, ledger_ids: Int64s, entry_ids: Int64s, begun: float) -> None:
        context = self._context
        while len(entry_ids):
            async with context.answers.round(READ_ROUND_BYTES, distinct_ledgers(ledger_ids)) as limit:
                part = await self._bookie.read(ledger_ids, entry_ids, limit, taken=context.answers.are_taken)
                count = len(part.codes)
                ids = txn_ids[:count], ledger_ids[:count], entry_ids[:count]
                failed = part.codes != Code.OK
                if failed.any():
                    refused = ids[0][failed], ids[1][failed], ids[2][failed]
                    context.answers.send(answer_frames_v3.read_refusals(*refused, part.codes[failed]))
                    ids = ids[0][~failed], ids[1][~failed], ids[2][~failed]
                found = part.entries
                if found is not None and len(ids[0]):
                    lacs = await self._lacs(ids[1])
                    context.answers.send(
                        *answer_frames_v3.read_answers(*ids, lacs, found.data, found.starts, found.sizes)
                    )
            context.observe_codes("read", part.codes, count, begun)
            context.reads.answered(count)
            txn_ids, ledger_ids, entry_ids = txn_ids[count:], ledger_ids[count:], entry_ids[count:]

    async def _lacs(self, ledger_ids: Int64s) -> Int64s:
        """Return the known last add confirmed of each of ``ledger_ids``."""
        distinct, which = np.unique(ledger_ids, return_inverse=True)
        lacs = np.full(len(distinct), NO_ENTRY, np.int64)
        for i, ledger_id in enumerate(distinct.tolist()):
            descriptor = self._bookie.descriptor(ledger_id)
            if isinstance(descriptor, LedgerDescriptor):
                lacs[i] = await self._bookie.known_lac(descriptor)
        return lacs[which]

    def _special_read(self, request: pb.Request) -> None:
        """Handle a read that fences, or a long poll."""
        context, read, begun = self._context, request.readRequest, self._loop.time()
        txn_id, ledger_id, entry_id = request.header.txnId, read.ledgerId, read.entryId
        if not read.HasField("flag") or read.flag != pb.ReadRequest.FENCE_LEDGER:
            poll = LongPoll.of(request, context.shared.config.max_poll_ms)
            if not poll.is_valid:
                self._refuse(request, Code.BAD_REQUEST)
            elif not context.reads.may_poll:
                self._refuse(request, Code.TOO_MANY_REQUESTS)
            else:
                context.reads.poll(lambda: answer_long_poll(context, poll, begun))
        elif not read.HasField("masterKey") or not context.may(FENCE):
            self._refuse(request, Code.UNAUTHORIZED)
        elif not context.reads.allowed(1):
            self._refuse(request, Code.TOO_MANY_REQUESTS)
        else:
            fence = context.shared.fences.fence(context, ledger_id, read.masterKey)
            context.reads.add(
                1, lambda: self._answer_fencing_read(txn_id, ledger_id, entry_id, fence, begun), urgent=True
            )

    def _read_fenced(self, txn_id: int, read: pb.ReadRequest) -> bool:
        """Answer a fencing read at once, if its fence is durable and its entry in memory."""
        context = self._context
        may = context.access is None or context.access.has(READ | FENCE)  # whoever may not is refused elsewhere
        if not may or not read.HasField("masterKey") or not context.may_answer_now:
            return False
        if context.shared.bookie.fenced_before(read.ledgerId, read.masterKey) is not Code.OK:
            return False
        return self._answer_from_memory("fence", txn_id, read.ledgerId, read.entryId, None, self._loop.time())

    async def _answer_fencing_read(
        self, txn_id: int, ledger_id: int, entry_id: int, fence: asyncio.Future[Code], begun: float
    ) -> None:
        code, stored = await fence, None
        async with self._context.answers.round(1):
            if code is Code.OK:
                code, stored = await read_one(self._bookie, ledger_id, entry_id)
            size = None if stored is None else len(stored)
            self._context.answers.send(answer_frames_v3.read_prefix(txn_id, ledger_id, entry_id, code, None, size))
            if stored is not None:
                self._context.answers.send(stored)
        self._context.observe_codes("fence", code, 1, begun)

    # --- the rest ----------------------------------------------------------------------------------

    def _write_lac(self, txn_id: int, write: pb.WriteLacRequest) -> None:
        packet, ledger_id = write.body, write.ledgerId

        def answer(code: Code) -> None:
            self._send(response_about(txn_id, pb.WRITE_LAC, code, ledger_id))

        self._context.write("write_lac", len(packet), self._bookie.write_lac(packet, write.masterKey), answer)

    def _force(self, txn_id: int, ledger_id: int) -> None:
        def answer(code: Code) -> None:
            self._send(response_about(txn_id, pb.FORCE_LEDGER, code, ledger_id))

        self._context.write("force", 0, self._bookie.force(ledger_id), answer)

    def _refuse(self, request: pb.Request, code: Code) -> None:
        self._send(refusal(request, code))

    def _send(self, answer: pb.Response) -> None:
        self._context.answers.send(frame(answer.SerializeToString()))


def _copied(header: pb.BKPacketHeader) -> pb.BKPacketHeader:
    """Return the request's header as Apache's bookie returns it for requests that it does not examine."""
    copied = pb.BKPacketHeader(version=header.version, operation=header.operation, txnId=header.txnId)
    if header.HasField("priority"):
        copied.priority = header.priority
    return copied
