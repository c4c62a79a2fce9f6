"""The machine by which a writer closes its ledger. Source: compatibility.md §3.7, §4.6.

The writer has *drained*: every entry that it sent is acknowledged on a published ensemble, and it sends no more.
``last_entry_id`` and ``length`` are that end. The stored metadata decide:

=========================================== =====================================================
found                                       then
=========================================== =====================================================
as known                                    compare-and-set to CLOSED
CLOSED at the same end                      done: a lost reply, or a recovery that found our end
CLOSED at another end                       fails: LedgerFencedError, naming both ends
OPEN or IN_RECOVERY, other bookies          compare-and-set again, based on what was found
OPEN or IN_RECOVERY, other first entries    fails: another client writes the ledger
conflict, or outcome unknown                read, then as above
cannot be read or written                   fails, retriable: the outcome is unknown
=========================================== =====================================================

Closing over IN_RECOVERY is safe in every interleaving, because the writer has drained:

* No entry beyond the end exists anywhere. Only the writer makes entries, and a recovery writes back only what it read.
  So a recovery cannot find more than the writer has.
* A recovery cannot find less. Every entry up to the end is on Qa bookies of its segment in the metadata. Qw - Qa + 1
  "absent" answers would require that one of these lost it, and unknown never counts as absent. Fences no longer matter,
  because no add is under way.
* So both close at the same entry, and the compare-and-set lets one of them do it. If the writer is first, the
  recovery's compare-and-set fails, and the recovery reads CLOSED and adopts that end. The ensemble changes that the
  recovery made for its write-backs are lost. They only held second copies of entries.
  If the recovery is first, the writer finds its own end.
* With deferred sync the end is the last entry that was forced. A recovery may find more entries and close after them:
  entries that bookies held but that were never confirmed. Then the writer fails and names both ends. No confirmed entry
  is lost. If the writer is first, the recovery's write-backs beyond the end stay unreadable: they carry a LAC from
  before the recovery, and readers follow the metadata.

Re-replication also replaces members of segments by compare-and-set. The writer closes on top of these changes. Only a
second writer could change the *first entries*. Closing over that change would send readers to bookies that never had
the entries.
"""

from __future__ import annotations

from typing import Final

from bk_spark.protocol.errors import LedgerFencedError, MetadataConflictError
from bk_spark.protocol.ledger.metadata_calls import (
    CompareAndSet,
    MetadataAction,
    MetadataEvent,
    MetadataFailed,
    MetadataFound,
    MetadataWritten,
    ReadMetadata,
)
from bk_spark.protocol.machine import EndedBy, Succeeded
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState

#: Maximum number of compare-and-sets. Each after the first means that another client changed the ledger.
ATTEMPTS: Final = 8


class LedgerClosing:
    """Closes one ledger. A machine (:mod:`bk_spark.protocol.machine`). Its result is the stored metadata.

    Parameters
    ----------
    metadata, version
        The stored metadata as the writer knows them.
    last_entry_id, length
        The writer's end: its last entry, -1 for none, and the bytes of payload up to it.
    """

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        version: int,
        last_entry_id: int,
        length: int,
        *,
        attempts: int = ATTEMPTS,
    ) -> None:
        self.outcome: Succeeded[LedgerMetadata] | EndedBy | None = None
        self._ledger_id = ledger_id
        self._base = metadata
        self._end = (last_entry_id, length)
        self._attempts = attempts
        self._reading = False
        self._actions: list[MetadataAction] = []
        self._write(metadata, version)

    def take_actions(self) -> list[MetadataAction]:
        """Return the reads and writes of metadata to perform since the last call. At most one is under way."""
        actions, self._actions = self._actions, []
        return actions

    def handle(self, event: MetadataEvent) -> None:
        """Take the store's answer to the last action, and decide as the module's table says."""
        if self.outcome is not None:
            return
        match event:
            case MetadataWritten(metadata):
                self.outcome = Succeeded(metadata)
            case MetadataFound(metadata, version):
                self._reading = False
                self._on_found(metadata, version)
            case MetadataFailed() if event.must_read and not self._reading:
                self._reading = True
                self._actions.append(ReadMetadata())
            case MetadataFailed(error):
                self.fail(error)

    def fail(self, error: Exception) -> None:
        """End with this error. Whether the ledger is closed is then unknown. Ignored after the end."""
        if self.outcome is None:
            self.outcome = EndedBy(error)

    def _on_found(self, found: LedgerMetadata, version: int) -> None:
        if found.state is LedgerState.CLOSED:
            if (found.last_entry_id, found.length) == self._end:
                self.outcome = Succeeded(found)
            else:
                self.fail(
                    LedgerFencedError(
                        f"another client closed the ledger at entry {found.last_entry_id} ({found.length} bytes); this "
                        f"writer's last acknowledged entry is {self._end[0]} ({self._end[1]} bytes)",
                        ledger_id=self._ledger_id,
                    )
                )
        elif _first_entries(found) != _first_entries(self._base):
            self.fail(
                MetadataConflictError(
                    f"another client changed the ledger's segments: they begin at {_first_entries(found)}, this "
                    f"writer's at {_first_entries(self._base)}; recover the ledger to close it",
                    ledger_id=self._ledger_id,
                )
            )
        else:
            self._write(found, version)

    def _write(self, base: LedgerMetadata, version: int) -> None:
        if self._attempts == 0:
            self.fail(MetadataConflictError("the ledger's metadata keeps changing", ledger_id=self._ledger_id))
            return
        self._attempts -= 1
        self._base = base
        self._actions.append(CompareAndSet(base.closed(*self._end), version))


def _first_entries(metadata: LedgerMetadata) -> list[int]:
    return [segment.first_entry_id for segment in metadata.segments]
