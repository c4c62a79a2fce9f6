"""The brake of collection: a pass that would remove too many ledgers waits for an operator. No I/O.

Lost metadata looks like deleted ledgers. So a pass counts its victims before it removes the first one. If there are
many, and they are a large share of all ledgers of the bookie, the pass removes none. The brake then shows a *word* that
identifies exactly this set of ledgers. An operator who gives the word releases these ledgers, and no others, for the
next pass. The word is kept in memory only, so a restart cancels the release.

A single ledger is enough if the counter of ledger ids has not reached its id: then ZooKeeper was probably set back to
an older state, in which ledgers that were created since do not exist. The pass removes no other ledger either, because
the counter may have gone on since, beyond the ids of some lost ledgers. Ids that clients choose look the same. So an
operator can switch this rule off, and it does not hold while the counter has given no id. That also hides that
ZooKeeper was set back to a state before the first id.
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
    """A pass is stopped if it would remove more than ``least`` ledgers and more than ``share`` of all. With
    ``ids_not_given`` it is also stopped if it would remove a ledger whose id was not given yet."""

    share: float = 0.5
    least: int = 100
    ids_not_given: bool = True


@dataclass(frozen=True, slots=True)
class StoppedCollection:
    """A pass that waits for an operator. It would remove ``ledgers`` (ascending) of the bookie's ``held`` ledgers. They
    were counted at ``counted_ms`` (epoch). ``many``: they are too many at once. The counter of ids has not given the
    ids ``not_given`` (ascending)."""

    ledgers: Int64s
    held: int
    counted_ms: int
    word: str
    many: bool
    not_given: Int64s

    @property
    def named(self) -> list[int]:
        """A few ledgers: first those whose ids were not given."""
        first = self.not_given[:_NAMED]
        others = np.setdiff1d(self.ledgers[: 2 * _NAMED], first, assume_unique=True)
        named: list[int] = np.concatenate((first, others))[:_NAMED].tolist()
        return named

    @property
    def why(self) -> str:
        """Each reason for the stop."""
        reasons = ["too many at once"] if self.many else []
        if len(self.not_given):
            reasons.append(
                f"ZooKeeper has not given the ids of {len(self.not_given)} of them: it was probably set back, or "
                "clients choose ids (then set gcBrakeIdsNotGiven=false)"
            )
        return "; ".join(reasons)


class CollectionBrake:
    """The brake of one kind of collection. ``kind`` says which ledgers it removes. Event loop only."""

    def __init__(self, kind: str, limits: CollectionBrakeLimits, now_ms: Callable[[], int] | None = None) -> None:
        self.kind = kind
        self._limits = limits
        self._now_ms = now_ms or (lambda: int(time.time() * 1000))
        self._released: Int64s | None = None
        #: The pass that waits for an operator, if any.
        self.stopped: StoppedCollection | None = None

    def stops(self, victims: Int64s, held: int, next_id: int = 0) -> StoppedCollection | None:
        """Decide whether a pass may remove ``victims`` (ascending) of ``held`` ledgers. Return None if it may.

        ``next_id`` is what the counter of ids gives next; 0 if it has given none, or does not matter. This uses up a
        release. Ledgers that were not released count as if there were none.
        """
        released, self._released = self._released, None
        unnamed = victims if released is None else np.setdiff1d(victims, released, assume_unique=True)
        not_given = unnamed[unnamed >= next_id] if next_id and self._limits.ids_not_given else unnamed[:0]
        self.stopped = None
        many = len(unnamed) > self._limits.least and len(unnamed) > self._limits.share * held
        if many or len(not_given):
            self.stopped = StoppedCollection(victims, held, self._now_ms(), self._word(victims), many, not_given)
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
