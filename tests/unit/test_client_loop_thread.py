"""The loop on a thread of its own: results, errors, interrupted callers, closing while calls are under way."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import threading
from collections.abc import AsyncGenerator, Iterator

import pytest

from bk_spark.bookie import loop_thread
from bk_spark.bookie.loop_thread import LoopThread
from bk_spark.protocol.errors import LedgerClosedError


async def running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def has_ended(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the loop is closed, and its thread has ended."""
    return loop.is_closed() and not any(thread.name == "under-test" for thread in threading.enumerate())


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread("under-test")
    running = thread.run(running_loop())
    yield thread
    thread.close()
    assert has_ended(running)


async def value(result: int) -> int:
    await asyncio.sleep(0)
    return result


async def fail() -> None:
    raise ValueError("so it is")


async def forever(started: threading.Event, ended: threading.Event) -> None:
    started.set()
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0.01)  # what it has to let go of takes a moment
        ended.set()


def test_results_and_errors(loop: LoopThread) -> None:
    assert [loop.run(value(number)) for number in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="so it is"):
        loop.run(fail())


def test_items_are_asked_for_while_the_caller_works(loop: LoopThread) -> None:
    given = [threading.Event() for _ in range(4)]
    closed = threading.Event()

    async def items() -> AsyncGenerator[int, None]:
        try:
            for number, one in enumerate(given):
                one.set()
                yield number
            raise ValueError("so it is")
        finally:
            closed.set()

    found = loop.iterate_ahead(items())
    for number in range(3):
        assert next(found) == number
        assert given[number + 1].wait(30)
    assert next(found) == 3
    with pytest.raises(ValueError, match="so it is"):
        next(found)
    assert closed.is_set()
    assert list(loop.iterate_ahead(items_of(3))) == [0, 1, 2]


async def items_of(count: int) -> AsyncGenerator[int, None]:
    for number in range(count):
        yield number


def test_who_has_enough_ends_what_was_asked_for_ahead(loop: LoopThread) -> None:
    started, ended = threading.Event(), threading.Event()

    async def items() -> AsyncGenerator[int, None]:
        yield 1
        await forever(started, ended)

    found = loop.iterate_ahead(items())
    assert next(found) == 1
    assert started.wait(30)
    found.close()
    assert ended.is_set()
    # Never begun.
    loop.iterate_ahead(items()).close()


def test_work_that_takes_longer_than_a_look_at_signals(loop: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_thread, "_SIGNALS_S", 0.01)

    async def slow(error: Exception | None) -> int:
        await asyncio.sleep(0.05)  # five looks
        if error is not None:
            raise error
        return 7

    assert loop.run(slow(None)) == 7
    with pytest.raises(TimeoutError, match="its own"):
        loop.run(slow(TimeoutError("its own")))


def test_callers_on_many_threads(loop: LoopThread) -> None:
    results: list[int] = []
    threads = [threading.Thread(target=lambda number=n: results.append(loop.run(value(number)))) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(20))


def test_an_interrupted_caller_sees_its_work_end(loop: LoopThread) -> None:
    started, ended = threading.Event(), threading.Event()

    def interrupt() -> None:
        started.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        loop.run(forever(started, ended))
    assert ended.is_set()
    interrupter.join()
    assert loop.run(value(1)) == 1


def test_an_interrupted_iteration_can_be_closed(loop: LoopThread) -> None:
    """The generator's clean-up must not meet the step that was interrupted."""
    started, cleaned = threading.Event(), threading.Event()

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            yield 1
            started.set()
            await asyncio.Event().wait()
            yield 2
        finally:
            await asyncio.sleep(0.01)  # as above
            cleaned.set()

    def interrupt() -> None:
        started.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    steps = numbers()
    assert loop.run(steps.__anext__()) == 1
    with pytest.raises(KeyboardInterrupt):
        loop.run(steps.__anext__())
    loop.finish(steps.aclose())
    assert cleaned.is_set()
    interrupter.join()


def test_closing_ends_calls_under_way(loop: LoopThread) -> None:
    started, ended = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def call() -> None:
        try:
            loop.run(forever(started, ended))
        except LedgerClosedError as error:
            errors.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    started.wait()
    loop.close()
    caller.join(60)
    assert not caller.is_alive()
    assert (len(errors), ended.is_set()) == (1, True)
    loop.close()


def test_calls_after_closing(loop: LoopThread) -> None:
    loop.close()
    with pytest.raises(LedgerClosedError, match="closed"):
        loop.run(value(1))
    loop.finish(value(1))


def test_use_and_close_where_another_loop_runs() -> None:
    """As in a notebook, whose cells run within the kernel's loop."""

    async def cell() -> int:
        thread = LoopThread("under-test")
        running, result = thread.run(running_loop()), thread.run(value(3))
        thread.close()
        assert has_ended(running)
        return result

    assert asyncio.run(cell()) == 3


def test_calls_while_others_close() -> None:
    for _ in range(20):
        thread = LoopThread("racing")
        outcomes: list[object] = []

        def call(thread: LoopThread = thread, outcomes: list[object] = outcomes) -> None:
            try:
                outcomes.append(thread.run(value(1)))
            except LedgerClosedError as error:
                outcomes.append(error)

        callers = [threading.Thread(target=call) for _ in range(4)]
        closers = [threading.Thread(target=thread.close) for _ in range(2)]
        for one in (*callers, *closers):
            one.start()
        for one in (*callers, *closers):
            one.join(60)
            assert not one.is_alive()
        assert len(outcomes) == 4


def test_clean_up_from_its_own_thread_does_not_block_it(loop: LoopThread) -> None:
    """As a finalizer may do that the garbage collector calls there."""
    cleaned = threading.Event()

    async def clean() -> None:
        cleaned.set()

    async def on_the_loop() -> None:
        loop.finish(clean())
        with pytest.raises(LedgerClosedError):
            loop.run(value(1))

    loop.run(on_the_loop())
    assert cleaned.wait(60)


def _in_child(loop: LoopThread, answers: multiprocessing.SimpleQueue[str]) -> None:
    try:
        loop.run(value(1))
    except LedgerClosedError as error:
        answers.put(str(error))
    loop.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_is_told(loop: LoopThread) -> None:
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(loop, answers))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert "forked" in answers.get()
    assert loop.run(value(1)) == 1


def test_the_thread_has_ended_after_closing(loop: LoopThread) -> None:
    running = loop.run(running_loop())
    assert not has_ended(running)
    loop.close()
    assert has_ended(running)
