"""Every order of events in a small world.

A depth-first search over the events of :class:`World`: every order of deliveries, every placement of a bounded number
of lost messages, crashed bookies and killed recoverers. The invariants are checked after every step.

What makes this feasible, and why nothing is missed:

* *Parts are interned.* The next state of a part is a function of its state and an event. Each such step runs once, on a
  copy, and is looked up from then on. Parts with equal fingerprints (snapshots.py) are the same part. So a state of the
  world is a few numbers, and is visited once.
* *Irrelevant events are dropped*: an answer that its actor ignores from now on; a late request that never changes
  anything at its bookie; every message for an actor that can do nothing more.
* *One order is enough if order makes no difference* (persistent sets). If all messages of an actor are on their way to
  it, nothing else can affect it, so these events go first. If a bookie can get nothing but one recoverer's request,
  that goes first. All invariants are stable (once broken they stay broken), so a violation is still reached.
* *Interchangeable bookies count as the same* if each holds every entry (symmetry.py), and so do recoverers.
* Without crashes a slow sync is equivalent to a slow answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from tests.simulation.events import Event, Way
from tests.simulation.explored import Budget, ExploredWorld
from tests.simulation.interning import Known
from tests.simulation.symmetry import Symmetry
from tests.simulation.world import World

#: How a history may end: what is acknowledged, and whether and where the ledger is closed.
Outcome = tuple[int, LedgerState, int]


@dataclass(slots=True)
class Report:
    """The result of an exploration. ``error`` is a violation, ``path`` leads to it and ``story`` tells it."""

    states: int = 0
    transitions: int = 0
    deepest: int = 0
    #: Steps of single parts that were actually run.
    steps: int = 0
    seconds: float = 0.0
    complete: bool = False
    outcomes: set[Outcome] = field(default_factory=set)
    error: Exception | None = None
    path: list[tuple[Event, Way]] = field(default_factory=list)
    story: str = ""

    def __str__(self) -> str:
        if self.error is not None:
            verdict = f"VIOLATION after {len(self.path)} steps: {self.error}"
        else:
            verdict = "complete" if self.complete else "stopped before the end"
        return (
            f"{self.states} states, {self.transitions} transitions, at most {self.deepest} deep, {self.steps} steps "
            f"of parts, {len(self.outcomes)} outcomes, {self.seconds:.0f} s: {verdict}"
        )


def explore(
    world: World,
    budget: Budget,
    *,
    reduced: bool = True,
    most_transitions: int | None = None,
    progress: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Try every order of the pending events of ``world`` and their consequences; stop at the first violation."""
    known = Known()
    root = ExploredWorld.of(world, budget, known, reduced)
    symmetry = Symmetry(known, world.metadata, list(root.parts)) if reduced else None
    report = Report()
    start = time.process_time()
    seen = {_key(root, symmetry)}
    stack = [(root, iter(root.moves()))]
    while stack:
        state, left = stack[-1]
        move = next(left, None)
        if move is None:
            stack.pop()
            if stack:
                report.path.pop()
            continue
        if report.transitions == most_transitions:
            break
        report.transitions += 1
        report.path.append(move)
        after = state.before(*move)
        try:
            after.perform(*move)
        except Exception as error:
            report.error = error
            report.story = _story(root, report.path)
            break
        key = _key(after, symmetry)
        if key in seen:
            report.path.pop()
            continue
        seen.add(key)
        moves = after.moves()
        if not moves:
            report.outcomes.add(_outcome(after))
        stack.append((after, iter(moves)))
        report.deepest = max(report.deepest, len(stack))
        if len(seen) % 1024 == 0:
            report.states, report.seconds = len(seen), time.process_time() - start
            progress(report)
    known.check()
    report.complete = not stack
    report.states = len(seen)
    report.steps = known.steps_done
    report.seconds = time.process_time() - start
    return report


def _key(state: ExploredWorld, symmetry: Symmetry | None) -> int:
    """A number for the state and its images. (A hash: among a million states two share one with a probability of 1
    to 10 to the 7.)"""
    numbers = state.known.numbers
    pending = [numbers[id(event)] for event in state.pending]
    parts = [numbers[id(part)] for part in state.parts.values()]
    where = (tuple(parts), tuple(sorted(pending))) if symmetry is None else symmetry.key(parts, pending)
    return hash((where, state.watch.acknowledged, state.watch.seen, state.budget))


def _outcome(state: ExploredWorld) -> Outcome:
    metadata = state.metadata
    return state.watch.acknowledged, metadata.state, metadata.last_entry_id


def _story(root: ExploredWorld, path: list[tuple[Event, Way]]) -> str:
    """All that happened, and the resulting state."""
    state, trace = root, root.trace.copy()
    for event, way in path:
        state = state.before(event, way)
        try:
            state.perform(event, way)
        except Exception:
            break
        finally:
            trace += state.trace
    state.trace = trace
    return state.story(len(trace))
