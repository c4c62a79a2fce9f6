"""Settings of the machine that repairs a ledger."""

from __future__ import annotations

from dataclasses import dataclass, field

from bk_spark.protocol.replication.copying.copy_limits import CopyLimits


@dataclass(frozen=True, slots=True)
class RepairSettings:
    """Settings of repairs.

    Parameters
    ----------
    grace_ms
        How long bad copies of the last fragment of an open ledger must last before the ledger is fenced
        (``openLedgerRereplicationGracePeriod``).
    verified_share
        The share of entries, besides the first and last, that a check reads at bookies that no mark names. 0 to 1
        (``auditorLedgerVerificationPercentage``).
    replaced
        Bookies that count as lost even if they are registered, because an operator wants their copies elsewhere. They
        remain a source of copies.
    targets
        The only bookies that may take the place of others. Default: all writable ones.
    """

    grace_ms: int = 30_000
    verified_share: float = 0.0
    copy: CopyLimits = field(default_factory=CopyLimits)
    replaced: frozenset[str] = frozenset()
    targets: frozenset[str] | None = None
