"""Reads over gRPC that are not answered yet. Messages: bookie.proto."""

from __future__ import annotations

import asyncio
from typing import Any

from bk_spark.protocol.codes import Code
from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.proto import bookie_pb2 as pb
from bk_spark.protocol.wire.answers_v2 import BatchReadAnswer, ReadAnswer
from bk_spark.protocol.wire.batches import record_offsets
from bk_spark.protocol.wire.framing import LENGTH_BYTES


class PendingRead:
    """A read that is not answered yet. Its answers may come in several messages."""

    def __init__(self, ledger_id: int, entry_ids: range, future: asyncio.Future[dict[int, ReadAnswer]]) -> None:
        self._ledger_id = ledger_id
        self._entry_ids = entry_ids
        self._answers: dict[int, ReadAnswer] = {}
        self.future: asyncio.Future[Any] = future

    def on_answer(self, answer: pb.ReadAnswer, records: memoryview) -> bool:
        """Take an answer. Return whether it is the last. Raises WireFormatError."""
        next_ids = self._entry_ids[len(self._answers) :]
        codes: list[Code]
        if answer.code != pb.CODE_OK:
            codes, records = [Code.from_v3(answer.code)] * len(next_ids), records[:0]
        else:
            if answer.count > len(next_ids) or (answer.codes and len(answer.codes) != answer.count):
                raise WireFormatError("the answer to a read is about more entries than were asked for")
            next_ids = next_ids[: answer.count]
            codes = [Code.from_v3(code) for code in answer.codes] or [Code.OK] * answer.count
        offsets = record_offsets(records, answer.count).tolist()
        if len(offsets) - 1 != codes.count(Code.OK):
            raise WireFormatError("the answer to a read has other entries than it announces")
        at = 0
        for entry_id, code in zip(next_ids, codes, strict=True):
            stored = memoryview(b"")
            if code is Code.OK:
                stored = records[offsets[at] + LENGTH_BYTES : offsets[at + 1]]
                at += 1
            self._answers[entry_id] = ReadAnswer(self._ledger_id, entry_id, code, stored)
        is_whole = len(self._answers) == len(self._entry_ids)
        if answer.last and not is_whole:
            raise WireFormatError("the answer to a read is about fewer entries than were asked for")
        if is_whole and not self.future.done():
            self.future.set_result(self._answers)
        return is_whole


class PendingBatchRead:
    """A read of consecutive entries that is not answered yet."""

    def __init__(self, ledger_id: int, first: int, future: asyncio.Future[BatchReadAnswer]) -> None:
        self._asked = ledger_id, first
        self.future: asyncio.Future[Any] = future

    def on_answer(self, answer: pb.ReadAnswer, records: memoryview) -> bool:
        """Take the answer. Returns True: it is the only one."""
        if not self.future.done():
            self.future.set_result(BatchReadAnswer(*self._asked, answer.request_id, Code.from_v3(answer.code), records))
        return True
