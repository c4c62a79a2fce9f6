"""Many histories, on all cores, with the failing ones told in full."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field

from tests.simulation.histories import History, Result

#: Histories that a process plays at a time.
CHUNK = 250
#: More failures than these add nothing.
MOST_FAILURES = 5


@dataclass(slots=True)
class Summary:
    histories: int = 0
    result: Result = field(default_factory=Result)
    failures: list[str] = field(default_factory=list)

    def add(self, other: Summary) -> None:
        self.histories += other.histories
        self.result.add(other.result)
        self.failures += other.failures

    def __str__(self) -> str:
        result = self.result
        return (
            f"{self.histories} histories, {result.steps} steps, {result.faults} messages lost, refused or doubled; "
            f"{result.acknowledged} entries acknowledged, {result.read} read, {result.ensemble_changes} ensemble "
            f"changes, {result.recovered} recoveries; {len(self.failures) or 'no'} failures"
        )


def tell(seed: int, last: int = 60) -> str | None:
    """How a history fails: the error, the story and how to see it again. None if it does not."""
    history = History(seed)
    try:
        history.play()
    except Exception as error:
        return (
            f"seed {seed}: {type(error).__name__}: {error}\n{history.world.story(last)}\n"
            f"again: python -m tests.simulation replay {seed}"
        )
    return None


def play(seeds: range) -> Summary:
    """Play histories here, one after the other."""
    summary = Summary()
    for seed in seeds:
        history = History(seed)
        try:
            summary.result.add(history.play())
        except Exception:
            summary.failures.append(tell(seed) or f"seed {seed} failed, and not when it was played again")
            if len(summary.failures) == MOST_FAILURES:
                break
        summary.histories += 1
    return summary


def play_all(seeds: range, jobs: int | None = None, progress: Callable[[Summary], None] | None = None) -> Summary:
    """Play histories on ``jobs`` processes (as many as there are cores)."""
    summary = Summary()
    for part in _parts(seeds, jobs or os.cpu_count() or 1):
        summary.add(part)
        if progress is not None:
            progress(summary)
        if len(summary.failures) >= MOST_FAILURES:
            break
    return summary


def _parts(seeds: range, jobs: int) -> Iterator[Summary]:
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    if jobs == 1:
        yield from map(play, chunks)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(play, chunk) for chunk in chunks]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)
