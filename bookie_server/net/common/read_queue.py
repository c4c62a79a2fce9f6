"""The reads of one connection that wait, in order, and its long polls, which wait beside them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from bookie_server.net.common.limits import REQUEST_BYTES, NetConfig
from bookie_server.net.common.load import Load
from bookie_server.net.common.lost_connection import ignore_change, log_failure

#: Memory of a read that waits.
_READ_BYTES: Final = 48
Job = Callable[[], Awaitable[None]]


class ReadQueue:
    """Belongs to the event loop. A read counts in ``load`` until it is answered or the connection is lost.

    ``wait_taken()`` waits while the peer does not take its answers. ``changed()`` is called when the number of waiting
    reads has changed, ``failed()`` while an unexpected exception of a read is being handled.
    """

    def __init__(
        self,
        load: Load,
        config: NetConfig,
        wait_taken: Callable[[], Awaitable[None]],
        changed: Callable[[], None],
        failed: Callable[[], None],
    ) -> None:
        self._load = load
        self._config = config
        self._wait_taken = wait_taken
        self._changed, self._failed = changed, failed
        self._jobs: deque[tuple[int, Job]] = deque()
        self._urgent_jobs: deque[tuple[int, Job]] = deque()
        self._waiting = self._waiting_bytes = 0
        #: Unanswered reads of the job that is running.
        self._unanswered = 0
        self._reader: asyncio.Task[None] | None = None
        self._polls: set[asyncio.Task[None]] = set()
        self._cancelled = False

    @property
    def busy(self) -> bool:
        """Whether earlier reads wait."""
        return self._reader is not None

    @property
    def too_many(self) -> bool:
        """Whether so many wait that the socket must not be read."""
        most = self._config.max_pending_reads
        return (most > 0 and 2 * self._waiting > most) or self._waiting_bytes > self._config.connection_reads_bytes

    @property
    def few(self) -> bool:
        """Whether so few wait that the socket may be read again."""
        most = self._config.max_pending_reads
        return (
            most == 0 or 4 * self._waiting <= most
        ) and 2 * self._waiting_bytes <= self._config.connection_reads_bytes

    def allowed(self, count: int) -> int:
        """How many of ``count`` reads may wait beside those that do already. The others must be refused."""
        most = self._config.max_pending_reads
        allowed = count if not most else max(0, min(count, most - self._waiting))
        if self._load.reads_bytes + REQUEST_BYTES + _READ_BYTES * allowed > self._config.max_waiting_reads_bytes:
            allowed = 0
        self._load.rejected_reads += count - allowed
        return allowed

    def add(self, count: int, job: Job, *, urgent: bool = False) -> None:
        """Run ``job``, which answers ``count`` reads, after earlier jobs. Urgent jobs run before all others, in their
        order of arrival: a recovery reads ahead and waits for its oldest read."""
        if self._cancelled:
            return
        (self._urgent_jobs if urgent else self._jobs).append((count, job))
        self._change(count, REQUEST_BYTES + _READ_BYTES * count)
        if self._reader is None:
            self._reader = asyncio.get_running_loop().create_task(self._run())

    def answered(self, count: int) -> None:
        """``count`` reads of the job that is running were answered. The job ends when all are."""
        self._unanswered -= count
        self._change(-count, -_READ_BYTES * count)

    @property
    def may_poll(self) -> bool:
        """Whether one more long poll may wait."""
        return len(self._polls) < self._config.max_polls and self._load.polls < self._config.max_polls_in_total

    def poll(self, job: Job) -> None:
        """Run ``job`` beside everything else, because it may wait for a long time."""
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
        # The callbacks know the connection. Without them it is freed at once, not by a later search for cycles.
        self._changed, self._failed = ignore_change, log_failure

    async def _run(self) -> None:
        try:
            while jobs := self._urgent_jobs or self._jobs:
                self._unanswered, job = jobs.popleft()
                await job()
                self._change(-self._unanswered, -REQUEST_BYTES - _READ_BYTES * self._unanswered)
                await self._wait_taken()
        except Exception:
            self._failed()
        finally:
            self._reader = None

    async def _run_poll(self, job: Job) -> None:
        try:
            await job()
        except Exception:
            self._failed()

    def _poll_ended(self, task: asyncio.Task[None]) -> None:
        self._polls.discard(task)
        self._load.polls -= 1

    def _change(self, count: int, size_bytes: int) -> None:
        if self._cancelled:
            return  # cancel() has already subtracted all of them
        self._waiting += count
        self._waiting_bytes += size_bytes
        self._load.change_reads(count, size_bytes)
        self._changed()
