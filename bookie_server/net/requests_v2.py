"""What the native front end does with v2 requests. Codes and rules: compatibility facts §1.3–§1.6, §2.4."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from bk_spark.protocol import wire_v2
from bk_spark.protocol.codes import Code, FlagV2, OpV2
from bk_spark.protocol.digest import Buffer
from bk_spark.protocol.framing import Frames
from bk_spark.protocol.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire_v2 import AddRun, Auth, BadVersion, BatchRead, ReadRun
from bookie_server.bookie import Bookie, Int32s, ReadPart
from bookie_server.storage.entry_log_reader import StoredEntries
from bookie_server.storage.records import LENGTH_BYTES, Int64s, Records

if TYPE_CHECKING:
    from bookie_server.net.native import NativeConnection

#: About how many bytes of entries one round of a read request fetches.
READ_ROUND_BYTES: Final = 512 * 1024
#: A batch read counts these before its first entry: answer header, request id, frame length.
_BATCH_OVERHEAD_BYTES: Final = 24 + 8 + 4
AUTH_DISABLED: Final = pb.AuthMessage(authPluginName="AuthDisabledPlugin", payload=b"").SerializeToString()


class RequestsV2:
    """Handles the v2 frames of one connection."""

    def __init__(
        self,
        connection: NativeConnection,
        bookie: Bookie,
        max_batch_read_bytes: int,
        adds_changed: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._bookie = bookie
        self._max_batch_read_bytes = max_batch_read_bytes
        self._adds_changed = adds_changed

    def handle(self, frames: Frames) -> None:
        """Raises WireFormatError; what came before the bad frame is done."""
        for request in wire_v2.parse_requests(frames):
            match request:
                case AddRun():
                    self._add(request)
                case ReadRun():
                    self._read(request)
                case BatchRead():
                    self._batch_read(request)
                case Auth():
                    self._connection.send(wire_v2.auth_answer(request.version, AUTH_DISABLED))
                case BadVersion():
                    self._bad_version(request)

    def _add(self, run: AddRun) -> None:
        def done(codes: Code | Int32s) -> None:
            self._connection.send(wire_v2.add_answers(run.version, run.ledger_ids, run.entry_ids, codes))
            self._adds_changed()

        records = Records(run.ledger_ids, run.entry_ids, run.last_adds_confirmed, run.records, run.offsets)
        self._bookie.add(records, run.master_key, recovery=bool(run.flags & FlagV2.RECOVERY_ADD), done=done)
        self._adds_changed()

    def _read(self, run: ReadRun) -> None:
        if len(run.entry_ids) == 1 and run.master_key is None and not self._connection.reads_waiting:
            ledger_id, entry_id = int(run.ledger_ids[0]), int(run.entry_ids[0])
            found = self._bookie.read_now(ledger_id, entry_id)
            if found is not None:
                code, stored = found
                if code is Code.OK:
                    self._connection.send(*wire_v2.read_answer(run.version, ledger_id, entry_id, stored))
                else:
                    answer = wire_v2.add_answers(run.version, run.ledger_ids, run.entry_ids, code, OpV2.READ)
                    self._connection.send(answer)
                return
        fences: dict[int, asyncio.Future[Code]] = {}
        if run.master_key is not None:
            for ledger_id in np.unique(run.ledger_ids).tolist():
                fences[ledger_id] = self._bookie.fence(ledger_id, run.master_key)
        self._connection.read_later(len(run.entry_ids), lambda: self._answer_reads(run, fences))

    async def _answer_reads(self, run: ReadRun, fences: dict[int, asyncio.Future[Code]]) -> None:
        ledger_ids, entry_ids = run.ledger_ids, run.entry_ids
        for ledger_id, fence in fences.items():
            code = await fence
            if code is not Code.OK:
                refused = ledger_ids == ledger_id
                answers = wire_v2.add_answers(run.version, ledger_ids[refused], entry_ids[refused], code, OpV2.READ)
                self._connection.send(answers)
                ledger_ids, entry_ids = ledger_ids[~refused], entry_ids[~refused]
        while len(entry_ids):
            async with self._connection.read_slots:
                limit = self._connection.round_bytes(READ_ROUND_BYTES)
                part = await self._bookie.read(ledger_ids, entry_ids, limit)
                count = len(part.codes)
                self._connection.send(*_read_answers(run.version, ledger_ids[:count], entry_ids[:count], part))
                self._connection.flush()
            ledger_ids, entry_ids = ledger_ids[count:], entry_ids[count:]
            await self._connection.answers_taken()

    def _batch_read(self, request: BatchRead) -> None:
        fence = None
        if request.master_key is not None:
            fence = self._bookie.fence(request.ledger_id, request.master_key)
        self._connection.read_later(1, lambda: self._answer_batch_read(request, fence))

    async def _answer_batch_read(self, request: BatchRead, fence: asyncio.Future[Code] | None) -> None:
        code = Code.OK if fence is None else await fence
        if code is not Code.OK:
            self._connection.send(wire_v2.batch_read_answer(request, code))
            return
        limit = min(request.max_size_bytes, self._max_batch_read_bytes) - _BATCH_OVERHEAD_BYTES
        async with self._connection.read_slots:
            code, found = await self._bookie.read_batch(
                request.ledger_id, request.first_entry_id, request.max_count, self._connection.round_bytes(limit)
            )
            records = [view for entries in found for view in _record_views(entries)]
            size = sum(len(view) for view in records)
            self._connection.send(wire_v2.batch_read_answer(request, code, size), *records)
            self._connection.flush()

    def _bad_version(self, request: BadVersion) -> None:
        ids = np.array([[request.ledger_id], [request.entry_id]], np.int64)
        op = OpV2(request.op) if request.op in (OpV2.ADD, OpV2.READ) else OpV2.READ
        self._connection.send(wire_v2.add_answers(request.version, ids[0], ids[1], Code.BAD_VERSION, op))


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
    rows = _uniform_rows(entries)
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


def _uniform_rows(entries: StoredEntries) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]] | None:
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


def _v2_codes(codes: Int32s) -> Int32s:
    return np.where(codes == Code.UNKNOWN_LEDGER_STATE, np.int32(Code.IO_ERROR), codes)
