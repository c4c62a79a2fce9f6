"""The bookie: what a client may ask of it, over the storage and below the front ends.

All methods are called in the event loop. Adds and fences take effect in the order of the calls: what was added
before a fence is in front of it in the journal, what comes after it is refused. Reading: bookie_reads.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import numpy as np

from bk_spark.protocol.arrays import Int32s
from bk_spark.protocol.codes import Code
from bk_spark.protocol.entries.entry import ENTRY_HEADER_BYTES, LAC_PACKET_HEADER
from bookie_server.bookie_reads import BookieReads
from bookie_server.state import BookieState
from bookie_server.storage.index.index import HEADER_BYTES as INDEX_HEADER_BYTES
from bookie_server.storage.journal import journal
from bookie_server.storage.ledger_descriptors import LedgerDescriptor
from bookie_server.storage.ledger_storage import LedgerStorage
from bookie_server.storage.records import LENGTH_BYTES, LedgerPart, Records

#: Told the outcome of an add: one code for all of its entries, or one for each.
AddDone = Callable[[Code | Int32s], None]

#: Key and explicit LAC packet must fit into an index file's header together.
_MAX_KEY_BYTES: Final = 256
_MAX_LAC_PACKET_BYTES: Final = INDEX_HEADER_BYTES - 64 - _MAX_KEY_BYTES


class Bookie(BookieReads):
    """Adds, reads, fences over one :class:`LedgerStorage`. ``state`` says whether the bookie takes adds."""

    def __init__(self, storage: LedgerStorage, state: BookieState) -> None:
        super().__init__(storage)
        self._state = state

    @property
    def excess_bytes(self) -> int:
        """By how much entries in memory are more than there should be: they wait for a flush. 0 where flushes fail, for
        then adds are refused."""
        return 0 if self._storage.is_stuck else self._storage.write_cache.excess_bytes

    @property
    def new_ledgers_wait(self) -> bool:
        """Whether so many new ledgers have no index file yet that no more should come; they are being written."""
        return self._storage.new_ledgers_wait

    def on_room(self, callback: Callable[[], None]) -> None:
        """``callback`` when a flush took the entries in memory, and :attr:`excess_bytes` is 0 again."""
        self._storage.flusher.on_room = callback

    # --- writing -----------------------------------------------------------------------------------

    def add(
        self, records: Records, master_key: bytes, *, recovery: bool, high_priority: bool = False, done: AddDone
    ) -> None:
        """Store entries; ``done`` is called once they are durable, or refused. With ``recovery`` a fence does not
        count; with ``high_priority`` they may be taken in read-only mode. An entry id that is there already gets the
        new content. One that no index file has room for is refused."""
        if self._storage.is_stuck or not self._state.may_add(high_priority):
            done(Code.READ_ONLY)
            return
        parts: list[tuple[LedgerDescriptor, LedgerPart]] = []
        codes: Int32s | None = None
        wrong_ids = (records.entry_ids < 0) | (records.entry_ids > self._storage.entry_limit.last)
        if wrong_ids.any() or _has_short_record(records):
            short = np.diff(records.offsets) < LENGTH_BYTES + ENTRY_HEADER_BYTES
            codes = np.where(wrong_ids | short, np.int32(Code.BAD_REQUEST), np.int32(Code.OK)).astype(np.int32)
        for part in records.by_ledger():
            if codes is not None and codes[part.which].all():
                continue  # nothing of it will be stored, so the ledger must not come into being
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
        refused = codes
        self._append(rest, rest_parts, lambda ok: done(refused if ok else np.where(accepted, Code.IO_ERROR, refused)))

    def _append(
        self, records: Records, parts: list[tuple[LedgerDescriptor, LedgerPart]], done: Callable[[bool], None]
    ) -> None:
        count = len(records)
        size_bytes = len(records.data) - LENGTH_BYTES * count

        def decided(ok: bool) -> None:
            if ok:
                self.counters.entries_added += count
                self.counters.bytes_added += size_bytes
            done(ok)

        self._storage.append(records, parts, decided)

    def fence(self, ledger_id: int, master_key: bytes) -> asyncio.Future[Code]:
        """Refuse normal adds to the ledger from now on. The future ends when that is durable. An unknown ledger is
        created, so that its writer is refused later."""
        outcome: asyncio.Future[Code] = asyncio.get_running_loop().create_future()
        descriptor = self._descriptor_to_write(ledger_id, master_key, Code.NO_LEDGER)
        if not isinstance(descriptor, LedgerDescriptor):
            outcome.set_result(descriptor)
            return outcome
        ledger = descriptor

        def durable(ok: bool) -> None:
            _resolve(outcome, Code.OK if ok else Code.IO_ERROR)

        if not ledger.fenced:
            self._fence_now(ledger, durable)
        elif ledger.fence_group is not None:
            ledger.fence_group.done.append(durable)
        else:
            outcome.set_result(Code.OK)
        return outcome

    def _fence_now(self, ledger: LedgerDescriptor, done: Callable[[bool], None], *, comes_again: bool = False) -> None:
        """``comes_again``: it was removed from this bookie, and is made anew in the same group."""

        def durable(ok: bool) -> None:
            ledger.fence_group = None
            done(ok)

        def undo() -> None:
            # Whoever fences again must not be told that it is durable.
            ledger.fenced = False
            ledger.header_dirty = True  # a flush may have written the flag
            ledger.fence_group = None
            if comes_again:
                self._storage.descriptors.drop(ledger.ledger_id)
                self._storage.deleted.note(ledger.ledger_id)

        ledger.fenced = True
        ledger.header_dirty = True
        ledger.fence_group = self._storage.append_journal(ledger, journal.fence_record(ledger.ledger_id), durable, undo)
        _notify(ledger)

    def write_lac(self, packet: bytes, master_key: bytes) -> asyncio.Future[Code]:
        """Keep an explicit LAC. ``packet`` is kept as it is; its first 16 bytes are ledger id and LAC. One that is
        lower than the one kept changes nothing."""
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
        ledger = descriptor

        def durable(ok: bool) -> None:
            if ok and last_add_confirmed > ledger.last_add_confirmed:
                ledger.last_add_confirmed = last_add_confirmed
                ledger.tell_watchers()
            _resolve(outcome, Code.OK if ok else Code.IO_ERROR)

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
        """Ends when everything added before (to the ledger's journal, if one is given) is durable."""
        outcome: asyncio.Future[Code] = asyncio.get_running_loop().create_future()
        self._storage.barrier(lambda ok: _resolve(outcome, Code.OK if ok else Code.IO_ERROR), ledger_id)
        return outcome

    def _descriptor_to_write(self, ledger_id: int, master_key: bytes, if_deleted: Code) -> LedgerDescriptor | Code:
        """The ledger's descriptor, made if need be; or why ``master_key`` may not write to the ledger.

        ``if_deleted`` is the answer for a ledger that was fenced and then removed from this bookie. With OK the ledger
        is made again, fenced.
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
                return Code.IO_ERROR  # it is known in a moment whether the ledger is still there
            if descriptor.master_key != master_key:
                return Code.UNAUTHORIZED
        return descriptor


def _has_short_record(records: Records) -> bool:
    return int(np.diff(records.offsets).min()) < LENGTH_BYTES + ENTRY_HEADER_BYTES


def _notify(descriptor: LedgerDescriptor) -> None:
    for watcher in list(descriptor.lac_watchers or ()):
        watcher()


def _resolve(outcome: asyncio.Future[Code], code: Code) -> None:
    if not outcome.done():
        outcome.set_result(code)
