"""What waits to be read for one connection: reads in order, and beside them long polls."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from bookie_server.net.common.limits import REQUEST_BYTES

if TYPE_CHECKING:
    from bookie_server.net.native.connection import NativeConnection

_LOG: Final = logging.getLogger(__name__)
#: A read that waits costs so much.
_READ_BYTES: Final = 48
Job = Callable[[], Awaitable[None]]


class ReadQueue:
    """Belongs to the event loop. Counts in the load of the server until it is answered or the connection lost."""

    def __init__(self, connection: NativeConnection) -> None:
        self._connection = connection
        self._server = connection.server
        self._load = connection.server.load
        self._config = connection.server.config
        self._jobs: deque[tuple[int, Job]] = deque()
        self._urgent_jobs: deque[tuple[int, Job]] = deque()
        self._waiting = self._waiting_bytes = 0
        self._reader: asyncio.Task[None] | None = None
        self._polls: set[asyncio.Task[None]] = set()
        self._cancelled = False

    @property
    def busy(self) -> bool:
        """Whether reads wait that came before."""
        return self._reader is not None

    @property
    def too_many(self) -> bool:
        """Whether no more shall be read from the socket."""
        most = self._config.max_pending_reads
        return (most > 0 and 2 * self._waiting > most) or self._waiting_bytes > self._config.connection_reads_bytes

    @property
    def few(self) -> bool:
        """Whether there is room for what another receive may bring."""
        most = self._config.max_pending_reads
        return (
            most == 0 or 4 * self._waiting <= most
        ) and 2 * self._waiting_bytes <= self._config.connection_reads_bytes

    def allowed(self, count: int) -> int:
        """How many of ``count`` reads may wait beside those that do; the rest is to be refused."""
        most = self._config.max_pending_reads
        allowed = count if not most else max(0, min(count, most - self._waiting))
        if self._load.reads_bytes + REQUEST_BYTES + _READ_BYTES * allowed > self._config.max_waiting_reads_bytes:
            allowed = 0
        self._server.rejected_reads += count - allowed
        return allowed

    def add(self, count: int, job: Job, *, urgent: bool = False) -> None:
        """Run ``job``, which answers ``count`` reads, after those that came before. Urgent jobs run before all others,
        among themselves in the order in which they came: a recovery reads ahead and waits for its oldest read."""
        if self._cancelled:
            return
        (self._urgent_jobs if urgent else self._jobs).append((count, job))
        self._change(count, REQUEST_BYTES + _READ_BYTES * count)
        if self._reader is None:
            self._reader = asyncio.get_running_loop().create_task(self._run())

    @property
    def may_poll(self) -> bool:
        """Whether one more long poll may wait."""
        return len(self._polls) < self._config.max_polls and self._load.polls < self._config.max_polls_in_total

    def poll(self, job: Job) -> None:
        """Run ``job`` beside everything else: it may wait for long."""
        if self._cancelled:
            return
        task = asyncio.get_running_loop().create_task(self._run_poll(job))
        self._polls.add(task)
        self._load.polls += 1
        task.add_done_callback(self._poll_ended)

    def cancel(self) -> None:
        """The connection is lost."""
        self._cancelled = True
        self._jobs.clear()
        self._urgent_jobs.clear()
        self._load.change_reads(-self._waiting, -self._waiting_bytes)
        self._waiting = self._waiting_bytes = 0
        if self._reader is not None:
            self._reader.cancel()
        for poll in self._polls:
            poll.cancel()
        del self._connection  # which has this object: together they would wait for a collection

    async def _run(self) -> None:
        try:
            while jobs := self._urgent_jobs or self._jobs:
                count, job = jobs.popleft()
                await job()
                self._change(-count, -REQUEST_BYTES - _READ_BYTES * count)
                await self._connection.answers.wait_taken()
        except Exception:
            self._failed()
        finally:
            self._reader = None

    async def _run_poll(self, job: Job) -> None:
        try:
            await job()
        except Exception:
            self._failed()

    def _failed(self) -> None:
        if self._cancelled:
            _LOG.exception("a read of a connection that is lost failed")
        else:
            self._connection.close_failed()

    def _poll_ended(self, task: asyncio.Task[None]) -> None:
        self._polls.discard(task)
        self._load.polls -= 1

    def _change(self, count: int, size_bytes: int) -> None:
        if self._cancelled:
            return  # all of them were taken out of the sum
        self._waiting += count
        self._waiting_bytes += size_bytes
        self._load.change_reads(count, size_bytes)
        self._connection.reads_changed()
