"""What a crash keeps of the pending changes: the extremes, and random mixtures by seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tests.crash.disk import SECTOR_BYTES, WORD_BYTES, Choice, FileChange, NameChange
from tests.crash.operations import Operation, Write

_PAGE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Keep:
    """All or nothing: of the names, of the contents. ``sizes``: files are as long as if all had been kept. ``newest``:
    of each directory's names at least the one that was changed last."""

    names: bool
    contents: bool
    sizes: bool = False
    newest: bool = False

    def keeps_name(self, directory: str, change: NameChange, is_newest: bool) -> bool:
        return self.names or (self.newest and is_newest)

    def keeps(self, change: FileChange) -> bool:
        return self.contents

    def parts(self, write: Write, old_size: int) -> Iterable[tuple[int, int]]:
        return [(0, len(write.data))]

    def keeps_size(self, change: FileChange) -> bool:
        return self.sizes


ALL: Final = Keep(names=True, contents=True)

EXTREMES: Final = {
    "all": ALL,
    "nothing": Keep(names=False, contents=False),
    "names": Keep(names=True, contents=False),
    "contents": Keep(names=False, contents=True),
    "sizes": Keep(names=True, contents=False, sizes=True),
    "newest": Keep(names=False, contents=True, newest=True),
}


@dataclass(frozen=True, slots=True)
class Torn:
    """The last write is there up to byte ``end``; of what was pending before it, what ``rest`` keeps."""

    last: Write
    end: int
    rest: Keep

    def keeps_name(self, directory: str, change: NameChange, is_newest: bool) -> bool:
        return self.rest.keeps_name(directory, change, is_newest)

    def keeps(self, change: FileChange) -> bool:
        return change is self.last or self.rest.keeps(change)

    def parts(self, write: Write, old_size: int) -> Iterable[tuple[int, int]]:
        return [(0, _torn_at(write, self.end, old_size))] if write is self.last else [(0, len(write.data))]

    def keeps_size(self, change: FileChange) -> bool:
        return change is not self.last and self.rest.keeps_size(change)


@dataclass(slots=True)
class Mixture:
    """Some by chance: how likely something is kept is drawn per file and per directory, so that a crash that keeps
    all of one file and nothing of another is no rare case."""

    rng: random.Random
    _odds: dict[int | str, float] = field(default_factory=dict)

    def keeps_name(self, directory: str, change: NameChange, is_newest: bool) -> bool:
        return self.rng.random() < self._odds_of(directory)

    def keeps(self, change: FileChange) -> bool:
        return self.rng.random() < self._odds_of(change.file)

    def parts(self, write: Write, old_size: int) -> Iterable[tuple[int, int]]:
        size = len(write.data)
        kind = self.rng.random()
        if kind < 0.6 or size < 2:
            return [(0, size)]
        if kind < 0.8:
            return [(0, _torn_at(write, self.rng.randrange(size), old_size))]
        step = self.rng.choice((SECTOR_BYTES, _PAGE_BYTES))
        edges = [0, *range(step - write.offset % step, size, step), size]
        return [(a, b) for a, b in itertools.pairwise(edges) if self.rng.random() < 0.5]

    def keeps_size(self, change: FileChange) -> bool:
        return self.rng.random() < 0.3

    def _odds_of(self, what: int | str) -> float:
        if what not in self._odds:
            self._odds[what] = self.rng.choice((0.0, 0.0, 0.5, 1.0, 1.0))
        return self._odds[what]


def _torn_at(write: Write, end: int, old_size: int) -> int:
    """``end`` as it can be: within what was there before, and in a file's first sector, sectors are whole; elsewhere
    words of eight bytes are."""
    unit = WORD_BYTES if write.offset + end >= max(old_size, SECTOR_BYTES) else SECTOR_BYTES
    return max(0, (write.offset + end) // unit * unit - write.offset) if end < len(write.data) else end


def choice_of(name: str, last: Operation) -> Choice:
    """The choice of this name, for a cut after, or within, ``last``: an extreme, ``torn-<end>-<extreme>``, or
    ``mixture-<seed>``."""
    kind, _, rest = name.partition("-")
    if kind == "mixture":
        return Mixture(random.Random(int(rest)))
    if kind == "torn":
        end, _, extreme = rest.partition("-")
        assert isinstance(last, Write)
        return Torn(last, int(end), EXTREMES[extreme])
    return EXTREMES[name]
