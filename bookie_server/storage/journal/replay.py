"""Replay: bringing the storage up to date from the journals at start. Rules: compatibility.md §5.2.

Every record after the marks is applied again, in order. Applying one twice changes nothing but the entry's location.
Fencing is not checked: an add that is in the journal was accepted. The journal directories are replayed one after
another, each from its own mark: all records of a ledger are in one of them, in order.

A torn end is cut off once everything is replayed; none of it was acknowledged. If it stayed and the bookie stopped
before the mark advanced (a full ledger disk), the next journal would make it look like damage. Apache's bookie cuts
nothing off, so a journal followed by one of Apache's may end torn.

A lower explicit LAC does not replace a higher one. (Apache's bookie keeps the last packet and, separately, the highest
LAC; its writers never send a lower one.)
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.entries.entry import LAC_PACKET_HEADER
from bk_spark.protocol.errors import CorruptFileError
from bookie_server.storage.disk import files
from bookie_server.storage.index.index import MAX_KEY_AND_LAC_BYTES
from bookie_server.storage.journal import journal
from bookie_server.storage.journal.journal import (
    ExplicitLacRecord,
    FenceRecord,
    JournalEnd,
    JournalItem,
    MasterKeyRecord,
)
from bookie_server.storage.journal.journal_header import REMEDY, holds_records, is_ours
from bookie_server.storage.journal.journal_reader import JournalReader
from bookie_server.storage.journal.located_record import LocatedRecord
from bookie_server.storage.journal.log_mark import LogMark
from bookie_server.storage.ledger_descriptors import LedgerDescriptor, LedgerDescriptors
from bookie_server.storage.records import MAX_ENTRY_ID, LedgerPart, Records

_LOG: Final = logging.getLogger(__name__)
#: Number of ledgers named in one log line.
_NAMED: Final = 10


class ReplayTarget(Protocol):
    """The storage that a replay brings up to date."""

    @property
    def descriptors(self) -> LedgerDescriptors:
        """The descriptors of the storage. A replay makes those that are missing."""

    def replay(self, records: Records, parts: list[tuple[LedgerDescriptor, LedgerPart]]) -> None:
        """Store records that come from a journal. Blocking."""

    def replay_located(self, entries: LocatedRecord, parts: list[tuple[LedgerDescriptor, Int64s]]) -> None:
        """Note where entries are that are in entry logs; each part is the positions of one ledger's. Blocking."""


def replay_journals(directories: Sequence[str], marks: Sequence[LogMark], storage: ReplayTarget) -> list[JournalEnd]:
    """Replay the journals in each of ``directories`` (``current`` directories), from its mark on, into ``storage``.
    Return where they end. Blocking.

    Raises CorruptFileError if a mark's journal is missing or ends before the mark, a journal is damaged before its end,
    or a record has a key or a LAC packet that no index file could hold; OSError.
    """
    replay = _Replay(storage)
    ends: list[JournalEnd] = []
    torn: list[JournalReader] = []
    for directory, mark in zip(directories, marks, strict=True):
        ends.append(_replay_directory(directory, mark, replay, torn))
    replay.report()
    for reader in torn:
        _cut_off(reader)
    return ends


def _replay_directory(directory: str, mark: LogMark, replay: _Replay, torn: list[JournalReader]) -> JournalEnd:
    ids = journal.journal_ids(directory)
    if mark.journal_id > 0 and mark.journal_id not in ids:
        raise CorruptFileError(
            f"lastMark names journal {journal.file_name(mark.journal_id)}, which is not in {directory}: acknowledged "
            f"entries may be in it; {REMEDY}"
        )
    if not ids:
        return JournalEnd(mark, int(time.time() * 1000) + 1)
    end = mark
    paths = {i: os.path.join(directory, journal.file_name(i)) for i in ids if i >= mark.journal_id}
    with_records = [i for i, path in paths.items() if holds_records(path)]
    for journal_id, path in paths.items():
        offset = mark.offset if journal_id == mark.journal_id else 0
        next_one = next((paths[i] for i in with_records if i > journal_id), None)
        reader = JournalReader(path, offset, may_end_torn=next_one is None or not is_ours(next_one))
        for item in reader.items():
            replay.apply(item, path)
        if reader.torn:
            torn.append(reader)
        end = LogMark(journal_id, reader.position)
        _LOG.info("replayed journal %s from %d to %d: %d entries so far", path, offset, reader.position, replay.entries)
    return JournalEnd(end, ids[-1] + 1)


def _cut_off(reader: JournalReader) -> None:
    fd = files.open_file(reader.path)
    try:
        size_bytes = os.fstat(fd).st_size
        files.truncate(fd, reader.position)
        files.sync_file(fd)
    finally:
        os.close(fd)
    _LOG.warning(
        "journal %s is torn at offset %d: %s; it was cut off there, from %d bytes",
        reader.path,
        reader.position,
        "the group there was never answered"
        if reader.synced_groups
        else "journalSyncData was off, entries that were answered may be lost",
        size_bytes,
    )


class _Replay:
    def __init__(self, storage: ReplayTarget) -> None:
        self._storage = storage
        self._unknown: set[int] = set()
        self._broken: set[int] = set()
        self.entries = 0

    def apply(self, item: JournalItem, path: str) -> None:
        """Do again what a record of the journal at ``path`` says. Raises CorruptFileError, OSError."""
        if isinstance(item, Records):
            self._data(item)
            return
        if isinstance(item, LocatedRecord):
            self._located(item)
            return
        descriptor = self._descriptor(item.ledger_id)
        _check_room(item, descriptor, path)
        if descriptor is None and item.ledger_id not in self._broken:
            if not isinstance(item, MasterKeyRecord):
                self._unknown.add(item.ledger_id)
                return
            descriptor = self._storage.descriptors.create(item.ledger_id, item.master_key)
        if descriptor is None:
            return
        match item:
            case MasterKeyRecord():
                if not descriptor.master_key:
                    descriptor.master_key = item.master_key
                    descriptor.header_dirty = True
            case FenceRecord():
                if not descriptor.fenced:
                    descriptor.fenced = True
                    descriptor.header_dirty = True
            case ExplicitLacRecord():
                _set_explicit_lac(descriptor, item.packet)

    def _data(self, records: Records) -> None:
        storable = (records.entry_ids >= 0) & (records.entry_ids <= MAX_ENTRY_ID)
        parts: list[tuple[LedgerDescriptor, LedgerPart]] = []
        for part in records.by_ledger():
            ledger_id = part.ledger_id
            descriptor = self._descriptor(ledger_id)
            if descriptor is None and ledger_id in self._broken:
                # The header of its index file is broken: keep the entries and their locations for a later repair.
                descriptor = LedgerDescriptor(ledger_id, b"")
            if descriptor is None:
                self._unknown.add(ledger_id)
                storable[part.which] = False
            else:
                parts.append((descriptor, part))
        if not storable.all():
            if not storable.any():
                return
            records = records.select(storable)
            keep = {descriptor.ledger_id: descriptor for descriptor, _ in parts}
            parts = [(keep[part.ledger_id], part) for part in records.by_ledger()]
        self._storage.replay(records, parts)
        self.entries += len(records)

    def _located(self, entries: LocatedRecord) -> None:
        parts: list[tuple[LedgerDescriptor, Int64s]] = []
        for ledger_id in np.unique(entries.ledger_ids).tolist():
            descriptor = self._descriptor(ledger_id)
            if descriptor is None and ledger_id in self._broken:
                descriptor = LedgerDescriptor(ledger_id, b"")
            if descriptor is None:
                self._unknown.add(ledger_id)
            else:
                parts.append((descriptor, np.flatnonzero(entries.ledger_ids == ledger_id)))
        self._storage.replay_located(entries, parts)
        self.entries += len(entries.entry_ids)

    def _descriptor(self, ledger_id: int) -> LedgerDescriptor | None:
        try:
            return self._storage.descriptors.get(ledger_id)
        except CorruptFileError as error:
            if ledger_id not in self._broken:
                self._broken.add(ledger_id)
                _LOG.error("ledger %d was set aside, its entries cannot be read: %s", ledger_id, error)
            return None

    def report(self) -> None:
        """Log what was skipped."""

        if self._unknown:
            named = ", ".join(map(str, sorted(self._unknown)[:_NAMED]))
            _LOG.warning(
                "the journal has records of %d ledgers that this bookie does not have and without a master key. They "
                "were probably deleted. Skipped ledgers: %s%s",
                len(self._unknown),
                named,
                " ..." if len(self._unknown) > _NAMED else "",
            )


def _check_room(
    item: MasterKeyRecord | FenceRecord | ExplicitLacRecord, descriptor: LedgerDescriptor | None, path: str
) -> None:
    """Raise CorruptFileError if the header of the ledger's index file has no room for what a record brings: then no
    flush would ever succeed. Our bookie accepts no such keys and packets."""
    key = b"" if descriptor is None else descriptor.master_key
    lac = (None if descriptor is None else descriptor.explicit_lac) or b""
    match item:
        case MasterKeyRecord(_, new) if not key:
            what, total = f"a master key of {len(new)} bytes", len(new) + len(lac)
        case ExplicitLacRecord(_, new):
            what, total = f"a LAC packet of {len(new)} bytes", len(key) + len(new)
        case _:
            return
    if total > MAX_KEY_AND_LAC_BYTES:
        raise CorruptFileError(
            f"journal {path} has {what} for ledger {item.ledger_id}, but key and packet have {MAX_KEY_AND_LAC_BYTES} "
            f"bytes at most: the record is damaged; {REMEDY}"
        )


def _set_explicit_lac(descriptor: LedgerDescriptor, packet: bytes) -> None:
    if len(packet) < LAC_PACKET_HEADER.size:
        return
    _, lac = LAC_PACKET_HEADER.unpack_from(packet)
    known = descriptor.explicit_lac
    if known is not None and len(known) >= LAC_PACKET_HEADER.size and lac < LAC_PACKET_HEADER.unpack_from(known)[1]:
        return
    descriptor.explicit_lac = packet
    descriptor.last_add_confirmed = max(descriptor.last_add_confirmed, lac)
    descriptor.header_dirty = True
