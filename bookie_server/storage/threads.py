"""Awaiting work in a thread from the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from bookie_server.storage.disk.files import SyncFailedError

_T = TypeVar("_T")


async def in_thread(executor: Executor, function: Callable[..., _T], *arguments: object) -> _T:
    """Call ``function`` in a thread of ``executor``.

    A cancelled caller waits until the call ends, so that a lock it holds covers the whole call and a failed sync does
    not go unnoticed. That error then replaces the cancellation.
    """
    call = asyncio.get_running_loop().run_in_executor(executor, function, *arguments)
    cancellation: asyncio.CancelledError | None = None
    while not call.done():
        try:
            await asyncio.wait((call,))
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None and not isinstance(call.exception(), SyncFailedError):
        raise cancellation
    return call.result()
