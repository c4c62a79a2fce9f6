"""Recovers many ledgers, several at the same time, within a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from bk_spark.protocol.errors import BookKeeperError, NoSuchLedgerError


async def recover_many(
    recover: Callable[[int], Awaitable[object]], ledger_ids: Sequence[int], *, timeout_s: float, at_once: int
) -> tuple[dict[int, BookKeeperError], list[int]]:
    """Return the ledgers that failed, with their errors, and those that were not done in time."""
    left = dict.fromkeys(ledger_ids)
    failed: dict[int, BookKeeperError] = {}
    waiting = iter(list(left))

    async def work() -> None:
        for ledger_id in waiting:
            try:
                await recover(ledger_id)
            except NoSuchLedgerError:
                pass
            except BookKeeperError as error:
                failed[ledger_id] = error
            del left[ledger_id]

    workers = [asyncio.create_task(work()) for _ in range(min(at_once, len(left)))]
    try:
        if workers:
            await asyncio.wait(workers, timeout=max(0.0, timeout_s))
    finally:
        for worker in workers:
            worker.cancel()
        ended = await asyncio.gather(*workers, return_exceptions=True)
    for end in ended:
        if isinstance(end, Exception):
            raise end
    return failed, list(left)
