"""When the storage flushes: at start, when the write cache is full, at the flush interval, and on request. Event loop
unless stated otherwise."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from bookie_server.storage.disk.files import SyncFailedError, may_pass
from bookie_server.storage.flush import Flusher

_LOG: Final = logging.getLogger(__name__)
#: For what share of the interval a flush may pause, and for how long at most.
_PAUSED: Final = 0.25
_MOST_PAUSED_S: Final = 2.5


class FlushLoop:
    """Runs the flushes of ``flusher`` and reports how they end.

    Parameters
    ----------
    flusher
        Writes the write cache to disk.
    interval_ms
        Time between two flushes. After a failure the next flush waits as long, even if one is requested.
    on_failure
        Called with an error after which written data may be lost.
    on_trouble
        Called with the reason when flushes begin to fail, and with None when one succeeds again.
    """

    def __init__(
        self,
        flusher: Flusher,
        interval_ms: int,
        on_failure: Callable[[Exception], None],
        on_trouble: Callable[[str | None], None],
    ) -> None:
        self._flusher = flusher
        self._interval_ms = interval_ms
        self._on_failure = on_failure
        self._on_trouble = on_trouble
        #: Why the last flush failed; None if it succeeded.
        self.trouble: str | None = None
        self._task: asyncio.Task[None] | None = None
        self._requested = asyncio.Event()
        #: Whether somebody waits for the next flush.
        self._in_hurry = False
        self._stopped = asyncio.Event()

    def start(self) -> None:
        """Start the loop. Reports trouble of the start."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        if self.trouble is not None:
            self._on_trouble(self.trouble)

    def end(self) -> None:
        """End the loop after the flush under way."""
        self._stopped.set()
        self._requested.set()
        self._flusher.end_pauses()

    async def stop(self) -> None:
        """:meth:`end`, and wait for it."""
        self.end()
        if self._task is not None:
            await self._task

    def request(self, *, hurry: bool = False) -> None:
        """Flush soon. ``hurry``: somebody waits for it."""
        self._requested.set()
        if hurry:
            self._in_hurry = True
            self._flusher.hurry()

    async def flush(self) -> None:
        """Flush now, without pauses. Raises OSError if the next flush will try again; after any other error the bookie
        must stop."""
        await self._flush(0.0)

    async def _flush(self, span_s: float) -> None:
        try:
            await self._flusher.run(span_s)
        except Exception as error:
            if may_pass(error):
                self._note_trouble(_reason(error))
            else:
                self._on_failure(error)
            raise
        self._note_trouble(None)

    def flush_blocking(self) -> None:
        """Flush before the event loop runs. Entries that cannot be written stay in memory: all entries ever accepted
        fit there. Raises SyncFailedError."""
        try:
            self._flusher.run_blocking()
            self.trouble = None
        except SyncFailedError:
            raise
        except OSError as error:
            _LOG.error("replayed entries cannot be written yet: %s", error)
            self.trouble = _reason(error)

    async def _run(self) -> None:
        while not self._stopped.is_set():
            await self._wait(self._requested)
            if self._stopped.is_set():
                return
            self._requested.clear()
            in_hurry, self._in_hurry = self._in_hurry, False
            try:
                await self._flush(0.0 if in_hurry else min(_PAUSED * self._interval_ms / 1000, _MOST_PAUSED_S))
            except Exception as error:
                if not may_pass(error):
                    _LOG.critical("flush failed", exc_info=error)
                    return
                _LOG.error("flush failed, it will be tried again: %s", error)
                await self._wait(self._stopped)

    async def _wait(self, event: asyncio.Event) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._interval_ms / 1000):
                await event.wait()

    def _note_trouble(self, reason: str | None) -> None:
        """Report a problem with its cause when it appears, and report when it ends."""
        if (reason is None) != (self.trouble is None):
            self.trouble = reason
            self._on_trouble(reason)


def _reason(error: OSError) -> str:
    return f"entries cannot be written to entry logs and indexes: {error}"
