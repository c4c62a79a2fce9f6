"""The bookie: the operations that clients may request, between the storage and the front ends.

All methods are called in the event loop. Adds and fences take effect in call order: entries added before a fence
precede it in the journal, and later adds are refused.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from bk_spark.protocol.arrays import Int32s, Int64s
from bk_spark.protocol.codes import LAST_ENTRY, Code
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.entries.entry import ENTRY_HEADER_BYTES, LAC_PACKET_HEADER
from bookie_server.entry_reader import MAX_LEDGERS, MAX_LOOKUP, EntryReader, ReadPart, durable
from bookie_server.metrics.bookie_counters import BookieCounters
from bookie_server.state import BookieState
from bookie_server.storage.entrylog.entry_log_reader import Room, StoredEntries
from bookie_server.storage.index.index import HEADER_BYTES as INDEX_HEADER_BYTES
from bookie_server.storage.index.ledger_cache import ColdPageError
from bookie_server.storage.journal import journal
from bookie_server.storage.ledger_descriptors import LedgerDescriptor
from bookie_server.storage.ledger_storage import LedgerStorage
from bookie_server.storage.records import LENGTH_BYTES, MAX_ENTRY_ID, LedgerPart, Records, group_by_ledger

_LOG: Final = logging.getLogger(__name__)
#: Called with the outcome of an add: one code for all of its entries, or one for each.
AddDone = Callable[[Code | Int32s], None]

#: The key and an explicit LAC packet must both fit into an index file's header.
_MAX_KEY_BYTES: Final = 256
_MAX_LAC_PACKET_BYTES: Final = INDEX_HEADER_BYTES - 64 - _MAX_KEY_BYTES


class Bookie:
    """Adds, reads and fences over one :class:`LedgerStorage`. ``state`` says whether the bookie accepts adds."""

    def __init__(self, storage: LedgerStorage, state: BookieState) -> None:
        self._storage = storage
        self._state = state
        self.counters = BookieCounters()
        self._reader = EntryReader(storage, self.counters)

    def close(self) -> None:
        """End the reader threads. The owner of the storage closes it."""
        self._reader.close()

    def descriptor(self, ledger_id: int) -> LedgerDescriptor | Code | None:
        """The ledger's descriptor; None if the ledger is unknown, IO_ERROR if its index file cannot be read."""
        return self._reader.descriptor(ledger_id)

    def is_in_memory(self, ledger_id: int) -> bool:
        """Whether :meth:`descriptor` needs no file."""
        return self._storage.descriptors.peek(ledger_id) is not None

    @property
    def flushes(self) -> int:
        """Number of flushes so far. Each may create index files."""
        return self._storage.descriptors.flushes

    async def look_up(self, ledger_ids: Iterable[int]) -> None:
        """Prepare fences of unknown ledgers, so that they do not wait for a directory in the event loop."""
        await self._reader.look_up(ledger_ids)

    @property
    def excess_bytes(self) -> int:
        """Bytes of entries in memory above the limit that wait for a flush. 0 if flushes fail: adds are refused."""
        return 0 if self._storage.is_stuck else self._storage.write_cache.excess_bytes

    @property
    def new_ledgers(self) -> int:
        """Ledgers that were created since the last flush began."""
        return self._storage.descriptors.unwritten

    @property
    def new_ledgers_wait(self) -> bool:
        """Whether so many new ledgers wait for index files that the front ends should delay further ones."""
        return self._storage.new_ledgers_wait

    def on_room(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when a flush has made room, so that :attr:`excess_bytes` is 0 again."""
        self._storage.flusher.on_room = callback

    def on_answered(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when a group of a journal is decided, and everybody who waited for it was told."""
        self._storage.on_answered = callback

    # --- writing -----------------------------------------------------------------------------------

    def add(
        self, records: Records, master_key: bytes, *, recovery: bool, high_priority: bool = False, done: AddDone
    ) -> None:
        """Store entries. An existing entry id gets the new content.

        Parameters
        ----------
        records
            The entries; their data must not change until ``done`` is called.
        master_key
            The key of all their ledgers. A new ledger is created with it.
        recovery
            Also add to fenced ledgers.
        high_priority
            Also add in read-only mode, while there is room.
        done
            Called once, when the entries are durable or refused. Entry ids above the limit of the index files are
            refused with BAD_REQUEST.
        """
        if self._storage.is_stuck or not self._state.may_add(high_priority):
            done(Code.READ_ONLY)
            return
        parts: list[tuple[LedgerDescriptor, LedgerPart]] = []
        wrong = records.wrong(self._storage.entry_limit.last, LENGTH_BYTES + ENTRY_HEADER_BYTES)
        codes = None if wrong is None else np.where(wrong, Code.BAD_REQUEST, Code.OK).astype(np.int32)
        for part in records.by_ledger():
            if codes is not None and codes[part.which].all():
                continue  # none of its entries will be stored, so the ledger must not be created
            descriptor = self._descriptor_to_write(part.ledger_id, master_key, Code.OK if recovery else Code.FENCED)
            if isinstance(descriptor, LedgerDescriptor):
                if recovery or not descriptor.fenced:
                    parts.append((descriptor, part))
                    continue
                descriptor = Code.FENCED
            if codes is None:
                codes = np.zeros(len(records), np.int32)
            codes[part.which] = descriptor
        if codes is None:
            self._append(records, parts, lambda ok: done(Code.OK if ok else Code.IO_ERROR))
            return
        accepted = codes == Code.OK
        if not accepted.any():
            done(codes)
            return
        descriptors = {descriptor.ledger_id: descriptor for descriptor, _ in parts}
        rest = records.select(accepted)
        rest_parts = [(descriptors[part.ledger_id], part) for part in rest.by_ledger()]
        failed = np.where(accepted, np.int32(Code.IO_ERROR), codes)
        self._append(rest, rest_parts, lambda ok: done(codes if ok else failed))

    def _append(
        self,
        records: Records,
        parts: list[tuple[LedgerDescriptor, LedgerPart]],
        done: Callable[[bool], None],
    ) -> None:
        count = len(records)
        size_bytes = len(records.data) - LENGTH_BYTES * count

        def decided(ok: bool) -> None:
            if ok:
                self.counters.entries_added += count
                self.counters.bytes_added += size_bytes
            done(ok)

        self._storage.append(records, parts, decided)

    def fence(self, ledger_id: int, master_key: bytes, *, urgent: bool = True) -> asyncio.Future[Code]:
        """Refuse normal adds to the ledger from now on. The future completes when the fence is durable.

        An unknown ledger is created, so that its writer is refused later. ``urgent``: the journal writes the fence at
        once, and not together with others.
        """
        outcome: asyncio.Future[Code] = asyncio.get_running_loop().create_future()
        descriptor = self._descriptor_to_write(ledger_id, master_key, Code.NO_LEDGER)
        if not isinstance(descriptor, LedgerDescriptor):
            outcome.set_result(descriptor)
        elif not descriptor.fenced:
            self._fence_now(descriptor, _resolver(outcome), urgent=urgent)
        elif descriptor.fence_group is not None:
            descriptor.fence_group.done.append(_resolver(outcome))
        else:
            outcome.set_result(Code.OK)
        return outcome

    def fenced_before(self, ledger_id: int, master_key: bytes) -> Code | None:
        """The code of a fence that needs neither journal nor file, since a fence of the ledger is durable; None for
        other ledgers."""
        descriptor = self._storage.descriptors.peek(ledger_id)
        if descriptor is None or descriptor.deleting or not descriptor.fenced or descriptor.fence_group is not None:
            return None
        return Code.OK if descriptor.admits(master_key) else Code.UNAUTHORIZED

    def _fence_now(
        self,
        ledger: LedgerDescriptor,
        done: Callable[[bool], None],
        *,
        comes_again: bool = False,
        urgent: bool = True,
    ) -> None:
        """Fence. ``comes_again``: the ledger was removed from this bookie and is recreated in the same group."""

        def durable(ok: bool) -> None:
            ledger.fence_group = None
            done(ok)

        def undo() -> None:
            # The next fence must not be reported as durable.
            ledger.fenced = False
            ledger.header_dirty = True  # a flush may have written the flag
            ledger.fence_group = None
            if comes_again:
                self._storage.descriptors.drop(ledger.ledger_id)
                self._storage.deleted.note(ledger.ledger_id)

        ledger.fenced = True
        ledger.header_dirty = True
        record = journal.fence_record(ledger.ledger_id)
        ledger.fence_group = self._storage.append_journal(ledger, record, durable, undo, urgent=urgent)
        ledger.wake_watchers()

    def write_lac(self, packet: bytes, master_key: bytes) -> asyncio.Future[Code]:
        """Store an explicit LAC, unless it is lower than the stored one.

        ``packet`` is stored unchanged; its first 16 bytes are ledger id and LAC.
        """
        outcome: asyncio.Future[Code] = asyncio.get_running_loop().create_future()
        if not LAC_PACKET_HEADER.size <= len(packet) <= _MAX_LAC_PACKET_BYTES:
            outcome.set_result(Code.BAD_REQUEST)
            return outcome
        if not self._state.may_add(False):
            outcome.set_result(Code.READ_ONLY)
            return outcome
        ledger_id, last_add_confirmed = LAC_PACKET_HEADER.unpack_from(packet)
        descriptor = self._descriptor_to_write(ledger_id, master_key, Code.NO_LEDGER)
        if not isinstance(descriptor, LedgerDescriptor):
            outcome.set_result(descriptor)
            return outcome
        ledger, resolve = descriptor, _resolver(outcome)

        def durable(ok: bool) -> None:
            if ok and last_add_confirmed > ledger.last_add_confirmed:
                ledger.last_add_confirmed = last_add_confirmed
                ledger.tell_watchers()
            resolve(ok)

        before = ledger.explicit_lac
        if before is not None and LAC_PACKET_HEADER.unpack_from(before)[1] > last_add_confirmed:
            self._storage.barrier(durable, ledger_id)
            return outcome

        def undo() -> None:
            ledger.explicit_lac = before
            ledger.header_dirty = True  # a flush may have written the packet already

        ledger.explicit_lac = packet
        ledger.header_dirty = True
        self._storage.append_journal(ledger, journal.explicit_lac_record(ledger_id, packet), durable, undo)
        return outcome

    def force(self, ledger_id: int | None = None) -> asyncio.Future[Code]:
        """Return a future for when all earlier adds (to the ledger's journal, if one is given) are durable."""
        outcome: asyncio.Future[Code] = asyncio.get_running_loop().create_future()
        self._storage.barrier(_resolver(outcome), ledger_id)
        return outcome

    def _descriptor_to_write(self, ledger_id: int, master_key: bytes, if_deleted: Code) -> LedgerDescriptor | Code:
        """The ledger's descriptor, created if needed; or why ``master_key`` may not write to the ledger.

        ``if_deleted`` is the answer for a ledger that was fenced and then removed from this bookie. If it is OK, the
        ledger is recreated, fenced.
        """
        if ledger_id < 0 or len(master_key) > _MAX_KEY_BYTES:
            return Code.BAD_REQUEST
        descriptor = self.descriptor(ledger_id)
        if descriptor is None:
            deleted = ledger_id in self._storage.deleted
            if deleted and if_deleted is not Code.OK:
                return if_deleted
            ledger = self._storage.descriptors.create(ledger_id, master_key)
            if deleted:
                self._storage.deleted.forget(ledger_id)
                self._fence_now(ledger, lambda ok: None, comes_again=True)
            return ledger
        if isinstance(descriptor, LedgerDescriptor):
            if descriptor.deleting:
                return Code.IO_ERROR  # a pending removal will soon decide whether the ledger still exists
            if not descriptor.admits(master_key):
                return Code.UNAUTHORIZED
        return descriptor

    # --- reading -----------------------------------------------------------------------------------

    def read_now(self, ledger_id: int, entry_id: int) -> tuple[Code, Buffer] | None:
        """One entry (-1: the last), or the error code. None if the read would have to wait: use :meth:`read`."""
        descriptor = self._reader.descriptor(ledger_id)
        if not isinstance(descriptor, LedgerDescriptor):
            return (Code.NO_LEDGER if descriptor is None else descriptor), b""
        if descriptor.limbo:
            return None
        if entry_id == LAST_ENTRY:
            entry_id = descriptor.last_entry
        if not 0 <= entry_id <= MAX_ENTRY_ID:
            return Code.NO_ENTRY, b""
        stored = self._storage.lookup.read_cached(ledger_id, entry_id)
        if stored is not None:
            self.counters.cache_hits += 1
            self.counters.read(1, len(stored))
            return Code.OK, stored
        try:
            location = self._storage.lookup.location_of(ledger_id, entry_id)
        except (OSError, ColdPageError):
            return None
        if location == 0:
            if descriptor.pending(entry_id, entry_id) is not None:
                return None
            return (Code.IO_ERROR if self._storage.entry_limit.lacks(ledger_id, entry_id) else Code.NO_ENTRY), b""
        stored = self._storage.reader.read_one(ledger_id, entry_id, location)
        if stored is None:
            return None
        self.counters.cache_misses += 1
        self.counters.read(1, len(stored))
        return Code.OK, stored

    async def read(self, ledger_ids: Int64s, entry_ids: Int64s, limit_bytes: int, *, taken: bool = False) -> ReadPart:
        """Read the first of the requested entries: at least one, and no more than about ``limit_bytes``.

        Entry id -1 means the ledger's last entry. Waits for entries that are not yet durable. ``taken``: the peer is
        known to take large answers, so large entries need not be read in a thread.
        """
        ledger_ids, entry_ids = ledger_ids[:MAX_LOOKUP], entry_ids[:MAX_LOOKUP]
        by_ledger = group_by_ledger(ledger_ids)
        if len(by_ledger) > MAX_LEDGERS:
            _, firsts = np.unique(ledger_ids, return_index=True)
            count = int(np.sort(firsts)[MAX_LEDGERS])
            ledger_ids, entry_ids = ledger_ids[:count], entry_ids[:count]
            by_ledger = group_by_ledger(ledger_ids)
        codes, resolved, locations = await self._reader.locate_durable(by_ledger, entry_ids)
        present = np.flatnonzero(codes == Code.OK)
        if not len(present):
            return ReadPart(codes, None)
        which = slice(None) if len(present) == len(codes) else present
        entries = await self._reader.fetch(
            ledger_ids[which], resolved[which], locations[which], limit_bytes, taken=taken
        )
        if len(entries.sizes) < len(present):
            codes = codes[: int(present[len(entries.sizes)])]  # only the reads before that one are answered now
            present = present[: len(entries.sizes)]
        unreadable = entries.sizes < 0
        if unreadable.any():
            codes[present[unreadable]] = Code.IO_ERROR
            entries = StoredEntries(entries.data, entries.starts[~unreadable], entries.sizes[~unreadable])
        self.counters.read(len(entries.sizes), int(entries.sizes.sum()))
        return ReadPart(codes, entries)

    async def read_batch(
        self,
        ledger_id: int,
        first_entry_id: int,
        max_count: int,
        limit_bytes: int,
        *,
        taken: bool = False,
        room: Room | None = None,
    ) -> tuple[Code, list[StoredEntries]]:
        """Read consecutive entries starting at ``first_entry_id`` (-1: the last one).

        Returns up to ``max_count`` entries (0: any number) and ``limit_bytes`` with their size fields, but at least
        one. The code is an error only if the first entry fails. ``taken``: as in :meth:`read`. ``room``: see
        :meth:`EntryLogReader.read`.
        """
        return await self._reader.read_batch(ledger_id, first_entry_id, max_count, limit_bytes, taken=taken, room=room)

    async def list_entries(self, ledger_id: int) -> tuple[Code, Int64s]:
        """Ids of the ledger's entries on this bookie, ascending. Waits for entries that are not yet durable."""
        descriptor = self._reader.descriptor(ledger_id)
        if not isinstance(descriptor, LedgerDescriptor):
            return (Code.NO_LEDGER if descriptor is None else descriptor), np.empty(0, np.int64)
        if descriptor.limbo:
            return Code.UNKNOWN_LEDGER_STATE, np.empty(0, np.int64)
        if descriptor.group is not None:
            await durable(descriptor.group)
        try:
            return Code.OK, await self._storage.lookup.entry_ids(ledger_id)
        except OSError as error:
            _LOG.error("ledger %d: %s", ledger_id, error)
            return Code.IO_ERROR, np.empty(0, np.int64)

    async def known_lac(self, descriptor: LedgerDescriptor) -> int:
        """The highest last add confirmed that this bookie knows; -1 if none."""
        if not descriptor.lac_loaded:
            if descriptor.explicit_lac is not None:
                _, lac = LAC_PACKET_HEADER.unpack_from(descriptor.explicit_lac)
                descriptor.last_add_confirmed = max(descriptor.last_add_confirmed, lac)
            if descriptor.last_entry >= 0:
                part = await self.read(np.array([descriptor.ledger_id]), np.array([LAST_ENTRY]), 1)
                stored = part.entries.entry(0) if part.entries is not None and len(part.entries.sizes) else b""
                if len(stored) >= ENTRY_HEADER_BYTES:
                    (lac,) = struct.unpack_from(">q", stored, 16)
                    descriptor.last_add_confirmed = max(descriptor.last_add_confirmed, lac)
            descriptor.lac_loaded = True
        return descriptor.last_add_confirmed


def _resolver(outcome: asyncio.Future[Code]) -> Callable[[bool], None]:
    """A callback that completes ``outcome``, unless it was cancelled."""

    def resolve(ok: bool) -> None:
        if not outcome.done():
            outcome.set_result(Code.OK if ok else Code.IO_ERROR)

    return resolve
