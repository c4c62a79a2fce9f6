"""Parts of a series of ranges, joined until they are large enough."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from bk_spark.bookie.reading.range_series import together
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import NoSuchLedgerError


async def parts_of(sizes: list[int], error: Exception | None = None) -> AsyncGenerator[Payloads, None]:
    for number, size in enumerate(sizes):
        yield Payloads.of([bytes([number]) * size])
    if error is not None:
        raise error


async def found_in(parts: AsyncGenerator[Payloads, None], found: list[list[bytes]]) -> None:
    async for part in together(parts, 800):
        found.append([bytes(one) for one in part])


def test_the_first_parts_are_smaller_than_later_ones() -> None:
    found: list[list[bytes]] = []
    asyncio.run(found_in(parts_of([100] * 40 + [900, 1]), found))
    assert [len(one) for one in found] == [1, 2, 4, 8, 8, 8, 8, 2, 1]
    assert [part[0] for one in found for part in one] == list(range(42))


def test_an_error_comes_after_all_entries_before_it() -> None:
    found: list[list[bytes]] = []
    with pytest.raises(NoSuchLedgerError):
        asyncio.run(found_in(parts_of([100, 100, 50], NoSuchLedgerError("gone", ledger_id=7)), found))
    assert found == [[bytes(100)], [b"\1" * 100, b"\2" * 50]]
    with pytest.raises(NoSuchLedgerError):
        asyncio.run(found_in(parts_of([], NoSuchLedgerError("gone", ledger_id=7)), []))
