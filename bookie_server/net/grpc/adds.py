"""The method Add: batches of entries, each answered when it is durable.

The next batch is taken when the unanswered ones of this call, and those of all callers, are few enough. Until then the
caller's messages stay in HTTP/2's window, which stops the caller.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

import numpy as np
from grpc.aio import EOF

from bk_spark.protocol.arrays import Int32s
from bk_spark.protocol.codes import MASTER_KEY_BYTES, Code
from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.proto import bookie_pb2 as pb
from bk_spark.protocol.wire.batches import Entries, batch_entries, parse_with_records
from bookie_server.net.grpc.calls import Call, Context, Stuck, number
from bookie_server.net.native.recovery_adds import HeldAdds
from bookie_server.net.native.shared import Shared
from bookie_server.storage.records import Records

#: Bytes of batches of one call that are not answered. A batch that is larger is taken alone.
_MAX_PENDING_BYTES: Final = 8 * 1024 * 1024
#: After a batch that contradicts itself its call waits. Otherwise a caller could keep the bookie busy with such.
_AFTER_WRONG_S: Final = 0.05
#: By v2 number: the number in messages.
_NUMBERS: Final = np.zeros(max(Code) + 1, np.int32)
_NUMBERS[[int(code) for code in Code]] = [code.v3 for code in Code]


class AddCall(Call):
    """One call of Add."""

    def __init__(self, shared: Shared, stuck: Stuck, context: Context) -> None:
        super().__init__(shared, stuck, context, self._look)
        most = shared.config.max_pending_adds
        self._max_entries = most if most else shared.config.max_frame_bytes
        self._pending_bytes = 0
        self._answers: deque[tuple[pb.AddAnswer, int]] = deque()
        #: Batches of recoveries, with their entries and the bytes of the message.
        self._held = HeldAdds[tuple[pb.AddBatch, Entries, int]](shared.recovery_adds)
        #: Set when something has changed for the reader, and for the writer.
        self._changed = asyncio.Event()
        self._answered = asyncio.Event()
        self._batches = 0

    async def run(self) -> None:
        """Take batches until the caller has sent all, and answer each."""
        self.context.place.is_busy = lambda: self._batches > 0
        answering = asyncio.get_running_loop().create_task(self._answer())
        answering.add_done_callback(lambda _: self._look())
        try:
            await self.check_room()
            while not answering.done():
                await self._room(answering)
                data = await self.context.read()
                if data is EOF:
                    break
                # Others may have filled the bookie while this one had nothing to send.
                await self.shared.load.may_receive.wait()
                await self._take(data)
            while self._batches and not answering.done():
                self._changed.clear()
                await self._changed.wait()
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            self.end()

    async def _room(self, answering: asyncio.Task[None]) -> None:
        """Wait until another batch may be taken."""
        while self._is_full and not answering.done():
            self._changed.clear()
            await self._changed.wait()
        await self.shared.load.may_receive.wait()

    @property
    def _is_full(self) -> bool:
        return self._pending_bytes > _MAX_PENDING_BYTES or 2 * self.requests.pending_adds > self._max_entries

    def _look(self) -> None:
        self._changed.set()

    async def _take(self, data: bytes) -> None:
        try:
            batch, records = parse_with_records(pb.AddBatch, data)
        except WireFormatError as error:
            await self.refuse(error.message)
            return
        self._batches += 1
        self._pending_bytes += len(data)
        try:
            if len(batch.master_key) != MASTER_KEY_BYTES:
                raise WireFormatError(f"master_key has {len(batch.master_key)} bytes, not {MASTER_KEY_BYTES}")
            entries = batch_entries(batch, records, self._max_entries)
        except WireFormatError as error:
            problem = pb.AddAnswer(batch_id=batch.batch_id, code=pb.CODE_BAD_REQUEST, problem=error.message)
            self._enqueue(problem, len(data))
            await asyncio.sleep(_AFTER_WRONG_S)
            return
        self._add(batch, entries, len(data))

    def _add(self, batch: pb.AddBatch, entries: Entries, size_bytes: int) -> None:
        if batch.recovery:
            self._held.hold(self, (batch, entries, size_bytes), size_bytes)
            return
        now_s = asyncio.get_running_loop().time()
        if self._held.adds:
            self.store_held()
        self._store(batch, entries, size_bytes, now_s)

    def store_held(self) -> None:
        """Let the bookie store the batches that waited for more."""
        held, since_s = self._held.take()
        with self.requests.charged():
            for batch, entries, size_bytes in held:
                self._store(batch, entries, size_bytes, since_s)

    def _store(self, batch: pb.AddBatch, entries: Entries, size_bytes: int, begun: float) -> None:
        batch_id, allowed = batch.batch_id, self.requests.adds_allowed(len(entries.entry_ids))
        if allowed < len(entries.entry_ids):
            self._enqueue(pb.AddAnswer(batch_id=batch_id, code=pb.CODE_TOO_MANY_REQUESTS), size_bytes)
            return

        def answer(codes: Code | Int32s) -> None:
            self._enqueue(_answer(batch_id, codes), size_bytes)

        self.requests.add(
            Records(
                entries.ledger_ids, entries.entry_ids, entries.last_adds_confirmed, entries.records, entries.offsets
            ),
            batch.master_key,
            recovery=batch.recovery,
            high_priority=batch.high_priority,
            begun=begun,
            answer=answer,
        )

    def _enqueue(self, answer: pb.AddAnswer, size_bytes: int) -> None:
        self._answers.append((answer, size_bytes))
        self._answered.set()

    async def _answer(self) -> None:
        while True:
            while self._answers:
                answer, size_bytes = self._answers.popleft()
                await self.send(answer.SerializeToString())
                self._batches -= 1
                self._pending_bytes -= size_bytes
                self._changed.set()
            self._answered.clear()
            await self._answered.wait()


def _answer(batch_id: int, codes: Code | Int32s) -> pb.AddAnswer:
    if isinstance(codes, Code):
        return pb.AddAnswer(batch_id=batch_id, code=number(codes))
    numbers = _NUMBERS[codes]
    failed = np.flatnonzero(numbers)
    first = number(Code(int(codes[failed[0]]))) if len(failed) else pb.CODE_OK
    return pb.AddAnswer(batch_id=batch_id, code=first, codes=numbers.tolist())
