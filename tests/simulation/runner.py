"""Plays many histories on all cores, and tells the failing ones in full."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial

from tests.simulation.auditing.histories import History as AuditingHistory
from tests.simulation.collection.histories import History as CollectionHistory
from tests.simulation.histories import ChaseHistory, History as LedgerHistory, LateFenceHistory
from tests.simulation.logs.histories import History as LogHistory
from tests.simulation.outcomes import Counts, History
from tests.simulation.replication.histories import History as ReplicationHistory

#: Histories that a process plays at a time.
CHUNK = 250
#: More failures than these add nothing.
MOST_FAILURES = 5

#: What makes a history from its seed, by kind.
KINDS: dict[str, Callable[[int], History]] = {
    "ledgers": LedgerHistory,
    "chases": ChaseHistory,
    "late-fences": LateFenceHistory,
    "logs": LogHistory,
    "collection": CollectionHistory,
    "auditing": AuditingHistory,
    "replication": ReplicationHistory,
}


@dataclass(slots=True)
class Summary:
    histories: int = 0
    counts: Counts = field(default_factory=Counts)
    failures: list[str] = field(default_factory=list)

    def add(self, other: Summary) -> None:
        self.histories += other.histories
        self.counts.update(other.counts)
        self.failures += other.failures

    def __str__(self) -> str:
        return f"{self.histories} histories, {self.counts}; {len(self.failures) or 'no'} failures"


def option(kind: str) -> str:
    """What a command line has to say for histories of this kind."""
    return "" if kind == "ledgers" else f" --{kind}"


def tell(seed: int, last: int = 60, kind: str = "ledgers") -> str | None:
    """How a history fails: the error, the story and how to replay it. None if it does not fail."""
    history = KINDS[kind](seed)
    try:
        history.play()
    except Exception as error:
        return (
            f"seed {seed}: {type(error).__name__}: {error}\n{history.world.story(last)}\n"
            f"again: python -m tests.simulation replay {seed}{option(kind)}"
        )
    return None


def play(seeds: range, kind: str = "ledgers") -> Summary:
    """Play histories in this process, one after the other."""
    summary = Summary()
    for seed in seeds:
        history = KINDS[kind](seed)
        try:
            summary.counts.update(history.play())
        except Exception:
            summary.failures.append(tell(seed, kind=kind) or f"seed {seed} failed, and not when it was played again")
            if len(summary.failures) == MOST_FAILURES:
                break
        summary.histories += 1
    return summary


def play_all(
    seeds: range,
    jobs: int | None = None,
    progress: Callable[[Summary], None] | None = None,
    kind: str = "ledgers",
) -> Summary:
    """Play histories in ``jobs`` processes (one per core by default)."""
    summary = Summary()
    for part in _parts(seeds, jobs or os.cpu_count() or 1, kind):
        summary.add(part)
        if progress is not None:
            progress(summary)
        if len(summary.failures) >= MOST_FAILURES:
            break
    return summary


def _parts(seeds: range, jobs: int, kind: str) -> Iterator[Summary]:
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    if jobs == 1:
        yield from map(partial(play, kind=kind), chunks)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(play, chunk, kind) for chunk in chunks]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)
