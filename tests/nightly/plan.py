"""The runs of a night: the command of each, how many seeds it takes at a time, and its share of the time."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.support.sparks import OF_EVERY_RELEASE, RELEASES

#: All that are supported, as the package's classifiers say.
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
_PYTHON: Final = sys.executable
_PYTEST: Final = (_PYTHON, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider")
#: A number and the word or two that it counts, as the runs print them: "250 histories", "12 ensemble changes".
_FIGURE: Final = re.compile(r"\b(\d+) ([a-z][a-z-]*(?: [a-z][a-z-]*)?)")
#: What runs print for a person to repeat a failure. Their logs say "again", too.
_REPEAT: Final = re.compile(r"(?:^(?:E +)?again: |repeat with:? )(.+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Run:
    """One kind of run."""

    name: str
    #: What is called for the seeds ``first`` to ``last``, both included.
    command: Callable[[int, int], list[str]]
    #: Seeds that one call takes. The time is looked at between calls.
    seeds: int
    #: Part of its lane's time, beside the parts of the others.
    share: float
    #: Lines of the output that have figures for the report.
    figures: re.Pattern[str]
    #: The environment variable that names the seeds, if the command does not.
    variable: str = ""
    #: The one line that repeats the seeds. Runs that print a better one need none.
    repeat: Callable[[int, int], str] = lambda first, last: ""

    def environment(self, first: int, last: int) -> dict[str, str]:
        return {self.variable: f"{first}-{last}"} if self.variable else {}

    def counts(self, output: str) -> Counter[str]:
        """Sum what the output's lines with figures count."""
        found: Counter[str] = Counter()
        for line in filter(self.figures.search, output.splitlines()):
            for number, what in _FIGURE.findall(line):
                found[what] += int(number)
        return found


def lines_that_repeat(output: str) -> list[str]:
    """The lines, each once, that the output of a failed run gives for its repetition."""
    return list(dict.fromkeys(line.strip() for line in _REPEAT.findall(output)))


def _simulation(kind: str, seeds: int, share: float) -> Run:
    flag = [] if kind == "ledgers" else [f"--{kind}"]
    return Run(
        f"simulation of {kind}",
        lambda first, last: [_PYTHON, "-m", "tests.simulation", "run", f"{first}..{last + 1}", "--jobs", "1", *flag],
        seeds,
        share,
        re.compile(r"^\d+ histories"),
    )


def _pytest(name: str, tests: list[str], share: float, figures: str, variable: str, target: str, seeds: int = 1) -> Run:
    return Run(
        name,
        lambda first, last: [*_PYTEST, *tests],
        seeds,
        share,
        re.compile(figures),
        variable,
        lambda first, last: f"make {target} SEEDS={first}-{last}",
    )


def _spark_release(release: str) -> Run:
    """The tests of the data source with one release of Spark, once in a night as a rule."""
    return Run(
        f"Spark {release}",
        lambda first, last: [_PYTHON, "-m", "tests.support.sparks", release, *OF_EVERY_RELEASE],
        1,
        0.1,
        re.compile(r"^\d+ passed"),
        repeat=lambda first, last: f"make sparks RELEASE={release}",
    )


def with_another_python(night: int) -> tuple[Run, ...]:
    """Unit tests, decoders and the data source with another release of Python that this machine has, every night with
    the next one. No run if there is no other."""
    own = "{}.{}".format(*sys.version_info[:2])
    found = [release for release in PYTHONS if release != own and _runs(f"python{release}")]
    return (_python_release(found[night % len(found)]),) if found else ()


def _runs(program: str) -> bool:
    """A name on PATH may not run (pyenv's shims)."""
    found = shutil.which(program)
    return found is not None and not subprocess.run([found, "--version"], capture_output=True, timeout=60).returncode


def _python_release(release: str) -> Run:
    arguments = [f"VENV=.venv-{release}", f"PYTHON=python{release}", "PYTEST_ARGS=-m 'unit or fuzz or every_spark'"]
    return Run(
        f"Python {release}",
        lambda first, last: ["make", "test", *arguments, "TEST_PROCESSES=0"],
        1,
        0.1,
        re.compile(r"\b\d+ passed"),
        repeat=lambda first, last: shlex.join(["make", "test", *arguments]),
    )


#: Models: each uses one core.
MODELS: Final = (
    _simulation("ledgers", 2_000, 2.0),
    _simulation("logs", 500, 2.0),
    _simulation("collection", 500, 1.0),
    _simulation("auditing", 100, 2.0),
    _simulation("replication", 1_000, 1.0),
    Run(
        "crashes",
        lambda first, last: [_PYTHON, "-m", "tests.crash", "run", f"{first}-{last}", "--jobs", "1"],
        1,
        2.0,
        re.compile(r"^\d+ runs"),
        repeat=lambda first, last: f"make crash SEEDS={first}-{last}",
    ),
)

#: Bytes that nobody should have sent, and rules of the source that are broken on purpose.
DECODERS_AND_MUTANTS: Final = (
    Run(
        "fuzzing",
        lambda first, last: [_PYTHON, "-m", "tests.fuzz", f"{first}-{last}", "--factor", "10"],
        1,
        2.0,
        re.compile(r"^\d+ examples"),
        repeat=lambda first, last: f"make fuzz SEEDS={first}-{last} FACTOR=10",
    ),
    Run(
        "mutants",
        lambda first, last: [_PYTHON, "-m", "tests.mutation", "--turn", str(first), "--jobs", "1"],
        1,
        1.0,
        re.compile(r"^\d+ mutations found"),
        repeat=lambda first, last: f"python -m tests.mutation --turn {first}",
    ),
)

#: Real servers: one run at a time, since each has up to a dozen processes, which mostly wait.
SERVERS: Final = (
    # Of one seed alone nobody can say whether its faults should have had an effect.
    _pytest(
        "faults",
        ["tests/faults/test_continuous_write.py"],
        1.0,
        "entries acknowledged while",
        "FAULT_SEEDS",
        "faults",
        seeds=3,
    ),
    _pytest(
        "healing", ["tests/faults/healing"], 1.5, "entries acknowledged while|^hits by", "HEAL_SEEDS", "heal-faults"
    ),
    _pytest(
        "streams",
        ["tests/faults/streams", "-k", "every_row_once"],
        1.5,
        r"^\d+ rows in",
        "STREAM_FAULT_SEEDS",
        "stream-faults",
    ),
    Run(
        "tests that take turns",
        lambda first, last: [*_PYTEST, "-m", "turns", "tests"],
        1,
        0.5,
        re.compile(r"^\d+ passed"),
        repeat=lambda first, last: 'make test PYTEST_ARGS="-m turns"',
    ),
    *map(_spark_release, RELEASES),
    _pytest(
        "directories handed over",
        ["tests/interop/test_directories_handed_over.py", "-k", "every_order"],
        0.3,
        r"^\d+ starts",
        "HANDED_OVER_SEEDS",
        "handed-over",
    ),
)
