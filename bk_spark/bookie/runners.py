"""Runs machines (:mod:`bk_spark.protocol.machine`): on asyncio, and for callers that block.

A runner decides nothing. It calls a *performer*: a function that does an action and returns the event that answers it.

================ ======================= ========================================================================
runner           for                     machines
================ ======================= ========================================================================
run_blocking     callers that block      one action at a time, no timers
iterate_blocking callers that block      the same, and some actions find what the caller iterates over
run_in_turn      asyncio, in one task    one action at a time, no timers
iterate_in_turn  asyncio, in one task    the same, and some actions find what the caller iterates over
run_timed        asyncio, in one task    one action at a time, each within the time of a timer
AsyncRunner      asyncio, task by action any number of actions and timers
================ ======================= ========================================================================

Nothing else that ships takes the actions of machines, except machines that run others as a part of themselves
(``tests/unit/test_runners.py``). Loops that are left elsewhere are callers of AsyncRunner. They take what has arrived
from the machine by its commands, such as blocks of entries, while requests for the next are under way.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.machine import EndedBy, Machine, StartTimer, StopRequest, StopTimer, Succeeded, TimerFired

_LOG = logging.getLogger(__name__)

A = TypeVar("A")
E = TypeVar("E")
R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HandOver(Generic[T, E]):
    """What an action found for the caller of the run.

    Parameters
    ----------
    item
        What the caller gets.
    taken
        Called when the caller asks for the next item. Returns the event that answers the action.
    """

    item: T
    taken: Callable[[], E]


def run_blocking(machine: Machine[A, E, R], perform: Callable[[A], E]) -> R:
    """Run a sequential machine to its end, in this thread.

    Parameters
    ----------
    machine
        It must start no timers. It pauses by actions of its own.
    perform
        Does an action and returns the event. Its exceptions go to ``machine.fail``.

    Returns
    -------
    The machine's result. Raises the machine's error.
    """
    found: object
    for found in iterate_blocking(machine, perform):
        raise AssertionError(f"nobody takes {found!r}")
    assert machine.outcome is not None
    return _result(machine.outcome)


def iterate_blocking(machine: Machine[A, E, R], perform: Callable[[A], E | HandOver[T, E]]) -> Generator[T, None, R]:
    """Run a sequential machine in this thread, as :func:`run_blocking` does, and yield what its actions find.

    Closing this generator ends the run at once. The machine is not told.

    Parameters
    ----------
    machine
        It must start no timers.
    perform
        Does an action and returns the event, or :class:`HandOver`. Its exceptions go to ``machine.fail``.

    Yields
    ------
    The items handed over. At the end this raises the machine's error, or returns its result.
    """
    while machine.outcome is None:
        for action in machine.take_actions():
            try:
                found = perform(action)
            except Exception as error:
                machine.fail(error)
                continue
            if isinstance(found, HandOver):
                yield found.item
                found = found.taken()
            machine.handle(found)
    return _result(machine.outcome)


async def run_in_turn(machine: Machine[A, E, R], perform: Callable[[A], Awaitable[E]]) -> R:
    """Run a sequential machine to its end, in this task: :func:`run_blocking` for asyncio.

    A cancellation ends the run at once. The machine is not told.
    """
    found: object
    async for found in iterate_in_turn(machine, perform):
        raise AssertionError(f"nobody takes {found!r}")
    assert machine.outcome is not None
    return _result(machine.outcome)


async def iterate_in_turn(
    machine: Machine[A, E, Any], perform: Callable[[A], Awaitable[E | HandOver[T, E]]]
) -> AsyncGenerator[T, None]:
    """Run a sequential machine in this task and yield what its actions find: :func:`iterate_blocking` for asyncio.

    A cancellation ends the run at once, and so does closing this generator. The machine is not told.
    """
    while machine.outcome is None:
        for action in machine.take_actions():
            try:
                found = await perform(action)
            except Exception as error:
                machine.fail(error)
                continue
            if isinstance(found, HandOver):
                yield found.item
                found = found.taken()
            machine.handle(found)
    _result(machine.outcome)


async def run_timed(machine: Machine[A | StartTimer, E, R], perform: Callable[[A], Awaitable[E]]) -> R:
    """Run a sequential machine to its end, in this task. It starts a timer before each action, which bounds it.

    This makes no task for an action: it is for requests that are short and many.

    Parameters
    ----------
    machine
        It must accept :class:`~bk_spark.protocol.machine.TimerFired`, and return a timer and one action each time.
    perform
        Does an action and returns the event. It is cancelled when the timer fires. Its exceptions go to
        ``machine.fail``, but TimeoutError counts as the timer's.

    Returns
    -------
    The machine's result. Raises the machine's error.
    """
    while machine.outcome is None:
        timer, action = machine.take_actions()
        assert isinstance(timer, StartTimer), timer
        assert not isinstance(action, StartTimer), action
        try:
            async with asyncio.timeout(timer.after_ms / 1000):
                event = await perform(action)
        except TimeoutError:
            event = cast(E, TimerFired(timer.name))
        except Exception as error:
            machine.fail(error)
            continue
        machine.handle(event)
    return _result(machine.outcome)


class AsyncRunner(Generic[A, E, R]):
    """Runs one machine on the running event loop.

    Parameters
    ----------
    machine
        It may have any number of actions under way.
    perform
        Does an action. Returns the event, or a coroutine that returns the event, or None if events come later through
        :meth:`handle` or not at all. Coroutines run as tasks. Their exceptions go to ``machine.fail``.
    what
        Names the machine in the log, for errors that are not a :class:`~bk_spark.protocol.errors.BookKeeperError`.
    on_progress
        Called after each event, when its actions are under way.
    """

    def __init__(
        self,
        machine: Machine[A | StartTimer | StopTimer | StopRequest, E, R],
        perform: Callable[[A], Coroutine[Any, Any, E | None] | E | None],
        *,
        what: str,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        self.machine = machine
        self._perform = perform
        self._what = what
        self._on_progress = on_progress
        self._tasks: set[asyncio.Task[None]] = set()
        #: The tasks of actions that can be cancelled, by request id.
        self._requests: dict[Hashable, asyncio.Task[None]] = {}
        self._timers: dict[Hashable, asyncio.TimerHandle] = {}
        #: Exists while somebody waits for the end: most machines of an open ledger are never waited for.
        self._ended: asyncio.Event | None = None
        self._running = False

    def handle(self, event: E) -> None:
        """Pass an event to the machine, and perform its new actions."""
        self._tell(event)
        self.run()

    def run(self) -> None:
        """Perform the machine's actions. Call this once at the start, and after each command."""
        if self._running:
            return  # a performer reported an event at once: the loop below continues with it
        self._running = True
        try:
            while actions := self.machine.take_actions():
                for action in actions:
                    self._start(action)
        finally:
            self._running = False
        if self.machine.outcome is not None:
            if self._ended is not None:
                self._ended.set()
            self._stop_timers()
        self._on_progress()

    async def result(self) -> R:
        """Wait for the machine's end. Raises the machine's error."""
        if self.machine.outcome is None:
            self._ended = self._ended or asyncio.Event()
            await self._ended.wait()
        assert self.machine.outcome is not None
        return _result(self.machine.outcome)

    async def complete(self) -> R:
        """Run the machine to its end, and return its result once nothing of it is under way. Raises its error."""
        try:
            self.run()
            return await self.result()
        finally:
            await self.stop()

    async def stop(self) -> None:
        """Cancel all tasks and timers, and wait until the tasks have ended."""
        self._stop_timers()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, action: A | StartTimer | StopTimer | StopRequest) -> None:
        if isinstance(action, StartTimer):
            self._stop_timer(action.name)
            loop = asyncio.get_running_loop()
            self._timers[action.name] = loop.call_later(action.after_ms / 1000, self._fire, action.name)
        elif isinstance(action, StopTimer):
            self._stop_timer(action.name)
        elif isinstance(action, StopRequest):
            request = self._requests.get(action.request_id)
            if request is not None:
                request.cancel()
        else:
            answer = self._perform(action)
            if answer is None:
                return
            if isinstance(answer, Coroutine):
                task = asyncio.get_running_loop().create_task(self._await(answer))
                self._tasks.add(task)
                request_id = getattr(action, "request_id", None)
                if request_id is not None:
                    self._requests[request_id] = task
                task.add_done_callback(functools.partial(self._task_ended, request_id, answer))
            else:
                self._tell(answer)

    def _tell(self, event: E) -> None:
        try:
            self.machine.handle(event)
        except Exception as error:
            # Otherwise a caller that waits for the machine's end would wait for ever.
            _LOG.exception("%s: unexpected error", self._what)
            self.machine.fail(error)

    async def _await(self, work: Coroutine[Any, Any, E | None]) -> None:
        try:
            event = await work
        except Exception as error:
            expected = isinstance(error, BookKeeperError)
            _LOG.log(logging.DEBUG if expected else logging.ERROR, "%s: an action failed", self._what, exc_info=True)
            self.machine.fail(error)
            self.run()
        else:
            if event is not None:
                self.handle(event)

    def _task_ended(self, request_id: Hashable, work: Coroutine[Any, Any, E | None], task: asyncio.Task[None]) -> None:
        # A task that is cancelled before it runs never starts its coroutine, so close it here.
        work.close()
        self._tasks.discard(task)
        if request_id is not None and self._requests.get(request_id) is task:
            del self._requests[request_id]

    def _fire(self, name: Hashable) -> None:
        del self._timers[name]
        # Only a machine that accepts this event starts timers.
        self.handle(cast(E, TimerFired(name)))

    def _stop_timer(self, name: Hashable) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _stop_timers(self) -> None:
        for name in list(self._timers):
            self._stop_timer(name)


def _result(outcome: Succeeded[R] | EndedBy) -> R:
    if isinstance(outcome, EndedBy):
        raise outcome.error
    return outcome.result
