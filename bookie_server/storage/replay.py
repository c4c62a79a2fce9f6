"""Replay: bringing entry logs and indexes up to date from the journals at start. Rules: compatibility facts §5.2.

Every record from the last mark on is done again, in order; doing one twice changes nothing but the place of the
entry. Fencing is not checked: an add that is in the journal was accepted.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

from bk_spark.protocol.entry import LAC_PACKET_HEADER
from bk_spark.protocol.errors import CorruptFileError
from bookie_server.storage import journal
from bookie_server.storage.handles import LedgerHandle
from bookie_server.storage.journal import (
    ExplicitLacRecord,
    FenceRecord,
    JournalItem,
    LogMark,
    MasterKeyRecord,
)
from bookie_server.storage.journal_reader import JournalReader
from bookie_server.storage.records import MAX_ENTRY_ID, LedgerPart, Records

if TYPE_CHECKING:
    from bookie_server.storage.ledger_storage import LedgerStorage

_LOG: Final = logging.getLogger(__name__)


def replay_journals(directory: str, mark: LogMark, storage: LedgerStorage) -> int | None:
    """Replay all journals in ``directory`` from ``mark`` on into ``storage``; the highest journal id, or None.

    Raises CorruptFileError where the mark's journal is missing or a journal is damaged before its end.
    """
    ids = journal.journal_ids(directory)
    if mark.journal_id > 0 and mark.journal_id not in ids:
        raise CorruptFileError(
            f"lastMark names journal {journal.file_name(mark.journal_id)}, which is not in {directory}: acknowledged "
            "entries may be in it; put it back, or remove the bookie's data and re-replicate"
        )
    replay = _Replay(storage)
    paths = {i: os.path.join(directory, journal.file_name(i)) for i in ids if i >= mark.journal_id}
    newest = max((i for i, path in paths.items() if JournalReader(path).holds_records()), default=0)
    for journal_id, path in paths.items():
        offset = mark.offset if journal_id == mark.journal_id else 0
        reader = JournalReader(path, offset, is_last=journal_id >= newest)
        for item in reader.items():
            replay.apply(item)
        if reader.torn:
            _LOG.warning("journal %s is torn at offset %d: the group there was never answered", path, reader.position)
        _LOG.info("replayed journal %s from %d to %d: %d entries so far", path, offset, reader.position, replay.entries)
    return ids[-1] if ids else None


class _Replay:
    def __init__(self, storage: LedgerStorage) -> None:
        self._storage = storage
        self._complained: set[int] = set()
        self._broken: set[int] = set()
        self.entries = 0

    def apply(self, item: JournalItem) -> None:
        if isinstance(item, Records):
            self._data(item)
            return
        handle = self._handle(item.ledger_id)
        match item:
            case MasterKeyRecord():
                if handle is None and item.ledger_id not in self._broken:
                    handle = self._storage.handles.create(item.ledger_id, item.master_key)
                if handle is not None and not handle.master_key:
                    handle.master_key = item.master_key
                    handle.header_dirty = True
            case FenceRecord():
                if handle is not None and not handle.fenced:
                    handle.fenced = True
                    handle.header_dirty = True
            case ExplicitLacRecord():
                if handle is not None:
                    handle.explicit_lac = item.packet
                    if len(item.packet) >= LAC_PACKET_HEADER.size:
                        _, lac = LAC_PACKET_HEADER.unpack_from(item.packet)
                        handle.last_add_confirmed = max(handle.last_add_confirmed, lac)
                    handle.header_dirty = True

    def _data(self, records: Records) -> None:
        storable = (records.entry_ids >= 0) & (records.entry_ids <= MAX_ENTRY_ID)
        parts: list[tuple[LedgerHandle, LedgerPart]] = []
        for part in records.by_ledger():
            ledger_id = part.ledger_id
            handle = self._handle(ledger_id)
            if handle is None and ledger_id in self._broken:
                # Its index file's header is broken: keep the entries and their places for whoever repairs it.
                handle = LedgerHandle(ledger_id, b"")
            if handle is None:
                self._complain(ledger_id, "has entries in the journal, but no master key is known: skipped")
                storable[part.which] = False
            else:
                parts.append((handle, part))
        if not storable.all():
            if not storable.any():
                return
            records = records.select(storable)
            keep = {handle.ledger_id: handle for handle, _ in parts}
            parts = [(keep[part.ledger_id], part) for part in records.by_ledger()]
        self._storage.replay(records, parts)
        self.entries += len(records)

    def _handle(self, ledger_id: int) -> LedgerHandle | None:
        try:
            return self._storage.handles.get(ledger_id)
        except CorruptFileError as error:
            self._complain(ledger_id, f"is set aside, its entries cannot be read: {error}")
            self._broken.add(ledger_id)
            return None

    def _complain(self, ledger_id: int, what: str) -> None:
        if ledger_id not in self._complained:
            self._complained.add(ledger_id)
            _LOG.error("ledger %d %s", ledger_id, what)
