"""Recovering many ledgers: how many at once, in what order, and within which time."""

from __future__ import annotations

import asyncio

import pytest

from bk_spark.bookie.recover_many import recover_many
from bk_spark.protocol.errors import BookKeeperError, EntryUnknownError, NoSuchLedgerError
from tests.support import patient_loop

pytestmark = pytest.mark.unit


def recovered(
    ledger_ids: list[int],
    errors: dict[int, Exception] | None = None,
    *,
    hang: frozenset[int] = frozenset(),
    timeout_s: float = 60,
) -> tuple[tuple[dict[int, BookKeeperError], list[int]], list[int], int]:
    """The result with four at once, the ledgers in the order of their start, and how many were under way at once."""
    begun: list[int] = []
    under_way = most = 0

    async def recover(ledger_id: int) -> None:
        nonlocal under_way, most
        begun.append(ledger_id)
        under_way += 1
        most = max(most, under_way)
        try:
            await (asyncio.Event().wait() if ledger_id in hang else asyncio.sleep(0))
            if errors and ledger_id in errors:
                raise errors[ledger_id]
        finally:
            under_way -= 1

    async def run() -> tuple[dict[int, BookKeeperError], list[int]]:
        result = await recover_many(recover, ledger_ids, timeout_s=timeout_s, at_once=4)
        assert len(asyncio.all_tasks()) == 1
        return result

    return patient_loop.run(run()), begun, most


def test_each_ledger_once_in_order_and_several_at_once() -> None:
    assert recovered([*range(10), 3, 3]) == (({}, []), [*range(10)], 4)
    assert recovered([]) == (({}, []), [], 0)


def test_failures_are_told_and_a_ledger_that_is_gone_is_done() -> None:
    error = EntryUnknownError("no bookie answers")
    result, begun, _ = recovered([1, 2, 3], {1: NoSuchLedgerError("gone"), 2: error})
    assert result == ({2: error}, [])
    assert begun == [1, 2, 3]


def test_ledgers_that_hang_are_left_and_hold_up_no_others() -> None:
    result, begun, _ = recovered([*range(20)], hang=frozenset({0, 7, 8}), timeout_s=0.5)
    assert result == ({}, [0, 7, 8])
    assert begun == [*range(20)]


def test_another_error_ends_the_recovery() -> None:
    with pytest.raises(ZeroDivisionError):
        recovered([1, 2, 3], {2: ZeroDivisionError()})
