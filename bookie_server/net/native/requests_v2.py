"""What the native front end does with v2 requests. Codes and rules: compatibility.md §1.3–§1.6, §2.4.

UNKNOWN_LEDGER_STATE is never sent over v2: Java's client would drop the connection. IO_ERROR stands for it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from bk_spark.protocol.arrays import Int32s, Int64s
from bk_spark.protocol.codes import V2, Code, FlagV2, OpV2
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.framing import Frames
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.wire_v2 import AddRun, Auth, BadVersion, BatchRead, ReadRun
from bookie_server.bookie import Bookie
from bookie_server.entry_reader import MAX_LEDGERS, ReadPart
from bookie_server.storage.entrylog.entry_log_reader import StoredEntries
from bookie_server.storage.records import LENGTH_BYTES, Records

if TYPE_CHECKING:
    from bookie_server.net.native.connection import NativeConnection

_URGENT: Final = FlagV2.HIGH_PRIORITY | FlagV2.FENCING
#: Runs of requests that one connection gets handled before it is others' turn: about a millisecond.
RUNS_PER_TURN: Final = 32
#: Fencing reads, the same.
_FENCES_PER_TURN: Final = 16
#: About how many bytes of entries one round of a read request fetches.
READ_ROUND_BYTES: Final = 512 * 1024
#: A batch read counts these before its first entry: answer header, request id, frame length.
_BATCH_OVERHEAD_BYTES: Final = 24 + 8 + 4
AUTH_DISABLED: Final = pb.AuthMessage(authPluginName="AuthDisabledPlugin", payload=b"").SerializeToString()


class RequestsV2:
    """Handles the v2 frames of one connection."""

    def __init__(self, connection: NativeConnection, bookie: Bookie, max_batch_read_bytes: int) -> None:
        self._connection = connection
        self._bookie = bookie
        self._max_batch_read_bytes = max_batch_read_bytes
        self._loop = asyncio.get_running_loop()

    def handle(self, frames: Frames) -> int:
        """How many of the first frames were handled: not all, where they are requests of many kinds.

        Raises WireFormatError; what came before the bad frame is done.
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
                    self._connection.answers.send(wire_v2.auth_answer(V2, AUTH_DISABLED))
                    handled += 1
                case BadVersion():
                    self._bad_version(request)
                    handled += 1
            if runs == RUNS_PER_TURN:
                break
        return handled

    # --- adds --------------------------------------------------------------------------------------

    def _add(self, run: AddRun) -> None:
        connection, version, count = self._connection, run.version, len(run.entry_ids)
        ledger_ids, entry_ids = run.ledger_ids, run.entry_ids
        records = Records(ledger_ids, entry_ids, run.last_adds_confirmed, run.records, run.offsets)
        allowed = connection.adds_allowed(count)
        if allowed < count:
            connection.answers.send(
                wire_v2.add_answers(version, ledger_ids[allowed:], entry_ids[allowed:], Code.TOO_MANY_REQUESTS)
            )
            connection.observe_codes("add", Code.TOO_MANY_REQUESTS, count - allowed, self._loop.time())
            if not allowed:
                return
            records = first_records(records, allowed)
            ledger_ids, entry_ids = records.ledger_ids, records.entry_ids

        def answer(codes: Code | Int32s) -> None:
            connection.answers.send(wire_v2.add_answers(version, ledger_ids, entry_ids, _v2_codes(codes)))

        connection.add(
            records,
            run.master_key,
            recovery=bool(run.flags & FlagV2.RECOVERY_ADD),
            high_priority=bool(run.flags & FlagV2.HIGH_PRIORITY),
            answer=answer,
        )

    # --- reads -------------------------------------------------------------------------------------

    def _read(self, run: ReadRun) -> None:
        connection, count, begun = self._connection, len(run.entry_ids), self._loop.time()
        if run.flags & FlagV2.FENCING and run.master_key is None:  # version 1, which has no room for a key
            self._refuse_reads(run.version, run.ledger_ids, run.entry_ids, Code.UNAUTHORIZED)
            return
        if count == 1 and run.master_key is None and connection.may_answer_now:
            ledger_id, entry_id = int(run.ledger_ids[0]), int(run.entry_ids[0])
            found = self._bookie.read_now(ledger_id, entry_id)
            if found is not None and connection.answers.fits_now(len(found[1])):
                code, stored = found
                if code is Code.OK:
                    connection.answers.send(*wire_v2.read_answer(run.version, ledger_id, entry_id, stored))
                else:
                    self._refuse_reads(run.version, run.ledger_ids, run.entry_ids, code)
                connection.observe_codes("read", code, 1, begun)
                return
        allowed = connection.reads.allowed(count)
        ledger_ids, entry_ids = run.ledger_ids[:allowed], run.entry_ids[:allowed]
        if allowed < count:
            rest = slice(allowed, count)
            self._refuse_reads(run.version, run.ledger_ids[rest], run.entry_ids[rest], Code.TOO_MANY_REQUESTS)
            connection.observe_codes("read", Code.TOO_MANY_REQUESTS, count - allowed, begun)
            if not allowed:
                return
        fences: dict[int, asyncio.Future[Code]] = {}
        if run.master_key is not None:
            for ledger_id in np.unique(ledger_ids).tolist():
                fences[ledger_id] = connection.server.fences.fence(connection, ledger_id, run.master_key)
        version = run.version
        connection.reads.add(
            allowed,
            lambda: self._answer_reads(version, ledger_ids, entry_ids, fences, begun),
            urgent=bool(run.flags & _URGENT),
        )

    async def _answer_reads(
        self,
        version: int,
        ledger_ids: Int64s,
        entry_ids: Int64s,
        fences: dict[int, asyncio.Future[Code]],
        begun: float,
    ) -> None:
        connection, kind = self._connection, "fence" if fences else "read"
        for ledger_id, fence in fences.items():
            code = await fence
            if code is not Code.OK:
                refused = ledger_ids == ledger_id
                self._refuse_reads(version, ledger_ids[refused], entry_ids[refused], code)
                connection.observe_codes(kind, code, int(np.count_nonzero(refused)), begun)
                ledger_ids, entry_ids = ledger_ids[~refused], entry_ids[~refused]
        while len(entry_ids):
            async with connection.answers.round(READ_ROUND_BYTES, distinct_ledgers(ledger_ids)) as limit:
                part = await self._bookie.read(ledger_ids, entry_ids, limit)
                count = len(part.codes)
                connection.answers.send(*_read_answers(version, ledger_ids[:count], entry_ids[:count], part))
            connection.observe_codes(kind, part.codes, count, begun)
            ledger_ids, entry_ids = ledger_ids[count:], entry_ids[count:]

    def _batch_read(self, request: BatchRead) -> None:
        connection, begun = self._connection, self._loop.time()
        if not connection.reads.allowed(1):
            connection.answers.send(wire_v2.batch_read_answer(request, Code.TOO_MANY_REQUESTS))
            connection.observe_codes("read", Code.TOO_MANY_REQUESTS, 1, begun)
            return
        fence = None
        if request.master_key is not None:
            fence = connection.server.fences.fence(connection, request.ledger_id, request.master_key)
        urgent = bool(request.flags & _URGENT)
        connection.reads.add(1, lambda: self._answer_batch_read(request, fence, begun), urgent=urgent)

    async def _answer_batch_read(self, request: BatchRead, fence: asyncio.Future[Code] | None, begun: float) -> None:
        connection = self._connection
        code = Code.OK if fence is None else await fence
        if code is Code.OK:
            limit = min(request.max_size_bytes, self._max_batch_read_bytes) - _BATCH_OVERHEAD_BYTES
            async with connection.answers.round(limit) as round_bytes:
                code, found = await self._bookie.read_batch(
                    request.ledger_id, request.first_entry_id, request.max_count, round_bytes
                )
                records = [view for entries in found for view in _record_views(entries)]
                size = sum(len(view) for view in records)
                connection.answers.send(wire_v2.batch_read_answer(request, code, size), *records)
        else:
            connection.answers.send(wire_v2.batch_read_answer(request, code))
        connection.observe_codes("read" if fence is None else "fence", code, 1, begun)

    def _refuse_reads(self, version: int, ledger_ids: Int64s, entry_ids: Int64s, code: Code) -> None:
        self._connection.answers.send(wire_v2.add_answers(version, ledger_ids, entry_ids, code, OpV2.READ))

    def _bad_version(self, request: BadVersion) -> None:
        if request.op == OpV2.AUTH:  # whose version Apache's bookie does not look at
            self._connection.answers.send(wire_v2.auth_answer(V2, AUTH_DISABLED))
            return
        if request.op == OpV2.BATCH_READ:
            refused = BatchRead(request.version, 0, None, request.ledger_id, request.entry_id, request.request_id, 0, 0)
            self._connection.answers.send(wire_v2.batch_read_answer(refused, Code.BAD_VERSION))
            return
        if request.op not in (OpV2.ADD, OpV2.READ):
            raise WireFormatError(f"v2 opcode {request.op} of version {request.version}")
        ids = np.array([[request.ledger_id], [request.entry_id]], np.int64)
        op = OpV2(request.op)
        self._connection.answers.send(wire_v2.add_answers(request.version, ids[0], ids[1], Code.BAD_VERSION, op))


def _first_reads(run: ReadRun, count: int) -> ReadRun:
    return replace(run, ledger_ids=run.ledger_ids[:count], entry_ids=run.entry_ids[:count])


def distinct_ledgers(ledger_ids: Int64s) -> int:
    """How many ledgers one round looks at, at most."""
    if ledger_ids[0] == ledger_ids[-1] and (ledger_ids == ledger_ids[0]).all():
        return 1
    return min(MAX_LEDGERS, len(np.unique(ledger_ids)))


def first_records(records: Records, count: int) -> Records:
    """The first ``count`` records, over the same bytes."""
    end = int(records.offsets[count])
    return Records(
        records.ledger_ids[:count],
        records.entry_ids[:count],
        records.last_adds_confirmed[:count],
        records.data[:end],
        records.offsets[: count + 1],
    )


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
    rows = uniform_rows(entries)
    if rows is not None:
        return [*answers, wire_v2.read_answers_uniform(version, ledger_ids, entry_ids, rows)]
    prefixes = np.empty(len(entries.sizes), wire_v2.ANSWER_DTYPE)
    prefixes["frame"] = wire_v2.ANSWER_BYTES + entries.sizes
    prefixes["header"] = wire_v2.header_int(OpV2.READ, version=version)
    prefixes["rc"] = Code.OK
    prefixes["ledger"] = ledger_ids
    prefixes["entry"] = entry_ids
    prefix, data, at = memoryview(prefixes.tobytes()), entries.data.data, 0
    for start, end in zip(entries.starts.tolist(), (entries.starts + entries.sizes).tolist(), strict=True):
        answers += (prefix[at : at + prefixes.itemsize], data[start:end])
        at += prefixes.itemsize
    return answers


def uniform_rows(entries: StoredEntries) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]] | None:
    """The entries as rows of a table over their data, where all have one size and one distance."""
    count, size, first = len(entries.sizes), int(entries.sizes[0]), int(entries.starts[0])
    if count == 1:
        return entries.data[first : first + size].reshape(1, size)
    stride = int(entries.starts[1]) - first
    if stride <= 0 or not (entries.sizes == size).all() or not (np.diff(entries.starts) == stride).all():
        return None
    return np.lib.stride_tricks.as_strided(entries.data[first:], (count, size), (stride, 1), writeable=False)


def _record_views(entries: StoredEntries) -> list[Buffer]:
    """The entries with their lengths before them, as few buffers as can be."""
    view = entries.data.data
    starts = (entries.starts - LENGTH_BYTES).tolist()
    ends = (entries.starts + entries.sizes).tolist()
    if entries.contiguous:
        return [view[starts[0] : ends[-1]]]
    return [view[start:end] for start, end in zip(starts, ends, strict=True)]


def _v2_codes(codes: Code | Int32s) -> Code | Int32s:
    if isinstance(codes, Code):
        return codes
    return np.where(codes == Code.UNKNOWN_LEDGER_STATE, np.int32(Code.IO_ERROR), codes)
