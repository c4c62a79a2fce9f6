"""A reader's knowledge of a ledger."""

from __future__ import annotations

from dataclasses import dataclass

from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.digest import DigestFunction
from bk_spark.protocol.errors import InvalidArgumentError, NoSuchEntryError
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState


@dataclass(frozen=True, slots=True)
class LedgerKey:
    """A ledger's id, and the keys to verify its entries."""

    ledger_id: int
    digest_type: DigestType
    digest: DigestFunction


class LedgerView:
    """The metadata and the last add confirmed (LAC) that all machines of one reader share.

    ``last_add_confirmed`` is the last entry of a closed ledger. For other ledgers it is the highest LAC heard so far.
    """

    def __init__(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        self.ledger_id = ledger_id
        self.metadata = metadata
        self.last_add_confirmed = metadata.last_entry_id

    @property
    def closed(self) -> bool:
        """Whether ``last_add_confirmed`` is the ledger's final end."""
        return self.metadata.state is LedgerState.CLOSED

    def learn_metadata(self, metadata: LedgerMetadata) -> None:
        """Record metadata that were read. Reads may overlap, and an older one may end last. A closed ledger stays
        closed."""
        if metadata.state is LedgerState.CLOSED or not self.closed:
            self.metadata = metadata
        if self.closed:
            self.last_add_confirmed = self.metadata.last_entry_id

    def learn_lac(self, last_add_confirmed: int) -> None:
        """Record a LAC. The end of a closed ledger does not move."""
        if not self.closed:
            self.last_add_confirmed = max(self.last_add_confirmed, last_add_confirmed)

    def check_order(self, first: int, last: int) -> None:
        """Raise InvalidArgumentError if ``first`` to ``last`` (inclusive) is not a range of entries."""
        if first < 0 or last < first:
            raise InvalidArgumentError(f"cannot read entries {first}..{last}", ledger_id=self.ledger_id)

    def check_range(self, first: int, last: int) -> None:
        """Raise InvalidArgumentError, or NoSuchEntryError if ``last`` is beyond the last add confirmed."""
        self.check_order(first, last)
        if last > self.last_add_confirmed:
            raise self.beyond(last)

    def beyond(self, entry_id: int) -> NoSuchEntryError:
        """Return the error of a read of ``entry_id``, which lies beyond the LAC."""
        return NoSuchEntryError(
            f"entry {entry_id} lies beyond the last add confirmed, {self.last_add_confirmed}",
            ledger_id=self.ledger_id,
            entry_id=entry_id,
        )
