"""The contract of machines, which make every decision without I/O.

*Machines* decide the protocol of ledgers, the changes of logs and garbage collection. A machine receives what happened
(*events*) and returns what to do next (*actions*). It opens no connection, reads no clock and starts no thread. So one
machine serves every runtime, and the simulator tests the code that ships.

=============== ===========================================================================================
member          meaning
=============== ===========================================================================================
take_actions()  What to do now, in order. Each action is returned once.
handle(event)   Report an event. New actions may be available afterwards.
fail(error)     Report an error for which the machine has no event. The machine decides what follows.
outcome         None until the machine ends. Then the result or the error. It never changes.
=============== ===========================================================================================

Rules:

* Actions and events are frozen dataclasses. If several actions can be under way, an event names the action it answers.
* A machine starts with its first actions ready. After its end it ignores events, and returns only the actions of its
  last step.
* *Commands* are requests of a machine's owner, such as adding entries or closing. They are methods with results and
  errors of their own. ``take_actions`` returns their actions too.
* An action that can be cancelled has a ``request_id``. :class:`StopRequest` cancels it.
* A machine that needs time returns :class:`StartTimer` and receives :class:`TimerFired`. Timeouts, pauses and retry
  limits belong to machines, not to runners.
* A *runner* decides nothing. It performs each action and passes the events back. Those for asyncio and for callers that
  block are in :mod:`bk_spark.bookie.runners`. The simulators have their own.

A sequential machine is easiest to read as a generator that yields actions and receives events. :class:`StepMachine`
turns a generator into a machine.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

A = TypeVar("A")
E = TypeVar("E")
R = TypeVar("R")
A_co = TypeVar("A_co", covariant=True)
E_contra = TypeVar("E_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Succeeded(Generic[R_co]):
    """The machine ended with ``result``."""

    result: R_co


@dataclass(frozen=True, slots=True)
class EndedBy:
    """The machine ended with ``error``."""

    error: Exception


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Report :class:`TimerFired` with ``name`` after ``after_ms``. Replaces a running timer of that name."""

    name: Hashable
    after_ms: float


@dataclass(frozen=True, slots=True)
class StopTimer:
    """Cancel the timer. Ignored if it is not running."""

    name: Hashable


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time of the timer ``name`` is over."""

    name: Hashable


@dataclass(frozen=True, slots=True)
class StopRequest:
    """Cancel the action with this ``request_id``. Its event no longer matters. Ignored if the action has ended."""

    request_id: Hashable


class Machine(Protocol[A_co, E_contra, R_co]):
    """The contract described in the module docstring."""

    @property
    def outcome(self) -> Succeeded[R_co] | EndedBy | None:
        """None until the machine ends. It never changes afterwards."""

    def take_actions(self) -> Sequence[A_co]:
        """Return what to do now, in order. Each action is returned once."""

    def handle(self, event: E_contra, /) -> None:
        """Report an event. New actions may be available afterwards."""

    def fail(self, error: Exception, /) -> None:
        """Report an error for which the machine has no event."""


class StepMachine(Generic[A, E, R]):
    """A generator as a machine: one action at a time, answered by one event.

    The generator's return value is the result. Its exception is the error. ``fail`` raises the error inside it.
    """

    def __init__(self, steps: Generator[A, E, R]) -> None:
        self._steps = steps
        self._action: A | None = None
        self.outcome: Succeeded[R] | EndedBy | None = None
        self._go(lambda: next(steps))

    def take_actions(self) -> list[A]:
        """Return the action that the generator yielded last, if it was not returned before."""
        action, self._action = self._action, None
        return [] if action is None else [action]

    def handle(self, event: E) -> None:
        """Send the event into the generator. Ignored after the end."""
        if self.outcome is None:
            self._go(lambda: self._steps.send(event))

    def fail(self, error: Exception) -> None:
        """Raise the error inside the generator, at the action it waits for. Ignored after the end."""
        if self.outcome is None:
            self._go(lambda: self._steps.throw(error))

    def close(self) -> None:
        """Close the generator. Its ``finally`` blocks run, but their actions are not performed."""
        self._steps.close()

    def _go(self, step: Callable[[], A]) -> None:
        try:
            self._action = step()
        except StopIteration as end:
            self.outcome = Succeeded(end.value)
        except Exception as error:
            self.outcome = EndedBy(error)
