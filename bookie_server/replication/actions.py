"""Actions and events of the election, the auditor and its checks.

An action that fails is answered by its error: :class:`~bk_spark.protocol.errors.MetadataUnavailableError` if it may be
repeated. All actions may be repeated.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bk_spark.protocol.errors import MetadataFormatError
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata


class Check(enum.Enum):
    """The auditor's periodic checks."""

    #: Ledgers that name a bookie that is not registered.
    BOOKIES = "bookies"
    #: Every ledger's first and last entries at each bookie, and a share of the others.
    LEDGERS = "ledgers"
    #: Ensembles of closed ledgers against the placement policy.
    PLACEMENT = "placement"
    #: Every entry of closed ledgers at each bookie that should hold it.
    REPLICAS = "replicas"


# --- election ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadVotes:
    """Bring the server up to date and read the votes. Answered by :class:`VotesRead`."""


@dataclass(frozen=True, slots=True)
class Vote:
    """A vote in the election. ``mine``: its znode belongs to this session."""

    path: str
    number: int
    mine: bool


@dataclass(frozen=True, slots=True)
class VotesRead:
    """The answer to :class:`ReadVotes`. The order says nothing."""

    votes: tuple[Vote, ...]


@dataclass(frozen=True, slots=True)
class CreateVote:
    """Create this session's vote, if it has none. Answered by :class:`Done`."""


@dataclass(frozen=True, slots=True)
class WithdrawVote:
    """Delete this session's vote, if it still exists. Answered by :class:`Done`."""

    path: str


@dataclass(frozen=True, slots=True)
class WatchVote:
    """Answered when the vote is gone, or when the watch ended for another reason."""

    path: str


@dataclass(frozen=True, slots=True)
class WriteAuditor:
    """Write this bookie's id into the parent of the votes."""


@dataclass(frozen=True, slots=True)
class Done:
    """The action was done, and has no other answer."""


# --- scans ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SyncStore:
    """Bring the server up to date: what is read from now on is not older."""


@dataclass(frozen=True, slots=True)
class ListChildren:
    """Answered by :class:`Children`."""

    path: str


@dataclass(frozen=True, slots=True)
class Children:
    """None: the znode does not exist."""

    names: Sequence[str] | None


@dataclass(frozen=True, slots=True)
class ReadLedgers:
    """Answered by :class:`LedgersRead`."""

    ledger_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class LedgersRead:
    """Metadata by ledger. A deleted ledger is missing. Unreadable metadata are an error."""

    ledgers: Mapping[int, LedgerMetadata | MetadataFormatError]


@dataclass(frozen=True, slots=True)
class MarkLedgers:
    """Mark ledgers as under-replicated, each with its missing bookies, if the znode ``proof`` exists.

    Raises SessionLostError if it does not.
    """

    missing: Mapping[int, frozenset[str]]
    proof: str


@dataclass(frozen=True, slots=True)
class CheckLedgers:
    """Check entries of ledgers at their bookies. Answered by :class:`LedgersChecked`.

    ``lost``: those of their bookies that count as lost. Every other bookie is asked, so one that is waited for is
    unknown and not bad.
    """

    ledgers: Mapping[int, LedgerMetadata]
    check: Check
    lost: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LedgersChecked:
    """``bad`` copies by ledger: bookies that are lost, or lack an entry. Ledgers without bad copies are missing.

    ``unknown``: why a ledger could not be checked. Ask again later. ``unmovable``: ledgers of ``bad`` that break the
    placement policy, and that no move could help now.
    """

    bad: Mapping[int, frozenset[str]]
    unknown: Mapping[int, str]
    unmovable: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """Answered by :class:`ProgressRead`. Raises MetadataFormatError for an unknown version."""

    check: Check


@dataclass(frozen=True, slots=True)
class ProgressRead:
    """The last ledger that was checked, -1 if the check has not begun."""

    after: int


@dataclass(frozen=True, slots=True)
class WriteProgress:
    """Raises SessionLostError if ``proof`` does not exist."""

    check: Check
    after: int
    proof: str


@dataclass(frozen=True, slots=True)
class EndCheck:
    """Store the time of the check as Apache's auditor does, and delete its progress. Raises SessionLostError.

    ``delay`` is stored as that of the last complete search for lost bookies.
    """

    check: Check
    proof: str
    delay: DelayRead | None = None


ScanAction = (
    SyncStore | ListChildren | ReadLedgers | MarkLedgers | CheckLedgers | ReadProgress | WriteProgress | EndCheck
)
ScanEvent = Done | Children | LedgersRead | LedgersChecked | ProgressRead


# --- the auditor ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Watch:
    """Report the registered bookies, the disable switch and the delay for lost bookies, now and after each change."""


@dataclass(frozen=True, slots=True)
class ReadCookies:
    """Answered by :class:`CookiesRead`."""


@dataclass(frozen=True, slots=True)
class CookiesRead:
    """The ids of all bookies with a cookie."""

    bookies: frozenset[str]


@dataclass(frozen=True, slots=True)
class ReadAuditedDelay:
    """Answered by :class:`AuditedDelayRead`."""


@dataclass(frozen=True, slots=True)
class AuditedDelayRead:
    """The delay known to the auditor that completed the last search for lost bookies. None: no auditor stored it.

    ``unreadable``: it is stored in a format that this release does not know.
    """

    delay: DelayRead | None
    unreadable: bool = False


@dataclass(frozen=True, slots=True)
class ReadCheckTime:
    """Answered by :class:`CheckTimeRead`."""

    check: Check


@dataclass(frozen=True, slots=True)
class CheckTimeRead:
    """How long ago the check ended, None if it never did."""

    check: Check
    age_ms: float | None


@dataclass(frozen=True, slots=True)
class BookiesRead:
    """The registered bookies, writable and read-only."""

    registered: frozenset[str]


@dataclass(frozen=True, slots=True)
class DisabledRead:
    """Whether an operator has disabled replication."""

    disabled: bool


@dataclass(frozen=True, slots=True)
class DelayRead:
    """``lostBookieRecoveryDelay`` and the version of its znode. If it is set to its old value, an audit begins now."""

    delay_ms: int
    version: int


@dataclass(frozen=True, slots=True)
class SessionLost:
    """The session with ZooKeeper has ended, and its ephemeral znodes with it."""


@dataclass(frozen=True, slots=True)
class Step:
    """An action of a running scan. Answered by :class:`StepDone` or :class:`StepFailed` with its ``request_id``."""

    request_id: int
    action: ScanAction


@dataclass(frozen=True, slots=True)
class StepDone:
    """The answer to :class:`Step`: what the scan's action gave."""

    request_id: int
    event: ScanEvent


@dataclass(frozen=True, slots=True)
class StepFailed:
    """The answer to :class:`Step` whose action failed."""

    request_id: int
    error: Exception


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """One of these actions failed."""

    action: ReadCookies | ReadAuditedDelay | ReadCheckTime
    error: Exception
