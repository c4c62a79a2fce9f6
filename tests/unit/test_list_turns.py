"""How the check of replicas asks bookies for lists of entries (bookie_server/replication/auditing/list_turns.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from bk_spark.protocol.replication.entry_lists import ListsFound
from bk_spark.protocol.wire.entry_availability import decode_availability, encode_availability
from bookie_server.replication.auditing.list_turns import LISTS_AT_ONCE, ListTurns

pytestmark = pytest.mark.unit

LIST = decode_availability(encode_availability(np.array([1], np.int64)))
LEDGERS = 20


def given(bookie_id: str) -> ListsFound:
    return ListsFound({bookie_id: LIST}, frozenset())


def silence(bookie_id: str) -> ListsFound:
    return ListsFound({}, frozenset({bookie_id}))


def lists_of_all(turns: ListTurns, ask: Callable[[str], Awaitable[ListsFound]]) -> list[set[str]]:
    """The bookies that gave a list, for each of some ledgers that are checked at once."""

    async def run() -> list[set[str]]:
        found = await asyncio.gather(*(turns.lists_of(["b1", "b2"], ask) for _ in range(LEDGERS)))
        return [set(each) for each in found]

    return asyncio.run(run())


def test_each_bookie_is_asked_for_a_few_lists_at_once() -> None:
    asked: dict[str, int] = {"b1": 0, "b2": 0}
    most: list[int] = []

    async def ask(bookie_id: str) -> ListsFound:
        asked[bookie_id] += 1
        most.append(asked[bookie_id])
        await asyncio.sleep(0)
        asked[bookie_id] -= 1
        return given(bookie_id)

    assert lists_of_all(ListTurns(), ask) == [{"b1", "b2"}] * LEDGERS
    assert len(most) == 2 * LEDGERS
    assert max(most) == LISTS_AT_ONCE


def test_a_bookie_that_never_answers_is_not_asked_again_in_this_check() -> None:
    asked: list[str] = []

    async def ask(bookie_id: str) -> ListsFound:
        asked.append(bookie_id)
        await asyncio.sleep(0)
        return silence(bookie_id) if bookie_id == "b1" else given(bookie_id)

    turns = ListTurns()
    assert lists_of_all(turns, ask) == [{"b2"}] * LEDGERS
    assert asked.count("b1") == LISTS_AT_ONCE
    turns.begin_check()
    lists_of_all(turns, ask)
    assert asked.count("b1") == 2 * LISTS_AT_ONCE


@pytest.mark.parametrize("slow", [0, 1, 5])
def test_one_slow_list_is_only_one_list(slow: int) -> None:
    count = 0

    async def ask(bookie_id: str) -> ListsFound:
        nonlocal count
        number, count = count, count + (bookie_id == "b1")
        await asyncio.sleep(0)
        return silence(bookie_id) if (bookie_id, number) == ("b1", slow) else given(bookie_id)

    found = lists_of_all(ListTurns(), ask)
    assert sum("b1" in each for each in found) == LEDGERS - 1
