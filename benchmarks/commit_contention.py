"""Measures small commits to a log during a large commit, and during the reaper.

Several processes make small commits, at a steady total rate. Now and then a large commit or the reaper starts.
``alone`` are the small commits in between, so both are of the same period. ``during`` are those that began while the
large commit was running, ``beside`` those of the first seconds after it began. With ``--peer`` the code of another
checkout (a git worktree of an older commit) is also measured, on the same ZooKeeper in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.report import figure, p99
from bookie_server.local import LocalCluster

NAME: Final = "commit_contention"
ROOT: Final = "/bk_spark/logs"
_WORKER: Final = Path(__file__).with_name("contention_worker.py")
_PROCESSES: Final = 5
#: Minimum duration of ``beside``, from the beginning of a large commit.
_BESIDE_S: Final = 4.0
_START_TIMEOUT_MS: Final = 120_000


@dataclass(frozen=True, slots=True)
class Code:
    """The code to measure: the ``bk_spark`` in ``directory``."""

    name: str
    directory: Path


class Worker:
    """A process of ``contention_worker``, waiting to begin."""

    def __init__(self, code: Code, role: str, uri: str, log: str, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(_WORKER), role, uri, ROOT, log, *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": str(code.directory)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ready(self) -> Worker:
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError(f"{_WORKER} ended before it began")
        return self

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        out, _ = self._process.communicate()
        if self._process.returncode:
            raise RuntimeError(f"{_WORKER} failed")
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {NAME}", description=__doc__)
    parser.add_argument("--ledgers", type=int, default=5_000, help="of the large commit")
    parser.add_argument("--rate", type=float, default=50.0, help="small commits a second beside it")
    parser.add_argument("--leftovers", type=int, default=1_500, help="for the reaper")
    parser.add_argument("--reaper-rate", type=float, default=17.0, help="small commits a second beside the reaper")
    parser.add_argument("--runs", type=int, default=3, help="of the large commit, and of the reaper")
    parser.add_argument("--pause", type=float, default=12.0, help="seconds before and after each")
    parser.add_argument("--peer", type=Path, help="a checkout with other code, measured in the same run")
    options = parser.parse_args(arguments)
    codes = [Code("now", Path(__file__).parents[1])]
    if options.peer is not None:
        codes.insert(0, Code("peer", options.peer))
    with (
        tempfile.TemporaryDirectory(prefix="bk-bench-") as directory,
        LocalCluster(Path(directory) / "cluster", bookies=1, start_timeout_ms=_START_TIMEOUT_MS) as cluster,
    ):
        for code in codes:
            _Bench(code, cluster.metadata_service_uri, options).run()


class _Bench:
    def __init__(self, code: Code, uri: str, options: argparse.Namespace) -> None:
        self._code = code
        self._uri = uri
        self._options = options
        self._number = 0

    def run(self) -> None:
        options = self._options
        self._measure("large", options.ledgers, options.rate)
        self._measure("reap", options.leftovers, options.reaper_rate)

    def _measure(self, role: str, size: int, rate: float) -> None:
        alone = [self._alone(role, size) for _ in range(self._options.runs)]
        alone_s = statistics.median(told["took_s"] for told in alone)
        self._figure(f"{role}.alone", alone_s, "s", size=size, runs=[round(told["took_s"], 3) for told in alone])
        told, small = self._beside(role, size, rate)
        took_s = [one["took_s"] for one in told]
        self._figure(
            f"{role}.beside",
            statistics.median(took_s),
            "s",
            ratio=round(statistics.median(took_s) / alone_s, 2),
            worst_ratio=round(max(took_s) / alone_s, 2),
            aim=10,
            rate=rate,
            runs=[round(one, 3) for one in took_s],
            errors=[one["error"] for one in told if one["error"]],
            **{name: [one[name] for one in told] for name in ("condemned", "deleted", "failed") if name in told[0]},
        )
        self._tell_small(role, told, small)

    def _tell_small(self, role: str, told: list[dict[str, Any]], small: list[dict[str, Any]]) -> None:
        began = [(at, took) for one in small for at, took in zip(one["began_s"], one["took_s"], strict=True)]
        spans = [(one["began_s"], one["took_s"]) for one in told]

        def within(at: float, least_s: float) -> bool:
            return any(start <= at <= start + max(took_s, least_s) for start, took_s in spans)

        def prepares(at: float) -> bool:
            return any(one["prepared_s"] <= at <= one["ready_s"] for one in told)

        alone = [took for at, took in began if not within(at, _BESIDE_S) and not prepares(at)]
        found = {
            "alone": alone,
            "during": [took for at, took in began if within(at, 0.0)],
            "beside": [took for at, took in began if within(at, _BESIDE_S)],
        }
        for name, values in found.items():
            if not values:
                continue
            self._figure(
                f"{role}.small.{name}.p99",
                p99(values) * 1000,
                "ms",
                ratio=round(p99(values) / p99(alone), 2),
                aim=2,
                p50_ms=round(statistics.median(values) * 1000, 1),
                most_ms=round(max(values) * 1000, 1),
                commits=len(values),
            )
        errors = [error for one in small for error in one["errors"]]
        self._figure(f"{role}.small.errors", len(errors), "commits", first=errors[:1])

    def _figure(self, name: str, value: float, unit: str, **more: object) -> None:
        figure(NAME, f"{self._code.name}.{name}", value, unit, **more)

    def _log(self) -> str:
        """Create a new log, for one figure."""
        self._number += 1
        log = f"{self._code.name}{self._number}"
        Worker(self._code, "make", self._uri, log).result()
        return log

    def _alone(self, role: str, size: int) -> dict[str, Any]:
        worker = Worker(self._code, role, self._uri, self._log(), "app", size, 0).ready()
        worker.begin()
        return _checked(worker.result())

    def _beside(self, role: str, size: int, rate: float) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the reports of the large workers, run one after another, and of the small ones."""
        log = self._log()
        every_s = _PROCESSES / rate
        with ExitStack() as stack:
            small = [
                Worker(self._code, "small", self._uri, log, f"small{number}", every_s) for number in range(_PROCESSES)
            ]
            for worker in small:
                stack.callback(worker.kill)
                worker.ready()
            for worker in small:
                worker.begin()
                # Stagger the processes.
                time.sleep(every_s / _PROCESSES)
            told = []
            for number in range(self._options.runs):
                # Only now: a reaper deletes the leftovers of all that are ready.
                prepared_s = time.time()
                worker = Worker(self._code, role, self._uri, log, f"app{number}", size, number)
                stack.callback(worker.kill)
                worker.ready()
                ready_s = time.time()
                time.sleep(self._options.pause)
                worker.begin()
                told.append(worker.result() | {"prepared_s": prepared_s, "ready_s": ready_s})
                # To prepare the next one is not part of this one.
                time.sleep(max(_BESIDE_S, self._options.pause))
            for worker in small:
                worker.begin()
            return told, [one.result() for one in small]


def _checked(told: dict[str, Any]) -> dict[str, Any]:
    if told.get("error") or told.get("errors"):
        raise RuntimeError(str(told.get("error") or told["errors"][0]))
    return told


if __name__ == "__main__":
    main(sys.argv[1:])
