"""Counts what all connections together wait for, and decides when that is too much."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bookie_server.net.common.fair_slots import Room
from bookie_server.net.common.limits import NetConfig


class Load:
    """Counters of all connections.

    Parameters
    ----------
    full_changed
        Called when sockets must not be read any more, and when they may be read again. ``full`` says which.
    room_gone
        Called soon after reads begin to wait for peers to read their answers.
    excess_bytes
        Returns the bytes of answered entries in memory above their limit.
    """

    def __init__(
        self,
        config: NetConfig,
        full_changed: Callable[[], None],
        room_gone: Callable[[], None],
        excess_bytes: Callable[[], int],
    ) -> None:
        self._config = config
        self._excess_bytes = excess_bytes
        self._full_changed = full_changed
        self._room_gone = room_gone
        self.full = False
        #: Set while not full.
        self.may_receive = asyncio.Event()
        self.may_receive.set()
        self.adds = self.adds_bytes = 0
        self.reads = self.reads_bytes = 0
        self.polls = 0
        #: Requests that were answered with TOO_MANY_REQUESTS.
        self.rejected_adds = self.rejected_reads = 0
        #: Answers that peers have not read.
        self.unsent_bytes = 0
        #: Set while answers may be produced. The second one: while small answers may.
        self.has_room = Room()
        self.has_room_for_little = Room()
        self._no_adds = asyncio.Event()
        self._no_adds.set()

    def change_adds(self, count: int, size_bytes: int) -> None:
        """Adds, and other requests that wait for a journal, have arrived. Negative numbers: they were answered."""
        self.adds += count
        self.adds_bytes += size_bytes
        if self.adds_bytes:
            self._no_adds.clear()
        else:
            self._no_adds.set()
        self.look()

    def change_reads(self, count: int, size_bytes: int) -> None:
        """Reads begin to wait. Negative numbers: they no longer wait."""
        self.reads += count
        self.reads_bytes += size_bytes
        self.look()

    def change_unsent(self, size_bytes: int) -> None:
        """So many more bytes of answers wait for peers to read them. Negative numbers: they were sent or dropped."""
        self.unsent_bytes += size_bytes
        unsent_bytes, most_bytes = self.unsent_bytes, self._config.max_unsent_bytes
        if unsent_bytes >= most_bytes:
            if self.has_room.is_set():
                self.has_room.clear()
                asyncio.get_running_loop().call_soon(self._room_gone)
        elif unsent_bytes < most_bytes * 3 // 4:
            self.has_room.set()
        if unsent_bytes >= most_bytes * 3 // 2:
            self.has_room_for_little.clear()
        elif unsent_bytes < most_bytes * 5 // 4:
            self.has_room_for_little.set()
        self.look()

    @property
    def pressing(self) -> bool:
        """Whether peers that do not read their answers delay others."""
        config = self._config
        return (
            self.full
            or not self.has_room.is_set()
            or self.unsent_bytes * 2 > config.max_unsent_bytes
            or self.reads_bytes * 2 > config.max_waiting_reads_bytes
        )

    def round_bytes(self, wanted_bytes: int, least_bytes: int) -> int:
        """How many of ``wanted_bytes`` to read in one round: the more unread answers, the fewer."""
        room = (self._config.max_unsent_bytes - self.unsent_bytes) // self._config.read_slots
        return min(wanted_bytes, max(least_bytes, room))

    async def adds_answered(self) -> None:
        """Wait until no request waits for a journal."""
        await self._no_adds.wait()

    def look(self) -> None:
        """Decide whether sockets may be read. Call this also when ``excess_bytes`` has decreased."""
        config, adds_bytes = self._config, self.adds_bytes + self._excess_bytes()
        if not self.full:
            full = (
                adds_bytes > config.adds_high_bytes
                or 0 < config.max_adds_in_progress <= self.adds
                or 0 < config.max_reads_in_progress <= self.reads
                or self.unsent_bytes > 2 * config.max_unsent_bytes
            )
        else:
            full = (
                adds_bytes >= config.adds_low_bytes
                or 0 < config.max_adds_in_progress < 2 * self.adds
                or 0 < config.max_reads_in_progress < 2 * self.reads
                or self.unsent_bytes > config.max_unsent_bytes
            )
        if full is not self.full:
            self.full = full
            if full:
                self.may_receive.clear()
            else:
                self.may_receive.set()
            self._full_changed()
