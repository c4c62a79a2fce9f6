"""Fences, a few in each turn of the event loop.

A fence of an unknown ledger creates the ledger: a descriptor, journal records, an index file. The number of fences that
begin in a turn is bounded, and so is the number on their way to the journal. While too many new ledgers wait for their
index files, no fence begins. The others wait, in order within a connection, and the connections take turns. A fence
takes effect when it begins. It is answered once it is durable.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from functools import partial
from typing import Final

from bk_spark.protocol.codes import Code
from bookie_server.bookie import Bookie

_PER_TURN: Final = 4
_UNDER_WAY: Final = 256
#: How often to check whether index files were written.
_LOOK_INTERVAL_S: Final = 0.02


class Fences:
    """Of all connections. Belongs to the event loop."""

    def __init__(self, bookie: Bookie) -> None:
        self._bookie = bookie
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Hashable, deque[tuple[int, bytes, asyncio.Future[Code]]]] = {}
        self._begun = self._under_way = 0
        self._look: asyncio.Handle | None = None

    def fence(self, connection: Hashable, ledger_id: int, master_key: bytes) -> asyncio.Future[Code]:
        """As :meth:`Bookie.fence`, now or soon."""
        if not self._waiting and self._may_begin:
            return self._begin(ledger_id, master_key)
        outcome: asyncio.Future[Code] = self._loop.create_future()
        self._waiting.setdefault(connection, deque()).append((ledger_id, master_key, outcome))
        self._look_soon()
        return outcome

    def forget(self, connection: Hashable) -> None:
        """The connection is gone. Its waiting fences do not begin."""
        self._waiting.pop(connection, None)

    @property
    def _may_begin(self) -> bool:
        return self._begun < _PER_TURN and self._under_way < _UNDER_WAY and not self._bookie.new_ledgers_wait

    def _begin(self, ledger_id: int, master_key: bytes) -> asyncio.Future[Code]:
        outcome = self._bookie.fence(ledger_id, master_key)
        self._begun += 1
        self._look_soon()
        if not outcome.done():
            self._under_way += 1
            outcome.add_done_callback(self._ended)
        return outcome

    def _ended(self, _: asyncio.Future[Code]) -> None:
        self._under_way -= 1
        if self._waiting:
            self._look_soon()

    def _look_soon(self) -> None:
        if self._look is None:
            self._look = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Begin some of the waiting fences."""
        self._look = None
        self._begun = 0
        while self._waiting and self._may_begin:
            connection = next(iter(self._waiting))
            queue = self._waiting.pop(connection)
            ledger_id, master_key, outcome = queue.popleft()
            if queue:
                self._waiting[connection] = queue  # the others are first
            if not outcome.done():
                self._begin(ledger_id, master_key).add_done_callback(partial(_pass_on, outcome))
        if self._waiting and self._look is None and self._under_way < _UNDER_WAY:
            self._look = self._loop.call_later(_LOOK_INTERVAL_S, self._turn)


def _pass_on(outcome: asyncio.Future[Code], fence: asyncio.Future[Code]) -> None:
    if not outcome.done() and not fence.cancelled():
        outcome.set_result(fence.result())
