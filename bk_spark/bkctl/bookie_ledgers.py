"""Finds the ledgers that name given bookies, and how much of each would have to be copied."""

from __future__ import annotations

from dataclasses import dataclass, field

from bk_spark.bkctl.ledgers import all_metadata
from bk_spark.bkctl.logs.progress import Progress
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.protocol.errors import MetadataFormatError
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState
from bk_spark.protocol.replication.fragments import fragments_of


@dataclass(frozen=True, slots=True)
class BookieLedger:
    """A ledger that names at least one of the bookies.

    Parameters
    ----------
    entries
        Entries that the bookies store, by the metadata. An entry counts once for each of the bookies. Those in the
        last fragment of a ledger that is not closed are unknown and do not count.
    size_bytes
        Their size, from the average size of the ledger's entries. None if the ledger is not closed.
    open_fragment
        Whether the last fragment is open and names one of the bookies. Then the ledger is fenced and closed.
    """

    ledger: int
    state: str
    write_quorum: int
    entries: int
    size_bytes: int | None
    open_fragment: bool

    @classmethod
    def of(cls, ledger_id: int, metadata: LedgerMetadata, bookies: frozenset[str]) -> BookieLedger | None:
        """Return None if the ledger names none of the bookies."""
        # How many entries an open fragment has is not known here.
        fragments = fragments_of(metadata, metadata.last_segment.first_entry_id - 1)
        entries, named = 0, False
        for fragment in fragments:
            for position, bookie_id in enumerate(fragment.ensemble):
                if bookie_id in bookies:
                    named = True
                    entries += sum(map(len, fragment.series((position,))))
        if not named:
            return None
        closed = metadata.state is LedgerState.CLOSED
        size_bytes = metadata.length * entries // (metadata.last_entry_id + 1) if closed and entries else 0
        return cls(
            ledger_id,
            metadata.state.name,
            metadata.quorum.write_quorum_size,
            entries,
            size_bytes if closed else None,
            not closed and not bookies.isdisjoint(metadata.last_segment.ensemble),
        )

    def __str__(self) -> str:
        size = "size unknown" if self.size_bytes is None else f"about {self.size_bytes} bytes"
        return f"{self.entries} entries\t{size}{', open: would be fenced and closed' if self.open_fragment else ''}"


@dataclass(slots=True)
class Search:
    """The result of :func:`find_ledgers`.

    Parameters
    ----------
    ledgers
        Those that name the bookies, ascending.
    named
        Those of the bookies that some ledger names.
    unreadable
        Why the metadata of ledgers cannot be read. These ledgers may name the bookies.
    """

    ledgers: list[BookieLedger] = field(default_factory=list)
    named: set[str] = field(default_factory=set)
    unreadable: dict[int, str] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """The size of the entries that the bookies store, without ledgers that are not closed."""
        return sum(each.size_bytes or 0 for each in self.ledgers)

    @property
    def entries(self) -> int:
        """How many entries the bookies store, as in :class:`BookieLedger`."""
        return sum(each.entries for each in self.ledgers)

    def total(self) -> str:
        """Return the totals as text, with their units."""
        return f"{len(self.ledgers)} ledgers, {self.entries} entries, about {self.size_bytes} bytes"


def find_ledgers(client: BlockingClient, bookies: frozenset[str], progress: Progress) -> Search:
    """Read the metadata of all ledgers, and return those that name at least one of the bookies."""
    search = Search()
    for done, (ledger_id, found) in enumerate(all_metadata(client)):
        progress.count("ledgers searched", done)
        if isinstance(found, MetadataFormatError):
            search.unreadable[ledger_id] = found.message
            continue
        ledger = BookieLedger.of(ledger_id, found, bookies)
        if ledger is not None:
            search.ledgers.append(ledger)
            search.named.update(each for segment in found.segments for each in segment.ensemble if each in bookies)
    progress.clear()
    return search
