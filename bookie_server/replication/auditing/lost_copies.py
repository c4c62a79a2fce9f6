"""How few copies an entry of a ledger has. The kinds are those of Apache's metrics (compatibility.md §7.6)."""

from __future__ import annotations

import enum
from collections.abc import Collection

from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.replication.fragments import fragments_of


class FewCopies(enum.Enum):
    """The copies that are left of the entry that lost most. A ledger is of one kind only."""

    NONE = "no copy"
    BELOW_ACK_QUORUM = "fewer than the ack quorum"
    BELOW_WRITE_QUORUM = "fewer than the write quorum"


def few_copies(metadata: LedgerMetadata, bad: Collection[str]) -> FewCopies | None:
    """Return the kind of a ledger whose copies at the bookies ``bad`` are lost. None: no entry lost a copy."""
    quorum = metadata.quorum
    size = quorum.ensemble_size
    # Nobody knows how many entries the last fragment of an open ledger has.
    fragments = fragments_of(metadata, metadata.last_segment.first_entry_id + size - 1)
    left = min(
        (
            sum(bookie not in bad for bookie in fragment.holders(entry_id))
            for fragment in fragments
            # Each write set occurs among the first entries, as often as the ensemble has members.
            for entry_id in fragment.entry_ids[:size]
        ),
        default=quorum.write_quorum_size,
    )
    if left >= quorum.write_quorum_size:
        return None
    if not left:
        return FewCopies.NONE
    return FewCopies.BELOW_ACK_QUORUM if left < quorum.ack_quorum_size else FewCopies.BELOW_WRITE_QUORUM
