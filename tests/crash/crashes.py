"""Crashes: every cut of a recording, with several disks that may be left behind; each is started and checked."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.crash.check import check, check_maps, check_that_it_goes_on
from tests.crash.choices import EXTREMES, choice_of
from tests.crash.disk import Disk
from tests.crash.expectations import CrashError, Expectations, Mark
from tests.crash.losses import Loss, directories_to_lose
from tests.crash.operations import Image, Operation, Write
from tests.crash.recorder import Recorder, materialise
from tests.crash.subject import Subject
from tests.crash.workload import Recording

#: Recoveries that crash themselves, one after the other.
_MOST_NESTED: Final = 2
#: A file system without a disk, where there is one: the model decides what is durable.
_SHARED_MEMORY: Final = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Effort:
    """How many disks are tried at each cut: extremes, torn writes and random mixtures, each with chance ``share``.
    One of ``nested`` starts is cut, too, and goes on to serve. One of ``losses`` disks loses directories, too."""

    share: float = 1.0
    torn: int = 3
    mixtures: int = 3
    nested: int = 10
    losses: int = 10


SHORT: Final = Effort(share=0.05, torn=1, mixtures=2, nested=10, losses=10)


@dataclass(slots=True)
class Counts:
    cuts: int = 0
    starts: int = 0
    nested: int = 0
    losses: int = 0
    #: Acknowledged entries that were unknown after a loss.
    unknown: int = 0
    #: Places at which something acknowledged might be lost, since its journal was not synced.
    unsynced: int = 0

    def add(self, other: Counts) -> None:
        self.cuts += other.cuts
        self.starts += other.starts
        self.nested += other.nested
        self.losses += other.losses
        self.unknown += other.unknown
        self.unsynced += other.unsynced


@dataclass(frozen=True, slots=True)
class Step:
    """Where a recording is cut, what the disk keeps (choices.py names it), and which directories are lost as well."""

    cut: int
    keeps: str
    lost: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ":".join([str(self.cut), self.keeps, *(["+".join(self.lost)] if self.lost else [])])


@dataclass(frozen=True, slots=True)
class Case:
    """One crash, or several: the second cuts the recovery from the first."""

    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return "/".join(map(str, self.steps))

    @classmethod
    def parse(cls, text: str) -> Case:
        return cls(tuple(_parse_step(*step.split(":")) for step in text.split("/")))


def _parse_step(cut: str, keeps: str, lost: str = "") -> Step:
    return Step(int(cut), keeps, tuple(lost.split("+")) if lost else ())


class CaseFailedError(AssertionError):
    """A crash after which something does not hold. ``case`` says which, ``image`` what the disk held."""

    def __init__(self, case: Case, image: Image, error: Exception) -> None:
        super().__init__(f"{case}: {error}")
        self.case = case
        self.image = image
        self.error = error


class Crashes:
    """Goes through the cuts of one recording; in a ``with`` block. Raises CaseFailedError for the first that does not
    hold."""

    def __init__(self, recording: Recording, effort: Effort, seed: int) -> None:
        self._runner = asyncio.Runner()
        self._recording = recording
        self._effort = effort
        self._rng = random.Random(seed)
        self._losses_rng = random.Random(f"losses {seed}")
        self._seen: set[tuple[int, int]] = set()
        self.counts = Counts()

    def __enter__(self) -> Crashes:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()

    def all(self) -> None:
        for cut, last, disk, expected, answered in self._cuts(self._recording):
            self.counts.cuts += 1
            self.counts.unsynced += expected.may_be_lost > 0
            for keeps in self._choices(last):
                image = disk.image(choice_of(keeps, last))
                key = (image.key(), expected.version)
                if key not in self._seen:
                    self._seen.add(key)
                    nested = bool(self._effort.nested) and self._rng.randrange(self._effort.nested) == 0
                    self._start((Step(cut, keeps),), image, expected, (), nested)
                    if self._effort.losses and self._losses_rng.randrange(self._effort.losses) == 0:
                        lost = directories_to_lose(self._recording.shape, self._losses_rng)
                        self._lose(Step(cut, keeps, lost), image, answered)

    def one(self, case: Case) -> None:
        """The same for one case."""
        first = case.steps[0]
        for cut, last, disk, expected, answered in self._cuts(self._recording):
            if cut == first.cut and first.lost:
                self._lose(first, disk.image(choice_of(first.keeps, last)), answered, case.steps[1:])
                return
            if cut == first.cut:
                self._start((first,), disk.image(choice_of(first.keeps, last)), expected, case.steps[1:], True)
                return
        raise ValueError(f"nothing is to be cut at {first.cut} of {len(self._recording.log)}")

    def _cuts(self, recording: Recording) -> Iterator[tuple[int, Operation, Disk, Expectations, Expectations]]:
        """Each place, the disk there, what must be on it, and what was answered, which other bookies have."""
        disk = Disk(recording.base, recording.numbers)
        expected = answered = Expectations(synced=recording.shape.sync_journals)
        if not recording.shape.sync_journals:
            answered = Expectations()
        for cut, item in enumerate(recording.log):
            if isinstance(item, Mark):
                expected.note(item)
                if answered is not expected:
                    answered.note(item)
                continue
            disk.apply(item)
            try:
                expected.watch_marks(item, disk)
            except CrashError as error:
                raise CaseFailedError(Case((Step(cut, "all"),)), recording.base, error) from error
            yield cut, item, disk, expected, answered

    def _choices(self, last: Operation) -> list[str]:
        effort, rng = self._effort, self._rng
        names = list(EXTREMES)
        if isinstance(last, Write) and last.data:
            size = len(last.data)
            ends = {1, size // 2, size - 1, size} | {rng.randrange(size) for _ in range(effort.torn)}
            names += [f"torn-{end}-{rng.choice(list(EXTREMES))}" for end in sorted(ends)]
        names += [f"mixture-{rng.getrandbits(32)}" for _ in range(effort.mixtures)]
        return [name for name in names if rng.random() < effort.share]

    def _start(
        self, steps: tuple[Step, ...], image: Image, expected: Expectations, todo: Sequence[Step], nested: bool
    ) -> None:
        """Start on ``image`` and check. ``nested``: kill it at once and start again; and cut the start as ``todo``
        says, or somewhere."""
        self.counts.starts += 1
        with empty_directory() as root:
            try:
                expected.check_marks(image)
                materialise(image, root)
                check_maps(root)
                recorder = Recorder(root)
                with recorder.installed():
                    self._runner.run(self._check_start(root, expected))
                    log = list(recorder.log)
                    if nested:
                        self._runner.run(self._check_start(root, expected))
                        self._runner.run(check_that_it_goes_on(root, self._recording.shape, expected))
            except CrashError as error:
                raise CaseFailedError(Case(steps), image, error) from error
        if not nested or len(steps) > _MOST_NESTED or not log:
            return
        recovery = Recording(recorder.base, recorder.numbers, log, self._recording.shape)
        wanted = todo[0].cut if todo else self._rng.randrange(len(log))
        for cut, last, disk, _, _ in self._cuts(recovery):
            if cut == wanted:
                keeps = todo[0].keeps if todo else self._rng.choice(self._choices(last) or ["all"])
                self.counts.nested += 1
                inner = disk.image(choice_of(keeps, last))
                again = bool(todo[1:]) or self._rng.random() < 0.3
                self._start((*steps, Step(cut, keeps)), inner, expected, todo[1:], again)

    def _lose(self, step: Step, image: Image, expected: Expectations, todo: Sequence[Step] = ()) -> None:
        """Start on ``image`` without the lost directories, until limbo has ended; and again, cut as ``todo`` says, or
        somewhere."""
        self.counts.losses += 1
        steps: tuple[Step, ...] = (step,)
        with empty_directory() as root:
            try:
                loss = Loss(root, self._recording.shape, image, expected, step.lost)
                log = loss.run(self._runner)
                self.counts.unknown += loss.unknown
                (then,) = todo or (self._somewhere(log),)
                steps = (step, then)
                loss.run_cut(self._runner, log, then.cut, then.keeps)
            except CrashError as error:
                raise CaseFailedError(Case(steps), image, error) from error

    def _somewhere(self, log: list[Any]) -> Step:
        return Step(self._losses_rng.randrange(len(log)), self._losses_rng.choice(list(EXTREMES)))

    async def _check_start(self, root: Path, expected: Expectations) -> None:
        try:
            subject = Subject(root, self._recording.shape)
        except Exception as error:
            raise CrashError(f"the start fails: {type(error).__name__}: {error}") from error
        try:
            await check(subject, expected)
        finally:
            subject.leave()


@contextlib.contextmanager
def empty_directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="bk-crash-", dir=_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None))
    try:
        yield path
    finally:
        shutil.rmtree(path)
