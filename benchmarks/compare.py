"""``python -m benchmarks.compare BASE NAME [options]``: any benchmark on two commits in turn, and the ratios.

The files of commit BASE are unpacked into a temporary directory. Each side runs its own benchmark of that name, with
this Python and its packages, in a process of its own: base first in one round, last in the next. Every figure that both
sides print becomes one JSON line: the ratio of this checkout to BASE, as the median of the rounds with the lowest and
the highest, and both medians. ``run.cpu`` is added: CPU seconds of the whole run with all its servers.

With ``--limit`` the exit status is 1 if a figure of CPU time exceeds the limit; ``--judge`` chooses others, of which
lower values must be better. They are judged by the lowest value of each side, which other programs disturb least. While
one exceeds the limit, as many rounds again are run, up to four times. Then it must exceed the limit by the medians,
too: of ten rounds, one that found the machine at its fastest is the lowest.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[1]
_RUN_TIMEOUT_S: Final = 3_600.0
#: Rounds that are added before a loss counts, as multiples of the first ones.
_MORE_TRIES: Final = 4
_SIDES: Final = ("base", "here")

#: Benchmark, figure, and what else tells it from others, such as a size.
Key = tuple[str, ...]
#: Of one side: the values of each figure, by round.
Values = dict[Key, list[float]]


def main(arguments_given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--limit", type=float, default=math.inf, help="the highest ratio of the figures that are judged"
    )
    parser.add_argument("--judge", type=re.compile, default=re.compile("cpu"), metavar="REGEX", help="which: cpu")
    parser.add_argument("base", metavar="BASE", help="commit, tag or branch")
    parser.add_argument("benchmark", metavar="NAME", help="as python -m benchmarks takes it")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="of the benchmark")
    arguments = parser.parse_args(arguments_given)
    with _unpacked(arguments.base) as base:
        trees = {"base": base, "here": _ROOT}
        for tree in trees.values():
            _check_imports_come_from(tree)

        def run(side: str, values: Values) -> None:
            _run(trees[side], [arguments.benchmark, *arguments.options], values)

        found, lost = rounds_and_losses(run, arguments.rounds, arguments.limit, arguments.judge)
    judged = [key for key in found["base"] if key in found["here"] and arguments.judge.search(key[1])]
    if arguments.limit < math.inf and not judged:
        sys.exit(f"--judge {arguments.judge.pattern}: no figure of both sides has such a name, so nothing was judged")
    told = _tell(found, arguments.base)
    for line in lost:
        print(line, file=sys.stderr)
    return 1 if lost or not told else 0


@contextmanager
def _unpacked(commit: str) -> Iterator[Path]:
    asked = ["git", "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"]
    found = subprocess.run(asked, cwd=_ROOT, check=False, capture_output=True, text=True)
    if found.returncode:
        sys.exit(f"{commit} is no commit of this checkout; a shallow clone lacks old ones (git fetch --unshallow)")
    with tempfile.TemporaryDirectory() as name:
        archive = Path(name, "archive.tar")
        with archive.open("wb") as file:
            subprocess.run(["git", "archive", found.stdout.strip()], cwd=_ROOT, stdout=file, check=True)
        tree = Path(name, "tree")
        with tarfile.open(archive) as packed:
            packed.extractall(tree, filter="data")
        archive.unlink()
        yield tree


def _environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree)}


def _check_imports_come_from(tree: Path) -> None:
    """An editable install puts this checkout on the path, too: make sure that it does not come first."""
    asked = [sys.executable, "-c", "import bk_spark, bookie_server; print(bk_spark.__file__, bookie_server.__file__)"]
    told = subprocess.run(asked, cwd=tree, env=_environment(tree), capture_output=True, text=True, check=True).stdout
    if not all(Path(each).is_relative_to(tree) for each in told.split()):
        sys.exit(f"Python imports {told.split()}, not the modules in {tree}")


def _run(tree: Path, command: Sequence[str], values: Values) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *command],
        cwd=tree,
        env=_environment(tree),
        stdout=subprocess.PIPE,
        text=True,
        timeout=_RUN_TIMEOUT_S,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed in {tree} with exit status {done.returncode}")
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            told = json.loads(line)
            values[key_of(told)].append(float(told["value"]))
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    values[(command[0], "run.cpu", "s")].append(used_s)


def key_of(told: dict[str, object]) -> Key:
    """Return what tells a figure from the others of the same run."""
    # Other numbers are measured, too, such as the spread. But a size says what was measured.
    more = [f"{name}={value}" for name, value in told.items() if isinstance(value, str) or name == "size"]
    named = [each for each in more if each.partition("=")[0] not in ("benchmark", "figure", "unit")]
    return (str(told["benchmark"]), str(told["figure"]), str(told["unit"]), *named)


def rounds_and_losses(
    run: Callable[[str, Values], None], rounds: int, limit: float, judged: re.Pattern[str]
) -> tuple[dict[str, Values], list[str]]:
    """Let ``run`` add the values of a side, round by round. Return those of both sides, and a line for each loss."""
    found: dict[str, Values] = {side: defaultdict(list) for side in _SIDES}
    for _ in range(1 + _MORE_TRIES):
        for number in range(rounds):
            for side in _SIDES if number % 2 == 0 else reversed(_SIDES):
                run(side, found[side])
        by_lowest = losses(found["base"], found["here"], limit, judged, min)
        if not by_lowest:
            return found, []
    by_medians = losses(found["base"], found["here"], limit, judged, statistics.median)
    lost = [key for key in by_lowest if key in by_medians]
    return found, [f"{' '.join(key)}: lowest {by_lowest[key]}, medians {by_medians[key]}" for key in lost]


def losses(
    base: Values, here: Values, limit: float, judged: re.Pattern[str], of: Callable[[list[float]], float]
) -> dict[Key, str]:
    """Say of each figure that exceeds ``limit`` times the base's by how much. ``of``: of its values, such as min."""
    lost = {}
    for key, before in base.items():
        now = here.get(key)
        if not now or not judged.search(key[1]) or not of(before):
            continue
        ratio = of(now) / of(before)
        if ratio > limit:
            lost[key] = f"{ratio:.2f} times the base ({of(before):.4g} -> {of(now):.4g})"
    return lost


def _tell(found: dict[str, Values], commit: str) -> int:
    """Print a line for each figure that both sides have. Return their number."""
    told = 0
    for key, base in found["base"].items():
        here = found["here"].get(key, [])
        ratios = [now / then for then, now in zip(base, here, strict=False) if then]
        if not ratios:
            continue
        benchmark, figure, unit, *more = key
        line = {
            "benchmark": benchmark,
            "figure": figure,
            **dict(each.split("=", 1) for each in more),
            "value": round(statistics.median(ratios), 4),
            "unit": f"times {commit}",
            "lowest": round(min(ratios), 4),
            "highest": round(max(ratios), 4),
            "base": statistics.median(base),
            "here": statistics.median(here),
            "unit_of_both": unit,
            "rounds": len(ratios),
        }
        print(json.dumps(line), flush=True)
        told += 1
    return told


if __name__ == "__main__":
    sys.exit(main())
