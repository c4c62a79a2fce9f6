"""Callers that wait for a writer."""

from __future__ import annotations

import asyncio
import heapq
import itertools

from bk_spark.protocol.errors import BookKeeperError


class Waiters:
    """Futures of callers that wait for the next change, or for an entry to be confirmed. One event loop."""

    def __init__(self) -> None:
        self._any: list[asyncio.Future[None]] = []
        #: (entry id, number, future), the lowest entry first. Thousands may wait, but few are ready at once.
        self._by_entry: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    async def woken(self) -> None:
        """Wait for :meth:`wake`. The caller then checks its condition again."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._any.append(future)
        await future

    async def reached(self, entry_id: int) -> None:
        """Wait for :meth:`reach` of ``entry_id`` or a later one. Raises the error given to :meth:`fail`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._by_entry, (entry_id, next(self._numbers), future))
        await future

    def wake(self) -> None:
        """Let all callers of :meth:`woken` check their conditions."""
        futures, self._any = self._any, []
        for future in futures:
            if not future.done():
                future.set_result(None)

    def reach(self, last_entry_id: int) -> None:
        """Let the callers of :meth:`reached` go on that wait for ``last_entry_id`` or a lower id."""
        while self._by_entry and self._by_entry[0][0] <= last_entry_id:
            future = heapq.heappop(self._by_entry)[2]
            if not future.done():
                future.set_result(None)

    def fail(self, error: BookKeeperError) -> None:
        """Raise ``error`` at all callers of :meth:`reached`. Those of :meth:`woken` are not affected."""
        waiting, self._by_entry = self._by_entry, []
        for _, _, future in waiting:
            if not future.done():
                future.set_exception(error)
