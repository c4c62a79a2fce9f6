"""A group of records that a journal writes and syncs together (group_commit.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bk_spark.protocol.arrays import Int64s
from bookie_server.storage.files import Buffer
from bookie_server.storage.journal import journal
from bookie_server.storage.journal.log_mark import LogMark
from bookie_server.storage.ledger_descriptors import LedgerDescriptor
from bookie_server.storage.records import LedgerPart, Records

#: Called in the event loop when a group is decided; True if it is durable.
DoneCallback = Callable[[bool], None]


@dataclass(slots=True)
class Append:
    """Records that become readable once their group is durable. ``locations``: where they are in an entry log; None if
    their bytes are in the journal."""

    records: Records
    parts: list[tuple[LedgerDescriptor, LedgerPart]]
    locations: Int64s | None = None


@dataclass(slots=True, eq=False)
class JournalGroup:
    """Records that are written and synced together. Filled in the event loop, inside :meth:`GroupCommit.add`.

    ``large``: appends that go to an entry log if possible, and where in ``journal`` their bytes are.
    ``left_logs``: entry logs that got large entries of this group or earlier ones, and will get no more.
    ``undo``: if the group fails, called in the loop, newest first, before ``finished``.
    ``mark``: the position after the group, once it is written.
    """

    journal: list[Buffer] = field(default_factory=list)
    journal_bytes: int = 0
    entries: int = 0
    appends: list[Append] = field(default_factory=list)
    large: list[tuple[int, Append]] = field(default_factory=list)
    left_logs: list[int] = field(default_factory=list)
    keys: list[LedgerDescriptor] = field(default_factory=list)
    done: list[DoneCallback] = field(default_factory=list)
    undo: list[Callable[[], None]] = field(default_factory=list)
    mark: LogMark | None = None
    since: float = 0.0
    must_sync: bool = False
    probes: bool = False

    def add_journal(self, record: Buffer, entries: int = 1) -> None:
        """Append one record, or ``entries`` consecutive ones, to the journal."""
        self.journal.append(record)
        self.journal_bytes += len(record)
        self.entries += entries

    def add_append(self, append: Append, *, large: bool) -> None:
        """Append records that become readable; ``large`` ones without their bytes, if possible."""
        if large:
            self.large.append((len(self.journal), append))
        self.add_journal(append.records.data, len(append.records))
        self.appends.append(append)

    def add_key(self, descriptor: LedgerDescriptor) -> None:
        """Append the ledger's master key record unless the journal already has it."""
        if not descriptor.key_journaled:
            self.add_journal(journal.master_key_record(descriptor.ledger_id, descriptor.master_key))
            descriptor.key_journaled = True
            self.keys.append(descriptor)
