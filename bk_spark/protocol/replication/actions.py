"""Actions, events and results of the machines that repair a ledger (see :mod:`bk_spark.protocol.machine`).

:class:`~bk_spark.protocol.replication.ledger_repair.LedgerRepair` also returns the actions of reading
(:mod:`bk_spark.protocol.ledger.reading.read_actions`): ``ReadEntries``, ``ReadBatch`` and ``ReportFailure``, and
``StartTimer``, ``StopTimer`` and ``StopRequest``.

Actions with a ``request_id`` may be under way together. Each answer is an event with this id. ``RequestFailed`` means
that the request failed. Of the others one is under way at a time. Their errors go to ``fail``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bk_spark.protocol.codes import Code
from bk_spark.protocol.ledger.reading.read_actions import (
    BatchRead,
    BatchRefused,
    EntriesRead,
    ReadBatch,
    ReadEntries,
    ReportFailure,
    RequestFailed,
)
from bk_spark.protocol.machine import StartTimer, StopRequest, StopTimer, TimerFired
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.quorum import Quorum

# --- one at a time ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadLedger:
    """Sync with ZooKeeper and read the ledger's znode: :class:`LedgerFound`. Error: NoSuchLedgerError."""


@dataclass(frozen=True, slots=True)
class ReadBookies:
    """Read the registered bookies, and the registrations of ``members``: :class:`BookiesFound`."""

    members: frozenset[str]


@dataclass(frozen=True, slots=True)
class ReadLastAddConfirmed:
    """Ask the bookies of an open ledger for its LAC: :class:`LastAddConfirmed`. Error: EntryUnknownError if too few
    bookies answer."""

    metadata: LedgerMetadata


@dataclass(frozen=True, slots=True)
class ChooseTarget:
    """Choose a writable bookie for position ``index`` of ``ensemble``: :class:`TargetChosen`. It must be in neither
    ``ensemble`` nor ``exclude``, and in ``among`` if that is given. Error: NotEnoughBookiesError."""

    quorum: Quorum
    ensemble: tuple[str, ...]
    index: int
    exclude: frozenset[str]
    among: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class FindMisplaced:
    """Find the position of ``ensemble`` whose move the placement policy wants most: :class:`MisplacedFound`."""

    quorum: Quorum
    ensemble: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReplaceMembers:
    """Store ``metadata`` if the znode still has ``version`` and the worker still holds its locks, in one transaction:
    :class:`MembersReplaced`.

    Errors: MetadataConflictError (another client changed the ledger), OutcomeUnknownError, NoSuchLedgerError, and
    SessionLostError if the session that held the lock has ended.
    """

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class RecoverLedger:
    """Fence the ledger and close it: :class:`LedgerRecovered`. Any error of a recovery."""

    metadata: LedgerMetadata


@dataclass(frozen=True, slots=True)
class LedgerFound:
    """``created_zxid`` is the transaction that created the znode. It distinguishes two ledgers with one id."""

    metadata: LedgerMetadata
    version: int
    created_zxid: int


@dataclass(frozen=True, slots=True)
class BookiesFound:
    """``registrations`` has the transaction that created the registration of a member. A bookie that comes back has
    another one. A member without a known registration is left out."""

    writable: frozenset[str]
    read_only: frozenset[str]
    registrations: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LastAddConfirmed:
    """The answer to :class:`ReadLastAddConfirmed`. -1: no entry is confirmed."""

    last_add_confirmed: int


@dataclass(frozen=True, slots=True)
class TargetChosen:
    """``unspread`` is the number of write quorums that break the placement policy with this bookie."""

    bookie_id: str
    unspread: int = 0


@dataclass(frozen=True, slots=True)
class MisplacedFound:
    """``index`` is the position whose move helps most. ``unspread`` is the number of write quorums that break the
    policy now. If it is 0, nothing is to be moved."""

    index: int
    unspread: int


@dataclass(frozen=True, slots=True)
class MembersReplaced:
    """``version`` is the new version of the znode."""

    version: int


@dataclass(frozen=True, slots=True)
class LedgerRecovered:
    """The ledger is closed."""


# --- any number at a time -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredEntries:
    """Entries as bookies store them.

    Parameters
    ----------
    entry_ids
        Their ids. In a striped ledger they can be more than one apart.
    records
        ``u32 length, stored entry`` for each, as in the answer to a batch read.
    """

    entry_ids: range
    records: memoryview


@dataclass(frozen=True, slots=True)
class WriteEntries:
    """Add the entries at the bookie as recovery adds, unchanged: :class:`EntriesWritten` or ``RequestFailed``."""

    request_id: int
    bookie_id: str
    entries: StoredEntries


@dataclass(frozen=True, slots=True)
class EntriesWritten:
    """The bookie answered every add. ``code`` is OK if it stored all of them, else the first other code."""

    request_id: int
    code: Code


@dataclass(frozen=True, slots=True)
class AskPace:
    """A batch that has about ``size_bytes`` is to be copied. Wait until its time has come: :class:`PacePassed`."""

    request_id: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PacePassed:
    """The batch of this :class:`AskPace` may be read now."""

    request_id: int


@dataclass(frozen=True, slots=True)
class AskThrottle:
    """Entries were read, and are to be written to ``targets`` bookies. Wait until that is allowed:
    :class:`ThrottlePassed`.

    ``paced_bytes`` is what the pace was asked for. The difference counts for the next batches.
    """

    request_id: int
    read: StoredEntries
    targets: int
    paced_bytes: int


@dataclass(frozen=True, slots=True)
class ThrottlePassed:
    """The entries of this :class:`AskThrottle` may be written now."""

    request_id: int


RequestAction = (
    ReadEntries
    | ReadBatch
    | WriteEntries
    | AskPace
    | AskThrottle
    | ReportFailure
    | StartTimer
    | StopTimer
    | StopRequest
)
RequestEvent = (
    EntriesRead | BatchRead | BatchRefused | EntriesWritten | PacePassed | ThrottlePassed | RequestFailed | TimerFired
)
SingleAction = (
    ReadLedger
    | ReadBookies
    | ReadLastAddConfirmed
    | ChooseTarget
    | FindMisplaced
    | ReplaceMembers
    | RecoverLedger
    | StartTimer
)
SingleEvent = (
    LedgerFound
    | BookiesFound
    | LastAddConfirmed
    | TargetChosen
    | MisplacedFound
    | MembersReplaced
    | LedgerRecovered
    | TimerFired
)
RepairAction = SingleAction | RequestAction
RepairEvent = SingleEvent | RequestEvent


# --- results ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FragmentProblem:
    """Why a fragment is not fully replicated.

    Parameters
    ----------
    first_entry_id, last_entry_id
        The fragment. An empty one ends before it begins.
    bookies
        Those of its bookies whose copies are missing or unknown.
    reason
        Why, for operators.
    unreadable
        Entries that no bookie returned.
    """

    first_entry_id: int
    last_entry_id: int
    bookies: tuple[str, ...]
    reason: str
    unreadable: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Repaired:
    """Nothing is bad any more. The mark can go, at the version that was read before the repair.

    Parameters
    ----------
    fragments
        The number of fragments that were changed.
    entries, size_bytes
        What was written. An entry counts once for each bookie.
    recovered
        Whether the ledger was fenced and closed.
    adheres
        Whether the placement policy holds for all changed fragments.
    moved
        Copies that were moved because of the placement policy.
    """

    fragments: int
    entries: int
    size_bytes: int
    recovered: bool = False
    adheres: bool = True
    moved: int = 0


@dataclass(frozen=True, slots=True)
class NothingBad:
    """Every copy is where it should be. The mark can go, as after :class:`Repaired`."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The ledger does not exist."""


@dataclass(frozen=True, slots=True)
class LockLost:
    """The session that held the lock has ended. Another worker may repair the ledger. Nothing may be released."""


@dataclass(frozen=True, slots=True)
class Unrepairable:
    """Some copies are still bad or unknown. Everything else is repaired. The mark stays. Try again after a pause.

    Parameters
    ----------
    reason
        Why, for operators.
    fragments
        The fragments concerned, and why.
    """

    reason: str
    fragments: tuple[FragmentProblem, ...] = ()

    @property
    def unreadable(self) -> frozenset[int]:
        """Entries that no bookie returned. The next repair reads them first."""
        return frozenset(entry_id for problem in self.fragments for entry_id in problem.unreadable)


RepairResult = Repaired | NothingBad | Gone | LockLost | Unrepairable
