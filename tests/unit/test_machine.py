"""The contract of machines, and the runners that ship."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Generator
from contextlib import aclosing
from dataclasses import dataclass, field

import pytest

from bk_spark.bookie.runners import (
    AsyncRunner,
    HandOver,
    iterate_blocking,
    iterate_in_turn,
    run_blocking,
    run_in_turn,
    run_timed,
)
from bk_spark.protocol.machine import EndedBy, StartTimer, StepMachine, StopRequest, StopTimer, Succeeded, TimerFired

pytestmark = pytest.mark.unit


def adding(count: int) -> Generator[int, int, int]:
    total = 0
    for number in range(count):
        try:
            total += yield number
        except LookupError:
            total += 100
    return total


def test_a_generator_is_a_machine() -> None:
    machine = StepMachine(adding(2))
    assert machine.take_actions() == [0]
    assert machine.take_actions() == []
    machine.handle(5)
    assert machine.take_actions() == [1]
    machine.handle(6)
    assert machine.outcome == Succeeded(11)
    machine.handle(7)
    assert machine.take_actions() == []


def test_a_generator_that_needs_nothing_has_ended_at_once() -> None:
    assert StepMachine(adding(0)).outcome == Succeeded(0)


def test_what_an_action_raises_is_raised_in_the_generator() -> None:
    def perform(action: int) -> int:
        if action == 1:
            raise LookupError
        return action

    assert run_blocking(StepMachine(adding(3)), perform) == 0 + 100 + 2

    def broken(action: int) -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_blocking(StepMachine(adding(3)), broken)


def test_a_sequential_machine_runs_in_the_task_that_awaits_it() -> None:
    async def perform(action: int) -> int:
        await asyncio.sleep(0)
        if action == 1:
            raise LookupError
        return action

    async def broken(action: int) -> int:
        raise ZeroDivisionError

    async def check() -> None:
        assert await run_in_turn(StepMachine(adding(3)), perform) == 0 + 100 + 2
        assert await run_in_turn(StepMachine(adding(0)), broken) == 0
        with pytest.raises(ZeroDivisionError):
            await run_in_turn(StepMachine(adding(3)), broken)

    asyncio.run(check())


def test_a_cancelled_run_ends_at_once_and_takes_no_further_action() -> None:
    """As when the process ends: the machine is not told, and its pending action is cancelled."""
    taken: list[int] = []

    async def perform(action: int) -> int:
        taken.append(action)
        await asyncio.Event().wait()
        return action

    async def check() -> None:
        machine = StepMachine(adding(3))
        run = asyncio.ensure_future(run_in_turn(machine, perform))
        await asyncio.sleep(0)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert machine.outcome is None
        assert taken == [0]

    asyncio.run(check())


class Finder:
    """Performs the actions of :func:`adding`: hands 0 and 2 over, raises at 1, answers others. Notes what happens."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def __call__(self, action: int) -> int | HandOver[str, int]:
        self.notes.append(f"asked {action}")
        if action == 1:
            raise LookupError
        return HandOver(f"item {action}", lambda: self._taken(action)) if action < 3 else action

    async def in_turn(self, action: int) -> int | HandOver[str, int]:
        await asyncio.sleep(0)
        return self(action)

    def _taken(self, action: int) -> int:
        self.notes.append(f"taken {action}")
        return action


_ITERATED = ["asked 0", "got item 0", "taken 0", "asked 1", "asked 2", "got item 2", "taken 2", "asked 3"]


def test_a_caller_iterates_over_what_actions_find() -> None:
    """The machine goes on only when the caller asks for the next item."""
    finder = Finder()
    results: list[int] = []

    def iterate() -> Generator[str, None, None]:
        results.append((yield from iterate_blocking(StepMachine(adding(4)), finder)))

    for item in iterate():
        finder.notes.append(f"got {item}")
    assert results == [0 + 100 + 2 + 3]
    assert finder.notes == _ITERATED


def test_a_task_iterates_over_what_actions_find() -> None:
    finder = Finder()

    def steps() -> Generator[int, int, None]:
        assert (yield from adding(4)) == 0 + 100 + 2 + 3
        finder.notes.append("ended")

    async def check() -> None:
        async for item in iterate_in_turn(StepMachine(steps()), finder.in_turn):
            finder.notes.append(f"got {item}")

    asyncio.run(check())
    assert finder.notes == [*_ITERATED, "ended"]


def test_who_iterates_gets_the_error_of_the_machine() -> None:
    def steps() -> Generator[int, int, None]:
        yield 0
        raise ZeroDivisionError

    async def check() -> None:
        items = iterate_in_turn(StepMachine(steps()), Finder().in_turn)
        assert await anext(items) == "item 0"
        with pytest.raises(ZeroDivisionError):
            await anext(items)

    blocking = iterate_blocking(StepMachine(steps()), Finder())
    assert next(blocking) == "item 0"
    with pytest.raises(ZeroDivisionError):
        next(blocking)
    asyncio.run(check())


def test_who_iterates_no_longer_ends_the_run_at_once() -> None:
    """The machine is not told: it would go on to the next action."""
    blocking, in_turn = Finder(), Finder()

    async def check() -> None:
        async with aclosing(iterate_in_turn(StepMachine(adding(4)), in_turn.in_turn)) as items:
            assert await anext(items) == "item 0"

    items = iterate_blocking(StepMachine(adding(4)), blocking)
    assert next(items) == "item 0"
    items.close()
    asyncio.run(check())
    assert blocking.notes == in_turn.notes == ["asked 0"]


class Patient:
    """Asks twice, each time within a time. The result is what happened."""

    def __init__(self, patience_ms: float) -> None:
        self.patience_ms = patience_ms
        self.heard: list[object] = []
        self.outcome: Succeeded[list[object]] | EndedBy | None = None
        self._ready = True

    def take_actions(self) -> list[str | StartTimer]:
        ready, self._ready = self._ready, False
        return [StartTimer("patience", self.patience_ms), f"ask {len(self.heard)}"] if ready else []

    def handle(self, event: object) -> None:
        self.heard.append(event)
        self._ready = True
        if len(self.heard) == 2:
            self.outcome = Succeeded(self.heard)

    def fail(self, error: Exception) -> None:
        self.handle(repr(error))


def test_a_timer_bounds_the_action_after_it() -> None:
    ends: list[str] = []

    async def perform(action: str) -> object:
        try:
            await (asyncio.Event().wait() if action == "ask 0" else asyncio.sleep(0))
        except asyncio.CancelledError:
            ends.append(f"cancelled {action}")
            raise
        raise LookupError

    async def answers(action: str) -> object:
        return action

    async def check() -> None:
        assert await run_timed(Patient(20.0), perform) == [TimerFired("patience"), "LookupError()"]
        assert ends == ["cancelled ask 0"]
        assert await run_timed(Patient(3_600_000.0), answers) == ["ask 0", "ask 1"]
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(check())


@dataclass
class Race:
    """Starts two runs and a timer; whoever is first wins."""

    actions: list[object] = field(default_factory=lambda: ["slow", "fast", StartTimer("patience", 20.0)])
    outcome: Succeeded[str] | EndedBy | None = None

    def take_actions(self) -> list[object]:
        actions, self.actions = self.actions, []
        return actions

    def handle(self, event: object) -> None:
        if self.outcome is None:
            self.actions.append(StopTimer("patience"))
            self.outcome = Succeeded("timer" if isinstance(event, TimerFired) else str(event))

    def fail(self, error: Exception) -> None:
        self.outcome = EndedBy(error)


async def run(pauses_s: dict[str, float], *, error: Exception | None = None) -> str:
    async def perform(action: object) -> object:
        await asyncio.sleep(pauses_s[str(action)])  # which of two is first
        if error is not None:
            raise error
        return action

    runner = AsyncRunner(Race(), perform, what="race")
    runner.run()
    try:
        async with asyncio.timeout(60):
            return await runner.result()
    finally:
        await runner.stop()
        assert len(asyncio.all_tasks()) == 1


def test_actions_run_beside_each_other() -> None:
    assert asyncio.run(run({"slow": 3600.0, "fast": 0.0})) == "fast"


def test_a_timer_fires() -> None:
    assert asyncio.run(run({"slow": 3600.0, "fast": 5.0})) == "timer"


def test_what_an_action_raises_goes_to_the_machine() -> None:
    with pytest.raises(ZeroDivisionError):
        asyncio.run(run({"slow": 3600.0, "fast": 0.0}, error=ZeroDivisionError()))


def test_an_error_in_the_machine_itself_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Race, "handle", lambda machine, event: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(run({"slow": 3600.0, "fast": 0.0}))


def test_events_that_a_performer_returns_at_once() -> None:
    async def instant() -> tuple[str, int]:
        progress: list[int] = []
        runner = AsyncRunner(Race(), lambda action: action, what="race", on_progress=lambda: progress.append(1))
        runner.run()
        return await runner.result(), len(progress)

    assert asyncio.run(instant()) == ("slow", 1)


@dataclass(frozen=True)
class Ask:
    request_id: str


@dataclass
class Hedge:
    """Asks two and gives up the loser; then asks under the id of the loser again."""

    actions: list[object] = field(default_factory=lambda: [Ask("slow"), Ask("fast")])
    outcome: Succeeded[list[str]] | EndedBy | None = None
    heard: list[str] = field(default_factory=list)

    def take_actions(self) -> list[object]:
        actions, self.actions = self.actions, []
        return actions

    def handle(self, event: object) -> None:
        self.heard.append(str(event))
        if len(self.heard) == 1:
            self.actions += [StopRequest("slow"), StopRequest("never asked"), Ask("slow")]
        else:
            self.outcome = Succeeded(self.heard)

    def fail(self, error: Exception) -> None:
        self.outcome = EndedBy(error)


def test_a_request_that_is_given_up_is_cancelled_and_its_id_free_again() -> None:
    async def hedge() -> tuple[list[str], list[str]]:
        cancelled: list[str] = []
        pauses_s = iter([3600.0, 0.0, 0.01])

        async def perform(action: object) -> str:
            assert isinstance(action, Ask)
            try:
                await asyncio.sleep(next(pauses_s))  # which of them is first
            except asyncio.CancelledError:
                cancelled.append(action.request_id)
                raise
            return action.request_id

        runner = AsyncRunner(Hedge(), perform, what="hedge")
        runner.run()
        async with asyncio.timeout(60):
            heard = await runner.result()
        await runner.stop()
        return heard, cancelled

    assert asyncio.run(hedge()) == (["fast", "slow"], ["slow"])


def test_what_is_given_up_before_it_begins_leaves_nothing_behind() -> None:
    """Python warns of a coroutine that was never awaited, and a warning is an error here."""

    async def stop_at_once() -> None:
        async def perform(action: object) -> str:
            return str(action)

        runner = AsyncRunner(Hedge(), perform, what="hedge")
        runner.run()
        await runner.stop()

    asyncio.run(stop_at_once())
    gc.collect()
