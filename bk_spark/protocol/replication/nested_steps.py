"""Steps that run other machines, as one machine."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Generic, TypeVar

from bk_spark.protocol.machine import EndedBy, Machine, StepMachine, Succeeded

A = TypeVar("A")
E = TypeVar("E")
R = TypeVar("R")


class NestedSteps(Generic[A, E, R]):
    """A generator as a machine. It yields an action, or a machine to run.

    It receives the event that answers its action, or the result of the machine. Events and errors go to the machine
    while it runs. Its error is raised inside the generator.
    """

    def __init__(self, steps: Generator[Any, Any, R]) -> None:
        self._steps: StepMachine[Any, Any, R] = StepMachine(steps)
        self._machine: Machine[A, E, Any] | None = None
        self._actions: list[A] = []
        self._advance()

    @property
    def outcome(self) -> Succeeded[R] | EndedBy | None:
        """None until the generator returns or raises."""
        return self._steps.outcome

    @property
    def nested(self) -> bool:
        """Whether a machine runs, which receives the events."""
        return self._machine is not None

    def take_actions(self) -> list[A]:
        """Return the new actions of the generator, or of the machine that it runs."""
        actions, self._actions = self._actions, []
        return actions

    def handle(self, event: E) -> None:
        """Pass the event to the machine that runs, else to the generator."""
        (self._machine or self._steps).handle(event)
        self._advance()

    def fail(self, error: Exception) -> None:
        """Pass the error to the machine that runs, else raise it inside the generator."""
        (self._machine or self._steps).fail(error)
        self._advance()

    def _advance(self) -> None:
        """Take the actions of the steps, or of the machine that they run."""
        while True:
            if self._machine is not None:
                self._actions += self._machine.take_actions()
                outcome = self._machine.outcome
                if outcome is None:
                    return
                self._machine = None
                if isinstance(outcome, EndedBy):
                    self._steps.fail(outcome.error)
                else:
                    self._steps.handle(outcome.result)
            actions = self._steps.take_actions()
            if not actions:
                return
            (action,) = actions
            if not hasattr(action, "take_actions"):
                self._actions.append(action)
                return
            self._machine = action
