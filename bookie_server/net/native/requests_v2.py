"""Handles v2 requests. Codes and rules: compatibility.md §1.3–§1.6, §2.4.

UNKNOWN_LEDGER_STATE is never sent over v2, because Java's client would drop the connection. IO_ERROR replaces it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

import numpy as np

from bk_spark.protocol.arrays import Int32s, Int64s
from bk_spark.protocol.codes import V2, Code, FlagV2, OpV2
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.auth_frames import AUTH_DISABLED
from bk_spark.protocol.wire.framing import Frames
from bk_spark.protocol.wire.wire_v2 import AddRun, Auth, BadVersion, BatchRead, ReadRun
from bookie_server.entry_reader import MAX_LEDGERS, ReadPart
from bookie_server.net.common.access.rights import FENCE, READ
from bookie_server.net.native.fences import is_durable
from bookie_server.net.native.recovery_adds import HeldAdds
from bookie_server.net.native.request_context import RequestContext
from bookie_server.storage.entrylog.entry_log_reader import StoredEntries
from bookie_server.storage.records import LENGTH_BYTES, Records

#: As plain ints: each operation on a flag of an enum makes a new flag.
_RECOVERY_ADD: Final = int(FlagV2.RECOVERY_ADD)
_HIGH_PRIORITY: Final = int(FlagV2.HIGH_PRIORITY)
_FENCING: Final = int(FlagV2.FENCING)
_URGENT: Final = _HIGH_PRIORITY | _FENCING
#: Runs of requests of one connection that are handled before other connections' turn: about a millisecond.
RUNS_PER_TURN: Final = 32
#: The same for fencing reads.
_FENCES_PER_TURN: Final = 16
#: Approximate bytes of entries that one round of a read request fetches.
READ_ROUND_BYTES: Final = 512 * 1024


class RequestsV2:
    """Handles the v2 frames of one connection."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._bookie = context.shared.bookie
        self._max_batch_read_bytes = context.shared.config.max_batch_read_bytes
        self._loop = asyncio.get_running_loop()
        self._held = HeldAdds[AddRun](context.shared.recovery_adds)

    def handle(self, frames: Frames) -> int:
        """Handle some of ``frames`` and return how many: not all if they are requests of many kinds.

        Raises WireFormatError after the frames before the bad one are handled.
        """
        handled = 0
        for runs, request in enumerate(wire_v2.parse_requests(frames), 1):
            match request:
                case AddRun():
                    self._add(request)
                    handled += len(request.entry_ids)
                case ReadRun():
                    if request.master_key is not None and len(request.entry_ids) > _FENCES_PER_TURN:
                        self._read(_first_reads(request, _FENCES_PER_TURN))
                        return handled + _FENCES_PER_TURN
                    self._read(request)
                    handled += len(request.entry_ids)
                case BatchRead():
                    self._batch_read(request)
                    handled += 1
                case Auth():
                    self._context.answers.send(wire_v2.auth_answer(V2, AUTH_DISABLED))
                    handled += 1
                case BadVersion():
                    self._bad_version(request)
                    handled += 1
            if runs == RUNS_PER_TURN:
                break
        return handled

    # --- adds --------------------------------------------------------------------------------------

    def _add(self, run: AddRun) -> None:
        if run.flags & _RECOVERY_ADD:
            self._held.hold(self, run, len(run.records))
            return
        if self._held.adds:
            self.store_held()
        self._store(run, self._loop.time())

    def store_held(self) -> None:
        """Let the bookie store the adds that waited for more."""
        held, since_s = self._held.take()
        with self._context.charged():
            for run in held:
                self._store(run, since_s)

    def _store(self, run: AddRun, begun: float) -> None:
        context, version, count = self._context, run.version, len(run.entry_ids)
        ledger_ids, entry_ids = run.ledger_ids, run.entry_ids
        records = Records(ledger_ids, entry_ids, run.last_adds_confirmed, run.records, run.offsets)
        allowed = context.adds_allowed(count)
        if allowed < count:
            context.answers.send(
                wire_v2.add_answers(version, ledger_ids[allowed:], entry_ids[allowed:], Code.TOO_MANY_REQUESTS)
            )
            context.observe_codes("add", Code.TOO_MANY_REQUESTS, count - allowed, begun)
            if not allowed:
                return
            records = records.first(allowed)
            ledger_ids, entry_ids = records.ledger_ids, records.entry_ids

        def answer(codes: Code | Int32s) -> None:
            context.answers.send(wire_v2.add_answers(version, ledger_ids, entry_ids, _v2_codes(codes)))

        context.add(
            records,
            run.master_key,
            recovery=bool(run.flags & _RECOVERY_ADD),
            high_priority=bool(run.flags & _HIGH_PRIORITY),
            begun=begun,
            answer=answer,
        )

    # --- reads -------------------------------------------------------------------------------------

    def _read(self, run: ReadRun) -> None:
        context, count, begun = self._context, len(run.entry_ids), self._loop.time()
        if run.flags & _FENCING and run.master_key is None:  # version 1 has no room for a key
            self._refuse_reads(run.version, run.ledger_ids, run.entry_ids, Code.UNAUTHORIZED)
            return
        if not context.may(READ if run.master_key is None else READ | FENCE):
            self._refuse_reads(run.version, run.ledger_ids, run.entry_ids, Code.UNAUTHORIZED)
            context.observe_codes("read", Code.UNAUTHORIZED, count, begun)
            return
        if count == 1 and run.master_key is None and context.may_answer_now and self._answer_now(run, "read", begun):
            return
        allowed = context.reads.allowed(count)
        ledger_ids, entry_ids = run.ledger_ids[:allowed], run.entry_ids[:allowed]
        if allowed < count:
            rest = slice(allowed, count)
            self._refuse_reads(run.version, run.ledger_ids[rest], run.entry_ids[rest], Code.TOO_MANY_REQUESTS)
            context.observe_codes("read", Code.TOO_MANY_REQUESTS, count - allowed, begun)
            if not allowed:
                return
        fences: dict[int, asyncio.Future[Code]] = {}
        if run.master_key is not None:
            for ledger_id in np.unique(ledger_ids).tolist():
                fences[ledger_id] = context.shared.fences.fence(context, ledger_id, run.master_key)
            if (
                count == 1
                and is_durable(fences[int(run.ledger_ids[0])])
                and context.may_answer_now
                and self._answer_now(run, "fence", begun)
            ):
                return
        version = run.version
        context.reads.add(
            allowed,
            lambda: self._answer_reads(version, ledger_ids, entry_ids, fences, begun),
            urgent=bool(run.flags & _URGENT),
        )

    def _answer_now(self, run: ReadRun, kind: str, begun: float) -> bool:
        """Answer one read if everything that it needs is in memory. Its fence is durable."""
        ledger_id, entry_id = int(run.ledger_ids[0]), int(run.entry_ids[0])
        found = self._bookie.read_now(ledger_id, entry_id)
        if found is None or not self._context.answers.fits_now(len(found[1])):
            return False
        code, stored = found
        if code is Code.OK:
            self._context.answers.send(*wire_v2.read_answer(run.version, ledger_id, entry_id, stored))
        else:
            self._refuse_reads(run.version, run.ledger_ids, run.entry_ids, code)
        self._context.observe_codes(kind, code, 1, begun)
        return True

    async def _answer_reads(
        self,
        version: int,
        ledger_ids: Int64s,
        entry_ids: Int64s,
        fences: dict[int, asyncio.Future[Code]],
        begun: float,
    ) -> None:
        context, kind = self._context, "fence" if fences else "read"
        for ledger_id, fence in fences.items():
            code = await fence
            if code is not Code.OK:
                refused = ledger_ids == ledger_id
                self._refuse_reads(version, ledger_ids[refused], entry_ids[refused], code)
                context.observe_codes(kind, code, int(np.count_nonzero(refused)), begun)
                ledger_ids, entry_ids = ledger_ids[~refused], entry_ids[~refused]
        while len(entry_ids):
            async with context.answers.round(READ_ROUND_BYTES, distinct_ledgers(ledger_ids)) as limit:
                part = await self._bookie.read(ledger_ids, entry_ids, limit, taken=context.answers.are_taken)
                count = len(part.codes)
                context.answers.send(*_read_answers(version, ledger_ids[:count], entry_ids[:count], part))
            context.observe_codes(kind, part.codes, count, begun)
            context.reads.answered(count)
            ledger_ids, entry_ids = ledger_ids[count:], entry_ids[count:]

    def _batch_read(self, request: BatchRead) -> None:
        context, begun = self._context, self._loop.time()
        if not context.may(READ if request.master_key is None else READ | FENCE):
            context.answers.send(wire_v2.batch_read_answer(request, Code.UNAUTHORIZED))
            context.observe_codes("read", Code.UNAUTHORIZED, 1, begun)
            return
        if not context.reads.allowed(1):
            context.answers.send(wire_v2.batch_read_answer(request, Code.TOO_MANY_REQUESTS))
            context.observe_codes("read", Code.TOO_MANY_REQUESTS, 1, begun)
            return
        fence = None
        if request.master_key is not None:
            fence = context.shared.fences.fence(context, request.ledger_id, request.master_key)
        urgent = bool(request.flags & _URGENT)
        context.reads.add(1, lambda: self._answer_batch_read(request, fence, begun), urgent=urgent)

    async def _answer_batch_read(self, request: BatchRead, fence: asyncio.Future[Code] | None, begun: float) -> None:
        context = self._context
        code = Code.OK if fence is None else await fence
        if code is Code.OK:
            limit = min(request.max_size_bytes, self._max_batch_read_bytes) - wire_v2.BATCH_ANSWER_BYTES
            async with context.answers.round(limit) as round_bytes:
                code, found = await self._bookie.read_batch(
                    request.ledger_id,
                    request.first_entry_id,
                    request.max_count,
                    round_bytes,
                    taken=context.answers.are_taken,
                )
                records = [view for entries in found for view in record_views(entries)]
                size = sum(len(view) for view in records)
                context.answers.send(wire_v2.batch_read_answer(request, code, size), *records)
        else:
            context.answers.send(wire_v2.batch_read_answer(request, code))
        context.observe_codes("read" if fence is None else "fence", code, 1, begun)

    def _refuse_reads(self, version: int, ledger_ids: Int64s, entry_ids: Int64s, code: Code) -> None:
        self._context.answers.send(wire_v2.add_answers(version, ledger_ids, entry_ids, code, OpV2.READ))

    def _bad_version(self, request: BadVersion) -> None:
        if request.op == OpV2.AUTH:  # Apache's bookie ignores its version
            self._context.answers.send(wire_v2.auth_answer(V2, AUTH_DISABLED))
            return
        if request.op == OpV2.BATCH_READ:
            refused = BatchRead(request.version, 0, None, request.ledger_id, request.entry_id, request.request_id, 0, 0)
            self._context.answers.send(wire_v2.batch_read_answer(refused, Code.BAD_VERSION))
            return
        if request.op not in (OpV2.ADD, OpV2.READ):
            raise WireFormatError(f"v2 opcode {request.op} of version {request.version}")
        ids = np.array([[request.ledger_id], [request.entry_id]], np.int64)
        op = OpV2(request.op)
        self._context.answers.send(wire_v2.add_answers(request.version, ids[0], ids[1], Code.BAD_VERSION, op))


def _first_reads(run: ReadRun, count: int) -> ReadRun:
    return replace(run, ledger_ids=run.ledger_ids[:count], entry_ids=run.entry_ids[:count])


def distinct_ledgers(ledger_ids: Int64s) -> int:
    """Return how many ledgers one round looks up, at most."""
    if ledger_ids[0] == ledger_ids[-1] and (ledger_ids == ledger_ids[0]).all():
        return 1
    return min(MAX_LEDGERS, len(np.unique(ledger_ids)))


def _read_answers(version: int, ledger_ids: Int64s, entry_ids: Int64s, part: ReadPart) -> list[Buffer]:
    entries = part.entries
    if entries is None or not len(entries.sizes):
        return [wire_v2.add_answers(version, ledger_ids, entry_ids, _v2_codes(part.codes), OpV2.READ)]
    answers: list[Buffer] = []
    failed = part.codes != Code.OK
    if failed.any():
        answers.append(
            wire_v2.add_answers(
                version, ledger_ids[failed], entry_ids[failed], _v2_codes(part.codes[failed]), OpV2.READ
            )
        )
        ledger_ids, entry_ids = ledger_ids[~failed], entry_ids[~failed]
    found = wire_v2.read_answers(version, ledger_ids, entry_ids, entries.data, entries.starts, entries.sizes)
    return [*answers, *found]


def record_views(entries: StoredEntries) -> list[Buffer]:
    """Return the entries with their lengths before them, in as few buffers as possible."""
    view = entries.data.data
    if entries.contiguous:
        return [view[int(entries.starts[0]) - LENGTH_BYTES : int(entries.starts[-1] + entries.sizes[-1])]]
    starts = (entries.starts - LENGTH_BYTES).tolist()
    ends = (entries.starts + entries.sizes).tolist()
    return [view[start:end] for start, end in zip(starts, ends, strict=True)]


def _v2_codes(codes: Code | Int32s) -> Code | Int32s:
    if isinstance(codes, Code):
        return codes
    return np.where(codes == Code.UNKNOWN_LEDGER_STATE, np.int32(Code.IO_ERROR), codes)
