"""The machines of collection: which ledgers are removed, and in which order the checks are made. No I/O.

The generators yield steps and receive the result of each (:class:`bk_spark.protocol.machine.StepMachine`). If a step
fails, they release what they hold and pass the error on. ``ledger_collection.py`` performs the steps, in the bookie
and in the model world of ``tests/simulation/collection``.

1. *Count.* Every ledger here is compared with the store; victims are noted. Nothing is removed yet.
2. *Brake.* If there are too many victims, or one has an id that was not given yet, an operator decides (brake.py).
3. *Remove*, a few at a time: mark them, so that adds and fences of them are refused; sync with the store; read their
   znodes again; remove those that are still absent; unmark the others.

The order in step 3 keeps a ledger that is created again under its old id. If an entry was acknowledged before the mark,
the ledger's znode existed before the mark, and the read after the mark sees it. Later entries are refused.
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
from bookie_server.gc.brake import CollectionBrake, StoppedCollection

_LOG: Final = logging.getLogger(__name__)
#: Znodes read in one step.
READS_AT_ONCE: Final = 256
#: Ledgers marked at once. A ledger that is created again under such an id is refused here until all are decided.
MARKED_AT_ONCE: Final = 64
#: Up to this many ledgers of a range are read one by one, which costs less than a list of up to 10,000 names.
DIRECT_READS: Final = 16


@dataclass(slots=True)
class CollectionReport:
    """The result of a pass. ``failed`` counts ledgers that could not be examined or removed. ``problem`` is "" if the
    pass was completed. ``stopped`` is set if the brake stopped it. ``foreign_cluster``: ZooKeeper was not that of the
    bookie's cluster."""

    deleted: list[int] = field(default_factory=list)
    failed: int = 0
    problem: str = ""
    stopped: StoppedCollection | None = None
    foreign_cluster: bool = False


# --- steps ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SyncMetadata:
    """Sync with the metadata store. All reads up to the next sync must be made in this session."""


@dataclass(frozen=True, slots=True)
class PrepareLocks:
    """Make sure that the store has a place for replication locks, in a layout that this release knows."""


@dataclass(frozen=True, slots=True)
class ListRange:
    """List the store's ledgers in the range of these. Sent: those of ``ledger_ids`` that the list lacks. A list may be
    incomplete (scenario B8), so it never decides."""

    ledger_ids: list[int]


@dataclass(frozen=True, slots=True)
class ReadLedgers:
    """Read their znodes. Sent: content by ledger id, None for one that the store says is absent."""

    ledger_ids: list[int]


@dataclass(frozen=True, slots=True)
class ReadNextId:
    """Read the id that the next new ledger gets. Sent: the id; 0 if that cannot be said."""


@dataclass(frozen=True, slots=True)
class ReadLocked:
    """Read a ledger's znode along with the lock and the mark of replication. Sent: LockedLedger."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class LockedLedger:
    """``content`` of the ledger's znode, None if it is absent; whether this bookie's session holds its lock; whether it
    is ``marked`` as under-replicated."""

    content: bytes | None
    locked: bool
    marked: bool


@dataclass(frozen=True, slots=True)
class TakeLock:
    """Take the ledger's replication lock. Sent: whether this bookie has it."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class ReleaseLock:
    """Give the ledger's replication lock back, if this bookie has it."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class MarkLedgers:
    """Refuse adds and fences of these ledgers, and wait for those accepted before. Sent: the ledgers that are here, and
    the number of those where that is unknown."""

    ledger_ids: list[int]


@dataclass(frozen=True, slots=True)
class UnmarkLedgers:
    """Serve these ledgers again, except removed ones."""

    ledger_ids: list[int]


@dataclass(frozen=True, slots=True)
class RemoveLedgers:
    """Remove these marked ledgers. Sent: the removed ones, and the number of failures."""

    ledger_ids: list[int]


@dataclass(frozen=True, slots=True)
class SyncDeletions:
    """Make the removals so far durable."""


#: Steps that release what a pass holds. They are performed even after a request to stop.
RELEASES: Final = (UnmarkLedgers, ReleaseLock, SyncDeletions)
Step = (
    SyncMetadata
    | PrepareLocks
    | ListRange
    | ReadLedgers
    | ReadNextId
    | ReadLocked
    | TakeLock
    | ReleaseLock
    | MarkLedgers
    | UnmarkLedgers
    | RemoveLedgers
    | SyncDeletions
)
Steps = Generator[Step, Any, None]


# --- deleted ledgers --------------------------------------------------------------------------------


def deletion_steps(report: CollectionReport, local: Int64s, ids_per_range: int, brake: CollectionBrake) -> Steps:
    """Remove those of ``local`` (ascending, not negative) that the store does not know. Ledgers that are created later
    are safe: they are not in ``local``."""
    yield SyncMetadata()
    found: list[Int64s] = []
    for ledger_ids in _ranges(local, ids_per_range):
        suspects = ledger_ids if len(ledger_ids) <= DIRECT_READS else (yield ListRange(ledger_ids))
        for part in _parts(suspects, READS_AT_ONCE):
            found.append(_ids(_absent((yield ReadLedgers(part)))))
    victims = np.concatenate(found) if found else _ids(())
    # Read last: by now the counter has given the id of every ledger that is here.
    next_id = (yield ReadNextId()) if len(victims) else 0
    report.stopped = brake.stops(victims, len(local), next_id)
    if report.stopped is not None:
        return
    if len(victims):
        yield from and_finally(_remove_all_absent(report, victims), SyncDeletions())


def _remove_all_absent(report: CollectionReport, victims: Int64s) -> Steps:
    for first in range(0, len(victims), MARKED_AT_ONCE):
        marked, failed = yield MarkLedgers(victims[first : first + MARKED_AT_ONCE].tolist())
        report.failed += failed
        yield from and_finally(_remove_absent(report, marked), UnmarkLedgers(marked))


def _remove_absent(report: CollectionReport, marked: list[int]) -> Steps:
    yield SyncMetadata()
    yield from _remove(report, _absent((yield ReadLedgers(marked))))


def _absent(contents: dict[int, bytes | None]) -> list[int]:
    return [ledger_id for ledger_id, content in contents.items() if content is None]


# --- over-replicated ledgers -----------------------------------------------------------------------


def over_replication_steps(report: CollectionReport, local: Int64s, bookie_id: str, brake: CollectionBrake) -> Steps:
    """Remove those of ``local`` that are closed and name ``bookie_id`` in no segment, each under its lock."""
    yield SyncMetadata()
    yield PrepareLocks()
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
            yield from and_finally(_remove_locked(report, ledger_id, bookie_id), ReleaseLock(ledger_id))


def _remove_locked(report: CollectionReport, ledger_id: int, bookie_id: str) -> Steps:
    marked, failed = yield MarkLedgers([ledger_id])
    report.failed += failed
    if marked:
        yield from and_finally(_remove_superfluous(report, ledger_id, bookie_id), UnmarkLedgers(marked))


def _remove_superfluous(report: CollectionReport, ledger_id: int, bookie_id: str) -> Steps:
    yield SyncMetadata()
    found: LockedLedger = yield ReadLocked(ledger_id)
    if found.locked and not found.marked and is_superfluous(ledger_id, found.content, bookie_id):
        yield from _remove(report, [ledger_id])
        yield SyncDeletions()


def is_superfluous(ledger_id: int, content: bytes | None, bookie_id: str) -> bool:
    """Whether the ledger's znode with this ``content`` says that the bookie needs no copy of it."""
    if content is None:
        return False  # the collection of deleted ledgers decides
    try:
        metadata = ledger_metadata.decode(content)
    except MetadataFormatError as error:
        _LOG.warning("metadata of ledger %d: %s. Its copy stays", ledger_id, error)
        return False
    if metadata.state is not LedgerState.CLOSED:
        return False
    return all(bookie_id not in segment.ensemble for segment in metadata.segments)


# --- both -------------------------------------------------------------------------------------------


def and_finally(steps: Steps, last: Step) -> Steps:
    """``steps``, then ``last``, also if ``steps`` fail.

    Not a ``finally`` block: a machine that is dropped must not yield.
    """
    try:
        yield from steps
    except Exception:
        yield last
        raise
    yield last


def _remove(report: CollectionReport, ledger_ids: list[int]) -> Steps:
    if ledger_ids:
        deleted, failed = yield RemoveLedgers(ledger_ids)
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
