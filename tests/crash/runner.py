"""Many recordings, on all cores; how each that fails can be seen again."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from tests.crash.crashes import Case, CaseFailedError, Counts, Crashes, Effort
from tests.crash.expectations import AddAnswered
from tests.crash.histories import record, shape_of
from tests.crash.workload import Recording

STEPS: Final = 30
#: More failures than these add nothing.
_MOST_FAILURES: Final = 5


@dataclass(slots=True)
class Summary:
    runs: int = 0
    answered: int = 0
    counts: Counts = field(default_factory=Counts)
    failures: list[str] = field(default_factory=list)

    def add(self, other: Summary) -> None:
        self.runs += other.runs
        self.answered += other.answered
        self.counts.add(other.counts)
        self.failures += other.failures

    def __str__(self) -> str:
        counts = self.counts
        return (
            f"{self.runs} runs with {self.answered} answered adds, cut at {counts.cuts} places, {counts.starts} starts "
            f"({counts.nested} of them after a cut in a recovery); {counts.losses} losses, after which "
            f"{counts.unknown} unknown entries had been answered; {counts.unsynced} places with answers that were not "
            f"synced; {len(self.failures) or 'no'} failures"
        )


def crash(
    seed: int, *, effort: Effort, steps: int = STEPS, only: tuple[str, ...] = (), keep_in: Path | None = None
) -> Summary:
    """One recording and its cuts, up to the first that fails. The recording is then kept in ``keep_in``: another time
    threads may take another order."""
    logging.disable(logging.CRITICAL)  # the bookie complains of what was done to it
    summary = Summary(runs=1)
    try:
        recording = record(seed, steps, only)
        summary.answered = sum(isinstance(item, AddAnswered) for item in recording.log)
        with Crashes(recording, effort, seed) as crashes:
            summary.counts = crashes.counts
            crashes.all()
    except CaseFailedError as error:
        what = str(seed) + (f" --steps {steps}" if steps != STEPS else "")
        if keep_in is not None:
            path = keep_in / f"bk-crash-{seed}.recording"
            path.write_bytes(pickle.dumps(recording))
            what = str(path)
        summary.failures.append(
            f"{_told(recording.log, error)}\nagain: python -m tests.crash again {what} {error.case}"
        )
    except Exception as error:
        error.add_note(f"seed {seed}, {shape_of(seed)}")
        raise
    finally:
        logging.disable(logging.NOTSET)
    return summary


def load(path: Path) -> Recording:
    """A recording that was kept."""
    recording = pickle.loads(path.read_bytes())
    assert isinstance(recording, Recording)
    return recording


def again(recording: Recording, case: Case) -> str | None:
    """How one case fails, with everything that happened before; None if it does not."""
    try:
        with Crashes(recording, Effort(nested=0), seed=0) as crashes:
            crashes.one(case)
    except CaseFailedError as error:
        return _told(recording.log, error, last=10_000)
    return None


def crash_all(
    seeds: Iterable[int],
    effort: Effort,
    steps: int = STEPS,
    jobs: int | None = None,
    progress: Callable[[Summary], None] = lambda summary: None,
) -> Summary:
    """Recordings on ``jobs`` processes (as many as there are cores)."""
    summary = Summary()
    play = partial(crash, effort=effort, steps=steps, keep_in=Path(tempfile.gettempdir()))
    with ProcessPoolExecutor(jobs or os.cpu_count(), mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(play, seed) for seed in seeds]
        try:
            for future in as_completed(futures):
                summary.add(future.result())
                progress(summary)
                if len(summary.failures) >= _MOST_FAILURES:
                    break
        finally:
            pool.shutdown(cancel_futures=True)
    return summary


def _told(log: Sequence[object], error: CaseFailedError, last: int = 60) -> str:
    cut = error.case.steps[0].cut
    first = max(0, cut + 1 - last)
    lines = [f"{number:5} {item}" for number, item in enumerate(log[first : cut + 1], first)]
    return "\n".join([*(line[:200] for line in lines), f"crash {error.case}: {error.error}"])
