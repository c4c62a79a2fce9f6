"""The machine of a quick read of one entry: one replica, one request."""

from __future__ import annotations

from typing import Final

from bk_spark.protocol.codes import Code
from bk_spark.protocol.entries.entry import Entry, verify_entry
from bk_spark.protocol.errors import DigestMismatchError
from bk_spark.protocol.ledger.reading.ledger_view import LedgerKey
from bk_spark.protocol.ledger.reading.read_actions import EntriesRead, ReadEntries, RequestFailed
from bk_spark.protocol.ledger.reading.read_settings import ReadSettings, Suspects
from bk_spark.protocol.machine import EndedBy, StartTimer, Succeeded, TimerFired
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata

_SLOW: Final = "slow"


class SingleRead:
    """Asks the entry's first replica. The result is the entry, if that replica returns it before a second one would be
    asked. None says nothing about the entry: use :class:`bk_spark.protocol.ledger.reading.reader.RangeReader` then.

    A replica that does not return the entry is added to ``suspects``. Suspects are not asked.
    """

    def __init__(
        self, ledger: LedgerKey, metadata: LedgerMetadata, entry_id: int, settings: ReadSettings, suspects: Suspects
    ) -> None:
        self.outcome: Succeeded[Entry | None] | EndedBy | None = None
        self._ledger = ledger
        self._entry_id = entry_id
        self._suspects = suspects
        self._bookie_id = metadata.segment_of(entry_id).ensemble[metadata.quorum.write_set(entry_id)[0]]
        self._actions: list[ReadEntries | StartTimer] = []
        if self._bookie_id in suspects:
            self.outcome = Succeeded(None)
        else:
            self._actions.append(StartTimer(_SLOW, settings.speculation.wait_ms(0)))
            self._actions.append(ReadEntries(0, self._bookie_id, range(entry_id, entry_id + 1)))

    def take_actions(self) -> list[ReadEntries | StartTimer]:
        """Return the request and its timer. There are no other actions."""
        actions, self._actions = self._actions, []
        return actions

    def handle(self, event: EntriesRead | RequestFailed | TimerFired) -> None:
        """End with the entry, or with None after any other event."""
        if self.outcome is not None:
            return
        entry = self._entry(event) if isinstance(event, EntriesRead) else None
        if entry is None:
            self._suspects.add(self._bookie_id)
        self.outcome = Succeeded(entry)

    def fail(self, error: Exception) -> None:
        """End with this error. Ignored after the end."""
        if self.outcome is None:
            self.outcome = EndedBy(error)

    def _entry(self, event: EntriesRead) -> Entry | None:
        answer, ledger = event.answers[self._entry_id], self._ledger
        if answer.code is not Code.OK:
            return None
        try:
            return verify_entry(answer.stored, ledger.ledger_id, self._entry_id, ledger.digest_type, ledger.digest)
        except DigestMismatchError:
            return None
