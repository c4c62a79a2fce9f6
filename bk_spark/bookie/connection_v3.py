"""A connection to a bookie that speaks v3, for what v2 cannot carry: reading the explicit LAC.

It is a connection apart: a bookie of Apache's that has seen a v2 frame on a connection takes no v3 there.
"""

from __future__ import annotations

import asyncio

from bk_spark.bookie.connection import FramedConnection
from bk_spark.protocol.codes import DEFAULT_MAX_FRAME_BYTES
from bk_spark.protocol.errors import BookieUnavailableError
from bk_spark.protocol.framing import Frames
from bk_spark.protocol.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire_v3 import parse_response, read_lac_request


class BookieConnectionV3(FramedConnection):
    """Requests and answers matched by transaction id."""

    def __init__(self, bookie_id: str, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        super().__init__(bookie_id, max_frame_bytes)
        self._waiting: dict[int, asyncio.Future[pb.Response]] = {}
        self._txn_id = 0

    async def read_lac(self, ledger_id: int) -> pb.Response:
        """The bookie's explicit LAC and last entry of a ledger. Raises BookieUnavailableError."""
        if self.closed:
            raise self._broken()
        self._txn_id += 1
        txn_id = self._txn_id
        future: asyncio.Future[pb.Response] = asyncio.get_running_loop().create_future()
        self._waiting[txn_id] = future
        self.send([read_lac_request(txn_id, ledger_id)])
        try:
            return await future
        finally:
            self._waiting.pop(txn_id, None)

    def _broken(self) -> BookieUnavailableError:
        return BookieUnavailableError("connection to the bookie broke", bookie_id=self.bookie_id)

    def _on_frames(self, frames: Frames) -> None:
        for body in frames:
            response = parse_response(body)
            future = self._waiting.pop(response.header.txnId, None)
            if future is not None and not future.done():
                future.set_result(response)

    def _on_lost(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(self._broken())
