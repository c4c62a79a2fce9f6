"""Which bookies the check of replicas asks for lists of entries, and how many lists it asks for at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

from bk_spark.protocol.replication.entry_lists import ListsFound
from bk_spark.protocol.wire.entry_availability import EntryAvailability

#: Lists that a bookie is asked for at once. Ours makes one at a time, so more would only wait there.
LISTS_AT_ONCE: Final = 2


class ListTurns:
    """Lets requests for lists wait for their turn at each bookie. Event loop only.

    A bookie that never answered such a request in this check is not asked again: it may not know the request. One that
    has given a list is only slow when it does not answer, and is asked again.
    """

    def __init__(self) -> None:
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._giving: set[str] = set()
        self._silent: set[str] = set()

    def begin_check(self) -> None:
        """Ask every bookie again."""
        self._turns, self._giving, self._silent = {}, set(), set()

    async def lists_of(
        self, bookies: Collection[str], ask: Callable[[str], Awaitable[ListsFound]]
    ) -> Mapping[str, EntryAvailability]:
        """Return the lists by bookie. ``ask`` asks one bookie, and is called when its turn has come."""
        lists: dict[str, EntryAvailability] = {}

        async def ask_in_turn(bookie_id: str) -> None:
            async with self._turns.setdefault(bookie_id, asyncio.Semaphore(LISTS_AT_ONCE)):
                if bookie_id in self._silent:
                    return
                found = await ask(bookie_id)
                lists.update(found.lists)
                self._giving |= found.lists.keys()
                self._silent |= found.unanswered
                self._silent -= self._giving

        async with asyncio.TaskGroup() as group:
            for bookie_id in bookies:
                group.create_task(ask_in_turn(bookie_id))
        return lists
