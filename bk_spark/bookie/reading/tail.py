"""Runs :class:`bk_spark.protocol.ledger.reading.tail.LedgerTail`: following a ledger that is being written."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any

from bk_spark.bookie.reading.performer import Performer, blocks_of, read_lac
from bk_spark.bookie.reading.read_access import ReadAccess
from bk_spark.bookie.runners import AsyncRunner
from bk_spark.protocol.entries.entry import EntryBlock
from bk_spark.protocol.errors import BookKeeperError, EntryUnknownError
from bk_spark.protocol.ledger.reading.ledger_view import LedgerKey, LedgerView
from bk_spark.protocol.ledger.reading.read_actions import (
    EntriesGiven,
    LacHeard,
    MetadataChanged,
    RangeFailed,
    RangeRead,
    ReadLac,
    ReadRange,
)
from bk_spark.protocol.ledger.reading.tail import LedgerTail
from bk_spark.protocol.machine import EndedBy
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata

_LOG = logging.getLogger(__name__)


class Tail:
    """Follows one ledger once."""

    def __init__(
        self, ledger: LedgerKey, view: LedgerView, first: int, max_wait_ms: int | None, access: ReadAccess
    ) -> None:
        self._ledger = ledger
        self._view = view
        self._access = access
        self._what = f"tail of ledger {ledger.ledger_id}"
        self._machine = LedgerTail(ledger, view, first, access.tail_settings(max_wait_ms), suspects=access.history)
        self._range: ReadRange | None = None
        self._progress = asyncio.Event()
        self._performer = Performer(ledger, access, self._on_change)
        self._runner: AsyncRunner[Any, Any, None] = AsyncRunner(
            self._machine, self._perform, what=self._what, on_progress=self._progress.set
        )

    async def blocks(self) -> AsyncGenerator[EntryBlock, None]:
        """See :meth:`bk_spark.bookie.reading.read_handle.ReadHandle.tail`."""
        runner = self._runner
        try:
            runner.run()
            while True:
                if self._range is not None:
                    read, self._range = self._range, None
                    async with aclosing(self._read(read)) as blocks:
                        async for block in blocks:
                            yield block
                    continue
                self._machine.wait()
                runner.run()
                end = self._machine.outcome
                if isinstance(end, EndedBy):
                    raise end.error
                if end is not None:
                    return
                self._progress.clear()
                if self._range is None:
                    await self._progress.wait()
        finally:
            self._performer.stop_watching()
            await runner.stop()

    async def _read(self, read: ReadRange) -> AsyncGenerator[EntryBlock, None]:
        runner = self._runner
        reader = self._access.range_reader(self._ledger, self._view, read.first, read.last)
        try:
            async with aclosing(blocks_of(reader, self._performer, self._what)) as blocks:
                async for block in blocks:
                    runner.handle(EntriesGiven(len(block), block.max_lac))
                    yield block
        except BookKeeperError as error:
            runner.handle(RangeFailed(error))
        else:
            runner.handle(RangeRead())

    def _perform(self, action: Any) -> Coroutine[Any, Any, Any] | None:
        match action:
            case ReadRange():
                self._range = action
                return None
            case ReadLac(metadata):
                return self._read_lac(metadata)
        return self._performer(action)

    async def _read_lac(self, metadata: LedgerMetadata) -> LacHeard:
        try:
            return LacHeard(await read_lac(self._ledger, metadata, self._access))
        except EntryUnknownError as error:
            _LOG.info("%s: %s; waiting for new entries anyway", self._what, error)
            return LacHeard(None)

    def _on_change(self) -> None:
        self._runner.handle(MetadataChanged())
