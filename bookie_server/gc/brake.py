"""The brake of collection: what would remove very much at once waits for an operator. No I/O.

Metadata that were lost look like ledgers that were deleted. So a pass counts its victims before it removes the first.
Where they are many, and a large share of all ledgers here, none goes; the brake keeps them, with a *word* that names
exactly this set. An operator who gives the word releases these ledgers, and no others, for the next pass that counts.
The word is kept in memory alone: a restart takes it back.
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
class BrakeLimits:
    """More than ``least`` ledgers that are more than ``share`` of all here are too many; a share of 1 turns it off."""

    share: float = 0.5
    least: int = 100


@dataclass(frozen=True, slots=True)
class StoppedPass:
    """What waits: ``ledgers`` (ascending) of ``held`` that are here, counted at ``counted_ms`` (epoch)."""

    ledgers: Int64s
    held: int
    counted_ms: int
    word: str

    @property
    def named(self) -> list[int]:
        """The first few."""
        first: list[int] = self.ledgers[:_NAMED].tolist()
        return first


class Brake:
    """Of one kind of collection; ``kind`` says what it removes. Event loop only."""

    def __init__(self, kind: str, limits: BrakeLimits, now_ms: Callable[[], int] | None = None) -> None:
        self.kind = kind
        self._limits = limits
        self._now_ms = now_ms or (lambda: int(time.time() * 1000))
        self._released: Int64s | None = None
        #: What waits for an operator; None for nothing.
        self.stopped: StoppedPass | None = None

    def stops(self, victims: Int64s, held: int) -> StoppedPass | None:
        """Whether a pass that would remove ``victims`` (ascending) of ``held`` ledgers must not. Uses up the word: of
        ledgers that it does not name, only so many may go as without it."""
        released, self._released = self._released, None
        unnamed = len(victims) if released is None else len(np.setdiff1d(victims, released, assume_unique=True))
        self.stopped = None
        if unnamed > self._limits.least and unnamed > self._limits.share * held:
            self.stopped = StoppedPass(victims, held, self._now_ms(), self._word(victims))
        return self.stopped

    @property
    def released(self) -> int:
        """Ledgers that an operator released for the next pass."""
        return 0 if self._released is None else len(self._released)

    def release(self) -> None:
        """An operator gave the word of what is stopped."""
        if self.stopped is not None:
            self._released = self.stopped.ledgers

    def _word(self, victims: Int64s) -> str:
        digest = hashlib.blake2b(self.kind.encode(), digest_size=_WORD_BYTES)
        digest.update(np.ascontiguousarray(victims, np.int64).tobytes())
        return digest.hexdigest()
