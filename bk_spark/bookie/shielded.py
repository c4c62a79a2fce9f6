"""Waiting for work that goes on if its waiter is cancelled."""

from __future__ import annotations

import asyncio
from typing import TypeVar

_T = TypeVar("_T")


async def shielded(work: asyncio.Future[_T]) -> _T:
    """Wait for ``work``, which goes on if this task is cancelled. Raises what it raises.

    After a waiter of :func:`asyncio.shield` was cancelled, Python 3.14 logs what the work raises as an error of the
    loop, though others may wait for it, or its end is expected.
    """
    await asyncio.wait((work,))
    return work.result()
