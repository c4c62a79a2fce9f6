"""Which transactions of a topic were committed, aborted, or are undecided. Source: docs/design/pulsar.md §3.5.

Messages of a transaction lie in the topic where they were produced. A marker that comes later in the same topic says
what became of them. Nothing at or after the first message of an undecided transaction may be shown yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.pulsar.fields import Fields


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
    """What became of the transactions of a topic. Grows with the entries that it is given, in order."""

    def __init__(self) -> None:
        self._first: dict[TransactionId, Position] = {}
        self._last: dict[TransactionId, Position] = {}
        self._committed: set[TransactionId] = set()
        self._aborted: set[TransactionId] = set()

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
            If an entry is no message of Pulsar.
        """
        for entry_id, payload in enumerate(payloads, first_entry_id):
            raw = bytes(payload)
            at = 6 + int.from_bytes(raw[2:6], "big") if raw[:2] == b"\x0e\x02" else 0
            at += 6 if raw[at : at + 2] == b"\x0e\x01" else 0
            size = int.from_bytes(raw[at : at + 4], "big")
            meta = Fields(raw[at + 4 : at + 4 + size])
            if 23 not in meta:
                continue
            one = TransactionId(meta.number(23), meta.number(22))
            if meta.number(20) in (21, 22):
                (self._committed if meta.number(20) == 21 else self._aborted).add(one)
            elif 20 not in meta:
                self._first.setdefault(one, Position(ledger_id, entry_id))
                self._last[one] = Position(ledger_id, entry_id)

    @property
    def first_undecided(self) -> Position | None:
        """The first message of an undecided transaction, or None. Nothing at or after it may be shown."""
        decided = self._committed | self._aborted
        return min((at for one, at in self._first.items() if one not in decided), default=None)

    @property
    def aborted(self) -> dict[TransactionId, tuple[Position, Position]]:
        """First and last message of each aborted transaction."""
        return {one: (self._first[one], self._last[one]) for one in self._aborted if one in self._first}
