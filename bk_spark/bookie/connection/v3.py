"""One TCP connection to a bookie over v3. Single event loop. Nothing here blocks.

It is separate from v2 connections: Apache's bookie accepts no v3 on a connection after a v2 frame. Answers are matched
by transaction id, but answers to adds by ledger and entry id, as over v2.

The caller limits the wait for an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from bk_spark.bookie.connection.base import FramedConnection
from bk_spark.bookie.connection.interface import ConnectionLimits, ControlConnection
from bk_spark.protocol.codes import Code, FlagV2
from bk_spark.protocol.errors import InvalidArgumentError, WireFormatError
from bk_spark.protocol.wire.answers_v2 import AddAnswers, ReadAnswer
from bk_spark.protocol.wire.code_errors import error_of
from bk_spark.protocol.wire.entry_availability import EntryAvailability, decode_availability
from bk_spark.protocol.wire.framing import Frames
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3 import wire_v3
from bk_spark.protocol.wire.v3.add_frames_v3 import is_txn_of, txn_entry_id
from bk_spark.protocol.wire.v3.answers_v3 import BareAddAnswer, parse_answers
from bk_spark.protocol.wire.v3.wire_v3 import BookieInfo, LongPollAnswer


class _ReadGroup:
    """Reads that were requested together and are answered together. Their transaction ids are consecutive."""

    __slots__ = ("answers", "entry_ids", "first_txn_id", "future", "ledger_id")

    def __init__(
        self, ledger_id: int, entry_ids: range, first_txn_id: int, future: asyncio.Future[dict[int, ReadAnswer]]
    ) -> None:
        self.ledger_id = ledger_id
        self.entry_ids = entry_ids
        self.first_txn_id = first_txn_id
        self.answers: dict[int, ReadAnswer] = {}
        self.future = future

    def on_answer(self, response: pb.Response) -> None:
        entry_id = self.entry_ids[response.header.txnId - self.first_txn_id]
        self.answers[entry_id] = wire_v3.read_answer(response, self.ledger_id, entry_id)
        if len(self.answers) == len(self.entry_ids) and not self.future.done():
            self.future.set_result(self.answers)


class BookieConnectionV3(ControlConnection, FramedConnection):
    """Adds, reads and all other requests except batch reads."""

    def __init__(self, bookie_id: str, limits: ConnectionLimits | None = None) -> None:
        super().__init__(bookie_id, limits)
        self._waiting: dict[int, asyncio.Future[pb.Response] | _ReadGroup] = {}
        self._last_txn_id = 0

    async def read(
        self, ledger_id: int, entry_ids: range, *, flags: int = 0, key: bytes | None = None
    ) -> dict[int, ReadAnswer]:
        """Send READ_ENTRY requests for the entries. See :meth:`LedgerConnection.read`."""
        fencing, urgent = bool(flags & FlagV2.FENCING), bool(flags & FlagV2.HIGH_PRIORITY)
        if fencing != (key is not None):
            raise InvalidArgumentError("a fencing read needs the master key, and other reads must not have it")
        count = len(entry_ids)
        await self._enter(count)
        loop = asyncio.get_running_loop()
        txn_ids = self._txn_ids(count)
        group = _ReadGroup(ledger_id, entry_ids, txn_ids.start, loop.create_future())
        self._waiting.update(dict.fromkeys(txn_ids, group))
        with self._outstanding_requests(txn_ids):
            if count > 1 and not flags and min(entry_ids[0], entry_ids[-1]) >= 0:
                ids = np.arange(entry_ids.start, entry_ids.stop, entry_ids.step)
                self.send([wire_v3.read_requests(txn_ids.start, ledger_id, ids)])
            else:
                requests = (
                    wire_v3.read_request(txn_id, ledger_id, entry_id, fence_key=key, high_priority=urgent)
                    for txn_id, entry_id in zip(txn_ids, entry_ids, strict=True)
                )
                self.send(requests, soon=fencing)
            return await group.future

    async def read_lac(self, ledger_id: int) -> tuple[Code, bytes | None, bytes | None]:
        """Send READ_LAC. See :meth:`ControlConnection.read_lac`."""
        return wire_v3.lac_answer(await self._ask(lambda txn_id: wire_v3.read_lac_request(txn_id, ledger_id)))

    async def write_lac(self, ledger_id: int, packet: bytes, master_key: bytes) -> Code:
        """Send WRITE_LAC. See :meth:`ControlConnection.write_lac`."""
        response = await self._ask(lambda txn_id: wire_v3.write_lac_request(txn_id, ledger_id, packet, master_key))
        answered = response.HasField("writeLacResponse")
        return wire_v3.response_code(response, response.writeLacResponse.status if answered else None)

    async def force(self, ledger_id: int) -> Code:
        """Send FORCE_LEDGER. See :meth:`ControlConnection.force`."""
        response = await self._ask(lambda txn_id: wire_v3.force_ledger_request(txn_id, ledger_id))
        answered = response.HasField("forceLedgerResponse")
        return wire_v3.response_code(response, response.forceLedgerResponse.status if answered else None)

    async def long_poll(self, ledger_id: int, previous_lac: int, timeout_ms: int) -> LongPollAnswer:
        """Send READ_ENTRY with a previous LAC. See :meth:`ControlConnection.long_poll`."""
        response = await self._ask(
            lambda txn_id: wire_v3.long_poll_request(txn_id, ledger_id, previous_lac, timeout_ms), timeout_ms
        )
        return wire_v3.long_poll_answer(response)

    async def bookie_info(self) -> BookieInfo:
        """Send GET_BOOKIE_INFO. See :meth:`ControlConnection.bookie_info`."""
        response = await self._ask(wire_v3.bookie_info_request)
        body = response.getBookieInfoResponse
        answered = response.HasField("getBookieInfoResponse")
        self._check_code(response, body.status if answered else None, "bookie info", None)
        return BookieInfo(
            body.totalDiskCapacity if body.HasField("totalDiskCapacity") else None,
            body.freeDiskSpace if body.HasField("freeDiskSpace") else None,
        )

    async def list_entries(self, ledger_id: int) -> EntryAvailability:
        """Send GET_LIST_OF_ENTRIES_OF_LEDGER. See :meth:`ControlConnection.list_entries`."""
        response = await self._ask(lambda txn_id: wire_v3.list_of_entries_request(txn_id, ledger_id))
        body = response.getListOfEntriesOfLedgerResponse
        answered = response.HasField("getListOfEntriesOfLedgerResponse")
        self._check_code(response, body.status if answered else None, "list of entries", ledger_id)
        return decode_availability(body.availabilityOfEntriesOfLedger)

    # --- requests and their answers ---

    async def _ask(self, request: Callable[[int], bytes], answer_takes_ms: int = 0) -> pb.Response:
        """Send ``request(transaction id)`` and return the answer."""
        await self._enter(1)
        txn_ids = self._txn_ids(1)
        future: asyncio.Future[pb.Response] = asyncio.get_running_loop().create_future()
        self._waiting[txn_ids.start] = future
        with self._outstanding_requests(txn_ids, answer_takes_ms):
            self.send([request(txn_ids.start)])
            return await future

    def _txn_ids(self, count: int) -> range:
        first = self._last_txn_id + 1
        self._last_txn_id += count
        return range(first, first + count)

    @contextmanager
    def _outstanding_requests(self, txn_ids: range, answer_takes_ms: int = 0) -> Iterator[None]:
        expected_at = asyncio.get_running_loop().time() + answer_takes_ms / 1000
        try:
            yield
        finally:
            self._leave(len(txn_ids))
            unanswered = [self._waiting.pop(txn_id, None) for txn_id in txn_ids]
            if any(unanswered):
                self._given_up(expected_at)

    def _check_code(
        self, response: pb.Response, body_status: int | None, operation: str, ledger_id: int | None
    ) -> None:
        code = wire_v3.response_code(response, body_status)
        if code is not Code.OK:
            raise error_of(code, operation, ledger_id=ledger_id, bookie_id=self.bookie_id)

    def _on_frames(self, frames: Frames) -> None:
        for answer in parse_answers(frames):
            if isinstance(answer, AddAnswers):
                self._on_adds(answer)
            elif isinstance(answer, BareAddAnswer):
                self._on_bare_add(answer)
            else:
                self._on_answer(answer)

    def _on_answer(self, response: pb.Response) -> None:
        txn_id = response.header.txnId
        waiting = self._waiting.get(txn_id)
        if waiting is None:
            return
        if isinstance(waiting, _ReadGroup):
            waiting.on_answer(response)
        elif not waiting.done():
            waiting.set_result(response)
        # Not earlier: after an invalid answer, the request must still fail with the connection.
        del self._waiting[txn_id]

    def _on_bare_add(self, answer: BareAddAnswer) -> None:
        ledger_ids = [ledger_id for ledger_id in self._add_listeners if is_txn_of(answer.txn_id, ledger_id)]
        entry_id = txn_entry_id(answer.txn_id)
        if len(ledger_ids) > 1 or entry_id is None:
            raise WireFormatError("the answer to an add does not identify its entry")
        for ledger_id in ledger_ids:
            ids = np.array([ledger_id], np.int64), np.array([entry_id], np.int64)
            self._on_adds(AddAnswers(*ids, np.array([answer.code], np.int32)))

    def _on_lost(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            future = one.future if isinstance(one, _ReadGroup) else one
            if not future.done():
                future.set_exception(self._broken())
        super()._on_lost()
