"""The method Read: each request reads many entries. They are answered in order, one at a time for each call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import numpy as np
from grpc.aio import EOF

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.codes import LAST_ENTRY, Code
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.proto import bookie_pb2 as pb
from bk_spark.protocol.wire.batches import with_records
from bookie_server.net.common.access.rights import FENCE, READ
from bookie_server.net.common.fair_slots import HALF_LIFE_S, Share
from bookie_server.net.common.limits import REQUEST_BYTES
from bookie_server.net.grpc.answer_room import AnswerRoom
from bookie_server.net.grpc.calls import Call, Context, Stuck, number
from bookie_server.net.native.requests_v2 import READ_ROUND_BYTES, record_views
from bookie_server.net.native.shared import Shared
from bookie_server.storage.entrylog.entry_log_reader import StoredEntries

#: Entries that one request may ask for.
MAX_COUNT: Final = 10_000
_LEAST_ROUND_BYTES: Final = 128 * 1024
#: Room in a message for everything but the records.
_HEAD_BYTES: Final = 256
#: Memory of an entry that was asked for.
_READ_BYTES: Final = 48
_MAX_ID: Final = 2**63 - 1


class ReadCall(Call):
    """One call of Read."""

    def __init__(self, shared: Shared, stuck: Stuck, context: Context) -> None:
        super().__init__(shared, stuck, context)
        self._share = Share(HALF_LIFE_S)

    async def run(self) -> None:
        """Answer requests until the caller has sent all."""
        load = self.shared.load
        try:
            await self.check_room()
            while True:
                await load.may_receive.wait()
                data = await self.context.read()
                if data is EOF:
                    return
                request = await self.parse(pb.ReadRequest, data)
                size_bytes = REQUEST_BYTES + _READ_BYTES * min(request.count, MAX_COUNT)
                if load.reads_bytes + size_bytes > self.shared.config.max_waiting_reads_bytes:
                    load.rejected_reads += request.count
                    await self._refuse(request.request_id, Code.TOO_MANY_REQUESTS)
                    continue
                load.change_reads(1, size_bytes)
                try:
                    await self._answer(request)
                finally:
                    load.change_reads(-1, -size_bytes)
        finally:
            self.end()

    async def _answer(self, request: pb.ReadRequest) -> None:
        problem = _problem(request)
        if problem:
            await self._refuse(request.request_id, Code.BAD_REQUEST, problem)
            return
        kind, begun = "read", asyncio.get_running_loop().time()
        if request.HasField("fence_key"):
            kind = "fence"
        if not self.requests.may(READ if kind == "read" else READ | FENCE):
            self.requests.observe_codes(kind, Code.UNAUTHORIZED, 1, begun)
            await self._refuse(request.request_id, Code.UNAUTHORIZED)
            return
        if kind == "fence":
            code = await self.shared.fences.fence(self.requests, request.ledger_id, request.fence_key)
            if code is not Code.OK:
                self.requests.observe_codes(kind, code, 1, begun)
                await self._refuse(request.request_id, code)
                return
        if request.max_bytes:
            await self._answer_run(request, kind, begun)
            return
        step = request.step or 1
        first = request.first_entry_id
        await self._answer_each(request, first + np.arange(request.count, dtype=np.int64) * step, kind, begun)

    async def _answer_run(self, request: pb.ReadRequest, kind: str, begun: float) -> None:
        """Answer with consecutive entries."""
        limit = min(request.max_bytes, self.shared.config.max_batch_read_bytes) - _HEAD_BYTES
        room = AnswerRoom(request.request_id)
        async with self.shared.read_slots.slot(self._share, self.shared.load.has_room) as slot:
            code, found = await self.shared.bookie.read_batch(
                request.ledger_id,
                request.first_entry_id,
                request.count,
                self.shared.load.round_bytes(limit, _LEAST_ROUND_BYTES),
                room=room.take,
            )
            message = room.message(found) or _joined(request, code, found)
            slot.bytes = len(message)
        self.requests.observe_codes(kind, code, 1, begun)
        await self.send(message)

    async def _answer_each(self, request: pb.ReadRequest, entry_ids: Int64s, kind: str, begun: float) -> None:
        """Answer with each entry or its code, in rounds."""
        ledger_ids = np.full(len(entry_ids), request.ledger_id, np.int64)
        while len(entry_ids):
            async with self.shared.read_slots.slot(self._share, self.shared.load.has_room) as slot:
                limit = self.shared.load.round_bytes(READ_ROUND_BYTES, _LEAST_ROUND_BYTES)
                part = await self.shared.bookie.read(ledger_ids, entry_ids, limit)
                count = len(part.codes)
                answer = pb.ReadAnswer(request_id=request.request_id, count=count, last=count == len(entry_ids))
                if part.codes.any():
                    answer.codes.extend(number(Code(code)) for code in part.codes.tolist())
                stored = part.entries is not None and len(part.entries.sizes) > 0
                records = record_views(part.entries) if stored and part.entries is not None else []
                message = _message(answer, records)
                slot.bytes = len(message)
            self.requests.observe_codes(kind, part.codes, count, begun)
            await self.send(message)
            ledger_ids, entry_ids = ledger_ids[count:], entry_ids[count:]

    async def _refuse(self, request_id: int, code: Code, problem: str = "") -> None:
        answer = pb.ReadAnswer(request_id=request_id, code=number(code), last=True, problem=problem)
        await self.send(answer.SerializeToString())


def _joined(request: pb.ReadRequest, code: Code, found: Sequence[StoredEntries]) -> bytes:
    count = sum(len(entries.sizes) for entries in found)
    answer = pb.ReadAnswer(request_id=request.request_id, code=number(code), count=count, last=True)
    return _message(answer, [view for entries in found for view in record_views(entries)])


def _message(answer: pb.ReadAnswer, records: Sequence[Buffer]) -> bytes:
    return with_records(answer.SerializeToString(), records)


def _problem(request: pb.ReadRequest) -> str:
    """Return what is wrong with a request that contradicts itself. Empty: nothing."""
    if not 0 < request.count <= MAX_COUNT:
        return f"count is {request.count}, not 1 to {MAX_COUNT}"
    if request.first_entry_id < LAST_ENTRY:
        return f"first_entry_id is {request.first_entry_id}"
    if request.first_entry_id == LAST_ENTRY and request.count > 1:
        return "nothing comes after the last entry: with first_entry_id -1 count must be 1"
    if request.max_bytes and request.step > 1:
        return "max_bytes asks for consecutive entries: step must be 1"
    if request.first_entry_id + request.count * max(1, request.step) > _MAX_ID:
        return "the entry ids exceed those of an int64"
    return ""
