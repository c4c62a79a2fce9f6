"""Fences, a few in each turn of the event loop.

A fence of an unknown ledger creates the ledger: a descriptor, journal records, an index file. The number of fences that
begin in a turn is bounded, and so is the number on their way to the journal. While too many new ledgers wait for their
index files, and for two milliseconds after some were created, only fences of ledgers in memory begin. The others wait,
in order within a connection, and the connections take turns. A fence takes effect when it begins. It is answered once
it is durable. If there are many, the journal writes them together, and in between it is free for adds.

Before a fence of a ledger that is not in memory begins, a thread searches for the ledger's index file. The search may
wait for a flush that creates files in the same directory.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from functools import partial
from itertools import islice
from typing import Final, Protocol

from bk_spark.protocol.codes import Code
from bookie_server.bookie import Bookie
from bookie_server.net.common.fair_slots import Share

_LOG: Final = logging.getLogger(__name__)
_PER_TURN: Final = 4
_UNDER_WAY: Final = 256
#: With so many on their way, and with any that wait, further ones are not urgent. Otherwise the journal would always be
#: writing fences, and each add would wait for a group of them.
_URGENT: Final = 8
#: If fences still wait after a turn in which some created ledgers, they wait for so long. Otherwise they would take
#: most of the event loop's time, until so many ledgers are new that they wait for the flush.
_PAUSE_S: Final = 0.002
#: Ledgers whose index files are searched together.
_LOOKED_UP_AT_ONCE: Final = 64
#: How often to check whether index files were written.
_LOOK_INTERVAL_S: Final = 0.02


class Asker(Protocol):
    """A connection, as seen from here."""

    #: The time it was served lately, in µs.
    time_share: Share


class Fences:
    """Fences that all connections ask for. Belongs to the event loop."""

    def __init__(self, bookie: Bookie) -> None:
        self._bookie = bookie
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Asker, deque[tuple[int, bytes, asyncio.Future[Code]]]] = {}
        self._begun = self._under_way = 0
        self._look: asyncio.Handle | None = None
        #: Ledgers whose index files were searched, and the number of flushes then. A later flush may have created some.
        self._looked_up: frozenset[int] = frozenset()
        self._looked_up_at = 0
        self._looking_up: asyncio.Task[None] | None = None
        #: Until when fences that wait do not begin, by the event loop's clock.
        self._paused_until_s = 0.0

    def fence(self, asker: Asker, ledger_id: int, master_key: bytes) -> asyncio.Future[Code]:
        """Fence a ledger, as :meth:`Bookie.fence` does, now or soon.

        Who recovers a ledger fences it with each read. Only the first writes to the journal, and counts.
        """
        before = self._bookie.fenced_before(ledger_id, master_key)
        if before is not None:
            outcome: asyncio.Future[Code] = self._loop.create_future()
            outcome.set_result(before)
            return outcome
        # Whoever waits to create a ledger is not overtaken: it needs something else.
        creators_wait = self._bookie.new_ledgers_wait or self._loop.time() < self._paused_until_s
        is_next = not self._waiting or (asker not in self._waiting and creators_wait)
        if is_next and self._may_begin and self._bookie.is_in_memory(ledger_id):
            return self._begin(asker, ledger_id, master_key)
        outcome = self._loop.create_future()
        self._waiting.setdefault(asker, deque()).append((ledger_id, master_key, outcome))
        self._look_soon()
        return outcome

    def forget(self, asker: Asker) -> None:
        """The connection is lost. Its waiting fences do not begin."""
        self._waiting.pop(asker, None)

    @property
    def _may_begin(self) -> bool:
        return self._begun < _PER_TURN and self._under_way < _UNDER_WAY

    def _begin(self, asker: Asker, ledger_id: int, master_key: bytes) -> asyncio.Future[Code]:
        since = time.thread_time()
        is_urgent = not self._waiting and self._under_way < _URGENT
        outcome = self._bookie.fence(ledger_id, master_key, urgent=is_urgent)
        asker.time_share.serve(int((time.thread_time() - since) * 1e6), self._loop.time())
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
        self._begun = unready = 0
        pause_s, new_ledgers = self._paused_until_s - self._loop.time(), self._bookie.new_ledgers
        if pause_s > 0:
            self._look = self._loop.call_later(pause_s, self._turn)
            return
        while unready < len(self._waiting) and self._may_begin:
            asker = next(iter(self._waiting))
            queue = self._waiting.pop(asker)
            ledger_id, master_key, outcome = queue[0]
            is_ready = self._is_ready(ledger_id)
            unready = 0 if is_ready else unready + 1
            if is_ready:
                queue.popleft()
            if queue:
                self._waiting[asker] = queue  # the others are first
            if is_ready and not outcome.done():
                self._begin(asker, ledger_id, master_key).add_done_callback(partial(_pass_on, outcome))
        if self._waiting and self._bookie.new_ledgers != new_ledgers:
            self._paused_until_s = self._loop.time() + _PAUSE_S
        if unready and not self._bookie.new_ledgers_wait:
            if self._looking_up is None:
                self._looking_up = self._loop.create_task(self._look_up())
        elif self._waiting and self._look is None and self._under_way < _UNDER_WAY:
            self._look = self._loop.call_later(_LOOK_INTERVAL_S, self._turn)

    def _is_ready(self, ledger_id: int) -> bool:
        if self._bookie.is_in_memory(ledger_id):
            return True
        looked_up = ledger_id in self._looked_up and self._looked_up_at == self._bookie.flushes
        return looked_up and not self._bookie.new_ledgers_wait

    async def _look_up(self) -> None:
        """Search for the index files of the ledgers that are next."""
        each, flushes = -(-_LOOKED_UP_AT_ONCE // max(1, len(self._waiting))), self._bookie.flushes
        queues = islice(self._waiting.values(), _LOOKED_UP_AT_ONCE)
        ledger_ids = frozenset(ledger_id for queue in queues for ledger_id, _, _ in islice(queue, each))
        try:
            await self._bookie.look_up(ledger_ids)
        except Exception:
            _LOG.exception("index files could not be searched; fences will search for them one by one")
        finally:
            self._looking_up = None
        self._looked_up, self._looked_up_at = ledger_ids, flushes
        self._look_soon()


def is_durable(fence: asyncio.Future[Code]) -> bool:
    """Whether the ledger was fenced before: who recovers it reads one entry after the other, and fences it with each.
    Then entries in memory are answered at once."""
    return fence.done() and fence.result() is Code.OK


def _pass_on(outcome: asyncio.Future[Code], fence: asyncio.Future[Code]) -> None:
    if not outcome.done() and not fence.cancelled():
        outcome.set_result(fence.result())
