"""Tasks that a handle starts and nobody awaits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from bk_spark.protocol.errors import BookKeeperError

_LOG = logging.getLogger(__name__)


class TaskSet:
    """Runs coroutines until they end or are cancelled together. ``what`` names them in the log.

    ``on_error`` gets what one of them raised: without it, whoever waits for their effect would wait for
    ever. An error that is not of ours comes wrapped.
    """

    def __init__(self, what: str, on_error: Callable[[BookKeeperError], None]) -> None:
        self._what = what
        self._on_error = on_error
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def settle(self) -> None:
        """Wait until none is left, counting those that they start."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def cancel(self) -> None:
        """Cancel all, and see them end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _LOG.error("%s: unexpected error", self._what, exc_info=error)
            self._on_error(error if isinstance(error, BookKeeperError) else BookKeeperError(repr(error)))
