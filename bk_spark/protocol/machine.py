"""The contract of machines: everything that decides something, without I/O.

The protocol of ledgers, changes of logs and garbage collection are decided by *machines*. A machine is told what
happened (*events*) and says what to do next (*actions*). It opens no connection, reads no clock and starts no thread.
So one machine serves every runtime, and the simulator tests the code that ships.

=============== ===========================================================================================
member          meaning
=============== ===========================================================================================
take_actions()  What to do now, in order. Each action is returned once.
handle(event)   Something happened. New actions may be there afterwards.
fail(error)     An action raised an error for which the machine has no event. The machine decides what follows.
outcome         None until the machine ends. Then the result or the error. It never changes.
=============== ===========================================================================================

Rules:

* Actions and events are frozen dataclasses. An event that answers an action names it, where several can be under way.
* A machine starts with its first actions ready. After its end it ignores events, and returns only what its last step
  asked for.
* *Commands* are what a machine's owner wants from it, such as adding entries or closing. They are methods with results
  and errors of their own. Their actions come out of ``take_actions`` as well.
* An action that can be given up has a ``request_id``. :class:`StopRequest` gives it up.
* A machine that needs time asks for :class:`StartTimer` and is told :class:`TimerFired`. Timeouts, pauses and bounds of
  retries belong to machines, not to runners.
* A *runner* decides nothing. It performs each action and hands back the events. There is one for each runtime: asyncio
  and blocking in :mod:`bk_spark.bookie.runners`, and that of the simulators.

A machine that does one thing after another is easiest to read as a generator that yields actions and is sent events.
:class:`StepMachine` gives a generator this contract.
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
    result: R_co


@dataclass(frozen=True, slots=True)
class EndedBy:
    """The machine ended with ``error``."""

    error: Exception


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Report :class:`TimerFired` with ``name`` after ``after_ms``. A timer of that name that is still running is
    replaced."""

    name: Hashable
    after_ms: float


@dataclass(frozen=True, slots=True)
class StopTimer:
    """Forget the timer. One that is not running is ignored."""

    name: Hashable


@dataclass(frozen=True, slots=True)
class TimerFired:
    name: Hashable


@dataclass(frozen=True, slots=True)
class StopRequest:
    """Give up the action that has this ``request_id``: its event no longer matters. One that has ended is ignored."""

    request_id: Hashable


class Machine(Protocol[A_co, E_contra, R_co]):
    """See the module."""

    @property
    def outcome(self) -> Succeeded[R_co] | EndedBy | None: ...

    def take_actions(self) -> Sequence[A_co]: ...

    def handle(self, event: E_contra, /) -> None: ...

    def fail(self, error: Exception, /) -> None: ...


class StepMachine(Generic[A, E, R]):
    """A generator as a machine: one action at a time, answered by one event.

    The generator's return value is the result. What it raises is the error. ``fail`` raises the error inside of it.
    """

    def __init__(self, steps: Generator[A, E, R]) -> None:
        self._steps = steps
        self._action: A | None = None
        self.outcome: Succeeded[R] | EndedBy | None = None
        self._go(lambda: next(steps))

    def take_actions(self) -> list[A]:
        action, self._action = self._action, None
        return [] if action is None else [action]

    def handle(self, event: E) -> None:
        if self.outcome is None:
            self._go(lambda: self._steps.send(event))

    def fail(self, error: Exception) -> None:
        if self.outcome is None:
            self._go(lambda: self._steps.throw(error))

    def close(self) -> None:
        """Give up: the generator's ``finally`` blocks run, and their actions are not performed."""
        self._steps.close()

    def _go(self, step: Callable[[], A]) -> None:
        try:
            self._action = step()
        except StopIteration as end:
            self.outcome = Succeeded(end.value)
        except Exception as error:
            self.outcome = EndedBy(error)
