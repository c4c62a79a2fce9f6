"""The handle of a ledger whose entry ids the caller chooses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Never, assert_never

import numpy as np
import numpy.typing as npt

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.runners import AsyncRunner
from bk_spark.bookie.same_docs import documented_as
from bk_spark.bookie.writing.wrapped_handle import WrappedHandle
from bk_spark.bookie.writing.write_handle import WriteHandle
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import InvalidArgumentError, LedgerClosedError
from bk_spark.protocol.ledger.adv_order import EntryOrder, EntryRun
from bk_spark.protocol.ledger.writer import CLOSED_TEXT
from bk_spark.protocol.machine import TimerFired
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata


class AdvWriteHandle(WrappedHandle[WriteHandle]):
    """Appends entries to one ledger, with ids that the caller chooses. For one event loop. Several tasks may append at
    once.

    The ids are 0, 1, 2 and so on, in any order. Entries are sent in the order of their ids. An early entry waits here,
    not on the bookies, for all entries with lower ids. If there is no room to wait within ``entry_gap_timeout_ms``, the
    call raises EntryGapError.
    """

    def __init__(self, handle: WriteHandle, config: ClientConfig) -> None:
        super().__init__(handle)
        self._order = EntryOrder(
            handle.ledger_id, config.max_unanswered_entries, config.max_pending_bytes, config.entry_gap_timeout_ms
        )
        self._runner = AsyncRunner[Never, TimerFired, Never](
            self._order, assert_never, what=f"order of ledger {handle.ledger_id}", on_progress=handle.waiters.wake
        )
        self._sending = asyncio.Lock()
        self._closing = False

    @property
    def waiting_entries(self) -> int:
        """The number of appended entries that wait for lower ids."""
        return self._order.waiting_entries

    async def append(self, entry_id: int, payload: Buffer) -> None:
        """Append one entry.

        Parameters
        ----------
        entry_id
            The entry's id, from 0 on.
        payload
            The bytes of the entry.

        Raises
        ------
        DuplicateEntryError
            If the id was used before.
        EntryGapError
            If there is no room to wait for lower ids, and nobody appends these within ``entry_gap_timeout_ms``.
        InvalidArgumentError
            If the entry is larger than a bookie accepts.
        LedgerFencedError
            If another client has recovered the ledger.
        """
        await self.append_many([entry_id], Payloads.of([payload]))

    async def append_many(
        self, entry_ids: Sequence[int] | npt.NDArray[np.int64], payloads: Payloads | Sequence[Buffer]
    ) -> None:
        """Append entries. If an argument is wrong, no entry is appended.

        Parameters
        ----------
        entry_ids
            The entries' ids, from 0 on, in any order.
        payloads
            The bytes of each entry.

        Raises
        ------
        DuplicateEntryError
            If an id was used before.
        EntryGapError
            If there is no room to wait for lower ids, and nobody appends these within ``entry_gap_timeout_ms``.
        InvalidArgumentError
            If an entry is larger than a bookie accepts.
        LedgerFencedError
            If another client has recovered the ledger.
        """
        self._check_open()
        payloads = payloads if isinstance(payloads, Payloads) else Payloads.of(payloads)
        self._handle.payload_limit.check_all(payloads.offsets)
        runs = self._order.runs_of(np.asarray(entry_ids, np.int64), payloads)
        await self._wait_for_room(runs)
        self._order.put(runs)
        self._runner.run()
        await self._send_ready()

    @documented_as(WriteHandle.flush)
    async def flush(self) -> int:
        while self._order.waiting_entries:
            await self._wait_for_progress("flush")
            await self._send_ready()
        return await self._handle.flush()

    @documented_as(WriteHandle.force)
    async def force(self) -> int:
        self._check_open()
        await self.flush()
        return await self._handle.force()

    @documented_as(WriteHandle.wait_confirmed)
    async def wait_confirmed(self, entry_id: int) -> None:
        if entry_id >= 0 and entry_id not in self._order:
            raise InvalidArgumentError(f"entry {entry_id} was not appended", ledger_id=self.ledger_id)
        await self._send_ready()
        await self._handle.wait_for(entry_id)

    @documented_as(WriteHandle.close)
    async def close(self) -> LedgerMetadata:
        if not self._closing and self._handle.error is None:
            await self._send_ready()
            if self._order.gap is not None:
                raise self._order.gap_error("close")
            self._closing = True
        return await self._handle.close()

    @documented_as(WriteHandle.abandon)
    async def abandon(self) -> None:
        self._closing = True
        await self._handle.abandon()

    def _check_open(self) -> None:
        self._handle.machine.check_open()
        if self._closing:
            raise LedgerClosedError(CLOSED_TEXT, ledger_id=self.ledger_id)

    async def _wait_for_room(self, runs: list[EntryRun]) -> None:
        while not self._order.has_room(runs):
            await self._wait_for_progress(f"no room for entry {runs[0].first}")
            self._check_open()

    async def _wait_for_progress(self, what: str) -> None:
        """Wait until something was sent. Raises EntryGapError if the next entry does not come in time."""
        wait_id = self._order.begin_wait(what)
        self._runner.run()
        try:
            while self._order.waits(wait_id):
                self._handle.raise_error()
                await self._handle.waiters.woken()
        finally:
            self._order.end_wait(wait_id)
            self._runner.run()
        # The ready entries are being sent. This may take longer, but it ends.
        await self._send_ready()

    async def _send_ready(self) -> None:
        """Send the entries that are in order. If interrupted, the rest stays for the next call."""
        async with self._sending:
            while (run := self._order.ready()) is not None:
                try:
                    await self._handle.append_many(run.payloads)
                finally:
                    self._order.left(self._handle.last_add_pushed)
