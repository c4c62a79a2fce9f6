"""The contract of machines, and the runners that ship."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Generator
from dataclasses import dataclass, field

import pytest

from bk_spark.bookie.runners import AsyncRunner, run_blocking, run_in_turn
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
