"""Fragments of a ledger, and which of their entries each bookie stores. Source: compatibility.md §4.1, §6.5.

Entry ``e`` is stored at position ``i`` of the ensemble if ``(i - e) mod E < Qw``. So a position stores the entries of
Qw residues modulo E, and all entries of one residue have the same write set.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from bk_spark.protocol.quorum import Quorum


@dataclass(frozen=True, slots=True)
class Fragment:
    """Entries with one ensemble.

    Parameters
    ----------
    first_entry_id, last_entry_id
        The entries, both included. An empty fragment ends before it begins.
    closed
        Whether its entries are final, and all of them are acknowledged.
    """

    quorum: Quorum
    first_entry_id: int
    last_entry_id: int
    ensemble: tuple[str, ...]
    closed: bool

    @property
    def entry_ids(self) -> range:
        """The ids of all entries, of whichever position."""
        return range(self.first_entry_id, self.last_entry_id + 1)

    def series(self, positions: Collection[int]) -> Iterator[range]:
        """Yield the entries that at least one of ``positions`` stores. Each range has one write set, except in a
        ledger that is not striped, where all entries are one range."""
        if not positions:
            return
        if not self.quorum.striped:
            if self.entry_ids:
                yield self.entry_ids
            return
        size = self.quorum.ensemble_size
        for entry_ids in (self.entry_ids[offset::size] for offset in range(size)):
            if entry_ids and any(self.quorum.stores(position, entry_ids[0]) for position in positions):
                yield entry_ids

    def ends(self, position: int) -> tuple[int, ...]:
        """Return the first and the last entry that ``position`` stores. Nothing if it stores none."""
        stored = list(self.series((position,)))
        if not stored:
            return ()
        first, last = min(part[0] for part in stored), max(part[-1] for part in stored)
        return (first,) if first == last else (first, last)

    def holders(self, entry_id: int) -> tuple[str, ...]:
        """Return the bookies of the entry's write set."""
        return tuple(self.ensemble[index] for index in self.quorum.write_set(entry_id))


def fragments_of(metadata: LedgerMetadata, last_add_confirmed: int) -> list[Fragment]:
    """List the fragments of a ledger.

    The last fragment of a ledger that is not closed ends at ``last_add_confirmed`` and is not closed: its writer, or a
    recovery, may still add to it and change its ensemble. Every earlier one is closed, because a writer begins a
    segment right after its last acknowledged entry, and a recovery right after the entries that it found.
    """
    closed = metadata.state is LedgerState.CLOSED
    end = metadata.last_entry_id if closed else last_add_confirmed
    lasts = [segment.first_entry_id - 1 for segment in metadata.segments[1:]] + [end]
    found = [
        Fragment(metadata.quorum, segment.first_entry_id, last, segment.ensemble, True)
        for segment, last in zip(metadata.segments, lasts, strict=True)
    ]
    if not closed:
        found[-1] = replace(found[-1], closed=False)
    return found


def with_members(metadata: LedgerMetadata, fragment: Fragment, members: dict[int, str]) -> LedgerMetadata | None:
    """Return ``metadata`` with ``members`` (bookies by position) in the fragment's segment.

    None if the stored segment does not have the fragment's ensemble any more: then another client changed it.
    """
    segments = list(metadata.segments)
    for number, segment in enumerate(segments):
        if segment == Segment(fragment.first_entry_id, fragment.ensemble):
            ensemble = tuple(members.get(index, bookie_id) for index, bookie_id in enumerate(segment.ensemble))
            segments[number] = Segment(segment.first_entry_id, ensemble)
            return replace(metadata, segments=tuple(segments))
    return None
