"""The brake of collection: a pass that would remove too many ledgers waits for an operator. No I/O.

Lost metadata looks like deleted ledgers. So a pass counts its victims before it removes the first one. If there are
many, and they are a large share of all ledgers of the bookie, the pass removes none. The brake then shows a *word* that
identifies exactly this set of ledgers. An operator who gives the word releases these ledgers, and no others, for the
next pass. The word is kept in memory only, so a restart cancels the release.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from bk_spark.protocol.arrays import Int64s

_WORD_BYTES: Final = 6
_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class CollectionBrakeLimits:
    """A pass is stopped if it would remove more than ``least`` ledgers and more than ``share`` of all (1: never)."""

    share: float = 0.5
    least: int = 100


@dataclass(frozen=True, slots=True)
class StoppedCollection:
    """A pass that waits for an operator. It would remove ``ledgers`` (ascending) of the bookie's ``held`` ledgers. They
    were counted at ``counted_ms`` (epoch)."""

    ledgers: Int64s
    held: int
    counted_ms: int
    word: str

    @property
    def named(self) -> list[int]:
        """The first few ledgers."""
        first: list[int] = self.ledgers[:_NAMED].tolist()
        return first


class CollectionBrake:
    """The brake of one kind of collection. ``kind`` says which ledgers it removes. Event loop only."""

    def __init__(self, kind: str, limits: CollectionBrakeLimits, now_ms: Callable[[], int] | None = None) -> None:
        self.kind = kind
        self._limits = limits
        self._now_ms = now_ms or (lambda: int(time.time() * 1000))
        self._released: Int64s | None = None
        #: The pass that waits for an operator, if any.
        self.stopped: StoppedCollection | None = None

    def stops(self, victims: Int64s, held: int) -> StoppedCollection | None:
        """Decide whether a pass may remove ``victims`` (ascending) of ``held`` ledgers. Return None if it may.

        This uses up a release. Ledgers that were not released count as if there were none.
        """
        released, self._released = self._released, None
        unnamed = len(victims) if released is None else len(np.setdiff1d(victims, released, assume_unique=True))
        self.stopped = None
        if unnamed > self._limits.least and unnamed > self._limits.share * held:
            self.stopped = StoppedCollection(victims, held, self._now_ms(), self._word(victims))
        return self.stopped

    @property
    def released(self) -> int:
        """Number of ledgers that an operator released for the next pass."""
        return 0 if self._released is None else len(self._released)

    def release(self) -> None:
        """Let the next pass remove the stopped ledgers."""
        if self.stopped is not None:
            self._released = self.stopped.ledgers

    def _word(self, victims: Int64s) -> str:
        digest = hashlib.blake2b(self.kind.encode(), digest_size=_WORD_BYTES)
        digest.update(np.ascontiguousarray(victims, np.int64).tobytes())
        return digest.hexdigest()
