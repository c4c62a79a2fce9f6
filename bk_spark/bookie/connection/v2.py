"""One TCP connection to a bookie over v2. Single event loop. Nothing here blocks.

v2 answers are matched to requests as follows: adds by ledger (the writer counts its entries), batch reads by request
id, single reads by (ledger, entry) in the order of the requests.
"""

from __future__ import annotations

import asyncio

import numpy as np

from bk_spark.bookie.connection.base import FramedConnection
from bk_spark.bookie.connection.interface import BatchReads, ConnectionLimits, LedgerConnection
from bk_spark.protocol.codes import FlagV2
from bk_spark.protocol.wire.answers_v2 import AddAnswers, BatchReadAnswer, ReadAnswer, parse_answers
from bk_spark.protocol.wire.framing import Frames
from bk_spark.protocol.wire.wire_v2 import batch_read_request, read_requests


class _ReadGroup:
    """Reads that were requested together and are answered together."""

    __slots__ = ("answers", "future", "missing")

    def __init__(self, count: int, future: asyncio.Future[dict[int, ReadAnswer]]) -> None:
        self.missing = count
        self.answers: dict[int, ReadAnswer] = {}
        self.future = future


class BookieConnection(LedgerConnection, BatchReads, FramedConnection):
    """Adds, reads and batch reads over v2."""

    is_v2 = True

    def __init__(self, bookie_id: str, limits: ConnectionLimits | None = None) -> None:
        super().__init__(bookie_id, limits)
        #: By (ledger, entry): the groups that wait for it, in the order of their requests.
        self._reads: dict[tuple[int, ...], list[_ReadGroup]] = {}
        self._batches: dict[int, asyncio.Future[BatchReadAnswer]] = {}
        self._request_id = 0
        self.knows_batch_read = False

    async def read(
        self, ledger_id: int, entry_ids: range, *, flags: int = 0, key: bytes | None = None
    ) -> dict[int, ReadAnswer]:
        """Send READ requests for the entries. See :meth:`LedgerConnection.read`."""
        await self._enter(len(entry_ids))
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        group = _ReadGroup(len(entry_ids), loop.create_future())
        reads = self._reads
        for entry_id in entry_ids:
            waiting = reads.get((ledger_id, entry_id))
            if waiting is None:
                reads[ledger_id, entry_id] = [group]
            else:
                waiting.append(group)
        requests = read_requests(ledger_id, np.arange(entry_ids.start, entry_ids.stop, entry_ids.step), flags, key)
        self.send([requests], soon=bool(flags & FlagV2.FENCING))
        try:
            return await group.future
        finally:
            self._leave(len(entry_ids))
            if group.missing:
                self._forget(ledger_id, entry_ids, group)
                self._given_up(asked_at)

    async def batch_read(self, ledger_id: int, first: int, count: int, max_size_bytes: int) -> BatchReadAnswer:
        """Send a BATCH_READ request. See :meth:`BatchReads.batch_read`."""
        await self._enter(1)
        self._request_id += 1
        request_id = self._request_id
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        future: asyncio.Future[BatchReadAnswer] = loop.create_future()
        self._batches[request_id] = future
        self.send([batch_read_request(ledger_id, first, request_id, count, max_size_bytes)])
        try:
            return await future
        finally:
            self._leave(1)
            if self._batches.pop(request_id, None) is not None:
                self._given_up(asked_at)

    def _forget(self, ledger_id: int, entry_ids: range, group: _ReadGroup) -> None:
        for entry_id in entry_ids:
            groups = self._reads.get((ledger_id, entry_id))
            if groups is not None and group in groups:
                groups.remove(group)
                if not groups:
                    del self._reads[ledger_id, entry_id]

    def _on_frames(self, frames: Frames) -> None:
        for answer in parse_answers(frames):
            if isinstance(answer, ReadAnswer):
                self._on_read(answer)
            elif isinstance(answer, AddAnswers):
                self._on_adds(answer)
            else:
                self.knows_batch_read = True
                future = self._batches.pop(answer.request_id, None)
                if future is not None and not future.done():
                    future.set_result(answer)

    def _on_read(self, answer: ReadAnswer) -> None:
        asked = answer[:2]
        groups = self._reads.pop(asked, None)
        if groups is None:
            return
        group = groups.pop(0)
        if groups:
            self._reads[asked] = groups
        group.answers[answer.entry_id] = answer
        group.missing -= 1
        if group.missing == 0 and not group.future.done():
            group.future.set_result(group.answers)

    def _on_lost(self) -> None:
        groups = {id(group): group for waiting in self._reads.values() for group in waiting}
        self._reads.clear()
        futures = [group.future for group in groups.values()] + list(self._batches.values())
        self._batches.clear()
        for future in futures:
            if not future.done():
                future.set_exception(self._broken())
        super()._on_lost()
