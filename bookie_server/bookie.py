"""The bookie: what a client may ask of it, over the storage and below the front ends.

All methods are called in the event loop. Adds and fences take effect in the order of the calls: what was added
before a fence is in front of it in the journal, what comes after it is refused.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.codes import LAST_ENTRY, Code
from bk_spark.protocol.digest import Buffer
from bk_spark.protocol.entry import ENTRY_HEADER_BYTES, LAC_PACKET_HEADER
from bk_spark.protocol.errors import CorruptFileError
from bookie_server.storage import journal
from bookie_server.storage.entry_log_reader import StoredEntries, WouldBlockError
from bookie_server.storage.group_commit import Group
from bookie_server.storage.handles import LedgerHandle
from bookie_server.storage.index import HEADER_BYTES as INDEX_HEADER_BYTES
from bookie_server.storage.ledger_storage import LedgerStorage
from bookie_server.storage.records import LENGTH_BYTES, MAX_ENTRY_ID, Int64s, LedgerPart, Records, group_by_ledger

_LOG: Final = logging.getLogger(__name__)
Int32s = npt.NDArray[np.int32]
#: Ledgers, and where in some arrays what concerns each is.
ByLedger = list[tuple[int, Int64s | slice]]
#: Told the outcome of an add: one code for all of its entries, or one for each.
AddDone = Callable[[Code | Int32s], None]

_READ_THREADS: Final = 2
#: Entries looked up at a time; bounds what one read costs the event loop.
_MAX_LOOKUP: Final = 1024
#: Key and explicit LAC packet must fit into an index file's header together.
_MAX_KEY_BYTES: Final = 256
_MAX_LAC_PACKET_BYTES: Final = INDEX_HEADER_BYTES - 64 - _MAX_KEY_BYTES


@dataclass(frozen=True, slots=True)
class ReadPart:
    """The outcome of the first ``len(codes)`` reads of a request. ``entries`` holds those with code OK, in order."""

    codes: Int32s
    entries: StoredEntries | None


class Bookie:
    """Adds, reads, fences over one :class:`LedgerStorage`."""

    def __init__(self, storage: LedgerStorage) -> None:
        self._storage = storage
        self._readers = ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="read")

    @property
    def outstanding_bytes(self) -> int:
        """Bytes of adds accepted and not answered yet."""
        return self._storage.outstanding_bytes

    def close(self) -> None:
        """End the reader threads. The storage is closed by whoever opened it."""
        self._readers.shutdown()

    # --- writing -----------------------------------------------------------------------------------

    def add(self, records: Records, master_key: bytes, *, recovery: bool, done: AddDone) -> None:
        """Store entries; ``done`` is called once they are durable, or refused. With ``recovery`` a fence does not
        count. An entry id that is there already gets the new content."""
        parts: list[tuple[LedgerHandle, LedgerPart]] = []
        codes: Int32s | None = None
        wrong_ids = (records.entry_ids < 0) | (records.entry_ids > MAX_ENTRY_ID)
        if wrong_ids.any() or _has_short_record(records):
            short = np.diff(records.offsets) < LENGTH_BYTES + ENTRY_HEADER_BYTES
            codes = np.where(wrong_ids | short, np.int32(Code.BAD_REQUEST), np.int32(Code.OK)).astype(np.int32)
        for part in records.by_ledger():
            if codes is not None and codes[part.which].all():
                continue  # nothing of it will be stored, so the ledger must not come into being
            handle = self._handle_to_write(part.ledger_id, master_key)
            if isinstance(handle, LedgerHandle):
                if recovery or not handle.fenced:
                    parts.append((handle, part))
                    continue
                handle = Code.FENCED
            if codes is None:
                codes = np.zeros(len(records), np.int32)
            codes[part.which] = handle
        if codes is None:
            self._storage.append(records, parts, lambda ok: done(Code.OK if ok else Code.IO_ERROR))
            return
        accepted = codes == Code.OK
        if not accepted.any():
            done(codes)
            return
        handles = {handle.ledger_id: handle for handle, _ in parts}
        rest = records.select(accepted)
        rest_parts = [(handles[part.ledger_id], part) for part in rest.by_ledger()]
        refused = codes
        self._storage.append(
            rest, rest_parts, lambda ok: done(refused if ok else np.where(accepted, Code.IO_ERROR, refused))
        )

    def fence(self, ledger_id: int, master_key: bytes) -> asyncio.Future[Code]:
        """Refuse normal adds to the ledger from now on. The future ends when that is durable. An unknown ledger is
        created, so that its writer is refused later."""
        outcome: asyncio.Future[Code] = asyncio.get_running_loop().create_future()
        handle = self._handle_to_write(ledger_id, master_key)
        if not isinstance(handle, LedgerHandle):
            outcome.set_result(handle)
            return outcome
        ledger = handle

        def durable(ok: bool) -> None:
            ledger.fence_group = None
            _resolve(outcome, Code.OK if ok else Code.IO_ERROR)

        if not ledger.fenced:
            ledger.fenced = True
            ledger.header_dirty = True
            ledger.fence_group = self._storage.append_journal(ledger, journal.fence_record(ledger_id), durable)
            _notify(ledger)
        elif ledger.fence_group is not None:
            ledger.fence_group.done.append(durable)
        else:
            outcome.set_result(Code.OK)
        return outcome

    def write_lac(self, packet: bytes, master_key: bytes) -> asyncio.Future[Code]:
        """Keep an explicit LAC. ``packet`` is kept as it is; its first 16 bytes are ledger id and LAC."""
        outcome: asyncio.Future[Code] = asyncio.get_running_loop().create_future()
        if not LAC_PACKET_HEADER.size <= len(packet) <= _MAX_LAC_PACKET_BYTES:
            outcome.set_result(Code.BAD_REQUEST)
            return outcome
        ledger_id, last_add_confirmed = LAC_PACKET_HEADER.unpack_from(packet)
        handle = self._handle_to_write(ledger_id, master_key)
        if not isinstance(handle, LedgerHandle):
            outcome.set_result(handle)
            return outcome
        ledger = handle
        ledger.explicit_lac = packet
        ledger.header_dirty = True

        def durable(ok: bool) -> None:
            if ok and last_add_confirmed > ledger.last_add_confirmed:
                ledger.last_add_confirmed = last_add_confirmed
                _notify(ledger)
            _resolve(outcome, Code.OK if ok else Code.IO_ERROR)

        self._storage.append_journal(ledger, journal.explicit_lac_record(ledger_id, packet), durable)
        return outcome

    def force(self) -> asyncio.Future[Code]:
        """Ends when everything added before is durable."""
        outcome: asyncio.Future[Code] = asyncio.get_running_loop().create_future()
        self._storage.barrier(lambda ok: _resolve(outcome, Code.OK if ok else Code.IO_ERROR))
        return outcome

    def _handle_to_write(self, ledger_id: int, master_key: bytes) -> LedgerHandle | Code:
        """The ledger's handle, made now if need be; or why ``master_key`` may not write to it."""
        if ledger_id < 0 or len(master_key) > _MAX_KEY_BYTES:
            return Code.BAD_REQUEST
        handle = self.handle(ledger_id)
        if handle is None:
            return self._storage.handles.create(ledger_id, master_key)
        if isinstance(handle, LedgerHandle) and handle.master_key != master_key:
            return Code.UNAUTHORIZED
        return handle

    # --- reading -----------------------------------------------------------------------------------

    def handle(self, ledger_id: int) -> LedgerHandle | Code | None:
        """What is known of a ledger: None if nothing, IO_ERROR if its index file cannot be read."""
        try:
            return self._storage.handles.get(ledger_id)
        except (CorruptFileError, OSError) as error:
            _LOG.error("ledger %d: %s", ledger_id, error)
            return Code.IO_ERROR

    def read_now(self, ledger_id: int, entry_id: int) -> tuple[Code, Buffer] | None:
        """One entry (-1: the last), or why not, where that can be said at once; None means: ask :meth:`read`."""
        handle = self.handle(ledger_id)
        if not isinstance(handle, LedgerHandle):
            return (Code.NO_LEDGER if handle is None else handle), b""
        if entry_id == LAST_ENTRY:
            entry_id = handle.last_entry
        elif handle.pending(entry_id, entry_id) is not None:
            return None
        if not 0 <= entry_id <= MAX_ENTRY_ID:
            return Code.NO_ENTRY, b""
        try:
            location = self._storage.cache.get_one(ledger_id, entry_id)
        except OSError:
            return None
        if location == 0:
            return Code.NO_ENTRY, b""
        stored = self._storage.reader.read_one(ledger_id, entry_id, location, self._storage.written_to)
        return None if stored is None else (Code.OK, stored)

    async def read(self, ledger_ids: Int64s, entry_ids: Int64s, limit_bytes: int) -> ReadPart:
        """Read the first of the entries asked for: at least one, and as many as come to about ``limit_bytes``.

        Entry id -1 means the ledger's last entry. Entries not durable yet are waited for.
        """
        ledger_ids, entry_ids = ledger_ids[:_MAX_LOOKUP], entry_ids[:_MAX_LOOKUP]
        by_ledger = group_by_ledger(ledger_ids)
        while (group := self._pending_group(by_ledger, entry_ids)) is not None:
            await _through(group)
        codes, resolved, locations = self._locate(by_ledger, entry_ids)
        present = np.flatnonzero(codes == Code.OK)
        if not len(present):
            return ReadPart(codes, None)
        if len(present) == len(codes):
            entries = await self._fetch(ledger_ids, resolved, locations, limit_bytes)
        else:
            entries = await self._fetch(ledger_ids[present], resolved[present], locations[present], limit_bytes)
        if len(entries.sizes) < len(present):
            codes = codes[: int(present[len(entries.sizes)])]  # what comes before that one is answered now
            present = present[: len(entries.sizes)]
        unreadable = entries.sizes < 0
        if unreadable.any():
            codes[present[unreadable]] = Code.IO_ERROR
            entries = StoredEntries(entries.data, entries.starts[~unreadable], entries.sizes[~unreadable])
        return ReadPart(codes, entries)

    async def read_batch(
        self, ledger_id: int, first_entry_id: int, max_count: int, limit_bytes: int
    ) -> tuple[Code, list[StoredEntries]]:
        """Consecutive entries from ``first_entry_id`` (-1: the last one) on: up to ``max_count`` (0: any number),
        and no more than ``limit_bytes`` with their sizes, but at least one. An error only if the first fails."""
        first = np.array([first_entry_id], np.int64)
        by_ledger: ByLedger = [(ledger_id, slice(None))]
        while (group := self._pending_group(by_ledger, first)) is not None:
            await _through(group)
        codes, resolved, _ = self._locate(by_ledger, first)
        if codes[0] != Code.OK:
            return Code(int(codes[0])), []
        result: list[StoredEntries] = []
        next_id, left_bytes = int(resolved[0]), limit_bytes
        left_count = max_count if max_count > 0 else MAX_ENTRY_ID
        while left_count > 0:
            try:
                locations = self._storage.cache.get_run(ledger_id, next_id, min(left_count, _MAX_LOOKUP))
            except OSError as error:
                _LOG.error("ledger %d: %s", ledger_id, error)
                return (Code.OK if result else Code.IO_ERROR), result
            if not len(locations):
                break
            asked = len(locations)
            ids = np.arange(next_id, next_id + asked)
            entries = await self._fetch(np.full(asked, ledger_id, np.int64), ids, locations, left_bytes)
            good = _within(entries.sizes, left_bytes, at_least_one=not result)
            if good == 0:
                return (Code.OK if result else Code.IO_ERROR), result
            result.append(StoredEntries(entries.data, entries.starts[:good], entries.sizes[:good]))
            left_bytes -= int(entries.sizes[:good].sum()) + good * LENGTH_BYTES
            left_count -= good
            next_id += good
            if good < len(entries.sizes) or left_bytes <= 0 or next_id > MAX_ENTRY_ID:
                break
        return Code.OK, result

    async def known_lac(self, handle: LedgerHandle) -> int:
        """The highest last add confirmed that this bookie knows of; -1 if none."""
        if not handle.lac_loaded:
            if handle.explicit_lac is not None:
                _, lac = LAC_PACKET_HEADER.unpack_from(handle.explicit_lac)
                handle.last_add_confirmed = max(handle.last_add_confirmed, lac)
            if handle.last_entry >= 0:
                part = await self.read(np.array([handle.ledger_id]), np.array([LAST_ENTRY]), 1)
                if part.entries is not None and len(part.entries.sizes):
                    stored = part.entries.entry(0)
                    if len(stored) >= ENTRY_HEADER_BYTES:
                        (lac,) = struct.unpack_from(">q", stored, 16)
                        handle.last_add_confirmed = max(handle.last_add_confirmed, lac)
            handle.lac_loaded = True
        return handle.last_add_confirmed

    async def wait_for_lac(self, handle: LedgerHandle, above: int, timeout_ms: int) -> bool:
        """Wait until a LAC greater than ``above`` is known or the ledger is fenced; False after the timeout."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def look() -> None:
            if (handle.last_add_confirmed > above or handle.fenced) and not changed.done():
                changed.set_result(None)

        if handle.lac_watchers is None:
            handle.lac_watchers = []
        handle.lac_watchers.append(look)
        try:
            await asyncio.wait_for(changed, timeout_ms / 1000)
        except TimeoutError:
            return False
        finally:
            handle.lac_watchers.remove(look)
        return True

    def _pending_group(self, by_ledger: ByLedger, entry_ids: Int64s) -> Group | None:
        """The group to wait for before these entries may be read."""
        for ledger_id, which in by_ledger:
            handle = self.handle(ledger_id)
            if isinstance(handle, LedgerHandle) and handle.group is not None:
                ids = entry_ids[which]
                group = handle.pending(int(ids.min()), int(ids.max()))
                if group is not None:
                    return group
        return None

    def _locate(self, by_ledger: ByLedger, entry_ids: Int64s) -> tuple[Int32s, Int64s, Int64s]:
        """(codes, entry ids with -1 replaced by the last entry's, locations)."""
        codes = np.zeros(len(entry_ids), np.int32)
        locations = np.zeros(len(entry_ids), np.int64)
        resolved = entry_ids
        for ledger_id, which in by_ledger:
            handle = self.handle(ledger_id)
            if not isinstance(handle, LedgerHandle):
                codes[which] = Code.NO_LEDGER if handle is None else handle
                continue
            ids = entry_ids[which]
            if int(ids.min()) < 0 or int(ids.max()) > MAX_ENTRY_ID:
                ids = np.where(ids == LAST_ENTRY, handle.last_entry, ids)
                if resolved is entry_ids:
                    resolved = entry_ids.copy()
                resolved[which] = ids
            sane = (ids >= 0) & (ids <= MAX_ENTRY_ID)
            try:
                found = self._storage.cache.get(ledger_id, np.where(sane, ids, 0))
            except OSError as error:
                _LOG.error("ledger %d: %s", ledger_id, error)
                codes[which] = Code.IO_ERROR
                continue
            found = np.where(sane, found, 0)
            locations[which] = found
            codes[which] = np.where(found == 0, np.int32(Code.NO_ENTRY), np.int32(Code.OK))
        return codes, resolved, locations

    async def _fetch(self, ledger_ids: Int64s, entry_ids: Int64s, locations: Int64s, limit_bytes: int) -> StoredEntries:
        reader, written_to = self._storage.reader, self._storage.written_to
        try:
            return reader.read(ledger_ids, entry_ids, locations, written_to, limit_bytes, may_wait=False)
        except WouldBlockError:
            return await asyncio.get_running_loop().run_in_executor(
                self._readers,
                lambda: reader.read(ledger_ids, entry_ids, locations, written_to, limit_bytes, may_wait=True),
            )


def _has_short_record(records: Records) -> bool:
    return int(np.diff(records.offsets).min()) < LENGTH_BYTES + ENTRY_HEADER_BYTES


def _within(sizes: Int64s, limit_bytes: int, *, at_least_one: bool) -> int:
    """How many of the first entries are readable and fit into ``limit_bytes`` together with their lengths."""
    bad = np.flatnonzero(sizes < 0)
    readable = int(bad[0]) if len(bad) else len(sizes)
    fitting = int(np.searchsorted(np.cumsum(sizes[:readable] + LENGTH_BYTES), limit_bytes, side="right"))
    return min(readable, max(fitting, 1)) if at_least_one else fitting


def _notify(handle: LedgerHandle) -> None:
    for watcher in list(handle.lac_watchers or ()):
        watcher()


def _resolve(outcome: asyncio.Future[Code], code: Code) -> None:
    if not outcome.done():
        outcome.set_result(code)


async def _through(group: Group) -> None:
    done = asyncio.get_running_loop().create_future()
    group.done.append(lambda ok: None if done.done() else done.set_result(ok))
    await done
