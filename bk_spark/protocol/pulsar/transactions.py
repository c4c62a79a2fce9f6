"""Which transactions of a topic were committed, aborted, or are undecided. Source: docs/design/pulsar.md §3.5.

Messages of a transaction lie in the topic where they were produced. A marker that comes later in the same topic says
whether the transaction was committed or aborted. Nothing at or after the first message of an undecided transaction may
be shown yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from bk_spark.protocol.arrays import Bools, Int64s
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.pulsar.messages.entry_frames import EntryFrames, MetadataField
from bk_spark.protocol.pulsar.messages.field_columns import FieldColumns

_COMMITTED: Final = 21
_ABORTED: Final = 22
#: Fields that say which transaction an entry belongs to.
ID_FIELDS: Final = (MetadataField.TXNID_MOST_BITS, MetadataField.TXNID_LEAST_BITS)
_SCANNED: Final = (*ID_FIELDS, MetadataField.MARKER_TYPE)


class TransactionId(NamedTuple):
    """The id of a transaction: the coordinator and the number, both unsigned."""

    most_bits: int
    least_bits: int


class Position(NamedTuple):
    """An entry of a topic. Ledger ids of a topic ascend, so positions compare as tuples."""

    ledger_id: int
    entry_id: int


class TransactionMet(Exception):  # noqa: N818 (a signal, not an error)
    """Entries belong to a transaction, and the decoder does not know which ones were aborted.

    Parameters
    ----------
    ledger_id, entry_id
        The first such entry.
    """

    def __init__(self, ledger_id: int, entry_id: int) -> None:
        super().__init__(f"entry {entry_id} of ledger {ledger_id} belongs to a transaction")
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class TransactionScan:
    """The outcomes of a topic's transactions. Grows with the entries that it is given, in order."""

    def __init__(self) -> None:
        self._undecided: dict[TransactionId, tuple[Position, Position]] = {}
        self._aborted: dict[TransactionId, tuple[Position, Position]] = {}

    def add(self, ledger_id: int, first_entry_id: int, payloads: Payloads | Sequence[Buffer]) -> None:
        """Take consecutive entries of a ledger. Only their metadata is read.

        Parameters
        ----------
        ledger_id, first_entry_id
            Where they are.
        payloads
            The entries.

        Raises
        ------
        MessageFormatError
            If an entry is not a Pulsar message.
        """
        entry_ids = np.arange(first_entry_id, first_entry_id + len(payloads))
        frames = EntryFrames(payloads, np.full(len(entry_ids), ledger_id), entry_ids)
        metadata = frames.metadata(_SCANNED)
        markers = metadata.present(MetadataField.MARKER_TYPE)
        kinds = metadata.signed(MetadataField.MARKER_TYPE)
        for index, one in _ids(metadata, metadata.present(MetadataField.TXNID_MOST_BITS)):
            position = Position(ledger_id, first_entry_id + index)
            if not markers[index]:
                # As the broker does: what comes after a marker is undecided again, unless it was aborted.
                known = self._aborted if one in self._aborted else self._undecided
                first, _ = known.get(one, (position, position))
                known[one] = first, position
            elif kinds[index] in (_COMMITTED, _ABORTED):
                messages = self._undecided.pop(one, None)
                if messages is not None and kinds[index] == _ABORTED:
                    self._aborted[one] = messages

    def forget(self, before: Position) -> None:
        """Forget aborted transactions whose last message is before a position: a scan may go on for months."""
        self._aborted = {one: at for one, at in self._aborted.items() if at[1] >= before}

    @property
    def first_undecided(self) -> Position | None:
        """The first message of an undecided transaction, or None. Nothing at or after it may be shown."""
        return min((first for first, _ in self._undecided.values()), default=None)

    @property
    def aborted(self) -> dict[TransactionId, tuple[Position, Position]]:
        """The first and the last message of each aborted transaction."""
        return dict(self._aborted)


def _ids(metadata: FieldColumns, chosen: Bools) -> Iterator[tuple[int, TransactionId]]:
    """Yield index and transaction of the chosen entries."""
    most, least = (metadata.number(field) for field in ID_FIELDS)
    for index in np.flatnonzero(chosen).tolist():
        yield index, TransactionId(int(most[index]), int(least[index]))


def aborted_in(metadata: FieldColumns, chosen: Bools, aborted: frozenset[TransactionId]) -> Int64s:
    """Return the indexes of the chosen entries whose transactions were aborted.

    Parameters
    ----------
    metadata
        The metadata of entries, with :data:`ID_FIELDS`.
    chosen
        Which entries belong to a transaction.
    aborted
        The transactions that were aborted.
    """
    return np.array([index for index, one in _ids(metadata, chosen) if one in aborted], np.int64)
