"""Reading and changing a ledger's metadata: the actions and events that machines share.

A machine has one of these calls under way at a time. A performer turns each error of the store into
:class:`MetadataFailed`. The machine decides what the error means.
"""

from __future__ import annotations

from dataclasses import dataclass

from bk_spark.protocol.errors import BookKeeperError, MetadataConflictError, OutcomeUnknownError
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata


@dataclass(frozen=True, slots=True)
class ReadMetadata:
    """Read the newest metadata. The answer is :class:`MetadataFound` or :class:`MetadataFailed`."""


@dataclass(frozen=True, slots=True)
class CompareAndSet:
    """Replace the metadata if they still have ``version``. The answer is :class:`MetadataWritten` or
    :class:`MetadataFailed`."""

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class MetadataFound:
    """The answer to :class:`ReadMetadata`. ``version`` is that of the znode, for the next compare-and-set."""

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class MetadataWritten:
    """The compare-and-set took effect. ``version`` is the new one."""

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class MetadataFailed:
    """A read or a compare-and-set failed. NoSuchLedgerError: the ledger does not exist. Most others are retriable."""

    error: BookKeeperError

    @property
    def must_read(self) -> bool:
        """Whether the failed compare-and-set may have taken effect, or lost against another client's change. In both
        cases the metadata must be read."""
        return isinstance(self.error, MetadataConflictError | OutcomeUnknownError)


MetadataAction = ReadMetadata | CompareAndSet
MetadataEvent = MetadataFound | MetadataWritten | MetadataFailed
