"""Subscriptions' cursors, as far as compaction needs them. Source: docs/design/pulsar.md §1.5 and §3.4.

A cursor's znode has its position and properties, or names a ledger whose last entry has them: while a broker uses the
cursor, what is in the znode is old.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bk_spark.protocol.errors import MetadataFormatError
from bk_spark.protocol.pulsar.compression import CompressionError
from bk_spark.protocol.pulsar.fields import FieldError, Fields
from bk_spark.protocol.pulsar.topics.managed_ledgers import uncompressed

#: The cursor of compaction, and its property with the compacted ledger.
COMPACTION_CURSOR: Final = "__compaction"
_COMPACTED_LEDGER: Final = "CompactedTopicLedger"
_NO_LEDGER: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a subscription is.

    Parameters
    ----------
    ledger_id
        The ledger whose last entry has the state, or None: this is the state.
    mark_delete
        Ledger and entry up to which, inclusive, everything was consumed.
    properties
        Numbers by name.
    """

    ledger_id: int | None
    mark_delete: tuple[int, int]
    properties: Mapping[str, int]

    @classmethod
    def parse(cls, content: bytes, source: str = "the cursor's znode") -> Cursor:
        """Parse the content of a znode. Raises MetadataFormatError, which names ``source``."""
        try:
            message = Fields(uncompressed(content))
            ledger_id = message.signed(1, _NO_LEDGER)
            position = message.signed(2, _NO_LEDGER), message.signed(3, _NO_LEDGER)
            return cls(None if ledger_id < 0 else ledger_id, position, _numbers(message, 5))
        except (FieldError, CompressionError) as error:
            raise MetadataFormatError(f"{source} is not a cursor: {error}") from error

    @classmethod
    def parse_entry(cls, entry: bytes, source: str = "the entry of the cursor") -> Cursor:
        """Parse the last entry of a cursor's ledger. Raises MetadataFormatError, which names ``source``."""
        try:
            message = Fields(entry)
            return cls(None, (message.signed(1), message.signed(2)), _numbers(message, 4))
        except FieldError as error:
            raise MetadataFormatError(f"{source} is not a position of a cursor: {error}") from error

    @property
    def compacted_ledger_id(self) -> int | None:
        """The ledger with the compacted topic, up to :attr:`mark_delete`. None if the topic was never compacted."""
        return self.properties.get(_COMPACTED_LEDGER)


def _numbers(message: Fields, field: int) -> dict[str, int]:
    return {one.text(1): one.signed(2) for one in message.messages(field)}
