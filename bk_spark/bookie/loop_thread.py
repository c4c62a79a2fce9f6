"""An event loop on a thread of its own, for callers that block and for those on other event loops."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator
from concurrent.futures import Future, wait
from typing import Any, Final, TypeVar

from bk_spark.bookie.shielded import shielded
from bk_spark.protocol.errors import LedgerClosedError

_T = TypeVar("_T")
#: How long an interrupted caller waits for its work to release its resources.
_INTERRUPTED_S: Final = 5.0
#: A blocked thread wakes this often, to notice a signal that arrived just before it blocked.
_SIGNALS_S: Final = 1.0


class LoopThread:
    """Runs coroutines for other threads. Thread-safe. It does not work in a forked process."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        #: Reentrant, because a finalizer may call at any point.
        self._lock = threading.RLock()
        self._closed = False
        self._left: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run ``work`` and return its result. Raises LedgerClosedError if the thread has ended or ends meanwhile.

        An interrupt of the caller (KeyboardInterrupt) cancels the work and waits for its end.
        """
        done: Future[_T] = Future()
        tasks: list[asyncio.Task[_T]] = []
        try:
            self._submit(work, done, tasks)
            return _wait_for(done)
        except BaseException:
            if done.running():
                self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
                wait([done], timeout=_INTERRUPTED_S)
            raise

    async def run_for(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run ``work`` for a caller on another event loop. Raises as :meth:`run`.

        A cancellation of the caller cancels the work and waits for its end.
        """
        done: Future[_T] = Future()
        tasks: list[asyncio.Task[_T]] = []
        self._submit(work, done, tasks)
        ended = asyncio.wrap_future(done)
        try:
            return await shielded(ended)
        except asyncio.CancelledError:
            if not ended.done():
                with contextlib.suppress(RuntimeError):  # the loop has ended, and with it the work
                    self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
                await asyncio.wait([ended])
            ended.exception()  # nobody else will ask for it
            raise

    def iterate(self, items: AsyncGenerator[_T, None]) -> Generator[_T, None, None]:
        """Run an asynchronous iterator. Closing the result closes the iterator. Raises as :meth:`run`."""
        try:
            while True:
                try:
                    yield self.run(items.__anext__())
                except StopAsyncIteration:
                    return
        finally:
            self.finish(items.aclose())

    def iterate_ahead(self, items: AsyncGenerator[_T, None]) -> Generator[_T, None, None]:
        """:meth:`iterate` that asks for the next item while the caller works on this one. So neither thread waits for
        the other at each item."""
        #: What asks for an item. Known here before it is started, so that whatever interrupts this ends it.
        tasks: list[asyncio.Task[tuple[_T] | None]] = []

        def begun() -> Future[tuple[_T] | None]:
            tasks.clear()
            done: Future[tuple[_T] | None] = Future()
            self._submit(_next_of(items), done, tasks)
            return done

        try:
            done = begun()
            while (found := _wait_for(done)) is not None:
                done = begun()
                yield found[0]
        finally:
            self.finish(_ended(tasks, items))

    async def iterate_for(self, items: AsyncGenerator[_T, None]) -> AsyncGenerator[_T, None]:
        """:meth:`iterate` for a caller on another event loop."""
        try:
            # A coroutine of its own: a future does not carry StopAsyncIteration.
            while (found := await self.run_for(_next_of(items))) is not None:
                yield found[0]
        finally:
            with contextlib.suppress(LedgerClosedError):
                await self.run_for(_closed(items))

    def _submit(self, work: Coroutine[Any, Any, _T], done: Future[_T], tasks: list[asyncio.Task[_T]]) -> None:
        """Have ``work`` started: ``done`` runs from then on, and the task goes to ``tasks``.

        Raises LedgerClosedError.
        """

        def start() -> None:
            task = self._loop.create_task(work)
            tasks.append(task)
            task.add_done_callback(lambda ended: _hand_over(ended, done))

        with self._lock:
            if self._closed or not self._thread.is_alive() or threading.current_thread() is self._thread:
                work.close()
                raise LedgerClosedError("the client is closed, or was created before this process was forked")
            done.set_running_or_notify_cancel()
            self._loop.call_soon_threadsafe(start)

    def finish(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run cleanup work from any thread. A finalizer may call this on the loop's own thread, or after the end."""
        if threading.current_thread() is self._thread and not self._closed:
            task = self._loop.create_task(work)
            self._left.add(task)
            task.add_done_callback(self._left.discard)
            return
        # A closed thread has already cleaned up.
        with contextlib.suppress(LedgerClosedError):
            self.run(work)

    def close(self) -> None:
        """End the thread and everything that runs on it. Safe to repeat."""
        with self._lock:
            if self._closed or not self._thread.is_alive():
                return
            self._closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        # Not in close(), because its caller may run another loop, as in a notebook.
        self._loop.run_until_complete(self._end())
        self._loop.close()


def _wait_for(done: Future[_T]) -> _T:
    while True:
        try:
            return done.result(_SIGNALS_S)
        except TimeoutError:
            if done.done():
                return done.result()


async def _next_of(items: AsyncGenerator[_T, None]) -> tuple[_T] | None:
    try:
        return (await anext(items),)
    except StopAsyncIteration:
        return None


async def _closed(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()


async def _ended(tasks: list[asyncio.Task[Any]], items: AsyncGenerator[Any, None]) -> None:
    """Cancel what still asks for an item, and close the iterator."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await items.aclose()


def _hand_over(task: asyncio.Task[_T], done: Future[_T]) -> None:
    if task.cancelled():
        done.set_exception(LedgerClosedError("the client was closed meanwhile"))
        return
    error = task.exception()
    if error is None:
        done.set_result(task.result())
    else:
        done.set_exception(error)
