"""Which ledgers are removed, and in which order that is found out. No I/O.

Generators that yield steps and are sent what each found. What fails is thrown into them; they then take back what they
hold and let the error pass. ``ledger_collection.py`` and ``over_replication.py`` drive them in the bookie,
``tests/simulation/collection`` in a model world.

1. *Count.* Every ledger here is compared with the store; victims are noted. Nothing is removed yet.
2. *Brake.* Too many victims at once: an operator decides (brake.py).
3. *Remove*, a few at a time: mark them, so that nothing more is taken of them; bring the store's server up to date;
   read their znodes again; remove those that still may go; take back the other marks.

The order in 3 is what keeps a ledger that is made again under its old id. An entry that was acknowledged before the
mark has its znode before that, so the reading after the mark sees it. An entry that comes after the mark is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.errors import MetadataFormatError
from bk_spark.protocol.metadata import ledger_metadata
from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from bookie_server.gc.brake import Brake, StoppedPass

_LOG: Final = logging.getLogger(__name__)
#: Znodes read in one step.
READS_AT_ONCE: Final = 256
#: Ledgers marked at once: an id that is made again is refused here for as long as these take.
MARKED_AT_ONCE: Final = 64
#: Up to so many local ledgers of a range are read one by one: cheaper than a list of up to 10,000 names.
DIRECT_READS: Final = 16


@dataclass(slots=True)
class LedgerPass:
    """What a pass did. ``problem`` is "" where it came to its end; ``stopped`` is what the brake held back;
    ``foreign_cluster``: ZooKeeper is not that of the bookie's cluster."""

    deleted: list[int] = field(default_factory=list)
    failed: int = 0
    problem: str = ""
    stopped: StoppedPass | None = None
    foreign_cluster: bool = False


# --- steps ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SyncStore:
    """Bring the store's server up to date, in the session that all readings up to the next one must be of."""


@dataclass(frozen=True, slots=True)
class ListRange:
    """List the store's ledgers in the range of these. Sent: those of ``ledger_ids`` that the list lacks. A list may be
    a part of the truth (scenario B8), so it never decides."""

    ledger_ids: list[int]


@dataclass(frozen=True, slots=True)
class ReadLedgers:
    """Read their znodes. Sent: content by ledger id, None for one that the store says is absent."""

    ledger_ids: list[int]


@dataclass(frozen=True, slots=True)
class ReadLocked:
    """Read a ledger's znode along with the lock and the mark of replication. Sent: LockedLedger."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class LockedLedger:
    """``content`` is None where the store says it is absent; ``locked``: by this bookie's session; ``marked`` as
    under-replicated."""

    content: bytes | None
    locked: bool
    marked: bool


@dataclass(frozen=True, slots=True)
class TakeLock:
    """Take the ledger's replication lock. Sent: whether this bookie has it."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class ReleaseLock:
    ledger_id: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Take nothing more of these ledgers; wait until what was taken is decided. Sent: those that are here, and the
    number of those of which that cannot be found out."""

    ledger_ids: list[int]


@dataclass(frozen=True, slots=True)
class Unmark:
    """Those that were not removed serve again."""

    ledger_ids: list[int]


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove these, which are marked. Sent: those that went, and the number of those that could not."""

    ledger_ids: list[int]


@dataclass(frozen=True, slots=True)
class SyncDeletions:
    """Make the removals so far durable."""


Step = (
    SyncStore | ListRange | ReadLedgers | ReadLocked | TakeLock | ReleaseLock | Mark | Unmark | Remove | SyncDeletions
)
Steps = Generator[Step, Any, None]


# --- deleted ledgers --------------------------------------------------------------------------------


def deletion_steps(report: LedgerPass, local: Int64s, ids_per_range: int, brake: Brake) -> Steps:
    """Remove those of ``local`` (ascending, not negative) that the store does not know. Ledgers that come later are in
    no danger: they are not in ``local``."""
    yield SyncStore()
    found: list[Int64s] = []
    for ledger_ids in _ranges(local, ids_per_range):
        suspects = ledger_ids if len(ledger_ids) <= DIRECT_READS else (yield ListRange(ledger_ids))
        for part in _parts(suspects, READS_AT_ONCE):
            found.append(_ids(_absent((yield ReadLedgers(part)))))
    victims = np.concatenate(found) if found else _ids(())
    report.stopped = brake.stops(victims, len(local))
    if report.stopped is not None:
        return
    try:
        for first in range(0, len(victims), MARKED_AT_ONCE):
            yield from _remove_absent(report, victims[first : first + MARKED_AT_ONCE].tolist())
    finally:
        if report.deleted:
            yield SyncDeletions()


def _remove_absent(report: LedgerPass, ledger_ids: list[int]) -> Steps:
    marked, failed = yield Mark(ledger_ids)
    report.failed += failed
    try:
        yield SyncStore()
        yield from _remove(report, _absent((yield ReadLedgers(marked))))
    finally:
        yield Unmark(marked)


def _absent(contents: dict[int, bytes | None]) -> list[int]:
    return [ledger_id for ledger_id, content in contents.items() if content is None]


# --- copies that nobody needs -----------------------------------------------------------------------


def over_replication_steps(report: LedgerPass, local: Int64s, bookie_id: str, brake: Brake) -> Steps:
    """Remove those of ``local`` that are closed and name ``bookie_id`` in no segment, each under its lock."""
    yield SyncStore()
    found: list[Int64s] = []
    for first in range(0, len(local), READS_AT_ONCE):
        contents = yield ReadLedgers(local[first : first + READS_AT_ONCE].tolist())
        found.append(_ids([each for each, content in contents.items() if is_superfluous(each, content, bookie_id)]))
    victims = np.concatenate(found) if found else _ids(())
    report.stopped = brake.stops(victims, len(local))
    if report.stopped is not None:
        return
    for ledger_id in victims.tolist():
        if (yield TakeLock(ledger_id)):
            try:
                yield from _remove_superfluous(report, ledger_id, bookie_id)
            finally:
                yield ReleaseLock(ledger_id)


def _remove_superfluous(report: LedgerPass, ledger_id: int, bookie_id: str) -> Steps:
    marked, failed = yield Mark([ledger_id])
    report.failed += failed
    try:
        yield SyncStore()
        found: LockedLedger = yield ReadLocked(ledger_id)
        if marked and found.locked and not found.marked and is_superfluous(ledger_id, found.content, bookie_id):
            yield from _remove(report, marked)
            yield SyncDeletions()
    finally:
        yield Unmark(marked)


def is_superfluous(ledger_id: int, content: bytes | None, bookie_id: str) -> bool:
    """Whether the ledger needs no copy at the bookie, by the ``content`` of its znode."""
    if content is None:
        return False  # for the collection of deleted ledgers
    try:
        metadata = ledger_metadata.decode(content)
    except MetadataFormatError as error:
        _LOG.warning("metadata of ledger %d: %s; its copy stays", ledger_id, error)
        return False
    if metadata.state is not LedgerState.CLOSED:
        return False
    return all(bookie_id not in segment.ensemble for segment in metadata.segments)


# --- both -------------------------------------------------------------------------------------------


def _remove(report: LedgerPass, ledger_ids: list[int]) -> Steps:
    if ledger_ids:
        deleted, failed = yield Remove(ledger_ids)
        report.deleted += deleted
        report.failed += failed


def _ids(ledger_ids: Sequence[int]) -> Int64s:
    return np.array(ledger_ids, np.int64)


def _ranges(ledger_ids: Int64s, ids_per_range: int) -> Iterator[list[int]]:
    """The ids (ascending), range by range."""
    cuts = (np.flatnonzero(np.diff(ledger_ids // ids_per_range)) + 1).tolist()
    for first, last in zip([0, *cuts], [*cuts, len(ledger_ids)], strict=True):
        if first < last:
            yield ledger_ids[first:last].tolist()


def _parts(ledger_ids: list[int], size: int) -> Iterator[list[int]]:
    for first in range(0, len(ledger_ids), size):
        yield ledger_ids[first : first + size]
