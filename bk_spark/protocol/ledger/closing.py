"""Closing a ledger by its writer, as a state machine without I/O. Source: compatibility.md §3.7, §4.6.

The writer has *drained*: every entry that it ever sent is acknowledged, on an ensemble that is published, and
it sends no more. ``last_entry_id`` and ``length`` are that end. What the store is found to hold decides:

=========================================== =====================================================
found                                       then
=========================================== =====================================================
as known                                    compare-and-set to CLOSED
CLOSED at the same end                      done: a lost reply, or a recovery that found our end
CLOSED at another end                       fails: LedgerFencedError, naming both ends
OPEN or IN_RECOVERY, other bookies          again, upon what was found
OPEN or IN_RECOVERY, other first entries    fails: that is not this writer's ledger any more
outcome unknown                             read, then as above
cannot be read                              fails, retriable: whether it is closed is not known
=========================================== =====================================================

Closing over IN_RECOVERY is safe in every interleaving, because the writer has drained:

* No entry beyond the end exists anywhere: nobody but the writer makes entries, and a recovery writes back
  only what it read. So a recovery cannot find more than the writer has.
* It cannot find less: every entry up to the end is on Qa bookies of the segment that the metadata give for
  it. Qw - Qa + 1 "absent" would need one of these to have lost it; unknown never counts as absent. Fences do
  not matter any more, as no add is under way that would have to be acknowledged.
* So both want to close at the same entry, and the compare-and-set lets one of them do it. If the writer is
  first, the recovery's own fails, reads CLOSED and takes over that end. The ensemble changes which the
  recovery made for its write-backs are lost with its compare-and-set; they held second copies of entries that
  lie where the metadata say. If the recovery is first, the writer finds its own end.
* With deferred sync the end is the last entry that was forced, and a recovery may find and close with more:
  entries that were held but never confirmed. Then the writer fails with both ends named, and none that was
  confirmed is lost. If the writer is first, the recovery's write-backs beyond the end stay unreadable: they
  carry a LAC from before the recovery, and readers go by the metadata.

Re-replication replaces members of segments, in the same compare-and-set world: upon what it wrote the writer
closes too. A change of the *first entries* could only come from a second writer; closing over it would let
readers look for entries at bookies that never had them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bk_spark.protocol.errors import BookKeeperError, LedgerFencedError, MetadataConflictError
from bk_spark.protocol.ledger.writer_actions import Failed, WriteMetadata
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState

#: Compare-and-sets before it is given up: each but the first means that somebody else changed the ledger.
ATTEMPTS: Final = 8


@dataclass(frozen=True, slots=True)
class ReadMetadata:
    """Read the newest metadata; answer with :meth:`LedgerClosing.on_metadata_conflict`, or
    :meth:`LedgerClosing.on_unavailable`."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The ledger is closed at the writer's end; ``metadata`` is what the store holds."""

    metadata: LedgerMetadata


Action = WriteMetadata | ReadMetadata | Closed | Failed


class LedgerClosing:
    """Brings one ledger to CLOSED at ``last_entry_id`` with ``length`` bytes of payload."""

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        last_entry_id: int,
        length: int,
        *,
        attempts: int = ATTEMPTS,
    ) -> None:
        self._ledger_id = ledger_id
        self._base = metadata
        self._end = (last_entry_id, length)
        self._attempts = attempts
        self._ended = False
        self._actions: list[Action] = []
        self._write(metadata)

    def take_actions(self) -> list[Action]:
        """What is to be done now; each action is given once."""
        actions, self._actions = self._actions, []
        return actions

    def on_metadata_written(self, metadata: LedgerMetadata) -> None:
        """The compare-and-set took effect."""
        if not self._ended:
            self._finish(Closed(metadata))

    def on_metadata_conflict(self, found: LedgerMetadata) -> None:
        """The store holds ``found``, whoever wrote it."""
        if self._ended:
            return
        if found.state is LedgerState.CLOSED:
            if (found.last_entry_id, found.length) == self._end:
                self._finish(Closed(found))
            else:
                self._fail(
                    LedgerFencedError(
                        f"another client closed the ledger at entry {found.last_entry_id} ({found.length} bytes); this "
                        f"writer's last acknowledged entry is {self._end[0]} ({self._end[1]} bytes)",
                        ledger_id=self._ledger_id,
                    )
                )
        elif _first_entries(found) != _first_entries(self._base):
            self._fail(
                MetadataConflictError(
                    f"another client changed the ledger's segments: they begin at {_first_entries(found)}, this "
                    f"writer's at {_first_entries(self._base)}; recover the ledger to close it",
                    ledger_id=self._ledger_id,
                )
            )
        else:
            self._write(found)

    def on_outcome_unknown(self) -> None:
        """The reply of the compare-and-set was lost, or it lost and what is there is not known."""
        if not self._ended:
            self._actions.append(ReadMetadata())

    def on_unavailable(self, error: BookKeeperError) -> None:
        """The store cannot be asked."""
        if not self._ended:
            self._fail(error)

    def _write(self, base: LedgerMetadata) -> None:
        if self._attempts == 0:
            self._fail(MetadataConflictError("the ledger's metadata keeps changing", ledger_id=self._ledger_id))
            return
        self._attempts -= 1
        self._base = base
        self._actions.append(WriteMetadata(base.closed(*self._end)))

    def _fail(self, error: BookKeeperError) -> None:
        self._finish(Failed(error))

    def _finish(self, action: Closed | Failed) -> None:
        self._ended = True
        self._actions.append(action)


def _first_entries(metadata: LedgerMetadata) -> list[int]:
    return [segment.first_entry_id for segment in metadata.segments]
