"""The machine that makes the copies of one ledger in limbo whole, at the bookie that lost them. No I/O.

1. If the ledger is not closed and the bookie is in its last segment, recover it first. The bookie votes "unknown"
   meanwhile. Only a recovery settles which entries the ledger has.
2. Copy what the bookie should have and lacks from the other members of each fragment
   (:class:`~bk_spark.protocol.replication.copying.fragment_copy.FragmentCopy`): verified by digest, at a limited rate.
3. If nothing is missing any more, end limbo.

Nothing of this needs the ledger's lock: metadata do not change, and name the bookie already.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.errors import NoSuchLedgerError
from bk_spark.protocol.machine import EndedBy, Succeeded
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState
from bk_spark.protocol.replication.actions import (
    FragmentProblem,
    LedgerFound,
    LedgerRecovered,
    ReadLedger,
    RecoverLedger,
    RequestAction,
    RequestEvent,
)
from bk_spark.protocol.replication.copying.copy_limits import CopyLimits, CopyResult
from bk_spark.protocol.replication.copying.fragment_copy import FragmentCopy
from bk_spark.protocol.replication.fragments import Fragment, fragments_of
from bk_spark.protocol.replication.nested_steps import NestedSteps
from bk_spark.protocol.replication.problems import fragment_problem, summary, why_not_copied


@dataclass(frozen=True, slots=True)
class ReadState:
    """Find out what this bookie knows about the ledger: :class:`StateFound`."""


@dataclass(frozen=True, slots=True)
class ReadOwn:
    """Find out which of these entries this bookie can read: :class:`OwnFound`."""

    first_entry_id: int
    last_entry_id: int


@dataclass(frozen=True, slots=True)
class EndLimbo:
    """Call missing entries of the ledger absent from now on: :class:`LimboEnded`."""


@dataclass(frozen=True, slots=True)
class StateFound:
    """``in_limbo`` is False if the ledger is not here any more, or was never in limbo."""

    in_limbo: bool
    fenced: bool


@dataclass(frozen=True, slots=True)
class OwnFound:
    """The ids are ascending."""

    entry_ids: Int64s


@dataclass(frozen=True, slots=True)
class LimboEnded:
    """Limbo has ended."""


@dataclass(frozen=True, slots=True)
class Whole:
    """Nothing is missing. ``entries`` with ``size_bytes`` were copied."""

    recovered: bool = False
    entries: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class NotWhole:
    """The ledger stays in limbo, for this ``reason``."""

    reason: str


@dataclass(frozen=True, slots=True)
class NothingToCheck:
    """The ledger was deleted, or is not in limbo."""


LimboResult = Whole | NotWhole | NothingToCheck
LimboAction = ReadLedger | RecoverLedger | ReadState | ReadOwn | EndLimbo | RequestAction
LimboEvent = LedgerFound | LedgerRecovered | StateFound | OwnFound | LimboEnded | RequestEvent
_SINGLE_EVENTS: Final = (LedgerFound, LedgerRecovered, StateFound, OwnFound, LimboEnded)
#: After this many problems with a ledger, no more of it is copied for now.
_MOST_PROBLEMS: Final = 10
#: Entries that are looked up at a time. One step compares them, in the event loop of a bookie that serves.
ENTRIES_AT_ONCE: Final = 65_536


def votes_about_end(metadata: LedgerMetadata, bookie_id: str) -> bool:
    """Whether a recovery would ask this bookie where the ledger ends."""
    return metadata.state is not LedgerState.CLOSED and bookie_id in metadata.last_segment.ensemble


class LimboCheck:
    """Checks one ledger of the bookie ``bookie_id``. Its result is a :data:`LimboResult`.

    Errors of ZooKeeper, of the bookie's disks, and of a recovery end it.
    """

    def __init__(self, ledger_id: int, bookie_id: str, limits: CopyLimits) -> None:
        self._ledger_id = ledger_id
        self._bookie_id = bookie_id
        self._limits = limits
        self._request_ids: Iterator[int] = itertools.count(1)
        self._entries = self._size_bytes = 0
        self._problems: list[FragmentProblem] = []
        self._steps: NestedSteps[LimboAction, LimboEvent, LimboResult] = NestedSteps(self._run())

    @property
    def outcome(self) -> Succeeded[LimboResult] | EndedBy | None:
        """None until the check ends."""
        return self._steps.outcome

    def take_actions(self) -> list[LimboAction]:
        """The new actions of the check, or of the copy that it runs."""
        return self._steps.take_actions()

    def handle(self, event: LimboEvent) -> None:
        """Take an event. A late answer to a copy that has ended is ignored."""
        # A copy that has ended may still get answers.
        if self._steps.nested or isinstance(event, _SINGLE_EVENTS):
            self._steps.handle(event)

    def fail(self, error: Exception) -> None:
        """Report an error of an action without ``request_id``."""
        self._steps.fail(error)

    def _run(self) -> Generator[Any, Any, LimboResult]:
        recovered = False
        try:
            stored: LedgerFound = yield ReadLedger()
            own: StateFound = yield ReadState()
            # Without a fence the bookie came into the last segment after it was marked. It has seen everything since.
            if own.in_limbo and own.fenced and votes_about_end(stored.metadata, self._bookie_id):
                yield RecoverLedger(stored.metadata)
                recovered = True
                stored = yield ReadLedger()
                own = yield ReadState()
        except NoSuchLedgerError:
            return NothingToCheck()
        if not own.in_limbo:
            return NothingToCheck()
        for block, position in self._blocks(stored.metadata):
            yield from self._fill(stored.metadata, block, position)
            if len(self._problems) >= _MOST_PROBLEMS:
                break
        if self._problems:
            return NotWhole(summary(self._problems))
        yield EndLimbo()
        return Whole(recovered, self._entries, self._size_bytes)

    def _fill(self, metadata: LedgerMetadata, block: Fragment, position: int) -> Generator[Any, Any, None]:
        """Copy what is missing of ``block``. An entry that nobody has does not keep others from being copied."""
        lost: set[int] = set()
        complete = False
        while not complete:
            complete = True
            held: OwnFound = yield ReadOwn(block.first_entry_id, block.last_entry_id)
            for part in _missing(block, position, held.entry_ids, np.array(sorted(lost), np.int64)):
                result: CopyResult = yield FragmentCopy(
                    self._ledger_id,
                    metadata,
                    part,
                    {position: self._bookie_id},
                    {position},
                    self._limits,
                    request_ids=self._request_ids,
                )
                self._entries += result.entries
                self._size_bytes += result.size_bytes
                if position in result.copied:
                    continue
                reason = why_not_copied(result.failed_targets, result.unreadable)
                self._problems.append(fragment_problem(part, [position], reason, tuple(result.unreadable)))
                if not result.unreadable or len(self._problems) >= _MOST_PROBLEMS:
                    return
                lost.update(result.unreadable)
                complete = False

    def _blocks(self, metadata: LedgerMetadata) -> Iterator[tuple[Fragment, int]]:
        """Yield the closed fragments of this bookie in parts of a bounded length, with its position."""
        nothing = metadata.last_segment.first_entry_id - 1
        for fragment in fragments_of(metadata, nothing):
            if self._bookie_id in fragment.ensemble:
                position = fragment.ensemble.index(self._bookie_id)
                for first in range(fragment.first_entry_id, fragment.last_entry_id + 1, ENTRIES_AT_ONCE):
                    last = min(fragment.last_entry_id, first + ENTRIES_AT_ONCE - 1)
                    yield replace(fragment, first_entry_id=first, last_entry_id=last), position


def _missing(fragment: Fragment, position: int, held: Int64s, lost: Int64s) -> Iterator[Fragment]:
    """Yield the parts of a fragment of which ``position`` stores entries, and none of them is ``held`` or ``lost``."""
    series = [np.arange(part.start, part.stop, part.step, dtype=np.int64) for part in fragment.series((position,))]
    if not series:
        return
    stored = np.sort(np.concatenate(series))
    missing = np.flatnonzero(~(np.isin(stored, held, assume_unique=True) | np.isin(stored, lost)))
    if not len(missing):
        return
    for run in np.split(missing, np.flatnonzero(np.diff(missing) > 1) + 1):
        yield replace(fragment, first_entry_id=int(stored[run[0]]), last_entry_id=int(stored[run[-1]]))
