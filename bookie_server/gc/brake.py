"""The brake of collection: a pass that would remove very many ledgers waits for an operator. No I/O.

Lost metadata look like deleted ledgers. So a pass counts its victims before it removes the first one. If they are many,
and a large share of all ledgers here, none is removed: the brake keeps them, with a *word* that names exactly this set.
An operator who gives the word releases these ledgers, and no others, for the next pass. The word is kept in memory
only: a restart takes it back.
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
    """A pass is stopped that would remove more than ``least`` ledgers and more than ``share`` of all (1: never)."""

    share: float = 0.5
    least: int = 100


@dataclass(frozen=True, slots=True)
class StoppedPass:
    """A pass that waits: ``ledgers`` (ascending) of the ``held`` ones here, counted at ``counted_ms`` (epoch)."""

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
    """The brake of one kind of collection; ``kind`` says what it removes. Event loop only."""

    def __init__(self, kind: str, limits: BrakeLimits, now_ms: Callable[[], int] | None = None) -> None:
        self.kind = kind
        self._limits = limits
        self._now_ms = now_ms or (lambda: int(time.time() * 1000))
        self._released: Int64s | None = None
        #: What waits for an operator; None for nothing.
        self.stopped: StoppedPass | None = None

    def stops(self, victims: Int64s, held: int) -> StoppedPass | None:
        """Stop a pass that would remove too many: ``victims`` (ascending) of ``held`` ledgers. None: go on.

        Uses up a word that was given. Ledgers that it does not name count as without it.
        """
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
        """An operator gave the word: the next pass may remove what is stopped."""
        if self.stopped is not None:
            self._released = self.stopped.ledgers

    def _word(self, victims: Int64s) -> str:
        digest = hashlib.blake2b(self.kind.encode(), digest_size=_WORD_BYTES)
        digest.update(np.ascontiguousarray(victims, np.int64).tobytes())
        return digest.hexdigest()
